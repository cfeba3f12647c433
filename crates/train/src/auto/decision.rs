//! What was chosen, why, and whether it came true.

use std::fmt;

use paceline_plan::Plan;
use serde::{Deserialize, Serialize};

use super::choose::Chosen;
use super::watch::holds;

/// What `strategy=auto` has decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// From which iteration on, counted from 0.
    pub iteration: usize,
    /// What is carried out.
    pub strategy: String,
    /// The fingerprint of its plan, in hexadecimal.
    pub plan_hash: String,
    /// Another plan than before?
    pub changed: bool,
    /// Seconds of an iteration, as predicted.
    pub predicted_iteration_s: f64,
    /// With 95 % it is not less, as far as the constants' intervals say.
    pub predicted_low_s: f64,
    /// Nor more.
    pub predicted_high_s: f64,
    /// Why.
    pub reasons: Vec<String>,
    /// Seconds of an iteration under it, as measured: the median of a few at a time, of the slowest rank, and of those the mean.
    /// None if it did not run long enough.
    pub measured_iteration_s: Option<f64>,
}

impl Decision {
    /// Did the prediction come true, to 15 %? None as long as nothing was measured.
    pub fn came_true(&self) -> Option<bool> {
        self.measured_iteration_s.map(|measured_s| holds(self.predicted_iteration_s, measured_s))
    }
}

impl Decision {
    /// What a choice means for the iterations from this one on, which are expected to take `predicted_s`.
    pub(crate) fn of(iteration: usize, plan: &Plan, changed: bool, predicted_s: f64, chosen: &Chosen) -> Decision {
        let scale = predicted_s / chosen.predicted_s;
        Decision {
            iteration,
            strategy: plan.strategy.clone(),
            plan_hash: format!("{:016x}", plan.hash()),
            changed,
            predicted_iteration_s: predicted_s,
            predicted_low_s: chosen.low_s * scale,
            predicted_high_s: chosen.high_s * scale,
            reasons: chosen.reasons.clone(),
            measured_iteration_s: None,
        }
    }

    /// The same where everything ran slower than real by this factor, and with what was measured in real seconds.
    pub(crate) fn undilated(self, dilate: f64, measured_iteration_s: f64) -> Decision {
        Decision {
            predicted_iteration_s: self.predicted_iteration_s / dilate,
            predicted_low_s: self.predicted_low_s / dilate,
            predicted_high_s: self.predicted_high_s / dilate,
            measured_iteration_s: Some(measured_iteration_s),
            ..self
        }
    }

    /// What became of it, in words; None as long as nothing was measured.
    pub fn outcome(&self) -> Option<String> {
        let (predicted, measured) = (1e3 * self.predicted_iteration_s, 1e3 * self.measured_iteration_s?);
        let held = if self.came_true()? { "came true" } else { "did not come true" };
        Some(format!("predicted {predicted:.2} ms, measured {measured:.2} ms: it {held}"))
    }
}

/// What, and why.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { iteration, strategy, predicted_iteration_s, reasons, .. } = self;
        let ms = 1e3 * predicted_iteration_s;
        let what = if self.changed { "runs" } else { "goes on with" };
        write!(f, "auto: from iteration {iteration} on {what} {strategy}, predicted {ms:.2} ms an iteration")?;
        reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

/// The decisions of a training, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decisions {
    all: Vec<Decision>,
    /// Windows under the last one: seconds per iteration.
    windows: Vec<f64>,
    /// How many have been told.
    told: usize,
}

impl Decisions {
    /// Something was decided.
    pub(crate) fn add(&mut self, iteration: usize, plan: &Plan, changed: bool, predicted_s: f64, chosen: &Chosen) {
        self.windows.clear();
        self.all.push(Decision::of(iteration, plan, changed, predicted_s, chosen));
    }

    /// A window under the last decision.
    pub(crate) fn measured(&mut self, iteration_s: f64) {
        self.windows.push(iteration_s);
        let mean = self.windows.iter().sum::<f64>() / self.windows.len() as f64;
        if let Some(last) = self.all.last_mut() {
            last.measured_iteration_s = Some(mean);
        }
    }

    /// Those that nobody has been told of.
    pub(crate) fn news(&mut self) -> &[Decision] {
        let told = std::mem::replace(&mut self.told, self.all.len());
        &self.all[told..]
    }

    pub(crate) fn all(&self) -> &[Decision] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let strategy = paceline_strategy::Registry::built_in().parse("schedule=none").unwrap();
        paceline_schedule::plan(&strategy, &paceline_schedule::Workload::of_sizes(&[3])).unwrap()
    }

    #[test]
    fn a_decision_says_what_and_why_and_whether_it_came_true() {
        let mut decisions = Decisions::default();
        let chosen = Chosen {
            plan: plan(),
            predicted_s: 0.010,
            low_s: 0.009,
            high_s: 0.012,
            current_s: None,
            reasons: vec!["bsp-a2a would take 20.00 ms".into()],
        };
        decisions.add(8, &plan(), true, 0.020, &chosen);
        let [first] = decisions.news() else { panic!("one decision") };
        assert_eq!((first.predicted_low_s, first.predicted_high_s, first.outcome()), (0.018, 0.024, None));
        let text = first.to_string();
        assert!(text.starts_with("auto: from iteration 8 on runs sync=bsp,"), "{text}");
        assert!(text.ends_with("predicted 20.00 ms an iteration; bsp-a2a would take 20.00 ms"), "{text}");
        assert!(decisions.news().is_empty());
        decisions.measured(0.021);
        decisions.measured(0.023);
        assert_eq!(decisions.all()[0].came_true(), Some(true));
        let outcome = |decisions: &Decisions| decisions.all()[0].outcome();
        assert_eq!(outcome(&decisions).as_deref(), Some("predicted 20.00 ms, measured 22.00 ms: it came true"));
        decisions.measured(0.040);
        assert_eq!(outcome(&decisions).as_deref(), Some("predicted 20.00 ms, measured 28.00 ms: it did not come true"));
        let undilated = decisions.all()[0].clone().undilated(2.0, 0.010);
        assert_eq!((undilated.predicted_iteration_s, undilated.came_true()), (0.010, Some(true)));
    }
}
