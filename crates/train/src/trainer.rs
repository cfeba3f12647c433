//! The loop: what happens in which order.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Transport};
use paceline_plan::Reduction;
use paceline_strategy::Call;

use crate::backend::{Backend, Evaluation, TensorInfo};
use crate::data::{Data, Sharding, split};
use crate::dump::dump;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::Pass;
use crate::meter::{EpochMeter, Update};
use crate::on_server::FromServer;
use crate::optimizer::{Optimizer, OptimizerSettings};
use crate::options::TrainOptions;
use crate::peers::Peers;
use crate::report::{EpochRow, Observer, Progress, Start, TrainReport};
use crate::stages::Stages;
use crate::start::{broadcast_buffers, broadcast_model, compare_ranks};
use crate::tuning::TuningReport;
use crate::worker::Worker;

/// Trains the named model on the named data, as one of the communicator's ranks; every rank calls it with the same
/// options. Returns when all ranks are done, with the same report and the same parameters on each.
///
/// # Errors
/// What is wrong with the options, the data or the framework; that the ranks were not started alike; that training
/// diverged; that a peer was lost.
pub fn train(
    peers: impl Into<Peers>,
    options: &TrainOptions,
    observer: &mut dyn Observer,
) -> Result<TrainReport, TrainError> {
    options.check()?;
    let peers = peers.into();
    let communicator = peers.workers();
    let rank = communicator.rank();
    let prepared = Data::load(&options.data, options.model.form()).map_err(TrainError::from).and_then(|data| {
        let backend = options.model.build(&data.training, options.seed);
        Ok((backend.map_err(|source| TrainError::Backend { rank, source })?, data))
    });
    let (backend, data) = telling_peers(communicator, prepared)?;
    train_model(peers, backend, &data, options, observer)
}

/// Like [`train`], with a model and data of the caller's own: `options.model` and `options.data` mean nothing then, and
/// `options.own_model` is what reports call it. Rank 0's parameters and buffers are what training starts from.
///
/// # Errors
/// As [`train`].
pub fn train_model(
    peers: impl Into<Peers>,
    backend: Box<dyn Backend>,
    data: &Data,
    options: &TrainOptions,
    observer: &mut dyn Observer,
) -> Result<TrainReport, TrainError> {
    options.check()?;
    if data.training.is_empty() || data.test.is_empty() {
        return Err(TrainError::Options("the data holds no training or no test sample".into()));
    }
    let peers = peers.into();
    let communicator = peers.workers();
    // candle computes on the pool of the thread that calls it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|e| TrainError::Threads { threads: options.threads, message: e.to_string() });
    let pool = telling_peers(communicator, pool)?;
    let trained = pool.install(|| Trainer::start(&peers, backend, data, options)?.run(observer));
    telling_peers(communicator, trained)
}

/// What went wrong on this rank alone ends the others at once and with the reason, instead of when they miss it.
fn telling_peers<T>(communicator: &Communicator, result: Result<T, TrainError>) -> Result<T, TrainError> {
    if let Err(error @ (TrainError::Data(_) | TrainError::Backend { .. } | TrainError::Threads { .. })) = &result {
        communicator.abort(&error.to_string());
    }
    result
}

struct Trainer<'a> {
    communicator: &'a Communicator,
    options: &'a TrainOptions,
    data: &'a Data,
    worker: Worker,
    stages: Stages<'a>,
    sharding: Sharding,
    /// Updates until the end.
    total_iterations: usize,
    /// When the observer was told what a tuner has learned.
    told: Instant,
}

impl<'a> Trainer<'a> {
    /// Plans, compares the ranks, and takes rank 0's values.
    fn start(
        peers: &'a Peers,
        mut backend: Box<dyn Backend>,
        data: &'a Data,
        options: &'a TrainOptions,
    ) -> Result<Self, TrainError> {
        let communicator = peers.workers();
        let world_size = communicator.world_size();
        let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
        let strategy = options.parsed_strategy()?;
        check_protocol(communicator, &strategy.protocol)?;
        compare_ranks(communicator, options, data, backend.as_ref())?;
        broadcast_model(communicator, backend.as_mut())?;
        let sharding = Sharding::new(data.training.len(), world_size, options.global_batch(world_size), options.seed);
        let total_iterations = options.total_iterations(sharding.batches().div_ceil(options.accumulate));
        let rule = options.update_rule(sharding.batches().div_ceil(options.accumulate), total_iterations);
        let (mut stages, exchange) = Stages::begin(options, rule, peers, &sizes, total_iterations)?;
        let optimizer: Box<dyn Optimizer> = match strategy.servers_apply() {
            true => Box::new(FromServer),
            false => options.optimizer.build(sizes.into_iter()),
        };
        let mut worker = Worker::new(communicator, backend, exchange, optimizer, rule.learning_rate, rule.clip_norm);
        stages.before_update(&mut worker, &|| None)?;
        let told = Instant::now();
        Ok(Trainer { communicator, options, data, worker, stages, sharding, total_iterations, told })
    }

    fn run(mut self, observer: &mut dyn Observer) -> Result<TrainReport, TrainError> {
        observer.started(&Start {
            strategy: self.stages.plan().strategy.clone(),
            parameters: self.stages.plan().elements(),
            buckets: self.stages.plan().buckets.len(),
            iterations_per_epoch: self.iterations_per_epoch(),
            iterations: self.total_iterations,
            global_batch: self.options.global_batch(self.communicator.world_size()),
        });
        let mut rows = Vec::new();
        while self.worker.iteration() < self.total_iterations {
            let row = self.epoch(rows.len(), observer)?;
            observer.epoch(&row);
            rows.push(row);
        }
        if let Some(path) = self.options.dump_plan.as_ref().filter(|_| self.communicator.rank() == 0) {
            self.stages.executed(&mut self.worker).write(path)?;
        }
        self.tell_lessons(observer);
        if let Some(directory) = &self.options.dump_parameters {
            dump(directory, self.communicator.rank(), self.worker.backend.as_mut())?;
        }
        Ok(self.report(rows))
    }

    fn epoch(&mut self, epoch: usize, observer: &mut dyn Observer) -> Result<EpochRow, TrainError> {
        let order = self.sharding.order(epoch);
        let mut meter = EpochMeter::start();
        for update in 0..self.iterations_per_epoch().min(self.total_iterations - self.worker.iteration()) {
            let update = self.update(update, &order)?;
            self.stages.news().iter().for_each(|decision| observer.decided(decision));
            meter.add(&update);
            let Update { samples, loss_sum, local_samples } = update;
            let loss = (local_samples > 0).then(|| loss_sum / local_samples as f64);
            observer.iteration(&Progress { epoch: epoch + 1, iteration: self.worker.iteration(), samples, loss });
            self.tell_news(observer);
        }
        self.worker.finish()?;
        self.stages.interrupt();
        let in_communicator = self.worker.take_costs().in_communicator;
        let trained = meter.reduce(in_communicator, self.communicator).while_training("adding up the epoch")?;
        if !trained.loss.is_finite() {
            return Err(self.not_finite("the loss"));
        }
        let evaluation = self.evaluate()?;
        Ok(EpochRow {
            epoch: epoch + 1,
            learning_rate: self.worker.learning_rate(),
            test_loss: evaluation.loss_sum / evaluation.predictions as f64,
            test_accuracy: evaluation.correct as f64 / evaluation.predictions as f64,
            ..trained
        })
    }

    /// Tells what a tuner has found out, and now and then what it has learned: of a job that is killed, too, most is kept.
    fn tell_news(&mut self, observer: &mut dyn Observer) {
        let news = [self.stages.take_tuning_news(), self.worker.take_news()].concat();
        news.iter().for_each(|news| observer.tuned(self.worker.iteration(), news));
        if self.told.elapsed() >= LESSONS_EVERY {
            self.tell_lessons(observer);
        }
    }

    fn tell_lessons(&mut self, observer: &mut dyn Observer) {
        self.told = Instant::now();
        if let Some(lessons) = self.worker.lessons() {
            observer.learned(&lessons);
        }
    }

    /// One update of the parameters from `accumulate` joined batches, fewer at the end of an epoch.
    fn update(&mut self, number: usize, order: &[usize]) -> Result<Update, TrainError> {
        let (data, sharding, rank) = (self.data, &self.sharding, self.communicator.rank());
        let part = |batch: usize| &order[sharding.part(batch, rank)];
        let load = |indices: &[usize]| (!indices.is_empty()).then(|| data.training.batch(indices));
        let first = number * self.options.accumulate;
        self.stages.before_update(&mut self.worker, &|| load(part(first)))?;
        let batches = first..(first + self.options.accumulate).min(self.sharding.batches());
        let samples: usize = batches.clone().map(|batch| self.sharding.joined(batch).len()).sum();
        let began = Instant::now();
        let mut update = Update { samples, local_samples: 0, loss_sum: 0.0 };
        for batch in batches.clone() {
            let indices = part(batch);
            let weight = (indices.len() as f64 / samples as f64) as f32;
            let pass = Pass { weight, first: batch == batches.start, last: batch + 1 == batches.end };
            let loading = Instant::now();
            let batch = load(indices);
            self.worker.note_before_pass(loading.elapsed());
            update.loss_sum += self.worker.pass(batch.as_ref(), pass)? * indices.len() as f64;
            update.local_samples += indices.len();
        }
        // The last update of an epoch may have fewer samples: its time says nothing about the others.
        if samples < self.options.accumulate * self.sharding.joined(0).len() {
            self.stages.interrupt();
        }
        self.stages.note(began.elapsed());
        Ok(update)
    }

    /// Every rank evaluates its part of the test samples, with rank 0's buffers.
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let (rank, world_size) = (self.communicator.rank(), self.communicator.world_size());
        let part: Vec<usize> = split(self.data.test.len(), world_size, rank).collect();
        broadcast_buffers(self.communicator, self.worker.backend.as_mut())?;
        let mut sum = Evaluation::default();
        for indices in part.chunks(self.evaluation_batch()) {
            let evaluated = self.worker.backend.evaluate(&self.data.test.batch(indices));
            sum.add(evaluated.map_err(|source| TrainError::Backend { rank, source })?);
        }
        let mut sums = [sum.loss_sum, sum.correct as f64, sum.predictions as f64];
        let reduced = self.communicator.all_reduce(&mut sums, Reduction::Sum, &CallOptions::default());
        reduced.while_training("adding up the evaluation")?;
        Ok(Evaluation { loss_sum: sums[0], correct: sums[1] as usize, predictions: sums[2] as usize })
    }

    /// Samples that are evaluated together; bounds the memory for the activations.
    fn evaluation_batch(&self) -> usize {
        let features = self.data.test.batch(&[0]).features().max(1);
        (EVALUATION_FEATURES / features).clamp(1, EVALUATION_BATCH)
    }

    fn iterations_per_epoch(&self) -> usize {
        self.sharding.batches().div_ceil(self.options.accumulate)
    }

    fn not_finite(&self, what: &'static str) -> TrainError {
        let (iteration, learning_rate) = (self.worker.iteration(), self.worker.learning_rate());
        TrainError::NotFinite { what, iteration, learning_rate }
    }

    fn report(self, rows: Vec<EpochRow>) -> TrainReport {
        let sum = |value: fn(&EpochRow) -> f64| rows.iter().map(value).sum::<f64>();
        let (samples, seconds) = (sum(|row| row.samples as f64), sum(|row| row.seconds));
        let (options, world_size) = (self.options, self.communicator.world_size());
        let (sgd, adamw) = match options.optimizer {
            OptimizerSettings::Sgd(settings) => (Some(settings), None),
            OptimizerSettings::AdamW(settings) => (None, Some(settings)),
        };
        let fusion = self.stages.fusion_report();
        TrainReport {
            model: options.model_name().to_owned(),
            parameters: self.stages.plan().elements(),
            strategy: self.stages.plan().strategy.clone(),
            plan_hash: format!("{:016x}", self.stages.plan().hash()),
            buckets: self.stages.plan().buckets.len(),
            world_size,
            global_batch: options.global_batch(world_size),
            accumulate: options.accumulate,
            optimizer: options.optimizer.name(),
            learning_rate: options.learning_rate,
            lr_schedule: options.lr_schedule.to_string(),
            momentum: sgd.map(|settings| settings.momentum),
            nesterov: sgd.map(|settings| settings.nesterov),
            betas: adamw.map(|settings| settings.betas),
            epsilon: adamw.map(|settings| settings.epsilon),
            weight_decay: options.optimizer.weight_decay(),
            clip_norm: options.clip_norm,
            seed: options.seed,
            training_samples: self.data.training.len(),
            test_samples: self.data.test.len(),
            iterations: self.worker.iteration(),
            test_accuracy: rows.last().map_or(0.0, |row| row.test_accuracy),
            final_loss: rows.last().map_or(0.0, |row| row.loss),
            samples_per_s: samples / seconds,
            seconds,
            compute_s: sum(|row| row.compute_s),
            exposed_communication_s: sum(|row| row.exposed_communication_s),
            tuning: self.worker.tuning_report().map(|tuning| TuningReport { fusion, ..tuning }),
            epochs: rows,
            decisions: self.stages.decisions().to_vec(),
        }
    }
}

/// Small samples that are evaluated together, and features of large ones: six coloured images of 224 × 224 pixels.
const EVALUATION_BATCH: usize = 128;
const EVALUATION_FEATURES: usize = 1 << 20;

/// What a tuner has learned is told so often.
const LESSONS_EVERY: Duration = Duration::from_secs(60);

/// The links were made before the strategy was known here: do they run on what it names?
fn check_protocol(communicator: &Communicator, protocol: &Call) -> Result<(), TrainError> {
    let wanted = match protocol.name.as_str() {
        "shm" => Transport::Shm,
        "tcp" => Transport::Tcp,
        _ => return Ok(()),
    };
    let mut links = (0..communicator.world_size()).filter_map(|rank| Some((rank, communicator.transport(rank)?)));
    match links.find(|(_, transport)| *transport != wanted) {
        None => Ok(()),
        Some((rank, _)) => Err(TrainError::Options(format!(
            "the strategy says protocol={protocol}, but the link to rank {rank} runs on something else; connect the \
             ranks by {protocol}, or say protocol=auto"
        ))),
    }
}
