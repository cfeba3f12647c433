//! The forward gate of training: waits for gradients and applies them.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_comm::CommError;
use paceline_plan::TensorId;

use crate::backend::{BackendError, ForwardGate, Lend, SinkClosed};
use crate::exchange::Exchange;
use crate::optimizer::{Optimizer, Part};
use crate::sync::lock;

/// The update that is on its way: after the last gradient of an iteration was announced, until forward has asked for the
/// last parameter.
pub(crate) struct Updates {
    exchange: Arc<Mutex<Exchange>>,
    optimizer: Box<dyn Optimizer>,
    /// By parameter: its gradient has not been applied.
    due: Vec<bool>,
    /// Updates so far, the one on its way included.
    iteration: usize,
    failure: Option<Failure>,
    /// How long forward was held up, and how long updates have taken.
    times: Times,
}

/// What the gate has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) held_up: Duration,
    pub(crate) updating: Duration,
}

/// Why the gate has closed.
pub(crate) enum Failure {
    /// The gradients did not come.
    Communication(CommError),
    /// They are not finite; on every rank.
    NotFinite,
}

impl Updates {
    pub(crate) fn new(exchange: Arc<Mutex<Exchange>>, optimizer: Box<dyn Optimizer>, parameters: usize) -> Updates {
        Updates {
            exchange,
            optimizer,
            due: vec![false; parameters],
            iteration: 0,
            failure: None,
            times: Times::default(),
        }
    }

    /// All gradients of an iteration have been announced: an update is on its way.
    pub(crate) fn announce(&mut self) {
        self.iteration += 1;
        self.due.fill(true);
    }

    /// Updates so far, the one on its way included.
    pub(crate) fn iteration(&self) -> usize {
        self.iteration
    }

    /// How far a step goes in the update on its way.
    pub(crate) fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate(self.iteration)
    }

    /// What it has taken since this was last asked.
    pub(crate) fn take_times(&mut self) -> Times {
        mem::take(&mut self.times)
    }

    /// Why the gate has closed, if it has.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    fn close(&mut self, failure: Failure) -> BackendError {
        self.failure.get_or_insert(failure);
        BackendError::from(SinkClosed)
    }

    /// The gradient is the same on every rank, and so is the verdict on it. All operations end first, so that no rank
    /// leaves while another needs it.
    fn not_finite(&mut self) -> BackendError {
        let waited = lock(&self.exchange).wait_for_all();
        let failure = waited.map_or_else(Failure::Communication, |()| Failure::NotFinite);
        self.close(failure)
    }
}

impl ForwardGate for Updates {
    fn need(&mut self, parameter: TensorId, values: Lend<'_>) -> Result<Duration, BackendError> {
        if !self.due[parameter] {
            return Ok(Duration::ZERO);
        }
        let waited = lock(&self.exchange).wait(parameter);
        let held_up = waited.map_err(|error| self.close(Failure::Communication(error)))?;
        let (mut finite, began) = (true, Instant::now());
        let exchange = lock(&self.exchange);
        let (optimizer, update) = (&mut self.optimizer, self.iteration);
        values(&mut |values| {
            exchange.read(parameter, |start, gradient| {
                finite &= optimizer.step(&Part { parameter, start, update, scale: 1.0 }, values, gradient);
            });
        })?;
        drop(exchange);
        self.times.held_up += held_up;
        self.times.updating += began.elapsed();
        self.due[parameter] = false;
        if finite { Ok(held_up) } else { Err(self.not_finite()) }
    }
}
