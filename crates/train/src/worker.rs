//! One worker's iterations, whoever counts them: passes of forward and backward, and the updates between them.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_comm::Communicator;
use paceline_plan::Plan;
use paceline_tune::learner::Lesson;

use crate::backend::{Backend, BackendError, ForwardGate, SharedSink, Slot};
use crate::data::Batch;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::{Carrier, Costs, Exchange, Handicap, NotedStartUp, Pass};
use crate::executed::{AllReduce, Change, Stage};
use crate::learning_rate::LearningRate;
use crate::optimizer::Optimizer;
use crate::recording::{self, PassRecord};
use crate::sync::lock;
use crate::tuning::{FollowedOperations, TuningNews, TuningReport};
use crate::updates::{Failure, Updates};

/// What computes and communicates on one rank.
pub(crate) struct Worker {
    rank: usize,
    pub(crate) backend: Box<dyn Backend>,
    exchange: Arc<Mutex<Exchange>>,
    updates: Updates,
    phases: Phases,
    /// While passes are recorded: those that were.
    record: Option<Vec<PassRecord>>,
}

/// How long a worker has computed what, over some passes; without waiting for communication.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phases {
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    pub(crate) update: Duration,
    pub(crate) passes: usize,
    /// By tensor: from the start of backward until its gradient was announced.
    pub(crate) ready: Vec<Duration>,
}

impl Phases {
    /// Adds the times of other passes.
    pub(crate) fn add(&mut self, other: &Phases) {
        self.forward += other.forward;
        self.backward += other.backward;
        self.update += other.update;
        self.passes += other.passes;
        self.ready.resize(other.ready.len().max(self.ready.len()), Duration::ZERO);
        self.ready.iter_mut().zip(&other.ready).for_each(|(sum, ready)| *sum += *ready);
    }
}

impl Worker {
    pub(crate) fn new(
        workers: &Communicator,
        backend: Box<dyn Backend>,
        exchange: Exchange,
        optimizer: Box<dyn Optimizer>,
        learning_rate: LearningRate,
        clip_norm: Option<f32>,
    ) -> Worker {
        let exchange = Arc::new(Mutex::new(exchange));
        let parameters = backend.parameters().len();
        let updates = Updates::new(exchange.clone(), optimizer, learning_rate, clip_norm, parameters);
        Worker { rank: workers.rank(), backend, exchange, updates, phases: Phases::default(), record: None }
    }

    /// Prepares the next `iterations` updates. All workers call it.
    pub(crate) fn assign(&mut self, iterations: usize) -> Result<(), TrainError> {
        self.interrupt();
        if !lock(&self.exchange).assign(iterations)? {
            return Ok(());
        }
        for parameter in 0..self.backend.parameters().len() {
            let place = &mut |values: &mut [f32]| lock(&self.exchange).place(parameter, values);
            let placed = self.backend.access(Slot::Parameter(parameter), place);
            placed.map_err(|source| TrainError::Backend { rank: self.rank, source })?;
        }
        lock(&self.exchange).initialise()
    }

    /// Finishes the update that is on its way, and goes on under another plan, carried by the same or by something else.
    pub(crate) fn replan(
        &mut self,
        carrier: Option<Carrier>,
        plan: Plan,
        chosen: &[AllReduce],
        sizes: &[usize],
        handicap: &Handicap,
    ) -> Result<(), TrainError> {
        self.finish()?;
        lock(&self.exchange).replan(carrier, plan, chosen, sizes, handicap)
    }

    /// Finishes the update that is on its way, and has all-reduces tuned from here on, if that has waited for the plan.
    pub(crate) fn tune_calls(&mut self) -> Result<(), TrainError> {
        self.finish()?;
        lock(&self.exchange).tune_calls()
    }

    /// What is carried out from an iteration on.
    pub(crate) fn stage(&self, first_iteration: usize) -> Stage {
        let (plan, all_reduces) = lock(&self.exchange).plan();
        Stage { first_iteration, plan, all_reduces, changes: Vec::new() }
    }

    /// What has changed in a stage since it began.
    pub(crate) fn take_changes(&mut self, first_iteration: usize) -> Vec<Change> {
        let changes = lock(&self.exchange).take_changes();
        let counted = |change: Change| Change { iteration: first_iteration + change.iteration, ..change };
        changes.into_iter().map(counted).collect()
    }

    /// Changes all-reduces as an earlier run did in the stage that begins.
    pub(crate) fn repeat(&mut self, changes: &[Change], first_iteration: usize) -> Result<(), TrainError> {
        lock(&self.exchange).repeat(counted_from(changes, first_iteration))
    }

    /// What happens now is no part of an iteration like others.
    fn interrupt(&mut self) {
        if let Some(tuning) = lock(&self.exchange).tuning() {
            tuning.interrupt();
        }
    }

    /// Is there a tuner for which something is open? The same on all ranks.
    pub(crate) fn is_learning(&self) -> bool {
        lock(&self.exchange).tuning().is_some_and(|tuning| tuning.is_learning())
    }

    /// What a tuner has found out since this was last asked, on rank 0; or what a policy says.
    pub(crate) fn take_news(&mut self) -> Vec<TuningNews> {
        lock(&self.exchange).take_news()
    }

    /// How much of an iteration a policy decides, if one is followed.
    pub(crate) fn followed(&self) -> Option<FollowedOperations> {
        lock(&self.exchange).followed()
    }

    /// What a later job may begin with; on rank 0, if there is a tuner.
    pub(crate) fn lessons(&self) -> Option<Vec<Lesson>> {
        lock(&self.exchange).learned().and_then(|tuning| tuning.lessons())
    }

    /// What tuning has come to; on rank 0, if there is a tuner.
    pub(crate) fn tuning_report(&self) -> Option<TuningReport> {
        lock(&self.exchange).learned().and_then(|tuning| tuning.report())
    }

    /// Forward and backward on a batch, if this rank has one; the mean loss. What is left of the update before is applied
    /// on the way. The gradients go to the exchange; after the last pass of an update it is on its way.
    pub(crate) fn pass(&mut self, batch: Option<&Batch>, pass: Pass) -> Result<f64, TrainError> {
        let began = Instant::now();
        let loss = match batch {
            Some(batch) => {
                lock(&self.exchange).begin(pass);
                let sink: SharedSink = self.exchange.clone();
                match &mut self.record {
                    None => self.backend.gradients(batch, &mut self.updates, &sink),
                    Some(passes) => {
                        let recorded = recording::record(self.backend.as_mut(), batch, &mut self.updates, sink);
                        recorded.map(|(loss, pass)| {
                            let iteration = lock(&self.exchange).iteration();
                            passes.push(PassRecord { iteration, ..pass });
                            loss
                        })
                    }
                }
            }
            None => self.settle().and_then(|()| {
                let mut exchange = lock(&self.exchange);
                exchange.begin(pass);
                Ok(exchange.nothing().map(|()| 0.0)?)
            }),
        };
        let loss = loss.map_err(|error| self.failed(error))?;
        if batch.is_some() {
            self.note_phases(began);
        }
        if pass.last {
            self.updates.announce();
        }
        Ok(loss)
    }

    fn note_phases(&mut self, began: Instant) {
        let (exchange, times) = (lock(&self.exchange), self.updates.take_times());
        let (backward_began, ready) = exchange.backward();
        self.phases.add(&Phases {
            forward: (backward_began - began).saturating_sub(times.held_up + times.updating),
            backward: backward_began.elapsed(),
            update: times.updating,
            passes: 1,
            ready: ready.to_vec(),
        });
    }

    /// Something has taken a moment in front of a pass: to whoever plans it is forward.
    pub(crate) fn note_before_pass(&mut self, taken: Duration) {
        self.phases.forward += taken;
    }

    /// How long the passes since this was last asked have taken.
    pub(crate) fn take_phases(&mut self) -> Phases {
        mem::take(&mut self.phases)
    }

    /// Records the passes from here on.
    pub(crate) fn start_record(&mut self) {
        self.record = Some(Vec::new());
        lock(&self.exchange).note_start_ups(true);
    }

    /// The passes since [`Worker::start_record`], and the artificial start-ups of their operations; later ones are not
    /// recorded. All operations have been waited for.
    pub(crate) fn end_record(&mut self) -> (Vec<PassRecord>, Vec<NotedStartUp>) {
        let start_ups = lock(&self.exchange).note_start_ups(false);
        (self.record.take().unwrap_or_default(), start_ups)
    }

    /// Waits until the update that is on its way has arrived, without applying it.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), TrainError> {
        self.interrupt();
        lock(&self.exchange).wait_for_all().while_training("receiving gradients")
    }

    /// Applies the update that is on its way: from here on the parameters are those after the last iteration.
    pub(crate) fn finish(&mut self) -> Result<(), TrainError> {
        self.interrupt();
        self.settle().map_err(|error| self.failed(error))
    }

    /// Updates so far, the one on its way included.
    pub(crate) fn iteration(&self) -> usize {
        self.updates.iteration()
    }

    /// How far the update on its way goes, or the last one.
    pub(crate) fn learning_rate(&self) -> f32 {
        self.updates.learning_rate()
    }

    /// What the exchange has cost since this was last asked.
    pub(crate) fn take_costs(&mut self) -> Costs {
        lock(&self.exchange).take_costs()
    }

    fn settle(&mut self) -> Result<(), BackendError> {
        (0..self.backend.parameters().len()).try_for_each(|parameter| {
            let backend = &mut self.backend;
            self.updates.need(parameter, &mut |access| backend.access(Slot::Parameter(parameter), access)).map(drop)
        })
    }

    /// The communicator's failure in the middle of a pass counts for more than that the pass ended because of it.
    fn failed(&mut self, error: BackendError) -> TrainError {
        if let Some(source) = lock(&self.exchange).take_failure() {
            return TrainError::Communication { doing: "sending gradients", source: Box::new(source) };
        }
        match self.updates.take_failure() {
            Some(Failure::Communication(source)) => {
                TrainError::Communication { doing: "receiving gradients", source: Box::new(source) }
            }
            Some(Failure::NotFinite { what }) => {
                let (iteration, learning_rate) = (self.iteration(), self.learning_rate());
                TrainError::NotFinite { what, iteration, learning_rate }
            }
            None => TrainError::Backend { rank: self.rank, source: error },
        }
    }
}

/// Changes as an exchange counts iterations: from the first one of the stage.
pub(crate) fn counted_from(changes: &[Change], first_iteration: usize) -> Vec<Change> {
    let counted = |change: &Change| {
        let iteration = change.iteration.saturating_sub(first_iteration);
        Change { iteration, all_reduces: change.all_reduces.clone() }
    };
    changes.iter().map(counted).collect()
}
