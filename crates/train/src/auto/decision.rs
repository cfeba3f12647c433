//! What was chosen, why, and whether it came true.

use std::fmt;

use paceline_plan::Plan;
use serde::{Deserialize, Serialize};

use super::choose::Predicted;
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
    /// Seconds of an iteration of this plan, as the search predicts them.
    pub predicted_iteration_s: f64,
    /// With 95 % it is not less, as far as the constants' intervals and what the model leaves out say.
    pub predicted_low_s: f64,
    /// Nor more.
    pub predicted_high_s: f64,
    /// What is expected after what was measured of this plan, or of the one before: at the first decision the prediction,
    /// and of a plan that stays what it took.
    pub expected_iteration_s: f64,
    /// Why this plan.
    pub reasons: Vec<String>,
    /// What of the prediction is beyond what was measured, and what was measured and is not believed.
    #[serde(default)]
    pub doubts: Vec<String>,
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
    /// The iterations from this one on are under this plan, of which so much is predicted and expected.
    pub(crate) fn of(
        iteration: usize,
        plan: &Plan,
        changed: bool,
        (predicted, expected_s): (Predicted, f64),
        reasons: Vec<String>,
    ) -> Decision {
        Decision {
            iteration,
            strategy: plan.strategy.clone(),
            plan_hash: format!("{:016x}", plan.hash()),
            changed,
            predicted_iteration_s: predicted.seconds,
            predicted_low_s: predicted.low_s,
            predicted_high_s: predicted.high_s,
            expected_iteration_s: expected_s,
            reasons,
            doubts: Vec::new(),
            measured_iteration_s: None,
        }
    }

    /// The same where everything ran slower than real by this factor, and with what was measured in real seconds.
    pub(crate) fn undilated(self, dilate: f64, measured_iteration_s: f64) -> Decision {
        Decision {
            predicted_iteration_s: self.predicted_iteration_s / dilate,
            predicted_low_s: self.predicted_low_s / dilate,
            predicted_high_s: self.predicted_high_s / dilate,
            expected_iteration_s: self.expected_iteration_s / dilate,
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
        let Decision { iteration, strategy, predicted_iteration_s, expected_iteration_s, reasons, doubts, .. } = self;
        let (ms, expected_ms) = (1e3 * predicted_iteration_s, 1e3 * expected_iteration_s);
        let what = if self.changed { "runs" } else { "goes on with" };
        write!(f, "auto: from iteration {iteration} on {what} {strategy}, predicted {ms:.2} ms an iteration")?;
        if expected_iteration_s != predicted_iteration_s {
            write!(f, " (expected after what was measured: {expected_ms:.2} ms)")?;
        }
        reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))?;
        doubts.iter().try_for_each(|doubt| write!(f, "; in doubt: {doubt}"))
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
    pub(crate) fn add(&mut self, decision: Decision) {
        self.windows.clear();
        self.all.push(decision);
    }

    /// What runs goes on running, as no other plan could be looked for.
    pub(crate) fn keep(&mut self, iteration: usize, measured_s: f64, reason: String) {
        if let Some(last) = self.all.last().cloned() {
            let kept = Decision { iteration, changed: false, expected_iteration_s: measured_s, ..last };
            self.add(Decision { reasons: vec![reason], measured_iteration_s: None, ..kept });
        }
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
        let predicted = Predicted { seconds: 0.020, low_s: 0.018, high_s: 0.024 };
        let reasons = || vec!["bsp-a2a would take 20.00 ms".to_owned()];
        decisions.add(Decision::of(8, &plan(), true, (predicted, 0.020), reasons()));
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
        // One that stays is judged by what is predicted of it, not by what it took.
        let doubts = vec!["nobody knows".to_owned()];
        decisions.add(Decision { doubts, ..Decision::of(48, &plan(), false, (predicted, 0.030), reasons()) });
        decisions.measured(0.030);
        let kept = &decisions.all()[1];
        assert!(
            kept.to_string().contains("predicted 20.00 ms an iteration (expected after what was measured: 30.00 ms)")
        );
        assert!(kept.to_string().ends_with("; bsp-a2a would take 20.00 ms; in doubt: nobody knows"), "{kept}");
        assert_eq!(kept.came_true(), Some(false));
        let undilated = decisions.all()[0].clone().undilated(2.0, 0.010);
        assert_eq!((undilated.predicted_iteration_s, undilated.came_true()), (0.010, Some(true)));
    }
}
