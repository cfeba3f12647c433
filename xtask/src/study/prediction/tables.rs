//! What was found, as tables: errors, choices, and every cell.

use super::super::report::{NOT_MEASURED, Table, percent};
use super::judge::{Group, Outcome, Place, errors, groups};
use super::regret::Regret;
use crate::compare::statistics::median;

/// By place.
pub fn error_table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(
        "Errors",
        "Of samples/s, predicted over measured less 1, without signs.",
        &["where", "cells", "median", "90 % within", "largest"],
    );
    for place in Place::ALL {
        let of = errors(outcomes, |outcome| outcome.place == place);
        if !of.is_empty() {
            table.rows.push(error_row(place.name(), of));
        }
        let limited = errors(outcomes, |outcome| outcome.place == place && outcome.limited.is_some());
        if !limited.is_empty() {
            let by_links = errors(outcomes, |outcome| outcome.place == place && outcome.limited.is_none());
            if !by_links.is_empty() {
                table.rows.push(error_row(&format!("{}: links were the limit", place.name()), by_links));
            }
            table.rows.push(error_row(&format!("{}: processors were", place.name()), limited));
        }
    }
    table
}

/// By method, and by number of workers.
pub fn method_table(outcomes: &[Outcome]) -> Table {
    let columns = ["method or workers", "cells", "median", "90 % within", "largest"];
    let mut table = Table::new("Errors by method and by workers", "", &columns);
    let mut methods: Vec<&String> = Vec::new();
    let mut workers: Vec<usize> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.error().is_some()) {
        if !methods.contains(&&outcome.method) {
            methods.push(&outcome.method);
        }
        workers.push(outcome.workers);
    }
    workers.sort_unstable();
    workers.dedup();
    for method in methods {
        table.rows.push(error_row(method, errors(outcomes, |outcome| outcome.method == *method)));
    }
    for count in workers {
        let s = if count == 1 { "" } else { "s" };
        let of = errors(outcomes, |outcome| outcome.workers == count);
        table.rows.push(error_row(&format!("{count} worker{s}"), of));
    }
    table
}

/// How many there are, and how they are distributed.
pub fn error_row(name: &str, mut errors: Vec<f64>) -> Vec<String> {
    errors.sort_by(f64::total_cmp);
    let ninetieth = errors.get((errors.len() * 9).div_ceil(10).saturating_sub(1)).copied();
    vec![
        name.to_owned(),
        errors.len().to_string(),
        percent(Some(median(&errors))),
        percent(ninetieth),
        percent(errors.last().copied()),
    ]
}

/// What was chosen in each group, and what that cost.
pub fn group_table(outcomes: &[Outcome]) -> Table {
    let columns = ["group", "fastest, measured", "choice", "regret", "auto, regret", "auto ran"];
    let text = "On emulated networks cells whose processors were the limit are neither chosen nor compared with.";
    let mut table = Table::new("Choices", text, &columns);
    let method = |outcome: Option<&Outcome>| outcome.map_or_else(|| "–".to_owned(), |outcome| outcome.method.clone());
    let regret = |regret: Option<Regret>| regret.map_or_else(|| "–".to_owned(), Regret::in_words);
    let of_choice = |group: &Group<'_>| match group.choice() {
        Some(choice) if choice.measured.is_none() => NOT_MEASURED.to_owned(),
        _ => regret(group.of_choice()),
    };
    table.rows.extend(groups(outcomes).iter().filter(|group| group.workers > 1).map(|group| {
        vec![
            group.name.to_owned(),
            method(group.fastest()),
            method(group.choice()),
            of_choice(group),
            regret(group.of_auto()),
            group.ran().unwrap_or_else(|| "–".to_owned()),
        ]
    }));
    table
}

/// Everything.
pub fn cell_table(outcomes: &[Outcome]) -> Table {
    let columns = ["group", "method", "predicted, samples/s", "measured", "off", ""];
    let mut table = Table::new("Cells", "", &columns);
    let rate = |rate: Option<f64>| rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"));
    table.rows.extend(outcomes.iter().map(|outcome| {
        vec![
            outcome.group.clone(),
            outcome.method.clone(),
            rate(outcome.predicted),
            rate(outcome.measured),
            percent(outcome.error()),
            outcome.missing.iter().chain(&outcome.limited).cloned().collect::<Vec<_>>().join("; "),
        ]
    }));
    table
}
