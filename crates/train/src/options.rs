use std::path::PathBuf;

use paceline_compress::{Compression, Compressors};
use paceline_plan::Plan;
use paceline_schedule::{Schedulers, Workload};
use paceline_strategy::Strategy;
use paceline_tune::Policy;

use crate::backend::ModelName;
use crate::data::DataSource;
use crate::error::TrainError;
use crate::executed::ExecutedPlans;
use crate::fusion::refuse_without_threshold;
use crate::learning_rate::{LearningRate, LearningRateSchedule};
use crate::optimizer::OptimizerSettings;
use crate::tuning::{TuneOptions, refuse_without_all_reduces};
use crate::update_rule::UpdateRule;

/// What to train and how. By default the cnn is trained on the sample to about 86 % test accuracy, the same way whatever
/// the number of workers.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// The model.
    pub model: ModelName,
    /// The name of a model of the caller's own ([`crate::train_model`]), for reports; `model` means nothing then.
    pub own_model: Option<String>,
    /// The images.
    pub data: DataSource,
    /// How the workers communicate: a preset or aspects, in the grammar of `paceline-strategy`.
    pub strategy: String,
    /// What it may name: Paceline's schedules, and the caller's own.
    pub schedulers: Schedulers,
    /// The compressors that it may name. Those of the caller's own must be the same on all ranks.
    pub compressors: Compressors,
    /// Passes over the training images. With `iterations`: whichever ends first. Neither: [`DEFAULT_EPOCHS`].
    pub epochs: Option<usize>,
    /// Updates of the parameters.
    pub iterations: Option<usize>,
    /// Samples per forward and backward pass.
    pub batch: BatchSize,
    /// Passes per update; the ranks communicate in the last one only. An update is the mean over all its samples.
    pub accumulate: usize,
    /// The optimiser and its constants.
    pub optimizer: OptimizerSettings,
    /// How far updates go; finite and not negative.
    pub learning_rate: f32,
    /// How the learning rate changes.
    pub lr_schedule: LearningRateSchedule,
    /// Gradients whose norm over all parameters is larger are scaled down to this one. All gradients must have come
    /// before the first parameter is updated, so a schedule that overlaps the next forward pass cannot have it.
    pub clip_norm: Option<f32>,
    /// Of the initial parameters and the sample order: the same seed, the same run.
    pub seed: u64,
    /// Threads that compute in each worker. One, unless the worker has the machine to itself.
    ///
    /// candle sizes its own pools by the environment variable `RAYON_NUM_THREADS`: a launcher of several workers per
    /// machine should set that as well.
    pub threads: usize,
    /// Tune all-reduces while training runs. Sums may have other bits than without, the same on all ranks.
    pub tune: Option<TuneOptions>,
    /// A policy that all-reduces follow, learned elsewhere; nothing more is learned. All ranks have the same one.
    pub policy: Option<Policy>,
    /// Plans to carry out again, instead of the one that the strategy gives.
    pub plan: Option<ExecutedPlans>,
    /// Where rank 0 writes the plans that were carried out ([`ExecutedPlans`]).
    pub dump_plan: Option<PathBuf>,
    /// Where to write each rank's parameters and buffers after training: `rank-0.safetensors`, `rank-1.safetensors`, ….
    pub dump_parameters: Option<PathBuf>,
}

/// Samples per forward and backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// This many on every worker.
    Local(usize),
    /// This many on all workers together; the first workers take one more where it does not divide.
    Global(usize),
}

/// Epochs where neither epochs nor iterations are given.
pub const DEFAULT_EPOCHS: usize = 10;

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            model: ModelName::default(),
            own_model: None,
            data: DataSource::default(),
            strategy: "wfbp-a2a".into(),
            schedulers: Schedulers::built_in(),
            compressors: Compressors::default(),
            epochs: None,
            iterations: None,
            batch: BatchSize::Global(32),
            accumulate: 1,
            optimizer: OptimizerSettings::default(),
            learning_rate: OptimizerSettings::default().default_learning_rate(),
            lr_schedule: LearningRateSchedule::default(),
            clip_norm: None,
            seed: 1,
            threads: 1,
            tune: None,
            policy: None,
            plan: None,
            dump_plan: None,
            dump_parameters: None,
        }
    }
}

impl TrainOptions {
    /// What reports call the model.
    pub fn model_name(&self) -> &str {
        self.own_model.as_deref().unwrap_or(self.model.name())
    }

    /// What becomes of gradients in a training of `iterations`, of which an epoch has `per_epoch`.
    pub(crate) fn update_rule(&self, per_epoch: usize, iterations: usize) -> UpdateRule {
        let learning_rate = LearningRate::new(self.learning_rate, &self.lr_schedule, per_epoch, iterations);
        UpdateRule { optimizer: self.optimizer, learning_rate, clip_norm: self.clip_norm }
    }

    /// Samples per joined batch.
    pub fn global_batch(&self, world_size: usize) -> usize {
        match self.batch {
            BatchSize::Local(samples) => samples.saturating_mul(world_size),
            BatchSize::Global(samples) => samples,
        }
    }

    /// Updates until the end, when an epoch has `per_epoch`.
    pub(crate) fn total_iterations(&self, per_epoch: usize) -> usize {
        let of_epochs = |epochs: usize| epochs.saturating_mul(per_epoch);
        match (self.epochs, self.iterations) {
            (Some(epochs), Some(iterations)) => of_epochs(epochs).min(iterations),
            (None, Some(iterations)) => iterations,
            (epochs, None) => of_epochs(epochs.unwrap_or(DEFAULT_EPOCHS)),
        }
    }

    /// Do the options make sense? [`crate::train`] asks this first.
    ///
    /// # Errors
    /// [`TrainError::Options`] names the option that does not.
    pub fn check(&self) -> Result<(), TrainError> {
        let (BatchSize::Local(batch) | BatchSize::Global(batch)) = self.batch;
        let counts = [
            ("batch", Some(batch)),
            ("accumulate", Some(self.accumulate)),
            ("threads", Some(self.threads)),
            ("epochs", self.epochs),
            ("iterations", self.iterations),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(TrainError::Options(format!("{name} must be at least 1")));
        }
        let learning_rate = self.learning_rate;
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            let what = format!("learning rate {learning_rate} must be finite and not negative");
            return Err(TrainError::Options(what));
        }
        self.optimizer.check().map_err(TrainError::Options)?;
        let strategy = self.parsed_strategy()?;
        self.compression(&strategy)?;
        self.check_tuning(&strategy)?;
        self.check_clipping(&strategy)
    }

    /// Is there something to tune, if it must be?
    fn check_tuning(&self, strategy: &Strategy) -> Result<(), TrainError> {
        if self.policy.is_some() {
            if self.tune.is_some() || self.plan.is_some() {
                return Err(TrainError::Options(
                    "--policy says how all-reduces are done, and --tune and --plan would do them otherwise; leave one of \
                     them out"
                        .into(),
                ));
            }
            return refuse_without_all_reduces("--policy", strategy);
        }
        let Some(tune) = &self.tune else { return Ok(()) };
        if self.plan.is_some() {
            return Err(TrainError::Options(
                "--tune tries other choices than those that --plan carries out again; leave one of them out".into(),
            ));
        }
        refuse_without_all_reduces("--tune", strategy)?;
        if tune.fusion { refuse_without_threshold(strategy) } else { Ok(()) }
    }

    /// Can this strategy clip, if it must?
    fn check_clipping(&self, strategy: &Strategy) -> Result<(), TrainError> {
        let Some(norm) = self.clip_norm else { return Ok(()) };
        if !(norm.is_finite() && norm > 0.0) {
            return Err(TrainError::Options(format!("clip norm {norm} must be finite and above 0")));
        }
        if strategy.servers_apply() {
            return Err(TrainError::Options(format!(
                "--clip-norm needs the norm of the whole gradient before the first update, and a server that has the \
                 optimiser (arch={}) sees its own partitions only; choose the mode aggregate, or leave --clip-norm out",
                strategy.arch
            )));
        }
        // Whether a schedule overlaps the next forward pass does not depend on the model; if it does, the plan says it.
        let scheduler = self.schedulers.get(&strategy.schedule.name);
        let schedule = scheduler.map(|it| it.schedule(&strategy.schedule, &Workload::of_sizes(&[1])));
        let overlaps = schedule.is_some_and(|schedule| schedule.is_ok_and(|schedule| schedule.forward_overlap));
        self.refuse_clipping(overlaps, &strategy.schedule.to_string())
    }

    /// Can this plan clip, if it must?
    ///
    /// # Errors
    /// [`TrainError::Options`] says why not.
    pub(crate) fn check_clipping_under(&self, plan: &Plan) -> Result<(), TrainError> {
        self.refuse_clipping(plan.forward_overlap, &plan.strategy)
    }

    fn refuse_clipping(&self, overlaps_forward: bool, by: &str) -> Result<(), TrainError> {
        if self.clip_norm.is_none() || !overlaps_forward {
            return Ok(());
        }
        Err(TrainError::Options(format!(
            "--clip-norm needs all gradients before the first update, and {by} updates the first layers and goes on with \
             forward while the other gradients are on their way; choose a schedule that waits for all (wfbp, ddp, \
             mg-wfbp), or leave --clip-norm out"
        )))
    }

    /// The strategy, with presets resolved and defaults filled in.
    ///
    /// # Errors
    /// [`TrainError::Strategy`] if the text is none that can be run.
    pub fn parsed_strategy(&self) -> Result<Strategy, TrainError> {
        let parsed = self.schedulers.grammar().parse(&self.strategy);
        parsed.map_err(|source| TrainError::Strategy { text: self.strategy.clone(), source })
    }

    /// The compressor that it names; nothing if it is `none`.
    ///
    /// # Errors
    /// [`TrainError::Options`] if there is no such compressor.
    pub(crate) fn compression(&self, strategy: &Strategy) -> Result<Option<Compression>, TrainError> {
        self.compressors.of(strategy).map_err(|unknown| TrainError::Options(unknown.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::SgdSettings;

    #[test]
    fn senseless_options_are_named() {
        let default = TrainOptions::default;
        let sgd = |momentum, weight_decay| {
            let settings = SgdSettings { momentum, weight_decay, nesterov: false };
            TrainOptions { optimizer: OptimizerSettings::Sgd(settings), ..default() }
        };
        let clipping =
            |norm, strategy: &str| TrainOptions { clip_norm: Some(norm), strategy: strategy.into(), ..default() };
        let tuned = |strategy: &str| TrainOptions {
            tune: Some(TuneOptions::default()),
            strategy: strategy.into(),
            ..default()
        };
        let fused = |strategy: &str| TrainOptions {
            tune: Some(TuneOptions { fusion: true, ..TuneOptions::default() }),
            ..tuned(strategy)
        };
        let again = || ExecutedPlans { schema: ExecutedPlans::SCHEMA, update_rule: None, stages: Vec::new() };
        let cases = [
            (TrainOptions { batch: BatchSize::Local(0), ..default() }, "batch"),
            (TrainOptions { batch: BatchSize::Global(0), ..default() }, "batch"),
            (TrainOptions { accumulate: 0, ..default() }, "accumulate"),
            (TrainOptions { epochs: Some(0), ..default() }, "epochs"),
            (TrainOptions { iterations: Some(0), ..default() }, "iterations"),
            (TrainOptions { threads: 0, ..default() }, "threads"),
            (TrainOptions { learning_rate: f32::NAN, ..default() }, "learning rate"),
            (TrainOptions { learning_rate: -0.1, ..default() }, "learning rate"),
            (sgd(0.9, f32::INFINITY), "weight decay"),
            (sgd(1.0, 0.0), "momentum"),
            (clipping(0.0, "ddp"), "clip norm 0 must be finite and above 0"),
            (clipping(f32::NAN, "ddp"), "clip norm NaN"),
            (clipping(1.0, "bytescheduler-a2a"), "bytescheduler:4000KiB:16000KiB updates the first layers"),
            (clipping(1.0, "bytescheduler-ps"), "--clip-norm needs all gradients before the first update"),
            (clipping(1.0, "wfbp-ps,arch=ps:apply"), "a server that has the optimiser (arch=ps:hosts"),
            (TrainOptions { strategy: "wfpb-a2a".into(), ..default() }, "did you mean `wfbp-a2a`"),
            (TrainOptions { plan: Some(again()), ..tuned("ddp") }, "--plan carries out again"),
            (tuned("wfbp-ps"), "--tune chooses how all-reduces are done"),
            (fused("ddp,arch=ps"), "--tune chooses how all-reduces are done"),
            (fused("wfbp-a2a"), "schedule=wfbp has none; choose ddp or schedule=fusion:BYTES"),
            (fused("auto"), "chosen from predictions; choose ddp"),
            (fused("ddp,arch=auto"), "and with schedule=ddp and arch=auto what is fused is chosen"),
            (TrainOptions { policy: Some(Policy::default()), ..tuned("ddp") }, "--policy says how"),
            (
                TrainOptions { policy: Some(Policy::default()), strategy: "wfbp-ps".into(), ..default() },
                "--policy chooses how all-reduces are done",
            ),
        ];
        assert!(default().check().is_ok() && tuned("ddp").check().is_ok());
        assert!(["ddp", "fusion:4MiB", "fusion:4MiB:1MiB,arch=a2a:ring"].iter().all(|it| fused(it).check().is_ok()));
        for strategy in ["mg-wfbp", "wfbp-ps", "schedule=server-priority,arch=ps"] {
            assert!(clipping(1.0, strategy).check().is_ok(), "{strategy}");
        }
        for (options, word) in cases {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(word), "`{error}` does not name the {word}");
        }
    }

    #[test]
    fn a_batch_beyond_all_samples_is_the_largest_there_is() {
        let options = TrainOptions { batch: BatchSize::Local(usize::MAX / 2), ..TrainOptions::default() };
        assert_eq!(options.global_batch(4), usize::MAX);
    }

    #[test]
    fn epochs_and_iterations_limit_each_other() {
        let total =
            |epochs, iterations| TrainOptions { epochs, iterations, ..TrainOptions::default() }.total_iterations(10);
        assert_eq!(total(None, None), 10 * DEFAULT_EPOCHS);
        assert_eq!(total(Some(3), None), 30);
        assert_eq!(total(None, Some(77)), 77);
        assert_eq!(total(Some(3), Some(77)), 30);
        assert_eq!(total(Some(3), Some(7)), 7);
    }
}
