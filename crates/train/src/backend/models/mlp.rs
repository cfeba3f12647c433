use candle_core::{Result, Tensor};

use super::Normalise;
use crate::backend::{Model, Parameters, TensorSpec};
use crate::data::CLASSES;

/// A perceptron with one hidden layer of 128 units: features → 128 → ReLU → 10.
#[derive(Clone, Debug)]
pub struct Mlp {
    features: usize,
    normalise: Normalise,
}

const HIDDEN: usize = 128;

impl Mlp {
    /// For inputs of `features` pixels.
    pub fn new(features: usize, normalise: Normalise) -> Self {
        Mlp { features, normalise }
    }
}

impl Model for Mlp {
    fn parameters(&self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::uniform("fc1.weight", &[HIDDEN, self.features], self.features),
            TensorSpec::uniform("fc1.bias", &[HIDDEN], self.features),
            TensorSpec::uniform("fc2.weight", &[CLASSES, HIDDEN], HIDDEN),
            TensorSpec::uniform("fc2.bias", &[CLASSES], HIDDEN),
        ]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.normalise.buffers()
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &[Tensor], inputs: &Tensor) -> Result<Tensor> {
        let inputs = inputs.broadcast_sub(&buffers[0])?.broadcast_div(&buffers[1])?;
        let hidden = inputs.matmul(&parameters.get(0)?.t()?)?.broadcast_add(&parameters.get(1)?)?.relu()?;
        hidden.matmul(&parameters.get(2)?.t()?)?.broadcast_add(&parameters.get(3)?)
    }
}
