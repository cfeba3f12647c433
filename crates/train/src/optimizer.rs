//! What becomes of a gradient: the optimisers.

use std::fmt;
use std::str::FromStr;

use paceline_plan::TensorId;
use paceline_strategy::nearest;
use serde::{Deserialize, Serialize};

mod adamw;
mod sgd;

pub use adamw::{AdamW, AdamWSettings};
pub use sgd::{MomentumSgd, SgdSettings};

/// Updates parameters from gradients.
///
/// An element's update depends on nothing but its own gradient, value and state. So a parameter can be updated piece by
/// piece, in any order and at any place: as its pieces arrive, by every worker, or by the server that has the piece.
pub trait Optimizer: Send {
    /// Updates a part of a parameter in place; `values` are all of it, `gradient` is the part's. Whether every gradient was
    /// finite.
    fn step(&mut self, part: &Part, values: &mut [f32], gradient: &[f32]) -> bool;
}

/// A part of a parameter that is to be updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Which parameter.
    pub parameter: TensorId,
    /// The first element.
    pub start: usize,
    /// The number of the update, from 1.
    pub update: usize,
    /// What gradients are multiplied with first.
    pub scale: f32,
    /// How far this update goes.
    pub learning_rate: f32,
}

impl Part {
    /// All of a parameter, with its gradient as it is.
    pub fn whole(parameter: TensorId, update: usize, learning_rate: f32) -> Part {
        Part { parameter, start: 0, update, scale: 1.0, learning_rate }
    }
}

/// An optimiser and its constants, but for the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerSettings {
    /// [`MomentumSgd`].
    Sgd(SgdSettings),
    /// [`AdamW`].
    AdamW(AdamWSettings),
}

impl OptimizerSettings {
    /// The name on the command line and in reports: `sgd`, `adamw`.
    pub fn name(&self) -> &'static str {
        match self {
            OptimizerSettings::Sgd(_) => "sgd",
            OptimizerSettings::AdamW(_) => "adamw",
        }
    }

    /// The learning rate where none is named. AdamW's is PyTorch's; SGD's is that of this crate's small models.
    pub fn default_learning_rate(&self) -> f32 {
        match self {
            OptimizerSettings::Sgd(_) => 0.02,
            OptimizerSettings::AdamW(_) => 1e-3,
        }
    }

    /// How strongly parameters are pulled towards 0.
    pub fn weight_decay(&self) -> f32 {
        match self {
            OptimizerSettings::Sgd(settings) => settings.weight_decay,
            OptimizerSettings::AdamW(settings) => settings.weight_decay,
        }
    }

    /// How many numbers it keeps for each element of a parameter.
    pub fn state_copies(&self) -> usize {
        match self {
            OptimizerSettings::Sgd(_) => 1,
            OptimizerSettings::AdamW(_) => 2,
        }
    }

    /// The optimiser at rest, for parameters of the given sizes.
    pub fn build(&self, elements: impl Iterator<Item = usize>) -> Box<dyn Optimizer> {
        match *self {
            OptimizerSettings::Sgd(settings) => Box::new(MomentumSgd::new(settings, elements)),
            OptimizerSettings::AdamW(settings) => Box::new(AdamW::new(settings, elements)),
        }
    }

    /// Do the constants make sense?
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        let weight_decay = self.weight_decay();
        if !(weight_decay.is_finite() && weight_decay >= 0.0) {
            return Err(format!("weight decay {weight_decay} must be finite and not negative"));
        }
        match self {
            OptimizerSettings::Sgd(settings) => settings.check(),
            OptimizerSettings::AdamW(settings) => settings.check(),
        }
    }
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        OptimizerSettings::Sgd(SgdSettings::default())
    }
}

impl fmt::Display for OptimizerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptimizerSettings::Sgd(SgdSettings { momentum, nesterov, weight_decay }) => {
                let nesterov = if *nesterov { " by Nesterov" } else { "" };
                write!(f, "sgd with momentum {momentum}{nesterov} and weight decay {weight_decay}")
            }
            OptimizerSettings::AdamW(AdamWSettings { betas: [first, second], epsilon, weight_decay }) => {
                write!(f, "adamw with betas {first} and {second}, epsilon {epsilon} and weight decay {weight_decay}")
            }
        }
    }
}

/// No optimiser of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown optimiser `{name}`; there are {}{}", NAMES.join(" and "), did_you_mean(.name, &NAMES))]
pub struct UnknownOptimizer {
    /// What was asked for.
    pub name: String,
}

const NAMES: [&str; 2] = ["sgd", "adamw"];

/// With the constants that it has by default.
impl FromStr for OptimizerSettings {
    type Err = UnknownOptimizer;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "sgd" => Ok(OptimizerSettings::Sgd(SgdSettings::default())),
            "adamw" => Ok(OptimizerSettings::AdamW(AdamWSettings::default())),
            _ => Err(UnknownOptimizer { name: name.to_owned() }),
        }
    }
}

/// The hint at the end of a message, if there is one.
pub(crate) fn did_you_mean(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied()).map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default()
}

/// base to the power of exponent, by squaring. Unlike the mathematical library's it rounds the same on every machine.
pub(crate) fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut power, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters after five updates, as in tools/optimizer_values.py, with a piece at a time.
    pub(super) fn five_updates(settings: OptimizerSettings, learning_rate: f32, pieces: &[usize]) -> [f32; 4] {
        let mut optimizer = settings.build([4].into_iter());
        let mut values = [1.0, -2.0, 0.5, 0.0];
        for update in 1..=5 {
            let t = update as f32;
            let gradient = [0.1 * t, -0.3 + 0.05 * t, 1e-6 * t, if update % 2 == 0 { 1.0 } else { -1.0 }];
            let mut start = 0;
            for &piece in pieces {
                let part = Part { start, ..Part::whole(0, update, learning_rate) };
                assert!(optimizer.step(&part, &mut values, &gradient[start..start + piece]));
                start += piece;
            }
        }
        values
    }

    /// The constants are PyTorch's: tools/optimizer_values.py prints them (torch 2.15.0).
    #[test]
    fn five_updates_are_those_of_pytorch() {
        let sgd = |nesterov| OptimizerSettings::Sgd(SgdSettings { momentum: 0.9, nesterov, weight_decay: 0.01 });
        let adamw =
            |betas, epsilon, weight_decay| OptimizerSettings::AdamW(AdamWSettings { betas, epsilon, weight_decay });
        let cases = [
            (sgd(false), 0.1, [0.670_361_94, -1.738_642_8, 0.493_440_24, 0.245_516_79]),
            (sgd(true), 0.1, [0.549_112_86, -1.680_701_7, 0.491_615_03, 0.319_906_98]),
            (adamw([0.9, 0.999], 1e-8, 0.1), 0.01, [0.946_599_36, -1.943_02, 0.449_361_4, 0.014_304_904]),
            (adamw([0.8, 0.99], 1e-3, 0.0), 0.05, [0.750_700_9, -1.771_870_5, 0.499_455_6, 0.067_005_95]),
        ];
        for (settings, learning_rate, expected) in cases {
            let found = five_updates(settings, learning_rate, &[4]);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 2e-6 * expected.abs(), "{settings}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn pieces_are_updated_as_the_whole_is() {
        for name in NAMES {
            let settings: OptimizerSettings = name.parse().unwrap();
            let whole = five_updates(settings, 0.1, &[4]);
            assert_eq!(five_updates(settings, 0.1, &[1, 2, 0, 1]), whole, "{name}");
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_noticed() {
        for name in NAMES {
            let settings: OptimizerSettings = name.parse().unwrap();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut optimizer = settings.build([3].into_iter());
                let part = Part::whole(0, 1, 0.1);
                assert!(!optimizer.step(&part, &mut [0.0; 3], &[1.0, bad, 1.0]), "{name}, {bad}");
                assert!(optimizer.step(&part, &mut [0.0; 3], &[1.0, 1e15, -1e15]));
            }
        }
    }

    #[test]
    fn names_and_constants_are_checked() {
        assert_eq!("adamw".parse::<OptimizerSettings>().unwrap().name(), "adamw");
        let error = "adam".parse::<OptimizerSettings>().unwrap_err().to_string();
        assert_eq!(error, "unknown optimiser `adam`; there are sgd and adamw; did you mean `adamw`?");
        let sgd = SgdSettings::default();
        let adamw = AdamWSettings::default();
        let wrong = [
            (OptimizerSettings::Sgd(SgdSettings { momentum: 1.0, ..sgd }), "momentum 1 must"),
            (OptimizerSettings::Sgd(SgdSettings { momentum: 0.0, nesterov: true, ..sgd }), "Nesterov"),
            (OptimizerSettings::Sgd(SgdSettings { weight_decay: f32::NAN, ..sgd }), "weight decay NaN must"),
            (OptimizerSettings::AdamW(AdamWSettings { betas: [0.9, 1.0], ..adamw }), "beta 1 must"),
            (OptimizerSettings::AdamW(AdamWSettings { betas: [-0.1, 0.9], ..adamw }), "beta -0.1 must"),
            (OptimizerSettings::AdamW(AdamWSettings { epsilon: 0.0, ..adamw }), "epsilon 0 must"),
            (OptimizerSettings::AdamW(AdamWSettings { weight_decay: -1.0, ..adamw }), "weight decay -1 must"),
        ];
        for (settings, told) in wrong {
            let error = settings.check().unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert!(OptimizerSettings::Sgd(sgd).check().is_ok() && OptimizerSettings::AdamW(adamw).check().is_ok());
    }

    #[test]
    fn powers_are_those_of_the_library() {
        for (base, exponent) in [(0.9, 0), (0.9, 1), (0.999, 12_345), (0.5, 40), (1.0, u64::MAX)] {
            let expected = f64::powf(base, exponent as f64);
            assert!((power(base, exponent) - expected).abs() <= 1e-12 * expected, "{base} to the {exponent}");
        }
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }
}
