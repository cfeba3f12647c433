//! `cargo xtask lab`: a command line as ranks on several hosts that this machine pretends to have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use xtask::lab::{Fault, HOSTS_MAX, Harm, Job, Lab, LabOptions, Rate, Shaper};

use crate::compare::{ours, root};

/// What `lab` is told.
#[derive(Args)]
pub struct LabArguments {
    /// How many hosts
    #[arg(long, value_name = "H", default_value_t = 2)]
    hosts: usize,

    /// What every host's NIC sends and receives at most, as tc writes it
    #[arg(long, default_value = "1gbit")]
    rate: Rate,

    /// What leaves a NIC at once after a pause [default: 2 ms at the rate, at least 66000]
    #[arg(long, value_name = "BYTES")]
    burst: Option<u64>,

    /// What the queue before a NIC holds; more is dropped [default: 10 ms at the rate]
    #[arg(long, value_name = "BYTES")]
    queue: Option<u64>,

    /// How many ranks every host has
    #[arg(long, value_name = "R", default_value_t = 1)]
    ranks_per_host: usize,

    /// Take the link of a host down so long after the ranks have started (1@2.5); may be repeated
    #[arg(long, value_name = "HOST@SECONDS")]
    down: Vec<Fault>,

    /// Drop everything from and to a host, in silence, from then on; may be repeated
    #[arg(long, value_name = "HOST@SECONDS")]
    drop: Vec<Fault>,

    /// End everything after so many seconds
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    timeout: f64,

    /// Put `[rank]` in front of every line of output
    #[arg(long)]
    tag: bool,

    /// The program and its arguments; `paceline`, where no such program is installed, is built from here
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Builds the lab, runs the ranks, takes the lab down.
///
/// # Errors
/// There can be no lab here, or the ranks could not be started.
pub fn run(arguments: LabArguments) -> Result<ExitCode, String> {
    let LabArguments { hosts, rate, burst, queue, ranks_per_host, down, drop, timeout, tag, mut command } = arguments;
    if !(1..=HOSTS_MAX).contains(&hosts) || ranks_per_host == 0 {
        return Err(format!("give 1 to {HOSTS_MAX} --hosts and at least one rank for each"));
    }
    let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| format!("--timeout {timeout}: {error}"))?;
    Lab::permitted().map_err(|error| error.to_string())?;
    if command[0] == "paceline" && !is_installed("paceline") {
        command[0] = build()?.into();
    }
    let usual = Shaper::new(rate);
    let shaper = Shaper {
        rate,
        burst_bytes: burst.unwrap_or(usual.burst_bytes),
        queue_bytes: queue.unwrap_or(usual.queue_bytes),
    };
    let lab = Lab::build(&LabOptions { hosts, shaper }).map_err(|error| error.to_string())?;
    eprintln!("{lab}");
    let down = down.into_iter().map(|fault| (Harm::Down, fault));
    let faults = down.chain(drop.into_iter().map(|fault| (Harm::Drop, fault))).collect();
    let end = lab.run(&Job { command, ranks_per_host, timeout, faults, tag }).map_err(|error| error.to_string())?;
    if end.timed_out {
        eprintln!("lab: not done after {timeout:?}: give more with --timeout");
    }
    if !end.is_success() {
        eprintln!("{end}");
    }
    Ok(match end.interrupted {
        Some(signal) => ExitCode::from(128 + signal as u8),
        None if end.is_success() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Builds the program for release and says where it is.
fn build() -> Result<PathBuf, String> {
    let root = root().map_err(|error| error.to_string())?;
    let status = ours::build(root).status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err("building the paceline program failed; cargo's messages stand above".into());
    }
    Ok(ours::program(root))
}
