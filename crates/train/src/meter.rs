//! Adds up an epoch, first on this rank and then over all ranks.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator};

use crate::report::EpochRow;

/// What one update of the parameters was made from.
pub(crate) struct Update {
    /// Over all ranks.
    pub(crate) samples: usize,
    /// On this rank.
    pub(crate) local_samples: usize,
    /// Of the local samples' losses.
    pub(crate) loss_sum: f64,
}

/// The running epoch on this rank.
pub(crate) struct EpochMeter {
    started: Instant,
    iterations: usize,
    samples: usize,
    loss_sum: f64,
}

impl EpochMeter {
    pub(crate) fn start() -> Self {
        EpochMeter { started: Instant::now(), iterations: 0, samples: 0, loss_sum: 0.0 }
    }

    pub(crate) fn add(&mut self, update: &Update) {
        self.iterations += 1;
        self.samples += update.samples;
        self.loss_sum += update.loss_sum;
    }

    /// Ends the epoch: the row of all ranks together, without epoch number, learning rate and evaluation.
    pub(crate) fn reduce(self, in_communicator: Duration, communicator: &Communicator) -> Result<EpochRow, CommError> {
        let seconds = self.started.elapsed().as_secs_f64();
        let exposed = in_communicator.as_secs_f64();
        let own = [self.loss_sum, seconds, exposed];
        let mut all = vec![0.0; own.len() * communicator.world_size()];
        communicator.all_gather(&own, &mut all, &CallOptions::default())?;
        let column = |index: usize| all.chunks_exact(own.len()).map(move |rank| rank[index]);
        let mean = |index| column(index).sum::<f64>() / communicator.world_size() as f64;
        let seconds = column(1).fold(0.0, f64::max);
        Ok(EpochRow {
            epoch: 0,
            iterations: self.iterations,
            samples: self.samples,
            loss: column(0).sum::<f64>() / self.samples as f64,
            learning_rate: 0.0,
            test_loss: 0.0,
            test_accuracy: 0.0,
            samples_per_s: self.samples as f64 / seconds,
            seconds,
            compute_s: mean(1) - mean(2),
            exposed_communication_s: mean(2),
        })
    }
}
