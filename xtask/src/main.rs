//! Developer commands: `cargo xtask --help` lists them.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod compare;
mod lab_command;

use std::process::ExitCode;

use clap::Parser;

/// Developer commands
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Measure our all-reduce against Open MPI's and Gloo's on this machine
    Compare(compare::Options),
    /// Run a program as ranks on several hosts that are network namespaces with shaped links (needs root)
    Lab(lab_command::LabArguments),
}

fn main() -> ExitCode {
    let outcome = match Xtask::parse() {
        Xtask::Compare(options) => {
            compare::run(&options).map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
        Xtask::Lab(arguments) => lab_command::run(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
