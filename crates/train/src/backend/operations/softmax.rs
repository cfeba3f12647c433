//! Softmax. candle's fused one has no backward, and the elementary one keeps five copies of its argument.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

use super::{slice, with_values};

/// exp(x) / Σ exp(x) over the last dimension. An element of -∞ has the share 0.
pub(crate) fn softmax(logits: &Tensor) -> Result<Tensor> {
    logits.contiguous()?.apply_op1(Softmax)
}

struct Softmax;

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut values = slice(logits, layout)?.to_vec();
        values.chunks_exact_mut(last(layout.shape())).for_each(shares);
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    /// With s = Σ g · y over a row: y · (g - s).
    fn bwd(&self, _logits: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let row = last(result.shape());
        let mut of_logits = with_values(gradient, <[f32]>::to_vec)?;
        with_values(result, |shares| {
            for (gradient, shares) in of_logits.chunks_exact_mut(row).zip(shares.chunks_exact(row)) {
                let sum: f32 = gradient.iter().zip(shares).map(|(gradient, share)| gradient * share).sum();
                gradient.iter_mut().zip(shares).for_each(|(gradient, share)| *gradient = share * (*gradient - sum));
            }
        })?;
        Tensor::from_vec(of_logits, result.shape(), &Device::Cpu).map(Some)
    }
}

/// Turns a row of logits into shares. The largest is subtracted first: it cancels, and nothing overflows.
pub(super) fn shares(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
}

fn last(shape: &Shape) -> usize {
    shape.dims().last().copied().unwrap_or(1).max(1)
}
