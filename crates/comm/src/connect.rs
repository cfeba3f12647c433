//! How a world comes together: the ranks meet, those of one host share memory, the rest open TCP connections.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_collective::Topology;
use paceline_fabric::emulation::Ports;
use paceline_fabric::environment::{Environment, TIMEOUT_MAX, World as Place};
use paceline_fabric::rendezvous::{self, Members};
use paceline_fabric::shm::{ShmHost, ShmOptions};
use paceline_fabric::{Link, TcpAcceptor, TcpConnectOptions, connect_tcp};
use paceline_plan::{Emulation, Hosts, Shape, ShapeError};

use crate::connect_error::{EMULATED_NETWORK, TRANSPORT_SHM};
use crate::world::{Parts, World};
use crate::{CommError, Communicator, ConnectError, ThreadsConfig, Watch, emulated};

/// The deadline of calls that name none.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// What may carry the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory between ranks of one host, TCP otherwise.
    #[default]
    Auto,
    /// Shared memory or nothing.
    Shm,
    /// TCP, also within a host.
    Tcp,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this rank is, and where the others are.
    pub environment: Environment,
    /// What may carry the links.
    pub transport: TransportChoice,
    /// The deadline of calls that name none.
    pub timeout: Duration,
    /// How memory is shared.
    pub shm: ShmOptions,
    /// TCP connections per pair of ranks; the same on all ranks.
    pub tcp_streams: u32,
    /// How this rank watches the others.
    pub watch: Watch,
    /// Measure the links once they are there ([`Communicator::probe`]); the same on all ranks.
    pub probe: bool,
    /// Slow the links down to those of a cluster. All ranks must be on this machine and share memory; the same on all
    /// ranks.
    pub emulation: Option<Emulation>,
}

impl Config {
    /// What the launcher says: `paceline launch`, `torchrun`, `srun` or `mpirun`; a world of one rank if none did.
    ///
    /// # Errors
    /// If its variables contradict each other; the text names the variable.
    pub fn from_environment() -> Result<Config, CommError> {
        let environment = Environment::read().map_err(|error| CommError::connect(None, host_name(), error))?;
        let mut watch = Watch::default();
        watch.heartbeat = environment.heartbeat.unwrap_or(watch.heartbeat);
        watch.stall = environment.stall.unwrap_or(watch.stall);
        Ok(Config {
            environment,
            watch,
            transport: TransportChoice::Auto,
            timeout: TIMEOUT,
            shm: ShmOptions::default(),
            tcp_streams: 1,
            probe: true,
            emulation: None,
        })
    }

    /// Which ranks share a host, found out before anything is connected: those of the emulated hosts; or all, if the
    /// launcher has said so to each of them; or those that a meeting of all ranks finds there, numbered as they come. All
    /// ranks call it, or none.
    ///
    /// # Errors
    /// [`CommError::Connect`] if not all come in time, or some want to connect at once; the text names the ranks.
    pub fn hosts(&self) -> Result<Hosts, CommError> {
        let Some(place) = &self.environment.world else { return Ok(Hosts::regular(1, 1)) };
        match &self.emulation {
            Some(emulation) => return Ok(emulation.hosts.clone()),
            None if place.local_size == Some(place.world_size) => {
                return Ok(Hosts::regular(1, place.world_size as usize));
            }
            None => {}
        }
        let Environment { network, timeout, .. } = &self.environment;
        let members = rendezvous::survey(place, network, *timeout)
            .map_err(|error| CommError::connect(Some(place.rank as usize), host_name(), error))?;
        Ok(Hosts::in_order(first_of_hosts(&members).into_iter()))
    }
}

impl Communicator {
    /// Connects this rank with all others of its world.
    ///
    /// # Errors
    /// [`CommError::Connect`] if not all come in time, if they disagree about the world, or if a link cannot be opened;
    /// the text names the ranks.
    pub fn connect(config: Config) -> Result<Communicator, CommError> {
        if let Some(emulation) = &config.emulation {
            let (rank, world) =
                config.environment.world.as_ref().map_or((0, 1), |place| (place.rank, place.world_size));
            let failed = |error| CommError::connect(Some(rank as usize), host_name(), ConnectError::Emulation(error));
            emulation.check(world as usize).map_err(failed)?;
        }
        let world = match &config.environment.world {
            Some(place) => {
                let failed = |error| CommError::connect(Some(place.rank as usize), host_name(), error);
                World::new(join(place, &config).map_err(failed)?)?
            }
            None => {
                let alone = ThreadsConfig { topology: config.environment.topology, ..ThreadsConfig::default() };
                return Ok(Communicator::threads_with(1, &alone)?.remove(0));
            }
        };
        let communicator = Communicator::over(world);
        if config.probe {
            communicator.probe()?;
        }
        Ok(communicator)
    }
}

/// Everything up to the links.
fn join(place: &Place, config: &Config) -> Result<Parts, ConnectError> {
    let Environment { network, timeout, topology: shape, .. } = &config.environment;
    let mut notes = Vec::new();
    let acceptor = match config.transport {
        TransportChoice::Shm => None,
        _ if place.local_size == Some(place.world_size) => Some(TcpAcceptor::open_local(network)?),
        _ => Some(TcpAcceptor::open(network)?),
    };
    let mut shm = match config.transport {
        TransportChoice::Tcp => None,
        _ => ShmHost::new(config.shm.clone()).map_err(|error| notes.push(format!("no shared memory: {error}"))).ok(),
    };
    let addresses = acceptor.as_ref().map_or(Vec::new(), |acceptor| acceptor.addresses().to_vec());
    let blob = shm.as_ref().map_or(Vec::new(), ShmHost::blob);
    let members =
        rendezvous::meet(&with_terms_of(*shape, config.emulation.as_ref(), place), network, *timeout, addresses, blob)?;
    notes.extend(members.notes.iter().cloned());
    // Which ranks say that they are on one host: the same on every rank, whatever its links turn out to be.
    let first = first_of_hosts(&members);
    let topology = config.emulation.as_ref().map_or_else(|| Topology::of_hosts(&first), emulated::topology);
    // Before there are links, so that all ranks say the same.
    let topology = wired(&topology, *shape)?;
    if let Some(Err(error)) = shm.as_mut().map(|shm| shm.authenticate(network, &members.job, &members.nonce)) {
        notes.push(format!("no shared memory: {error}"));
        shm = None;
    }
    let deadline = Instant::now() + (*timeout).min(TIMEOUT_MAX);
    let own_ports = match (&config.emulation, &mut shm) {
        (Some(emulation), Some(shm)) if members.rank == 0 => Some(offer(emulation, shm)?),
        _ => None,
    };
    let links = members.members.iter().map(|_| None).collect();
    let mut linking = Linking { config, members: &members, deadline, links, notes };
    let attachment = shm.as_ref().map_or(Ok(None), |shm| linking.share(shm))?;
    if config.emulation.is_none() && attachment.is_some() {
        // At full speed between ranks that are slowed down, its times would be half true.
        return Err(ConnectError::Emulations { what: "rank 0 emulates a network and this rank does not".into() });
    }
    linking.dial(acceptor)?;
    let Linking { mut links, mut notes, .. } = linking;
    let own = members.rank as usize;
    let mut hosts: Vec<String> = members.members.iter().map(|member| member.host.clone()).collect();
    if let Some(emulation) = &config.emulation {
        let ports = emulated::ports(own_ports, attachment, emulation)?;
        emulated::shape(&mut links, own, emulation, &ports);
        notes.push(format!("the network is emulated: {emulation}"));
        hosts = emulated::hosts(emulation);
    }
    let processes = processes(&members, &first);
    Ok(Parts {
        rank: own,
        links,
        tcp_streams: config.tcp_streams as usize,
        hosts,
        topology,
        arena: shm.as_ref().map(|shm| shm.arena().clone()),
        timeout: config.timeout,
        watch: config.watch.clone(),
        notes,
        local_ranks: members.neighbours().count() + 1,
        local_turns: processes.iter().flatten().collect::<BTreeSet<_>>().len(),
        processes,
        dilation: config.emulation.as_ref().map_or(1.0, |emulation| emulation.dilation),
    })
}

/// Where hosts are wired in some way, ranks that say otherwise are turned away: their programs would not fit.
fn with_terms_of(shape: Shape, emulation: Option<&Emulation>, place: &Place) -> Place {
    if shape == Shape::Flat {
        return place.clone();
    }
    let purpose = if place.terms.is_empty() { "to connect".to_owned() } else { format!("{},", place.terms) };
    // With other hosts, each would find something else wrong.
    let hosts =
        emulation.map_or_else(String::new, |emulation| format!(" of {} emulated hosts", emulation.hosts.count()));
    let terms = format!("{purpose} on the topology {shape}{hosts} (--topology, PACELINE_TOPOLOGY)");
    Place { terms, ..place.clone() }
}

/// These ranks, on hosts that are wired in this way.
///
/// # Errors
/// It has not as many places as there are hosts.
pub(crate) fn wired(hosts: &Topology, shape: Shape) -> Result<Topology, ShapeError> {
    shape.check(hosts.hosts())?;
    Ok(hosts.on(shape))
}

/// By rank, the process of those that are on this rank's host, by the first rank of each one's host.
fn processes(members: &Members, first: &[usize]) -> Vec<Option<u32>> {
    let here = first[members.rank as usize];
    let process = |rank: usize| (first[rank] == here).then_some(members.members[rank].process);
    (0..first.len()).map(process).collect()
}

/// Of each rank the first one that says it is on the same host.
fn first_of_hosts(members: &Members) -> Vec<usize> {
    let members = &members.members;
    let first = |rank: usize| {
        members.iter().position(|member| member.identity.is_same_host(&members[rank].identity)).unwrap_or(rank)
    };
    (0..members.len()).map(first).collect()
}

/// The ports of an emulated network, which all other ranks get when they connect to this one.
fn offer(emulation: &Emulation, shm: &mut ShmHost) -> Result<Arc<Ports>, ConnectError> {
    let failed = |source| ConnectError::Io { doing: "making the ports of an emulated network", source };
    let ports = Ports::create(emulation).map_err(failed)?;
    shm.attach(ports.file().try_clone_to_owned().map_err(failed)?);
    Ok(ports)
}

/// The links of a rank that has met the others.
struct Linking<'a> {
    config: &'a Config,
    members: &'a Members,
    deadline: Instant,
    /// By rank.
    links: Vec<Option<Box<dyn Link>>>,
    notes: Vec<String>,
}

impl Linking<'_> {
    /// Links to the ranks that turn out to share memory with this one. Also the file that rank 0 has attached.
    fn share(&mut self, shm: &ShmHost) -> Result<Option<OwnedFd>, paceline_fabric::LinkError> {
        let Members { rank: own, members, .. } = self.members;
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A rank that shares no memory after all must leave time for TCP.
        let reserved = if self.config.transport == TransportChoice::Shm { Duration::ZERO } else { left / 2 };
        let mut attachment = None;
        let peers: Vec<(u32, Vec<u8>)> =
            self.members.neighbours().map(|rank| (rank, members[rank as usize].blob.clone())).collect();
        for (rank, found) in shm.connect(*own, &peers, self.deadline - reserved)? {
            match found {
                Ok(mut link) => {
                    if rank == 0 {
                        attachment = link.take_attachment();
                    }
                    if let Err(reason) = link.single_copy() {
                        self.notes.push(format!("no single copy between ranks {own} and {rank}: {reason}"));
                    }
                    self.links[rank as usize] = Some(Box::new(link));
                }
                Err(reason) => self.notes.push(format!("no shared memory with rank {rank}: {reason}")),
            }
        }
        Ok(attachment)
    }

    /// Links to all others over TCP, if there may be such links.
    fn dial(&mut self, acceptor: Option<TcpAcceptor>) -> Result<(), ConnectError> {
        let missing = |&rank: &u32| rank != self.members.rank && self.links[rank as usize].is_none();
        let others: BTreeSet<u32> = (0..self.links.len() as u32).filter(missing).collect();
        let Some(&first) = others.first() else { return Ok(()) };
        let acceptor = match (acceptor, &self.config.emulation) {
            (Some(acceptor), None) => acceptor,
            (_, Some(_)) => return Err(self.no_shared_memory(EMULATED_NETWORK, first)),
            (None, None) => return Err(self.no_shared_memory(TRANSPORT_SHM, first)),
        };
        self.notes.extend(acceptor.notes().iter().cloned());
        let (streams, network) = (self.config.tcp_streams, self.config.environment.network.clone());
        let options = TcpConnectOptions { streams, network, ..TcpConnectOptions::default() };
        let connected = connect_tcp(self.members, acceptor, &others, &options, self.deadline)?;
        self.notes.extend(connected.notes);
        for (rank, link) in connected.links {
            self.links[rank as usize] = Some(Box::new(link));
        }
        Ok(())
    }

    fn no_shared_memory(&self, purpose: &'static str, rank: u32) -> ConnectError {
        let (host, why) = (self.members.members[rank as usize].host.clone(), self.notes.join("; "));
        ConnectError::NoSharedMemory { purpose, rank, host, why }
    }
}

/// This machine's name, for messages.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl TransportChoice {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Shm => "shm",
            TransportChoice::Tcp => "tcp",
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [TransportChoice::Auto, TransportChoice::Shm, TransportChoice::Tcp];
        all.into_iter()
            .find(|choice| choice.name() == name)
            .ok_or_else(|| format!("unknown transport `{name}`; known: auto, shm, tcp"))
    }
}
