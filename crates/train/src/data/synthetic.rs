use super::Form;
use super::batch::{Batch, Inputs};
use crate::random::Random;

/// Samples of a form, drawn when they are asked for: the same for the same number, on every worker. There is nothing in
/// them to learn.
#[derive(Clone, Debug)]
pub struct Synthetic {
    form: Form,
    samples: usize,
    /// Sets training and test samples apart.
    stream: u64,
}

const TRAINING_SAMPLES: usize = 1 << 16;
const TEST_SAMPLES: usize = 16;
const SEED: u64 = 0x0073_7475_6479;

impl Synthetic {
    /// `samples` of a form; those of another `stream` are others.
    pub fn new(form: Form, samples: usize, stream: u64) -> Self {
        Synthetic { form, samples, stream }
    }

    pub(super) fn both(form: Form) -> (Synthetic, Synthetic) {
        (Synthetic::new(form, TRAINING_SAMPLES, 0), Synthetic::new(form, TEST_SAMPLES, 1))
    }

    /// Of what form they are.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.samples
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Draws the samples `indices`: pixels uniform with mean 0 and deviation 1; tokens uniform, each of which is also its
    /// own target.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let randoms = indices.iter().map(|&index| {
            assert!(index < self.samples, "sample {index} of {}", self.samples);
            Random::new(SEED + self.stream, index as u64)
        });
        let samples = indices.len();
        match self.form {
            Form::Images { channels, size: (height, width), classes } => {
                let (mut values, mut labels) = (Vec::with_capacity(samples * channels * height * width), Vec::new());
                for mut random in randoms {
                    labels.push(random.below(classes) as u32);
                    // The deviation of a uniform distribution is half its width over √3.
                    values.extend((0..channels * height * width).map(|_| random.symmetric(3f32.sqrt())));
                }
                Batch { samples, inputs: Inputs::Values(values), targets: vec![labels] }
            }
            Form::Text { length } => {
                let (mut inputs, mut targets) = (Vec::new(), Vec::new());
                for mut random in randoms {
                    let run: Vec<u32> = (0..=length).map(|_| random.below(256) as u32).collect();
                    inputs.extend_from_slice(&run[..length]);
                    targets.extend_from_slice(&run[1..]);
                }
                Batch { samples, inputs: Inputs::Tokens(inputs), targets: vec![targets] }
            }
            Form::Sentences { length, vocabulary } => {
                let (mut inputs, mut tokens, mut follows) = (Vec::new(), Vec::new(), Vec::new());
                for mut random in randoms {
                    let run: Vec<u32> = (0..length).map(|_| random.below(vocabulary) as u32).collect();
                    inputs.extend_from_slice(&run);
                    inputs.extend((0..length).map(|position| u32::from(position >= length / 2)));
                    tokens.extend(run);
                    follows.push(random.below(2) as u32);
                }
                Batch { samples, inputs: Inputs::Tokens(inputs), targets: vec![tokens, follows] }
            }
        }
    }

    pub(super) fn fingerprint(&self) -> String {
        format!("{} synthetic samples {} of {:?}", self.samples, self.stream, self.form)
    }
}
