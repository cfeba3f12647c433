//! Finding the ranks of this host and linking to them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::arena::Arena;
use super::claims::Claims;
use super::doorbell::Doorbell;
use super::handshake::{Party, dial};
use super::link::ShmLink;
use super::mapping::page_bytes;
use super::message::{Card, Nonce, VERSION, readable, same_user};
use super::segment::{RING_BYTES_MAX, RING_BYTES_MIN};
use crate::LinkError;
use crate::environment::Network;
use crate::security::{Credentials, Mode, SecurityError, random};

/// Connections that wait to be accepted; the kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Callers that have not greeted, besides those that are expected. With more, the oldest goes.
const SILENT_MAX: usize = 64;

/// How long to wait before dialling again a peer whose backlog is full.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// What can be set about shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Bytes of each ring (there are two per pair of ranks); rounded up to a power of two, at least 16 KiB and a page.
    pub ring_bytes: usize,
    /// Bytes of the arena; None: as large as the machine's memory. Only what is used occupies memory.
    pub arena_bytes: Option<usize>,
    /// Messages of more bytes than this go by reference.
    pub reference_above: usize,
    /// False: no references at all, everything goes through the rings.
    pub single_copy: bool,
    /// Under Yama's `ptrace_scope=1`, allow the descendants of the parent process (the other ranks, when one launcher
    /// has started all) to read this process's memory, as they could without Yama.
    pub admit_siblings: bool,
}

impl Default for ShmOptions {
    fn default() -> ShmOptions {
        ShmOptions {
            ring_bytes: 512 << 10,
            arena_bytes: None,
            reference_above: 8 << 10,
            single_copy: true,
            admit_siblings: true,
        }
    }
}

/// What a rank has in order to share memory with others: an arena, a doorbell, and a socket on which peers find it.
pub struct ShmHost {
    options: ShmOptions,
    arena: Arc<Arena>,
    doorbell: Arc<Doorbell>,
    probe: Arc<Nonce>,
    card: Card,
    listener: OwnedFd,
    attachment: Option<Arc<OwnedFd>>,
    credentials: Option<Arc<Credentials>>,
}

impl ShmHost {
    /// Makes all three. Where that fails, the rank can still use TCP.
    pub fn new(options: ShmOptions) -> Result<ShmHost, LinkError> {
        let failed = |doing| move |source: std::io::Error| LinkError::Io { doing, source };
        let arena = Arena::new(options.arena_bytes).map_err(failed("making a shared arena"))?;
        let doorbell = Doorbell::new().map_err(failed("making a doorbell"))?;
        let nonce = || random().map_err(failed("drawing random bytes"));
        let card = Card { version: VERSION, name: nonce()?, secret: nonce()? };
        let listener = listen(card.name).map_err(failed("listening on an abstract Unix socket"))?;
        if options.single_copy && options.admit_siblings {
            admit_siblings();
        }
        let ring_bytes = options.ring_bytes.clamp(page_bytes().max(RING_BYTES_MIN), RING_BYTES_MAX).next_power_of_two();
        let options = ShmOptions { ring_bytes, ..options };
        Ok(ShmHost {
            options,
            arena,
            doorbell: Arc::new(doorbell),
            probe: Arc::new(nonce()?),
            card,
            listener,
            attachment: None,
            credentials: None,
        })
    }

    /// Memory that all peers of this host can read in place.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Attaches a file to the greeting of all peers of higher ranks that connect from now on
    /// ([`ShmLink::take_attachment`]).
    pub fn attach(&mut self, file: OwnedFd) {
        self.attachment = Some(Arc::new(file));
    }

    /// From now on this rank and its peers prove to each other that they know the job's secret, if it has one.
    /// `meeting` is what rank 0 drew when the ranks met. Each pair pays 0.3 ms for it.
    ///
    /// # Errors
    /// If the network wants encryption and there is no secret.
    pub fn authenticate(&mut self, network: &Network, job: &str, meeting: &[u8; 16]) -> Result<(), SecurityError> {
        let credentials = Credentials::for_shared_memory(network, job, meeting)?;
        self.credentials = (credentials.mode() != Mode::Open).then(|| Arc::new(credentials));
        Ok(())
    }

    /// What the other ranks must know to find this one. It contains a secret: give it to ranks of the job only.
    pub fn blob(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.card).unwrap_or_default()
    }

    /// Links to every peer that runs on this host, as rank `my_rank`. `peers` are ranks with the blobs that they gave;
    /// all ranks call this at about the same time, with the same deadline. Ranks of other hosts cost a system call.
    ///
    /// Each peer gets a link or a reason, which the peer gets too. (Only a peer that passes the deadline in the very
    /// last step can think otherwise; its link then reports [`LinkError::Closed`].) An error means that this rank
    /// can link to nobody.
    pub fn connect(
        &self,
        my_rank: u32,
        peers: &[(u32, Vec<u8>)],
        deadline: Instant,
    ) -> Result<BTreeMap<u32, Result<ShmLink, String>>, LinkError> {
        let party = self.party(my_rank);
        let mut links = BTreeMap::new();
        let mut lower = BTreeMap::new();
        let mut higher = BTreeMap::new();
        for (rank, blob) in peers {
            match recognise(my_rank, *rank, blob) {
                Ok(card) if *rank < my_rank => _ = lower.insert(*rank, card),
                Ok(card) => _ = higher.insert(*rank, card.secret),
                Err(reason) => _ = links.insert(*rank, Err(reason)),
            }
        }
        // In ascending order, so that nobody waits in a circle: rank 0 only answers, and each rank answers once all
        // lower ones have answered it.
        for (rank, card) in lower {
            let link = call_until(&card, deadline).and_then(|socket| dial(&party, socket, rank, card.secret, deadline));
            links.insert(rank, link);
        }
        links.append(&mut self.answer_all(&party, higher, deadline)?);
        Ok(links)
    }

    fn party(&self, rank: u32) -> Party {
        Party {
            rank,
            secret: self.card.secret,
            credentials: self.credentials.clone(),
            arena: Arc::clone(&self.arena),
            doorbell: Arc::clone(&self.doorbell),
            probe: Arc::clone(&self.probe),
            ring_bytes: self.options.ring_bytes,
            reference_above: self.options.single_copy.then_some(self.options.reference_above),
            attachment: self.attachment.clone(),
        }
    }

    /// Waits until all of `expected` (with their secrets) have called, and answers them as they greet. Callers that say
    /// nothing, or whom nobody expects, keep no one waiting.
    fn answer_all(
        &self,
        party: &Party,
        expected: BTreeMap<u32, Nonce>,
        deadline: Instant,
    ) -> Result<BTreeMap<u32, Result<ShmLink, String>>, LinkError> {
        let accepting = |error: Errno| LinkError::Io { doing: "accepting on a Unix socket", source: error.into() };
        let mut callers: Vec<OwnedFd> = Vec::new();
        let mut claims = Claims::new(party, expected, deadline);
        while claims.is_expecting() {
            let silent = std::iter::once(&self.listener).chain(&callers).map(AsFd::as_fd);
            let sockets: Vec<_> = silent.chain(claims.sockets()).collect();
            let ready = readable(&sockets, deadline)
                .map_err(|source| LinkError::Io { doing: "waiting for Unix sockets", source })?;
            if ready.is_empty() {
                break;
            }
            // From the last one on, so that who is taken out moves nobody whose turn is still to come.
            let first_claim = 1 + callers.len();
            for index in ready.into_iter().rev() {
                match index {
                    0 => match self.accept() {
                        // Strangers may hold all descriptors that there are.
                        Err(Errno::MFILE | Errno::NFILE) if !callers.is_empty() => _ = callers.remove(0),
                        accepted => callers.extend(accepted.map_err(accepting)?),
                    },
                    _ if index < first_claim => claims.greeted(callers.remove(index - 1)),
                    _ => claims.heard(index - first_claim),
                }
            }
            if callers.len() > claims.expected() + SILENT_MAX {
                callers.remove(0);
            }
            // Callers that never end must not keep this rank from the rest of its work.
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(claims.into_links())
    }

    /// The next caller.
    #[cfg(test)]
    pub(super) fn accepted(&self, deadline: Instant) -> OwnedFd {
        loop {
            assert!(!readable(&[self.listener.as_fd()], deadline).expect("a socket").is_empty(), "nobody calls");
            if let Some(caller) = self.accept().expect("a caller") {
                return caller;
            }
        }
    }

    fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // Other users may know the name (it stands in /proc/net/unix): they hold no descriptor of ours.
            Ok(socket) => Ok(same_user(socket.as_fd()).is_ok().then_some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for ShmHost {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ShmHost").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The card of a rank that a link may be possible to. The higher rank of a pair dials; the lower one dials too, only to
/// know whether it has to expect a call.
fn recognise(my_rank: u32, rank: u32, blob: &[u8]) -> Result<Card, String> {
    let card = read_card(blob)?;
    match rank.cmp(&my_rank) {
        Ordering::Less => {}
        Ordering::Equal => return Err("it is this rank itself".into()),
        Ordering::Greater => {
            // It refuses another user at once, and would not call.
            if let Some(socket) = call(&card)? {
                same_user(socket.as_fd())?;
            }
        }
    }
    Ok(card)
}

fn read_card(blob: &[u8]) -> Result<Card, String> {
    if blob.is_empty() {
        return Err("it offers no shared memory".into());
    }
    let card: Card = postcard::from_bytes(blob).map_err(|_| "its offer of shared memory cannot be read".to_owned())?;
    if card.version != VERSION {
        return Err(format!("its shared memory has version {}, ours {VERSION}", card.version));
    }
    Ok(card)
}

/// Connects to the socket of a rank; None if it is there but has no room to accept.
pub(super) fn call(card: &Card) -> Result<Option<OwnedFd>, String> {
    let failed = |error: Errno| format!("connecting to its Unix socket: {error}");
    let socket = socket().map_err(failed)?;
    loop {
        match rustix::net::connect(&socket, &address(card.name).map_err(failed)?) {
            Ok(()) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(Errno::CONNREFUSED) => {
                return Err("it runs on another host, or in a container with a network of its own".into());
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn call_until(card: &Card, deadline: Instant) -> Result<OwnedFd, String> {
    loop {
        if let Some(socket) = call(card)? {
            return Ok(socket);
        }
        if Instant::now() >= deadline {
            return Err("it runs on this host, but did not take our call within the time".into());
        }
        std::thread::sleep(RETRY_AFTER);
    }
}

fn listen(name: Nonce) -> std::io::Result<OwnedFd> {
    let listener = socket()?;
    rustix::net::bind(&listener, &address(name)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// An abstract name: it belongs to the network namespace, not to a file system, and vanishes with its socket.
fn address(name: Nonce) -> Result<SocketAddrUnix, Errno> {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddrUnix::new_abstract_name(format!("paceline-{digits}").as_bytes())
}

/// Yama lets only ancestors read a process's memory, unless the process names another: it may name one, whose
/// descendants are admitted with it. Without Yama this fails and nothing needs to be done.
fn admit_siblings() {
    use rustix::process::{PTracer, getppid, set_ptracer};
    if let Some(parent) = getppid() {
        let _ = set_ptracer(PTracer::ProcessID(parent));
    }
}
