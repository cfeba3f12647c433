//! How far updates go: the learning rate as a function of the iteration.

use std::f64::consts::FRAC_PI_2;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::optimizer::{did_you_mean, power};

/// How the learning rate changes, as it is written: `NAME[:ARGUMENT…]`.
///
/// All begin with a warm-up, if they have one: in W iterations the rate rises linearly, from 1/W of it in the first one to
/// all of it in the last (Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, §2.2). What
/// follows is PyTorch's `StepLR`, `CosineAnnealingLR` and `LinearLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    warm_up: Period,
    decay: Decay,
}

/// What follows warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decay {
    Constant,
    /// Multiplied with the factor again and again, counted from the first iteration.
    Step {
        every: Period,
        factor: f64,
    },
    /// Half a wave down to 0 in the iterations after warm-up (Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5).
    Cosine,
    /// Straight down to 0 in the iterations after warm-up.
    Linear,
}

/// A number of iterations, or of epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Period {
    Iterations(u64),
    Epochs(f64),
}

/// A text that is no schedule of the learning rate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleTextError {
    /// There is none of that name.
    #[error("unknown learning-rate schedule `{name}`; there are {}{}", FORMS.join(", "), did_you_mean(.name, &NAMES))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Too few or too many arguments.
    #[error("the learning-rate schedule is written {form}, and has {given} arguments here")]
    Arguments {
        /// How it is written.
        form: &'static str,
        /// How many were given.
        given: usize,
    },
    /// An argument that is no period.
    #[error(
        "{parameter} in {form} is a number of iterations, such as 500, or of epochs, such as 5epochs, not `{given}`"
    )]
    Period {
        /// Which argument.
        parameter: &'static str,
        /// How the schedule is written.
        form: &'static str,
        /// What was given.
        given: String,
    },
    /// An argument that is no factor.
    #[error("FACTOR in {form} is a number above 0 and up to 1, not `{given}`")]
    Factor {
        /// How the schedule is written.
        form: &'static str,
        /// What was given.
        given: String,
    },
}

const NAMES: [&str; 4] = ["constant", "step", "cosine", "linear"];
const FORMS: [&str; 4] = ["constant[:WARMUP]", "step:EVERY:FACTOR[:WARMUP]", "cosine[:WARMUP]", "linear[:WARMUP]"];

impl Default for LearningRateSchedule {
    fn default() -> Self {
        LearningRateSchedule { warm_up: Period::Iterations(0), decay: Decay::Constant }
    }
}

impl FromStr for LearningRateSchedule {
    type Err = ScheduleTextError;

    fn from_str(text: &str) -> Result<Self, ScheduleTextError> {
        let mut arguments: Vec<&str> = text.split(':').map(str::trim).collect();
        let name = arguments.remove(0);
        let number = NAMES.iter().position(|known| *known == name);
        let number = number.ok_or_else(|| ScheduleTextError::Unknown { name: name.to_owned() })?;
        let form = FORMS[number];
        let period = |parameter, given: &str, least| {
            let period = Period::parse(given).filter(|period| *period != Period::Iterations(0) || least == 0);
            period.ok_or_else(|| ScheduleTextError::Period { parameter, form, given: given.to_owned() })
        };
        let required = if name == "step" { 2 } else { 0 };
        if !(required..=required + 1).contains(&arguments.len()) {
            return Err(ScheduleTextError::Arguments { form, given: arguments.len() });
        }
        let decay = match name {
            "step" => {
                let factor = arguments[1].parse().ok().filter(|factor| *factor > 0.0 && *factor <= 1.0);
                let wrong = || ScheduleTextError::Factor { form, given: arguments[1].to_owned() };
                Decay::Step { every: period("EVERY", arguments[0], 1)?, factor: factor.ok_or_else(wrong)? }
            }
            "cosine" => Decay::Cosine,
            "linear" => Decay::Linear,
            _ => Decay::Constant,
        };
        let warm_up = arguments.get(required).map(|given| period("WARMUP", given, 0)).transpose()?;
        Ok(LearningRateSchedule { warm_up: warm_up.unwrap_or(Period::Iterations(0)), decay })
    }
}

/// As it is written; a warm-up of no iteration is left out.
impl fmt::Display for LearningRateSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.decay {
            Decay::Constant => write!(f, "constant")?,
            Decay::Step { every, factor } => write!(f, "step:{every}:{factor}")?,
            Decay::Cosine => write!(f, "cosine")?,
            Decay::Linear => write!(f, "linear")?,
        }
        if self.warm_up == Period::Iterations(0) { Ok(()) } else { write!(f, ":{}", self.warm_up) }
    }
}

impl Period {
    fn parse(text: &str) -> Option<Period> {
        let epochs = text.strip_suffix("epochs").or_else(|| text.strip_suffix("epoch"));
        match epochs {
            None if text.starts_with('+') => None,
            None => text.parse().ok().map(Period::Iterations),
            Some(epochs) => {
                let epochs: f64 = epochs.trim().parse().ok()?;
                (epochs.is_finite() && epochs > 0.0).then_some(Period::Epochs(epochs))
            }
        }
    }

    /// In iterations, of which an epoch has `per_epoch`.
    fn iterations(self, per_epoch: u64) -> u64 {
        match self {
            Period::Iterations(iterations) => iterations,
            Period::Epochs(epochs) => (epochs * per_epoch as f64).round().max(1.0) as u64,
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Period::Iterations(iterations) => write!(f, "{iterations}"),
            Period::Epochs(epochs) => write!(f, "{epochs}epochs"),
        }
    }
}

/// The learning rate of each iteration of a training. A pure function, which rounds the same on every machine: no rank need
/// ask another one, and servers know it, too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    base: f32,
    warm_up: u64,
    shape: Shape,
}

/// What follows warm-up, in iterations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Shape {
    Constant,
    Step { every: u64, factor: f64 },
    Cosine { end: u64 },
    Linear { end: u64 },
}

impl LearningRate {
    /// The same in every iteration.
    pub fn constant(base: f32) -> LearningRate {
        LearningRate { base, warm_up: 0, shape: Shape::Constant }
    }

    /// What a schedule makes of the rate `base` in a training of `iterations`, of which an epoch has `per_epoch`.
    pub fn new(base: f32, schedule: &LearningRateSchedule, per_epoch: usize, iterations: usize) -> LearningRate {
        let (per_epoch, end) = (per_epoch as u64, iterations as u64);
        let shape = match schedule.decay {
            Decay::Constant => Shape::Constant,
            Decay::Step { every, factor } => Shape::Step { every: every.iterations(per_epoch), factor },
            Decay::Cosine => Shape::Cosine { end },
            Decay::Linear => Shape::Linear { end },
        };
        LearningRate { base, warm_up: schedule.warm_up.iterations(per_epoch), shape }
    }

    /// The rate in an iteration, counted from 0. Beyond the end of a training it stays what it is there.
    pub fn at(&self, iteration: u64) -> f32 {
        let decayed = match self.shape {
            Shape::Constant => 1.0,
            Shape::Step { every, factor } => power(factor, iteration / every.max(1)),
            Shape::Cosine { end } => half_cosine(self.progress(iteration, end)),
            Shape::Linear { end } => 1.0 - self.progress(iteration, end),
        };
        let warmed_up = if iteration < self.warm_up { (iteration + 1) as f64 / self.warm_up as f64 } else { 1.0 };
        (f64::from(self.base) * warmed_up * decayed) as f32
    }

    /// The share of the iterations after warm-up that are over.
    fn progress(&self, iteration: u64, end: u64) -> f64 {
        let (done, all) = (iteration.saturating_sub(self.warm_up), end.saturating_sub(self.warm_up));
        if done == 0 { 0.0 } else { (done as f64 / all.max(1) as f64).min(1.0) }
    }
}

impl fmt::Display for LearningRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        match self.shape {
            Shape::Constant => write!(f, ", constant")?,
            Shape::Step { every, factor } => write!(f, ", times {factor} every {every} iterations")?,
            Shape::Cosine { end } => write!(f, ", by a cosine to 0 in iteration {end}")?,
            Shape::Linear { end } => write!(f, ", linearly to 0 in iteration {end}")?,
        }
        if self.warm_up == 0 { Ok(()) } else { write!(f, ", after a warm-up of {} iterations", self.warm_up) }
    }
}

/// (1 + cos(π x)) / 2 = cos²(π x / 2) for x from 0 to 1, by the series of the cosine up to the 24th power: within 1e-15.
/// Libraries round theirs differently from one processor to the next, and ranks may not differ in a bit.
fn half_cosine(x: f64) -> f64 {
    let square = (FRAC_PI_2 * x).powi(2);
    let cosine = (1..=12).rev().fold(1.0, |rest, k| 1.0 - square / f64::from(2 * k * (2 * k - 1)) * rest);
    cosine * cosine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: &str, per_epoch: usize, iterations: usize) -> Vec<f32> {
        let rate = LearningRate::new(0.1, &schedule.parse().unwrap(), per_epoch, iterations);
        (0..iterations as u64).map(|iteration| rate.at(iteration)).collect()
    }

    #[track_caller]
    fn assert_near(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let near = found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-8);
        assert!(near, "{found:?}, not {expected:?}");
    }

    /// `CosineAnnealingLR(T_max=10)`, `LinearLR(start_factor=0.25, total_iters=3)` and `StepLR(3, 0.5)` of torch 2.15.0,
    /// with a rate of 0.1.
    #[test]
    fn rates_are_those_of_pytorch() {
        let cosine = [
            0.1,
            0.097_552_825_814_757_69,
            0.090_450_849_718_747_38,
            0.079_389_262_614_623_67,
            0.065_450_849_718_747_39,
            0.05,
            0.034_549_150_281_252_64,
            0.020_610_737_385_376_353,
            0.009_549_150_281_252_635,
            0.002_447_174_185_242_324,
        ];
        assert_near(&rates("cosine", 4, 10), &cosine);
        let warm = [0.025, 0.05, 0.075, 0.1, 0.1, 0.1];
        assert_near(&rates("constant:4", 4, 6), &warm);
        assert_near(&rates("step:3:0.5", 4, 8), &[0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]);
        // Warm-up, and then the whole wave.
        assert_near(&rates("cosine:4", 4, 14), &[&warm[..4], &cosine].concat());
    }

    #[test]
    fn rates_fall_to_nothing_and_rise_from_little() {
        assert_near(&rates("linear", 1, 4), &[0.1, 0.075, 0.05, 0.025]);
        assert_near(&rates("linear:2", 1, 6), &[0.05, 0.1, 0.1, 0.075, 0.05, 0.025]);
        // A step is counted from the beginning, also during warm-up.
        assert_near(&rates("step:2:0.1:3", 1, 4), &[0.1 / 3.0, 0.2 / 3.0, 0.01, 0.01]);
        // Epochs of four iterations.
        assert_eq!(rates("constant:0.5epochs", 4, 3), rates("constant:2", 4, 3));
        assert_eq!(rates("step:1epoch:0.5:2epochs", 4, 20), rates("step:4:0.5:8", 4, 20));
        // A training that is over before its warm-up; and an iteration beyond the end.
        assert_near(&rates("cosine:8", 1, 2), &[0.0125, 0.025]);
        for schedule in ["cosine", "linear", "cosine:3"] {
            let rate = LearningRate::new(0.1, &schedule.parse().unwrap(), 1, 3);
            assert_near(&[rate.at(u64::MAX)], &[0.0]);
        }
        assert_eq!(LearningRate::constant(0.1).at(77), 0.1);
    }

    #[test]
    fn the_cosine_is_the_cosine() {
        for step in 0..=1000 {
            let x = f64::from(step) / 1000.0;
            let expected = (1.0 + (std::f64::consts::PI * x).cos()) / 2.0;
            assert!((half_cosine(x) - expected).abs() < 1e-15, "{x}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_written() {
        let printed = |text: &str| text.parse::<LearningRateSchedule>().unwrap().to_string();
        for text in ["constant", "constant:5", "step:30epochs:0.1", "step:7:0.25:2", "cosine:0.5epochs", "linear:500"] {
            assert_eq!(printed(text), text);
        }
        assert_eq!(printed("cosine:1epoch"), "cosine:1epochs");
        assert_eq!(printed("linear:0"), "linear");
        let error = |text: &str| text.parse::<LearningRateSchedule>().unwrap_err().to_string();
        for (text, told) in [
            ("cosin", "unknown learning-rate schedule `cosin`; there are constant[:WARMUP], step:EVERY"),
            ("cosin", "did you mean `cosine`?"),
            ("step", "is written step:EVERY:FACTOR[:WARMUP], and has 0 arguments here"),
            ("cosine:1:2", "is written cosine[:WARMUP], and has 2 arguments here"),
            ("step:0:0.1", "EVERY in step:EVERY:FACTOR[:WARMUP] is a number of iterations, such as 500,"),
            ("step:1:1.5", "FACTOR in step:EVERY:FACTOR[:WARMUP] is a number above 0 and up to 1, not `1.5`"),
            ("step:1:NaN", "not `NaN`"),
            ("linear:-1", "WARMUP in linear[:WARMUP] is a number of iterations"),
            ("linear:0epochs", "not `0epochs`"),
            ("linear:infepochs", "not `infepochs`"),
            ("linear:5e", "not `5e`"),
            ("linear:", "not ``"),
        ] {
            assert!(error(text).contains(told), "{text}: {}", error(text));
        }
    }
}
