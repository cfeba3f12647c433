//! `paceline program`: collectives as files of MSCCL XML, and what programs take on a cluster.

mod simulate;

use std::fs;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use paceline_collective::cost::Load;
use paceline_collective::msccl::ReadError;
use paceline_collective::registry::find;
use paceline_collective::{Program, Proof, Topology, msccl, tiles};
use paceline_comm::{Kernels, VerifiedProgram};
use paceline_plan::{Cluster, CollectiveKind, Hosts, Shape};
use paceline_predict::programs::{PreparedProgram, seconds_on};
use paceline_train::TunedProgram;
use serde::Serialize;

use crate::arguments::{ByteSize, at_least_one, at_least_one_byte};
use crate::clusters::{blamed, load_cluster};
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use simulate::SimulateArguments;

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
    /// Predict how long an algorithm takes on a cluster, message by message on its topology, among thousands of ranks
    Simulate(SimulateArguments),
}

/// An algorithm of the library, among some ranks.
#[derive(Args)]
struct AlgorithmArguments {
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

    /// The rank that has or gets the whole, in rooted collectives
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,
}

#[derive(Args)]
struct ExportArguments {
    #[command(flatten)]
    algorithm: AlgorithmArguments,

    /// Which ranks share a host: HOSTSxRANKS as in 8x4, or the host of each rank as in 0,0,1,1 [default: all the same one]
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<Hosts>,

    /// The network that the algorithm follows, a rank at each of its places: torus:XxY for 2d-torus, bcube:PORTS:LEVELS for bcube
    /// [default: as near a square, or as few levels, as the ranks allow]
    #[arg(long, value_name = "SHAPE")]
    topology: Option<Shape>,

    /// Write to this file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What is sent on a cluster.
#[derive(Args)]
struct BlockArguments {
    /// Bytes of a block there
    #[arg(long, value_name = "SIZE", value_parser = at_least_one_byte, default_value = "100MiB", requires = "cluster")]
    bytes: ByteSize,

    /// Into tiles of how many bytes a block is cut there [default: one tile]
    #[arg(long, value_name = "SIZE", value_parser = at_least_one_byte, requires = "cluster")]
    chunk_bytes: Option<ByteSize>,
}

#[derive(Args)]
struct VerifyArguments {
    /// An MSCCL XML file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Also predict how long it takes on this cluster, a rank on each worker: a file (docs/clusters.md; of several networks
    /// FILE:NETWORK), or a built-in one such as 25gbe+pcie4:8x4
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,

    #[command(flatten)]
    block: BlockArguments,

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
    /// With `--cluster`: what it would take there.
    predicted: Option<Predicted>,
}

#[derive(Serialize)]
struct Predicted {
    cluster: String,
    bytes: usize,
    chunk_bytes: usize,
    predicted_s: f64,
    /// Where that leaves what the cluster's constants were measured for; or that they were not.
    extrapolated: Vec<String>,
}

/// More tiles than this take long to simulate, and are a slip of the pen.
const TILES_MAX: usize = 1 << 16;

/// Writes or verifies.
///
/// # Errors
/// Wrong usage; a file that is no program, or a wrong one.
pub fn run(arguments: &ProgramArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        ProgramCommand::Export(arguments) => arguments.run()?,
        ProgramCommand::Verify(arguments) => arguments.run()?,
        ProgramCommand::Simulate(arguments) => arguments.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The program that an MSCCL XML file is, verified, and of how many bytes it says that its calls are.
///
/// # Errors
/// The file cannot be read, or is no program: names the line.
pub fn read_sized(path: &Path) -> Result<(Program, RangeInclusive<u64>), Failure> {
    let text = text_of(path)?;
    let sized = msccl::read(&text).and_then(|program| Ok((program, msccl::sizes(&text)?)));
    sized.map_err(|error| refused(path, &error))
}

/// The same as an all-reduce that a tuner may choose among so many ranks, proved.
///
/// # Errors
/// As [`read_sized`]; it is of another collective, or for another number of ranks.
pub fn to_choose(path: &Path, ranks: usize) -> Result<TunedProgram, Failure> {
    let (program, sizes) = read_sized(path)?;
    let (kind, wanted) = (program.kind, program.ranks.len());
    if kind != CollectiveKind::AllReduce || wanted != ranks {
        let what = format!("{}: the program is of {kind} for {wanted} ranks", path.display());
        return Err(Failure::usage(what).help(format!("gradients are added up by an all-reduce among {ranks}")));
    }
    let program = VerifiedProgram::new(program, Kernels::new()).map_err(Failure::usage)?;
    Ok(TunedProgram { program, sizes })
}

fn text_of(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the program {}", path.display())).cause(error))
}

fn refused(path: &Path, error: &ReadError) -> Failure {
    Failure::usage(format!("{}: {error}", path.display())).help("docs/errors.md says more about MSCCL files")
}

fn read_proved(path: &Path) -> Result<(Program, Proof), Failure> {
    msccl::read_proved(&text_of(path)?).map_err(|error| refused(path, &error))
}

impl AlgorithmArguments {
    /// Its program on these hosts.
    fn program(&self, topology: &Topology) -> Result<Program, Failure> {
        let algorithm = find(self.collective, &self.algorithm).map_err(Failure::usage)?;
        if !algorithm.supports(self.ranks) {
            let what = format!("{} {} is not for {} ranks", self.collective, self.algorithm, self.ranks);
            return Err(Failure::usage(what));
        }
        if self.root >= self.ranks {
            return Err(Failure::usage(format!("--root {} is not one of {} ranks", self.root, self.ranks)));
        }
        Ok(algorithm.program(topology, if self.collective.has_root() { self.root } else { 0 }))
    }
}

impl ExportArguments {
    fn run(&self) -> Result<(), Failure> {
        // Who has mistyped it is told so, whatever else is wrong.
        find(self.algorithm.collective, &self.algorithm.algorithm).map_err(Failure::usage)?;
        let program = self.algorithm.program(&self.topology()?)?;
        let output = self.output.as_deref().map(PlainFile::create).transpose()?;
        let text = msccl::write(&program).map_err(Failure::failed)?;
        match output {
            Some(file) => file.write(&text),
            None => unless_closed(io::stdout().lock().write_all(text.as_bytes())),
        }
    }

    fn topology(&self) -> Result<Topology, Failure> {
        let ranks = self.algorithm.ranks;
        let hosts = match (&self.hosts, self.topology) {
            (Some(hosts), _) if hosts.ranks() != ranks => {
                return Err(Failure::usage(format!("--hosts {hosts} has {} ranks, not {ranks}", hosts.ranks())));
            }
            (Some(hosts), _) => Topology::of_hosts(hosts.by_rank()),
            (None, Some(_)) => Topology::regular(ranks, 1),
            (None, None) => Topology::flat(ranks),
        };
        match self.topology {
            Some(shape) => self.on(shape, &hosts),
            None => Ok(hosts),
        }
    }

    /// The hosts on a network that the algorithm follows.
    fn on(&self, shape: Shape, hosts: &Topology) -> Result<Topology, Failure> {
        let AlgorithmArguments { ranks, algorithm, .. } = &self.algorithm;
        let refused = |why: String| Err(Failure::usage(format!("--topology {shape} {why}")));
        let (follower, there) = match shape {
            Shape::Torus { x, y } => ("2d-torus", hosts.on_torus(x, y)),
            Shape::BCube { ports, levels } => ("bcube", hosts.on_bcube(ports, levels)),
            Shape::Flat | Shape::Tree(_) | Shape::FatTree { .. } => {
                return refused("changes no program: torus:XxY and bcube:PORTS:LEVELS do".to_owned());
            }
        };
        if algorithm != follower {
            return refused(format!("is for the algorithm {follower}, and {algorithm} does not ask for it"));
        }
        if hosts.hosts() < hosts.world() {
            return refused("has a place for each rank, and in --hosts some share a host".to_owned());
        }
        match shape.hosts() {
            Some(places) if places != *ranks => refused(format!("has room for {places} ranks, exactly, not {ranks}")),
            _ => Ok(there),
        }
    }
}

impl VerifyArguments {
    fn run(&self) -> Result<(), Failure> {
        let (program, proof) = read_proved(&self.file)?;
        let predicted = self.cluster.as_deref().map(|cluster| self.predicted(cluster, &program)).transpose()?;
        let report = Report {
            algorithm: program.algorithm,
            collective: program.kind.to_string(),
            ranks: program.ranks.len(),
            root: program.kind.has_root().then_some(program.root),
            parts: program.parts,
            steps: proof.steps,
            messages: proof.messages,
            rounds: proof.rounds,
            predicted,
        };
        if let Some(path) = &self.json {
            JsonFile::create(path)?.write(&report)?;
        }
        let Report { algorithm, collective, ranks, parts, steps, messages, rounds, .. } = &report;
        let root = report.root.map_or_else(String::new, |root| format!(", root {root}"));
        let predicted = report.predicted.as_ref().map_or_else(String::new, Predicted::in_words);
        unless_closed(writeln!(
            io::stdout(),
            "{algorithm:?} is right: {collective}, {ranks} ranks{root}, in place and out of place\n\
             parts of a block: {parts}, steps: {steps}, messages: {messages}, rounds: {rounds}{predicted}"
        ))
    }

    fn predicted(&self, source: &str, program: &Program) -> Result<Predicted, Failure> {
        let (cluster, ranks) = (load_cluster(source)?, program.ranks.len());
        has_room(&cluster, source, ranks, &self.file.display().to_string())?;
        Predicted::of(program, &cluster, source, &self.block)
    }
}

/// Refuses more ranks than the cluster has workers.
fn has_room(cluster: &Cluster, source: &str, ranks: usize, whose: &str) -> Result<(), Failure> {
    let room = cluster.workers();
    if ranks > room {
        let what = format!("{whose} has {ranks} ranks, and {source} has room for {room}");
        return Err(Failure::usage(what).help("give a cluster of more hosts, such as 25gbe:64x1"));
    }
    Ok(())
}

impl Predicted {
    /// A rank on each worker, hosts filled one after the other.
    fn of(program: &Program, cluster: &Cluster, source: &str, block: &BlockArguments) -> Result<Predicted, Failure> {
        let ByteSize(bytes) = block.bytes;
        let chunk_bytes = block.chunk_bytes.map_or(bytes, |ByteSize(chunk)| chunk);
        if tiles(bytes, chunk_bytes) > TILES_MAX {
            return Err(Failure::usage(format!("--chunk-bytes {chunk_bytes} makes more than {TILES_MAX} tiles")));
        }
        let prepared = PreparedProgram::of_program(program).map_err(Failure::failed)?;
        let load = Load { bytes, tile_bytes: chunk_bytes, window: paceline_collective::WINDOW };
        let predicted_s =
            seconds_on(cluster, &prepared, &load).map_err(|error| Failure::usage(blamed(source, &error.into())))?;
        let mut extrapolated = cluster.left_by(program.ranks.len(), bytes as u64);
        extrapolated.extend(cluster.measurement_doubt());
        Ok(Predicted { cluster: cluster.name.clone(), bytes, chunk_bytes, predicted_s, extrapolated })
    }

    /// As further lines.
    fn in_words(&self) -> String {
        let Predicted { cluster, bytes, chunk_bytes, predicted_s, extrapolated } = self;
        let (block, tile) = (ByteSize(*bytes), ByteSize(*chunk_bytes));
        let in_tiles = if bytes == chunk_bytes { String::new() } else { format!(" in tiles of {tile}") };
        let doubts: String = extrapolated.iter().map(|doubt| format!("\nextrapolated: {doubt}")).collect();
        format!("\non {cluster}, a block of {block}{in_tiles} would take {:.3} ms{doubts}", 1e3 * predicted_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(algorithm: &str, ranks: usize, hosts: Option<&str>, topology: &str) -> ExportArguments {
        ExportArguments {
            algorithm: AlgorithmArguments {
                collective: CollectiveKind::AllReduce,
                algorithm: algorithm.to_owned(),
                ranks,
                root: 0,
            },
            hosts: hosts.map(|hosts| hosts.parse().expect("hosts")),
            topology: Some(topology.parse().expect("a shape")),
            output: None,
        }
    }

    #[test]
    fn an_export_follows_the_sides_of_a_torus_and_the_levels_of_a_bcube() {
        let there = |arguments: ExportArguments| arguments.topology().expect("it fits");
        assert_eq!(there(export("2d-torus", 8, None, "torus:4x2")).torus(), Some([4, 2]));
        assert_eq!(there(export("bcube", 16, None, "bcube:2:4")).bcube(), Some((2, 4)));
        assert_eq!(there(export("bcube", 16, Some("16x1"), "bcube:4:2")).bcube(), Some((4, 2)));
    }

    #[test]
    fn a_network_that_does_not_fit_is_refused() {
        for (algorithm, ranks, hosts, topology, says) in [
            ("2d-torus", 8, None, "torus:3x3", "--topology torus:3x3 has room for 9 ranks, exactly, not 8"),
            ("bcube", 8, None, "bcube:2:4", "--topology bcube:2:4 has room for 16 ranks, exactly, not 8"),
            ("bcube", 16, Some("8x2"), "bcube:2:4", "in --hosts some share a host"),
            ("bcube", 8, Some("16x1"), "bcube:2:3", "--hosts 16x1 has 16 ranks, not 8"),
            ("ring", 8, None, "torus:4x2", "is for the algorithm 2d-torus, and ring does not ask for it"),
            ("2d-torus", 8, None, "bcube:2:3", "is for the algorithm bcube, and 2d-torus does not"),
            ("2d-torus", 8, None, "tree:4:2", "--topology tree:4:2 changes no program: torus:XxY and"),
        ] {
            let refusal = export(algorithm, ranks, hosts, topology).topology().expect_err(says).in_one_line();
            assert!(refusal.contains(says), "{refusal}");
        }
    }
}
