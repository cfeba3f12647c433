//! `paceline fit`: the constants of clusters from throughputs that somebody measured.

mod files;
mod report;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use paceline_predict::fit::{FitError, FitOptions, fit};
use paceline_predict::study::Study;
use paceline_train::load_profile;

use crate::arguments::at_least_one;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;
use files::Target;
use report::Report;

/// What `fit` is told.
#[derive(Args)]
pub struct FitArguments {
    /// Measured throughputs: a table with the columns model, local_batch, network, method, workers, samples_per_s
    /// (docs/prediction.md)
    #[arg(long, value_name = "FILE.csv")]
    study: PathBuf,

    /// The cluster file; of several networks all in one, unless it is a folder, or has {network} in its name
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Workers that share a host [default: as many as the study's largest row has that notes single_node, or 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers_per_host: Option<usize>,

    /// The profile of a model that is not built in; may stand several times
    #[arg(long = "profile", value_name = "FILE")]
    profiles: Vec<String>,

    /// Do not find out how well a model or a network is predicted that was left out
    #[arg(long)]
    no_leave_out: bool,

    /// Write what was found to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Fits.
///
/// # Errors
/// Wrong usage: a file cannot be read, or makes no sense. A file cannot be written.
pub fn run(arguments: &FitArguments) -> Result<ExitCode, Failure> {
    let study = read(&arguments.study)?;
    let profiles = arguments.profiles.iter().map(|name| load_profile(name).map_err(Failure::usage));
    let profiles = profiles.collect::<Result<Vec<_>, _>>()?;
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let target = Target::of(&arguments.output)?;
    let rows = study.rows.len();
    let options = FitOptions {
        profiles: &profiles,
        workers_per_host: arguments.workers_per_host,
        source: &format!("fitted by `paceline fit` to {rows} throughputs of {}", arguments.study.display()),
        leave_out: !arguments.no_leave_out,
    };
    let started = Instant::now();
    let found = fit(&study, &options).map_err(|error| refused(error, &arguments.study))?;
    let report = Report::of(&study, &found, started.elapsed());
    let written = target.write(found.clusters)?;
    let report = report.with_files(&written);
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(report.show(&mut io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Study, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the study {}", path.display())).cause(error))?;
    Study::parse(&text).map_err(|error| refused(error.into(), path))
}

fn refused(error: FitError, path: &Path) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
        .help("docs/prediction.md says which columns and methods a study has; data/study_calibration.csv is one")
}
