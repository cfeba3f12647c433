//! Worlds whose ranks are threads of this process: for tests, examples and trying things out.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_collective::Topology;
use paceline_fabric::emulation::Ports;
use paceline_fabric::shm::{ShmHost, ShmLink, ShmOptions};
use paceline_fabric::{Link, LinkError, TcpLink, TcpOptions, Transport, memory_pair};
use paceline_plan::{Emulation, Shape};

use crate::connect::{host_name, wired};
use crate::world::{Parts, World};
use crate::{CommError, Communicator, ConnectError, Watch, emulated};

/// A world whose ranks are threads: how they are linked.
#[derive(Clone, Debug)]
pub struct ThreadsConfig {
    /// What links ranks of one host.
    pub transport: Transport,
    /// The ranks pretend to be on so many hosts, in equal shares, the first ranks on the first; ranks of different hosts
    /// are linked by TCP. From 1 to the number of ranks.
    pub hosts: usize,
    /// TCP connections per pair of ranks. At least 1.
    pub tcp_streams: usize,
    /// How memory is shared.
    pub shm: ShmOptions,
    /// How the ranks watch each other.
    pub watch: Watch,
    /// Slow the links down to those of a cluster, whose hosts then take the place of `hosts` (which must be 1).
    pub emulation: Option<Emulation>,
    /// How the hosts are wired, which programs for a torus or a BCube follow.
    pub topology: Shape,
}

impl Default for ThreadsConfig {
    fn default() -> ThreadsConfig {
        ThreadsConfig {
            transport: Transport::Memory,
            hosts: 1,
            tcp_streams: 1,
            shm: ShmOptions::default(),
            watch: Watch::default(),
            emulation: None,
            topology: Shape::Flat,
        }
    }
}

/// Everything happens in one process: longer is a fault.
const CONNECT: Duration = Duration::from_secs(20);

type Links = Vec<Option<Box<dyn Link>>>;

impl Communicator {
    /// The world of one rank.
    ///
    /// # Errors
    /// If the process is out of descriptors or threads.
    pub fn solo() -> Result<Communicator, CommError> {
        Ok(Communicator::threads(1)?.remove(0))
    }

    /// A world whose ranks are threads of this process: one communicator for each.
    ///
    /// # Errors
    /// If `world` is 0, or the process is out of descriptors or threads.
    pub fn threads(world: usize) -> Result<Vec<Communicator>, CommError> {
        Communicator::threads_over(Transport::Memory, world)
    }

    /// As [`Communicator::threads`], linked by the transport that processes would use: TCP on loopback, or shared
    /// memory between threads that pretend not to be in one process.
    ///
    /// # Errors
    /// As [`Communicator::threads`]; also if the transport is not to be had here.
    pub fn threads_over(transport: Transport, world: usize) -> Result<Vec<Communicator>, CommError> {
        Communicator::threads_with(world, &ThreadsConfig { transport, ..ThreadsConfig::default() })
    }

    /// As [`Communicator::threads_over`], with every choice.
    ///
    /// # Errors
    /// As [`Communicator::threads_over`]; also if there are more hosts than ranks, no stream, or a topology with more or fewer places
    /// than hosts.
    pub fn threads_with(world: usize, config: &ThreadsConfig) -> Result<Vec<Communicator>, CommError> {
        check(world, config)?;
        let ports = config.emulation.as_ref().map(|emulation| ports(world, config.hosts, emulation)).transpose()?;
        let host_of = |rank: usize| rank * config.hosts / world;
        let emulation = config.emulation.as_ref();
        let of_threads = || Topology::of_hosts(&(0..world).map(host_of).collect::<Vec<_>>());
        let topology = wired(&emulation.map_or_else(of_threads, emulated::topology), config.topology)
            .map_err(|error| CommError::connect(None, host_name(), error))?;
        let (mut links, shm) =
            linked(world, config, &host_of).map_err(|error| CommError::connect(None, host_name(), error))?;
        for (rank, links) in links.iter_mut().enumerate() {
            if let (Some(emulation), Some(ports)) = (&config.emulation, &ports) {
                emulated::shape(links, rank, emulation, ports);
            }
        }
        let mut shm = shm.into_iter();
        let name = |rank| if config.hosts == 1 { host_name() } else { format!("{}-{}", host_name(), host_of(rank)) };
        let hosts: Vec<String> = emulation.map_or_else(|| (0..world).map(name).collect(), emulated::hosts);
        let over = |(rank, links)| {
            let shm: Option<ShmHost> = shm.next();
            let parts = Parts {
                rank,
                links,
                tcp_streams: config.tcp_streams,
                hosts: hosts.clone(),
                topology: topology.clone(),
                arena: shm.as_ref().map(|shm| shm.arena().clone()),
                timeout: crate::connect::TIMEOUT,
                watch: config.watch.clone(),
                notes: Vec::new(),
                local_ranks: world,
                local_turns: world,
                processes: vec![Some(std::process::id()); world],
                dilation: emulation.map_or(1.0, |emulation| emulation.dilation),
            };
            Ok(Communicator::over(World::new(parts)?))
        };
        links.into_iter().enumerate().map(over).collect()
    }
}

fn check(world: usize, config: &ThreadsConfig) -> Result<(), CommError> {
    if world == 0 {
        return Err(senseless("a world has at least one rank, not 0".into(), "ask for one or more"));
    }
    if config.hosts == 0 || config.hosts > world || config.tcp_streams == 0 {
        let (hosts, streams) = (config.hosts, config.tcp_streams);
        let what = format!("{world} ranks cannot be on {hosts} hosts, linked by {streams} TCP streams");
        return Err(senseless(what, "give as many ranks as hosts or more, and one of each at least"));
    }
    Ok(())
}

/// The links of each rank; and by what it shares memory, if it does.
fn linked(
    world: usize,
    config: &ThreadsConfig,
    host_of: &(dyn Fn(usize) -> usize + Sync),
) -> Result<(Vec<Links>, Vec<ShmHost>), LinkError> {
    let together = |one: usize, other: usize| host_of(one) == host_of(other);
    let (mut links, shm) = match config.transport {
        Transport::Shm => shared(world, &config.shm, &together)?,
        _ => ((0..world).map(|_| (0..world).map(|_| None).collect()).collect(), Vec::new()),
    };
    if config.transport == Transport::Memory {
        link_pairs(&mut links, together, || Ok(memory_pair()))?;
    }
    link_pairs(&mut links, |_, _| true, || tcp_pair(config.tcp_streams))?;
    Ok((links, shm))
}

/// The ports of an emulated network for a world of threads.
fn ports(world: usize, hosts: usize, emulation: &Emulation) -> Result<Arc<Ports>, CommError> {
    emulation.check(world).map_err(|error| CommError::connect(None, host_name(), error))?;
    if hosts != 1 {
        let what = format!("a world of threads cannot be on {hosts} hosts besides the emulated ones");
        return Err(senseless(what, "leave `hosts` at 1"));
    }
    let failed = |source| ConnectError::Io { doing: "making the ports of an emulated network", source };
    Ports::create(emulation).map_err(|error| CommError::connect(None, host_name(), failed(error)))
}

/// The caller asks for a world that there cannot be.
fn senseless(what: String, next_step: &'static str) -> CommError {
    CommError::connect(None, host_name(), ConnectError::Arguments { what, next_step })
}

/// A link for each pair of ranks that has none and that `chosen` lets through.
fn link_pairs<L: Link + 'static>(
    links: &mut [Links],
    chosen: impl Fn(usize, usize) -> bool,
    mut pair: impl FnMut() -> Result<(L, L), LinkError>,
) -> Result<(), LinkError> {
    for high in 1..links.len() {
        let (lower, rest) = links.split_at_mut(high);
        for (low, lower) in lower.iter_mut().enumerate() {
            if lower[high].is_none() && chosen(low, high) {
                let (one, other) = pair()?;
                lower[high] = Some(Box::new(one));
                rest[0][low] = Some(Box::new(other));
            }
        }
    }
    Ok(())
}

fn tcp_pair(streams: usize) -> Result<(TcpLink, TcpLink), LinkError> {
    let connect = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut ends = (Vec::new(), Vec::new());
        for _ in 0..streams {
            ends.0.push(TcpStream::connect(listener.local_addr()?)?);
            ends.1.push(listener.accept()?.0);
        }
        Ok(ends)
    };
    let (one, other) = connect().map_err(|source| LinkError::Io { doing: "connecting on loopback", source })?;
    Ok((TcpLink::new(one, TcpOptions::default())?, TcpLink::new(other, TcpOptions::default())?))
}

fn shared(
    world: usize,
    options: &ShmOptions,
    together: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Result<(Vec<Links>, Vec<ShmHost>), LinkError> {
    let hosts: Vec<ShmHost> = (0..world).map(|_| ShmHost::new(options.clone())).collect::<Result<_, LinkError>>()?;
    let blobs: Vec<Vec<u8>> = hosts.iter().map(ShmHost::blob).collect();
    let deadline = Instant::now() + CONNECT;
    let connect = |rank: usize, host: &ShmHost| -> Result<Links, LinkError> {
        let others = (0..world).filter(|&peer| peer != rank && together(peer, rank));
        let peers: Vec<(u32, Vec<u8>)> = others.map(|peer| (peer as u32, blobs[peer].clone())).collect();
        let mut found = host.connect(rank as u32, &peers, deadline)?;
        let link = |peer: usize| -> Result<Option<Box<dyn Link>>, LinkError> {
            match found.remove(&(peer as u32)) {
                Some(Ok::<ShmLink, String>(link)) => Ok(Some(Box::new(link))),
                Some(Err(reason)) => Err(LinkError::Protocol { what: format!("shares no memory: {reason}") }),
                None => Ok(None),
            }
        };
        (0..world).map(link).collect()
    };
    let connect = &connect;
    let links = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            hosts.iter().enumerate().map(|(rank, host)| scope.spawn(move || connect(rank, host))).collect();
        let join = |rank: std::thread::ScopedJoinHandle<'_, _>| {
            rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        ranks.into_iter().map(join).collect::<Result<Vec<Links>, LinkError>>()
    })?;
    Ok((links, hosts))
}
