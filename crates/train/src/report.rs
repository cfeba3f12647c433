//! What training tells while it runs and when it is done.

use paceline_tune::learner::Lesson;
use serde::Serialize;

use crate::auto::Decision;
use crate::tuning::{TuningNews, TuningReport};

/// What a finished training reports. Every rank has the same one, but that only rank 0 knows of tuning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainReport {
    /// The model's name.
    pub model: String,
    /// Elements of all parameters (D).
    pub parameters: usize,
    /// The strategy in full: presets resolved, defaults filled in.
    pub strategy: String,
    /// The fingerprint of the plan that was executed, in hexadecimal.
    pub plan_hash: String,
    /// Buckets in which the gradients travelled.
    pub buckets: usize,
    /// Workers.
    pub world_size: usize,
    /// Samples per joined batch. An update takes `accumulate` of them.
    pub global_batch: usize,
    /// Passes per update.
    pub accumulate: usize,
    /// The optimiser: `sgd`, `adamw`.
    pub optimizer: &'static str,
    /// As it was asked for; `lr_schedule` changes it.
    pub learning_rate: f32,
    /// How the learning rate changes, as it is written.
    pub lr_schedule: String,
    /// Of `sgd`.
    pub momentum: Option<f32>,
    /// Of `sgd`: Nesterov's momentum.
    pub nesterov: Option<bool>,
    /// Of `adamw`.
    pub betas: Option<[f64; 2]>,
    /// Of `adamw`.
    pub epsilon: Option<f64>,
    /// Of the optimiser.
    pub weight_decay: f32,
    /// Gradients of a larger norm were scaled down to it.
    pub clip_norm: Option<f32>,
    /// Of the initial parameters and the sample order.
    pub seed: u64,
    /// Images that were trained on.
    pub training_samples: usize,
    /// Images on which the accuracy was measured.
    pub test_samples: usize,
    /// Updates.
    pub iterations: usize,
    /// Share of the test images that were classified rightly after the last epoch, 0…1.
    pub test_accuracy: f64,
    /// Mean loss per training sample in the last epoch.
    pub final_loss: f64,
    /// Training samples per second, all workers together; evaluation does not count.
    pub samples_per_s: f64,
    /// Seconds of training, evaluation not counted; of the slowest rank.
    pub seconds: f64,
    /// Seconds outside the communicator; mean over the ranks.
    pub compute_s: f64,
    /// Seconds for which the training thread was in the communicator instead of computing; mean over the ranks.
    pub exposed_communication_s: f64,
    /// What tuning has come to, if calls were tuned; at rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningReport>,
    /// Epoch by epoch.
    pub epochs: Vec<EpochRow>,
    /// What `strategy=auto` has decided; empty where nothing was left open.
    pub decisions: Vec<Decision>,
}

impl TrainReport {
    /// The part of the time that communication was not hidden, 0…1.
    pub fn communication_share(&self) -> f64 {
        share(self.exposed_communication_s, self.compute_s)
    }
}

fn share(exposed_communication_s: f64, compute_s: f64) -> f64 {
    exposed_communication_s / (exposed_communication_s + compute_s)
}

/// One epoch, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochRow {
    /// Counted from 1.
    pub epoch: usize,
    /// Updates in this epoch; the last epoch may be cut short.
    pub iterations: usize,
    /// Samples trained on.
    pub samples: usize,
    /// The learning rate of its last update.
    pub learning_rate: f32,
    /// Mean loss per training sample, as the parameters were when it was seen.
    pub loss: f64,
    /// Mean loss per test sample after the epoch.
    pub test_loss: f64,
    /// Share of the test images that are classified rightly after the epoch, 0…1.
    pub test_accuracy: f64,
    /// Training samples per second, all workers together.
    pub samples_per_s: f64,
    /// Seconds of training, of the slowest rank.
    pub seconds: f64,
    /// Seconds outside the communicator; mean over the ranks.
    pub compute_s: f64,
    /// Seconds for which the training thread was in the communicator; mean over the ranks.
    pub exposed_communication_s: f64,
}

impl EpochRow {
    /// The part of the time that communication was not hidden, 0…1.
    pub fn communication_share(&self) -> f64 {
        share(self.exposed_communication_s, self.compute_s)
    }
}

/// What is about to be trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// The strategy in full.
    pub strategy: String,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Buckets per update.
    pub buckets: usize,
    /// Updates in a whole epoch.
    pub iterations_per_epoch: usize,
    /// Updates until the end.
    pub iterations: usize,
    /// Samples per joined batch.
    pub global_batch: usize,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The running epoch, counted from 1.
    pub epoch: usize,
    /// Updates so far, over all epochs.
    pub iteration: usize,
    /// Samples of this update, over all ranks.
    pub samples: usize,
    /// Mean loss of this rank's samples in this update; none if it had no sample.
    pub loss: Option<f64>,
}

/// Is told how training goes, on the rank that it is given to. The methods are called from the thread that trains:
/// what they take is taken from training.
pub trait Observer: Send {
    /// Everything is agreed; the first iteration comes next.
    fn started(&mut self, start: &Start) {
        let _ = start;
    }

    /// The parameters have been updated.
    fn iteration(&mut self, progress: &Progress) {
        let _ = progress;
    }

    /// `strategy=auto` has chosen a plan, or has looked and kept the one that there is.
    fn decided(&mut self, decision: &Decision) {
        let _ = decision;
    }

    /// A tuner has found out something, by so many updates; at rank 0.
    fn tuned(&mut self, iteration: usize, news: &TuningNews) {
        let _ = (iteration, news);
    }

    /// What a tuner has learned so far, for later jobs: every minute, and when training ends; at rank 0.
    fn learned(&mut self, lessons: &[Lesson]) {
        let _ = lessons;
    }

    /// An epoch has been trained and evaluated.
    fn epoch(&mut self, row: &EpochRow) {
        let _ = row;
    }
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
