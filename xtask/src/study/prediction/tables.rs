//! What was found, as tables: errors, choices, and every cell.

use paceline_train::Decision;

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

/// What `auto` said when it had chosen, and what became of it.
pub fn why_table(outcomes: &[Outcome]) -> Table {
    let columns = ["group", "workers", "it ran", "what it said", "and then"];
    let text = "What its log says of one run, which in the lab is the last, elsewhere the first that counts. Where it chose again, \
                what it had said before comes first. A prediction comes true if it is off by at most 15 %.";
    let mut table = Table::new("Why `auto` chose it", text, &columns);
    let told = |lines: Vec<String>, next: &str| if lines.is_empty() { "–".to_owned() } else { lines.join(next) };
    table.rows.extend(outcomes.iter().filter_map(|outcome| {
        Some(vec![
            outcome.group.clone(),
            outcome.workers.to_string(),
            outcome.ran()?,
            told(outcome.decisions.iter().map(Decision::to_string).collect(), ". "),
            told(outcome.decisions.iter().filter_map(Decision::outcome).collect(), ". Then "),
        ])
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

#[cfg(test)]
mod tests {
    use super::super::AUTO;
    use super::super::judge::samples::{decision, outcome};
    use super::*;

    #[test]
    fn every_cell_of_auto_says_why_and_whether_it_came_true() {
        let decided = |decisions: Vec<Decision>| Outcome { decisions, ..outcome("g", AUTO, 100.0, 99.0) };
        let again = Decision { iteration: 7, ..decision(0.4, Some(0.41)) };
        let outcomes = [
            outcome("g", "bsp-a2a", 90.0, 90.0),
            decided(vec![decision(0.2, Some(0.21))]),
            decided(vec![decision(0.2, Some(0.4)), again]),
            // Of a run that was kept before decisions were.
            decided(Vec::new()),
        ];
        let rows = why_table(&outcomes).rows;
        assert_eq!(rows.len(), 3, "{rows:?}");
        assert!(rows.iter().all(|row| row[..3] == ["g", "8", "schedule=wfbp, arch=a2a:auto"]), "{rows:?}");
        let said = |from: usize, ms: &str| {
            let runs = "sync=bsp,schedule=wfbp,arch=a2a:auto,protocol=auto";
            let why = "the best of 230 predicted plans";
            format!("auto: from iteration {from} on runs {runs}, predicted {ms} ms an iteration; {why}")
        };
        let came_true = "predicted 200.00 ms, measured 210.00 ms: it came true".to_owned();
        assert_eq!(rows[0][3..], [said(0, "200.00"), came_true]);
        let [left, stayed] = [
            "predicted 200.00 ms, measured 400.00 ms: it did not come true",
            "predicted 400.00 ms, measured 410.00 ms: it came true",
        ];
        let both = [format!("{}. {}", said(0, "200.00"), said(7, "400.00")), format!("{left}. Then {stayed}")];
        assert_eq!(rows[1][3..], both);
        assert_eq!(rows[2][3..], ["–", "–"]);
    }
}
