//! Efficiency: BERT-Base in the lab. How much longer does an iteration take than its schedule's formula says with
//! measured inputs, and what does deciding cost?

use super::report::{Findings, Table, Target, ms, ms_if_any, percent};
use super::rounds::{MethodSummary, Rounds, measure};
use super::tensors::Model;
use super::workload::Computation;
use super::worlds::Effort;
use super::{Part, Place, announce};
use crate::compare::Error;

/// An iteration takes at most so many times what the formula says.
const OVER_FORMULA_MAX: f64 = 1.03;
/// Deciding costs at most so many seconds per tensor.
const SCHEDULING_S_MAX: f64 = 5e-6;
const METHODS: [&str; 4] = ["bsp-a2a", "wfbp-a2a", "mg-wfbp", "wfbp-ps"];

const TEXT: &str = "In ms per iteration. The formula is the schedule's recursion with the profile's ready times and the costs of \
                    operations that the same run has measured; as announced: with the ready times of the run, late or not; of bound: \
                    of the formula or the same without start-ups, whichever is smaller. Alpha and beta are of an operation \
                    that has the network for itself.";
const COLUMNS: [&str; 11] = [
    "method",
    "iteration",
    "formula",
    "as announced",
    "of formula",
    "of bound",
    "late",
    "operations",
    "alpha, ms",
    "beta, ns/B",
    "deciding, us/tensor",
];

pub fn run(place: &Place) -> Result<Findings, Error> {
    let (model, effort) = match place.options.quick {
        true => (Model::MobileNetV2, Effort { warm_up: 1, iterations: 3 }),
        false => (Model::BertBase, Effort { warm_up: 1, iterations: 4 }),
    };
    // Communication is what matters: it takes twice as long as backward.
    let workload = place.workload(model, Computation::Backward(0.5))?;
    let seconds = METHODS.len() as f64 * (effort.seconds(workload.compute_s() + workload.line_s) + Effort::START_S);
    announce(Part::Efficiency, METHODS.len() * place.rounds, place.rounds as f64 * seconds);
    let rounds = measure(&place.worlds()?, &workload, &METHODS, None, effort, place.rounds)?;
    let mut table = Table::new(format!("{}, {} workers", rounds.model, super::HOSTS), TEXT, &COLUMNS);
    let mut targets = Vec::new();
    for method in METHODS {
        let summary = rounds.summary(method);
        let over = summary.as_ref().and_then(|summary| Some(1.0 / summary.of_formula?));
        let target = Target::at_most(method, "iteration over formula", OVER_FORMULA_MAX, over);
        targets.push(rounds.judged(method, place.rounds, target));
        let deciding_us = summary.as_ref().map(|summary| summary.scheduling_s_per_tensor * 1e6);
        let target = Target::at_most(method, "deciding, us per tensor", SCHEDULING_S_MAX * 1e6, deciding_us);
        targets.push(rounds.judged(method, place.rounds, target));
        table.rows.extend(summary.and_then(|summary| row(&rounds, summary)));
    }
    Ok(Findings {
        title: "Efficiency in the lab".into(),
        text: format!(
            "{} Forward and backward take {} ms, an all-reduce of all gradients at line rate {} ms.",
            effort.protocol(place.rounds),
            ms(workload.profile.forward_s() + workload.profile.backward_s()),
            ms(workload.line_s)
        ),
        targets,
        tables: [table].into_iter().chain(rounds.remarks()).collect(),
        measured: serde_json::to_value(&rounds).map_err(|error| error.to_string())?,
    })
}

/// None: none of the method's runs measured what operations cost.
fn row(rounds: &Rounds, summary: MethodSummary) -> Option<Vec<String>> {
    let last = rounds.ours.iter().rev().find(|run| run.method == summary.method)?;
    let (alpha_s, beta_s_per_byte) = last.communication.as_ref()?.line();
    Some(vec![
        summary.method,
        ms(summary.iteration_s),
        ms_if_any(summary.formula_s),
        ms_if_any(summary.formula_announced_s),
        percent(summary.of_formula),
        percent(summary.of_bound),
        ms(summary.late_s),
        summary.operations.to_string(),
        format!("{:.2}", alpha_s * 1e3),
        format!("{:.2}", beta_s_per_byte * 1e9),
        format!("{:.2}", summary.scheduling_s_per_tensor * 1e6),
    ])
}
