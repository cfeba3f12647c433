//! The command line with a model of one's own: softmax regression.
//!
//! `cargo run --release -p paceline --example own_model -- bench --models softmax --workers 1,2`

use std::process::ExitCode;

use candle_core::{Result, Tensor};
use paceline::Registry;
use paceline::train::{Buffers, CandleBackend, Model, ModelName, Parameters, TensorSpec};

const CLASSES: usize = 10;

const PIXELS: usize = 28 * 28;

/// logits = inputs · weightᵀ + bias
struct Softmax;

impl Model for Softmax {
    fn parameters(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::uniform("weight", &[CLASSES, PIXELS], PIXELS), TensorSpec::uniform("bias", &[CLASSES], PIXELS)]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn forward(&self, parameters: &Parameters<'_>, _: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![inputs.matmul(&parameters.get(0)?.t()?)?.broadcast_add(&parameters.get(1)?)?])
    }
}

fn main() -> ExitCode {
    let mut registry = Registry::built_in();
    // It takes the images that Paceline's cnn takes.
    let form = ModelName::Cnn.form();
    registry.add_model("softmax", form, |_data, seed| Ok(Box::new(CandleBackend::new(Softmax, seed)?)));
    paceline::run(&registry)
}
