//! Ranks that are processes, share a secret, and encrypt what they say. The program starts itself once for each of them;
//! `paceline launch --workers 3 --encrypt -- PROGRAM` would, too, here or on the hosts of a file.
use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use paceline_comm::{CallOptions, Communicator, Config, Reduction, TransportChoice};
use paceline_fabric::security::Secret;
use rustix::io::{FdFlags, fcntl_setfd};

const RANKS: usize = 3;

fn rank(config: Config) -> Result<(), Box<dyn Error>> {
    // Ranks of one host would share memory, which the kernel protects. Over TCP they encrypt.
    let config = Config { transport: TransportChoice::Tcp, timeout: Duration::from_secs(30), ..config };
    let comm = Communicator::connect(config)?;
    let mut data = vec![comm.rank() as f64; 100_000];
    comm.all_reduce(&mut data, Reduction::Average, &CallOptions::default())?;
    assert_eq!(data, vec![(comm.world_size() - 1) as f64 / 2.0; 100_000]);
    Ok(())
}

/// What a launcher does.
fn launch() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, secret) = (listener.local_addr()?.to_string(), Secret::generate()?);
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        // The ranks meet at this port, which rank 0 inherits: nobody can take it in between.
        fcntl_setfd(&listener, if rank == 0 { FdFlags::empty() } else { FdFlags::CLOEXEC })?;
        let mut command = Command::new(std::env::current_exe()?);
        let numbers = [("RANK", rank), ("WORLD_SIZE", RANKS), ("LOCAL_RANK", rank), ("LOCAL_SIZE", RANKS)];
        command.envs(numbers.map(|(name, number)| (format!("PACELINE_{name}"), number.to_string())));
        command.env("PACELINE_RENDEZVOUS", &address);
        command.env("PACELINE_RENDEZVOUS_FD", listener.as_raw_fd().to_string());
        // Not on the command line, which every user of this host can read.
        command.env("PACELINE_SECRET", secret.reveal()).env_remove("PACELINE_SECRET_FILE");
        command.env("PACELINE_ENCRYPT", "1");
        ranks.push(command.args(std::env::args_os().skip(1)).spawn()?);
    }
    // Each ends by itself: it has 30 s to find the others, and as much for its call.
    for (rank, mut process) in ranks.into_iter().enumerate() {
        let status = process.wait()?;
        assert!(status.success(), "rank {rank}: {status}; its own words stand above");
    }
    Ok(())
}

/// A rank, if a launcher says so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::from_environment()?;
    if config.environment.world.is_some() { rank(config) } else { launch() }
}
