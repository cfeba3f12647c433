/// Samples that go through a model together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// How many.
    pub samples: usize,
    /// What the model is given, sample after sample, as many numbers for each.
    pub inputs: Inputs,
    /// What it should say: for each head of the model the class of each of its predictions, sample after sample, as many
    /// for each.
    pub targets: Vec<Vec<u32>>,
}

/// Numbers that a model is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs {
    /// Pixels and the like.
    Values(Vec<f32>),
    /// Symbols of a vocabulary.
    Tokens(Vec<u32>),
}

impl Batch {
    /// Numbers per sample.
    ///
    /// # Panics
    /// If there is no sample.
    pub fn features(&self) -> usize {
        let numbers = match &self.inputs {
            Inputs::Values(values) => values.len(),
            Inputs::Tokens(tokens) => tokens.len(),
        };
        numbers / self.samples
    }
}
