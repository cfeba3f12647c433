//! Which plan a training carries out when.

use std::collections::VecDeque;

use paceline_comm::{CallOptions, Reduction};
use paceline_plan::Plan;
use paceline_strategy::Strategy;

use crate::error::{TrainError, WhileTraining};
use crate::exchange::{Carrier, Exchange};
use crate::executed::{ExecutedPlans, Stage};
use crate::measure::communication_cost;
use crate::on_server::Specification;
use crate::options::TrainOptions;
use crate::peers::Peers;
use crate::planning::{Known, MEASURING, MEASURING_WARM_UP, Planning};
use crate::update_rule::UpdateRule;
use crate::worker::Worker;

/// The plans of a training, one after the other: what the strategy gives; then, if it plans from measurements, what it
/// gives when they are there; or those of an earlier run.
pub(crate) struct Stages<'a> {
    options: &'a TrainOptions,
    rule: UpdateRule,
    strategy: Strategy,
    carrier: Carrier,
    /// Elements of each tensor.
    sizes: Vec<usize>,
    /// Updates until the end.
    iterations: usize,
    /// The one that is carried out, or will be first.
    plan: Plan,
    executed: Vec<Stage>,
    next: Next,
}

enum Next {
    Nothing,
    /// Of an earlier run.
    Given(VecDeque<Stage>),
    /// Planned when enough iterations have been measured.
    Measured,
}

impl<'a> Stages<'a> {
    /// Plans the first stage, for so many updates in all. All workers come to the same plan.
    pub(crate) fn begin(
        options: &'a TrainOptions,
        rule: UpdateRule,
        peers: &Peers,
        sizes: &[usize],
        iterations: usize,
    ) -> Result<(Stages<'a>, Exchange), TrainError> {
        let strategy = options.parsed_strategy()?;
        let carrier = Carrier::new(peers.clone(), strategy.algorithm().map(str::to_owned));
        let carrier = match strategy.servers_apply() {
            true => carrier.applying(&Specification::Optimizer(rule.optimizer, rule.learning_rate)),
            false => carrier,
        };
        let schedulers = &options.schedulers;
        let planning = Planning { strategy: &strategy, schedulers, peers, sizes, slowed: 1.0 };
        let (plan, chosen, next) = match &options.plan {
            Some(given) => {
                let checked = given.check(sizes, &strategy, schedulers.grammar(), &rule);
                checked.map_err(TrainError::Options)?;
                let mut stages: VecDeque<Stage> = given.stages.iter().cloned().collect();
                let Some(Stage { plan, all_reduces, .. }) = stages.pop_front() else {
                    unreachable!("checked above");
                };
                planning.agree(&plan)?;
                (plan, all_reduces, Next::Given(stages))
            }
            None => {
                let (plan, measured) = planning.first(&Known::default(), None)?;
                (plan, Vec::new(), if measured { Next::Nothing } else { Next::Measured })
            }
        };
        options.check_clipping_under(&plan)?;
        let exchange = Exchange::new(carrier.clone(), plan.clone(), &chosen, sizes, &planning.handicap())?;
        let (sizes, executed) = (sizes.to_vec(), Vec::new());
        Ok((Stages { options, rule, strategy, carrier, sizes, iterations, plan, executed, next }, exchange))
    }

    /// Before each update: goes on to the next stage, if this is where it begins.
    pub(crate) fn before_update(&mut self, worker: &mut Worker) -> Result<(), TrainError> {
        let iteration = worker.iteration();
        if matches!(self.next, Next::Measured) && iteration == MEASURING_WARM_UP {
            let _ = worker.take_phases();
        }
        let first = self.executed.is_empty();
        if !first && self.boundary() != Some(iteration) {
            return Ok(());
        }
        if !first {
            self.advance(worker)?;
        }
        self.executed.push(worker.stage(iteration));
        let end = self.boundary().map_or(self.iterations, |boundary| boundary.min(self.iterations));
        worker.assign(end - iteration)
    }

    /// The plan that is carried out, or will be first.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What has been carried out.
    pub(crate) fn executed(&self) -> ExecutedPlans {
        ExecutedPlans { schema: ExecutedPlans::SCHEMA, update_rule: Some(self.rule), stages: self.executed.clone() }
    }

    /// The update before which the next stage begins.
    fn boundary(&self) -> Option<usize> {
        match &self.next {
            Next::Nothing => None,
            Next::Given(stages) => stages.front().map(|stage| stage.first_iteration),
            Next::Measured => Some(MEASURING_WARM_UP + MEASURING),
        }
    }

    fn advance(&mut self, worker: &mut Worker) -> Result<(), TrainError> {
        // Measurements want the network for themselves.
        worker.finish()?;
        let planning = Planning {
            strategy: &self.strategy,
            schedulers: &self.options.schedulers,
            peers: self.carrier.peers(),
            sizes: &self.sizes,
            slowed: 1.0,
        };
        let (plan, chosen) = match &mut self.next {
            Next::Given(stages) => {
                let Some(Stage { plan, all_reduces, .. }) = stages.pop_front() else { return Ok(()) };
                (plan, all_reduces)
            }
            Next::Nothing => return Ok(()),
            Next::Measured => {
                let bytes = self.sizes.iter().sum::<usize>() * size_of::<f32>();
                let alone = self.carrier.peers().workers().world_size() == 1;
                let cost = (!alone).then(|| communication_cost(&self.carrier, bytes, planning.start_up()));
                let known = Known { ready_s: Some(ready_s(worker, &self.carrier, self.sizes.len())?), used: None };
                let plan = planning.again(&self.plan, &known, cost.transpose()?.as_ref())?;
                self.next = Next::Nothing;
                (plan, Vec::new())
            }
        };
        self.options.check_clipping_under(&plan)?;
        worker.replan(plan.clone(), &chosen, &self.sizes, &planning.handicap())?;
        self.plan = plan;
        Ok(())
    }
}

/// By tensor: seconds from the start of backward until its gradient was announced; the mean over the passes of all workers
/// since this was last asked.
fn ready_s(worker: &mut Worker, carrier: &Carrier, tensors: usize) -> Result<Vec<f64>, TrainError> {
    let phases = worker.take_phases();
    let mut sums: Vec<f64> = phases.ready.iter().map(std::time::Duration::as_secs_f64).collect();
    // A worker may have had no sample in any pass.
    sums.resize(tensors, 0.0);
    sums.push(phases.passes as f64);
    let reduced = carrier.peers().workers().all_reduce(&mut sums, Reduction::Sum, &CallOptions::default());
    reduced.while_training("adding up when gradients are ready")?;
    let passes = sums.pop().unwrap_or(1.0).max(1.0);
    Ok(sums.iter().map(|sum| sum / passes).collect())
}
