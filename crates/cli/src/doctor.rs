//! `paceline doctor`: what would be slow or broken here, and the fix.

mod checks;
mod trial;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::arguments::at_least_one;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;
use crate::security::SecurityArguments;
use crate::workers::{self, Place};

/// What `doctor` is told.
#[derive(Args)]
pub struct DoctorArguments {
    /// How many ranks you mean to run on this host [default: 2]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    ranks: Option<usize>,

    /// Write the findings to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Slow,
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do, where something is not good.
    fix: Option<String>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
}

/// Looks at the machine, then starts ranks and lets them meet. Status 1 if something is broken.
///
/// # Errors
/// The ranks could not be started or did not meet.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let environment = match Place::find(arguments.ranks, "--ranks")? {
        Place::Launcher { ranks } => return workers::launch(ranks, SecurityArguments::default().for_ranks()?),
        Place::Rank(environment) => environment,
    };
    let is_first = environment.world.as_ref().is_none_or(|world| world.rank == 0);
    let json = arguments.json.as_deref().filter(|_| is_first).map(JsonFile::create).transpose()?;
    let mut findings = Vec::new();
    if is_first {
        let ranks = environment.world.as_ref().map_or(1, |world| world.local_size.unwrap_or(world.world_size));
        findings = checks::all(ranks as usize);
        unless_closed(print(&findings))?;
    }
    let tried = trial::run(*environment)?;
    if !is_first {
        return Ok(ExitCode::SUCCESS);
    }
    unless_closed(print(&tried))?;
    findings.extend(tried);
    let broken = findings.iter().any(|finding| finding.verdict == Verdict::Broken);
    if let Some(json) = json {
        json.write(&Report { findings })?;
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for Finding { subject, verdict, found, fix } in findings {
        let verdict = match verdict {
            Verdict::Good => "good",
            Verdict::Slow => "SLOW",
            Verdict::Broken => "BROKEN",
        };
        writeln!(out, "{verdict:<7} {subject}: {found}")?;
        if let Some(fix) = fix {
            writeln!(out, "        fix: {fix}")?;
        }
    }
    out.flush()
}

impl Finding {
    fn good(subject: &'static str, found: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Good, found: found.into(), fix: None }
    }

    fn slow(subject: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Slow, found: found.into(), fix: Some(fix.into()) }
    }

    fn broken(subject: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Broken, found: found.into(), fix: Some(fix.into()) }
    }
}
