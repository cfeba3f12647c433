//! What all communicators of a rank share: the connected world.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_collective::Topology;
use paceline_collective::registry::UnknownAlgorithm;
use paceline_engine::{Cause, Config as EngineConfig, Engine, Failure, Stall};
use paceline_fabric::shm::Arena;
use paceline_fabric::{Link, Transport};
use paceline_plan::{LinkCost, LinkCosts, OperationKey};

use crate::context::{Context, Patience};
use crate::core::Core;
use crate::memory::Memories;
use crate::own_processor::Place;
use crate::programs::Programs;
use crate::watch::{StallReport, Watch};
use crate::{CommError, ConnectError, Culprit};

/// How long a rank that leaves waits for the others' goodbye, so that nobody loses its last data.
const LEAVE: Duration = Duration::from_secs(2);

/// How long a rank of a failed world tries to tell the others why. They have 2 s in all to notice and to end.
const PART: Duration = Duration::from_secs(1);

/// A rank's connection to all others. Dropping it says goodbye.
pub(crate) struct World {
    pub context: Arc<Context>,
    pub programs: Programs,
    pub rank: usize,
    /// Host names, by rank.
    pub hosts: Vec<String>,
    /// Which ranks share a host.
    pub topology: Topology,
    /// What carries the link to each rank; None for this one.
    pub transports: Vec<Option<Transport>>,
    /// TCP connections per pair of ranks, where TCP links them.
    pub tcp_streams: usize,
    /// Does every rank of this host fetch what it is sent from the sender's memory, whatever memory that is?
    pub fetches: bool,
    /// Ranks of this world on this machine, for each of its processors; at least 1.
    pub ranks_per_processor: f64,
    /// The same of ranks that take no turns with another: see [`Parts::local_turns`].
    pub turns_per_processor: f64,
    /// Do messages take their time by the clock, on an emulated network?
    pub keeps_time: bool,
    /// Messages take so many times as long as they should.
    pub dilation: f64,
    pub arena: Option<Arc<Arena>>,
    /// By rank, the process of those that run on this machine.
    pub processes: Vec<Option<u32>>,
    /// Do some ranks of a host talk over TCP, as all ranks have agreed? Not before links were measured.
    pub tcp_within: AtomicBool,
    /// Are calls to be remembered?
    pub recording: AtomicBool,
    /// The deadline of calls that name none.
    pub timeout: Duration,
    link_costs: RwLock<LinkCosts>,
    /// Changes whenever the costs do.
    costs_version: AtomicU64,
    /// Communicators that this rank has numbered.
    communicators: AtomicU64,
    /// What was decided while connecting.
    pub notes: Vec<String>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a world is made of.
pub(crate) struct Parts {
    pub rank: usize,
    pub links: Vec<Option<Box<dyn Link>>>,
    pub tcp_streams: usize,
    pub hosts: Vec<String>,
    pub topology: Topology,
    pub arena: Option<Arc<Arena>>,
    pub timeout: Duration,
    pub watch: Watch,
    pub notes: Vec<String>,
    /// Ranks of this world that share this machine's processors.
    pub local_ranks: usize,
    /// The same but for shards beside their worker, in its process: of those two one waits while the other works.
    pub local_turns: usize,
    /// By rank, the process of those that run on this machine.
    pub processes: Vec<Option<u32>>,
    /// Messages take so many times as long as they should, all of them: on an emulated network that is slowed down.
    pub dilation: f64,
}

impl Parts {
    /// Ranks of this world in this process: a shard beside its worker.
    fn in_process(&self) -> Vec<usize> {
        let own = self.processes[self.rank];
        (0..self.processes.len())
            .filter(|&rank| rank == self.rank || own.is_some() && self.processes[rank] == own)
            .collect()
    }

    /// Can this rank fetch from the memory of all others of its host?
    fn fetches(&self) -> bool {
        let here = self.links.iter().enumerate().filter(|&(peer, _)| self.topology.same_host(self.rank, peer));
        here.flat_map(|(_, link)| link).all(|link| link.any_memory())
    }
}

impl World {
    pub fn new(parts: Parts) -> Result<Arc<World>, CommError> {
        let (fetches, in_process) = (parts.fetches(), parts.in_process());
        let Watch { heartbeat, heartbeat_misses, stall, on_stall } = parts.watch;
        let limits = EngineConfig::new(parts.rank, parts.links.len());
        let nudge = limits.nudge.mul_f64(parts.dilation);
        let engine = Engine::new(EngineConfig { heartbeat, heartbeat_misses, stall, nudge, ..limits });
        let mut memories = Memories::default();
        memories.local_ranks = parts.local_ranks;
        memories.arena = parts.arena.clone();
        let transports = parts.links.iter().map(|link| link.as_ref().map(|link| link.transport())).collect();
        let mut core = Core::new(engine, parts.links, memories, parts.rank);
        core.tell_last(&in_process);
        let failed = |doing, source| {
            let (rank, host) = (parts.rank, parts.hosts[parts.rank].clone());
            CommError::connect(Some(rank), host, ConnectError::Io { doing, source })
        };
        let (rank, hosts) = (parts.rank, parts.hosts.clone());
        let report = move |stall: &Stall| {
            if let Some(on_stall) = &on_stall {
                on_stall(&StallReport::new(rank, &hosts, stall));
            }
        };
        let keeps_time = core.keeps_time();
        let patience =
            if keeps_time { ASLEEP } else { patience(Place::of(parts.rank, parts.local_ranks, &parts.topology)) };
        let context = Context::new(core, patience, Box::new(report))
            .map_err(|error| failed("making an eventfd or a timer", error))?;
        let context = Arc::new(context);
        let thread = progress_thread(&context).map_err(|error| failed("starting the progress thread", error))?;
        Ok(Arc::new(World {
            context,
            programs: Programs::default(),
            rank: parts.rank,
            hosts: parts.hosts,
            topology: parts.topology,
            transports,
            tcp_streams: parts.tcp_streams,
            // The ports of an emulated network are busy for as long as it says.
            fetches: fetches && !keeps_time,
            ranks_per_processor: per_processor(parts.local_ranks),
            turns_per_processor: per_processor(parts.local_turns),
            keeps_time,
            dilation: parts.dilation,
            arena: parts.arena,
            processes: parts.processes,
            tcp_within: AtomicBool::new(false),
            recording: AtomicBool::new(false),
            timeout: parts.timeout,
            link_costs: RwLock::new(GUESS),
            costs_version: AtomicU64::new(0),
            communicators: AtomicU64::new(0),
            notes: parts.notes,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Turns a failure into an error that says who, where, what, and what next.
    pub fn error(&self, operation: String, failure: Failure) -> CommError {
        CommError::Failed {
            rank: self.rank,
            host: self.hosts[self.rank].clone(),
            operation,
            next_step: next_step(&failure),
            culprit: failure.culprit().map(|rank| Box::new(Culprit { rank, host: self.hosts[rank].clone() })),
            whereabouts: whereabouts(&failure, &self.hosts),
            failure: Box::new(failure),
        }
    }

    /// A mistake of the caller.
    pub fn usage(&self, operation: &str, what: String) -> CommError {
        CommError::Usage { rank: self.rank, host: self.hosts[self.rank].clone(), operation: operation.to_owned(), what }
    }

    /// The caller names an algorithm that is not there.
    pub fn unknown_algorithm(&self, unknown: UnknownAlgorithm) -> CommError {
        CommError::Algorithm { rank: self.rank, host: self.hosts[self.rank].clone(), unknown }
    }

    pub fn link_costs(&self) -> LinkCosts {
        *self.link_costs.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_link_costs(&self, costs: LinkCosts) {
        *self.link_costs.write().unwrap_or_else(PoisonError::into_inner) = costs;
        self.costs_version.fetch_add(1, Ordering::Release);
    }

    /// The number of times that the costs were set: who reads it first and the costs then never takes old ones for new.
    pub fn costs_version(&self) -> u64 {
        self.costs_version.load(Ordering::Acquire)
    }

    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// A number for a communicator that no rank has given before; 0 is the world. None when there are no more.
    pub fn new_communicator(&self) -> Option<u32> {
        let count = self.communicators.fetch_add(1, Ordering::Relaxed) + 1;
        let id = count.checked_mul(self.size() as u64)?.checked_add(self.rank as u64)?;
        u32::try_from(id).ok().filter(|&id| id < OperationKey::NAMED)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.size() > 1 {
            self.context.with(|core| {
                if core.engine.pending() > 0 {
                    let reason = format!("rank {} dropped its communicator with operations pending", self.rank);
                    core.fail(Failure::Cancelled { reason });
                }
                core.leave();
            });
            let patience = Patience { spins: 0, yields: 8, place: None };
            let limit = if self.context.with(|core| core.engine.failure().is_some()) { PART } else { LEAVE };
            let until = Instant::now() + limit;
            self.context.drive(patience, Some(until), &|core| match core.engine.failure() {
                Some(_) => core.parted(),
                None => core.alone(),
            });
        }
        self.context.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
    }
}

/// The cost of a link before anything was measured: a loopback TCP connection, within a factor of a few.
const GUESS: LinkCosts = LinkCosts::uniform(LinkCost { alpha: 20e-6, overhead: 5e-6, beta: 0.5e-9, gamma: 0.1e-9 });

/// Spinning pays only while every rank has a processor of its own, and even then only for a few microseconds: on a busy
/// machine two ranks may share a processor all the same, and whoever spins keeps the other from answering. Giving the
/// processor away costs a fraction of a microsecond if nobody wants it.
fn patience(place: Place) -> Patience {
    let (spins, yields) = if place.ranks <= processors() { (16, 2000) } else { (0, 500) };
    Patience { spins, yields, place: (place.ranks > 1).then_some(place) }
}

/// Runs what nobody waits for.
fn progress_thread(context: &Arc<Context>) -> std::io::Result<JoinHandle<()>> {
    let context = context.clone();
    std::thread::Builder::new().name("paceline".into()).spawn(move || context.run_in_background())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// So many of those that share this machine's processors come to each of them; at least 1.
fn per_processor(sharing: usize) -> f64 {
    (sharing as f64 / processors() as f64).max(1.0)
}

/// Where messages take their time by the clock, the processor is better left to the other ranks of the emulation.
const ASLEEP: Patience = Patience { spins: 0, yields: 2, place: None };

/// Where those are that a failure names, for the end of the sentence.
fn whereabouts(failure: &Failure, hosts: &[String]) -> String {
    let of = |ranks: &[usize]| {
        let ranks = ranks.iter().map(|&rank| format!("rank {rank} on {}", hosts[rank]));
        format!(" ({})", ranks.collect::<Vec<_>>().join(", "))
    };
    match failure {
        Failure::PeerLost { rank, noticed_by: Some(by), .. } => {
            format!(" (host {}; rank {by} is on host {})", hosts[*rank], hosts[*by])
        }
        Failure::Aborted { rank, culprit, .. } if rank == culprit => of(&[*rank]),
        Failure::Aborted { rank, culprit, .. } => of(&[*culprit, *rank]),
        Failure::Deadline { waiting, .. } if !waiting.is_empty() => {
            of(&waiting.iter().map(|waiting| waiting.rank).collect::<Vec<_>>())
        }
        _ => failure.culprit().map(|rank| format!(" (host {})", hosts[rank])).unwrap_or_default(),
    }
}

fn next_step(failure: &Failure) -> String {
    match (failure.cause(), failure.culprit()) {
        (Cause::PeerLost | Cause::PeerLeft | Cause::Cancelled, Some(rank)) => {
            format!("Look at the output of rank {rank}, then start the job again")
        }
        (Cause::PeerLost | Cause::PeerLeft | Cause::Cancelled, None) => "Form the communicator again".into(),
        (Cause::Mismatch, _) => {
            "Make all ranks call the same collectives with the same lengths, types and options in the same order, \
             or give each operation an id"
                .into()
        }
        (Cause::Deadline, _) => {
            "See what the ranks named are doing; give the call a longer timeout if they are only slow".into()
        }
        (Cause::Violation, _) => "Check that all ranks run the same version of Paceline".into(),
    }
}
