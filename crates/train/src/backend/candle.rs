//! The backend on candle: tensors and automatic differentiation on the CPU.

use std::sync::Arc;

use candle_core::{D, DType, Device, Result as CandleResult, Tensor, Var};

use super::hook::Announcements;
use super::parameters::{Parameters, lend};
use super::{Access, Backend, BackendError, Evaluation, ForwardGate, SharedSink, Slot, TensorInfo};
use crate::data::Batch;
use crate::random::Random;

/// A model as a function of its tensors. It must use operations that have a backward: candle's fused softmax, layer
/// norm, RMS norm and rotary embedding have none and cut the graph without a word, and the backward of its `max_pool2d`
/// scales by 1 / window (0.11.1).
pub trait Model: Send {
    /// What is trained, in the order in which forward uses it.
    fn parameters(&self) -> Vec<TensorSpec>;

    /// What is not trained.
    fn buffers(&self) -> Vec<TensorSpec>;

    /// The logits, `[samples, classes]`, of `inputs`, `[samples, features]`. `parameters` and `buffers` count as in the
    /// two lists above. A parameter should be asked for where it is first used: the pass waits until it is up to date.
    /// Where an operation takes a parameter and an activation, the parameter must be the second argument: candle visits
    /// the second argument's side first on the way back, so the gradient is announced before the earlier layers are
    /// computed.
    fn forward(&self, parameters: &Parameters<'_>, buffers: &[Tensor], inputs: &Tensor) -> CandleResult<Tensor>;
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
}

impl TensorSpec {
    /// A weight or bias with `inputs` inputs per output, uniform in ±1/√inputs: what PyTorch's linear and convolution
    /// layers start with.
    pub fn uniform(name: &str, shape: &[usize], inputs: usize) -> Self {
        let initial = Initial::Uniform { limit: 1.0 / (inputs as f32).sqrt() };
        TensorSpec { info: TensorInfo { name: name.into(), shape: shape.into() }, initial }
    }

    /// The same value everywhere.
    pub fn constant(name: &str, shape: &[usize], value: f32) -> Self {
        TensorSpec { info: TensorInfo { name: name.into(), shape: shape.into() }, initial: Initial::Constant(value) }
    }
}

/// A [`Model`] with its values, on the CPU. The loss is the cross-entropy of the softmax of the logits.
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

    fn logits(&self, parameters: &Parameters<'_>, batch: &Batch) -> CandleResult<(Tensor, Tensor)> {
        let features = batch.inputs.len() / batch.len();
        let inputs = Tensor::from_slice(&batch.inputs, (batch.len(), features), &Device::Cpu)?;
        let labels = Tensor::from_slice(&batch.labels, batch.len(), &Device::Cpu)?;
        let buffers: Vec<Tensor> = self.buffers.iter().map(Var::as_detached_tensor).collect();
        Ok((self.model.forward(parameters, &buffers, &inputs)?, labels))
    }

    fn forward_and_backward(
        &self,
        batch: &Batch,
        gate: &mut dyn ForwardGate,
        announcements: &Arc<Announcements>,
    ) -> CandleResult<f64> {
        let parameters = Parameters::for_training(&self.parameters, gate, announcements.clone());
        let (logits, labels) = self.logits(&parameters, batch)?;
        parameters.finish().map_err(candle_core::Error::wrap)?;
        let loss = sample_losses(&logits, &labels)?.mean_all()?;
        announcements.backward_begins();
        loss.backward()?;
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
            let (logits, labels) = self.logits(&Parameters::for_evaluation(&self.parameters), batch)?;
            let losses = sample_losses(&logits, &labels)?.to_dtype(DType::F64)?;
            let correct = logits.argmax(D::Minus1)?.eq(&labels)?.to_dtype(DType::U32)?;
            Ok(Evaluation {
                loss_sum: losses.sum_all()?.to_scalar()?,
                correct: correct.sum_all()?.to_scalar::<u32>()? as usize,
                samples: batch.len(),
            })
        };
        evaluate().map_err(framework("evaluating the model"))
    }
}

/// The cross-entropy of each sample, `[samples, 1]`, from elementary operations (the fused ones have no backward). The
/// largest logit is subtracted as a constant: it cancels.
fn sample_losses(logits: &Tensor, labels: &Tensor) -> CandleResult<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(1)?.detach())?;
    let logarithms = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(1)?.log()?)?;
    logarithms.gather(&labels.unsqueeze(1)?, 1)?.neg()
}

fn initial(spec: &TensorSpec, random: &mut Random) -> CandleResult<Var> {
    let values = (0..spec.info.elements()).map(|_| match spec.initial {
        Initial::Constant(value) => value,
        Initial::Uniform { limit } => random.symmetric(limit),
    });
    Var::from_vec(values.collect(), spec.info.shape.as_slice(), &Device::Cpu)
}

fn framework(doing: &'static str) -> impl Fn(candle_core::Error) -> BackendError {
    move |error| BackendError { doing, message: error.to_string() }
}

/// Sets the stream of the initial values apart from that of the sample order.
const INITIAL_VALUES: u64 = 1;
