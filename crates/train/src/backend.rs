//! What the rest of this crate sees of the framework that computes the model.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_plan::TensorId;

mod buffers;
mod candle;
mod hook;
mod models;
mod operations;
mod parameters;

pub use buffers::Buffers;
pub use candle::{Activations, CandleBackend, Initial, Model, TensorSpec};
pub use models::{
    Bert, BertSettings, Cnn, Mlp, ModelName, Normalise, ResNet20, ResNet50, ResNet50Settings, TransformerLm,
    TransformerSettings, UnknownModel,
};
pub use parameters::Parameters;

use crate::data::Batch;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique within the model.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Elements: the product of the shape.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Which tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A parameter, by its number in [`Backend::parameters`].
    Parameter(TensorId),
    /// A buffer, by its number in [`Backend::buffers`].
    Buffer(usize),
}

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct BackendError {
    /// What was tried.
    pub doing: &'static str,
    /// The framework's or the sink's answer.
    pub message: String,
}

impl From<SinkClosed> for BackendError {
    fn from(closed: SinkClosed) -> Self {
        BackendError { doing: "handing over a gradient", message: closed.to_string() }
    }
}

/// Receives gradients while backward runs.
pub trait GradientSink: Send {
    /// Backward has the final `gradient` of `parameter`: the mean over the batch, row-major. `None` stands for zeros: no
    /// sample's loss depends on the parameter. An error ends the backward pass.
    ///
    /// # Errors
    /// The sink takes no more.
    fn ready(&mut self, parameter: TensorId, gradient: Option<&[f32]>) -> Result<(), SinkClosed>;

    /// As [`GradientSink::ready`], for a gradient that lies nowhere yet: `write` puts it where it is to be, piece by
    /// piece with the number of the first element. A piece holds what the last operation left there. False: this sink has
    /// no place for it.
    ///
    /// # Errors
    /// The sink takes no more.
    fn write(&mut self, parameter: TensorId, write: &mut dyn FnMut(usize, &mut [f32])) -> Result<bool, SinkClosed> {
        let _ = (parameter, write);
        Ok(false)
    }

    /// Forward is over.
    fn backward_begins(&mut self) {}
}

/// The sink takes no more gradients; it knows why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gradients are not wanted any more")]
pub struct SinkClosed;

/// A sink that the autograd graph can hold on to while the caller keeps it.
pub type SharedSink = Arc<Mutex<dyn GradientSink>>;

/// Reads and changes a tensor's values in place.
pub type Access<'a> = &'a mut dyn FnMut(&mut [f32]);

/// Lends a tensor's values to what it is given.
pub type Lend<'a> = &'a mut dyn FnMut(Access<'_>) -> Result<(), BackendError>;

/// Stands between an update of the parameters and the forward pass that reads them.
pub trait ForwardGate {
    /// Forward is about to use `parameter` for the first time in this pass. Returns when its values are those after the
    /// last update: a gate that knows of gradients on their way waits for those of this parameter, and applies them
    /// through `values`. How long forward was held up; zero if everything was there. An error ends the pass.
    ///
    /// # Errors
    /// The gradients will not come, or the values cannot be lent.
    fn need(&mut self, parameter: TensorId, values: Lend<'_>) -> Result<Duration, BackendError>;

    /// Forward is about to use `parameter` once more: a tied embedding, say. Some backends do not know.
    fn again(&mut self, parameter: TensorId) {
        let _ = parameter;
    }
}

/// The gate of parameters that are up to date before forward begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenGate;

impl ForwardGate for OpenGate {
    fn need(&mut self, _parameter: TensorId, _values: Lend<'_>) -> Result<Duration, BackendError> {
        Ok(Duration::ZERO)
    }
}

/// What an evaluation has counted; sums, so that parts can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The mean loss of each batch, times its predictions.
    pub loss_sum: f64,
    /// Predictions of the model's first head that name the target as the most probable class.
    pub correct: usize,
    /// Predictions of the first head: one per image, or one per byte of text.
    pub predictions: usize,
}

impl Evaluation {
    /// Adds another part.
    pub fn add(&mut self, other: Evaluation) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.predictions += other.predictions;
    }
}

/// A model on a framework. All values cross this border as contiguous, row-major f32.
pub trait Backend: Send {
    /// What is trained, in the order in which forward uses it.
    fn parameters(&self) -> &[TensorInfo];

    /// What belongs to the model and is not trained.
    fn buffers(&self) -> &[TensorInfo];

    /// By parameter: multiply-accumulates of a forward pass per sample in which it takes part, as a [`Profile`] has them.
    /// Empty: nobody has counted.
    ///
    /// [`Profile`]: paceline_plan::Profile
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Lets `access` read and change a tensor in place.
    ///
    /// # Errors
    /// The framework cannot lend the tensor.
    fn access(&mut self, slot: Slot, access: Access<'_>) -> Result<(), BackendError>;

    /// Runs forward and backward on a batch of at least one sample and returns the mean loss. `gate` is asked for every
    /// parameter exactly once: right before forward first uses it, or before backward begins where forward does not.
    /// `sink` is told every parameter's gradient exactly once: as soon as backward has it, while the layers before it
    /// still compute; or at the end where there is none.
    ///
    /// # Errors
    /// The framework failed, or the gate or the sink closed.
    fn gradients(&mut self, batch: &Batch, gate: &mut dyn ForwardGate, sink: &SharedSink) -> Result<f64, BackendError>;

    /// Runs forward only, on a batch of at least one sample.
    ///
    /// # Errors
    /// The framework failed.
    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, BackendError>;
}
