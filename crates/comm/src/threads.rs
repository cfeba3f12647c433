//! Worlds whose ranks are threads of this process: for tests, examples and trying things out.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use paceline_fabric::shm::{ShmHost, ShmLink, ShmOptions};
use paceline_fabric::{Link, LinkError, TcpLink, TcpOptions, Transport, memory_pair};

use crate::connect::host_name;
use crate::world::{Parts, World};
use crate::{CommError, Communicator};

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
        Communicator::threads_with(transport, world, &ShmOptions::default())
    }

    /// As [`Communicator::threads_over`], with options for shared memory.
    ///
    /// # Errors
    /// As [`Communicator::threads_over`].
    pub fn threads_with(
        transport: Transport,
        world: usize,
        options: &ShmOptions,
    ) -> Result<Vec<Communicator>, CommError> {
        if world == 0 {
            return Err(CommError::Connect("a world has at least one rank, not 0".into()));
        }
        let failed = |error: LinkError| CommError::Connect(format!("a world of {world} threads: {error}"));
        let (links, shm) = match transport {
            Transport::Memory => (pairs(world, || Ok(memory_pair())).map_err(failed)?, Vec::new()),
            Transport::Tcp => (pairs(world, tcp_pair).map_err(failed)?, Vec::new()),
            Transport::Shm => shared(world, options).map_err(failed)?,
        };
        let mut shm = shm.into_iter();
        let host = host_name();
        let over = |(rank, links)| {
            let shm: Option<ShmHost> = shm.next();
            let parts = Parts {
                rank,
                links,
                hosts: vec![host.clone(); world],
                arena: shm.as_ref().map(|shm| shm.arena().clone()),
                doorbell: shm.as_ref().map(|shm| shm.doorbell().clone()),
                timeout: crate::connect::TIMEOUT,
                notes: Vec::new(),
                local_ranks: world,
            };
            Ok(Communicator::over(World::new(parts)?))
        };
        links.into_iter().enumerate().map(over).collect()
    }
}

/// A link for each pair of ranks.
fn pairs<L: Link + 'static>(
    world: usize,
    mut pair: impl FnMut() -> Result<(L, L), LinkError>,
) -> Result<Vec<Links>, LinkError> {
    let mut links: Vec<Links> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    for high in 1..world {
        let (lower, rest) = links.split_at_mut(high);
        for (low, lower) in lower.iter_mut().enumerate() {
            let (one, other) = pair()?;
            lower[high] = Some(Box::new(one));
            rest[0][low] = Some(Box::new(other));
        }
    }
    Ok(links)
}

fn tcp_pair() -> Result<(TcpLink, TcpLink), LinkError> {
    let connect = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let one = TcpStream::connect(listener.local_addr()?)?;
        Ok((one, listener.accept()?.0))
    };
    let (one, other) = connect().map_err(|source| LinkError::Io { doing: "connecting on loopback", source })?;
    let link = |stream| TcpLink::new(vec![stream], TcpOptions::default());
    Ok((link(one)?, link(other)?))
}

fn shared(world: usize, options: &ShmOptions) -> Result<(Vec<Links>, Vec<ShmHost>), LinkError> {
    let hosts: Vec<ShmHost> = (0..world).map(|_| ShmHost::new(options.clone())).collect::<Result<_, LinkError>>()?;
    let blobs: Vec<Vec<u8>> = hosts.iter().map(ShmHost::blob).collect();
    let deadline = Instant::now() + CONNECT;
    let connect = |rank: usize, host: &ShmHost| -> Result<Links, LinkError> {
        let others = (0..world).filter(|&peer| peer != rank);
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
