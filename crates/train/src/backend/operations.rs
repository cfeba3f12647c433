//! Operations with a backward of their own, where candle's have none, a wrong one, or a slow one (0.11.1). Each keeps
//! nothing but its arguments and its result for backward.

use candle_core::{CpuStorage, Error, Layout, Result, Storage, Tensor};

mod convolution;
mod cross_entropy;
mod normalisation;
mod pooling;
mod softmax;

pub(super) use convolution::convolve;
pub(super) use cross_entropy::cross_entropy;
pub(super) use normalisation::{ChannelStatistics, batch_norm, layer_norm};
pub(super) use pooling::max_pool;
pub(super) use softmax::softmax;

/// Lends the values of an f32 tensor on the CPU in row-major order; copies only if they lie otherwise.
pub(super) fn with_values<R>(tensor: &Tensor, use_values: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(use_values(&storage.as_slice::<f32>()?[start..end])),
        _ => Err(Error::Msg("the values must lie in the memory of the CPU".into())),
    }
}

/// The values of an operation's argument, which the caller has made contiguous.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => Err(Error::Msg("the argument must be contiguous".into())),
    }
}

#[cfg(test)]
mod tests;
