//! Developer commands: `cargo xtask --help` lists them.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod compare;
mod lab_command;
mod lab_study;
mod publish_study;
mod readme;
mod study;

use std::process::ExitCode;

use clap::Parser;

/// Developer commands
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Measure our collectives against Open MPI's and Gloo's, and against what this machine can do
    Compare(compare::Options),
    /// Put the numbers and the chart of a kept run into the README
    Publish(compare::publish::Options),
    /// Put the numbers and the chart of a kept study of `paceline bench` into the README
    PublishStudy(publish_study::Options),
    /// One rank of the raw exchange, which `compare` starts
    #[command(hide = true)]
    RawExchange(compare::raw_exchange::RankArguments),
    /// Run a program as ranks on several hosts that are network namespaces with shaped links (needs root)
    Lab(lab_command::LabArguments),
    /// Measure all-reduces in the lab: bandwidth, an urgent one beside a large one, a computation beside one (needs root)
    LabStudy(lab_study::Options),
    /// Show that the schedules do what their formulas say, and what PyTorch's DDP does in the same place
    Study(study::Options),
    /// Say what kept pages of `study --part prediction` say together, over all their groups
    JoinPredictions(study::joined::Options),
}

fn main() -> ExitCode {
    let done =
        |outcome: Result<(), compare::Error>| outcome.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string());
    let outcome = match Xtask::parse() {
        Xtask::Compare(options) => done(compare::run(&options)),
        Xtask::PublishStudy(options) => done(publish_study::run(&options)),
        Xtask::Publish(options) => done(compare::publish::run(&options)),
        Xtask::RawExchange(arguments) => done(compare::raw_exchange::run_rank(&arguments)),
        Xtask::Lab(arguments) => lab_command::run(arguments),
        Xtask::LabStudy(options) => done(lab_study::run(&options)),
        Xtask::Study(options) => done(study::run(&options)),
        Xtask::JoinPredictions(options) => done(study::joined::run(&options)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
