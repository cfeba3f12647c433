//! `paceline probe`: what the links and processors of a world cost, as a cluster for predictions.

mod beside;
mod cluster;
mod estimate;
mod measure;
mod messages;
mod ring;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_comm::{Communicator, TransportChoice};
use serde::Serialize;

use crate::arguments::at_least_one;
use crate::emulation::{Emulated, EmulationArguments};
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::security::SecurityArguments;
use crate::workers::{self, Place};
use cluster::{Origin, Point, Probed, in_words};
use estimate::ROUNDS_MIN;
use measure::Rounds;

/// What `probe` is told.
#[derive(Args)]
pub struct ProbeArguments {
    /// Processes to start here [default: 2; under a launcher: as many as it has started]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: Option<usize>,

    /// What carries the data: shm, tcp, or auto (shared memory within a host, TCP otherwise)
    #[arg(long, value_name = "NAME", default_value_t)]
    transport: TransportChoice,

    /// How often everything is measured; the median counts, and its 95 % interval
    #[arg(long, value_name = "N", value_parser = rounds, default_value_t = 12)]
    rounds: usize,

    /// What the cluster is called [default: the host's name, or the network's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Write the cluster to this file (TOML, docs/clusters.md)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    emulation: EmulationArguments,

    #[command(flatten)]
    security: SecurityArguments,

    /// Write the constants to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// So many rounds take hours.
const ROUNDS_MAX: usize = 1000;

/// For clap: rounds of which the median has an interval.
fn rounds(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        rounds @ ROUNDS_MIN..=ROUNDS_MAX => Ok(rounds),
        _ => Err(format!("give {ROUNDS_MIN} to {ROUNDS_MAX}: of fewer, a median has no 95 % interval")),
    }
}

/// What stands in the JSON file, besides machine and command line. Times in seconds.
#[derive(Serialize)]
struct Report<'a> {
    /// The network that was emulated, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    emulated: Option<Emulated>,
    transport: &'a str,
    /// Of the cluster.
    name: &'a str,
    ranks: usize,
    rounds: usize,
    constants: Vec<Named>,
    points: &'a [Point],
}

/// A constant of the cluster.
#[derive(Serialize)]
struct Named {
    constant: String,
    value: f64,
    low: f64,
    high: f64,
}

/// Measures, as one rank or by starting the ranks.
///
/// # Errors
/// Wrong usage; a rank or the communication failed; the file cannot be written.
pub fn run(arguments: &ProbeArguments) -> Result<ExitCode, Failure> {
    let place = Place::find(arguments.workers, "--workers")?;
    if place.ranks() < 2 {
        let what = "a single rank has no links that could be measured";
        return Err(Failure::usage(what).help("give --workers 2 or more, or start it as several ranks"));
    }
    let emulation = arguments.emulation.of_world(place.ranks())?;
    match place {
        Place::Launcher { ranks } => workers::launch(ranks, arguments.security.for_ranks()?),
        Place::Rank(mut environment) => {
            arguments.security.apply(&mut environment.network);
            let emulated = emulation.as_ref().map(Emulated::new);
            let communicator = workers::connect(*environment, arguments.transport, 1, emulation)?;
            let is_first = communicator.rank() == 0;
            let output = arguments.output.as_deref().filter(|_| is_first).map(PlainFile::create).transpose()?;
            let json = arguments.json.as_deref().filter(|_| is_first).map(JsonFile::create).transpose()?;
            let probed = arguments.measure(&communicator, emulated.as_ref())?;
            if is_first {
                unless_closed(table::print(&probed, &arguments.title(&communicator), emulated.as_ref()))?;
                if let (Some(output), Some(path)) = (output, &arguments.output) {
                    output.write(&probed.cluster.to_toml())?;
                    unless_closed(writeln!(io::stdout(), "# written to {}", path.display()))?;
                }
                json.map_or(Ok(()), |json| json.write(&arguments.report(&communicator, emulated, &probed)))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl ProbeArguments {
    /// All rounds, on all ranks at the same time. Every rank comes to the same constants.
    fn measure(&self, communicator: &Communicator, emulated: Option<&Emulated>) -> Result<Probed, Failure> {
        let bar = if communicator.rank() == 0 { ProgressBar::new(self.rounds as u64) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds [{elapsed} + {eta}]") {
            bar.set_style(style);
        }
        let measured = Rounds::new(communicator).and_then(|mut rounds| {
            for round in 0..self.rounds {
                rounds.measure(round)?;
                bar.inc(1);
            }
            Ok(rounds.finish())
        });
        bar.finish_and_clear();
        let origin = Origin::of(communicator, emulated, self.name.as_deref(), self.rounds);
        Probed::new(&measured?, &origin)
    }

    fn title(&self, communicator: &Communicator) -> String {
        let (ranks, transport) = (communicator.world_size(), workers::transport_name(communicator));
        let hosts = in_words(communicator.topology().hosts());
        format!("{ranks} ranks on {hosts}, transport {transport}, {} rounds: median and its 95 % interval", self.rounds)
    }

    fn report<'a>(&self, communicator: &Communicator, emulated: Option<Emulated>, probed: &'a Probed) -> Report<'a> {
        let named = |(constant, paceline_plan::Constant { value, low, high })| Named { constant, value, low, high };
        Report {
            emulated,
            transport: workers::transport_name(communicator),
            name: &probed.cluster.name,
            ranks: communicator.world_size(),
            rounds: self.rounds,
            constants: probed.cluster.constants().into_iter().map(named).collect(),
            points: &probed.points,
        }
    }
}
