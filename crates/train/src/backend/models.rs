//! The models that come with Paceline, as functions on candle's tensors.

use std::fmt;
use std::str::FromStr;

mod cnn;
mod mlp;

pub use cnn::Cnn;
pub use mlp::Mlp;

use super::{Backend, BackendError, CandleBackend, TensorSpec};
use crate::data::Dataset;

/// A model by its name on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelName {
    /// [`Cnn`].
    #[default]
    Cnn,
    /// [`Mlp`].
    Mlp,
}

impl ModelName {
    /// Every model.
    pub const ALL: [ModelName; 2] = [ModelName::Cnn, ModelName::Mlp];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            ModelName::Cnn => "cnn",
            ModelName::Mlp => "mlp",
        }
    }

    /// The model for images like those of `training`, with initial values drawn from `seed`.
    ///
    /// # Errors
    /// The model does not take images of that size, or the framework cannot make the tensors.
    pub fn build(self, training: &Dataset, seed: u64) -> Result<Box<dyn Backend>, BackendError> {
        let normalise = Normalise::of(training);
        Ok(match self {
            ModelName::Cnn => Box::new(CandleBackend::new(Cnn::new(training.image_size, normalise)?, seed)?),
            ModelName::Mlp => Box::new(CandleBackend::new(Mlp::new(training.features(), normalise), seed)?),
        })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ModelName {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, UnknownModel> {
        ModelName::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| UnknownModel(name.into()))
    }
}

/// A name that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown model `{0}`; known: {known}", known = ModelName::ALL.map(ModelName::name).join(", "))]
pub struct UnknownModel(pub String);

/// The scale of the inputs: pixels are shifted and divided so that the training set has mean 0 and deviation 1. The two
/// numbers are the model's buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalise {
    /// Of the training set's pixels.
    pub mean: f32,
    /// Of the training set's pixels.
    pub deviation: f32,
}

impl Normalise {
    /// Measured on `training`.
    pub fn of(training: &Dataset) -> Self {
        let (mean, deviation) = training.pixel_statistics();
        Normalise { mean, deviation }
    }

    fn buffers(self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::constant("input.mean", &[1], self.mean),
            TensorSpec::constant("input.deviation", &[1], self.deviation),
        ]
    }
}
