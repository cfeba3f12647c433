//! Where ranks of tests meet; for tests of other crates, too.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

use paceline_fabric::environment::{Launcher, MeetingPoint, World};

pub const JOB: &str = "a job";

/// A meeting point with a listener that rank 0 will inherit.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub port: u16,
    pub listener: i32,
}

impl Place {
    /// Nobody else's.
    pub fn new() -> Place {
        let listener = listener();
        Place { port: port(&listener), listener: listener.into_raw_fd() }
    }

    /// A rank of a world that meets here.
    pub fn world(&self, rank: u32, world_size: u32) -> World {
        World {
            launcher: Launcher::Paceline,
            rank,
            world_size,
            local_rank: None,
            local_size: None,
            meeting_point: Some(MeetingPoint { host: "127.0.0.1".into(), port: self.port }),
            listener: (rank == 0).then_some(self.listener),
            job: JOB.into(),
            terms: String::new(),
        }
    }

    /// The same, if the launcher says that all ranks are on this host.
    pub fn world_of_one_host(&self, rank: u32, world_size: u32) -> World {
        World { local_rank: Some(rank), local_size: Some(world_size), ..self.world(rank, world_size) }
    }
}

/// Listens where nobody else does, also once it is closed: below the ports that the kernel gives to callers, and to
/// listeners that name none. So no connection of another test takes the port between now and its use, and none that calls
/// in vain meets itself.
pub fn listener() -> TcpListener {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 1000) as u16 * 20;
    let next = || Some(first + NEXT.fetch_add(1, Ordering::Relaxed) % 2000);
    let mut free = std::iter::from_fn(next).filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    free.next().expect("a free port")
}

/// Where it listens.
pub fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("its address").port()
}

/// A port on which nobody listens.
pub fn free_port() -> u16 {
    port(&listener())
}
