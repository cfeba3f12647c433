//! `paceline launch`: any program as N ranks.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use crate::arguments::at_least_one;
use crate::failure::Failure;
use crate::security::SecurityArguments;
use crate::supervisor::{self, Job, Output};

/// What `launch` is told.
#[derive(Args)]
pub struct LaunchArguments {
    /// How many ranks to start on this host
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: usize,

    /// Put `[rank]` in front of every line of output
    #[arg(long)]
    tag: bool,

    #[command(flatten)]
    security: SecurityArguments,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the program to its end.
///
/// # Errors
/// It could not be started.
pub fn run(arguments: LaunchArguments) -> Result<ExitCode, Failure> {
    supervisor::run(&Job {
        command: arguments.command,
        ranks: arguments.workers,
        environment: arguments.security.for_ranks()?,
        output: Output::Lines { tag: arguments.tag },
    })
}
