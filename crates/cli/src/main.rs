//! The `paceline` program: trains, measures, explains and launches. `paceline --help` lists the commands.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 wrong usage.
#![deny(missing_docs)]

mod arguments;
mod doctor;
mod explain;
mod failure;
mod hosts;
mod json_file;
mod launch;
mod machine;
mod perf;
mod remote;
mod security;
mod supervisor;
mod train;
mod workers;

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
    /// Train a model on several workers
    Train(train::TrainArguments),
    /// Measure a collective, in the manner of nccl-tests
    Perf(perf::PerfArguments),
    /// Say a strategy in words
    Explain(explain::ExplainArguments),
    /// Look for what would be slow or broken here, and say the fix
    Doctor(doctor::DoctorArguments),
    /// Run any program as N ranks: on this host, or over a host file by ssh
    Launch(launch::LaunchArguments),
    /// Run the ranks of this host for a launcher elsewhere, which speaks on standard input
    #[command(hide = true)]
    Agent,
}

fn main() -> ExitCode {
    failure::install_report_style();
    let outcome = match CommandLine::parse().command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Launch(arguments) => launch::run(arguments),
        Command::Agent => remote::run_agent(),
    };
    outcome.unwrap_or_else(|failure: Failure| {
        let code = failure.exit_code();
        failure.report();
        code
    })
}
