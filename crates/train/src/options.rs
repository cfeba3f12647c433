use std::path::PathBuf;

use paceline_strategy::{Registry, Strategy};

use crate::backend::ModelName;
use crate::data::DataSource;
use crate::error::TrainError;
use crate::executed::ExecutedPlans;
use crate::optimizer::SgdSettings;

/// What to train and how. By default the cnn is trained on the sample to about 86 % test accuracy, the same way whatever
/// the number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// The model.
    pub model: ModelName,
    /// The images.
    pub data: DataSource,
    /// How the workers communicate: a preset or aspects, in the grammar of `paceline-strategy`.
    pub strategy: String,
    /// Passes over the training images. With `iterations`: whichever ends first. Neither: [`DEFAULT_EPOCHS`].
    pub epochs: Option<usize>,
    /// Updates of the parameters.
    pub iterations: Option<usize>,
    /// Samples per forward and backward pass.
    pub batch: BatchSize,
    /// Passes per update; the ranks communicate in the last one only. An update is the mean over all its samples.
    pub accumulate: usize,
    /// Learning rate, momentum and weight decay.
    pub optimizer: SgdSettings,
    /// Of the initial parameters and the sample order: the same seed, the same run.
    pub seed: u64,
    /// Threads that compute in each worker. One, unless the worker has the machine to itself.
    ///
    /// candle sizes its own pools by the environment variable `RAYON_NUM_THREADS`: a launcher of several workers per
    /// machine should set that as well.
    pub threads: usize,
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
            data: DataSource::default(),
            strategy: "wfbp-a2a".into(),
            epochs: None,
            iterations: None,
            batch: BatchSize::Global(32),
            accumulate: 1,
            optimizer: SgdSettings { learning_rate: 0.02, momentum: 0.9, weight_decay: 0.0 },
            seed: 1,
            threads: 1,
            plan: None,
            dump_plan: None,
            dump_parameters: None,
        }
    }
}

impl TrainOptions {
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
        let SgdSettings { learning_rate, momentum, weight_decay } = self.optimizer;
        let not_negative = |value: f32| value.is_finite() && value >= 0.0;
        if !not_negative(learning_rate) || !not_negative(weight_decay) {
            let what = format!(
                "learning rate {learning_rate} and weight decay {weight_decay} must be finite and not negative"
            );
            return Err(TrainError::Options(what));
        }
        if !(0.0..1.0).contains(&momentum) {
            return Err(TrainError::Options(format!("momentum {momentum} must be at least 0 and below 1")));
        }
        self.parsed_strategy().map(drop)
    }

    /// The strategy, with presets resolved and defaults filled in.
    ///
    /// # Errors
    /// [`TrainError::Strategy`] if the text is none that can be run.
    pub fn parsed_strategy(&self) -> Result<Strategy, TrainError> {
        let parsed = Registry::built_in().parse(&self.strategy);
        parsed.map_err(|source| TrainError::Strategy { text: self.strategy.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_options_are_named() {
        let default = TrainOptions::default;
        let sgd = |change: fn(&mut SgdSettings)| {
            let mut options = default();
            change(&mut options.optimizer);
            options
        };
        let cases = [
            (TrainOptions { batch: BatchSize::Local(0), ..default() }, "batch"),
            (TrainOptions { batch: BatchSize::Global(0), ..default() }, "batch"),
            (TrainOptions { accumulate: 0, ..default() }, "accumulate"),
            (TrainOptions { epochs: Some(0), ..default() }, "epochs"),
            (TrainOptions { iterations: Some(0), ..default() }, "iterations"),
            (TrainOptions { threads: 0, ..default() }, "threads"),
            (sgd(|sgd| sgd.learning_rate = f32::NAN), "learning rate"),
            (sgd(|sgd| sgd.learning_rate = -0.1), "learning rate"),
            (sgd(|sgd| sgd.weight_decay = f32::INFINITY), "weight decay"),
            (sgd(|sgd| sgd.momentum = 1.0), "momentum"),
            (TrainOptions { strategy: "wfpb-a2a".into(), ..default() }, "did you mean `wfbp-a2a`"),
        ];
        assert!(default().check().is_ok());
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
