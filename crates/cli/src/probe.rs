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
use paceline_comm::{Communicator, Emulation, TransportChoice};
use paceline_fabric::environment::Environment;
use paceline_fabric::rendezvous;
use serde::Serialize;

use crate::arguments::at_least_one;
use crate::emulation::{Emulated, EmulationArguments};
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::security::SecurityArguments;
use crate::topology::TopologyArguments;
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

    /// What carries the data: shm, tcp, or auto (shared memory within a host, TCP otherwise); of several, such as auto,tcp,
    /// the first is what the cluster costs by itself, and each other one is measured in a world of its own and written as
    /// what is otherwise over that protocol
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "auto")]
    transport: Vec<TransportChoice>,

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
    topology: TopologyArguments,

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
    /// Of the first world.
    transport: &'static str,
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
    arguments.check_transports(emulation.is_some())?;
    match place {
        Place::Launcher { ranks } => workers::launch(ranks, arguments.security.for_ranks()?),
        Place::Rank(mut environment) => {
            arguments.security.apply(&mut environment.network);
            arguments.topology.apply(&mut environment);
            arguments.probe(&environment, emulation)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl ProbeArguments {
    /// Do the transports make one cluster?
    fn check_transports(&self, emulated: bool) -> Result<(), Failure> {
        let [first, others @ ..] = &self.transport[..] else { return Ok(()) };
        // Others begin behind the first.
        let was_before = |(place, one): (usize, &TransportChoice)| self.transport[..=place].contains(one);
        let problem = match first {
            _ if others.is_empty() => return Ok(()),
            _ if emulated => "an emulated network is made of shared memory, and has nothing else",
            TransportChoice::Tcp => "the first is what `protocol=auto` costs, and that is auto or, on one host, shm",
            _ if others.contains(&TransportChoice::Auto) => "only the first can be auto: it is no protocol of its own",
            _ if others.iter().enumerate().any(was_before) => "each is measured once",
            _ => return Ok(()),
        };
        let names: Vec<&str> = self.transport.iter().map(|one| one.name()).collect();
        Err(Failure::usage(format!("--transport {}: {problem}", names.join(",")))
            .help("give what the runtime takes by itself, and then what it can be told to take, as in auto,tcp"))
    }

    /// A world after the other, on one of its ranks, and what was found.
    fn probe(&self, environment: &Environment, emulation: Option<Emulation>) -> Result<(), Failure> {
        let [first, others @ ..] = &self.transport[..] else { return Ok(()) };
        let emulated = emulation.as_ref().map(Emulated::new);
        let communicator = workers::connect(self.meeting(environment, 0)?, *first, 1, emulation)?;
        let is_first = communicator.rank() == 0;
        let output = self.output.as_deref().filter(|_| is_first).map(PlainFile::create).transpose()?;
        let json = self.json.as_deref().filter(|_| is_first).map(JsonFile::create).transpose()?;
        let mut probed = self.measure(&communicator, emulated.as_ref())?;
        if emulated.is_none() {
            probed.cluster.topology = environment.topology.to_string();
        }
        let (title, transport) = (self.title(&communicator), workers::transport_name(&communicator));
        let ranks = communicator.world_size();
        // Two worlds at once would be in each other's way.
        drop(communicator);
        for (number, &transport) in others.iter().enumerate() {
            let world = workers::connect(self.meeting(environment, 1 + number)?, transport, 1, None)?;
            probed.add(transport, self.measure(&world, None)?)?;
        }
        if is_first {
            unless_closed(table::print(&probed, &title, emulated.as_ref()))?;
            if let (Some(output), Some(path)) = (output, &self.output) {
                output.write(&probed.cluster.to_toml())?;
                unless_closed(writeln!(io::stdout(), "# written to {}", path.display()))?;
            }
            json.map_or(Ok(()), |json| json.write(&self.report(transport, ranks, emulated, &probed)))?;
        }
        Ok(())
    }

    /// Where the ranks meet for the world of a transport, by its number: all at one place, which the last has for itself.
    fn meeting(&self, environment: &Environment, number: usize) -> Result<Environment, Failure> {
        let mut environment = environment.clone();
        if let Some(world) = environment.world.as_mut().filter(|_| number + 1 < self.transport.len()) {
            let terms = format!("to measure {} as number {}", self.transport[number], number + 1);
            *world = rendezvous::ahead(world, terms).map_err(Failure::failed)?;
        }
        Ok(environment)
    }

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

    fn report<'a>(
        &self,
        transport: &'static str,
        ranks: usize,
        emulated: Option<Emulated>,
        probed: &'a Probed,
    ) -> Report<'a> {
        let named = |(constant, paceline_plan::Constant { value, low, high })| Named { constant, value, low, high };
        Report {
            emulated,
            transport,
            name: &probed.cluster.name,
            ranks,
            rounds: self.rounds,
            constants: probed.cluster.constants().into_iter().map(named).collect(),
            points: &probed.points,
        }
    }
}
