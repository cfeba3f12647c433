//! The tables that NCCL makes for a communicator, and what it chooses by them.

use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use paceline_tune::nccl::{
    Algorithm, Communicator, CpuVendor, Entry, Function, Graph, NcclError, Path, Protocol, Tables, Version,
};
use serde::Serialize;

use crate::arguments::ByteSize;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;

/// Ranks and hosts of a communicator, where nothing says how many.
pub const WORLD: (u32, u32) = (8, 1);

/// Channels that NCCL's graph search finds, and GB/s of each, where nothing says how many.
const CHANNELS: u32 = 16;
const CHANNEL_GB_S: f32 = 20.0;

/// A communicator of NCCL's. What was not given is none, so that it can be told from what would be ignored.
#[derive(Args)]
#[command(next_help_heading = "NCCL's communicator")]
pub struct NcclArguments {
    /// Print the latencies and bandwidths that this NCCL compares, as its own log has them, and what it chooses (docs/nccl.md)
    #[arg(long, value_name = "VERSION")]
    pub nccl_table: Option<Version>,

    /// Ranks of the communicator [default: 8; of --nccl-samples, as many as the largest one has]
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,

    /// Hosts that they are on, as many on each [default: 1; of --nccl-samples, as many as the largest one has]
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,

    /// Channels that NCCL's graph search found (NCCL_DEBUG_SUBSYS=GRAPH prints them) [default: 16]
    #[arg(long, value_name = "N")]
    channels: Option<u32>,

    /// Bandwidth of a channel within a host, in GB/s [default: 20]
    #[arg(long, value_name = "GB/S")]
    intra: Option<f32>,

    /// Bandwidth of a channel between hosts, in GB/s [default: 20]
    #[arg(long, value_name = "GB/S")]
    inter: Option<f32>,

    /// Another algorithm's channels and bandwidths, such as NVLS=16:40:40; may stand several times
    #[arg(long = "graph", value_name = "ALGORITHM=CHANNELS:INTRA:INTER")]
    graphs: Vec<OwnGraph>,

    /// The worst path between GPUs of a host: NVL, NVB, C2C, PIX, PXB, PHB, SYS [default: NVL]
    #[arg(long, value_name = "LINK")]
    intra_link: Option<Path>,

    /// The worst path between a GPU and its network interface: PIX, PXB, P2C, PXN, PHB, SYS [default: PXB]
    #[arg(long, value_name = "LINK")]
    inter_link: Option<Path>,

    /// Latency of the network beyond what the model has, in microseconds [default: 0]
    #[arg(long, value_name = "US")]
    latency: Option<f32>,

    /// The smallest compute capability of the GPUs, such as 8.0 or 9.0 [default: 9.0]
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = compute_capability)]
    compute_capability: Option<u32>,

    /// The processors: intel, amd, mixed, other or arm [default: intel]
    #[arg(long, value_name = "VENDOR")]
    cpu: Option<CpuVendor>,

    /// What a step over the network costs a processor, in microseconds [default: 1, of AMD 2]
    #[arg(long, value_name = "US")]
    net_overhead: Option<f32>,

    /// The GPUs have NVLink switches that add up (NVLS)
    #[arg(long)]
    nvls: bool,

    /// The network adds up (CollNet), through so many interfaces of a host [default: 0]
    #[arg(long, value_name = "INTERFACES")]
    collnet: Option<u32>,

    /// With --nccl-table: what is chosen for all-reduces of these sizes [default: 1KiB, 4KiB, … 1GiB]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    pub bytes: Vec<ByteSize>,
}

/// A graph of an algorithm, where it is not as the others.
#[derive(Clone, Debug)]
struct OwnGraph {
    algorithm: Algorithm,
    channels: u32,
    intra: f32,
    inter: f32,
}

impl FromStr for OwnGraph {
    type Err = String;

    fn from_str(text: &str) -> Result<OwnGraph, String> {
        let form = || "give ALGORITHM=CHANNELS:INTRA:INTER, such as NVLS=16:40:40".to_owned();
        let (algorithm, numbers) = text.split_once('=').ok_or_else(form)?;
        let algorithm = algorithm.parse().map_err(|error: NcclError| error.to_string())?;
        let numbers: Vec<&str> = numbers.split(':').collect();
        let [channels, intra, inter] = numbers[..] else { return Err(form()) };
        let channels = channels.parse::<u32>().map_err(|_| form())?;
        let speed = |text: &str| text.parse::<f32>().map_err(|_| form());
        Ok(OwnGraph { algorithm, channels, intra: speed(intra)?, inter: speed(inter)? })
    }
}

/// 90 for 9.0, as NCCL counts.
fn compute_capability(text: &str) -> Result<u32, String> {
    let wrong = |_| "give a compute capability such as 8.0 or 9.0".to_owned();
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    let (major, minor): (u32, u32) = (major.parse().map_err(wrong)?, minor.parse().map_err(wrong)?);
    match (major, minor) {
        (3..=99, 0..=9) => Ok(10 * major + minor),
        _ => Err("give a compute capability such as 8.0 or 9.0".to_owned()),
    }
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    nccl: String,
    entries: Vec<Cell>,
    choices: Vec<Chosen>,
}

#[derive(Serialize)]
struct Cell {
    function: &'static str,
    algorithm: &'static str,
    protocol: &'static str,
    latency_us: f32,
    bandwidth_gb_s: f32,
}

#[derive(Serialize)]
struct Chosen {
    bytes: usize,
    algorithm: &'static str,
    protocol: &'static str,
    channels: u32,
    threads: u32,
    time_us: f32,
}

/// Prints them.
///
/// # Errors
/// There is no such communicator; a file cannot be written.
pub fn run(arguments: &NcclArguments, json: Option<JsonFile>) -> Result<ExitCode, Failure> {
    let version = arguments.nccl_table.ok_or_else(|| Failure::usage("give --nccl-table VERSION"))?;
    let tables = Tables::new(version, &arguments.communicator(WORLD)).map_err(usage)?;
    let report = Report {
        nccl: version.to_string(),
        entries: entries(&tables),
        choices: arguments.sizes().into_iter().filter_map(|bytes| chosen(&tables, bytes)).collect(),
    };
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(show(&tables, &report, &mut io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

/// What NCCL does not have is asked for.
pub fn usage(error: NcclError) -> Failure {
    Failure::usage(error).help("docs/nccl.md says what NCCL's model knows")
}

impl NcclArguments {
    /// The options that describe a communicator and were given.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            (self.ranks.is_some(), "--ranks"),
            (self.hosts.is_some(), "--hosts"),
            (self.channels.is_some(), "--channels"),
            (self.intra.is_some(), "--intra"),
            (self.inter.is_some(), "--inter"),
            (!self.graphs.is_empty(), "--graph"),
            (self.intra_link.is_some(), "--intra-link"),
            (self.inter_link.is_some(), "--inter-link"),
            (self.latency.is_some(), "--latency"),
            (self.compute_capability.is_some(), "--compute-capability"),
            (self.cpu.is_some(), "--cpu"),
            (self.net_overhead.is_some(), "--net-overhead"),
            (self.nvls, "--nvls"),
            (self.collnet.is_some(), "--collnet"),
        ];
        all.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// Is it said how many ranks and hosts there are?
    pub fn says_world(&self) -> bool {
        self.ranks.is_some() && self.hosts.is_some()
    }

    /// The communicator that is described, with so many ranks and hosts where it is not said how many.
    pub fn communicator(&self, (ranks, hosts): (u32, u32)) -> Communicator {
        let graph = Graph {
            channels: self.channels.unwrap_or(CHANNELS),
            intra_gb_s: self.intra.unwrap_or(CHANNEL_GB_S),
            inter_gb_s: self.inter.unwrap_or(CHANNEL_GB_S),
            latency_inter_us: self.latency.unwrap_or(0.0),
            intra: self.intra_link.unwrap_or(Path::NvLink),
            inter: self.inter_link.unwrap_or(Path::Pxb),
            ..Graph::default()
        };
        let collnet = self.collnet.unwrap_or(0);
        let mut communicator = Communicator {
            ranks: self.ranks.unwrap_or(ranks),
            hosts: self.hosts.unwrap_or(hosts),
            compute_capability: self.compute_capability.unwrap_or(90),
            cpu: self.cpu.unwrap_or_default(),
            net_overhead_us: self.net_overhead,
            collnet: collnet > 0,
            collnet_heads: collnet,
            nvswitch: self.nvls,
            nvls: self.nvls,
            ..Communicator::of_graph(graph)
        };
        for own in &self.graphs {
            let graph = &mut communicator.graphs[own.algorithm.number()];
            (graph.channels, graph.intra_gb_s, graph.inter_gb_s) = (own.channels, own.intra, own.inter);
        }
        communicator.channels = communicator.graph(Algorithm::Ring).channels;
        communicator.nvls_channels = communicator.graph(Algorithm::Nvls).channels;
        communicator
    }

    fn sizes(&self) -> Vec<usize> {
        if self.bytes.is_empty() {
            return (10..=30).step_by(2).map(|log| 1 << log).collect();
        }
        self.bytes.iter().map(|size| size.0).collect()
    }
}

fn entries(tables: &Tables) -> Vec<Cell> {
    let mut entries = Vec::new();
    for &function in Function::ALL {
        for &algorithm in tables.algorithms() {
            for &protocol in Protocol::ALL {
                let Entry { latency_us, bandwidth_gb_s } = tables.entry(function, algorithm, protocol);
                let (function, algorithm, protocol) = (function.name(), algorithm.name(), protocol.name());
                entries.push(Cell { function, algorithm, protocol, latency_us, bandwidth_gb_s });
            }
        }
    }
    entries
}

fn chosen(tables: &Tables, bytes: usize) -> Option<Chosen> {
    let choice = tables.choose(Function::AllReduce, bytes as u64, 1)?;
    let (algorithm, protocol) = (choice.algorithm.name(), choice.protocol.name());
    let (channels, threads, time_us) = (choice.channels, choice.threads, choice.time_us);
    Some(Chosen { bytes, algorithm, protocol, channels, threads, time_us })
}

fn show(tables: &Tables, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "NCCL {}: latency in us / algorithm bandwidth in GB/s, as it prints them\n{tables}", report.nccl)?;
    writeln!(out, "What it chooses for an all-reduce, and what its model expects:")?;
    for choice in &report.choices {
        let (size, way) = (ByteSize(choice.bytes).to_string(), format!("{} {}", choice.algorithm, choice.protocol));
        let (channels, threads) = (choice.channels, choice.threads);
        writeln!(
            out,
            "  {size:>8}  {way:<20} {channels:>2} channels of {threads} threads  {:>10.1} us",
            choice.time_us
        )?;
    }
    Ok(())
}
