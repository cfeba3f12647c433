//! Iterations of training in the lab: BERT-Base's computation is slept through and its gradients travel, without a tuner and with
//! one, by turns. `paceline bench --tune` measures both; a program that cannot is named among what was not measured.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use paceline_cli::Ratio;
use serde_json::{Value, json};
use xtask::lab::{Lab, LabOptions, Rate, Shaper};

use super::super::cells::{self, Cell};
use super::super::ranks::Ranks;
use super::super::report::{NOT_MEASURED, Table, Target, ms, percent};
use super::super::tensors::Model;
use super::super::workload::{Computation, Workload};
use super::super::{HOSTS, Place};
use super::Section;
use super::world::{PATIENCE, PATIENCE_MIN};
use crate::compare::Error;

/// An iteration with the tuner over one without: the same share as of calls' totals.
const OVER_DEFAULT_MAX: f64 = 1.02;
/// Communication at line rate takes twice as long as computation: little of it can be hidden.
const COMPUTATION: Computation = Computation::Both(0.5);
/// Tensor by tensor, and in buckets of 25 MiB. The first is measured once more, so that noise is known.
const METHODS: &str = "wfbp-a2a;ddp";
/// How `bench` calls what is tuned.
const TUNED: &str = "+tune";
/// Iterations before those that count, these, and runs if nobody says how many.
const WARM_UP: usize = 1;
const ITERATIONS: usize = 15;
const RUNS: usize = 3;
/// Seconds for which calls are rehearsed, and iterations in which a tuner learns at most, in each run: what a rehearsal has found is tried in
/// 24 to 96 iterations, of all calls of a context at once, and all together in as many again. Where it is not decided by then, it stays open.
const REHEARSAL_S: f64 = 60.0;
const LEARNING_MAX: usize = 150;
/// About what starting a world takes and ending it.
const START_S: f64 = 6.0;

/// One call of `paceline bench` in a lab.
pub struct Replay {
    pub name: String,
    model: Model,
    hosts: usize,
    iterations: usize,
    runs: usize,
    rehearsal_s: f64,
}

impl Replay {
    /// What is measured.
    pub fn all(quick: bool, rounds: Option<usize>) -> Vec<Replay> {
        let (model, hosts, iterations, runs, rehearsal_s) = match quick {
            true => (Model::MobileNetV2, 2, 3, 1, 1.0),
            false => (Model::BertBase, HOSTS, ITERATIONS, RUNS, REHEARSAL_S),
        };
        let name = format!("replay-{}-{hosts}", model.name());
        vec![Replay { name, model, hosts, iterations, runs: rounds.unwrap_or(runs).max(1), rehearsal_s }]
    }

    fn workload(&self, place: &Place) -> Result<Workload, Error> {
        place.workload_for(self.model, COMPUTATION, self.hosts)
    }

    /// About what it takes at most: two methods, the first once more, and both with a tuner.
    ///
    /// # Errors
    /// The profile cannot be made.
    pub fn estimate_s(&self, place: &Place) -> Result<f64, Error> {
        let workload = self.workload(place)?;
        let iteration_s = workload.line_s + 0.5 * workload.compute_s();
        let iterations = 5 * (WARM_UP + self.iterations) + 2 * LEARNING_MAX;
        Ok(self.runs as f64 * (5.0 * START_S + 2.0 * self.rehearsal_s + iterations as f64 * iteration_s))
    }

    fn words(&self, program: &Path, workload: &Workload, database: &Path, json: &Path) -> Vec<OsString> {
        let words = [
            ("--models", self.model.name().to_owned()),
            ("--compute", format!("replay:{}", workload.path.display())),
            ("--methods", METHODS.to_owned()),
            ("--warmup", WARM_UP.to_string()),
            ("--iterations", self.iterations.to_string()),
            ("--runs", self.runs.to_string()),
            ("--tune-rehearsal", self.rehearsal_s.to_string()),
            ("--tune-learning", LEARNING_MAX.to_string()),
        ];
        let options = ["bench", "--tune", "--tune-afresh", "--resume"];
        let mut all: Vec<OsString> = vec![program.into()];
        all.extend(options.map(OsString::from));
        all.extend(words.into_iter().flat_map(|(option, value)| [option.into(), OsString::from(value)]));
        let report = json.with_extension("html");
        for (option, path) in [("--database", database), ("--json", json), ("--report", report.as_path())] {
            all.extend([option.into(), path.as_os_str().to_owned()]);
        }
        all
    }

    /// Measures what the database does not have yet.
    ///
    /// # Errors
    /// There is no lab; a rank failed; it takes too long.
    fn measure(&self, place: &Place, database: &Path) -> Result<(Vec<Cell>, Value), Error> {
        let failed = |error: &dyn std::fmt::Display| Error::from(format!("{}: {error}", self.name));
        let workload = self.workload(place)?;
        let json = place.scratch.join(format!("{}.json", self.name));
        // What another call has left there says nothing of this one.
        match fs::remove_file(&json) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
        let options = LabOptions { hosts: self.hosts, shaper: Shaper::new(Rate::GIGABIT) };
        let lab = Lab::build(&options).map_err(|error| failed(&error))?;
        let commands = lab.ranks(1, &self.words(&place.program, &workload, database, &json));
        let limit = Duration::from_secs_f64(PATIENCE * self.estimate_s(place)?).max(PATIENCE_MIN);
        let ended = Ranks::start(commands, true, &place.scratch).and_then(|ranks| ranks.end(limit, &mut |_, _| Ok(())));
        // Where a cell failed, the file says which and why.
        if let Err(error) = ended
            && !json.exists()
        {
            return Err(failed(&error));
        }
        let text = fs::read_to_string(&json).map_err(|error| failed(&error))?;
        let report = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        Ok((cells::read(&json)?, report))
    }
}

/// Measures and judges. What could not be measured is noted with its reason.
pub fn run(place: &Place, all: &[Replay], database: &Path, left_out: &mut Table) -> Section {
    let mut section = Section {
        tables: vec![table(all.iter().map(|replay| replay.runs).max().unwrap_or(RUNS))],
        ..Section::default()
    };
    let mut measured = Vec::new();
    for replay in all {
        eprintln!("{}: {} runs", replay.name, replay.runs);
        match replay.measure(place, database) {
            Ok((cells, report)) => {
                let tuning = tuning(&report);
                let pairs = pairs(&cells, &tuning);
                section.targets.extend(pairs.iter().map(Pair::target));
                section.tables[0].rows.extend(pairs.iter().map(Pair::row));
                let unmeasured = cells.iter().filter(|cell| !cell.failures.is_empty());
                left_out.rows.extend(
                    unmeasured.map(|cell| vec![format!("{} {}", replay.name, cell.method), cell.failures.join("; ")]),
                );
                measured.push(json!({"case": replay.name, "cells": cells, "tuning": tuning}));
            }
            Err(error) => {
                eprintln!("{error}");
                left_out.rows.push(vec![replay.name.clone(), error.to_string()]);
            }
        }
    }
    section.measured = Value::Array(measured);
    section
}

/// What tuning has come to, by method.
fn tuning(report: &Value) -> Value {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let groups = list(report, "panels").into_iter().flat_map(|panel| list(&panel, "groups"));
    let rows = groups.flat_map(|group| list(&group, "rows"));
    let tuned = rows.filter(|row| row["result"]["tuning"].is_object());
    tuned.map(|row| json!({"method": row["method"], "tuning": row["result"]["tuning"]})).collect()
}

/// A method without a tuner and with one.
struct Pair<'a> {
    plain: &'a Cell,
    tuned: &'a Cell,
    /// The time of an iteration with the tuner over that without, and what chance leaves open of it.
    ratio: Option<Ratio>,
    /// What the last run's own trial has found, in which iterations with and without what was learned take turns.
    trial: String,
}

fn pairs<'a>(cells: &'a [Cell], tuning: &Value) -> Vec<Pair<'a>> {
    let plain_of = |tuned: &Cell| -> Option<usize> {
        let method = tuned.method.strip_suffix(TUNED)?;
        cells.iter().position(|cell| cell.method == method && cell.workers == tuned.workers)
    };
    let with_plain = cells.iter().filter_map(|tuned| Some((&cells[plain_of(tuned)?], tuned)));
    let trial = |tuned: &Cell| trial(tuning, &tuned.method);
    with_plain.map(|(plain, tuned)| Pair { plain, tuned, ratio: ratio(plain, tuned), trial: trial(tuned) }).collect()
}

/// By how much iterations were shorter, or what stands instead.
fn trial(tuning: &Value, method: &str) -> String {
    let of_method = tuning.as_array().and_then(|all| all.iter().find(|it| it["method"] == method));
    let Some(found) = of_method.map(|it| &it["tuning"]) else { return "–".to_owned() };
    match (found["gain"]["share"].as_f64(), found["gain"]["share_margin"].as_f64()) {
        (Some(share), Some(margin)) => format!("{} ± {} less", percent(Some(share)), percent(Some(margin))),
        _ => found["standing"].as_str().unwrap_or("–").replace('-', " "),
    }
}

fn ratio(plain: &Cell, tuned: &Cell) -> Option<Ratio> {
    let (without, with) = (plain.throughput?, tuned.throughput?);
    Some(Ratio::of(&[(&without, 1.0), (&with, -1.0)], &[plain.noise]))
}

impl Pair<'_> {
    /// None: chance leaves it open.
    fn met(&self) -> Option<bool> {
        let ratio = self.ratio.as_ref()?;
        let (is_below, is_above) = (ratio.is_below(OVER_DEFAULT_MAX), ratio.is_above(OVER_DEFAULT_MAX));
        (is_below || is_above).then_some(is_below)
    }

    fn in_words(&self) -> String {
        self.ratio.as_ref().map_or_else(
            || NOT_MEASURED.to_owned(),
            |ratio| {
                let open = if ratio.is_known() { percent(Some(ratio.open)) } else { "unknown".to_owned() };
                format!("{:.3} (open: {open})", ratio.value)
            },
        )
    }

    fn target(&self) -> Target {
        let Cell { model, workers, method, .. } = self.plain;
        Target {
            case: format!("{model} in the lab, {workers} workers, {method}"),
            demanded: format!("iteration with the tuner over without ≤ {OVER_DEFAULT_MAX}"),
            found: self.in_words(),
            met: self.met(),
        }
    }

    fn row(&self) -> Vec<String> {
        let (plain, tuned) = (self.plain, self.tuned);
        let time = |seconds: Option<f64>| seconds.map_or_else(|| "–".to_owned(), ms);
        vec![
            plain.model.clone(),
            plain.workers.to_string(),
            plain.method.clone(),
            time(plain.iteration_s),
            time(tuned.iteration_s),
            time(plain.exposed_communication_s),
            time(tuned.exposed_communication_s),
            self.in_words(),
            self.trial.clone(),
            percent(plain.noise),
        ]
    }
}

fn table(runs: usize) -> Table {
    Table::new(
        "Training in the lab",
        format!(
            "Times in ms, of an iteration on NICs of 1 Gbit/s; computation is replayed, half as long as communication at line rate. \
             Runs without a tuner and with one take turns, {runs} of each; a tuned run begins with nothing, rehearses for at most \
             {REHEARSAL_S} s, and learns for at most {LEARNING_MAX} iterations before the {ITERATIONS} that count. \"Exposed\": of an iteration, waiting for \
             communication. \"Its own trial\": iterations with and without what was learned, by turns within the last run. \
             \"Noise\": the first method against itself."
        ),
        &[
            "model",
            "workers",
            "method",
            "without",
            "with",
            "exposed without",
            "exposed with",
            "with over without",
            "its own trial",
            "noise",
        ],
    )
}

#[cfg(test)]
mod tests {
    use paceline_cli::Estimate;

    use super::*;

    fn cell(method: &str, samples_per_s: &[f64]) -> Cell {
        let throughput = Estimate::of(samples_per_s);
        Cell {
            model: "bert-base".into(),
            network: String::new(),
            workers: 4,
            method: method.into(),
            samples_per_s: throughput.map(|it| it.mean),
            iteration_s: throughput.map(|it| 256.0 / it.mean),
            exposed_communication_s: None,
            local_batch: 64,
            dilate: 1.0,
            processors_waiting: None,
            limited: None,
            noise: Some(0.01),
            measured: String::new(),
            throughput,
            rounds: samples_per_s.iter().copied().map(Some).collect(),
            iterations: Vec::new(),
            failures: Vec::new(),
            predicted: None,
            predicted_interval: None,
            prediction_error: None,
            not_predicted: None,
            chosen: None,
            decisions: Vec::new(),
        }
    }

    #[test]
    fn a_method_meets_itself_with_a_tuner() {
        let cells = [
            cell("wfbp-a2a", &[100.0, 101.0, 99.0]),
            cell("ddp", &[100.0, 100.5, 99.5]),
            cell("wfbp-a2a", &[70.0]),
            cell("wfbp-a2a+tune", &[110.0, 111.0, 109.0]),
            cell("ddp+tune", &[80.0, 80.5, 79.5]),
            cell("bsp-a2a+tune", &[80.0]),
        ];
        let tuning = json!([{"method": "ddp+tune", "tuning": {"standing": "no-significant-gain", "gain": null}},
            {"method": "wfbp-a2a+tune", "tuning": {"standing": "tuned", "gain": {"share": 0.08, "share_margin": 0.01}}}]);
        let pairs = pairs(&cells, &tuning);
        let trials: Vec<&str> = pairs.iter().map(|pair| pair.trial.as_str()).collect();
        assert_eq!(trials, ["8.0 % ± 1.0 % less", "no significant gain"]);
        let found: Vec<(&str, Option<bool>)> = pairs.iter().map(|pair| (&*pair.plain.method, pair.met())).collect();
        assert_eq!(found, [("wfbp-a2a", Some(true)), ("ddp", Some(false))]);
        assert!(pairs.iter().all(|pair| pair.row().len() == table(RUNS).columns.len()));
        assert!(pairs[0].target().found.starts_with("0.909 (open: "), "{}", pairs[0].target().found);
        // A single run of each leaves everything open.
        let cells = [cell("ddp", &[100.0]), cell("ddp+tune", &[90.0])];
        assert_eq!(super::pairs(&cells, &Value::Null)[0].met(), None);
    }

    #[test]
    fn what_was_tuned_is_kept_with_the_numbers() {
        let row = |method: &str, result: Value| json!({"method": method, "result": result});
        let rows =
            [row("ddp", json!({})), row("ddp+tune", json!({"tuning": {"standing": "tuned"}})), row("x", Value::Null)];
        let report = json!({"panels": [{"groups": [{"rows": rows}]}]});
        assert_eq!(tuning(&report), json!([{"method": "ddp+tune", "tuning": {"standing": "tuned"}}]));
        assert_eq!(tuning(&Value::Null), json!([]));
    }
}
