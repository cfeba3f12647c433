//! The workers' side.

use std::mem::discriminant;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, ClockOffset, CommError, Communicator, Element, Pending, Reduction};
use paceline_engine::shard::Phase;

use crate::assignment::{Assignment, AssignmentError, History, Order, give_out, in_phase, refused, tell_everyone};
use crate::error::ServerError;
use crate::groups::Groups;
use crate::roles::Roles;
use crate::trace::{self, ShardTrace};

/// A worker's connection to the shards.
///
/// Rank 0 decides what they do ([`ParameterServer::assign`]), and in the end lets them go ([`ParameterServer::stop`]); the
/// other workers take part. Shards whose workers leave without a word end with an error.
#[derive(Debug)]
pub struct ParameterServer {
    world: Communicator,
    roles: Roles,
    workers: Communicator,
    /// By shard: all workers, then the shard.
    shards: Vec<Communicator>,
    /// Of what was given out.
    history: Mutex<History>,
}

impl ParameterServer {
    /// Connects to the shards: the workers' counterpart of [`crate::serve`], in which the shards take part.
    ///
    /// # Errors
    /// [`ServerError::Roles`] if the roles do not fit the world or this rank; [`ServerError::Comm`] if a rank is lost.
    pub fn connect(world: &Communicator, roles: Roles) -> Result<ParameterServer, ServerError> {
        let checked = roles.check(world.rank(), world.world_size(), false).map_err(ServerError::Roles);
        tell_everyone(world, checked)?;
        let groups = Groups::form(world, roles)?;
        // A worker belongs to all of them.
        let workers = groups.workers.unwrap_or_else(|| world.clone());
        let shards = groups.shards.into_iter().flatten().collect();
        Ok(ParameterServer { world: world.clone(), roles, workers, shards, history: Mutex::default() })
    }

    /// Who works and who serves.
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// The workers without the shards, with the ranks that they have in the world.
    pub fn workers(&self) -> &Communicator {
        &self.workers
    }

    /// The workers and one shard, which is the last rank: where its operations run.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard(&self, shard: usize) -> &Communicator {
        &self.shards[shard]
    }

    /// Tells the shards what to do, and returns when all of them are ready. All workers call it, with the same assignment.
    ///
    /// # Errors
    /// [`ServerError::Assignment`] if it makes no sense, or workers disagree; [`ServerError::Comm`] if a shard cannot do it
    /// (its words say why) or a rank is lost.
    pub fn assign(&self, assignment: &Assignment) -> Result<(), ServerError> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = history.admit(assignment, self.roles);
        let given = admitted.map_err(|why| refused(&self.world, why)).and_then(|()| {
            let order = Order::Serve(assignment.clone());
            match give_out(&self.world, Some(&order), None)? {
                Order::Serve(given) if given == *assignment => Ok(()),
                _ => Err(refused(&self.world, AssignmentError::Differs)),
            }
        });
        tell_everyone(&self.world, given)?;
        // The shards have their memory.
        Ok(self.world.barrier(&CallOptions::default())?)
    }

    /// Lets the shards note what they do in the assignments that follow; before it, or after
    /// [`ParameterServer::end_trace`], that costs them a branch. All workers call it, after the last iteration of the
    /// assignment before.
    ///
    /// # Errors
    /// [`ServerError::Comm`] if a rank is lost.
    pub fn start_trace(&self) -> Result<(), ServerError> {
        self.order(&Order::StartTrace)
    }

    /// What the shards have noted since [`ParameterServer::start_trace`], at worker 0 and nowhere else; and the
    /// offset of this worker's clock from worker 0's. All workers call it, after the last iteration of the assignment before.
    ///
    /// # Errors
    /// As [`ParameterServer::start_trace`].
    pub fn end_trace(&self) -> Result<(ClockOffset, Vec<ShardTrace>), ServerError> {
        self.order(&Order::EndTrace)?;
        tell_everyone(&self.world, trace::take(&self.world, self.roles))
    }

    /// Lets the shards go, after the last iteration of the last assignment. All workers call it.
    ///
    /// # Errors
    /// [`ServerError::Comm`] if a rank is lost.
    pub fn stop(&self) -> Result<(), ServerError> {
        self.order(&Order::Stop)
    }

    /// Gives out what is no assignment.
    fn order(&self, order: &Order) -> Result<(), ServerError> {
        let given = give_out(&self.world, Some(order), None).and_then(|given| {
            let same = discriminant(&given) == discriminant(order);
            if same { Ok(()) } else { Err(refused(&self.world, AssignmentError::Differs)) }
        });
        tell_everyone(&self.world, given)
    }

    /// Starts to push a partition's gradient and to pull the sum of all workers', which takes its place, under
    /// [`crate::Mode::Aggregate`]. `options` name the operation: [`Assignment::options`].
    ///
    /// # Errors
    /// As [`Communicator::start_push_pull`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn start_push_pull(
        &self,
        shard: usize,
        gradient: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<Pending<f32>, CommError> {
        self.shards[shard].start_push_pull(gradient, self.roles.workers(), Reduction::Sum, options)
    }

    /// Starts to push a partition's gradient and to pull the parameters that the shard makes of it, under
    /// [`crate::Mode::Apply`].
    ///
    /// # Errors
    /// As [`Communicator::start_push_pull`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn start_update(
        &self,
        shard: usize,
        gradient: Buffer<f32>,
        parameters: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<PendingUpdate, CommError> {
        let (group, root) = (&self.shards[shard], self.roles.workers());
        let in_phase = |phase| in_phase(options.clone(), phase);
        let push = group.start_push(gradient, root, Reduction::Sum, &in_phase(Phase::Push))?;
        let pull = group.start_broadcast(parameters, root, &in_phase(Phase::Pull))?;
        Ok(PendingUpdate { push, pull })
    }

    /// Starts to push what a partition's gradient was compressed to, and to pull the sum of what all workers' stand for, under
    /// [`crate::Mode::Decompress`]. What `sum` holds is lost.
    ///
    /// # Errors
    /// As [`Communicator::start_gather`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn start_compressed(
        &self,
        shard: usize,
        compressed: Buffer<u8>,
        sum: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<PendingUpdate<u8>, CommError> {
        let (group, root) = (&self.shards[shard], self.roles.workers());
        let in_phase = |phase| in_phase(options.clone(), phase);
        let push = group.start_gather(compressed, group.alloc(0)?, root, &in_phase(Phase::Push))?;
        let pull = group.start_broadcast(sum, root, &in_phase(Phase::Pull))?;
        Ok(PendingUpdate { push, pull })
    }

    /// Starts to give a partition's parameters of worker 0 to the shard, and to all workers: once for each partition,
    /// before iteration 0 of an assignment with [`crate::Mode::Apply`]. `options` are those of iteration 0.
    ///
    /// # Errors
    /// As [`Communicator::start_broadcast`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn start_initialise(
        &self,
        shard: usize,
        parameters: Buffer<f32>,
        options: &CallOptions,
    ) -> Result<Pending<f32>, CommError> {
        self.shards[shard].start_broadcast(parameters, 0, &in_phase(options.clone(), Phase::Initialise))
    }
}

/// A push and the pull that follows it.
#[derive(Debug)]
#[must_use = "what was pulled comes from `wait`"]
pub struct PendingUpdate<T: Element = f32> {
    push: Pending<T>,
    pull: Pending<f32>,
}

impl<T: Element> PendingUpdate<T> {
    /// Is what was pulled here, or has it failed?
    pub fn is_done(&self) -> bool {
        self.pull.is_done() && self.push.is_done()
    }

    /// Waits at most so long for what is pulled.
    ///
    /// # Errors
    /// [`CommError::NotDone`] if it is still not here; otherwise as [`PendingUpdate::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        let began = Instant::now();
        self.pull.wait_timeout(timeout)?;
        self.push.wait_timeout(timeout.saturating_sub(began.elapsed()))
    }

    /// Waits for what is pulled. Gives both buffers back: what was pushed, as it was; and the parameters, or the sum.
    ///
    /// # Errors
    /// If an operation failed.
    pub fn wait(self) -> Result<(Buffer<T>, Buffer<f32>), CommError> {
        // A push works in place, what is gathered elsewhere is an input.
        let (input, output) = self.push.wait_both()?;
        Ok((input.unwrap_or(output), self.pull.wait()?))
    }
}
