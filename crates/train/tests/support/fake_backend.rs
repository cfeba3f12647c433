//! A backend that computes nothing: what its passes do instead, a test says. Tests within the crate use it, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use paceline_train::{Access, Backend, BackendError, Batch, Evaluation, ForwardGate, SharedSink, Slot, TensorInfo};

/// Where a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Forward has the values of this parameter.
    Forward(usize),
    /// The gradient of this parameter is final when this is over.
    Backward(usize),
}

/// The elements of each parameter.
const ELEMENTS: usize = 4;

/// Parameters whose gradients are zeros, and a buffer that counts the passes.
pub struct FakeBackend {
    /// The parameters, and behind them the buffer.
    tensors: Vec<TensorInfo>,
    parameters: Vec<[f32; ELEMENTS]>,
    /// What the buffer holds: passes, unless somebody has put it back.
    pub counted: [f32; 1],
    /// The parameters in the order in which their gradients become final.
    ready: Vec<usize>,
    passes: usize,
    computes: Box<dyn FnMut(usize, Place) + Send>,
}

impl FakeBackend {
    /// As many parameters as `ready` has, whose gradients become final in its order. `computes` is called at every place of every
    /// pass, with the number of the pass, from 1.
    pub fn new(ready: &[usize], computes: impl FnMut(usize, Place) + Send + 'static) -> FakeBackend {
        let tensor = |name: String, elements: usize| TensorInfo { name, shape: vec![elements] };
        let parameters = (0..ready.len()).map(|number| tensor(format!("parameter {number}"), ELEMENTS));
        FakeBackend {
            tensors: parameters.chain([tensor("passes".to_owned(), 1)]).collect(),
            parameters: vec![[0.5; ELEMENTS]; ready.len()],
            counted: [0.0],
            ready: ready.to_vec(),
            passes: 0,
            computes: Box::new(computes),
        }
    }

    /// One parameter. Forward takes so long, and passes are counted, whoever puts the buffer back.
    pub fn counting(each: Duration, passes: Arc<AtomicUsize>) -> FakeBackend {
        FakeBackend::new(&[0], move |_, place| {
            if place == Place::Forward(0) {
                passes.fetch_add(1, Ordering::Relaxed);
                thread::sleep(each);
            }
        })
    }
}

impl Backend for FakeBackend {
    fn parameters(&self) -> &[TensorInfo] {
        &self.tensors[..self.parameters.len()]
    }

    fn buffers(&self) -> &[TensorInfo] {
        &self.tensors[self.parameters.len()..]
    }

    fn access(&mut self, slot: Slot, access: Access<'_>) -> Result<(), BackendError> {
        match slot {
            Slot::Parameter(parameter) => access(&mut self.parameters[parameter]),
            Slot::Buffer(_) => access(&mut self.counted),
        }
        Ok(())
    }

    fn gradients(
        &mut self,
        _batch: &Batch,
        gate: &mut dyn ForwardGate,
        sink: &SharedSink,
    ) -> Result<f64, BackendError> {
        self.passes += 1;
        self.counted[0] += 1.0;
        for (parameter, values) in self.parameters.iter_mut().enumerate() {
            gate.need(parameter, &mut |access| {
                access(values);
                Ok(())
            })?;
            (self.computes)(self.passes, Place::Forward(parameter));
        }
        sink.lock().unwrap().backward_begins();
        for &parameter in &self.ready {
            (self.computes)(self.passes, Place::Backward(parameter));
            sink.lock().unwrap().ready(parameter, Some(&[0.0; ELEMENTS]))?;
        }
        Ok(0.0)
    }

    /// The loss is what the buffer holds.
    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation, BackendError> {
        let predictions = batch.samples;
        Ok(Evaluation { loss_sum: f64::from(self.counted[0]) * predictions as f64, correct: 0, predictions })
    }
}
