//! The parameters of a pass, one by one as forward comes to them.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result as CandleResult, Tensor, Var};
use paceline_plan::TensorId;

use super::hook::Announcements;
use super::{Access, BackendError, ForwardGate};

/// A model's parameters in one pass. Forward should ask for each where it first uses it, not before: the parameter's
/// last update may still be on its way, and forward waits for it then.
pub struct Parameters<'a> {
    values: &'a [Var],
    /// None in an evaluation: nothing is on its way, and nobody wants gradients.
    training: Option<RefCell<Training<'a>>>,
}

/// What a pass of training has besides the values.
struct Training<'a> {
    gate: &'a mut dyn ForwardGate,
    announcements: Arc<Announcements>,
    /// By parameter: what forward uses, since it first asked. Everything in the pass must use the same tensor, so that
    /// autograd sums the uses before it calls the hook.
    wrapped: Vec<Option<Tensor>>,
}

impl<'a> Parameters<'a> {
    pub(super) fn for_training(
        values: &'a [Var],
        gate: &'a mut dyn ForwardGate,
        announcements: Arc<Announcements>,
    ) -> Self {
        let training = Training { gate, announcements, wrapped: vec![None; values.len()] };
        Parameters { values, training: Some(RefCell::new(training)) }
    }

    pub(super) fn for_evaluation(values: &'a [Var]) -> Self {
        Parameters { values, training: None }
    }

    /// The parameter by its number in [`super::Model::parameters`]; the same tensor each time in a pass. Forward may ask
    /// again where it uses the parameter again: then profiles know it.
    ///
    /// # Errors
    /// The parameter's last update did not come.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn get(&self, parameter: TensorId) -> CandleResult<Tensor> {
        let values = &self.values[parameter];
        let Some(training) = &self.training else { return Ok(values.as_detached_tensor()) };
        let Training { gate, announcements, wrapped } = &mut *training.borrow_mut();
        if let Some(tensor) = &wrapped[parameter] {
            gate.again(parameter);
            return Ok(tensor.clone());
        }
        need(*gate, parameter, values).map_err(Error::wrap)?;
        let tensor = announcements.wrap(parameter, values)?;
        wrapped[parameter] = Some(tensor.clone());
        Ok(tensor)
    }

    /// Forward is over: asks the gate for the parameters that it has not used.
    pub(super) fn finish(self) -> Result<(), BackendError> {
        let Some(training) = self.training else { return Ok(()) };
        let Training { gate, wrapped, .. } = training.into_inner();
        let unused = (0..).zip(&wrapped).filter(|(_, tensor)| tensor.is_none());
        unused.map(|(parameter, _)| parameter).try_for_each(|parameter| need(gate, parameter, &self.values[parameter]))
    }
}

fn need(gate: &mut dyn ForwardGate, parameter: TensorId, values: &Var) -> Result<(), BackendError> {
    gate.need(parameter, &mut |access| lend(values, access)).map(drop)
}

/// Lends a tensor's values.
pub(super) fn lend(tensor: &Var, access: Access<'_>) -> Result<(), BackendError> {
    let lent = tensor.inplace_op1(&InPlace(Mutex::new(access)));
    lent.map_err(|error| BackendError { doing: "reaching a tensor's values", message: error.to_string() })
}

/// Behind a lock because candle asks for a shared reference.
struct InPlace<'a>(Mutex<Access<'a>>);

impl InplaceOp1 for InPlace<'_> {
    fn name(&self) -> &'static str {
        "in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> CandleResult<()> {
        match (storage, layout.contiguous_offsets(), self.0.lock()) {
            (CpuStorage::F32(values), Some((start, end)), Ok(mut access)) => access(&mut values[start..end]),
            _ => candle_core::bail!("the tensor is not a contiguous f32 tensor"),
        }
        Ok(())
    }
}
