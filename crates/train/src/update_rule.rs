//! What becomes of a gradient, all together; and clipping by the global norm.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::learning_rate::LearningRate;
use crate::optimizer::OptimizerSettings;

/// How gradients become updates: everything that must be the same for a training to end with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateRule {
    /// The optimiser.
    pub optimizer: OptimizerSettings,
    /// How far each update goes.
    pub learning_rate: LearningRate,
    /// Gradients of a larger norm, over all parameters, are scaled down to this one.
    pub clip_norm: Option<f32>,
}

impl fmt::Display for UpdateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, learning rate {}", self.optimizer, self.learning_rate)?;
        self.clip_norm.map_or(Ok(()), |norm| write!(f, ", clipped to the norm {norm}"))
    }
}

/// What a gradient with this sum of squares is multiplied with, so that its norm is `clip_norm` at most; as PyTorch's
/// `clip_grad_norm_` (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013).
/// 1 where the norm is no number: whoever applies the gradient sees that.
pub(crate) fn clipping(clip_norm: f32, sum_of_squares: f64) -> f32 {
    // Against a norm of 0.
    const EPSILON: f64 = 1e-6;
    (f64::from(clip_norm) / (sum_of_squares.sqrt() + EPSILON)).min(1.0) as f32
}

/// Numbers that are added up beside each other, which a processor does at once.
const LANES: usize = 8;

/// The sum of the squares, in double precision and always in the same order.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest: f64 = chunks.remainder().iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::OptimizerSettings;

    #[test]
    fn squares_add_up_whatever_the_length() {
        for length in [0, 1, 7, 8, 9, 64, 1003] {
            let values: Vec<f32> = (0..length).map(|number| number as f32 - 3.0).collect();
            // Whole numbers: exact in any order.
            let expected: f64 = (0..length).map(|number| (f64::from(number) - 3.0).powi(2)).sum();
            assert_eq!(sum_of_squares(&values), expected, "{length}");
        }
        assert_eq!(sum_of_squares(&[f32::MAX]), f64::from(f32::MAX).powi(2), "no overflow");
    }

    #[test]
    fn only_large_gradients_are_scaled() {
        // 3, 4 and 12: torch 2.15.0 makes 0.2308, 0.3077 and 0.9231 of them.
        let scale = clipping(1.0, 169.0);
        assert!((scale - 1.0 / 13.0).abs() < 1e-6);
        assert_eq!(clipping(13.1, 169.0), 1.0);
        assert_eq!(clipping(1.0, 0.0), 1.0);
        assert_eq!(clipping(1.0, f64::INFINITY), 0.0);
        assert_eq!(clipping(1.0, f64::NAN), 1.0);
    }

    #[test]
    fn a_rule_reads_like_a_sentence() {
        let rule = UpdateRule {
            optimizer: OptimizerSettings::default(),
            learning_rate: LearningRate::new(0.1, &"cosine:5".parse().unwrap(), 10, 100),
            clip_norm: Some(2.5),
        };
        assert_eq!(
            rule.to_string(),
            "sgd with momentum 0.9 and weight decay 0, learning rate 0.1, by a cosine to 0 in iteration 100, after a \
             warm-up of 5 iterations, clipped to the norm 2.5"
        );
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<UpdateRule>(&json).unwrap(), rule);
    }
}
