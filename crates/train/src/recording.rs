//! Notes when a worker's thread does what, in passes that are recorded. Others are not touched: the gate and the sink that
//! take notes stand before the real ones only then.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_plan::TensorId;

use crate::backend::{Backend, BackendError, ForwardGate, GradientSink, Lend, SharedSink, SinkClosed};
use crate::data::Batch;
use crate::sync::lock;

/// One pass of forward and backward.
#[derive(Clone, Debug)]
pub(crate) struct PassRecord {
    /// Which iteration's gradients it announced, counted from 0 as the names of operations are.
    pub(crate) iteration: u64,
    pub(crate) began: Instant,
    /// In the order in which forward has asked.
    pub(crate) gates: Vec<Gate>,
    /// When forward used a parameter once more, if the backend has said so.
    pub(crate) again: Vec<(TensorId, Instant)>,
    pub(crate) backward_began: Instant,
    /// In the order in which backward had them.
    pub(crate) announced: Vec<Announced>,
    pub(crate) ended: Instant,
}

/// Forward has asked for a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(crate) parameter: TensorId,
    pub(crate) asked: Instant,
    /// Until when it waited for the gradient; `asked`, if that was here.
    pub(crate) waited: Instant,
    /// The parameter was up to date.
    pub(crate) ended: Instant,
}

/// Backward has announced a gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) tensor: TensorId,
    pub(crate) at: Instant,
    /// It was in its place, and what could start was started.
    pub(crate) until: Instant,
}

/// Forward and backward on a batch; the mean loss. Its iteration is not known here: 0.
pub(crate) fn record(
    backend: &mut dyn Backend,
    batch: &Batch,
    gate: &mut dyn ForwardGate,
    sink: SharedSink,
) -> Result<(f64, PassRecord), BackendError> {
    let began = Instant::now();
    let noted = Arc::new(Mutex::new(NotingSink { sink, backward_began: began, announced: Vec::new() }));
    let sink: SharedSink = noted.clone();
    let mut gate = NotingGate { gate, gates: Vec::new(), again: Vec::new() };
    let loss = backend.gradients(batch, &mut gate, &sink)?;
    let ended = Instant::now();
    let NotingGate { gates, again, .. } = gate;
    let NotingSink { backward_began, announced, .. } = &mut *lock(&noted);
    let announced = std::mem::take(announced);
    let backward_began = *backward_began;
    Ok((loss, PassRecord { iteration: 0, began, gates, again, backward_began, announced, ended }))
}

struct NotingGate<'a> {
    gate: &'a mut dyn ForwardGate,
    gates: Vec<Gate>,
    again: Vec<(TensorId, Instant)>,
}

impl ForwardGate for NotingGate<'_> {
    fn need(&mut self, parameter: TensorId, values: Lend<'_>) -> Result<Duration, BackendError> {
        let asked = Instant::now();
        let mut lent = None;
        let held_up = self.gate.need(parameter, &mut |access| {
            lent.get_or_insert_with(Instant::now);
            values(access)
        })?;
        let waited = lent.filter(|_| !held_up.is_zero()).unwrap_or(asked);
        self.gates.push(Gate { parameter, asked, waited, ended: Instant::now() });
        Ok(held_up)
    }

    fn again(&mut self, parameter: TensorId) {
        self.gate.again(parameter);
        self.again.push((parameter, Instant::now()));
    }
}

struct NotingSink {
    sink: SharedSink,
    backward_began: Instant,
    announced: Vec<Announced>,
}

impl NotingSink {
    fn note(&mut self, tensor: TensorId, at: Instant) {
        self.announced.push(Announced { tensor, at, until: Instant::now() });
    }
}

impl GradientSink for NotingSink {
    fn ready(&mut self, tensor: TensorId, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        let at = Instant::now();
        lock(&self.sink).ready(tensor, gradient)?;
        self.note(tensor, at);
        Ok(())
    }

    fn write(&mut self, tensor: TensorId, write: &mut dyn FnMut(usize, &mut [f32])) -> Result<bool, SinkClosed> {
        let at = Instant::now();
        let written = lock(&self.sink).write(tensor, write)?;
        if written {
            self.note(tensor, at);
        }
        Ok(written)
    }

    fn backward_begins(&mut self) {
        lock(&self.sink).backward_begins();
        self.backward_began = Instant::now();
    }
}
