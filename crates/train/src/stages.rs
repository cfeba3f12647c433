//! Which plan a training carries out when.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_comm::{CallOptions, Reduction};
use paceline_plan::Plan;
use paceline_strategy::Strategy;

use crate::auto::{Choosing, Chosen, Decision, History, Judgement, Settling, Step, WINDOW, Watch};
use crate::computed::{Computed, measured_profile};
use crate::data::Batch;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::{Begin, Carrier, Exchange, Job};
use crate::executed::{AllReduce, Change, ExecutedPlans, Stage};
use crate::fusion::FusionTuning;
use crate::measure::{communication_cost, with_passes};
use crate::on_server::Specification;
use crate::options::{BatchSize, TrainOptions};
use crate::peers::Peers;
use crate::planning::{Known, MEASURING, MEASURING_WARM_UP, Planning};
use crate::tuning::{FusionReport, TuningNews};
use crate::update_rule::UpdateRule;
use crate::worker::{Worker, counted_from};

/// A training of so many parts waits for iterations to settle in the first of them only.
const SETTLING_PART: usize = 4;

/// The plans of a training, one after the other: what the strategy gives; then, if it plans from measurements, what it
/// gives when they are there, or what is chosen and watched if it leaves something open, or what wins of its fusion thresholds; or those of
/// an earlier run.
pub(crate) struct Stages<'a> {
    options: &'a TrainOptions,
    rule: UpdateRule,
    strategy: Strategy,
    /// With all shards that have been met, also those that do not serve.
    peers: Peers,
    carrier: Carrier,
    /// Elements of each tensor.
    sizes: Vec<usize>,
    /// Updates until the end.
    iterations: usize,
    /// The one that is carried out, or will be first.
    plan: Plan,
    executed: Vec<Stage>,
    next: Next,
    /// Of what is chosen.
    history: History,
}

/// Loads what this worker computes next, if it has a part of it.
pub(crate) type NextBatch<'a> = &'a dyn Fn() -> Option<Batch>;

enum Next {
    Nothing,
    /// Of an earlier run.
    Given(VecDeque<Stage>),
    /// Planned when enough iterations have been measured.
    Measured,
    /// Chosen before this iteration, if iterations have settled by then.
    Chosen {
        settling: Settling,
        iteration: usize,
    },
    /// Chosen, and compared with its prediction in this iteration.
    Watched {
        watch: Watch,
        iteration: usize,
    },
    /// One with the fusion threshold that is tried next, or stands.
    Fused(Box<FusionTuning>),
}

/// The first stage, and what comes next.
struct First {
    plan: Plan,
    all_reduces: Vec<AllReduce>,
    changes: Vec<Change>,
    next: Next,
}

impl First {
    /// That of an earlier run, or what the strategy gives.
    fn of(options: &TrainOptions, rule: &UpdateRule, planning: &Planning<'_>) -> Result<First, TrainError> {
        let Some(given) = &options.plan else {
            let (plan, measured) = planning.first(&Known::default(), None)?;
            let next = match (planning.strategy.is_open(), measured) {
                (true, _) => Next::Chosen { settling: Settling::default(), iteration: MEASURING_WARM_UP },
                (false, true) => Next::Nothing,
                (false, false) => Next::Measured,
            };
            return Ok(First { plan, all_reduces: Vec::new(), changes: Vec::new(), next });
        };
        let checked = given.check(planning.sizes, planning.strategy, planning.schedulers.grammar(), rule);
        checked.map_err(TrainError::Options)?;
        given.stages.iter().try_for_each(|stage| planning.check_shards(&stage.plan))?;
        let mut stages: VecDeque<Stage> = given.stages.iter().cloned().collect();
        let Some(Stage { plan, all_reduces, changes, .. }) = stages.pop_front() else {
            unreachable!("checked above");
        };
        planning.agree(&plan)?;
        Ok(First { plan, all_reduces, changes, next: Next::Given(stages) })
    }
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
        let schedulers = &options.schedulers;
        let planning = Planning { strategy: &strategy, schedulers, peers, sizes, slowed: 1.0 };
        let First { plan, all_reduces, changes, next } = First::of(options, &rule, &planning)?;
        let fusion = FusionTuning::begin(options.tune.as_ref(), &planning, &plan, iterations)?;
        let next = fusion.map_or(next, |fusion| Next::Fused(Box::new(fusion)));
        let carrier = carrier_of(options, &strategy, peers, &plan).compressing(options.compression(&strategy)?);
        let carrier = match strategy.servers_apply() {
            true => carrier.applying(&Specification::Optimizer(rule.optimizer, rule.learning_rate)),
            false => carrier,
        };
        options.check_clipping_under(&plan)?;
        let mut exchange = Exchange::new(carrier.clone(), plan.clone(), &all_reduces, sizes, &planning.handicap())?;
        exchange.repeat(counted_from(&changes, 0))?;
        let job = job(options, peers.workers().world_size(), plan.elements());
        if let Some(tune) = &options.tune {
            let when = if matches!(next, Next::Fused(_)) { Begin::WhenThePlanStands } else { Begin::Now };
            exchange.tune(tune, job, when)?;
        }
        if let Some(policy) = &options.policy {
            exchange.follow(policy, job)?;
        }
        if options.dump_plan.is_some() {
            exchange.keep_changes();
        }
        let stages = Stages {
            options,
            rule,
            strategy,
            peers: peers.clone(),
            carrier,
            sizes: sizes.to_vec(),
            iterations,
            plan,
            executed: Vec::new(),
            next,
            history: History::default(),
        };
        Ok((stages, exchange))
    }

    /// Before each update: goes on to the next stage, if this is where it begins. What is chosen then may be measured behind passes
    /// on the update's first batch, which leave nothing behind.
    pub(crate) fn before_update(&mut self, worker: &mut Worker, batch: NextBatch<'_>) -> Result<(), TrainError> {
        let iteration = worker.iteration();
        if matches!(self.next, Next::Measured) && iteration == MEASURING_WARM_UP {
            let _ = worker.take_phases();
        }
        let first = self.executed.is_empty();
        if !first && self.boundary() != Some(iteration) {
            return Ok(());
        }
        if first || self.advance(worker, batch)? {
            self.executed.push(worker.stage(iteration));
        }
        let end = self.boundary().map_or(self.iterations, |boundary| boundary.min(self.iterations));
        worker.assign(end - iteration)
    }

    /// After each update: how long it has taken.
    pub(crate) fn note(&mut self, update: Duration) {
        match &mut self.next {
            Next::Chosen { .. } | Next::Watched { .. } => self.history.note(update),
            Next::Fused(fusion) => fusion.note(update),
            Next::Nothing | Next::Given(_) | Next::Measured => {}
        }
    }

    /// What was on its way has arrived: the next update waits for nothing.
    pub(crate) fn interrupt(&mut self) {
        if let Next::Fused(fusion) = &mut self.next {
            fusion.interrupt();
        }
    }

    /// What was found out about the fusion threshold since this was last asked; on rank 0, if it is tuned.
    pub(crate) fn take_tuning_news(&mut self) -> Vec<TuningNews> {
        match &mut self.next {
            Next::Fused(fusion) => fusion.take_news(),
            _ => Vec::new(),
        }
    }

    /// What tuning the fusion threshold has come to; on rank 0, if it is tuned.
    pub(crate) fn fusion_report(&self) -> Option<FusionReport> {
        match &self.next {
            Next::Fused(fusion) => fusion.report(),
            _ => None,
        }
    }

    /// What was decided since this was last asked.
    pub(crate) fn news(&mut self) -> &[Decision] {
        self.history.decisions.news()
    }

    /// What was decided, and whether it came true.
    pub(crate) fn decisions(&self) -> &[Decision] {
        self.history.decisions.all()
    }

    /// The plan that is carried out, or will be first.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What has been carried out.
    pub(crate) fn executed(&mut self, worker: &mut Worker) -> ExecutedPlans {
        self.end_stage(worker);
        ExecutedPlans { schema: ExecutedPlans::SCHEMA, update_rule: Some(self.rule), stages: self.executed.clone() }
    }

    /// Notes what has changed in the stage that is carried out.
    fn end_stage(&mut self, worker: &mut Worker) {
        if let Some(stage) = self.executed.last_mut() {
            stage.changes.extend(worker.take_changes(stage.first_iteration));
        }
    }

    /// The update before which the next stage begins.
    fn boundary(&self) -> Option<usize> {
        match &self.next {
            Next::Nothing => None,
            Next::Given(stages) => stages.front().map(|stage| stage.first_iteration),
            Next::Measured => Some(MEASURING_WARM_UP + MEASURING),
            Next::Chosen { iteration, .. } | Next::Watched { iteration, .. } => Some(*iteration),
            Next::Fused(fusion) => fusion.boundary(),
        }
    }

    /// Goes on to the next stage. Whether there is another plan.
    fn advance(&mut self, worker: &mut Worker, batch: NextBatch<'_>) -> Result<bool, TrainError> {
        match &mut self.next {
            Next::Nothing => return Ok(false),
            Next::Chosen { .. } | Next::Watched { .. } => return self.advance_open(worker, batch),
            Next::Fused(fusion) => {
                let plan = fusion.next_step(worker.iteration())?;
                let is_over = fusion.boundary().is_none();
                return self.advance_fused(worker, plan, is_over);
            }
            Next::Given(stages) => {
                let Some(stage) = stages.pop_front() else { return Ok(false) };
                worker.finish()?;
                self.replan(worker, stage.plan, &stage.all_reduces)?;
                worker.repeat(&stage.changes, stage.first_iteration)?;
            }
            Next::Measured => {
                // Measurements want the network for themselves.
                worker.finish()?;
                let plan = self.planned_from_measurements(worker)?;
                self.next = Next::Nothing;
                self.replan(worker, plan, &[])?;
            }
        }
        Ok(true)
    }

    /// Goes on under the plan of the next fusion threshold; if it is the one that stands in the end, calls are tuned from here on. Whether
    /// there is another plan: while the search goes on there is one for every step, if only by its number, as steps are compared that have
    /// begun alike.
    fn advance_fused(&mut self, worker: &mut Worker, plan: Plan, is_over: bool) -> Result<bool, TrainError> {
        let changed = !is_over || plan.strategy != self.plan.strategy;
        if changed {
            self.change(worker, plan)?;
        }
        if is_over {
            worker.tune_calls()?;
        }
        Ok(changed)
    }

    fn planned_from_measurements(&self, worker: &mut Worker) -> Result<Plan, TrainError> {
        let planning = self.planning();
        let bytes = self.sizes.iter().sum::<usize>() * size_of::<f32>();
        let alone = self.carrier.peers().workers().world_size() == 1;
        let cost = (!alone).then(|| communication_cost(&self.carrier, bytes, planning.start_up(), None));
        let computed = computed(worker, &self.peers, &self.sizes)?;
        let known = Known { ready_s: Some(computed.ready_s), used: None };
        planning.again(&self.plan, &known, cost.transpose()?.as_ref())
    }

    fn replan(&mut self, worker: &mut Worker, plan: Plan, chosen: &[AllReduce]) -> Result<(), TrainError> {
        self.options.check_clipping_under(&plan)?;
        let handicap = self.planning().handicap();
        // Only where the arch is open another carrier can be needed; the one that is there may have servers with parameters.
        let carrier =
            self.strategy.arch_is_open().then(|| carrier_of(self.options, &self.strategy, &self.peers, &plan));
        self.end_stage(worker);
        worker.replan(carrier.clone(), plan.clone(), chosen, &self.sizes, &handicap)?;
        self.carrier = carrier.unwrap_or_else(|| self.carrier.clone());
        self.plan = plan;
        Ok(())
    }

    /// Chooses, or looks whether what was chosen does what was predicted. Whether there is another plan.
    fn advance_open(&mut self, worker: &mut Worker, batch: NextBatch<'_>) -> Result<bool, TrainError> {
        let iteration = worker.iteration();
        let (measured_s, uncertain) = self.end_window(worker)?;
        if let Next::Chosen { mut settling, .. } = self.next
            && self.is_settling(&mut settling, measured_s, iteration)
        {
            // What is planned from is measured from here on.
            let _ = worker.take_phases();
            self.next = Next::Chosen { settling, iteration: iteration + MEASURING };
            return Ok(false);
        }
        let watch = match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Watched { watch, .. } => Some(watch),
            _ => None,
        };
        let (watch, changed) = match watch {
            None => {
                self.history.experience.measured(&self.plan, measured_s);
                let (expected_s, changed) = self.choose(worker, None, uncertain, batch)?;
                (Watch::new(expected_s), changed)
            }
            Some(mut watch) => {
                self.history.decisions.measured(measured_s);
                let changed = match watch.judge(measured_s) {
                    Judgement::GoOn => {
                        // What is planned from next time is measured from here on.
                        let _ = worker.take_phases();
                        false
                    }
                    Judgement::PlanAgain => {
                        self.history.experience.measured(&self.plan, measured_s);
                        let (expected_s, changed) = self.choose(worker, Some(measured_s), uncertain, batch)?;
                        watch.expect(expected_s, self.history.experience.best_other_s(&self.plan));
                        changed
                    }
                };
                (watch, changed)
            }
        };
        // Servers are told of iterations beforehand.
        let windows = if self.plan.shards > 0 { watch.windows() } else { 1 };
        self.next = Next::Watched { watch, iteration: iteration + windows * WINDOW };
        Ok(changed)
    }

    /// Are further iterations to be measured before something is chosen? Behind the warm-up in any case; then while they get faster, but the
    /// more of a training has gone by, the less a choice is worth.
    fn is_settling(&self, settling: &mut Settling, measured_s: f64, iteration: usize) -> bool {
        let is_warm_up = iteration == MEASURING_WARM_UP;
        settling.goes_on(measured_s) && (is_warm_up || SETTLING_PART * (iteration + MEASURING) <= self.iterations)
    }

    /// The median of the window's updates, and by which share of it they differ (half of the 95 % interval of their mean), of
    /// the slowest rank. What is on its way arrives first: servers are to be told of
    /// the next iterations.
    fn end_window(&mut self, worker: &mut Worker) -> Result<(f64, f64), TrainError> {
        if self.plan.shards > 0 {
            worker.wait_for_all()?;
        }
        let mut values = self.history.end_window();
        let reduced = self.peers.workers().all_reduce(&mut values, Reduction::Max, &CallOptions::default());
        reduced.while_training("comparing iterations with their prediction")?;
        Ok((values[0], values[1]))
    }

    /// Measures and searches. What is expected of an update from here on, and whether there is another plan. `measured_s`: how
    /// long one takes now, if this is not the first time; `uncertain`: by which share updates differ.
    fn choose(
        &mut self,
        worker: &mut Worker,
        measured_s: Option<f64>,
        uncertain: f64,
        batch: NextBatch<'_>,
    ) -> Result<(f64, bool), TrainError> {
        let (iteration, tried) = (worker.iteration(), self.history.experience.plans());
        let chosen = match (self.search(worker, &tried, uncertain, batch)?, measured_s) {
            (Ok(chosen), _) => chosen,
            (Err(reason), None) => return Err(TrainError::Options(reason)),
            // What runs, runs.
            (Err(reason), Some(measured_s)) => {
                self.history.decisions.keep(iteration, measured_s, reason);
                return Ok((measured_s, false));
            }
        };
        let step = Step::after(&chosen, &mut self.history.experience, &self.plan, measured_s);
        if let Some(plan) = step.plan.clone() {
            self.change(worker, plan)?;
        }
        self.history.decisions.add(step.decision(iteration, &self.plan));
        Ok((step.expected_s, step.plan.is_some()))
    }

    /// Measures what operations cost, and searches; with what it predicts of plans that were tried. Or why it cannot.
    fn search(
        &mut self,
        worker: &mut Worker,
        tried: &[Plan],
        uncertain: f64,
        batch: NextBatch<'_>,
    ) -> Result<Result<Chosen, String>, TrainError> {
        // Measurements want the network for themselves.
        worker.finish()?;
        let computed = computed(worker, &self.peers, &self.sizes)?;
        let samples = match self.options.batch {
            BatchSize::Local(samples) => samples,
            BatchSize::Global(samples) => samples / self.peers.workers().world_size(),
        };
        let profile = measured_profile(self.options.model_name(), samples, &computed, uncertain);
        let round = self.history.next_round();
        let choosing = Choosing {
            strategy: &self.strategy,
            schedulers: &self.options.schedulers,
            peers: &self.peers,
            may_overlap: self.options.clip_norm.is_none(),
            start_up: self.planning().start_up(),
            all_pass_s: None,
            interference: None,
        };
        let (rank, pass_s) = (self.peers.workers().rank(), profile.forward_s() + profile.backward_s());
        let chosen = with_passes(rank, worker.backend.as_mut(), Some(pass_s), batch, |passing| {
            choosing.choose(&profile, tried, round, passing)
        })?;
        // Only the last pass of an update communicates.
        let passes_s = (self.options.accumulate - 1) as f64 * pass_s;
        Ok(chosen.map(|chosen| chosen.plus_passes(passes_s)))
    }

    /// Goes on under another plan, which all workers have.
    fn change(&mut self, worker: &mut Worker, plan: Plan) -> Result<(), TrainError> {
        let plan = Plan { version: self.plan.version + 1, ..plan };
        self.planning().agree(&plan)?;
        self.replan(worker, plan, &[])
    }

    fn planning(&self) -> Planning<'_> {
        Planning {
            strategy: &self.strategy,
            schedulers: &self.options.schedulers,
            peers: &self.peers,
            sizes: &self.sizes,
            slowed: 1.0,
        }
    }
}

/// What carries a plan: where the arch is open what its own strategy says, all-to-all if that leaves it open, too.
fn carrier_of(options: &TrainOptions, strategy: &Strategy, peers: &Peers, plan: &Plan) -> Carrier {
    if !strategy.arch_is_open() {
        return Carrier::new(peers.clone(), strategy.algorithm().map(str::to_owned));
    }
    let planned = options.schedulers.grammar().parse(&plan.strategy);
    Carrier::of_strategy(peers, planned.as_ref().unwrap_or(strategy))
}

/// What is known of a job for the seed regimes of its calls.
fn job(options: &TrainOptions, workers: usize, parameters: usize) -> Job {
    let macs = options.own_model.is_none().then(|| options.model.forward_macs_per_sample());
    Job {
        // Three operations for each multiply-accumulate of forward.
        model_intensity: macs.map_or(0.0, |macs| 3.0 * macs as f64 / parameters.max(1) as f64),
        // Passes that add up are one iteration: gradients travel once.
        local_batch: options.global_batch(workers).div_ceil(workers).saturating_mul(options.accumulate),
    }
}

/// What computation takes: by worker the mean over its passes since this was last asked, and of all workers the slowest, for
/// whom the others wait.
fn computed(worker: &mut Worker, peers: &Peers, sizes: &[usize]) -> Result<Computed, TrainError> {
    let phases = worker.take_phases();
    let mut values: Vec<f64> = phases.ready.iter().map(Duration::as_secs_f64).collect();
    // A worker may have had no sample in any pass.
    values.resize(sizes.len(), 0.0);
    values.extend([phases.forward.as_secs_f64(), phases.update.as_secs_f64()]);
    let passes = phases.passes.max(1) as f64;
    values.iter_mut().for_each(|sum| *sum /= passes);
    let reduced = peers.workers().all_reduce(&mut values, Reduction::Max, &CallOptions::default());
    reduced.while_training("comparing when gradients are ready")?;
    let (update_s, forward_s) = (values.pop().unwrap_or(0.0), values.pop().unwrap_or(0.0));
    Ok(Computed { sizes: sizes.to_vec(), ready_s: values, forward_s, update_s })
}
