//! Shards as threads beside the workers.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use paceline_comm::{Communicator, Config, OnStall, ThreadsConfig, Transport, TransportChoice, Watch};
use paceline_fabric::environment::World;
use paceline_plan::{Emulation, Fnv1a, Hosts};

use crate::error::ServerError;
use crate::roles::{Roles, RolesError};
use crate::serve::{ServeOptions, Served, serve};

/// A worker whose process has shards, too. `R`: what a shard gives back in the end.
#[derive(Debug)]
pub struct Joined<R = Served> {
    /// The worker's end of the world of all workers and shards.
    pub world: Communicator,
    /// Who is who in it.
    pub roles: Roles,
    /// The shards that live in this process; maybe none.
    pub shards: Vec<ShardThread<R>>,
}

/// A shard that is a thread of this process. Dropping it lets it run on; it ends when it is told to, or when the world
/// fails.
#[derive(Debug)]
pub struct ShardThread<R = Served> {
    shard: usize,
    outcome: Receiver<Result<R, ServerError>>,
}

impl<R> ShardThread<R> {
    /// Which shard it is.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Waits for the end of its work, which comes after [`crate::ParameterServer::stop`]. The thread stays until all ranks
    /// have left the world, as every rank does.
    ///
    /// # Errors
    /// Why it could not go on.
    pub fn join(self) -> Result<R, ServerError> {
        self.outcome.recv().unwrap_or(Err(ServerError::Panicked { shard: self.shard }))
    }
}

/// Connects this worker, and the shards that live beside it, to the world of all workers and `shards` shards. The launcher
/// has started the workers; `config` is what it says, and an emulation in it is that of the workers. If nobody has started
/// any, this process is the only worker.
///
/// `hosts` are those of the workers, the same for all of them, as [`Config::hosts`] finds them out: each shard lives beside
/// the worker that [`Hosts::rank_of_shard`] says, and on an emulated network on that worker's host. Workers that see other
/// hosts or another number of shards are refused where they meet.
///
/// All workers call it. A shard has its own connections to all ranks, as if it were a process. It reports no operations that
/// do not move: it waits for workers that compute, and what stands still where it should not, workers report.
///
/// # Errors
/// [`ServerError::Roles`] if there is no shard, or `hosts` are not those of the workers; [`ServerError::Comm`] if the ranks
/// do not find together.
pub fn join_beside(
    config: Config,
    hosts: &Hosts,
    shards: usize,
    options: &ServeOptions,
) -> Result<Joined, ServerError> {
    let options = options.clone();
    join_beside_with(config, hosts, shards, move |world, roles| serve(world, roles, &options))
}

/// As [`join_beside`], for shards that do more than serve: `act` is what each does, and calls [`serve`].
///
/// # Errors
/// As [`join_beside`].
pub fn join_beside_with<R, A>(config: Config, hosts: &Hosts, shards: usize, act: A) -> Result<Joined<R>, ServerError>
where
    R: Send + 'static,
    A: Fn(&Communicator, Roles) -> Result<R, ServerError> + Clone + Send + 'static,
{
    let place = config.environment.world.clone();
    let roles = Roles::new(place.as_ref().map_or(1, |place| place.world_size as usize), shards)?;
    if hosts.ranks() != roles.workers() {
        return Err(RolesError::Hosts { hosts: hosts.clone(), workers: roles.workers() }.into());
    }
    let emulation = config.emulation.map(|emulation| Emulation { hosts: hosts.with_shards(shards), ..emulation });
    let config = Config { emulation, ..config };
    let Some(place) = place else { return join_alone(config, roles, act) };
    let at = |rank: u32, listener| {
        let mut config = config.clone();
        if rank != place.rank {
            config.watch.on_stall = None;
        }
        config.environment.world = Some(World {
            rank,
            world_size: roles.world_size() as u32,
            // All are here exactly if all workers are.
            local_size: (place.local_size == Some(place.world_size)).then_some(roles.world_size() as u32),
            local_rank: None,
            listener,
            terms: terms(hosts, shards),
            ..place.clone()
        });
        config
    };
    let rank = place.rank as usize;
    let mut threads = Vec::new();
    for shard in (0..shards).filter(|&shard| hosts.rank_of_shard(shard) == rank) {
        let config = at(roles.rank_of(shard) as u32, None);
        let connect = move || Ok(Communicator::connect(config)?);
        threads.push(start(rank, shard, roles, connect, act.clone())?);
    }
    let world = Communicator::connect(at(place.rank, place.listener))?;
    Ok(Joined { world, roles, shards: threads })
}

/// What all ranks must say alike. Of many ranks their fingerprint: the table of members is bounded.
fn terms(hosts: &Hosts, shards: usize) -> String {
    let mut hosts = hosts.to_string();
    if hosts.len() > WORDS_MAX {
        hosts = format!("{}… ({:016x})", &hosts[..WORDS_MAX / 2], Fnv1a::of(hosts.as_bytes()));
    }
    format!("with {shards} shards beside workers on hosts {hosts}")
}

/// Longer lists of hosts are no help to a reader.
const WORDS_MAX: usize = 200;

/// Nobody has started workers: this process is the only one, and its threads are the world.
fn join_alone<R, A>(config: Config, roles: Roles, act: A) -> Result<Joined<R>, ServerError>
where
    R: Send + 'static,
    A: Fn(&Communicator, Roles) -> Result<R, ServerError> + Clone + Send + 'static,
{
    let transport = match config.transport {
        TransportChoice::Auto if config.emulation.is_none() => Transport::Memory,
        TransportChoice::Auto | TransportChoice::Shm => Transport::Shm,
        TransportChoice::Tcp => Transport::Tcp,
    };
    let links = ThreadsConfig {
        transport,
        tcp_streams: config.tcp_streams as usize,
        shm: config.shm,
        watch: Watch { on_stall: config.watch.on_stall.map(of_workers), ..config.watch },
        emulation: config.emulation,
        topology: config.environment.topology,
        ..ThreadsConfig::default()
    };
    let mut ranks = Communicator::threads_with(roles.world_size(), &links)?.into_iter();
    let world = ranks.next();
    let mut threads = Vec::new();
    for (shard, communicator) in ranks.enumerate() {
        threads.push(start(0, shard, roles, move || Ok(communicator), act.clone())?);
    }
    // A world of threads has as many ranks as were asked for.
    let world = world.unwrap_or_else(|| unreachable!("there is at least one worker"));
    Ok(Joined { world, roles, shards: threads })
}

/// Only the reports of the one worker, where all ranks of the process share what takes them.
fn of_workers(report: OnStall) -> OnStall {
    Arc::new(move |stall| {
        if stall.rank == 0 {
            report(stall);
        }
    })
}

fn start<R: Send + 'static>(
    worker: usize,
    shard: usize,
    roles: Roles,
    connect: impl FnOnce() -> Result<Communicator, ServerError> + Send + 'static,
    act: impl Fn(&Communicator, Roles) -> Result<R, ServerError> + Send + 'static,
) -> Result<ShardThread<R>, ServerError> {
    let (tell, outcome) = mpsc::channel();
    let serve = move || {
        let world = connect();
        let done = world.as_ref().map_err(Clone::clone).and_then(|world| act(world, roles));
        // Nobody may be waiting. And whoever does may hold the world's other end, which this one waits for when it leaves.
        let _ = tell.send(done);
    };
    let thread = thread::Builder::new().name(format!("shard {shard}")).spawn(serve);
    thread.map_err(|why| ServerError::Thread { rank: worker, shard, why: why.to_string() })?;
    Ok(ShardThread { shard, outcome })
}
