use serde::{Deserialize, Serialize};

use super::{Optimizer, Part, power};

/// Adam with decoupled weight decay, as `torch.optim.AdamW` has it: for a parameter p with gradient g in update t,
///
/// p ← (1 − learning_rate · weight_decay) · p
/// m ← β₁ · m + (1 − β₁) · g;  v ← β₂ · v + (1 − β₂) · g²
/// p ← p − learning_rate · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
///
/// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019), algorithm 2; Kingma and Ba, "Adam: a method
/// for stochastic optimization" (ICLR 2015).
#[derive(Clone, Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    /// By parameter: the mean of the gradients (m), and of their squares (v).
    means: Vec<Vec<f32>>,
    squares: Vec<Vec<f32>>,
}

/// The constants of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamWSettings {
    /// β₁ and β₂: how much of the means stays; each in `0..1`.
    pub betas: [f64; 2],
    /// ε: keeps the step finite where gradients were 0; above 0.
    pub epsilon: f64,
    /// How strongly parameters are pulled towards 0; finite and not negative.
    pub weight_decay: f32,
}

/// PyTorch's.
impl Default for AdamWSettings {
    fn default() -> Self {
        AdamWSettings { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamWSettings {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(beta) = self.betas.iter().find(|beta| !(0.0..1.0).contains(*beta)) {
            return Err(format!("beta {beta} must be at least 0 and below 1"));
        }
        // In f32, in which it is added: 0 / 0 would be NaN.
        if !(self.epsilon.is_finite() && self.epsilon as f32 > 0.0) {
            return Err(format!("epsilon {} must be finite and above 0", self.epsilon));
        }
        Ok(())
    }
}

impl AdamW {
    /// At rest, for parameters of the given sizes.
    pub fn new(settings: AdamWSettings, elements: impl Iterator<Item = usize>) -> Self {
        let means: Vec<Vec<f32>> = elements.map(|count| vec![0.0; count]).collect();
        AdamW { settings, squares: means.clone(), means }
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, part: &Part, values: &mut [f32], gradient: &[f32]) -> bool {
        let AdamWSettings { betas: [beta_1, beta_2], epsilon, weight_decay } = self.settings;
        let learning_rate = f64::from(part.learning_rate);
        // What is the same for all elements, in f64, and rounded once.
        let keep = (1.0 - learning_rate * f64::from(weight_decay)) as f32;
        let step = (learning_rate / (1.0 - power(beta_1, part.update as u64))) as f32;
        let unbias = (1.0 / (1.0 - power(beta_2, part.update as u64)).sqrt()) as f32;
        let (new_mean, old_square, new_square) = ((1.0 - beta_1) as f32, beta_2 as f32, (1.0 - beta_2) as f32);
        let (epsilon, scale) = (epsilon as f32, part.scale);
        let means = &mut self.means[part.parameter][part.start..];
        let squares = &mut self.squares[part.parameter][part.start..];
        let mut finite = true;
        let state = values[part.start..].iter_mut().zip(means.iter_mut().zip(squares));
        for ((value, (mean, square)), &gradient) in state.zip(gradient) {
            finite &= gradient.is_finite();
            let gradient = scale * gradient;
            *mean += new_mean * (gradient - *mean);
            *square = old_square * *square + new_square * gradient * gradient;
            *value = keep * *value - step * *mean / (square.sqrt() * unbias + epsilon);
        }
        finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formulas of the paper, word by word and in f64.
    fn reference(settings: &AdamWSettings, learning_rate: f64, gradients: &[[f32; 3]], values: [f64; 3]) -> [f64; 3] {
        let [beta_1, beta_2] = settings.betas;
        let (mut values, mut means, mut squares) = (values, [0.0; 3], [0.0; 3]);
        for (t, gradient) in (1..).zip(gradients) {
            for element in 0..3 {
                let gradient = f64::from(gradient[element]);
                means[element] = beta_1 * means[element] + (1.0 - beta_1) * gradient;
                squares[element] = beta_2 * squares[element] + (1.0 - beta_2) * gradient.powi(2);
                let mean: f64 = means[element] / (1.0 - beta_1.powi(t));
                let square: f64 = squares[element] / (1.0 - beta_2.powi(t));
                let decay = f64::from(settings.weight_decay) * values[element];
                values[element] -= learning_rate * (mean / (square.sqrt() + settings.epsilon) + decay);
            }
        }
        values
    }

    #[test]
    fn many_updates_are_those_of_the_paper() {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        // Small, ordinary and large gradients.
        let gradients: Vec<[f32; 3]> = (0..200).map(|_| [1e-5 * next(), next(), 1e4 * next()]).collect();
        let settings = AdamWSettings { weight_decay: 0.05, ..AdamWSettings::default() };
        let mut optimizer = AdamW::new(settings, [3].into_iter());
        let mut values = [0.5, -1.5, 3.0];
        for (number, gradient) in gradients.iter().enumerate() {
            assert!(optimizer.step(&Part::whole(0, number + 1, 0.015_625), &mut values, gradient));
        }
        let expected = reference(&settings, 0.015_625, &gradients, [0.5, -1.5, 3.0]);
        for (found, expected) in values.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5 * expected.abs().max(1.0), "{values:?}, {expected:?}");
        }
    }

    /// The first step is as long as the learning rate, whatever the gradient: what the corrections of the bias are for.
    #[test]
    fn the_first_step_is_as_long_as_the_learning_rate() {
        let settings = AdamWSettings { weight_decay: 0.0, ..AdamWSettings::default() };
        let mut values = [1.0; 3];
        AdamW::new(settings, [3].into_iter()).step(&Part::whole(0, 1, 0.1), &mut values, &[1e-3, -70.0, 0.0]);
        for (value, expected) in values.iter().zip([0.9, 1.1, 1.0]) {
            assert!((value - expected).abs() < 1e-5, "{values:?}");
        }
    }

    /// Decay is decoupled: without a gradient a parameter shrinks by learning rate · weight decay, and by nothing else.
    #[test]
    fn decay_does_not_pass_through_the_means() {
        let settings = AdamWSettings { weight_decay: 0.5, ..AdamWSettings::default() };
        let mut optimizer = AdamW::new(settings, [1].into_iter());
        let mut values = [8.0];
        for update in 1..=3 {
            optimizer.step(&Part::whole(0, update, 0.5), &mut values, &[0.0]);
        }
        assert_eq!(values, [8.0 * 0.75 * 0.75 * 0.75]);
    }
}
