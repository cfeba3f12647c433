//! `paceline tune`: what a collective library would choose, and what is learned of its calls.

mod nccl_table;
mod place;
mod report;
mod simulated;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::json_file::JsonFile;
use nccl_table::NcclArguments;
use simulated::SimulationArguments;

/// What `tune` is told.
#[derive(Args)]
pub struct TuneArguments {
    /// Write the result to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    simulation: SimulationArguments,

    #[command(flatten)]
    nccl: NcclArguments,
}

/// Tunes.
///
/// # Errors
/// Wrong usage; a file cannot be written.
pub fn run(arguments: &TuneArguments) -> Result<ExitCode, Failure> {
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    match &arguments.simulation.simulate {
        Some(cluster) => simulated::run(cluster, &arguments.simulation, &arguments.nccl, json),
        None => nccl_table::run(&arguments.nccl, json),
    }
}
