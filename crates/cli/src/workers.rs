//! Where this process stands: it is a rank already, or it starts them.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use paceline_comm::{Communicator, Config, Transport};

use crate::arguments::TransportChoice;
use crate::failure::Failure;
use crate::supervisor::{self, Job, Output};

/// What this process is to do.
pub enum Place {
    /// Start so many ranks of the same command line.
    Launcher {
        /// How many.
        ranks: usize,
    },
    /// Be one of the ranks.
    Rank(RankPlace),
}

/// A rank that knows where it belongs.
pub struct RankPlace {
    /// What the launcher said; None for a world of one.
    config: Option<Config>,
    ranks: usize,
}

impl Place {
    /// The world size.
    pub fn ranks(&self) -> usize {
        match self {
            Place::Launcher { ranks } => *ranks,
            Place::Rank(rank) => rank.ranks,
        }
    }
}

/// Finds out. Ranks that stand in the environment win; `asked` is what `option` said.
///
/// # Errors
/// The environment contradicts itself, or `option`.
pub fn place(asked: Option<usize>, default: usize, option: &str) -> Result<Place, Failure> {
    let config = Config::from_environment()?;
    let Some(world) = &config.environment.world else {
        return Ok(match asked.unwrap_or(default) {
            1 => Place::Rank(RankPlace { config: None, ranks: 1 }),
            ranks => Place::Launcher { ranks },
        });
    };
    let ranks = world.world_size as usize;
    if let Some(asked) = asked.filter(|&asked| asked != ranks) {
        let launched = format!("{option} {asked}, but the launcher has started {ranks} ranks");
        return Err(Failure::usage(launched).help(format!("leave {option} out under a launcher")));
    }
    Ok(Place::Rank(RankPlace { config: Some(config), ranks }))
}

/// Starts the same command line as ranks; each finds its place in the environment.
///
/// # Errors
/// They could not be started.
pub fn launch(ranks: usize, environment: Vec<(String, String)>) -> Result<ExitCode, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::failed("cannot find our own program to start the ranks").cause(error))?;
    let command = [OsString::from(program)].into_iter().chain(env::args_os().skip(1)).collect();
    supervisor::run(&Job { command, ranks, environment, output: Output::FirstRankDirect })
}

impl RankPlace {
    /// Meets the others.
    pub fn connect(self, transport: TransportChoice) -> Result<Communicator, Failure> {
        let Some(config) = self.config else { return Ok(Communicator::solo()?) };
        let communicator = Communicator::connect(Config { transport: transport.into(), ..config })?;
        if communicator.rank() == 0 {
            for note in communicator.notes() {
                eprintln!("note: {note}");
            }
        }
        Ok(communicator)
    }
}

/// What carries the links of a rank: one name if all are alike.
pub fn transport_name(communicator: &Communicator) -> &'static str {
    let mut names =
        (0..communicator.world_size()).filter_map(|peer| communicator.transport(peer)).map(
            |transport| match transport {
                Transport::Memory => "memory",
                Transport::Shm => "shm",
                Transport::Tcp => "tcp",
            },
        );
    match names.next() {
        None => "none",
        Some(first) if names.all(|name| name == first) => first,
        Some(_) => "mixed",
    }
}
