//! What was found, as tables: errors, choices, and every cell.

use paceline_train::Decision;
use serde::Serialize;

use super::super::report::{NOT_MEASURED, Table, percent};
use super::judge::{Group, Outcome, Place, errors, groups};
use super::regret::Regret;
use crate::compare::statistics::median;

/// What counts as lying in the interval.
const IN_INTERVAL: &str = "In the interval: of the cells that were measured and of which a 95 % interval was predicted, those whose \
                           measured samples/s (the mean over the runs, in the lab the median) lie in it, its ends included. What the \
                           runs leave open of that does not widen it.";

/// What does not count.
const APART: &str = "What one worker alone trains is predicted from its runs under the other methods. Such an error says how far runs of the \
                     same lie apart, and with servers what these take, which is not counted: it stands in a row of its own, and in no other number.";

/// By place, and of all; and those that do not count.
pub fn error_table(outcomes: &[Outcome]) -> Table {
    let columns = ["where", "cells", "median", "90 % within", "largest", "in the interval"];
    let text = format!("Of samples/s, predicted over measured less 1, without signs. {IN_INTERVAL} {APART}");
    let mut table = Table::new("Errors", text, &columns);
    for place in Place::ALL {
        table.rows.extend(error_row(place.name(), outcomes, |outcome| outcome.place == place));
        let of = |outcome: &Outcome, limited: bool| outcome.place == place && outcome.limited.is_some() == limited;
        let name = |limit: &str| format!("{}: {limit}", place.name());
        if let Some(limited) = error_row(&name("processors were"), outcomes, |outcome| of(outcome, true)) {
            table.rows.extend(error_row(&name("links were the limit"), outcomes, |outcome| of(outcome, false)));
            table.rows.push(limited);
        }
    }
    let is_told = |place: Place| Errors::of(outcomes, |outcome| outcome.place == place).is_some();
    let several = Place::ALL.into_iter().filter(|&place| is_told(place)).count() > 1;
    table.rows.extend(error_row("all", outcomes, |outcome| outcome.place.counts_among_all()).filter(|_| several));
    for place in Place::ALL {
        let apart = Errors::of_any(outcomes, |outcome| outcome.place == place && !outcome.counts());
        table.rows.extend(apart.map(|errors| errors.row(&format!("{}: one worker alone", place.name()))));
    }
    table
}

/// By method, and by number of workers.
pub fn method_table(outcomes: &[Outcome]) -> Table {
    let columns = ["method or workers", "cells", "median", "90 % within", "largest", "in the interval"];
    let mut table = Table::new("Errors by method and by workers", "In the interval: counted as above.", &columns);
    let mut methods: Vec<&String> = Vec::new();
    let mut workers: Vec<usize> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.counts() && outcome.error().is_some()) {
        if !methods.contains(&&outcome.method) {
            methods.push(&outcome.method);
        }
        workers.push(outcome.workers);
    }
    workers.sort_unstable();
    workers.dedup();
    for method in methods {
        table.rows.extend(error_row(method, outcomes, |outcome| outcome.method == *method));
    }
    for count in workers {
        let s = if count == 1 { "" } else { "s" };
        table.rows.extend(error_row(&format!("{count} worker{s}"), outcomes, |outcome| outcome.workers == count));
    }
    table
}

/// None if no cell has an error that counts.
fn error_row(name: &str, outcomes: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> Option<Vec<String>> {
    Some(Errors::of(outcomes, wanted)?.row(name))
}

/// How the errors of some cells are distributed.
#[derive(Serialize)]
pub struct Errors {
    /// How many have one.
    cells: usize,
    /// Without signs, as shares.
    pub median: f64,
    ninetieth: f64,
    largest: f64,
    in_interval: (usize, usize),
}

impl Errors {
    /// Of those that count; none if no cell has one.
    pub fn of(outcomes: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> Option<Errors> {
        Errors::of_any(outcomes, |outcome| outcome.counts() && wanted(outcome))
    }

    /// Whether they count or not.
    fn of_any(outcomes: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> Option<Errors> {
        let mut errors = errors(outcomes, &wanted);
        errors.sort_by(f64::total_cmp);
        Some(Errors {
            cells: errors.len(),
            median: median(&errors),
            ninetieth: *errors.get((errors.len() * 9).div_ceil(10).saturating_sub(1))?,
            largest: *errors.last()?,
            in_interval: in_interval(outcomes.iter().filter(|outcome| wanted(outcome))),
        })
    }

    fn row(&self, name: &str) -> Vec<String> {
        let Errors { cells, median, ninetieth, largest, in_interval } = *self;
        let [median, ninetieth, largest] = [median, ninetieth, largest].map(|error| percent(Some(error)));
        vec![name.to_owned(), cells.to_string(), median, ninetieth, largest, share(in_interval)]
    }
}

/// How many cells lie in their interval, and of how many that is known.
pub fn in_interval<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (usize, usize) {
    let known: Vec<bool> = outcomes.filter_map(Outcome::within).collect();
    (known.iter().filter(|within| **within).count(), known.len())
}

/// `7 of 9, 77.8 %`.
pub fn share((within, known): (usize, usize)) -> String {
    match known {
        0 => "–".to_owned(),
        known => format!("{within} of {known}, {}", percent(Some(within as f64 / known as f64))),
    }
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
    let held: Vec<bool> = outcomes.iter().flat_map(|it| &it.decisions).filter_map(Decision::came_true).collect();
    let count = held.iter().filter(|held| **held).count();
    let text = format!("{text} {count} of {} came true.", held.len());
    let mut table = Table::new("Why `auto` chose it", &text, &columns);
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
    let columns = ["group", "method", "predicted, samples/s", "95 %", "measured", "off", ""];
    let mut table = Table::new("Cells", "", &columns);
    let rate = |rate: Option<f64>| rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"));
    table.rows.extend(outcomes.iter().map(|outcome| {
        vec![
            outcome.group.clone(),
            outcome.method.clone(),
            rate(outcome.predicted),
            outcome.interval.map_or_else(|| "–".to_owned(), |ends| ends.map(|end| rate(Some(end))).join(" to ")),
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
    use super::super::judge::targets;
    use super::*;

    /// Of 104 give or take a twentieth 100 is none too little, and of 130 it is.
    #[test]
    fn what_lies_in_its_interval_is_counted() {
        let of = |method: &str, predicted: f64| outcome("g", method, predicted, 100.0);
        let unknown = Outcome { interval: None, ..of("bsp-a2a", 100.0) };
        let failed = Outcome { measured: None, ..of("bsp-a2a", 100.0) };
        let outcomes = [of("bsp-a2a", 104.0), of("bsp-a2a", 130.0), unknown, failed, of("wfbp-a2a", 120.0)];
        let rows = method_table(&outcomes).rows;
        assert_eq!(rows[0], ["bsp-a2a", "3", "4.0 %", "30.0 %", "30.0 %", "1 of 2, 50.0 %"]);
        assert_eq!(rows[1], ["wfbp-a2a", "1", "20.0 %", "20.0 %", "20.0 %", "0 of 1, 0.0 %"]);
        assert_eq!((rows[2][0].as_str(), rows[2][5].as_str()), ("8 workers", "1 of 3, 33.3 %"));
        let within = |ends: [f64; 2]| Outcome { interval: Some(ends), ..of("bsp-a2a", 100.0) }.within();
        assert_eq!(
            [within([100.0, 110.0]), within([90.0, 100.0]), within([100.1, 110.0])],
            [true, true, false].map(Some)
        );
        assert_eq!(share(in_interval(outcomes[2..4].iter())), "–");
        assert_eq!(cell_table(&outcomes).rows[0][2..5], ["104.0", "98.8 to 109.2", "100.0"]);
        // Of several places there is a sum.
        assert_eq!(error_table(&outcomes).rows.len(), 1);
        let [first, .., last] = outcomes.clone();
        let rows = error_table(&[first, Outcome { place: Place::Lab, ..last }]).rows;
        assert_eq!((rows.len(), rows[2][0].as_str(), rows[2][5].as_str()), (3, "all", "1 of 2, 50.0 %"));
    }

    /// In the tables, and in no median: neither by place, nor by method, nor among what is demanded.
    #[test]
    fn errors_of_a_trained_worker_alone_stand_apart() {
        let of = |place: Place, workers: usize, predicted: f64| Outcome {
            place,
            workers,
            ..outcome("g", "bsp-a2a", predicted, 100.0)
        };
        let outcomes = [of(Place::Emulated, 1, 102.0), of(Place::Real, 2, 104.0), of(Place::Real, 1, 130.0)];
        let largest = |rows: Vec<Vec<String>>| rows.into_iter().map(|row| [&*row[0], &*row[1], &*row[4]].join(", "));
        let by_place: Vec<String> = largest(error_table(&outcomes).rows).collect();
        let expected = [
            "emulated networks, 1, 2.0 %",
            "trained models, this host, 1, 4.0 %",
            "all, 2, 4.0 %",
            "trained models, this host: one worker alone, 1, 30.0 %",
        ];
        assert_eq!(by_place, expected);
        let by_method: Vec<String> = largest(method_table(&outcomes).rows).collect();
        assert_eq!(by_method, ["bsp-a2a, 2, 4.0 %", "1 worker, 1, 2.0 %", "2 workers, 1, 4.0 %"]);
        let targets = targets(&outcomes);
        let demanded = targets.iter().find(|target| target.case == Place::Real.name()).expect("it is demanded");
        assert_eq!((demanded.found.as_str(), demanded.met), ("0.040", Some(true)));
        assert_eq!(cell_table(&outcomes).rows.len(), 3);
        // Of nothing else there is no sum.
        assert_eq!(error_table(&outcomes[2..]).rows.len(), 1);
    }

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
        let table = why_table(&outcomes);
        assert!(table.text.ends_with(" 2 of 3 came true."), "{}", table.text);
        let rows = table.rows;
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
