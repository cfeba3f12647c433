//! The gradient-ready hook: an identity around each parameter, whose backward is called with the finished gradient.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};
use paceline_plan::TensorId;

use super::operations::with_values;
use super::{SharedSink, SinkClosed};

/// One forward and backward pass: which parameters have been announced to the sink.
pub(super) struct Announcements {
    sink: SharedSink,
    announced: Mutex<Vec<bool>>,
}

impl Announcements {
    pub(super) fn new(sink: &SharedSink, parameters: usize) -> Arc<Announcements> {
        Arc::new(Announcements { sink: sink.clone(), announced: Mutex::new(vec![false; parameters]) })
    }

    /// `parameter` for use in this pass. Everything in the pass must use the same wrapped tensor.
    pub(super) fn wrap(self: &Arc<Announcements>, id: TensorId, parameter: &Tensor) -> Result<Tensor> {
        parameter.apply_op1(Announce { parameter: id, announcements: self.clone() })
    }

    pub(super) fn backward_begins(&self) {
        lock(&self.sink).backward_begins();
    }

    /// Announces the parameters that backward did not reach, as zeros.
    pub(super) fn finish(&self) -> std::result::Result<(), SinkClosed> {
        let announced = lock(&self.announced).clone();
        let mut missing = announced.iter().enumerate().filter(|(_, announced)| !**announced);
        missing.try_for_each(|(id, _)| lock(&self.sink).ready(id, None))
    }
}

struct Announce {
    parameter: TensorId,
    announcements: Arc<Announcements>,
}

impl CustomOp1 for Announce {
    fn name(&self) -> &'static str {
        "announce-gradient"
    }

    /// The identity. candle has no way to share the storage here, so this copies the parameter once per pass.
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = storage.as_slice::<f32>()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(Error::Msg("a parameter must be contiguous".into()));
        };
        Ok((CpuStorage::F32(values[start..end].to_vec()), layout.shape().clone()))
    }

    /// `None`: nothing before the parameter wants its gradient.
    fn bwd(&self, _argument: &Tensor, _result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        with_values(gradient, |values| lock(&self.announcements.sink).ready(self.parameter, Some(values)))?
            .map_err(Error::wrap)?;
        lock(&self.announcements.announced)[self.parameter] = true;
        Ok(None)
    }
}

/// A panic elsewhere does not make these values wrong: each is written in one step.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
