//! The gradients' way between the ranks: arena, buckets, operations.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_comm::CommError;
use paceline_plan::{Plan, TensorId};
use paceline_tune::Policy;

mod carrier;
mod changes;
mod coder;
mod followed;
mod operations;
mod own_times;
mod places;
mod release;
mod start_up;
mod tunable;
mod tuning;

pub(crate) use carrier::{Call, Carrier, Travelling};
pub(crate) use start_up::NotedStartUp;
pub(crate) use tunable::Job;

use crate::backend::{GradientSink, SinkClosed};
use crate::error::{TrainError, WhileTraining};
use crate::executed::{AllReduce, Change};
use crate::peers::Peers;
use crate::tuning::{FollowedOperations, TuneOptions, TuningNews};
use changes::Changes;
use followed::Followed;
use operations::{Operations, Purpose};
pub(crate) use places::Places;
use release::ReleaseThread;
use start_up::StartUp;
use tuning::Tuning;

/// The gradients of one rank. They lie in one arena in plan order; an operation (a partition of a bucket) is a range of it.
///
/// An update is one or more passes of forward and backward. Each gradient is weighted and copied (first pass) or added
/// (later passes) into the arena as backward announces it. In the last pass a bucket's operations set off as soon as its
/// last gradient is in, while backward goes on, in the order and within the credit that the plan's dispatcher allows. The
/// sum of the ranks' contributions then is the mean over the joined batch, as the weights are shares of it.
pub(crate) struct Exchange {
    /// Before the operations: it uses them.
    _release: Option<ReleaseThread>,
    operations: Arc<Operations>,
    places: Places,
    plan: Plan,
    /// Servers have the parameters, and what comes back are new ones, not sums.
    applies: bool,
    /// What changes how all-reduces are done.
    changes: Changes,
    /// Those that have changed so far, if somebody wants to know; iterations count from the first one under this plan.
    changed: Option<Vec<Change>>,
    /// Iterations that have been prepared.
    assigned: u64,
    pass: Pass,
    /// A gradient of the pass has been announced.
    announced: bool,
    /// All operations of the last update have arrived.
    drained: bool,
    /// When backward began, and how long after that each tensor was announced.
    backward_began: Instant,
    ready: Vec<Duration>,
    /// The trainer's thread in here, without copying gradients, starting operations, waiting for them (decompressing included) and
    /// taking their results.
    scheduling: Duration,
    waiting: Duration,
    failure: Option<CommError>,
}

/// What the exchange of gradients has cost the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    /// In the communicator: starting operations, waiting for them and taking their results, on the trainer's thread; compressing
    /// and decompressing, too.
    pub(crate) in_communicator: Duration,
    /// Deciding what travels when, on all threads.
    pub(crate) scheduling: Duration,
}

/// One pass of forward and backward within an update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// This rank's share of the samples of the update.
    pub(crate) weight: f32,
    /// Whether the arena holds nothing of this update yet.
    pub(crate) first: bool,
    /// Whether the gradients set off.
    pub(crate) last: bool,
}

/// An artificial start-up time per operation, for comparisons with systems that have one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Handicap {
    /// Before each operation.
    pub(crate) start_up: Option<Duration>,
    /// How many times slower than real everything runs.
    pub(crate) slowed: f64,
}

/// When all-reduces begin to be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Under this plan.
    Now,
    /// When somebody says so ([`Exchange::tune_calls`]): other plans are tried first.
    WhenThePlanStands,
}

impl Exchange {
    /// `sizes`: elements of each tensor. `chosen`: by operation, how its all-reduce is to be done; empty to choose now.
    pub(crate) fn new(
        carrier: Carrier,
        plan: Plan,
        chosen: &[AllReduce],
        sizes: &[usize],
        handicap: &Handicap,
    ) -> Result<Self, TrainError> {
        let workers = carrier.peers().workers().clone();
        // All-to-all operations follow each other; servers work on many at once.
        let alone = plan.shards == 0;
        let start_up = handicap.start_up.map(|each| StartUp::new(each.mul_f64(handicap.slowed), alone));
        let applies = carrier.applies();
        let operations =
            Operations::new(carrier, &plan, chosen, start_up).while_training("preparing the gradients' memory")?;
        let operations = Arc::new(operations);
        let deferred = operations.lock().deferred;
        let release = deferred.then(|| ReleaseThread::start(operations.clone(), workers, handicap.slowed));
        let no_thread = |error: std::io::Error| TrainError::Threads { threads: 1, message: error.to_string() };
        Ok(Exchange {
            _release: release.transpose().map_err(no_thread)?,
            operations,
            places: Places::new(&plan, sizes),
            backward_began: Instant::now(),
            ready: vec![Duration::ZERO; sizes.len()],
            plan,
            applies,
            changes: Changes::Never,
            changed: None,
            assigned: 0,
            pass: Pass::default(),
            announced: false,
            drained: true,
            scheduling: Duration::ZERO,
            waiting: Duration::ZERO,
            failure: None,
        })
    }

    /// Prepares the next `iterations`, of which the servers must know. All workers call it. Whether the servers now want
    /// the parameters ([`Exchange::initialise`]).
    pub(crate) fn assign(&mut self, iterations: usize) -> Result<bool, TrainError> {
        let (first, next) = (self.assigned == 0, self.assigned + iterations as u64);
        let carrier = self.operations.lock().carrier().clone();
        carrier.assign(&self.plan, self.assigned..next)?;
        self.assigned = next;
        Ok(self.applies && first)
    }

    /// Takes in a parameter for the servers; of a replay, which has no values, zeros.
    pub(crate) fn place(&mut self, tensor: TensorId, values: &[f32]) {
        for piece in self.places.of(tensor) {
            let range = piece.start..piece.start + piece.within.len();
            self.operations.lend_parameters(piece.operation, piece.within.clone(), |part| match values.get(range) {
                Some(values) => part.copy_from_slice(values),
                None => part.fill(0.0),
            });
        }
    }

    /// Gives worker 0's parameters to the servers. All workers call it, with all parameters in place.
    pub(crate) fn initialise(&mut self) -> Result<(), TrainError> {
        self.operations.initialise().while_training("giving the parameters to the servers")
    }

    /// Do servers have the parameters?
    pub(crate) fn applies(&self) -> bool {
        self.applies
    }

    /// Goes on under another plan, carried by the same or by something else. All operations have been waited for, and all sums
    /// read.
    pub(crate) fn replan(
        &mut self,
        carrier: Option<Carrier>,
        plan: Plan,
        chosen: &[AllReduce],
        sizes: &[usize],
        handicap: &Handicap,
    ) -> Result<(), TrainError> {
        self._release = None;
        // Whoever asks for them knows of no plans.
        let costs = self.take_costs();
        // The memory is not needed twice.
        let before = self.operations.lock().end();
        let carrier = carrier.unwrap_or(before);
        let (changes, keeps) = (mem::take(&mut self.changes), self.changed.is_some());
        *self = Exchange::new(carrier, plan, chosen, sizes, handicap)?;
        self.changed = keeps.then(Vec::new);
        (self.waiting, self.scheduling) = (costs.in_communicator, costs.scheduling);
        match changes {
            Changes::Tuned(tuning) | Changes::Idle(tuning) => self.tune_with(*tuning),
            Changes::Followed(followed) => self.follow_with(*followed),
            waiting @ Changes::Waiting(_) => {
                self.changes = waiting;
                Ok(())
            }
            // They were those of the plan before.
            Changes::Never | Changes::Given(_) => Ok(()),
        }
    }

    /// Tunes all-reduces, under this plan or the one that stands, and under later ones. All ranks call it. Servers add up in one way only, and one rank alone does not communicate: then
    /// nothing happens.
    pub(crate) fn tune(&mut self, options: &TuneOptions, job: Job, begin: Begin) -> Result<(), TrainError> {
        let carrier = self.operations.lock().carrier().clone();
        let workers = carrier.peers().workers();
        if workers.world_size() == 1 {
            return Ok(());
        }
        let tuning = Tuning::new(workers, carrier.algorithm(), job, options);
        if begin == Begin::WhenThePlanStands {
            self.changes = Changes::Waiting(Box::new(tuning));
            return Ok(());
        }
        self.tune_with(tuning)
    }

    /// The plan stays as it is: what has waited for that begins to tune. All operations have been waited for; all ranks call it.
    pub(crate) fn tune_calls(&mut self) -> Result<(), TrainError> {
        match mem::take(&mut self.changes) {
            Changes::Waiting(tuning) => self.tune_with(*tuning),
            other => {
                self.changes = other;
                Ok(())
            }
        }
    }

    fn tune_with(&mut self, mut tuning: Tuning) -> Result<(), TrainError> {
        let options = self.operations.lock().options();
        let carrier = self.operations.lock().carrier().clone();
        self.changes = match carrier.peers() {
            Peers::AllToAll(_) => {
                tuning.replanned(&self.plan, carrier.algorithm(), options)?;
                tuning.rehearse()?;
                Changes::Tuned(Box::new(tuning))
            }
            Peers::Servers(_) => {
                tuning.rest();
                Changes::Idle(Box::new(tuning))
            }
        };
        Ok(())
    }

    /// Has all-reduces follow a policy from here on, under this plan and later ones. As [`Exchange::tune`].
    pub(crate) fn follow(&mut self, policy: &Policy, job: Job) -> Result<(), TrainError> {
        let carrier = self.operations.lock().carrier().clone();
        let workers = carrier.peers().workers();
        if workers.world_size() == 1 {
            return Ok(());
        }
        self.follow_with(Followed::new(workers, job, policy))
    }

    fn follow_with(&mut self, mut followed: Followed) -> Result<(), TrainError> {
        let options = self.operations.lock().options();
        let carrier = self.operations.lock().carrier().clone();
        match carrier.peers() {
            Peers::AllToAll(_) => followed.replanned(&self.plan, carrier.algorithm(), options)?,
            Peers::Servers(_) => followed.rest(),
        }
        self.changes = Changes::Followed(Box::new(followed));
        Ok(())
    }

    /// Changes all-reduces as an earlier run did under this plan; iterations count from its first one.
    pub(crate) fn repeat(&mut self, changes: Vec<Change>) -> Result<(), TrainError> {
        let carrier = self.operations.lock().carrier().clone();
        let mut all = changes.iter().flat_map(|change| &change.all_reduces);
        let possible = all.try_for_each(|it| carrier.check(&it.algorithm, it.chunk_bytes));
        possible.while_training("preparing all-reduces that change")?;
        self.changes = Changes::Given(changes.into());
        Ok(())
    }

    /// Keeps what changes from here on, for [`Exchange::take_changes`].
    pub(crate) fn keep_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// What has changed under this plan; iterations count from its first one.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.changed.as_mut().map(mem::take).unwrap_or_default()
    }

    /// What tunes, if something does.
    pub(crate) fn tuning(&mut self) -> Option<&mut Tuning> {
        self.changes.tuning_mut()
    }

    /// What has learned, even if under this plan there is nothing to tune.
    pub(crate) fn learned(&self) -> Option<&Tuning> {
        self.changes.learned()
    }

    /// What a tuner has found out, or what a policy says, since this was last asked.
    pub(crate) fn take_news(&mut self) -> Vec<TuningNews> {
        self.changes.take_news()
    }

    /// How much of an iteration a policy decides, if one is followed.
    pub(crate) fn followed(&self) -> Option<FollowedOperations> {
        self.changes.followed()
    }

    /// The plan, and by operation how its all-reduce is done.
    pub(crate) fn plan(&self) -> (Plan, Vec<AllReduce>) {
        (self.plan.clone(), self.operations.lock().all_reduces())
    }

    /// Announces the pass whose gradients come next. The sums of the last update can still be waited for and read, until
    /// the first gradient is announced.
    pub(crate) fn begin(&mut self, pass: Pass) {
        self.pass = pass;
        self.announced = false;
        self.backward_began = Instant::now();
    }

    /// Announces that this rank has no sample in the pass: every gradient is zeros.
    pub(crate) fn nothing(&mut self) -> Result<(), SinkClosed> {
        (0..self.places.tensors()).try_for_each(|tensor| self.ready(tensor, None))
    }

    /// After the last pass: waits until the sums of a tensor's gradient have arrived, or, if the plan does not overlap
    /// communication with forward, those of all tensors. For how long.
    pub(crate) fn wait(&mut self, tensor: TensorId) -> Result<Duration, CommError> {
        let (began, in_communicator) = (Instant::now(), self.in_communicator());
        let mut held_up = Duration::ZERO;
        if self.plan.forward_overlap {
            for piece in self.places.of(tensor) {
                held_up += self.operations.wait(piece.operation)?;
            }
        } else if !self.drained {
            for operation in 0..self.plan.operations() {
                held_up += self.operations.wait(operation)?;
            }
            self.drained = true;
        }
        self.waiting += held_up;
        self.charge(began, held_up + (self.in_communicator() - in_communicator));
        Ok(held_up)
    }

    /// Waits until all operations have arrived.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), CommError> {
        (0..self.plan.operations()).try_for_each(|operation| self.operations.wait(operation).map(drop))
    }

    /// Lends the sums of a tensor's gradient, which have been waited for, piece by piece with the first element's number; or
    /// the new parameters, where servers have them.
    pub(crate) fn read(&self, tensor: TensorId, mut act: impl FnMut(usize, &mut [f32])) {
        for piece in self.places.of(tensor) {
            let (operation, within) = (piece.operation, piece.within.clone());
            let act = |part: &mut [f32]| act(piece.start, part);
            if self.applies {
                self.operations.lend_parameters(operation, within, act);
            } else {
                self.operations.lend(operation, within, Purpose::Read, act);
            }
        }
    }

    /// When backward of the last pass began, and by tensor how long after that its gradient was announced.
    pub(crate) fn backward(&self) -> (Instant, &[Duration]) {
        (self.backward_began, &self.ready)
    }

    /// The iteration whose gradients were announced last, counted from 0 as the names of operations are.
    pub(crate) fn iteration(&self) -> u64 {
        self.operations.lock().iteration()
    }

    /// Notes artificial start-ups from here on, or no more. Those noted so far.
    pub(crate) fn note_start_ups(&self, note: bool) -> Vec<NotedStartUp> {
        self.operations.lock().start_up_mut().map(|start_up| start_up.note(note)).unwrap_or_default()
    }

    /// Why the sink closed, if it did.
    pub(crate) fn take_failure(&mut self) -> Option<CommError> {
        self.failure.take()
    }

    /// What it has cost since this was last asked.
    pub(crate) fn take_costs(&mut self) -> Costs {
        let mut state = self.operations.lock();
        let (in_communicator, scheduling) = (mem::take(&mut state.in_communicator), mem::take(&mut state.scheduling));
        Costs {
            in_communicator: mem::take(&mut self.waiting) + in_communicator,
            scheduling: mem::take(&mut self.scheduling) + scheduling,
        }
    }

    /// Before the first gradient of an update: all operations of the last one have arrived.
    fn begin_iteration(&mut self) -> Result<(), SinkClosed> {
        let (began, iteration) = (Instant::now(), self.operations.lock().iterations() as usize);
        let changed = self.changes.before_iteration(&self.operations);
        let all_reduces = changed.map_err(|failure| {
            self.failure = Some(failure);
            SinkClosed
        })?;
        if let Some(kept) = self.changed.as_mut().filter(|_| !all_reduces.is_empty()) {
            kept.push(Change { iteration, all_reduces });
        }
        if self.changes.tuning().is_some() {
            // What the ranks have told each other is communication, and delays backward.
            self.waiting += began.elapsed();
            self.backward_began += began.elapsed();
        }
        self.operations.begin();
        self.drained = false;
        Ok(())
    }

    /// Takes in a gradient that `write` puts in its place, piece by piece.
    fn take_in(&mut self, tensor: TensorId, mut write: impl FnMut(usize, &mut [f32])) -> Result<(), SinkClosed> {
        if !mem::replace(&mut self.announced, true) && self.pass.last {
            self.begin_iteration()?;
        }
        let began = Instant::now();
        self.ready[tensor] = began - self.backward_began;
        let mut copying = Duration::ZERO;
        for piece in self.places.of(tensor) {
            self.operations.lend(piece.operation, piece.within.clone(), Purpose::Gather, |part| {
                let began = Instant::now();
                write(piece.start, part);
                copying += began.elapsed();
            });
        }
        let ready = if self.pass.last { self.operations.ready(tensor) } else { Ok(Duration::ZERO) };
        self.charge(began, copying + ready.as_ref().copied().unwrap_or_default());
        ready.map(drop).map_err(|failure| {
            self.failure = Some(failure);
            SinkClosed
        })
    }

    fn in_communicator(&self) -> Duration {
        self.operations.lock().in_communicator
    }

    /// Counts the time since `began` as scheduling, without what was something else.
    fn charge(&mut self, began: Instant, other: Duration) {
        self.scheduling += began.elapsed().saturating_sub(other);
    }
}

impl GradientSink for Exchange {
    fn ready(&mut self, tensor: TensorId, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        let pass = self.pass;
        self.take_in(tensor, |start, place| {
            store(gradient.map(|gradient| &gradient[start..start + place.len()]), pass, place);
        })
    }

    fn write(&mut self, tensor: TensorId, write: &mut dyn FnMut(usize, &mut [f32])) -> Result<bool, SinkClosed> {
        self.take_in(tensor, write).map(|()| true)
    }

    fn backward_begins(&mut self) {
        self.backward_began = Instant::now();
    }
}

/// The one copy of a gradient: weighted, into its place.
fn store(gradient: Option<&[f32]>, Pass { weight, first, .. }: Pass, place: &mut [f32]) {
    match gradient {
        Some(gradient) if first => place.iter_mut().zip(gradient).for_each(|(sum, value)| *sum = weight * value),
        Some(gradient) => place.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += weight * value),
        None if first => place.fill(0.0),
        None => {}
    }
}

#[cfg(test)]
mod tests;
