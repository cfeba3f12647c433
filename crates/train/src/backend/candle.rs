//! The backend on candle: tensors and automatic differentiation on the CPU.

use std::sync::Arc;

use candle_core::{D, Device, Error, Result as CandleResult, Tensor, Var};

use super::hook::Announcements;
use super::operations::cross_entropy;
use super::parameters::{Parameters, lend};
use super::{Access, Backend, BackendError, Buffers, Evaluation, ForwardGate, SharedSink, Slot, TensorInfo};
use crate::data::{Batch, Inputs};
use crate::random::Random;

/// A model as a function of its tensors. It must use operations that have a backward: candle's fused softmax, layer
/// norm, RMS norm and rotary embedding have none and cut the graph without a word, and the backward of its `max_pool2d`
/// scales by 1 / window (0.11.1).
pub trait Model: Send {
    /// What is trained, in the order in which forward uses it.
    fn parameters(&self) -> Vec<TensorSpec>;

    /// What is not trained.
    fn buffers(&self) -> Vec<TensorSpec>;

    /// The logits of each head of the model, `[predictions, classes]`, for `inputs`, `[samples, features]`: f32 or, for
    /// models of tokens, u32. `parameters` and `buffers` count as in the two lists above. A parameter should be asked for
    /// where it is first used: the pass waits until it is up to date. Where an operation takes a parameter and an
    /// activation, the parameter must be the second argument: candle visits the second argument's side first on the way
    /// back, so the gradient is announced before the earlier layers are computed. The same holds for a sum: its second
    /// argument should be the one whose parameters come later.
    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor)
    -> CandleResult<Vec<Tensor>>;

    /// What the framework keeps from forward for backward; zeros where nobody has counted. Estimates of memory use it.
    fn activations(&self) -> Activations {
        Activations::default()
    }

    /// By parameter: multiply-accumulates of a forward pass per sample in which it takes part; empty where nobody has
    /// counted. Profiles say them.
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// Numbers that a pass holds for each sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activations {
    /// In all tensors that are kept until backward.
    pub kept: usize,
    /// In the largest of them.
    pub largest: usize,
}

impl Model for Box<dyn Model> {
    fn parameters(&self) -> Vec<TensorSpec> {
        (**self).parameters()
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        (**self).buffers()
    }

    fn forward(
        &self,
        parameters: &Parameters<'_>,
        buffers: &Buffers<'_>,
        inputs: &Tensor,
    ) -> CandleResult<Vec<Tensor>> {
        (**self).forward(parameters, buffers, inputs)
    }

    fn activations(&self) -> Activations {
        (**self).activations()
    }

    fn forward_macs_per_sample(&self) -> Vec<u64> {
        (**self).forward_macs_per_sample()
    }
}

/// A tensor of a [`Model`] and what it holds at first.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name and shape.
    pub info: TensorInfo,
    /// The first values.
    pub initial: Initial,
}

/// The first values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// The same value everywhere.
    Constant(f32),
    /// Uniform in `[-limit, limit)`.
    Uniform {
        /// Half the width of the range.
        limit: f32,
    },
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        deviation: f32,
    },
}

impl TensorSpec {
    /// A weight or bias with `inputs` inputs per output, uniform in ±1/√inputs: what PyTorch's linear and convolution
    /// layers start with.
    pub fn uniform(name: &str, shape: &[usize], inputs: usize) -> Self {
        let initial = Initial::Uniform { limit: 1.0 / (inputs as f32).sqrt() };
        TensorSpec { info: TensorInfo { name: name.into(), shape: shape.into() }, initial }
    }

    /// Normal with mean 0.
    pub fn normal(name: &str, shape: &[usize], deviation: f32) -> Self {
        let initial = Initial::Normal { deviation };
        TensorSpec { info: TensorInfo { name: name.into(), shape: shape.into() }, initial }
    }

    /// The same value everywhere.
    pub fn constant(name: &str, shape: &[usize], value: f32) -> Self {
        TensorSpec { info: TensorInfo { name: name.into(), shape: shape.into() }, initial: Initial::Constant(value) }
    }
}

/// A [`Model`] with its values, on the CPU. The loss is the sum over the heads of the mean cross-entropy of the softmax of
/// their logits.
pub struct CandleBackend<M> {
    model: M,
    parameter_infos: Vec<TensorInfo>,
    parameters: Vec<Var>,
    buffer_infos: Vec<TensorInfo>,
    buffers: Vec<Var>,
}

impl<M: Model> CandleBackend<M> {
    /// The model with its initial values; the same bits for the same seed everywhere.
    ///
    /// # Errors
    /// The framework cannot make the tensors.
    pub fn new(model: M, seed: u64) -> Result<Self, BackendError> {
        let mut random = Random::new(seed, INITIAL_VALUES);
        let (parameter_specs, buffer_specs) = (model.parameters(), model.buffers());
        let mut make = |specs: &[TensorSpec]| -> CandleResult<Vec<Var>> {
            specs.iter().map(|spec| initial(spec, &mut random)).collect()
        };
        let doing = "making the model's tensors";
        let parameters = make(&parameter_specs).map_err(framework(doing))?;
        let buffers = make(&buffer_specs).map_err(framework(doing))?;
        let infos = |specs: Vec<TensorSpec>| specs.into_iter().map(|spec| spec.info).collect();
        Ok(CandleBackend {
            model,
            parameter_infos: infos(parameter_specs),
            parameters,
            buffer_infos: infos(buffer_specs),
            buffers,
        })
    }

    fn logits(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, batch: &Batch) -> CandleResult<Vec<Tensor>> {
        let shape = (batch.samples, batch.features());
        let inputs = match &batch.inputs {
            Inputs::Values(values) => Tensor::from_slice(values, shape, &Device::Cpu)?,
            Inputs::Tokens(tokens) => Tensor::from_slice(tokens, shape, &Device::Cpu)?,
        };
        let logits = self.model.forward(parameters, buffers, &inputs)?;
        match logits.len() == batch.targets.len() && !logits.is_empty() {
            true => Ok(logits),
            false => Err(Error::Msg(format!("{} heads for {} kinds of targets", logits.len(), batch.targets.len()))),
        }
    }

    fn forward_and_backward(
        &self,
        batch: &Batch,
        gate: &mut dyn ForwardGate,
        announcements: &Arc<Announcements>,
    ) -> CandleResult<f64> {
        let parameters = Parameters::for_training(&self.parameters, gate, announcements.clone());
        let buffers = Buffers::for_training(&self.buffers);
        let logits = self.logits(&parameters, &buffers, batch)?;
        parameters.finish().map_err(Error::wrap)?;
        let loss = loss(&logits, batch)?;
        announcements.backward_begins();
        loss.backward()?;
        buffers.finish()?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }
}

impl<M: Model> Backend for CandleBackend<M> {
    fn parameters(&self) -> &[TensorInfo] {
        &self.parameter_infos
    }

    fn buffers(&self) -> &[TensorInfo] {
        &self.buffer_infos
    }

    fn forward_macs_per_sample(&self) -> Vec<u64> {
        self.model.forward_macs_per_sample()
    }

    fn access(&mut self, slot: Slot, access: Access<'_>) -> Result<(), BackendError> {
        let tensor = match slot {
            Slot::Parameter(id) => &self.parameters[id],
            Slot::Buffer(number) => &self.buffers[number],
        };
        lend(tensor, access)
    }

    fn gradients(&mut self, batch: &Batch, gate: &mut dyn ForwardGate, sink: &SharedSink) -> Result<f64, BackendError> {
        let announcements = Announcements::new(sink, self.parameters.len());
        let loss = self.forward_and_backward(batch, gate, &announcements);
        let loss = loss.map_err(framework("computing the gradients"))?;
        announcements.finish()?;
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, BackendError> {
        let evaluate = || -> CandleResult<Evaluation> {
            let parameters = Parameters::for_evaluation(&self.parameters);
            let logits = self.logits(&parameters, &Buffers::for_evaluation(&self.buffers), batch)?;
            let first = &batch.targets[0];
            let mean_loss = f64::from(loss(&logits, batch)?.to_scalar::<f32>()?);
            let guesses = logits[0].argmax(D::Minus1)?.to_vec1::<u32>()?;
            Ok(Evaluation {
                loss_sum: mean_loss * first.len() as f64,
                correct: guesses.iter().zip(first).filter(|(guess, target)| guess == target).count(),
                predictions: first.len(),
            })
        };
        evaluate().map_err(framework("evaluating the model"))
    }
}

/// The sum over the heads of the mean cross-entropy.
fn loss(logits: &[Tensor], batch: &Batch) -> CandleResult<Tensor> {
    let means = logits.iter().zip(&batch.targets).map(|(logits, targets)| cross_entropy(logits, targets)?.mean_all());
    let mut sum = None;
    for mean in means {
        sum = Some(match sum {
            None => mean?,
            Some(sum) => (sum + mean?)?,
        });
    }
    sum.ok_or_else(|| Error::Msg("the model has no head".into()))
}

fn initial(spec: &TensorSpec, random: &mut Random) -> CandleResult<Var> {
    let values = (0..spec.info.elements()).map(|_| match spec.initial {
        Initial::Constant(value) => value,
        Initial::Uniform { limit } => random.symmetric(limit),
        Initial::Normal { deviation } => random.normal() * deviation,
    });
    Var::from_vec(values.collect(), spec.info.shape.as_slice(), &Device::Cpu)
}

fn framework(doing: &'static str) -> impl Fn(candle_core::Error) -> BackendError {
    move |error| BackendError { doing, message: error.to_string() }
}

/// Sets the stream of the initial values apart from that of the sample order.
const INITIAL_VALUES: u64 = 1;
