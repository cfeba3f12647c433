//! `paceline program`: collectives as files of MSCCL XML.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use paceline_collective::registry::find;
use paceline_collective::{Program, Proof, Topology, msccl};
use paceline_plan::{CollectiveKind, Hosts};
use serde::Serialize;

use crate::arguments::at_least_one;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};

/// What `program` is told.
#[derive(Args)]
pub struct ProgramArguments {
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Subcommand)]
enum ProgramCommand {
    /// Write an algorithm as MSCCL XML
    Export(ExportArguments),
    /// Prove that an MSCCL XML file does what it says; `perf --program` measures it
    Verify(VerifyArguments),
}

#[derive(Args)]
struct ExportArguments {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all, barrier, send-receive,
    /// push-pull or push
    #[arg(value_name = "COLLECTIVE")]
    collective: CollectiveKind,

    /// The algorithm (docs/algorithms.md)
    #[arg(long, value_name = "NAME")]
    algorithm: String,

    /// For how many ranks
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    ranks: usize,

    /// Which ranks share a host: HOSTSxRANKS as in 8x4, or the host of each rank as in 0,0,1,1 [default: all the same one]
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<Hosts>,

    /// The rank that has or gets the whole, in rooted collectives
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,

    /// Write to this file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct VerifyArguments {
    /// An MSCCL XML file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the answer to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    /// The program's name.
    algorithm: String,
    collective: String,
    ranks: usize,
    /// Where there is one.
    root: Option<usize>,
    /// Into how many parts a block is cut.
    parts: u32,
    /// Of all ranks.
    steps: usize,
    /// Of all ranks, in one tile.
    messages: usize,
    /// The longest chain of messages each of which is sent only after the one before has arrived.
    rounds: usize,
}

/// Writes or verifies.
///
/// # Errors
/// Wrong usage; a file that is no program, or a wrong one.
pub fn run(arguments: &ProgramArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ProgramCommand::Export(arguments) => arguments.run()?,
        ProgramCommand::Verify(arguments) => arguments.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The program that an MSCCL XML file is, verified.
///
/// # Errors
/// The file cannot be read, or is no program: names the line.
pub fn read(path: &Path) -> Result<Program, Failure> {
    read_proved(path).map(|(program, _)| program)
}

fn read_proved(path: &Path) -> Result<(Program, Proof), Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the program {}", path.display())).cause(error))?;
    msccl::read_proved(&text).map_err(|error| {
        Failure::usage(format!("{}: {error}", path.display())).help("docs/errors.md says more about MSCCL files")
    })
}

impl ExportArguments {
    fn run(&self) -> Result<(), Failure> {
        let algorithm = find(self.collective, &self.algorithm).map_err(Failure::usage)?;
        let topology = self.topology()?;
        if !algorithm.supports(self.ranks) {
            let what = format!("{} {} is not for {} ranks", self.collective, self.algorithm, self.ranks);
            return Err(Failure::usage(what));
        }
        if self.root >= self.ranks {
            return Err(Failure::usage(format!("--root {} is not one of {} ranks", self.root, self.ranks)));
        }
        let output = self.output.as_deref().map(PlainFile::create).transpose()?;
        let root = if self.collective.has_root() { self.root } else { 0 };
        let text = msccl::write(&algorithm.program(&topology, root)).map_err(Failure::failed)?;
        match output {
            Some(file) => file.write(&text),
            None => unless_closed(io::stdout().lock().write_all(text.as_bytes())),
        }
    }

    fn topology(&self) -> Result<Topology, Failure> {
        let Some(hosts) = &self.hosts else { return Ok(Topology::flat(self.ranks)) };
        if hosts.ranks() != self.ranks {
            return Err(Failure::usage(format!("--hosts {hosts} has {} ranks, not {}", hosts.ranks(), self.ranks)));
        }
        let hosts: Vec<_> = (0..self.ranks).map(|rank| hosts.host(rank)).collect();
        Ok(Topology::of_hosts(&hosts))
    }
}

impl VerifyArguments {
    fn run(&self) -> Result<(), Failure> {
        let (program, proof) = read_proved(&self.file)?;
        let report = Report {
            algorithm: program.algorithm,
            collective: program.kind.to_string(),
            ranks: program.ranks.len(),
            root: program.kind.has_root().then_some(program.root),
            parts: program.parts,
            steps: proof.steps,
            messages: proof.messages,
            rounds: proof.rounds,
        };
        if let Some(path) = &self.json {
            JsonFile::create(path)?.write(&report)?;
        }
        let Report { algorithm, collective, ranks, parts, steps, messages, rounds, .. } = &report;
        let root = report.root.map_or_else(String::new, |root| format!(", root {root}"));
        unless_closed(writeln!(
            io::stdout(),
            "{algorithm:?} is right: {collective}, {ranks} ranks{root}, in place and out of place\n\
             parts of a block: {parts}, steps: {steps}, messages: {messages}, rounds: {rounds}"
        ))
    }
}
