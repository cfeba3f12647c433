//! The forward gate of training: waits for gradients and applies them.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_comm::CommError;
use paceline_plan::TensorId;

use crate::backend::{BackendError, ForwardGate, Lend, SinkClosed};
use crate::exchange::Exchange;
use crate::learning_rate::LearningRate;
use crate::optimizer::{Optimizer, Part};
use crate::sync::lock;
use crate::update_rule::{clipping, sum_of_squares};

/// The update that is on its way: after the last gradient of an iteration was announced, until forward has asked for the
/// last parameter.
pub(crate) struct Updates {
    exchange: Arc<Mutex<Exchange>>,
    optimizer: Box<dyn Optimizer>,
    learning_rate: LearningRate,
    clip_norm: Option<f32>,
    /// What the gradients of the update on its way are multiplied with; none as long as their norm is not known.
    scale: Option<f32>,
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
    /// Something that has come is not finite; on every rank.
    NotFinite {
        /// What.
        what: &'static str,
    },
}

impl Updates {
    pub(crate) fn new(
        exchange: Arc<Mutex<Exchange>>,
        optimizer: Box<dyn Optimizer>,
        learning_rate: LearningRate,
        clip_norm: Option<f32>,
        parameters: usize,
    ) -> Updates {
        Updates {
            exchange,
            optimizer,
            learning_rate,
            clip_norm,
            scale: None,
            due: vec![false; parameters],
            iteration: 0,
            failure: None,
            times: Times::default(),
        }
    }

    /// All gradients of an iteration have been announced: an update is on its way.
    pub(crate) fn announce(&mut self) {
        self.iteration += 1;
        self.scale = if self.clip_norm.is_some() { None } else { Some(1.0) };
        self.due.fill(true);
    }

    /// Updates so far, the one on its way included.
    pub(crate) fn iteration(&self) -> usize {
        self.iteration
    }

    /// How far the update on its way goes, or the last one.
    pub(crate) fn learning_rate(&self) -> f32 {
        self.learning_rate.at(self.iteration.saturating_sub(1) as u64)
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
        let mut exchange = lock(&self.exchange);
        let what = if exchange.applies() { "a parameter" } else { "the gradient" };
        let waited = exchange.wait_for_all();
        drop(exchange);
        self.close(waited.map_or_else(Failure::Communication, |()| Failure::NotFinite { what }))
    }

    /// What the gradients are multiplied with. Where they are clipped, all of them have come: every rank adds up the same
    /// squares in the same order.
    fn scale(&mut self, exchange: &Exchange) -> f32 {
        let (parameters, clip_norm) = (self.due.len(), self.clip_norm);
        *self.scale.get_or_insert_with(|| {
            let Some(clip_norm) = clip_norm else { return 1.0 };
            let mut squares = 0.0;
            for parameter in 0..parameters {
                exchange.read(parameter, |_, gradient| squares += sum_of_squares(gradient));
            }
            clipping(clip_norm, squares)
        })
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
        let exchange = self.exchange.clone();
        let exchange = lock(&exchange);
        let (update, scale, learning_rate) = (self.iteration, self.scale(&exchange), self.learning_rate());
        let optimizer = &mut self.optimizer;
        values(&mut |values| {
            exchange.read(parameter, |start, gradient| {
                let part = Part { parameter, start, update, scale, learning_rate };
                finite &= optimizer.step(&part, values, gradient);
            });
        })?;
        drop(exchange);
        self.times.held_up += held_up;
        self.times.updating += began.elapsed();
        self.due[parameter] = false;
        if finite { Ok(held_up) } else { Err(self.not_finite()) }
    }
}
