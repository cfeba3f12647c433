//! From a search to what runs next.

use paceline_plan::Plan;

use super::choose::AS_FAST;
use super::{Chosen, Course, Decision, Experience, Predicted};

/// What runs next, and why.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Another plan than the one that runs; None: it stays.
    pub(crate) plan: Option<Plan>,
    predicted: Option<Predicted>,
    /// Seconds of an iteration from here on.
    pub(crate) expected_s: f64,
    /// Why.
    pub(crate) reasons: Vec<String>,
    /// What of the prediction is to be doubted.
    pub(crate) doubts: Vec<String>,
}

impl Step {
    /// After a search that has predicted all plans of `experience`, too. `measured_s`: what an iteration of the plan that runs takes;
    /// None: it was not chosen, and its few iterations say little.
    pub(crate) fn after(chosen: &Chosen, experience: &mut Experience, running: &Plan, measured_s: Option<f64>) -> Step {
        let seconds: Vec<Option<f64>> = chosen.tried.iter().map(|tried| Some(tried.as_ref()?.seconds)).collect();
        let found_s = chosen.predicted.seconds;
        let tried = experience.plans();
        let course = experience.course(running, &seconds, &chosen.plan, found_s);
        let take = |expected_s| (Some(chosen.plan.clone()), Some(chosen.predicted), expected_s, chosen.reasons.clone());
        let (plan, predicted, expected_s, reasons) = match (measured_s, course) {
            (None, _) => take(found_s),
            (_, Course::Take(expected_s)) => take(expected_s),
            (_, Course::GoBack(place, expected_s)) => {
                let reasons = vec!["it was faster than what ran since".to_owned()];
                (Some(tried[place].clone()), chosen.tried[place], expected_s, reasons)
            }
            (Some(measured_s), Course::Stay) => {
                let predicted = experience.place(running).and_then(|place| chosen.tried[place]);
                (None, predicted, measured_s, vec![why_stay(running, predicted, chosen)])
            }
        };
        Step { plan, predicted, expected_s, reasons, doubts: chosen.doubts.clone() }
    }

    /// The plan that runs stays, of which nothing is predicted: no other one could be looked for.
    pub(crate) fn staying(measured_s: f64, reasons: Vec<String>) -> Step {
        Step { plan: None, predicted: None, expected_s: measured_s, reasons, doubts: Vec::new() }
    }

    /// For the record. `plan`: what runs from this iteration on.
    pub(crate) fn decision(&self, iteration: usize, plan: &Plan) -> Decision {
        let expected_s = self.expected_s;
        // What cannot be predicted is expected all the same.
        let exactly = Predicted { seconds: expected_s, low_s: expected_s, high_s: expected_s };
        let predicted = (self.predicted.unwrap_or(exactly), expected_s);
        let decision = Decision::of(iteration, plan, self.plan.is_some(), predicted, self.reasons.clone());
        Decision { doubts: self.doubts.clone(), ..decision }
    }
}

/// Why a plan stays, of which so much is predicted: what the best other one would save. Not in seconds: a decision is also told of a
/// run that everything is slowed in.
fn why_stay(running: &Plan, predicted: Option<Predicted>, chosen: &Chosen) -> String {
    let is_same = chosen.plan.buckets == running.buckets && chosen.plan.strategy == running.strategy;
    let saved = predicted.map(|predicted| 1.0 - chosen.predicted.seconds / predicted.seconds);
    match saved {
        _ if is_same || saved.is_some_and(|saved| saved < AS_FAST) => {
            "no other plan is predicted to be faster".to_owned()
        }
        Some(saved) => {
            format!("the best other one, {}, is predicted to save {:.1} %", chosen.plan.strategy, 100.0 * saved)
        }
        None => format!("what runs cannot be predicted; the best other one is {}", chosen.plan.strategy),
    }
}
