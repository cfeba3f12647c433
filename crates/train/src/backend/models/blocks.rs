//! What the larger models are made of. A layer names its parameters in the order in which forward takes them, and
//! forward takes them by a [`Cursor`], so that the two lists cannot come apart unnoticed.

use candle_core::{D, Result, Tensor};

use crate::backend::operations::{ChannelStatistics, batch_norm, convolve, layer_norm, softmax};
use crate::backend::{Buffers, Parameters, TensorSpec};

/// Takes parameters and buffers one after the other, each when forward comes to it.
pub(super) struct Cursor<'a, 'p> {
    parameters: &'a Parameters<'p>,
    buffers: &'a Buffers<'a>,
    next_parameter: usize,
    next_buffer: usize,
}

impl<'a, 'p> Cursor<'a, 'p> {
    pub(super) fn new(parameters: &'a Parameters<'p>, buffers: &'a Buffers<'a>) -> Self {
        Cursor { parameters, buffers, next_parameter: 0, next_buffer: 0 }
    }

    /// The next parameter.
    pub(super) fn parameter(&mut self) -> Result<Tensor> {
        self.next_parameter += 1;
        self.parameters.get(self.next_parameter - 1)
    }

    /// The number of the next buffer.
    fn buffer(&mut self) -> usize {
        self.next_buffer += 1;
        self.next_buffer - 1
    }

    /// Goes on at parameter `next`: where forward does not take them in the list's order.
    pub(super) fn parameters_from(mut self, next: usize) -> Self {
        self.next_parameter = next;
        self
    }

    /// Goes on at buffer `next`.
    pub(super) fn buffers_from(mut self, next: usize) -> Self {
        self.next_buffer = next;
        self
    }
}

/// The tensors of a model while they are listed.
#[derive(Default)]
pub(super) struct Tensors {
    pub(super) parameters: Vec<TensorSpec>,
    pub(super) buffers: Vec<TensorSpec>,
}

impl Tensors {
    /// `[outputs, inputs]` as PyTorch keeps it, and a bias.
    pub(super) fn linear(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        initial: impl Fn(&str, &[usize]) -> TensorSpec,
    ) {
        self.parameters.push(initial(&format!("{name}.weight"), &[outputs, inputs]));
        self.parameters.push(TensorSpec::constant(&format!("{name}.bias"), &[outputs], 0.0));
    }

    /// A square kernel without bias, normal with the deviation √(2 / (outputs · kernel²)): He, Zhang, Ren and Sun,
    /// "Delving deep into rectifiers" (2015), §2.2, backward case.
    pub(super) fn convolution(&mut self, name: &str, inputs: usize, outputs: usize, kernel: usize) {
        let deviation = (2.0 / (outputs * kernel * kernel) as f32).sqrt();
        let shape = [outputs, inputs, kernel, kernel];
        self.parameters.push(TensorSpec::normal(&format!("{name}.weight"), &shape, deviation));
    }

    /// Batch normalisation of `channels`: weight and bias, and two running statistics.
    pub(super) fn batch_norm(&mut self, name: &str, channels: usize) {
        self.norm(name, channels);
        self.buffers.push(TensorSpec::constant(&format!("{name}.running_mean"), &[channels], 0.0));
        self.buffers.push(TensorSpec::constant(&format!("{name}.running_var"), &[channels], 1.0));
    }

    /// The weight and bias of a normalisation.
    pub(super) fn norm(&mut self, name: &str, width: usize) {
        self.parameters.push(TensorSpec::constant(&format!("{name}.weight"), &[width], 1.0));
        self.parameters.push(TensorSpec::constant(&format!("{name}.bias"), &[width], 0.0));
    }
}

/// Multiply-accumulates per sample of each of `parameters`: a matrix or kernel has one for each of its elements at each of
/// the places that it is applied to, biases and normalisations have none. `places` are those of the matrices and kernels,
/// in their order.
pub(super) fn multiply_accumulates(parameters: &[TensorSpec], places: impl IntoIterator<Item = usize>) -> Vec<u64> {
    let mut places = places.into_iter();
    let of_parameter = |spec: &TensorSpec| match spec.info.shape.len() {
        0 | 1 => 0,
        _ => (spec.info.elements() * places.next().unwrap_or(0)) as u64,
    };
    parameters.iter().map(of_parameter).collect()
}

/// x · Wᵀ + b over the last dimension.
pub(super) fn linear(inputs: &Tensor, cursor: &mut Cursor<'_, '_>) -> Result<Tensor> {
    let (weight, bias) = (cursor.parameter()?, cursor.parameter()?);
    project(inputs, &weight)?.broadcast_add(&bias)
}

/// x · Wᵀ over the last dimension, as one product.
pub(super) fn project(inputs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (outputs, width) = weight.dims2()?;
    let mut shape = inputs.dims().to_vec();
    let product = inputs.reshape(((), width))?.matmul(&weight.t()?)?;
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    product.reshape(shape)
}

/// A convolution without bias, followed by batch normalisation.
pub(super) fn convolve_and_normalise(images: &Tensor, cursor: &mut Cursor<'_, '_>, stride: usize) -> Result<Tensor> {
    let weight = cursor.parameter()?;
    let padding = weight.dim(D::Minus1)? / 2;
    normalise_channels(&convolve(images, &weight, stride, padding)?, cursor)
}

/// The weight of the newest batch in the running statistics, and ε: PyTorch's.
const MOMENTUM: f64 = 0.1;
const BATCH_NORM_EPSILON: f32 = 1e-5;

/// Batch normalisation: by this batch's statistics in training, which renews the running ones, and by those in an
/// evaluation.
fn normalise_channels(images: &Tensor, cursor: &mut Cursor<'_, '_>) -> Result<Tensor> {
    let (weight, bias) = (cursor.parameter()?, cursor.parameter()?);
    let (mean, variance) = (cursor.buffer(), cursor.buffer());
    let buffers = cursor.buffers;
    if !buffers.training() {
        let deviation = (buffers.get(variance) + f64::from(BATCH_NORM_EPSILON))?.sqrt()?;
        let scale = (weight / deviation)?;
        let shift = (bias - (buffers.get(mean) * &scale)?)?;
        let by_channel = |values: Tensor| values.reshape((1, (), 1, 1));
        return images.broadcast_mul(&by_channel(scale)?)?.broadcast_add(&by_channel(shift)?);
    }
    let statistics = ChannelStatistics::of(images)?;
    // The running variance is that of the population, estimated from the batch.
    let unbiased = statistics.count as f64 / (statistics.count.max(2) - 1) as f64;
    for (buffer, new, factor) in [(mean, &statistics.mean, 1.0), (variance, &statistics.variance, unbiased)] {
        let new = Tensor::from_slice(new, new.len(), images.device())?;
        buffers.renew(buffer, ((buffers.get(buffer) * (1.0 - MOMENTUM))? + (new * (factor * MOMENTUM))?)?);
    }
    batch_norm(images, &weight, &bias, statistics, BATCH_NORM_EPSILON)
}

/// The mean of each channel's pixels: `[samples, channels]`.
pub(super) fn average_pixels(images: &Tensor) -> Result<Tensor> {
    images.flatten_from(2)?.mean(2)
}

/// Layer normalisation over the last dimension.
pub(super) fn normalise_rows(values: &Tensor, cursor: &mut Cursor<'_, '_>, epsilon: f32) -> Result<Tensor> {
    let (weight, bias) = (cursor.parameter()?, cursor.parameter()?);
    layer_norm(values, &weight, &bias, epsilon)
}

/// The rows of `table`, `[entries, width]`, that `tokens`, `[samples, length]`, name: `[samples, length, width]`.
pub(super) fn embed(tokens: &Tensor, table: &Tensor) -> Result<Tensor> {
    let (samples, length) = tokens.dims2()?;
    table.index_select(&tokens.contiguous()?.flatten_all()?, 0)?.reshape((samples, length, ()))
}

/// Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017, §3.2) of `heads` heads: query, key
/// and value are `[samples, length, width]`, and so is the result. `mask` is added to the scores.
pub(super) fn attend([query, key, value]: [&Tensor; 3], heads: usize, mask: Option<&Tensor>) -> Result<Tensor> {
    let (samples, length, width) = query.dims3()?;
    let split = |rows: &Tensor| rows.reshape((samples, length, heads, ()))?.transpose(1, 2)?.contiguous();
    let scale = 1.0 / ((width / heads) as f64).sqrt();
    let scores = (split(query)?.matmul(&split(key)?.transpose(2, 3)?)? * scale)?;
    let scores = match mask {
        Some(mask) => scores.broadcast_add(mask)?,
        None => scores,
    };
    let mixed = softmax(&scores)?.matmul(&split(value)?)?;
    mixed.transpose(1, 2)?.reshape((samples, length, width))
}

/// Elements that autograd keeps of an attention, beside its arguments: query, key, value in heads, scores (three times
/// with a mask, twice without), shares, the mixed values in both layouts.
pub(super) fn attention_elements(length: usize, width: usize, heads: usize) -> usize {
    5 * length * width + 4 * heads * length * length
}
