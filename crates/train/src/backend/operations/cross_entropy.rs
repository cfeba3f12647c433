//! Cross-entropy of the softmax of logits: one pass forward, one pass back, and no copies of the logits in between.

use candle_core::{CpuStorage, CustomOp1, Device, Error, Layout, Result, Shape, Tensor};

use super::{slice, softmax, with_values};

/// The loss of each row of `logits`, `[rows, classes]`, whose class is the one in `targets`: `[rows]`.
pub(crate) fn cross_entropy(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    if rows != targets.len() {
        return Err(Error::Msg(format!("the model predicts {rows} times for {} targets", targets.len())));
    }
    if let Some(target) = targets.iter().find(|&&target| target as usize >= classes) {
        return Err(Error::Msg(format!("the data has class {target}, the model {classes} classes")));
    }
    logits.contiguous()?.apply_op1(CrossEntropy(targets.to_vec()))
}

/// The class of each row.
struct CrossEntropy(Vec<u32>);

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, classes) = layout.shape().dims2()?;
        let loss = |(row, &target): (&[f32], &u32)| {
            // The largest is subtracted first: it cancels, and nothing overflows.
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
            sum.ln() - (row[target as usize] - largest)
        };
        let losses = slice(logits, layout)?.chunks_exact(classes.max(1)).zip(&self.0).map(loss).collect();
        Ok((CpuStorage::F32(losses), rows.into()))
    }

    /// The shares of the classes, less one for the class that it is.
    fn bwd(&self, logits: &Tensor, _result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (_, classes) = logits.dims2()?;
        let mut of_logits = with_values(logits, <[f32]>::to_vec)?;
        with_values(gradient, |gradient| {
            let rows = of_logits.chunks_exact_mut(classes.max(1)).zip(&self.0).zip(gradient);
            for ((row, &target), &gradient) in rows {
                softmax::shares(row);
                row[target as usize] -= 1.0;
                row.iter_mut().for_each(|value| *value *= gradient);
            }
        })?;
        Tensor::from_vec(of_logits, logits.shape(), &Device::Cpu).map(Some)
    }
}
