//! Runs a cell: plan, warm up, count.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Reduction};
use paceline_plan::{Plan, Profile};
use paceline_strategy::Strategy;

use super::choice::Choice;
use super::cost::{Before, communication_cost};
use super::statistics::relative_half_width;
use super::summary::Tally;
use super::together::{Company, Passes, SHORT_PASS_S};
use super::{CellRun, CommunicationCost, Length, MeasureOptions};
use crate::agreement::Agreement;
use crate::backend::{Backend, ModelName, TensorInfo};
use crate::data::{Batch, Data, Sharding};
use crate::error::{TrainError, WhileTraining};
use crate::exchange::{Begin, Carrier, Exchange, Job, Pass};
use crate::learning_rate::LearningRate;
use crate::on_server::{FromServer, Specification};
use crate::optimizer::{Optimizer, OptimizerSettings};
use crate::peers::Peers;
use crate::planning::{Known, MEASURING, MEASURING_WARM_UP, Planning};
use crate::replay::{Checker, Findings, Monitor, ReplayBackend};
use crate::start::broadcast_model;
use crate::sync::lock;
use crate::tuning::{TuneOptions, TuningReport};
use crate::worker::Worker;

/// Iterations between two looks at whether a tuner has decided everything.
const LEARNING_BLOCK: usize = 20;

/// What is measured.
pub enum Subject<'a> {
    /// Sleeps as long as the profile says, and real communication.
    Replay(&'a Profile),
    /// A model that computes. Rank 0's parameters are what all begin with.
    Model {
        /// Its name, for the report.
        name: String,
        /// The model.
        backend: Box<dyn Backend>,
        /// What it is trained on; an epoch's last, smaller batch is left out.
        data: &'a Data,
        /// How it is trained.
        optimizer: OptimizerSettings,
        /// In every iteration.
        learning_rate: f32,
    },
}

/// Measures one cell, once. All workers call it, with the same subject and options; servers serve meanwhile, and go on
/// afterwards.
///
/// # Errors
/// The options or the profile make no sense; the workers were not started alike; a sum was wrong; a peer was lost.
pub fn measure(peers: impl Into<Peers>, subject: Subject<'_>, options: &MeasureOptions) -> Result<CellRun, TrainError> {
    let peers = peers.into();
    let workers = peers.workers().clone();
    // candle computes on the pool of the thread that calls it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|e| TrainError::Threads { threads: options.threads, message: e.to_string() });
    let measured = pool.and_then(|pool| pool.install(|| Conduct::prepare(peers, subject, options)?.run()));
    // The others learn the reason, instead of missing this one. Of the rest they know.
    measured.inspect_err(|error| match error {
        TrainError::Communication { .. } | TrainError::Disagreement { .. } | TrainError::NotFinite { .. } => {}
        error => workers.abort(&error.to_string()),
    })
}

pub(super) struct Conduct<'a> {
    pub(super) carrier: Carrier,
    pub(super) options: &'a MeasureOptions,
    strategy: Strategy,
    /// With all shards that have been met, also those that do not serve.
    peers: Peers,
    pub(super) plan: Plan,
    pub(super) model: Model<'a>,
    pub(super) cost: Option<CommunicationCost>,
    /// Elements of each tensor.
    pub(super) sizes: Vec<usize>,
    pub(super) worker: Worker,
    /// Of `strategy=auto`.
    pub(super) choice: Option<Choice>,
    /// What computation costs where all compute.
    pub(super) company: Company,
    pub(super) iterations: usize,
}

/// What is measured, without the backend and the optimiser, which the worker has.
pub(super) struct Model<'a> {
    pub(super) name: String,
    feed: Feed<'a>,
    /// Of a replay.
    pub(super) replay: Option<Replay>,
}

/// What becomes of the sums.
enum Rule {
    /// They are checked.
    Check(Checker),
    /// They are applied.
    Train(OptimizerSettings, LearningRate),
}

impl Rule {
    /// What servers do that have the parameters.
    fn specification(&self) -> Specification {
        match self {
            Rule::Check(_) => Specification::Sums,
            Rule::Train(settings, learning_rate) => Specification::Optimizer(*settings, *learning_rate),
        }
    }

    /// What a worker does, for tensors of these sizes.
    fn of_worker(self, servers_apply: bool, sizes: &[usize]) -> (Box<dyn Optimizer>, LearningRate) {
        match self {
            Rule::Check(checker) => (Box::new(checker), LearningRate::constant(0.0)),
            Rule::Train(_, learning_rate) if servers_apply => (Box::new(FromServer), learning_rate),
            Rule::Train(settings, learning_rate) => (settings.build(sizes.iter().copied()), learning_rate),
        }
    }
}

/// What carries a strategy's operations; all-to-all until it is chosen, if the arch is open.
fn carrier_of(
    strategy: &Strategy,
    peers: &Peers,
    options: &MeasureOptions,
    rule: &Rule,
) -> Result<Carrier, TrainError> {
    let carrier = match strategy.arch_is_open() {
        true => Carrier::of_strategy(peers, strategy),
        false => Carrier::new(peers.clone(), strategy.algorithm().map(str::to_owned)),
    };
    let carrier = carrier.compressing(options.compression(strategy)?);
    Ok(if strategy.servers_apply() { carrier.applying(&rule.specification()) } else { carrier })
}

/// What the worker computes on.
enum Feed<'a> {
    Nothing(Batch),
    Data { data: &'a Data, sharding: Sharding, order: Vec<usize> },
}

pub(super) struct Replay {
    pub(super) profile: Profile,
    pub(super) monitor: Arc<Mutex<Monitor>>,
    found: Arc<Mutex<Findings>>,
}

impl<'a> Conduct<'a> {
    /// Compares the workers, measures the network, and plans.
    pub(super) fn prepare(peers: Peers, subject: Subject<'a>, options: &'a MeasureOptions) -> Result<Self, TrainError> {
        let workers = peers.workers().clone();
        let strategy = options.check()?;
        let exact = strategy.lossless(options.schedulers.grammar());
        let (model, mut backend, rule) = Model::new(subject, &workers, options, exact)?;
        let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
        model.compare(&workers, options, backend.as_ref())?;
        if model.replay.is_none() {
            broadcast_model(&workers, backend.as_mut())?;
        }
        let mut passes = model.passes(workers.rank(), backend.as_mut());
        let bytes = sizes.iter().sum::<usize>() * size_of::<f32>();
        let company = Company::measure(&workers, passes.as_mut(), bytes)?;
        let carrier = carrier_of(&strategy, &peers, options, &rule)?;
        let planning = Planning {
            strategy: &strategy,
            schedulers: &options.schedulers,
            peers: &peers,
            sizes: &sizes,
            slowed: options.dilate,
        };
        let start_up = planning.start_up().mul_f64(options.dilate);
        let mut pass = passes
            .filter(|_| company.pass_s.is_some_and(|seconds| seconds <= SHORT_PASS_S))
            .map(|mut passes| move || passes.pass());
        let before = pass.as_mut().map(|pass| pass as Before<'_>);
        let cost =
            (workers.world_size() > 1).then(|| communication_cost(&carrier, bytes, start_up, before)).transpose()?;
        drop(pass);
        let known = model.known(options);
        let (plan, measured) = planning.first(&known, cost.as_ref())?;
        let handicap = planning.handicap();
        let mut exchange = Exchange::new(carrier.clone(), plan.clone(), &[], &sizes, &handicap)?;
        let job = model.job(options, plan.elements());
        if let Some(tune) = &options.tune {
            exchange.tune(tune, job, Begin::Now)?;
        }
        if let Some(policy) = &options.policy {
            exchange.follow(policy, job)?;
        }
        let (optimizer, learning_rate) = rule.of_worker(strategy.servers_apply(), &sizes);
        let worker = Worker::new(&workers, backend, exchange, optimizer, learning_rate, None);
        let (choice, iterations) = (None, 0);
        let mut conduct = Conduct {
            carrier,
            options,
            strategy,
            peers,
            plan,
            model,
            cost,
            sizes,
            worker,
            choice,
            company,
            iterations,
        };
        if conduct.strategy.is_open() {
            conduct.choose()?;
        } else if !measured {
            let known = Known { ready_s: Some(conduct.ready_s()?), ..known };
            let plan = conduct.planning().again(&conduct.plan, &known, conduct.cost.as_ref())?;
            conduct.worker.replan(None, plan.clone(), &[], &conduct.sizes, &handicap)?;
            conduct.plan = plan;
        }
        Ok(conduct)
    }

    pub(super) fn planning(&self) -> Planning<'_> {
        Planning {
            strategy: &self.strategy,
            schedulers: &self.options.schedulers,
            peers: &self.peers,
            sizes: &self.sizes,
            slowed: self.options.dilate,
        }
    }

    /// The same, what is measured, and what computes it.
    pub(super) fn planning_beside(&mut self) -> (Planning<'_>, &Model<'a>, &mut dyn Backend) {
        let planning = Planning {
            strategy: &self.strategy,
            schedulers: &self.options.schedulers,
            peers: &self.peers,
            sizes: &self.sizes,
            slowed: self.options.dilate,
        };
        (planning, &self.model, self.worker.backend.as_mut())
    }

    /// When gradients become final, from a few iterations that do not count.
    fn ready_s(&mut self) -> Result<Vec<f64>, TrainError> {
        let mut tally = Tally::default();
        self.block(MEASURING_WARM_UP, MEASURING, &mut tally)?;
        self.mean(tally.ready_s())
    }

    /// Lets a tuner find out what it can, in iterations that do not count.
    fn learn(&mut self) -> Result<(), TrainError> {
        let (mut spent, most) = (0, self.options.tune.as_ref().map_or(0, |tune| tune.iterations));
        while self.worker.is_learning() && spent < most {
            let count = LEARNING_BLOCK.min(most - spent);
            self.block(0, count, &mut Tally::default())?;
            spent += count;
        }
        Ok(())
    }

    pub(super) fn run(mut self) -> Result<CellRun, TrainError> {
        self.learn()?;
        let mut tally = Tally::default();
        let (first, most) = match self.options.length {
            Length::Iterations(count) => (count, count),
            Length::Confident { at_least, at_most, .. } => (at_least.max(2), at_most.max(at_least).max(2)),
        };
        // An iteration is timed from its forward pass, which waits for the one before: the first of all waits for nothing.
        let (mut pause, mut next, mut confident) = (self.options.warm_up(), first, false);
        while next > 0 {
            self.block(pause, next, &mut tally)?;
            // The first iteration after a pause is not like the others.
            pause = 1;
            let seconds = self.iterations(&tally)?;
            if self.choose_again(&seconds, &tally)? {
                self.learn()?;
                (tally, pause, next) = (tally.anew(), self.options.warm_up(), first);
                continue;
            }
            let (enough, over) = self.enough(&seconds, tally.began)?;
            confident = enough;
            let more = (seconds.len() / 2).max(5).min(most - seconds.len());
            next = if enough || over { 0 } else { more };
        }
        let timeline = if self.options.timeline { self.record()? } else { None };
        self.finish()?;
        let lessons = self.worker.lessons().unwrap_or_default();
        let tuning = self.worker.tuning_report().map(|report| TuningReport { lessons, ..report });
        Ok(CellRun { timeline, tuning, ..self.summarise(tally, confident)? })
    }

    /// Some iterations that do not count, and some that do.
    pub(super) fn block(&mut self, before: usize, count: usize, tally: &mut Tally) -> Result<(), TrainError> {
        self.worker.assign(before + count)?;
        self.workers().barrier(&CallOptions::default()).while_training("starting together")?;
        let together = Instant::now();
        self.restart_clock();
        let traffic = self.workers().traffic();
        (0..before).try_for_each(|_| self.iterate())?;
        let _ = (self.worker.take_costs(), self.worker.take_phases());
        // Iterations that count do not make up for time that others have lost.
        self.restart_clock();
        let mut last = Instant::now();
        tally.began.get_or_insert(last);
        let mut ends_s = vec![(last - together).as_secs_f64()];
        for _ in 0..count {
            self.iterate()?;
            let now = Instant::now();
            tally.seconds.push((now - last).as_secs_f64());
            ends_s.push((now - together).as_secs_f64());
            last = now;
            tally.add_costs(self.worker.take_costs());
        }
        tally.ends_s.push(ends_s);
        tally.starts.push(together);
        tally.add_phases(self.worker.take_phases());
        self.worker.wait_for_all()?;
        tally.add_traffic(self.workers().traffic().since(&traffic), before + count);
        if let Some(replay) = &self.model.replay {
            let seen = &mut lock(&replay.monitor).seen;
            tally.seen.push(seen.drain(..).skip(before).collect());
        }
        Ok(())
    }

    pub(super) fn restart_clock(&self) {
        if let Some(replay) = &self.model.replay {
            lock(&replay.monitor).clock = None;
        }
    }

    pub(super) fn iterate(&mut self) -> Result<(), TrainError> {
        let pass = Pass { weight: 1.0 / self.workers().world_size() as f32, first: true, last: true };
        let rank = self.workers().rank();
        let iterated = match &mut self.model.feed {
            Feed::Nothing(batch) => self.worker.pass(Some(batch), pass),
            Feed::Data { data, sharding, order } => {
                let batches = data.training.len() / sharding.joined(0).len();
                let (epoch, batch) = (self.iterations / batches, self.iterations % batches);
                if batch == 0 {
                    *order = sharding.order(epoch);
                }
                let batch = data.training.batch(&order[sharding.part(batch, rank)]);
                self.worker.pass(Some(&batch), pass)
            }
        };
        self.iterations += 1;
        iterated.map(drop).map_err(|error| self.explain(error))
    }

    /// Waits for what is on its way, and looks at every sum of a replay.
    fn finish(&mut self) -> Result<(), TrainError> {
        if let Some(replay) = &self.model.replay {
            lock(&replay.found).thorough = true;
        }
        self.worker.finish().map_err(|error| self.explain(error))
    }

    /// A wrong sum closes the gate like one that is not finite.
    pub(super) fn explain(&self, error: TrainError) -> TrainError {
        let wrong = self.model.replay.as_ref().and_then(|replay| lock(&replay.found).wrong.clone());
        match wrong {
            Some(wrong) => TrainError::WrongSum {
                rank: self.workers().rank(),
                tensor: wrong.tensor,
                element: wrong.position,
                iteration: wrong.iteration,
                expected: wrong.expected,
                found: wrong.found,
            },
            None => error,
        }
    }

    /// By iteration, the slowest worker's.
    pub(super) fn slowest(&self, seconds: &[f64]) -> Result<Vec<f64>, TrainError> {
        let mut slowest = seconds.to_vec();
        let reduced = self.workers().all_reduce(&mut slowest, Reduction::Max, &CallOptions::default());
        reduced.while_training("comparing the workers' times")?;
        Ok(slowest)
    }

    /// Seconds of each iteration that counts: from the moment at which the slowest worker has ended the one before until the slowest
    /// one has ended it. So they add up to what all of them take: the longest of the workers' own times would count twice what
    /// one worker loses and the next one then does not wait for.
    pub(super) fn iterations(&self, tally: &Tally) -> Result<Vec<f64>, TrainError> {
        let ends_s = self.slowest(&tally.ends_s.concat())?;
        let mut rest = &ends_s[..];
        let mut seconds = Vec::with_capacity(tally.seconds.len());
        for block in &tally.ends_s {
            let (ends_s, after) = rest.split_at(block.len());
            seconds.extend(ends_s.windows(2).map(|pair| pair[1] - pair[0]));
            rest = after;
        }
        Ok(seconds)
    }

    /// Is the mean known well enough, and is the time over? The same on all workers.
    fn enough(&self, seconds: &[f64], began: Option<Instant>) -> Result<(bool, bool), TrainError> {
        match self.options.length {
            Length::Iterations(_) => Ok((true, true)),
            Length::Confident { relative, at_most, budget, .. } => {
                let elapsed = began.map_or(Duration::ZERO, |began| began.elapsed());
                let elapsed = self.slowest(&[elapsed.as_secs_f64()])?[0];
                let over = seconds.len() >= at_most || elapsed >= budget.as_secs_f64();
                Ok((relative_half_width(seconds) <= relative, over))
            }
        }
    }

    pub(super) fn workers(&self) -> &Communicator {
        self.carrier.peers().workers()
    }
}

impl<'a> Model<'a> {
    /// `exact`: the sums are those of the gradients.
    fn new(
        subject: Subject<'a>,
        workers: &Communicator,
        options: &MeasureOptions,
        exact: bool,
    ) -> Result<(Model<'a>, Box<dyn Backend>, Rule), TrainError> {
        match subject {
            Subject::Replay(profile) => {
                let count = workers.world_size();
                // It is slept through as it is, from whatever batch it was scaled, and however what was recorded differed.
                let profile = Profile { recorded_batch: None, spread: None, ..profile.for_batch(options.local_batch) };
                let backend = ReplayBackend::new(&profile, options.dilate, workers.rank(), count);
                let backend = backend.map_err(|error| TrainError::Options(error.to_string()))?;
                let backend = backend.watching(workers.processor_time());
                let backend = if exact { backend } else { backend.over_any_sums() };
                let (monitor, found) = (backend.monitor(), Arc::<Mutex<Findings>>::default());
                let checker = Checker::new(&profile.sizes(), count, exact, found.clone());
                let (name, feed) = (profile.model.clone(), Feed::Nothing(ReplayBackend::batch()));
                let model = Model { name, feed, replay: Some(Replay { profile, monitor, found }) };
                Ok((model, Box::new(backend), Rule::Check(checker)))
            }
            Subject::Model { name, backend, data, optimizer, learning_rate } => {
                data.training.check_iteration(workers.world_size(), options.local_batch)?;
                let joined = options.local_batch.saturating_mul(workers.world_size());
                let sharding = Sharding::new(data.training.len(), workers.world_size(), joined, options.seed);
                let model = Model { name, feed: Feed::Data { data, sharding, order: Vec::new() }, replay: None };
                Ok((model, backend, Rule::Train(optimizer, LearningRate::constant(learning_rate))))
            }
        }
    }

    /// A worker's first batch; None of a replay, which sleeps.
    pub(super) fn first_batch(&self, rank: usize) -> Option<Batch> {
        let Feed::Data { data, sharding, .. } = &self.feed else { return None };
        Some(data.training.batch(&sharding.order(0)[sharding.part(0, rank)]))
    }

    /// What computes it.
    fn passes<'b>(&self, rank: usize, backend: &'b mut dyn Backend) -> Option<Passes<'b>> {
        self.first_batch(rank).map(|batch| Passes::new(rank, backend, batch))
    }

    /// Everything that shapes the run.
    fn compare(
        &self,
        workers: &Communicator,
        options: &MeasureOptions,
        backend: &dyn Backend,
    ) -> Result<(), TrainError> {
        let mut agreement = Agreement::default();
        agreement.add("the model", &self.name);
        for (number, tensor) in backend.parameters().iter().enumerate() {
            agreement.add(format!("parameter {number} of the model"), format!("{} {:?}", tensor.name, tensor.shape));
        }
        agreement.add("the profile", format!("{:?}", self.replay.as_ref().map(|replay| &replay.profile)));
        let tune = options.tune.as_ref().map(TuneOptions::of_all_ranks);
        agreement.add("the options", format!("{:?}", MeasureOptions { tune, ..options.clone() }));
        agreement.compare(workers)
    }

    /// What is known of a model of so many parameters, for the seed regimes of its calls.
    fn job(&self, options: &MeasureOptions, parameters: usize) -> Job {
        let of_name = || self.name.parse::<ModelName>().ok().map(ModelName::forward_macs_per_sample);
        let model_intensity = match &self.replay {
            Some(replay) => replay.profile.intensity(),
            None => of_name().map(|macs| 3.0 * macs as f64 / parameters.max(1) as f64),
        };
        Job { model_intensity: model_intensity.unwrap_or(0.0), local_batch: options.local_batch }
    }

    /// What a profile says. The computation is as slow as the network.
    fn known(&self, options: &MeasureOptions) -> Known {
        let Some(replay) = &self.replay else { return Known::default() };
        let ready_s = replay.profile.ready_s().iter().map(|ready| ready * options.dilate).collect();
        Known { used: Some(replay.profile.use_order()), ready_s: Some(ready_s) }
    }
}
