//! The `paceline` program: trains, measures, explains and launches. `paceline --help` lists the commands.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 wrong usage.
#![deny(missing_docs)]

mod arguments;
mod failure;
mod launch;
mod supervisor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Data-parallel training that makes communication cheap
#[derive(Parser)]
#[command(name = "paceline", version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run any program as N ranks on this host
    Launch(launch::LaunchArguments),
}

fn main() -> ExitCode {
    failure::install_report_style();
    let outcome = match CommandLine::parse().command {
        Command::Launch(arguments) => launch::run(arguments),
    };
    outcome.unwrap_or_else(|failure: Failure| {
        let code = failure.exit_code();
        failure.report();
        code
    })
}
