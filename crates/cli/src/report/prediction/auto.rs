//! What `auto` chose in each of its cells, why, and whether it came true.

use paceline_train::Decision;
use serde::Serialize;

use super::super::bars::number;
use super::{place, rows};
use crate::bench::{Group, Panel, Row};

/// What stands above the table.
pub const LEGEND: &str = "What it decided in the first run that counts, by what it knew then. Times are of an iteration, \
    in ms; the predicted 95 % interval stands in brackets. A prediction comes true if what was measured differs from it \
    by at most 15 %; beside that stands by how much more or less it was. Where the median of the first iterations differs by \
    more from what was expected, the network is measured and plans are searched once more: either another plan runs from \
    there on, which is the next row, or the plan stays, and the last reasons say why, before what is in doubt.";

/// A cell in which it chose.
#[derive(Serialize)]
pub struct AutoView {
    cell: String,
    summary: String,
    decisions: Vec<DecisionView>,
}

/// Something that it decided.
#[derive(Serialize)]
struct DecisionView {
    strategy: String,
    iteration: usize,
    why: String,
    predicted: String,
    measured: String,
    came_true: String,
    again: String,
}

impl AutoView {
    /// Of a panel, in the order of its cells; none of runs that were kept before decisions were.
    pub fn all(panel: &Panel) -> Vec<AutoView> {
        rows(panel).filter_map(|(group, row)| AutoView::of(panel, group, row)).collect()
    }

    fn of(panel: &Panel, group: &Group, row: &Row) -> Option<AutoView> {
        let result = row.result.as_ref()?;
        let (last, left) = (result.decision.as_ref()?, &result.abandoned);
        let ends = left.iter().skip(1).chain([last]).map(|next| Some(next.iteration)).take(left.len()).chain([None]);
        Some(AutoView {
            cell: format!("{}, {}", place(panel, group), row.method),
            summary: summary(last, left.len()),
            decisions: left.iter().chain([last]).zip(ends).map(|(one, end)| DecisionView::of(one, end)).collect(),
        })
    }
}

impl DecisionView {
    /// `end`: from which iteration on another plan ran.
    fn of(decision: &Decision, end: Option<usize>) -> DecisionView {
        let Decision { predicted_iteration_s, predicted_low_s, predicted_high_s, expected_iteration_s, .. } = decision;
        let expected = match expected_iteration_s == predicted_iteration_s {
            true => String::new(),
            false => format!("; {} after what was measured before", ms(*expected_iteration_s)),
        };
        let interval = [*predicted_low_s, *predicted_high_s].map(ms).join(" to ");
        DecisionView {
            strategy: decision.strategy.clone(),
            iteration: decision.iteration,
            why: why(decision),
            predicted: format!("{} ({interval}){expected}", ms(*predicted_iteration_s)),
            measured: decision.measured_iteration_s.map_or_else(|| "–".to_owned(), ms),
            came_true: came_true(decision).unwrap_or_else(|| "–".to_owned()),
            again: end.map_or_else(|| "no".to_owned(), |end| format!("yes, from iteration {end} on")),
        }
    }
}

/// And what of it is to be doubted.
fn why(decision: &Decision) -> String {
    let doubts = decision.doubts.iter().map(|doubt| format!("in doubt: {doubt}"));
    decision.reasons.iter().cloned().chain(doubts).collect::<Vec<String>>().join("; ")
}

fn ms(seconds: f64) -> String {
    number(1e3 * seconds)
}

/// By which share iterations took longer than predicted; None as long as nothing was measured.
fn longer(decision: &Decision) -> Option<f64> {
    Some(decision.measured_iteration_s? / decision.predicted_iteration_s - 1.0)
}

fn came_true(decision: &Decision) -> Option<String> {
    let yes = if decision.came_true()? { "yes" } else { "no" };
    Some(format!("{yes}, {}", signed(longer(decision)?)))
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// What ran at last, what became of it, and whether it was planned anew.
fn summary(last: &Decision, left: usize) -> String {
    let Decision { iteration, strategy, predicted_iteration_s, .. } = last;
    let became = match (last.measured_iteration_s, last.came_true(), longer(last)) {
        (Some(measured_s), Some(held), Some(longer)) => {
            let held = if held { "came true" } else { "did not come true" };
            format!(", measured {} ms ({}): it {held}", ms(measured_s), signed(longer))
        }
        _ => "; nothing was measured of it".to_owned(),
    };
    let again = match left {
        0 => "No other plan replaced it".to_owned(),
        1 => format!("It planned again, and left its first plan at iteration {iteration}"),
        more => format!("It planned again, and left {more} plans, the last at iteration {iteration}"),
    };
    format!("runs {strategy}, predicted {} ms an iteration{became}. {again}", ms(*predicted_iteration_s))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::{sample_panels, sample_predicted_panels};

    /// Predicted give or take a tenth.
    pub fn decision(iteration: usize, predicted_s: f64, measured_iteration_s: Option<f64>) -> Decision {
        Decision {
            iteration,
            strategy: format!("schedule=wfbp,arch=a2a:{iteration}"),
            plan_hash: "0a".to_owned(),
            changed: true,
            predicted_iteration_s: predicted_s,
            predicted_low_s: 0.9 * predicted_s,
            predicted_high_s: 1.1 * predicted_s,
            expected_iteration_s: predicted_s,
            reasons: vec!["the best of 230 predicted plans".to_owned(), "2 others would be no slower".to_owned()],
            doubts: Vec::new(),
            measured_iteration_s,
        }
    }

    /// The first method with 8 workers, had it chosen.
    fn chosen(abandoned: Vec<Decision>, decision: Decision) -> AutoView {
        let mut panels = sample_predicted_panels();
        let row = &mut panels[1].groups[0].rows[0];
        row.method = "auto".to_owned();
        let result = row.result.as_mut().expect("it ran");
        (result.abandoned, result.decision) = (abandoned, Some(decision));
        let mut views: Vec<AutoView> = panels.iter().flat_map(AutoView::all).collect();
        assert_eq!(views.len(), 1, "the others stay what they are");
        views.remove(0)
    }

    #[test]
    fn a_choice_says_why_and_whether_it_came_true() {
        let view = chosen(Vec::new(), decision(0, 0.2, Some(0.21)));
        assert!(view.cell.starts_with("resnet50, local batch 64, 10GbE") && view.cell.ends_with("8 workers, auto"));
        let DecisionView { strategy, iteration, why, predicted, measured, came_true, again } = &view.decisions[0];
        assert_eq!((strategy.as_str(), *iteration), ("schedule=wfbp,arch=a2a:0", 0));
        assert_eq!(why, "the best of 230 predicted plans; 2 others would be no slower");
        assert_eq!([predicted, measured], ["200 (180 to 220)", "210"]);
        assert_eq!([came_true, again], ["yes, +5.0 %", "no"]);
        let words = "runs schedule=wfbp,arch=a2a:0, predicted 200 ms an iteration, measured 210 ms (+5.0 %): it came \
                     true. No other plan replaced it";
        assert_eq!(view.summary, words);
        let early = chosen(Vec::new(), decision(0, 0.2, None));
        assert_eq!((early.decisions[0].measured.as_str(), early.decisions[0].came_true.as_str()), ("–", "–"));
        assert!(early.summary.contains("nothing was measured of it"), "{}", early.summary);
    }

    /// What was left stands before what ran at last, each with where it ended.
    #[test]
    fn what_was_planned_again_says_so() {
        let last = Decision { expected_iteration_s: 0.45, ..decision(9, 0.4, Some(0.38)) };
        let left = vec![decision(0, 0.2, Some(0.4)), decision(4, 0.3, Some(0.5))];
        let view = chosen(left.clone(), last.clone());
        let rows: Vec<[&str; 3]> =
            view.decisions.iter().map(|one| [&one.predicted, &one.came_true, &one.again].map(String::as_str)).collect();
        assert_eq!(
            rows,
            [
                ["200 (180 to 220)", "no, +100.0 %", "yes, from iteration 4 on"],
                ["300 (270 to 330)", "no, +66.7 %", "yes, from iteration 9 on"],
                ["400 (360 to 440); 450 after what was measured before", "yes, -5.0 %", "no"],
            ]
        );
        assert!(view.summary.ends_with("It planned again, and left 2 plans, the last at iteration 9"));
        let once = chosen(left[..1].to_vec(), last);
        assert!(once.summary.ends_with("left its first plan at iteration 9"), "{}", once.summary);
        assert_eq!(once.decisions[0].again, "yes, from iteration 9 on");
    }

    #[test]
    fn who_has_chosen_nothing_has_nothing_to_say() {
        assert!(sample_panels().iter().all(|panel| AutoView::all(panel).is_empty()));
    }
}
