//! `paceline doctor`: what would be slow or broken here, and the fix.

mod checks;
mod hosts;
mod network;
mod trial;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::arguments::at_least_one;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;
use crate::launch::ReachArguments;
use crate::security::SecurityArguments;
use crate::workers::{self, Place};
pub use network::{Examination, Path, examine, measure, receive};
pub use trial::{meet, run_rank};

/// What `doctor` is told.
#[derive(Args)]
pub struct DoctorArguments {
    /// How many ranks you mean to run on this host [default: 2]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "hostfile")]
    ranks: Option<usize>,

    /// Look at the hosts of this file (`host slots=N` on each line), let the ranks of each meet there, and measure the
    /// network between them, by ssh
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    #[command(flatten)]
    reach: ReachArguments,

    /// Write the findings to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Good,
    Slow,
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    subject: String,
    verdict: Verdict,
    found: String,
    /// What to do, where something is not good.
    fix: Option<String>,
    /// By its name in the host file; none without one.
    host: Option<String>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// From the other hosts to the first one.
    paths: Vec<hosts::PathReport>,
}

/// Looks at the machine, then starts ranks and lets them meet. Status 1 if something is broken.
///
/// # Errors
/// The ranks could not be started or did not meet.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    if let Some(hostfile) = &arguments.hostfile {
        return over_hosts(hostfile, arguments);
    }
    let environment = match Place::find(arguments.ranks, "--ranks")? {
        Place::Launcher { ranks } => return workers::launch(ranks, SecurityArguments::default().for_ranks()?),
        Place::Rank(environment) => environment,
    };
    let is_first = environment.world.as_ref().is_none_or(|world| world.rank == 0);
    let json = arguments.json.as_deref().filter(|_| is_first).map(JsonFile::create).transpose()?;
    let mut findings = Vec::new();
    if is_first {
        let ranks = environment.world.as_ref().map_or(1, |world| world.local_size.unwrap_or(world.world_size));
        findings = checks::all(ranks as usize, interface().as_deref());
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
        json.write(&Report { findings, paths: Vec::new() })?;
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The same of the hosts of a file.
fn over_hosts(hostfile: &std::path::Path, arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let hosts = crate::hosts::read(hostfile)?;
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let (findings, paths) = hosts::run(&hosts, &arguments.reach.reach()?, interface().as_deref())?;
    for host in &hosts {
        let of_host: Vec<Finding> =
            findings.iter().filter(|finding| finding.host.as_ref() == Some(&host.name)).cloned().collect();
        unless_closed(writeln!(io::stdout(), "{}:", host.name))?;
        unless_closed(print(&of_host))?;
    }
    let broken = findings.iter().any(|finding| finding.verdict == Verdict::Broken);
    if let Some(json) = json {
        json.write(&Report { findings, paths })?;
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The one that links are to use.
fn interface() -> Option<String> {
    std::env::var("PACELINE_INTERFACE").ok().filter(|name| !name.is_empty())
}

fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for Finding { subject, verdict, found, fix, .. } in findings {
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
    fn good(subject: &str, found: impl Into<String>) -> Finding {
        Finding::new(subject, Verdict::Good, found, None)
    }

    fn slow(subject: &str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(subject, Verdict::Slow, found, Some(fix.into()))
    }

    fn broken(subject: &str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(subject, Verdict::Broken, found, Some(fix.into()))
    }

    fn new(subject: &str, verdict: Verdict, found: impl Into<String>, fix: Option<String>) -> Finding {
        Finding { subject: subject.to_owned(), verdict, found: found.into(), fix, host: None }
    }
}
