//! Where this process stands: it is a rank already, or it starts them.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use paceline_comm::{Communicator, Config, Emulation, Transport, TransportChoice};
use paceline_fabric::environment::Environment;

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
    Rank(Box<Environment>),
}

impl Place {
    /// Finds out. A launcher that has started us as a rank wins; then `asked`, which is what `option` said, may only
    /// agree. A world of one needs nobody else.
    ///
    /// # Errors
    /// The environment contradicts itself or the command line.
    pub fn find(asked: Option<usize>, option: &str) -> Result<Place, Failure> {
        let environment = Environment::read().map_err(|error| {
            Failure::usage("the environment does not say where this rank belongs")
                .cause(error)
                .help("start the ranks with `paceline launch`, `torchrun`, `srun` or `mpirun`, or unset the variable")
        })?;
        match (&environment.world, asked.unwrap_or(RANKS)) {
            (Some(world), _) if asked.is_none_or(|asked| asked == world.world_size as usize) => {}
            (Some(world), asked) => {
                let what = format!("{option} {asked}, but {} has started {} ranks", world.launcher, world.world_size);
                return Err(Failure::usage(what).help(format!("leave {option} out: the launcher decides")));
            }
            (None, 1) => {}
            (None, ranks) => return Ok(Place::Launcher { ranks }),
        }
        Ok(Place::Rank(Box::new(environment)))
    }

    /// The world size.
    pub fn ranks(&self) -> usize {
        match self {
            Place::Launcher { ranks } => *ranks,
            Place::Rank(environment) => environment.world.as_ref().map_or(1, |world| world.world_size as usize),
        }
    }

    /// How many ranks share this host's cores, as far as is known.
    pub fn local_ranks(&self) -> usize {
        match self {
            Place::Launcher { ranks } => *ranks,
            Place::Rank(environment) => {
                environment.world.as_ref().and_then(|world| world.local_size).map_or(1, |size| size as usize)
            }
        }
    }
}

/// How many ranks are started if nobody says it.
const RANKS: usize = 2;

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

/// Meets the other ranks, with so many TCP connections per pair of ranks, perhaps on an emulated network; the same on
/// all ranks.
///
/// # Errors
/// Not all came in time, or a link could not be opened.
pub fn connect(
    environment: Environment,
    transport: TransportChoice,
    tcp_streams: u32,
    emulation: Option<Emulation>,
) -> Result<Communicator, Failure> {
    let config = Config { tcp_streams, emulation, ..config(environment, transport)? };
    let communicator = Communicator::connect(config)?;
    if communicator.rank() == 0 {
        for note in communicator.notes() {
            eprintln!("paceline: {note}");
        }
    }
    Ok(communicator)
}

/// How ranks connect: stalls are reported on standard error.
///
/// # Errors
/// The environment contradicts itself.
pub fn config(environment: Environment, transport: TransportChoice) -> Result<Config, Failure> {
    let mut config = Config { environment, transport, ..Config::from_environment()? };
    config.watch.on_stall = Some(Arc::new(|report| eprintln!("paceline: {report}")));
    Ok(config)
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
