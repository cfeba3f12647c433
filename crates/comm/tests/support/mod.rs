//! Worlds for tests.
#![allow(dead_code)] // Each test program uses some of it.

pub mod left_over;
#[path = "../../../fabric/tests/common/meeting.rs"]
pub mod meeting;
pub mod processes;
pub mod reports;

use std::time::Duration;

use meeting::Place;
use paceline_comm::{Communicator, Config, Emulation, ShmOptions, ThreadsConfig, Transport, TransportChoice};
use paceline_fabric::environment::{Environment, Network};
use paceline_fabric::security::Secret;
use paceline_plan::{Hosts, Shape};

/// The ways in which ranks can be linked: each must pass the same tests.
pub const LINKS: [Links; 8] = [
    Links::Memory,
    Links::SharedMemory,
    Links::Rings,
    Links::Tcp,
    Links::TcpStreams,
    Links::Encrypted,
    Links::Mixed,
    Links::Emulated,
];

/// A way to link ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Queues.
    Memory,
    /// Shared memory with single copy.
    SharedMemory,
    /// Shared memory where single copy is refused: everything goes through the rings.
    Rings,
    /// TCP on loopback.
    Tcp,
    /// TCP with three connections per pair of ranks.
    TcpStreams,
    /// TCP with Noise, two connections per pair of ranks, which find each other as processes do.
    Encrypted,
    /// Two hosts: shared memory within, TCP between.
    Mixed,
    /// Shared memory, slowed down to a fast network between hosts with two ranks each (the last one may have one).
    Emulated,
}

/// A world of threads.
pub fn world_of(links: Links, world: usize) -> Vec<Communicator> {
    if links == Links::Encrypted && world > 1 {
        return encrypted(world);
    }
    let shm = ShmOptions { single_copy: links != Links::Rings, arena_bytes: Some(256 << 20), ..ShmOptions::default() };
    let transport = match links {
        Links::Memory => Transport::Memory,
        Links::SharedMemory | Links::Rings | Links::Mixed | Links::Emulated => Transport::Shm,
        Links::Tcp | Links::TcpStreams | Links::Encrypted => Transport::Tcp,
    };
    let tcp_streams = if links == Links::TcpStreams { 3 } else { 1 };
    let hosts = if links == Links::Mixed { 2.min(world) } else { 1 };
    let emulation = (links == Links::Emulated).then(|| {
        let network = "alpha=1us,beta=0.05ns,within-alpha=0,within-beta=0.02ns".parse().expect("a network");
        let hosts = Hosts::of_ranks((0..world).map(|rank| rank / 2).collect()).expect("hosts");
        Emulation { network, hosts, dilation: 1.0 }
    });
    let config = ThreadsConfig { transport, hosts, tcp_streams, shm, emulation, ..ThreadsConfig::default() };
    Communicator::threads_with(world, &config).expect("a world of threads")
}

/// Ranks that share a secret, and encrypt all that they say.
fn encrypted(world: usize) -> Vec<Communicator> {
    let place = Place::new();
    let secret = Secret::generate().expect("random numbers");
    let connect = |rank: usize| {
        let network = Network { secret: Some(secret.clone()), encrypt: true, ..Network::default() };
        let timeout = Duration::from_secs(30);
        let world = Some(place.world_of_one_host(rank as u32, world as u32));
        let (heartbeat, stall, topology) = (None, None, Shape::Flat);
        let environment = Environment { world, network, timeout, heartbeat, stall, topology };
        let plain = Config::from_environment().expect("nothing launched this test");
        let config = Config { environment, transport: TransportChoice::Tcp, tcp_streams: 2, probe: false, ..plain };
        Communicator::connect(config).expect("a world of ranks that share a secret")
    };
    std::thread::scope(|scope| {
        let connect = &connect;
        let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || connect(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Runs `act` on every rank of a world of threads; a panic of one is the panic of the test.
pub fn on_all_ranks<R: Send + 'static>(
    links: Links,
    world: usize,
    act: impl Fn(Communicator) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    let ranks = world_of(links, world).into_iter();
    let threads: Vec<_> = ranks
        .map(|comm| {
            let act = act.clone();
            std::thread::spawn(move || act(comm))
        })
        .collect();
    let join =
        |thread: std::thread::JoinHandle<R>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    threads.into_iter().map(join).collect()
}

/// Numbers in 0..1 that follow from the seed (xorshift64*, Vigna 2016).
pub fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}
