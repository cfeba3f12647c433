//! Batch and layer normalisation. candle's fused ones have no backward; from elementary operations, each would keep six
//! copies of the activations.

use candle_core::{CpuStorage, CustomOp3, Device, Error, Layout, Result, Shape, Tensor};

use super::{slice, with_values};

/// Mean and variance of each channel over samples, height and width.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChannelStatistics {
    /// By channel.
    pub(crate) mean: Vec<f32>,
    /// By channel; divided by the number of values, as batch normalisation does.
    pub(crate) variance: Vec<f32>,
    /// Values per channel.
    pub(crate) count: usize,
}

impl ChannelStatistics {
    /// Of `images`, `[samples, channels, height, width]`. In double precision: the values need not be centred.
    pub(crate) fn of(images: &Tensor) -> Result<Self> {
        let (samples, channels, height, width) = images.dims4()?;
        let pixels = height * width;
        let count = samples * pixels;
        if count == 0 {
            return Err(Error::Msg("a batch without values has no mean".into()));
        }
        with_values(images, |values| {
            let mut sums = vec![(0.0f64, 0.0f64); channels];
            for (plane, values) in values.chunks_exact(pixels).enumerate() {
                let (sum, squares) = &mut sums[plane % channels];
                // Eight sums of each kind at once, so that the additions need not wait for each other.
                let (mut lanes, mut square_lanes) = ([0.0f64; 8], [0.0f64; 8]);
                for chunk in values.chunks(8) {
                    for (lane, &value) in chunk.iter().enumerate() {
                        lanes[lane] += f64::from(value);
                        square_lanes[lane] += f64::from(value) * f64::from(value);
                    }
                }
                *sum += lanes.iter().sum::<f64>();
                *squares += square_lanes.iter().sum::<f64>();
            }
            let mean = |sum: f64| sum / count as f64;
            let variance = |&(sum, squares): &(f64, f64)| (mean(squares) - mean(sum).powi(2)).max(0.0) as f32;
            ChannelStatistics {
                mean: sums.iter().map(|(sum, _)| mean(*sum) as f32).collect(),
                variance: sums.iter().map(variance).collect(),
                count,
            }
        })
    }
}

/// γ · (x - μ) / √(σ² + ε) + β by channel (Ioffe and Szegedy, "Batch normalization", 2015, algorithm 1), with the
/// `statistics` of these very `images`: the gradient goes through them.
pub(crate) fn batch_norm(
    images: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    statistics: ChannelStatistics,
    epsilon: f32,
) -> Result<Tensor> {
    images.contiguous()?.apply_op3(weight, bias, BatchNorm { statistics, epsilon })
}

/// γ · (x - μ) / √(σ² + ε) + β over the last dimension (Ba, Kiros and Hinton, "Layer normalization", 2016).
pub(crate) fn layer_norm(values: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f32) -> Result<Tensor> {
    values.contiguous()?.apply_op3(weight, bias, LayerNorm { epsilon })
}

struct BatchNorm {
    statistics: ChannelStatistics,
    epsilon: f32,
}

impl BatchNorm {
    /// Mean and 1 / √(σ² + ε) of a channel.
    fn scale(&self, channel: usize) -> (f32, f32) {
        let ChannelStatistics { mean, variance, .. } = &self.statistics;
        (mean[channel], 1.0 / (variance[channel] + self.epsilon).sqrt())
    }
}

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        images: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, channels, height, width) = layout.shape().dims4()?;
        let (weight, bias) = (slice(weight, weight_layout)?, slice(bias, bias_layout)?);
        let mut values = slice(images, layout)?.to_vec();
        for (plane, values) in values.chunks_exact_mut(height * width).enumerate() {
            let channel = plane % channels;
            let (mean, scale) = self.scale(channel);
            let (factor, shift) = (scale * weight[channel], bias[channel]);
            values.iter_mut().for_each(|value| *value = (*value - mean) * factor + shift);
        }
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    /// With x̂ = (x - μ) / √(σ² + ε) and n values per channel: γ's gradient Σ g·x̂, β's Σ g, and
    /// x's γ / √(σ² + ε) · (g - Σ g / n - x̂ · Σ g·x̂ / n).
    fn bwd(
        &self,
        images: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (_, channels, height, width) = images.dims4()?;
        let pixels = height * width;
        let (mut of_weight, mut of_bias) = (vec![0.0; channels], vec![0.0; channels]);
        let mut of_images = with_values(gradient, <[f32]>::to_vec)?;
        let gamma = with_values(weight, <[f32]>::to_vec)?;
        with_values(images, |values| {
            let planes = || values.chunks_exact(pixels).enumerate();
            for ((plane, values), gradient) in planes().zip(of_images.chunks_exact(pixels)) {
                let (mean, scale) = self.scale(plane % channels);
                let products = gradient.iter().zip(values).map(|(gradient, value)| gradient * (value - mean));
                of_weight[plane % channels] += products.sum::<f32>() * scale;
                of_bias[plane % channels] += gradient.iter().sum::<f32>();
            }
            let count = self.statistics.count as f32;
            for ((plane, values), gradient) in planes().zip(of_images.chunks_exact_mut(pixels)) {
                let channel = plane % channels;
                let (mean, scale) = self.scale(channel);
                let (factor, mean_gradient) = (gamma[channel] * scale, of_bias[channel] / count);
                let slope = of_weight[channel] * scale / count;
                for (gradient, value) in gradient.iter_mut().zip(values) {
                    *gradient = factor * (*gradient - mean_gradient - (value - mean) * slope);
                }
            }
        })?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), &Device::Cpu).map(Some);
        Ok((tensor(of_images, images)?, tensor(of_weight, weight)?, tensor(of_bias, bias)?))
    }
}

struct LayerNorm {
    epsilon: f32,
}

impl LayerNorm {
    /// Mean and 1 / √(σ² + ε) of a row.
    fn scale(&self, row: &[f32]) -> (f32, f32) {
        let count = row.len() as f32;
        let mean = row.iter().sum::<f32>() / count;
        let variance = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        values: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (weight, bias) = (slice(weight, weight_layout)?, slice(bias, bias_layout)?);
        let mut values = slice(values, layout)?.to_vec();
        for row in values.chunks_exact_mut(weight.len().max(1)) {
            let (mean, scale) = self.scale(row);
            for ((value, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
                *value = (*value - mean) * scale * weight + bias;
            }
        }
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    /// As in batch normalisation, but mean and variance are of a row, and γ is inside the sums.
    fn bwd(
        &self,
        values: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gamma = with_values(weight, <[f32]>::to_vec)?;
        let width = gamma.len().max(1);
        let (mut of_weight, mut of_bias) = (vec![0.0; gamma.len()], vec![0.0; gamma.len()]);
        let mut of_values = with_values(gradient, <[f32]>::to_vec)?;
        with_values(values, |values| {
            for (row, gradient) in values.chunks_exact(width).zip(of_values.chunks_exact_mut(width)) {
                let (mean, scale) = self.scale(row);
                let (mut sum, mut product) = (0.0, 0.0);
                for (column, (gradient, value)) in gradient.iter_mut().zip(row).enumerate() {
                    let normalised = (value - mean) * scale;
                    of_weight[column] += *gradient * normalised;
                    of_bias[column] += *gradient;
                    *gradient *= gamma[column];
                    sum += *gradient;
                    product += *gradient * normalised;
                }
                let (sum, product) = (sum / width as f32, product / width as f32);
                for (gradient, value) in gradient.iter_mut().zip(row) {
                    *gradient = scale * (*gradient - sum - (value - mean) * scale * product);
                }
            }
        })?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), &Device::Cpu).map(Some);
        Ok((tensor(of_values, values)?, tensor(of_weight, weight)?, tensor(of_bias, bias)?))
    }
}
