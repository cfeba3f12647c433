use candle_core::{Device, Result, Tensor};

use super::blocks::{
    Cursor, Tensors, attend, attention_elements, embed, linear, multiply_accumulates, normalise_rows, project,
};
use crate::backend::{Activations, Buffers, Model, Parameters, TensorSpec};

/// A language model of bytes: the decoder of GPT-2 (Radford et al., "Language models are unsupervised multitask
/// learners", 2019) with its layer normalisation in front of each part, learnt positions, and an embedding that is also
/// the last layer. It predicts every byte from those before it. Tensors have the names of GPT-2, weights PyTorch's
/// orientation (`[outputs, inputs]`).
#[derive(Clone, Debug)]
pub struct TransformerLm {
    settings: TransformerSettings,
}

/// The sizes of a [`TransformerLm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerSettings {
    /// Symbols; 256 for bytes.
    pub vocabulary: usize,
    /// Symbols that are predicted in each sample, and positions there are.
    pub length: usize,
    /// Of each position's vector; a multiple of `heads`.
    pub width: usize,
    /// Of each attention.
    pub heads: usize,
    /// Blocks of attention and perceptron.
    pub layers: usize,
}

impl Default for TransformerSettings {
    /// 0.8 million parameters: small enough to learn something in a minute on one core.
    fn default() -> Self {
        TransformerSettings { vocabulary: 256, length: 64, width: 128, heads: 4, layers: 4 }
    }
}

/// The hidden layer of the perceptrons is this many times as wide.
const EXPANSION: usize = 4;
const EPSILON: f32 = 1e-5;
/// Of all weights (GPT-2, §2.3, by way of its code); where a block's result joins the sum, divided by √(2 · layers).
const DEVIATION: f32 = 0.02;
/// Token and position embedding come first in the list.
const EMBEDDINGS: usize = 2;

impl TransformerLm {
    /// A model of the given sizes.
    ///
    /// # Panics
    /// If `heads` does not divide `width`.
    pub fn new(settings: TransformerSettings) -> Self {
        assert!(
            settings.heads > 0 && settings.width.is_multiple_of(settings.heads),
            "{settings:?}: heads of what width?"
        );
        TransformerLm { settings }
    }

    /// `[length, length]`: -∞ where the key comes after the query.
    fn mask(&self) -> Result<Tensor> {
        let length = self.settings.length;
        let later = |position: usize| position % length > position / length;
        let mask = (0..length * length).map(|position| if later(position) { f32::NEG_INFINITY } else { 0.0 });
        Tensor::from_iter(mask, &Device::Cpu)?.reshape((length, length))
    }
}

impl Model for TransformerLm {
    fn parameters(&self) -> Vec<TensorSpec> {
        let TransformerSettings { vocabulary, length, width, layers, .. } = self.settings;
        let normal = |name: &str, shape: &[usize]| TensorSpec::normal(name, shape, DEVIATION);
        let joining =
            |name: &str, shape: &[usize]| TensorSpec::normal(name, shape, DEVIATION / (2.0 * layers as f32).sqrt());
        let mut tensors = Tensors::default();
        tensors.parameters.push(normal("wte.weight", &[vocabulary, width]));
        tensors.parameters.push(normal("wpe.weight", &[length, width]));
        for layer in 0..layers {
            let name = |part: &str| format!("h.{layer}.{part}");
            tensors.norm(&name("ln_1"), width);
            tensors.linear(&name("attn.c_attn"), width, 3 * width, normal);
            tensors.linear(&name("attn.c_proj"), width, width, joining);
            tensors.norm(&name("ln_2"), width);
            tensors.linear(&name("mlp.c_fc"), width, EXPANSION * width, normal);
            tensors.linear(&name("mlp.c_proj"), EXPANSION * width, width, joining);
        }
        tensors.norm("ln_f", width);
        tensors.parameters
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    /// `inputs` are symbols, `[samples, length]`; the logits of the next symbol, `[samples · length, vocabulary]`.
    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let TransformerSettings { heads, layers, width, .. } = self.settings;
        let mut rows = embed(inputs, &parameters.get(0)?)?.broadcast_add(&parameters.get(1)?)?;
        let mut cursor = Cursor::new(parameters, buffers).parameters_from(EMBEDDINGS);
        let mask = self.mask()?;
        for _ in 0..layers {
            let inner = linear(&normalise_rows(&rows, &mut cursor, EPSILON)?, &mut cursor)?;
            let part = |number: usize| inner.narrow(2, number * width, width);
            let mixed = attend([&part(0)?, &part(1)?, &part(2)?], heads, Some(&mask))?;
            rows = (rows + linear(&mixed, &mut cursor)?)?;
            let inner = linear(&normalise_rows(&rows, &mut cursor, EPSILON)?, &mut cursor)?.gelu()?;
            rows = (rows + linear(&inner, &mut cursor)?)?;
        }
        let rows = normalise_rows(&rows, &mut cursor, EPSILON)?;
        Ok(vec![project(&rows, &parameters.get(0)?)?.flatten_to(1)?])
    }

    /// Elements that autograd keeps per sample.
    fn activations(&self) -> Activations {
        let TransformerSettings { vocabulary, length, width, heads, layers } = self.settings;
        let rows = length * width;
        // Two norms, two sums, c_attn with its bias and its three thirds, c_proj and mlp.c_proj with their biases; the
        // hidden layer, its bias, its gelu.
        let block = (2 + 2 + 9 + 4 + 3 * EXPANSION) * rows + attention_elements(length, width, heads);
        let kept = layers * block + 4 * rows + length * vocabulary;
        Activations { kept, largest: (EXPANSION * rows).max(length * vocabulary).max(heads * length * length) }
    }

    /// The embedding multiplies as the last layer; to look up is no arithmetic. Of each layer four matrices.
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        let TransformerSettings { length, layers, .. } = self.settings;
        let places = [length, 0].into_iter().chain(std::iter::repeat_n(length, 4 * layers));
        multiply_accumulates(&self.parameters(), places)
    }
}
