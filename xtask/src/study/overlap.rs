//! Overlap is real: ResNet-50 in the lab, its backward as long as its communication.
//!
//! What WFBP can hide is what BSP exposes less what WFBP's formula leaves exposed; what it hides is what BSP exposes less
//! what WFBP exposes. Both BSP's and WFBP's are measured; only the remainder comes from the formula. By how much BSP's sleeps
//! ended late may be part of what it seems to expose: that much WFBP has not hidden.

use super::report::{Findings, Table, Target, ms, ms_if_any, percent};
use super::rounds::{MethodSummary, measure};
use super::tensors::Model;
use super::workload::Computation;
use super::worlds::Effort;
use super::{Part, Place, announce};
use crate::compare::Error;

/// WFBP hides at least this share of what can be hidden.
const HIDDEN_MIN: f64 = 0.9;
const METHODS: [&str; 2] = ["bsp-a2a", "wfbp-a2a"];

const TEXT: &str = "In ms per iteration. Exposed: the worker waits. Late: by so much its sleeps ended late at most. In backward: from \
                    the timeline of one iteration, how long backward went on while communication was under way; and the share of the \
                    communication that this is.";
const COLUMNS: [&str; 10] = [
    "method",
    "iteration",
    "formula",
    "exposed",
    "late",
    "by formula",
    "without start-ups",
    "in backward",
    "of communication",
    "operations",
];

pub fn run(place: &Place) -> Result<Findings, Error> {
    let (model, effort) = match place.options.quick {
        true => (Model::MobileNetV2, Effort { warm_up: 1, iterations: 3 }),
        false => (Model::ResNet50, Effort { warm_up: 2, iterations: 8 }),
    };
    let workload = place.workload(model, Computation::Backward(1.0))?;
    // BSP takes as long as computation and communication together, WFBP hardly longer than computation.
    let seconds = effort.seconds(2.0 * workload.compute_s() + workload.line_s) + 2.0 * Effort::START_S;
    announce(Part::Overlap, METHODS.len() * place.rounds, place.rounds as f64 * seconds);
    let rounds = measure(&place.worlds()?, &workload, &METHODS, None, effort, place.rounds)?;
    let [bsp, wfbp] = METHODS.map(|method| rounds.summary(method));
    let both = bsp.as_ref().zip(wfbp.as_ref());
    let in_trace = wfbp.as_ref().and_then(|wfbp| wfbp.share_in_backward);
    let hidden = both.and_then(|(bsp, wfbp)| Hidden::of(bsp, wfbp, wfbp.formula_exposed_s));
    let of_all = both.and_then(|(bsp, wfbp)| Hidden::of(bsp, wfbp, wfbp.least_exposed_s));
    let [share, share_of_all] = [&hidden, &of_all].map(|hidden| hidden.as_ref().map(Hidden::share));
    let title = format!("{}, {} workers, backward as long as communication at line rate", rounds.model, super::HOSTS);
    let mut table = Table::new(title, TEXT, &COLUMNS);
    table.rows.extend([bsp, wfbp].iter().flatten().map(row));
    if let Some(hidden) = &hidden {
        let text =
            format!("WFBP can hide {} ms and hides {} ms: {}.", ms(hidden.can_s), ms(hidden.does_s), percent(share));
        table.text = format!("{} {text}", table.text);
    }
    let target = |what, share| {
        let target = Target::at_least(format!("WFBP on {}", rounds.model), what, HIDDEN_MIN, share);
        METHODS.into_iter().fold(target, |target, method| rounds.judged(method, place.rounds, target))
    };
    Ok(Findings {
        title: "Overlap in the lab".into(),
        text: format!(
            "{} Backward takes {} ms, an all-reduce of all gradients at line rate {} ms.",
            effort.protocol(place.rounds),
            ms(workload.profile.backward_s()),
            ms(workload.line_s)
        ),
        targets: vec![
            target("hidden of what its formula can", share),
            target("hidden of what could be without start-ups", share_of_all),
            target("of the communication in the trace, within backward", in_trace),
        ],
        tables: [table].into_iter().chain(rounds.remarks()).collect(),
        measured: serde_json::to_value(&rounds).map_err(|error| error.to_string())?,
    })
}

fn row(summary: &MethodSummary) -> Vec<String> {
    vec![
        summary.method.clone(),
        ms(summary.iteration_s),
        ms_if_any(summary.formula_s),
        ms(summary.exposed_communication_s),
        ms(summary.late_s),
        ms_if_any(summary.formula_exposed_s),
        ms_if_any(summary.least_exposed_s),
        ms_if_any(summary.in_backward_s),
        percent(summary.share_in_backward),
        summary.operations.to_string(),
    ]
}

/// Seconds of communication per iteration that WFBP hides from the worker.
struct Hidden {
    /// What can be.
    can_s: f64,
    /// As measured.
    does_s: f64,
}

impl Hidden {
    /// Where WFBP must leave so much exposed.
    fn of(bsp: &MethodSummary, wfbp: &MethodSummary, exposed_s: Option<f64>) -> Option<Hidden> {
        let can_s = bsp.exposed_communication_s - exposed_s?;
        let does_s = bsp.exposed_communication_s - bsp.late_s - wfbp.exposed_communication_s;
        (can_s > 0.0).then_some(Hidden { can_s, does_s })
    }

    fn share(&self) -> f64 {
        self.does_s / self.can_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(exposed_communication_s: f64) -> MethodSummary {
        MethodSummary {
            method: String::new(),
            iteration_s: 1.0,
            spread: 1.0,
            formula_s: None,
            formula_announced_s: None,
            late_s: 0.0,
            of_formula: None,
            bound_s: None,
            of_bound: None,
            exposed_communication_s,
            formula_exposed_s: None,
            least_exposed_s: None,
            in_backward_s: None,
            share_in_backward: None,
            scheduling_s_per_tensor: 0.0,
            ddp_ratio: None,
            operations: 1,
        }
    }

    #[test]
    fn the_share_is_of_what_the_formula_says_can_be_hidden() {
        let bsp = summary(1.0);
        let share = |exposed, formula| Hidden::of(&bsp, &summary(exposed), formula).map(|hidden| hidden.share());
        assert_eq!(share(0.2, Some(0.2)), Some(1.0));
        let late = MethodSummary { late_s: 0.08, ..summary(1.0) };
        let hidden = Hidden::of(&late, &summary(0.2), Some(0.2)).expect("there is something to hide");
        assert!((hidden.share() - 0.9).abs() < 1e-9, "what was late is not hidden");
        assert_eq!(share(0.6, Some(0.2)), Some(0.5));
        assert_eq!(share(0.2, None), None);
        assert_eq!(share(1.0, Some(1.0)), None, "there is nothing to hide");
    }
}
