//! Developer commands: `cargo xtask --help` lists them.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod compare;

use std::process::ExitCode;

use clap::Parser;

/// Developer commands
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Measure our all-reduce against Open MPI's and Gloo's on this machine
    Compare(compare::Options),
}

fn main() -> ExitCode {
    let outcome = match Xtask::parse() {
        Xtask::Compare(options) => compare::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
