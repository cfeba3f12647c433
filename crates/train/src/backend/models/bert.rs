use candle_core::{Result, Tensor};

use super::blocks::{
    Cursor, Tensors, attend, attention_elements, embed, linear, multiply_accumulates, normalise_rows, project,
};
use crate::backend::{Activations, Buffers, Model, Parameters, TensorSpec};

/// BERT (Devlin, Chang, Lee and Toutanova, "BERT: pre-training of deep bidirectional transformers", 2018) with both heads
/// of its pre-training: the token at each position, and whether the second sentence follows the first. The embedding of
/// tokens is also the last layer of the first head. Tensors have the names and the order of the study's program.
#[derive(Clone, Debug)]
pub struct Bert {
    settings: BertSettings,
}

/// The sizes of a [`Bert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BertSettings {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Positions that have an embedding.
    pub positions: usize,
    /// Tokens per sample; at most `positions`.
    pub length: usize,
    /// Of each position's vector; a multiple of `heads`.
    pub width: usize,
    /// Of each attention.
    pub heads: usize,
    /// Blocks of attention and perceptron.
    pub layers: usize,
}

impl BertSettings {
    /// BERT-Base on the study's 64 tokens; the vocabulary of 30,522 is rounded up to a multiple of 64.
    pub const BASE: BertSettings =
        BertSettings { vocabulary: 30_528, positions: 512, length: 64, width: 768, heads: 12, layers: 12 };

    /// BERT-Large on the study's 64 tokens.
    pub const LARGE: BertSettings = BertSettings { width: 1024, heads: 16, layers: 24, ..BertSettings::BASE };
}

/// Kinds of tokens: of the first and of the second sentence.
const TYPES: usize = 2;
/// The hidden layer of the perceptrons is this many times as wide.
const EXPANSION: usize = 4;
const EPSILON: f32 = 1e-12;
/// Of all weights (appendix A.2, by way of the code).
const DEVIATION: f32 = 0.02;
/// Embeddings of tokens, positions and types come first in the list.
const EMBEDDINGS: usize = 3;

impl Bert {
    /// A model of the given sizes.
    ///
    /// # Panics
    /// If `heads` does not divide `width`, or there are more tokens than positions.
    pub fn new(settings: BertSettings) -> Self {
        assert!(
            settings.heads > 0 && settings.width.is_multiple_of(settings.heads),
            "{settings:?}: heads of what width?"
        );
        assert!(settings.length > 0 && settings.length <= settings.positions, "{settings:?}: too few positions");
        Bert { settings }
    }
}

impl Model for Bert {
    fn parameters(&self) -> Vec<TensorSpec> {
        let BertSettings { vocabulary, positions, width, layers, .. } = self.settings;
        let normal = |name: &str, shape: &[usize]| TensorSpec::normal(name, shape, DEVIATION);
        let mut tensors = Tensors::default();
        for (name, entries) in
            [("word_embeddings", vocabulary), ("position_embeddings", positions), ("token_type_embeddings", TYPES)]
        {
            tensors.parameters.push(normal(&format!("bert.embeddings.{name}.weight"), &[entries, width]));
        }
        tensors.norm("bert.embeddings.LayerNorm", width);
        for layer in 0..layers {
            let name = |part: &str| format!("bert.encoder.layer.{layer}.{part}");
            for part in ["query", "key", "value"] {
                tensors.linear(&name(&format!("attention.self.{part}")), width, width, normal);
            }
            tensors.linear(&name("attention.output.dense"), width, width, normal);
            tensors.norm(&name("attention.output.LayerNorm"), width);
            tensors.linear(&name("intermediate.dense"), width, EXPANSION * width, normal);
            tensors.linear(&name("output.dense"), EXPANSION * width, width, normal);
            tensors.norm(&name("output.LayerNorm"), width);
        }
        tensors.linear("bert.pooler.dense", width, width, normal);
        tensors.parameters.push(TensorSpec::constant("cls.predictions.bias", &[vocabulary], 0.0));
        tensors.linear("cls.predictions.transform.dense", width, width, normal);
        tensors.norm("cls.predictions.transform.LayerNorm", width);
        tensors.linear("cls.seq_relationship", width, 2, normal);
        tensors.parameters
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    /// `inputs` are `[samples, 2 · length]`: the tokens, then the kind of each. Two heads: the logits of the tokens,
    /// `[samples · length, vocabulary]`, and of "does not follow" and "follows", `[samples, 2]`.
    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let BertSettings { length, heads, layers, .. } = self.settings;
        let tokens = embed(&inputs.narrow(1, 0, length)?, &parameters.get(0)?)?;
        let rows = tokens.broadcast_add(&parameters.get(1)?.narrow(0, 0, length)?)?;
        let rows = (rows + embed(&inputs.narrow(1, length, length)?, &parameters.get(2)?)?)?;
        let cursor = &mut Cursor::new(parameters, buffers).parameters_from(EMBEDDINGS);
        let mut rows = normalise_rows(&rows, cursor, EPSILON)?;
        for _ in 0..layers {
            let (query, key, value) = (linear(&rows, cursor)?, linear(&rows, cursor)?, linear(&rows, cursor)?);
            let mixed = linear(&attend([&query, &key, &value], heads, None)?, cursor)?;
            rows = normalise_rows(&(rows + mixed)?, cursor, EPSILON)?;
            let inner = linear(&linear(&rows, cursor)?.gelu_erf()?, cursor)?;
            rows = normalise_rows(&(rows + inner)?, cursor, EPSILON)?;
        }
        let pooled = linear(&rows.narrow(1, 0, 1)?.squeeze(1)?, cursor)?.tanh()?;
        let bias = cursor.parameter()?;
        let predicted = normalise_rows(&linear(&rows, cursor)?.gelu_erf()?, cursor, EPSILON)?;
        let tokens = project(&predicted, &parameters.get(0)?)?.broadcast_add(&bias)?.flatten_to(1)?;
        Ok(vec![tokens, linear(&pooled, cursor)?])
    }

    /// Elements that autograd keeps per sample.
    fn activations(&self) -> Activations {
        let BertSettings { vocabulary, length, width, heads, layers, .. } = self.settings;
        let rows = length * width;
        // Six linear layers with their biases, two of them wide or from wide; a wide gelu; two sums; two norms.
        let block = (10 + 3 * EXPANSION + 2 + 2) * rows + attention_elements(length, width, heads);
        let kept = layers * block + 9 * rows + 2 * length * vocabulary;
        Activations { kept, largest: (EXPANSION * rows).max(length * vocabulary).max(heads * length * length) }
    }

    /// The embedding of tokens multiplies as the last layer of its head; to look up is no arithmetic. Of each layer six
    /// matrices on all tokens; the pooler and the second head see one.
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        let BertSettings { length, layers, .. } = self.settings;
        let places = [length, 0, 0].into_iter().chain(std::iter::repeat_n(length, 6 * layers)).chain([1, length, 1]);
        multiply_accumulates(&self.parameters(), places)
    }
}
