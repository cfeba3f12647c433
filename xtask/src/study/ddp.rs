//! PyTorch's DDP on Gloo and ours in the same lab: the same tensors, the same computation slept through.
//!
//! Cases in which ours is expected to be at least 1.3 times as fast are named here, before anything is measured, with
//! the reason.

use serde_json::json;

use super::report::{Circumstances, Findings, Table, Target, ms, ms_if_any, percent};
use super::rounds::{Rounds, measure};
use super::tensors::Model;
use super::workload::{Computation, Workload};
use super::worlds::Effort;
use super::{Part, Place, announce};
use crate::compare::Error;

/// Ours takes at most 1 / so much of its bound.
const OF_BOUND_MIN: f64 = 0.97;
/// Where DDP is said to be bound by something, ours is so many times as fast.
const BOUND_RATIO_MIN: f64 = 1.3;

/// The schedule that DDP has, too; then ours.
const SAME: &str = "ddp";
const METHODS: [&str; 5] = [SAME, "wfbp-a2a", "mg-wfbp", "bytescheduler-a2a", "wfbp-ps"];

/// A workload, and what is expected of it.
struct Case {
    name: &'static str,
    model: Model,
    computation: Computation,
    /// Why DDP is slow there; None: no more than its equal is expected.
    bound: Option<&'static str>,
    effort: Effort,
    /// Of the rounds: slow cases are measured less often.
    rounds_max: usize,
}

const CASES: [Case; 5] = [
    Case {
        name: "resnet20-start-up",
        model: Model::ResNet20,
        computation: Computation::Backward(1.0),
        bound: Some(
            "start-up-bound: 65 tensors that together fit into DDP's first buckets, so it sends when backward is over; \
             each by itself costs a start-up; merged by measured times, most of it is hidden",
        ),
        effort: Effort { warm_up: 10, iterations: 60 },
        rounds_max: usize::MAX,
    },
    Case {
        name: "mobilenet-v2-start-up",
        model: Model::MobileNetV2,
        computation: Computation::Backward(1.0),
        bound: Some(
            "start-up-bound: what DDP fuses against start-ups, 158 tensors of 14 MB together, is one bucket behind the first \
             mebibyte, and sent when backward is over",
        ),
        effort: Effort { warm_up: 3, iterations: 15 },
        rounds_max: usize::MAX,
    },
    Case {
        name: "resnet50-priority",
        model: Model::ResNet50,
        computation: Computation::Both(1.0),
        bound: Some(
            "priority-bound: communication takes as long as forward and backward, so after backward a third of it is left; \
             with priorities the next forward pass hides it",
        ),
        effort: Effort { warm_up: 2, iterations: 6 },
        rounds_max: usize::MAX,
    },
    Case {
        name: "resnet50",
        model: Model::ResNet50,
        computation: Computation::Backward(1.0),
        bound: None,
        effort: Effort { warm_up: 2, iterations: 5 },
        rounds_max: usize::MAX,
    },
    Case {
        name: "bert-base",
        model: Model::BertBase,
        computation: Computation::Backward(1.0),
        bound: None,
        effort: Effort { warm_up: 2, iterations: 3 },
        rounds_max: 2,
    },
];

pub fn run(place: &Place, circumstances: &mut Circumstances) -> Result<Findings, Error> {
    let python = place.options.torch.as_deref().ok_or("give a Python with torch: --torch PYTHON")?;
    let quick = place.options.quick;
    let chosen = CASES.iter().filter(|case| place.wants(case.name) && (!quick || case.model != Model::BertBase));
    let mut cases: Vec<(&Case, Workload, Effort, usize)> = Vec::new();
    for case in chosen {
        let effort = if quick { Effort { warm_up: 2, iterations: 3 } } else { case.effort };
        let workload = place.workload(case.model, case.computation)?;
        cases.push((case, workload, effort, place.rounds.min(case.rounds_max)));
    }
    let runs = METHODS.len() + 2;
    let seconds = cases.iter().map(|(_, workload, effort, rounds)| {
        let iteration_s = workload.compute_s() + 0.6 * workload.line_s;
        (*rounds * runs) as f64 * effort.seconds(iteration_s) + (*rounds * METHODS.len()) as f64 * Effort::START_S
    });
    announce(Part::Ddp, cases.iter().map(|case| runs * case.3).sum(), seconds.sum());
    let worlds = place.worlds()?;
    let mut ddp = worlds.ddp(python, place.root)?;
    circumstances.versions(ddp.version.clone());
    let (mut targets, mut tables, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    for (case, workload, effort, rounds) in &cases {
        let found = measure(&worlds, workload, &METHODS, Some(&mut ddp), *effort, *rounds)?;
        targets.extend(judge(case, &found));
        tables.push(table(case, workload, &found));
        measured.push(json!({"case": case.name, "bound": case.bound, "rounds": found}));
    }
    Ok(Findings {
        title: "PyTorch's DDP on Gloo, and ours".into(),
        text: "Four hosts of one worker with NICs of 1 Gbit/s. The same tensors; the same computation, slept through step by \
               step on one clock; communication is real. In each round DDP, our methods one after the other, DDP. A ratio is \
               DDP's time (the geometric mean of before and after) over ours, the median over the rounds: above 1 we are \
               faster. Twice it is demanded of each case: of the same schedule and of our best method, which whoever chooses gets; \
               and of every method, although one may be wrong for a case: which are slower than DDP is said. What differs by \
               less than DDP does between before and after is a tie. Late: by so much our sleeps ended late at most; that is \
               in our times, but for what the next forward pass could make up. The formula is that of each method's own \
               schedule with the profile's ready times and the costs of operations that the same run measured. It counts \
               start-ups one after the other, and ours overlap, so the bound is the formula or the same without start-ups, \
               whichever is smaller."
            .into(),
        targets,
        tables,
        measured: json!(measured),
    })
}

fn judge(case: &Case, found: &Rounds) -> Vec<Target> {
    let ratio = |method: &str| found.summary(method).and_then(|summary| summary.ddp_ratio);
    let best = METHODS.iter().filter_map(|method| ratio(method)).max_by(f64::total_cmp);
    let least = if case.bound.is_some() { BOUND_RATIO_MIN } else { 1.0 };
    // What differs less than DDP does from itself is a tie.
    let tie = (1e3 / found.ddp_noise().unwrap_or(1.0)).floor() / 1e3;
    let mut targets = vec![
        Target::at_least(format!("{}: the same schedule", case.name), "DDP over ours, less noise,", tie, ratio(SAME)),
        Target::at_least(format!("{}: our best method", case.name), "DDP over ours", least, best),
        every_method(case.name, &METHODS.map(|method| (method, ratio(method))), tie),
    ];
    targets.extend(METHODS.iter().map(|method| {
        let share = found.summary(method).and_then(|summary| summary.of_bound);
        of_its_bound(format!("{}: {method}", case.name), share)
    }));
    targets
}

/// The share of its bound that a method reaches. Whoever passes the bound shows that it was none.
fn of_its_bound(case: String, share: Option<f64>) -> Target {
    let target = Target::at_least(case, "share of its bound", OF_BOUND_MIN, share);
    match share {
        Some(share) if share > 1.0 => Target { found: format!("{}, faster than the formula", target.found), ..target },
        _ => target,
    }
}

/// None of ours is slower than DDP, but for the noise: each method's ratio, and which are below 1.
fn every_method(case: &str, ratios: &[(&str, Option<f64>)], tie: f64) -> Target {
    let in_words = |(method, ratio): &(&str, Option<f64>)| match ratio {
        None => format!("{method} not measured"),
        Some(ratio) if *ratio < tie => format!("{method} **{ratio:.3}, slower**"),
        Some(ratio) if *ratio < 1.0 => format!("{method} {ratio:.3}, a tie"),
        Some(ratio) => format!("{method} {ratio:.3}"),
    };
    let is_slower = ratios.iter().any(|(_, ratio)| ratio.is_some_and(|ratio| ratio < tie));
    let is_whole = ratios.iter().all(|(_, ratio)| ratio.is_some());
    Target {
        case: format!("{case}: each of our methods"),
        demanded: format!("DDP over ours ≥ 1; a tie from {tie} on"),
        found: ratios.iter().map(in_words).collect::<Vec<_>>().join("; "),
        met: if is_slower { Some(false) } else { is_whole.then_some(true) },
    }
}

fn table(case: &Case, workload: &Workload, found: &Rounds) -> Table {
    let expected = case.bound.map_or_else(
        || "Expected: no slower than DDP.".to_owned(),
        |bound| format!("Expected beforehand: DDP over ours ≥ {BOUND_RATIO_MIN}, because it is {bound}."),
    );
    let last = found.ddp.last();
    let buckets = last.map_or_else(String::new, |run| {
        let sizes: Vec<String> = run.measured.bucket_bytes.iter().map(u64::to_string).collect();
        format!(" DDP's buckets, in bytes: {}.", sizes.join(", "))
    });
    let mut table = Table::new(
        case.name,
        format!(
            "{expected} Forward and backward take {} ms, an all-reduce of all gradients at line rate {} ms; {} + {} \
             iterations. Times in ms per iteration.{buckets}",
            ms(workload.profile.forward_s() + workload.profile.backward_s()),
            ms(workload.line_s),
            found.effort.warm_up,
            found.effort.iterations
        ),
        &[
            "method",
            "iteration",
            "spread",
            "DDP over ours",
            "formula",
            "bound",
            "share of bound",
            "exposed",
            "late",
            "operations",
        ],
    );
    if let Some(seconds) = found.ddp_iteration_s() {
        let noise = found.ddp_noise().map_or_else(String::new, |noise| percent(Some(noise - 1.0)));
        let exposed = last.map_or_else(String::new, |run| ms(run.measured.exposed_communication_s));
        let fields = ["PyTorch DDP".to_owned(), ms(seconds), noise];
        table.rows.push(
            [&fields[..], &["1.00", "", "", ""].map(str::to_owned), &[exposed, String::new(), String::new()]].concat(),
        );
    }
    for summary in METHODS.iter().filter_map(|method| found.summary(method)) {
        table.rows.push(vec![
            summary.method.clone(),
            ms(summary.iteration_s),
            percent(Some(summary.spread - 1.0)),
            summary.ddp_ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
            ms_if_any(summary.formula_s),
            ms_if_any(summary.bound_s),
            percent(summary.of_bound),
            ms(summary.exposed_communication_s),
            ms(summary.late_s),
            summary.operations.to_string(),
        ]);
    }
    let slower: Vec<String> = METHODS
        .iter()
        .filter_map(|method| Some((method, found.summary(method)?.ddp_ratio?)))
        .filter(|(_, ratio)| *ratio < 1.0)
        .map(|(method, ratio)| format!("{method} ({ratio:.2})"))
        .collect();
    if !slower.is_empty() {
        table.text = format!("{} Slower than DDP here: {}.", table.text, slower.join(", "));
    }
    table.rows.extend(found.failures.iter().map(|failure| vec![failure.clone()]));
    let columns = table.columns.len();
    table.rows.iter_mut().for_each(|row| row.resize(columns, String::new()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_passes_a_bound_is_said_to() {
        let of = |share| {
            let target = of_its_bound("c".to_owned(), share);
            (target.found, target.met)
        };
        assert_eq!(of(Some(0.98)), ("0.980".to_owned(), Some(true)));
        assert_eq!(of(Some(0.96)), ("0.960".to_owned(), Some(false)));
        assert_eq!(of(Some(1.14)), ("1.140, faster than the formula".to_owned(), Some(true)));
        assert_eq!(of(None), ("not measured".to_owned(), None));
    }

    #[test]
    fn every_method_that_is_slower_than_ddp_is_named() {
        let of = |ratios: &[(&str, Option<f64>)]| every_method("c", ratios, 0.99);
        let all = of(&[("ddp", Some(1.0)), ("mg-wfbp", Some(0.995))]);
        assert_eq!((&*all.found, all.met), ("ddp 1.000; mg-wfbp 0.995, a tie", Some(true)));
        let one_is = of(&[("ddp", Some(1.2)), ("wfbp-ps", Some(0.976)), ("mg-wfbp", None)]);
        assert_eq!(one_is.met, Some(false));
        assert_eq!(one_is.found, "ddp 1.200; wfbp-ps **0.976, slower**; mg-wfbp not measured");
        assert_eq!(of(&[("ddp", Some(1.2)), ("mg-wfbp", None)]).met, None, "nobody knows of the last");
    }
}
