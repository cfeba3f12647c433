//! The buffers of a pass: what belongs to a model and is not trained.

use std::cell::RefCell;

use candle_core::{Result as CandleResult, Tensor, Var};

/// A model's buffers in one pass. In training a model may renew them: the running statistics of batch normalisation.
pub struct Buffers<'a> {
    values: &'a [Var],
    /// None in an evaluation.
    renewed: Option<RefCell<Vec<(usize, Tensor)>>>,
}

impl<'a> Buffers<'a> {
    pub(super) fn for_training(values: &'a [Var]) -> Self {
        Buffers { values, renewed: Some(RefCell::default()) }
    }

    pub(super) fn for_evaluation(values: &'a [Var]) -> Self {
        Buffers { values, renewed: None }
    }

    /// Whether the pass is one of training. In an evaluation, a sample's result must not depend on the other samples.
    pub fn training(&self) -> bool {
        self.renewed.is_some()
    }

    /// The buffer by its number in [`super::Model::buffers`], as it was before the pass.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn get(&self, buffer: usize) -> Tensor {
        self.values[buffer].as_detached_tensor()
    }

    /// What the buffer shall hold after the pass. Means nothing in an evaluation.
    pub fn renew(&self, buffer: usize, value: Tensor) {
        if let Some(renewed) = &self.renewed {
            renewed.borrow_mut().push((buffer, value.detach()));
        }
    }

    /// The pass is over.
    pub(super) fn finish(self) -> CandleResult<()> {
        let renewed = self.renewed.map(RefCell::into_inner).unwrap_or_default();
        renewed.iter().try_for_each(|(buffer, value)| self.values[*buffer].set(value))
    }
}
