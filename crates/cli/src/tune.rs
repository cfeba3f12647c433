//! `paceline tune`: what a collective library would choose, and what is learned of its calls.

mod disturbed;
mod job;
mod known;
mod learning;
mod nccl_samples;
mod nccl_table;
mod place;
mod report;
mod samples;
mod simulated;
mod task;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::json_file::JsonFile;
use learning::LearningArguments;
use nccl_samples::SamplesArguments;
use nccl_table::NcclArguments;
use simulated::SimulationArguments;
use task::Task;

/// What `tune` is told.
#[derive(Args)]
pub struct TuneArguments {
    /// Write the result to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    learning: LearningArguments,

    #[command(flatten)]
    simulation: SimulationArguments,

    #[command(flatten)]
    samples: SamplesArguments,

    #[command(flatten)]
    nccl: NcclArguments,
}

/// Tunes.
///
/// # Errors
/// Wrong usage; a file cannot be read or written.
pub fn run(arguments: &TuneArguments) -> Result<ExitCode, Failure> {
    let task = Task::of(arguments)?;
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let TuneArguments { learning, simulation, samples, nccl, .. } = arguments;
    match task {
        Task::Tables => nccl_table::run(nccl, json),
        Task::Simulated | Task::SimulatedNccl => simulated::run(simulation, learning, nccl, json),
        Task::Samples => nccl_samples::run(samples, learning, nccl, json),
        Task::Known => known::run(learning, json),
    }
}

/// What a command line asks for, without the first word.
#[cfg(test)]
fn parsed<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<TuneArguments, String> {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        arguments: TuneArguments,
    }
    let words = ["tune"].into_iter().chain(words);
    let program: Program = clap::Parser::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(program.arguments)
}
