use candle_core::{Result, Tensor};

use super::Normalise;
use super::blocks::multiply_accumulates;
use crate::backend::{Activations, Buffers, Model, Parameters, TensorSpec};

/// A perceptron with one hidden layer of 128 units: features → 128 → ReLU → classes.
#[derive(Clone, Debug)]
pub struct Mlp {
    features: usize,
    classes: usize,
    normalise: Normalise,
}

const HIDDEN: usize = 128;

impl Mlp {
    /// For inputs of `features` pixels.
    pub fn new(features: usize, classes: usize, normalise: Normalise) -> Self {
        Mlp { features, classes, normalise }
    }
}

impl Model for Mlp {
    fn parameters(&self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::uniform("fc1.weight", &[HIDDEN, self.features], self.features),
            TensorSpec::uniform("fc1.bias", &[HIDDEN], self.features),
            TensorSpec::uniform("fc2.weight", &[self.classes, HIDDEN], HIDDEN),
            TensorSpec::uniform("fc2.bias", &[self.classes], HIDDEN),
        ]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.normalise.buffers()
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let inputs = self.normalise.apply(inputs, buffers)?;
        let hidden = inputs.matmul(&parameters.get(0)?.t()?)?.broadcast_add(&parameters.get(1)?)?.relu()?;
        Ok(vec![hidden.matmul(&parameters.get(2)?.t()?)?.broadcast_add(&parameters.get(3)?)?])
    }

    /// The scaled inputs; the product, with bias, its positive part.
    fn activations(&self) -> Activations {
        Activations { kept: 2 * self.features + 3 * HIDDEN, largest: HIDDEN }
    }

    fn forward_macs_per_sample(&self) -> Vec<u64> {
        multiply_accumulates(&self.parameters(), [1, 1])
    }
}
