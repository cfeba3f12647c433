//! The shards' side.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, Communicator, Pending, REDUCING_THREADS_MAX, Reduction, Transport};
use paceline_compress::{Compression, Piece};
use paceline_engine::shard::{Mode as ShardMode, Phase, Shard, Task};

use crate::apply::{Apply, Optimizers, Update};
use crate::assignment::{
    Assignment, AssignmentError, History, Mode, Order, give_out, in_phase, name, refused, tell_everyone,
};
use crate::contributions::Contributions;
use crate::error::ServerError;
use crate::groups::Groups;
use crate::roles::Roles;
use crate::trace::Tracing;

/// How a shard serves.
#[derive(Clone)]
pub struct ServeOptions {
    /// As in [`CallOptions`]; all ranks must say the same.
    pub algorithm: Option<String>,
    /// As in [`CallOptions`]; all ranks must say the same.
    pub chunk_bytes: Option<usize>,
    /// Threads that add what workers push, where it lies in memory that the shard has mapped ([`Communicator::alloc`]):
    /// [`CallOptions`] has more. Each takes at least 128 KiB of a tile; shorter tiles have fewer. None: the cores of this
    /// machine over the ranks that share its memory. What a shard copies out of a worker's private memory first, one thread
    /// adds, whatever stands here. So does over TCP the thread that takes a contribution in: a shard on a host of its own
    /// adds on one core, at the rate at which one core reads from its sockets.
    pub reducing_threads: Option<u16>,
    /// How long a shard waits for the next operation of an assignment. A lost worker is noticed much sooner; this is for
    /// workers that live and do nothing. Between assignments a shard waits for as long as its workers live: they may
    /// have chosen to add up among themselves.
    pub timeout: Duration,
    /// The optimisers for [`Mode::Apply`].
    pub optimizers: Option<Arc<dyn Optimizers>>,
    /// What workers compress with, for [`Mode::Decompress`].
    pub compression: Option<Compression>,
}

/// An iteration of a large model on a slow machine is far from that.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// For as long as it takes: longer than any training.
const UNTIL_TOLD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A shard that sleeps looks again after so long, whatever happens.
const SLEEP_MAX: Duration = Duration::from_millis(100);

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            algorithm: None,
            chunk_bytes: None,
            reducing_threads: None,
            timeout: TIMEOUT,
            optimizers: None,
            compression: None,
        }
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions")
            .field("algorithm", &self.algorithm)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("reducing_threads", &self.reducing_threads)
            .field("timeout", &self.timeout)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

/// What a shard has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Assignments carried out, those included in which others served.
    pub assignments: u64,
    /// Operations that have ended.
    pub operations: u64,
    /// How long the optimiser has computed, or adding up what came compressed has taken.
    pub applying: Duration,
}

/// Serves as the shard that this rank is, until rank 0 says that it was enough ([`crate::ParameterServer::stop`]).
///
/// Between two iterations a shard's operations stand still while workers compute, which is no failure. Whoever connects a
/// rank that does nothing else leaves [`paceline_comm::Watch::on_stall`] out, as [`crate::join_beside`] does: what stands
/// still where it should not, workers report.
///
/// # Errors
/// [`ServerError::Roles`] if this rank is no shard; [`ServerError::Assignment`] if an assignment cannot be carried out;
/// [`ServerError::Comm`] if a rank is lost or there is no memory. The workers learn the reason.
pub fn serve(world: &Communicator, roles: Roles, options: &ServeOptions) -> Result<Served, ServerError> {
    tell_everyone(world, Server::form(world, roles, options).and_then(Server::run))
}

struct Server<'a> {
    world: &'a Communicator,
    roles: Roles,
    shard: usize,
    options: &'a ServeOptions,
    reducing_threads: u16,
    /// The workers, and this shard as the last rank.
    group: Communicator,
    history: History,
    /// Of the last assignment: the next one may go on with it.
    stock: Option<Stock>,
    served: Served,
    /// While somebody wants to know.
    tracing: Option<Tracing>,
}

/// An assignment that is being carried out.
struct Work {
    version: u32,
    /// Of the plan, at all shards.
    operations: usize,
    stock: Stock,
    shard: Shard,
    /// The partitions whose operations are under way.
    open: Vec<usize>,
}

/// What a plan needs on this shard.
struct Stock {
    plan: u64,
    mode: Mode,
    partitions: Vec<Partition>,
    optimizer: Option<Box<dyn Apply>>,
}

/// A partition of this shard, and its memory. An operation under way has the buffer that it works on.
struct Partition {
    operation: usize,
    elements: Range<usize>,
    priority: u32,
    sum: Option<Buffer<f32>>,
    parameters: Option<Buffer<f32>>,
    /// If they come compressed.
    contributions: Option<Contributions>,
    pending: Option<(Task, Travelling)>,
}

/// What an operation carries.
enum Travelling {
    Numbers(Pending<f32>),
    Bytes(Pending<u8>),
}

impl Travelling {
    fn is_done(&self) -> bool {
        match self {
            Travelling::Numbers(pending) => pending.is_done(),
            Travelling::Bytes(pending) => pending.is_done(),
        }
    }
}

impl<'a> Server<'a> {
    fn form(world: &'a Communicator, roles: Roles, options: &'a ServeOptions) -> Result<Server<'a>, ServerError> {
        roles.check(world.rank(), world.world_size(), true)?;
        let shard = world.rank() - roles.workers();
        let group = Groups::form(world, roles)?.shards.swap_remove(shard);
        Ok(Server {
            world,
            roles,
            shard,
            options,
            reducing_threads: options.reducing_threads.unwrap_or_else(|| share_of_cores(world)),
            // A shard belongs to its own group.
            group: group.unwrap_or_else(|| world.clone()),
            history: History::default(),
            stock: None,
            served: Served::default(),
            tracing: None,
        })
    }

    fn run(mut self) -> Result<Served, ServerError> {
        let _awake = self.world.wake_at_ends(thread::current());
        loop {
            match give_out(self.world, None, Some(UNTIL_TOLD))? {
                Order::Serve(assignment) => self.carry_out(assignment)?,
                Order::StartTrace => self.tracing = Some(Tracing::start(self.world)),
                Order::EndTrace => {
                    let tracing = self.tracing.take().unwrap_or_else(|| Tracing::start(self.world));
                    tracing.hand_over(self.world, self.shard)?;
                }
                Order::Stop => return Ok(self.served),
            }
        }
    }

    fn carry_out(&mut self, assignment: Assignment) -> Result<(), ServerError> {
        self.history.admit(&assignment, self.roles).map_err(|why| refused(self.world, why))?;
        let stock = self.stock(&assignment)?;
        self.world.barrier(&CallOptions::default())?;
        let mode = match assignment.mode {
            Mode::Aggregate => ShardMode::Aggregate,
            Mode::Apply { .. } => ShardMode::Apply,
            Mode::Decompress => ShardMode::Decompress,
        };
        let priorities: Vec<u32> = stock.partitions.iter().map(|partition| partition.priority).collect();
        let shard = Shard::new(&priorities, assignment.iterations.clone(), mode, 1);
        let (version, operations) = (assignment.plan.version, assignment.plan.operations());
        let mut work = Work { version, operations, stock, shard, open: Vec::new() };
        while !work.shard.is_done() {
            self.advance(&mut work)?;
        }
        self.stock = Some(work.stock);
        self.served.assignments += 1;
        Ok(())
    }

    /// Takes note of what has ended, and does the next thing, or sleeps if there is nothing to be done.
    fn advance(&mut self, work: &mut Work) -> Result<(), ServerError> {
        self.collect(work)?;
        match work.shard.begin() {
            Some(task) if task.phase.communicates() => self.start(task, work)?,
            Some(task) => {
                self.apply(task, work);
                work.shard.finished(task.partition);
            }
            // What has ended since the last look has left its mark: the thread does not sleep then.
            None if !work.shard.is_done() => thread::park_timeout(SLEEP_MAX),
            None => {}
        }
        Ok(())
    }

    /// The memory of an assignment: what there is, if it is more of the same, or new.
    fn stock(&mut self, assignment: &Assignment) -> Result<Stock, ServerError> {
        let plan = assignment.plan.hash();
        let before = self.stock.take();
        let same = |stock: &Stock| stock.plan == plan && stock.mode == assignment.mode;
        let continues = assignment.iterations.start > 0;
        let refuse = |why| refused(self.world, why);
        let optimizer = match &assignment.mode {
            _ if continues && before.as_ref().is_some_and(same) => {
                return before.ok_or(refuse(AssignmentError::Differs));
            }
            Mode::Aggregate | Mode::Decompress => None,
            Mode::Apply { .. } if continues => {
                return Err(refuse(AssignmentError::NothingToGoOnWith(assignment.iterations.start)));
            }
            Mode::Apply { optimizer } => {
                let known = self.options.optimizers.as_deref();
                let known = known.ok_or_else(|| refuse(AssignmentError::NoOptimizers))?;
                let made = known.make(optimizer, &assignment.plan, self.shard);
                Some(made.map_err(|what| refuse(AssignmentError::Optimizer(what)))?)
            }
        };
        let compression = match (&assignment.mode, &self.options.compression) {
            (Mode::Decompress, None) => return Err(refuse(AssignmentError::NoCompressor)),
            (Mode::Decompress, known) => known.as_ref(),
            _ => None,
        };
        drop(before);
        let mut partitions = Vec::new();
        for (operation, (bucket, partition)) in assignment.plan.partitions().enumerate() {
            if partition.shard != Some(self.shard) {
                continue;
            }
            let alloc = || self.world.alloc(partition.elements.len());
            let piece = Piece { elements: partition.elements.len(), operation, rank: self.world.rank() };
            let contributions = compression.map(|it| Contributions::new(&self.group, it, &piece));
            partitions.push(Partition {
                operation,
                elements: partition.elements.clone(),
                priority: assignment.plan.buckets[bucket].priority,
                sum: Some(alloc()?),
                parameters: if optimizer.is_some() { Some(alloc()?) } else { None },
                contributions: contributions.transpose()?,
                pending: None,
            });
        }
        Ok(Stock { plan, mode: assignment.mode.clone(), partitions, optimizer })
    }

    /// Takes back the buffers of operations that have ended. Linear in those that are under way.
    fn collect(&mut self, work: &mut Work) -> Result<(), ServerError> {
        let Work { stock, shard, open, .. } = work;
        let mut next = 0;
        while let Some(&index) = open.get(next) {
            let partition = &mut stock.partitions[index];
            let Some((task, pending)) = partition.pending.take_if(|(_, pending)| pending.is_done()) else {
                next += 1;
                continue;
            };
            open.swap_remove(next);
            match (pending, &mut partition.contributions) {
                (Travelling::Numbers(pending), compressed) => match task.phase {
                    Phase::Pull if compressed.is_some() => partition.sum = Some(pending.wait()?),
                    Phase::PushPull | Phase::Push => partition.sum = Some(pending.wait()?),
                    Phase::Initialise | Phase::Pull => partition.parameters = Some(pending.wait()?),
                    Phase::Apply => unreachable!("applying is no operation of the communicator"),
                },
                (Travelling::Bytes(pending), Some(contributions)) => contributions.take_in(pending)?,
                (Travelling::Bytes(_), None) => unreachable!("only contributions are bytes"),
            }
            self.served.operations += 1;
            shard.finished(index);
        }
        Ok(())
    }

    fn start(&self, task: Task, work: &mut Work) -> Result<(), ServerError> {
        let partition = &mut work.stock.partitions[task.partition];
        let options = CallOptions {
            algorithm: self.options.algorithm.clone(),
            chunk_bytes: self.options.chunk_bytes,
            reducing_threads: Some(self.reducing_threads),
            timeout: Some(self.options.timeout),
            priority: partition.priority,
            operation: Some(name(work.operations, task.iteration, partition.operation)),
            plan_version: work.version,
            ..CallOptions::default()
        };
        let options = in_phase(options, task.phase);
        let here = self.group.rank();
        let (sum, parameters) = (&mut partition.sum, &mut partition.parameters);
        let pending = match (task.phase, &mut partition.contributions) {
            (Phase::Push, Some(contributions)) => {
                let pending = contributions.start(&self.group, &options)?;
                partition.pending = Some((task, Travelling::Bytes(pending)));
                work.open.push(task.partition);
                return Ok(());
            }
            (Phase::PushPull, _) => self.group.start_push_pull(taken(sum), here, Reduction::Sum, &options),
            (Phase::Push, None) => self.group.start_push(taken(sum), here, Reduction::Sum, &options),
            (Phase::Initialise, _) => self.group.start_broadcast(taken(parameters), 0, &options),
            (Phase::Pull, None) => self.group.start_broadcast(taken(parameters), here, &options),
            (Phase::Pull, Some(_)) => self.group.start_broadcast(taken(sum), here, &options),
            (Phase::Apply, _) => unreachable!("applying is no operation of the communicator"),
        };
        partition.pending = Some((task, Travelling::Numbers(pending?)));
        work.open.push(task.partition);
        Ok(())
    }

    fn apply(&mut self, task: Task, work: &mut Work) {
        let stock = &mut work.stock;
        let Partition { operation, elements, sum, parameters, contributions, .. } =
            &mut stock.partitions[task.partition];
        let started = Instant::now();
        match (contributions, &mut stock.optimizer, sum, parameters) {
            (Some(contributions), _, Some(sum), _) => contributions.add_up(sum),
            (None, Some(optimizer), Some(sum), Some(parameters)) => {
                let update = Update { operation: *operation, elements: elements.clone(), iteration: task.iteration };
                optimizer.apply(&update, sum, parameters);
            }
            _ => {}
        }
        self.served.applying += started.elapsed();
        if let Some(tracing) = &mut self.tracing {
            let named = name(work.operations, task.iteration, *operation);
            let bytes = elements.len() * size_of::<f32>();
            tracing.applied(work.version, named, bytes, self.world.clock_at(started), self.world.clock());
        }
    }
}

/// This machine's cores over the ranks that share its memory with this one, whose contributions several threads can add.
fn share_of_cores(world: &Communicator) -> u16 {
    let here = (0..world.world_size()).filter(|&rank| world.transport(rank) != Some(Transport::Tcp)).count();
    threads_of_each(thread::available_parallelism().map_or(1, usize::from), here)
}

/// Of so many cores, for each of so many ranks.
fn threads_of_each(cores: usize, ranks: usize) -> u16 {
    (cores / ranks.max(1)).clamp(1, REDUCING_THREADS_MAX) as u16
}

/// The buffer of a partition that nothing is open for.
fn taken(buffer: &mut Option<Buffer<f32>>) -> Buffer<f32> {
    buffer.take().unwrap_or_else(|| unreachable!("a partition is in one phase at a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cores() {
        let cases = [(1, 1, 1), (16, 4, 4), (16, 5, 3), (2, 3, 1), (8, 0, 8), (1000, 1, REDUCING_THREADS_MAX as u16)];
        for (cores, ranks, threads) in cases {
            assert_eq!(threads_of_each(cores, ranks), threads, "{cores} cores, {ranks} ranks");
        }
    }
}
