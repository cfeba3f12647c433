//! Rank 0's side of the meeting.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket2::SockRef;

use super::{
    Answer, BLOB_BYTES_MAX, Hello, MEMBER_BYTES_MAX, Member, Members, Party, Process, Refusal, RendezvousError, nonce,
};
use crate::control::{Arrival, Channel, Event, Reception, listen};
use crate::interfaces::{Interface, admission, interfaces};

/// How long a rank may take to read an answer. It waits for it, and the kernel buffers most of it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Waits for all other ranks and gives each the table.
pub(super) fn host(party: &Party<'_>) -> Result<Members, RendezvousError> {
    let listeners = listeners(party)?;
    let io = |doing| move |source| RendezvousError::Io { doing, source };
    let interfaces = interfaces().map_err(io("listing the network interfaces"))?;
    let reception = Reception::new(&listeners, &party.credentials, 0, MEMBER_BYTES_MAX);
    let reception = reception.map_err(io("preparing to listen"))?;
    let seats = (0..party.world.world_size).map(|_| None).collect();
    let mut table = Table { party, interfaces, reception, seats };
    match table.fill() {
        Ok(()) => table.serve(),
        Err((error, mut culprit)) => {
            // Everybody hears why; whoever does not listen any more need not.
            let reason = Answer::Refused { reason: for_all(&error) };
            let deadline = Instant::now() + ANSWER_PATIENCE;
            for channel in table.seats.iter_mut().flatten().map(|seat| &mut seat.channel).chain(&mut culprit) {
                let _ = channel.send(&reason, deadline);
            }
            Err(error)
        }
    }
}

/// Why the meeting is over, for those who have come.
fn for_all(error: &RendezvousError) -> Box<Refusal> {
    match error {
        RendezvousError::Ended(reason) => reason.clone(),
        other => Box::new(Refusal::RankZero { reason: other.to_string(), next_step: other.next_step() }),
    }
}

/// Who has come so far.
struct Table<'a> {
    party: &'a Party<'a>,
    interfaces: Vec<Interface>,
    reception: Reception<'a>,
    /// By rank; rank 0's stays empty.
    seats: Vec<Option<Seat>>,
}

struct Seat {
    channel: Channel,
    member: Member,
}

/// An error that ends the meeting, and the connection that brought it, if it has no seat.
type Fatal = (RendezvousError, Option<Channel>);

impl Table<'_> {
    fn fill(&mut self) -> Result<(), Fatal> {
        let others = self.party.world.world_size as usize - 1;
        while self.seats.iter().flatten().count() < others {
            let (ranks, sockets): (Vec<u32>, Vec<&TcpStream>) =
                self.seats.iter().flatten().map(|seat| (seat.member.rank, &seat.channel.socket)).unzip();
            let event = self.reception.next(&sockets, self.party.deadline());
            match event.map_err(|source| (RendezvousError::Io { doing: "waiting for ranks", source }, None))? {
                Event::Arrival(arrival) => self.consider(arrival)?,
                Event::Left(index) => return Err((self.left(ranks[index]).into(), None)),
                Event::TimedOut => return Err((self.missing().into(), None)),
            }
        }
        Ok(())
    }

    /// Seats a rank, turns a stranger away, or ends the meeting if a rank of this job has another idea of the world.
    fn consider(&mut self, mut arrival: Arrival) -> Result<(), Fatal> {
        let hello: Hello = match arrival.message() {
            Ok(hello) => hello,
            Err(error) => {
                self.reception.turned_away(arrival.from, &error);
                return Ok(());
            }
        };
        if let Err(reason) = self.admit(&hello, &arrival) {
            let soon = Instant::now() + ANSWER_PATIENCE;
            self.reception.turned_away(arrival.from, &reason);
            let _ = arrival.channel.send(&Answer::Refused { reason: Box::new(reason) }, soon);
            return Ok(());
        }
        if let Some(error) = self.disagreement(&hello) {
            return Err((error.into(), Some(arrival.channel)));
        }
        let left = self.party.deadline().saturating_duration_since(Instant::now());
        let welcome = Answer::Welcome { patience_ms: left.as_millis() as u64 };
        if let Err(error) = arrival.channel.send(&welcome, Instant::now() + ANSWER_PATIENCE) {
            self.reception.turned_away(arrival.from, &error);
            return Ok(());
        }
        let rank = hello.member.rank as usize;
        let member = Member { seen_at: Some(arrival.from.ip()), ..hello.member };
        self.seats[rank] = Some(Seat { channel: arrival.channel, member });
        Ok(())
    }

    /// Is this a rank of this job that may join? Otherwise the others wait on.
    fn admit(&self, hello: &Hello, arrival: &Arrival) -> Result<(), Refusal> {
        let (rank, process) = (hello.member.rank, || Process::from(&hello.member));
        admission(arrival.from.ip(), &self.interfaces, self.party.network).map_err(|reason| Refusal::NotAdmitted {
            rank,
            process: process(),
            reason,
        })?;
        if let Some(claim) = arrival.claim.filter(|claim| claim.from != rank) {
            let what = format!("was rank {} when it opened the connection", claim.from);
            return Err(Refusal::Senseless { rank, process: process(), what });
        }
        if hello.job != self.party.world.job {
            let (theirs, ours) = (hello.job.clone(), self.party.world.job.clone());
            return Err(Refusal::Job { rank, process: process(), theirs, ours });
        }
        if hello.member.blob.len() > BLOB_BYTES_MAX {
            let what = format!("has a blob of {} bytes, which is too long", hello.member.blob.len());
            return Err(Refusal::Senseless { rank, process: process(), what });
        }
        Ok(())
    }

    fn disagreement(&self, hello: &Hello) -> Option<Refusal> {
        let (rank, ours) = (hello.member.rank, self.party.world.world_size);
        let second: Process = (&hello.member).into();
        let terms = &self.party.world.terms;
        if hello.terms != *terms {
            let (theirs, ours) = (hello.terms.clone(), terms.clone());
            return Some(Refusal::Terms { rank, process: second, theirs, ours });
        }
        if hello.world_size != ours {
            return Some(Refusal::WorldSize { rank, process: second, theirs: hello.world_size, ours });
        }
        if rank >= ours {
            return Some(Refusal::NoSuchRank { rank, process: second, world_size: ours });
        }
        let taken =
            if rank == 0 { Some(&self.party.own) } else { self.seats[rank as usize].as_ref().map(|s| &s.member) };
        taken.map(|first| Refusal::Duplicate { rank, first: first.into(), second })
    }

    fn have(&self) -> Vec<u32> {
        std::iter::once(0).chain(self.seats.iter().flatten().map(|seat| seat.member.rank)).collect()
    }

    fn left(&mut self, rank: u32) -> Refusal {
        let seat = self.seats[rank as usize].take().expect("only ranks with a seat are watched");
        Refusal::Left { rank, process: (&seat.member).into(), have: self.have() }
    }

    fn missing(&self) -> Refusal {
        let have = self.have();
        let missing = (0..self.party.world.world_size).filter(|rank| have.binary_search(rank).is_err()).collect();
        let turned_away = self.reception.notes().to_vec();
        Refusal::Missing { missing, have, waited: self.party.timeout, turned_away }
    }

    /// All are here: everyone gets the table.
    fn serve(mut self) -> Result<Members, RendezvousError> {
        let others = self.seats.iter().flatten().map(|seat| seat.member.clone());
        let members: Vec<Member> = std::iter::once(self.party.own.clone()).chain(others).collect();
        let nonce = nonce()?;
        let table = Answer::Table { nonce, members };
        let deadline = self.party.deadline().max(Instant::now() + ANSWER_PATIENCE);
        for rank in 1..self.party.world.world_size {
            let seat = self.seats[rank as usize].as_mut().expect("all seats are taken");
            if seat.channel.send(&table, deadline).is_err() {
                let reason = Box::new(self.left(rank));
                let error = RendezvousError::Ended(reason.clone());
                let reason = Answer::Refused { reason };
                let soon = Instant::now() + ANSWER_PATIENCE;
                // Those before it have the table, and will miss it themselves.
                for seat in self.seats.iter_mut().skip(rank as usize + 1).flatten() {
                    let _ = seat.channel.send(&reason, soon);
                }
                return Err(error);
            }
        }
        let Answer::Table { members, .. } = table else { unreachable!("it was made above") };
        let (notes, job) = (self.reception.into_notes(), self.party.world.job.clone());
        Ok(Members { rank: 0, world_size: self.party.world.world_size, job, nonce, members, notes })
    }
}

/// Where rank 0 listens: the inherited socket, or the meeting point's addresses.
fn listeners(party: &Party<'_>) -> Result<Vec<TcpListener>, RendezvousError> {
    if let Some(descriptor) = party.world.listener {
        return inherited(descriptor).map(|listener| vec![listener]);
    }
    let meeting_point = party.meeting_point;
    let literal = meeting_point.host.parse::<IpAddr>().is_ok();
    let result = if party.network.admits_others() && !literal && meeting_point.host != "localhost" {
        // The name may mean another address here than elsewhere; many hosts resolve their own to a loopback address.
        listen_at_any(wildcard(meeting_point.port))
    } else {
        let resolved = (&*meeting_point.host, meeting_point.port).to_socket_addrs();
        match resolved.map_err(ListenError::Other).and_then(|resolved| listen_at_any(resolved.collect())) {
            // An address that is translated on the way.
            Err(ListenError::Other(_)) if party.network.admits_others() => listen_at_any(wildcard(meeting_point.port)),
            result => result,
        }
    };
    result.map_err(|refusal| match refusal {
        ListenError::InUse(address) => RendezvousError::PortInUse { address },
        ListenError::Other(source) => RendezvousError::Listen { meeting_point: meeting_point.clone(), source },
    })
}

enum ListenError {
    InUse(SocketAddr),
    Other(io::Error),
}

/// Listens at all of these addresses that are ours.
fn listen_at_any(addresses: Vec<SocketAddr>) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut refusal = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            // The same address again, or a wildcard that covers both families.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && listeners.iter().any(|ours| covers(ours, address)) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(ListenError::InUse(address)),
            Err(error) => refusal = error,
        }
    }
    if listeners.is_empty() { Err(ListenError::Other(refusal)) } else { Ok(listeners) }
}

/// Does a listener of ours receive what comes for this address?
fn covers(listener: &TcpListener, address: SocketAddr) -> bool {
    listener.local_addr().is_ok_and(|ours| ours.ip() == address.ip() || ours.ip().is_unspecified())
}

/// All addresses of this host. The first covers both families where there is IPv6.
fn wildcard(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}

/// Another descriptor of the inherited socket, to be consumed in its place.
pub(super) fn second(descriptor: i32) -> Result<i32, RendezvousError> {
    // SAFETY: borrowed for this one question; a number that is not open answers EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let second = rustix::io::fcntl_dupfd_cloexec(borrowed, 0);
    let refused = |error: Errno| match error {
        Errno::MFILE => RendezvousError::Io { doing: "keeping the listener for later", source: error.into() },
        _ => RendezvousError::NotListening { descriptor },
    };
    Ok(second.map_err(refused)?.into_raw_fd())
}

fn inherited(descriptor: i32) -> Result<TcpListener, RendezvousError> {
    let refuse = RendezvousError::NotListening { descriptor };
    // Asked by number first: to own a descriptor that does not exist would be a mistake of its own.
    // SAFETY: borrowed only for the two questions below; a number that is not open answers EBADF to both.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if rustix::net::sockopt::socket_acceptconn(borrowed) != Ok(true)
        || !matches!(SockRef::from(&borrowed).local_addr(), Ok(address) if address.as_socket().is_some())
    {
        return Err(refuse);
    }
    let keep = rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC);
    keep.map_err(|error: Errno| RendezvousError::Io {
        doing: "keeping the listener to ourselves",
        source: error.into(),
    })?;
    // SAFETY: the launcher gave us this descriptor to own, it is a listening socket, and `meet` consumes it once.
    Ok(unsafe { TcpListener::from_raw_fd(descriptor) })
}
