//! The study's protocol for one cell and one run: so many iterations to warm up, so many that count.

use std::time::Duration;

use paceline_compress::{Compression, Compressors};
use paceline_plan::{LinkCosts, Plan};
use paceline_schedule::Schedulers;
use paceline_strategy::Strategy;
use paceline_tune::Policy;
use serde::{Deserialize, Serialize};

mod beside;
mod choice;
mod conduct;
mod cost;
mod lanes;
mod probe;
mod processors;
mod record;
mod statistics;
mod summary;
mod together;

pub use beside::Interference;
pub(crate) use beside::measure_interference;
pub use conduct::{Subject, measure};
pub(crate) use cost::{Before, communication_cost, communication_cost_again};
pub use record::RECORDED_ITERATIONS;
pub use statistics::student_t_975;
pub(crate) use statistics::{fit, median, relative_half_width};
pub(crate) use together::{Passing, together_s, with_passes};

use crate::auto::Decision;
use crate::error::TrainError;
use crate::timeline::Timeline;
use crate::tuning::{FollowedOperations, TuneOptions, TuningReport, refuse_without_all_reduces};

/// How a cell is measured. The default is the study's protocol: 10 iterations to warm up, 100 that count.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// How the workers communicate, in the grammar of `paceline-strategy`.
    pub strategy: String,
    /// What it may name: Paceline's schedules, and the caller's own.
    pub schedulers: Schedulers,
    /// The compressors that it may name. Sums of a replay are checked only where all of a strategy is lossless.
    pub compressors: Compressors,
    /// Samples per worker and iteration. A replayed profile is scaled to it.
    pub local_batch: usize,
    /// Iterations before those that count; at least one is made.
    pub warm_up: usize,
    /// How many count.
    pub length: Length,
    /// Computation is replayed so many times slower, and reported times are divided by it. The links must be slowed by
    /// the same factor. 1 for real computation.
    pub dilate: f64,
    /// Threads that compute in each worker; real computation only.
    pub threads: usize,
    /// Of the initial parameters and the order of samples.
    pub seed: u64,
    /// A replay that comes later than its profile says by more than this share of an iteration's computation has
    /// overrun.
    pub late_share_max: f64,
    /// Record one more iteration, after those that count; it takes [`RECORDED_ITERATIONS`].
    pub timeline: bool,
    /// Tune all-reduces: in iterations before those that count, until everything is decided, but in no more than
    /// [`TuneOptions::iterations`]; and in those that count.
    pub tune: Option<TuneOptions>,
    /// A policy that all-reduces follow, learned elsewhere; nothing more is learned. All workers have the same one.
    pub policy: Option<Policy>,
}

/// How many iterations count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// This many.
    Iterations(usize),
    /// Until the 95 % confidence interval of the mean is within ± `relative` of it.
    Confident {
        /// Half the interval's width, as a share of the mean.
        relative: f64,
        /// At least this many; no fewer than two.
        at_least: usize,
        /// At most this many.
        at_most: usize,
        /// No further iterations so long after the first one that counts, once there are `at_least`.
        budget: Duration,
    },
}

impl Length {
    /// Is there something to measure: iterations, of so many samples, on so many threads?
    pub(crate) fn check_with(self, local_batch: usize, threads: usize) -> Result<(), TrainError> {
        let iterations = match self {
            Length::Iterations(count) => count,
            Length::Confident { at_most, .. } => at_most,
        };
        let counts = [("local batch", local_batch), ("iterations", iterations), ("threads", threads)];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(TrainError::Options(format!("{name} must be at least 1"))),
            None => Ok(()),
        }
    }
}

impl MeasureOptions {
    /// Iterations that are made before the measured ones: at least one, as an iteration is timed from the end of another.
    fn warm_up(&self) -> usize {
        self.warm_up.max(1)
    }

    /// Do the options make sense? The strategy, with every aspect.
    ///
    /// # Errors
    /// [`TrainError::Options`] names the option that does not; [`TrainError::Strategy`].
    fn check(&self) -> Result<Strategy, TrainError> {
        self.length.check_with(self.local_batch, self.threads)?;
        if !(self.dilate.is_finite() && self.dilate >= 1.0) {
            return Err(TrainError::Options(format!("dilate {} must be at least 1", self.dilate)));
        }
        let parsed = self.schedulers.grammar().parse(&self.strategy);
        let strategy = parsed.map_err(|source| TrainError::Strategy { text: self.strategy.clone(), source })?;
        let asked = [self.tune.as_ref().map(|_| "--tune"), self.policy.as_ref().map(|_| "--policy")];
        asked.into_iter().flatten().try_for_each(|option| refuse_without_all_reduces(option, &strategy))?;
        if self.tune.as_ref().is_some_and(|tune| tune.fusion) {
            return Err(TrainError::Options(
                "a fusion threshold is tuned while training runs, and a measurement is of one plan; measure \
                 schedule=fusion:BYTES for each threshold, or leave TuneOptions::fusion out"
                    .into(),
            ));
        }
        Ok(strategy)
    }

    /// The compressor that the strategy names; nothing if it is `none`.
    ///
    /// # Errors
    /// [`TrainError::Options`] if there is no such compressor.
    fn compression(&self, strategy: &Strategy) -> Result<Option<Compression>, TrainError> {
        self.compressors.of(strategy).map_err(|unknown| TrainError::Options(unknown.to_string()))
    }
}

impl Default for MeasureOptions {
    fn default() -> Self {
        MeasureOptions {
            strategy: "wfbp-a2a".into(),
            schedulers: Schedulers::built_in(),
            compressors: Compressors::default(),
            local_batch: 32,
            warm_up: 10,
            length: Length::Iterations(100),
            dilate: 1.0,
            threads: 1,
            seed: 1,
            late_share_max: LATE_SHARE_MAX,
            timeline: false,
            tune: None,
            policy: None,
        }
    }
}

/// Schedules are held to 3 % of their formulas, and differ by little more: what is late by more than this says nothing of them.
const LATE_SHARE_MAX: f64 = 0.02;

/// What one run of one cell gave. Every worker has the same, but that only worker 0 has the timeline and what was tuned. Times are those of
/// the undilated machine, except where it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellRun {
    /// The model's name.
    pub model: String,
    /// Elements of all parameters (D).
    pub parameters: usize,
    /// Tensors of the model.
    pub tensors: usize,
    /// Multiply-accumulates of a forward pass per sample, if the profile says it.
    pub forward_macs_per_sample: Option<u64>,
    /// Where the computation's times came from, if it was replayed.
    pub replayed: Option<String>,
    /// The strategy in full: presets resolved, defaults filled in.
    pub strategy: String,
    /// The plan under which the counted iterations ran.
    pub plan: Plan,
    /// Its fingerprint, in hexadecimal.
    pub plan_hash: String,
    /// Workers.
    pub workers: usize,
    /// Shards that serve them under this plan, of which more may have been met; 0 without a parameter server.
    pub shards: usize,
    /// Samples per worker and iteration.
    pub local_batch: usize,
    /// Computation and links were slowed by this factor.
    pub dilate: f64,
    /// What carried the data between the workers.
    pub transport: String,
    /// What links cost, as the ranks agreed when they met: before any iteration. None for a single worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkCosts>,
    /// Iterations before the measured ones.
    pub warm_up: usize,
    /// Seconds of each measured iteration: between the moments at which the slowest worker has ended two of them.
    pub iteration_s: Vec<f64>,
    /// The 95 % interval became narrow enough; true where it was not asked for.
    pub confident: bool,
    /// Seconds of computation per iteration (forward, backward and update); the mean over iterations and workers.
    pub compute_s: f64,
    /// Seconds per iteration in which a worker waited for communication; the mean over iterations and workers.
    pub exposed_communication_s: f64,
    /// Bytes that left a worker per iteration; the mean over the workers. Shards are not counted.
    pub bytes_per_iteration: f64,
    /// Messages that left a worker per iteration; the mean over the workers.
    pub messages_per_iteration: f64,
    /// Seconds per tensor that deciding what travels when has cost, by the clock, with no dilation divided out; the median
    /// over iterations, the maximum over the workers.
    pub scheduling_s_per_tensor: f64,
    /// What a schedule's own formula needs, as it was measured here.
    pub inputs: FormulaInputs,
    /// Of a replay: how late its processor was.
    pub lateness: Option<Lateness>,
    /// What `strategy=auto` chose before the measured iterations, why, and whether it came true.
    pub decision: Option<Decision>,
    /// What it had chosen before that, with what iterations took under it: so much else than was expected that it chose again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Decision>,
    /// One more iteration, on all workers and shards; at worker 0, if it was asked for.
    pub timeline: Option<Timeline>,
    /// What tuning has come to, with its lessons; at worker 0, if calls were tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningReport>,
    /// How much of an iteration a policy decided, if one was followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<FollowedOperations>,
}

/// What a schedule's own formula needs: the mean over the counted iterations and the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FormulaInputs {
    /// Seconds of forward without waiting.
    pub forward_s: f64,
    /// Seconds of backward.
    pub backward_s: f64,
    /// Seconds of the optimiser.
    pub update_s: f64,
    /// By tensor: seconds from the start of backward until its gradient was final.
    pub ready_s: Vec<f64>,
    /// Elements of each tensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<usize>,
    /// What an operation costs that has the network for itself; none for a single worker.
    pub communication: Option<CommunicationCost>,
    /// Seconds of forward and backward where all workers compute at once and nobody communicates: until the last one has ended,
    /// the mean over a few passes before any iteration. None of a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_s: Option<f64>,
    /// What such passes and all-reduces cost each other. None of a replay, and of a single worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<Interference>,
}

/// What an operation costs that has the network for itself: alpha + beta · bytes, fitted to measured calls.
/// Besides what several take at once, and what one takes that overtakes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommunicationCost {
    /// Seconds per operation, the artificial start-up time included.
    pub alpha_s: f64,
    /// Seconds per byte.
    pub beta_s_per_byte: f64,
    /// What was measured, by size: bytes and seconds, the median of a few calls, each as long as the slowest worker's.
    pub points: Vec<(u64, f64)>,
    /// What several of the smallest size take at once. None: that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlight>,
    /// What several large ones take at once. None: that was not measured, or there are not enough gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large_in_flight: Option<InFlight>,
    /// What it takes a small one and a larger one to overtake such large ones. Empty: as none of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overtaking: Vec<Overtaking>,
}

/// Operations of one size that were started at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// How many.
    pub operations: usize,
    /// Bytes of each.
    pub bytes: u64,
    /// Seconds until all have ended, as of `points`.
    pub seconds: f64,
}

/// An operation that is more urgent than others, and started when they are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overtaking {
    /// Its bytes.
    pub bytes: u64,
    /// Seconds that it takes longer than by itself: the difference of medians, each time that of the fastest worker, as none
    /// knows how much earlier than the others it starts.
    pub longer_s: f64,
}

/// How well the processors kept up with a replay: its sleeps end later than the profile says when they are busy, and
/// communication that they limit is not the network's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// The largest lateness in an iteration as a share of its computation; the mean over the iterations, of the worst
    /// worker.
    pub share: f64,
    /// More than was allowed: the run does not count.
    pub overrun: bool,
    /// Processors that the processes of workers and servers kept busy, all of them together, while a worker waited for communication; the
    /// mean over all that workers waited. None if none had to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors_busy: Option<f64>,
}

impl CommunicationCost {
    /// Of operations that were measured by size, and nothing else.
    pub fn of_points(points: Vec<(u64, f64)>) -> CommunicationCost {
        let (alpha_s, beta_s_per_byte) = fit(&points);
        CommunicationCost {
            alpha_s,
            beta_s_per_byte,
            points,
            in_flight: None,
            large_in_flight: None,
            overtaking: Vec::new(),
        }
    }

    /// Seconds of its own for which each of several of the smallest operations occupies the network, and the bytes of one: what
    /// many take longer than one. Not more than one takes by itself. None: it was not measured, or makes no sense.
    pub fn occupied_s(&self) -> Option<(u64, f64)> {
        self.each_occupies_s(self.in_flight?)
    }

    /// Bytes of a small and of a large operation, and for how much longer each further byte occupies the network where several
    /// travel at once: less than what it adds to an operation by itself, which has to fill its own pipeline. None: as
    /// [`occupied_s`](Self::occupied_s).
    pub fn occupied_s_per_byte(&self) -> Option<([u64; 2], f64)> {
        let ((small, small_s), (large, large_s)) = (self.occupied_s()?, self.each_occupies_s(self.large_in_flight?)?);
        (large > small && large_s > small_s).then(|| ([small, large], (large_s - small_s) / (large - small) as f64))
    }

    fn each_occupies_s(&self, InFlight { operations, bytes, seconds }: InFlight) -> Option<(u64, f64)> {
        let alone_s = self.seconds(bytes);
        let more_s = (seconds - alone_s) / operations.checked_sub(1).filter(|more| *more > 0)? as f64;
        // Several are not faster than one of them.
        (more_s > 0.0).then(|| (bytes, more_s.min(alone_s)))
    }

    /// What an operation of so many bytes costs: between measured points on the line through them, beyond the last one
    /// with the slope of the fit.
    pub fn seconds(&self, bytes: u64) -> f64 {
        let after = self.points.partition_point(|&(size, _)| size <= bytes);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((low, start)), Some(&(high, end))) => {
                start + (end - start) * (bytes - low) as f64 / (high - low) as f64
            }
            (Some((last, seconds)), None) => seconds + self.beta_s_per_byte * (bytes - last) as f64,
            (None, Some(&(_, first))) => first,
            (None, None) => self.alpha_s + self.beta_s_per_byte * bytes as f64,
        }
    }

    /// What it would be if nothing were slowed.
    fn undilated(&self, dilate: f64) -> CommunicationCost {
        let undilated = |all: InFlight| InFlight { seconds: all.seconds / dilate, ..all };
        let overtaking = |of: &Overtaking| Overtaking { longer_s: of.longer_s / dilate, ..*of };
        CommunicationCost {
            alpha_s: self.alpha_s / dilate,
            beta_s_per_byte: self.beta_s_per_byte / dilate,
            points: self.points.iter().map(|&(bytes, seconds)| (bytes, seconds / dilate)).collect(),
            in_flight: self.in_flight.map(undilated),
            large_in_flight: self.large_in_flight.map(undilated),
            overtaking: self.overtaking.iter().map(overtaking).collect(),
        }
    }
}

impl CellRun {
    /// Mean seconds of a measured iteration.
    pub fn mean_iteration_s(&self) -> f64 {
        self.iteration_s.iter().sum::<f64>() / self.iteration_s.len() as f64
    }

    /// Samples per second of all workers together.
    pub fn samples_per_s(&self) -> f64 {
        (self.workers * self.local_batch) as f64 / self.mean_iteration_s()
    }

    /// A replay whose processor could not keep up is not counted.
    pub fn overrun(&self) -> bool {
        self.lateness.is_some_and(|lateness| lateness.overrun)
    }
}
