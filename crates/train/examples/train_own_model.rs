//! A model of one's own, trained by three workers that are threads of this process:
//!
//!     cargo run --release -p paceline-train --example train_own_model

use std::{error::Error, thread};

use candle_core::{Result, Tensor};
use paceline_comm::Communicator;
use paceline_train::{
    BatchSize, Buffers, CandleBackend, Data, Model, ModelName, Parameters, Silent, TensorSpec, TrainOptions,
    train_model,
};

/// Two linear layers with a tanh between them, on images of 28 × 28 pixels in 10 classes.
struct Own;

impl Model for Own {
    fn parameters(&self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::uniform("first.weight", &[64, 784], 784),
            TensorSpec::constant("first.bias", &[64], 0.0),
            TensorSpec::uniform("second.weight", &[10, 64], 64),
        ]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn forward(&self, parameters: &Parameters<'_>, _: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let hidden = inputs.matmul(&parameters.get(0)?.t()?)?.broadcast_add(&parameters.get(1)?)?.tanh()?;
        Ok(vec![hidden.matmul(&parameters.get(2)?.t()?)?])
    }
}

/// The share of the test images that are classified rightly, as each worker has it.
pub fn run() -> std::result::Result<Vec<f64>, Box<dyn Error + Send + Sync>> {
    let options = TrainOptions { batch: BatchSize::Global(30), iterations: Some(100), ..TrainOptions::default() };
    // The images of the cnn; `Data` can also be made from one's own.
    let data = Data::load(&options.data, ModelName::Cnn.form())?;
    let worker = |communicator: Communicator| -> std::result::Result<f64, Box<dyn Error + Send + Sync>> {
        let backend = CandleBackend::new(Own, options.seed)?;
        Ok(train_model(&communicator, Box::new(backend), &data, &options, &mut Silent)?.test_accuracy)
    };
    let communicators = Communicator::threads(3)?;
    thread::scope(|scope| {
        let workers: Vec<_> = communicators.into_iter().map(|one| scope.spawn(|| worker(one))).collect();
        workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect()
    })
}

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() {
    println!("{:.3?}", run());
}
