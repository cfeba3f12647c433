//! What `paceline bench --json` has measured, as far as it is judged here.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use paceline_cli::{Estimate, limited_by_processors};
use paceline_train::Decision;
use serde::{Deserialize, Serialize};

use crate::compare::Error;
use crate::compare::circumstances::date;

/// The throughput of a method in a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// `resnet50`.
    pub model: String,
    /// `10GbE`.
    pub network: String,
    /// How many.
    pub workers: usize,
    /// As it was asked for.
    pub method: String,
    /// Of all workers; the mean over the runs. None: no run counted.
    pub samples_per_s: Option<f64>,
    /// Seconds of an iteration.
    pub iteration_s: Option<f64>,
    /// Of them, waiting for communication.
    pub exposed_communication_s: Option<f64>,
    /// Samples per worker and iteration.
    pub local_batch: usize,
    /// Computation and links were slowed by this factor.
    pub dilate: f64,
    /// Of the processors, the share that was busy while workers waited for communication.
    pub processors_waiting: Option<f64>,
    /// The processors, and not the links, have limited it: in words. Such a throughput says nothing of the network.
    pub limited: Option<String>,
    /// How far two measurements of the same thing lay apart there, as a share.
    pub noise: Option<f64>,
    /// When its runs were made, and beside what.
    pub measured: String,
    /// The same throughput, with how it scatters over the runs.
    pub throughput: Option<Estimate>,
    /// Of each run; None: it did not count.
    pub rounds: Vec<Option<f64>>,
    /// Iterations of each run that counted: those that warmed up, and those that were measured.
    pub iterations: Vec<(usize, usize)>,
    /// Why runs gave nothing.
    pub failures: Vec<String>,
    /// Throughput, from what was known before the first iteration.
    pub predicted: Option<f64>,
    /// From where to where it is, with 95 %.
    pub predicted_interval: Option<[f64; 2]>,
    /// Predicted over measured, less 1.
    pub prediction_error: Option<f64>,
    /// Why nothing was predicted.
    pub not_predicted: Option<String>,
    /// The strategy that ran, where that was chosen.
    pub chosen: Option<String>,
    /// What was decided in the first run, one after the other: the last one ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

#[derive(Deserialize)]
struct File {
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    setting: Setting,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Setting {
    model: String,
    network: Option<String>,
    local_batch: usize,
    dilate: f64,
}

#[derive(Deserialize)]
struct Group {
    workers: usize,
    rows: Vec<Row>,
    noise: Option<f64>,
}

#[derive(Deserialize)]
struct Row {
    method: String,
    result: Option<RowResult>,
    #[serde(default)]
    failures: Vec<String>,
    #[serde(default)]
    occasions: Vec<Occasion>,
    #[serde(default)]
    samples_per_s_of_runs: Vec<Option<f64>>,
    #[serde(default)]
    predicted: Option<Predicted>,
    #[serde(default)]
    prediction_error: Option<f64>,
    #[serde(default)]
    not_predicted: Option<String>,
}

#[derive(Deserialize)]
struct Predicted {
    samples_per_s: f64,
    #[serde(default)]
    samples_per_s_low: Option<f64>,
    #[serde(default)]
    samples_per_s_high: Option<f64>,
}

/// Of a run.
#[derive(Deserialize)]
struct Occasion {
    /// Seconds since 1970.
    ended: u64,
    /// The load average before it.
    load: Option<f64>,
}

#[derive(Deserialize)]
struct RowResult {
    samples_per_s: Estimate,
    iteration_s: f64,
    exposed_communication_s: f64,
    exposed_share: f64,
    #[serde(default)]
    processors_waiting: Option<f64>,
    #[serde(default)]
    iterations: Vec<(usize, usize)>,
    #[serde(default)]
    decision: Option<Decision>,
    #[serde(default)]
    abandoned: Vec<Decision>,
}

/// Reads a file of `paceline bench --json`.
pub fn read(path: &Path) -> Result<Vec<Cell>, Error> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn parse(text: &str) -> serde_json::Result<Vec<Cell>> {
    let file: File = serde_json::from_str(text)?;
    let mut cells = Vec::new();
    for Panel { setting, groups } in &file.panels {
        for group in groups {
            cells.extend(group.rows.iter().map(|row| cell(setting, group, row)));
        }
    }
    Ok(cells)
}

fn cell(setting: &Setting, group: &Group, row: &Row) -> Cell {
    let result = row.result.as_ref();
    let decisions = result.map_or_else(Vec::new, RowResult::decisions);
    Cell {
        model: setting.model.clone(),
        network: setting.network.clone().unwrap_or_default(),
        workers: group.workers,
        method: row.method.clone(),
        samples_per_s: result.map(|result| result.samples_per_s.mean),
        iteration_s: result.map(|result| result.iteration_s),
        exposed_communication_s: result.map(|result| result.exposed_communication_s),
        local_batch: setting.local_batch,
        dilate: setting.dilate,
        processors_waiting: result.and_then(|result| result.processors_waiting),
        limited: result.and_then(|result| limited_by_processors(result.processors_waiting, result.exposed_share)),
        noise: group.noise,
        measured: row.occasions.iter().map(Occasion::in_words).collect::<Vec<_>>().join("; "),
        throughput: result.map(|result| result.samples_per_s),
        rounds: row.samples_per_s_of_runs.clone(),
        iterations: result.map_or_else(Vec::new, |result| result.iterations.clone()),
        failures: row.failures.clone(),
        predicted: row.predicted.as_ref().map(|predicted| predicted.samples_per_s),
        predicted_interval: row.predicted.as_ref().and_then(Predicted::interval),
        prediction_error: row.prediction_error,
        not_predicted: row.not_predicted.clone(),
        chosen: decisions.last().map(|decision| decision.strategy.clone()),
        decisions,
    }
}

impl Predicted {
    fn interval(&self) -> Option<[f64; 2]> {
        Some([self.samples_per_s_low?, self.samples_per_s_high?])
    }
}

impl RowResult {
    /// One after the other.
    fn decisions(&self) -> Vec<Decision> {
        self.abandoned.iter().chain(&self.decision).cloned().collect()
    }
}

impl Cell {
    /// Runs that counted, and iterations of each: `3 × 2 after 2`, those that were measured after those that warmed up. Where runs
    /// differ, each by itself.
    pub fn runs_and_iterations(&self) -> String {
        let words = |(warm_up, measured): &(usize, usize)| format!("{measured} after {warm_up}");
        match &self.iterations[..] {
            [] => "–".to_owned(),
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                format!("{} × {}", self.iterations.len(), words(first))
            }
            all => all.iter().map(words).collect::<Vec<_>>().join(", "),
        }
    }

    /// What else is to be said of it.
    pub fn remark(&self) -> String {
        self.failures.iter().chain(&self.limited).cloned().collect::<Vec<_>>().join("; ")
    }
}

impl Occasion {
    fn in_words(&self) -> String {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(self.ended);
        let minutes = self.ended / 60 % (24 * 60);
        let load = self.load.map_or_else(String::new, |load| format!(", load {load:.2}"));
        format!("{} {:02}:{:02}{load}", date(at), minutes / 60, minutes % 60)
    }
}

/// The cell of a method in a place.
pub fn find<'a>(cells: &'a [Cell], model: &str, network: &str, workers: usize, method: &str) -> Option<&'a Cell> {
    cells
        .iter()
        .find(|cell| (&*cell.model, &*cell.network, cell.workers, &*cell.method) == (model, network, workers, method))
}

#[cfg(test)]
pub mod samples {
    use super::{Cell, Estimate};

    /// A cell that was measured three times, always with the same result.
    pub fn cell(model: &str, network: &str, workers: usize, method: &str, samples_per_s: f64) -> Cell {
        Cell {
            model: model.into(),
            network: network.into(),
            workers,
            method: method.into(),
            samples_per_s: Some(samples_per_s),
            iteration_s: Some(64.0 * workers as f64 / samples_per_s),
            exposed_communication_s: Some(0.1),
            local_batch: 64,
            dilate: 2.0,
            processors_waiting: Some(0.5),
            limited: None,
            noise: Some(0.01),
            measured: "2026-11-21 12:00, load 0.10".into(),
            throughput: Estimate::of(&[samples_per_s; 3]),
            rounds: vec![Some(samples_per_s); 3],
            iterations: vec![(2, 2); 3],
            failures: Vec::new(),
            predicted: None,
            predicted_interval: None,
            prediction_error: None,
            not_predicted: None,
            chosen: None,
            decisions: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_group_is_a_cell() {
        let text = r#"{"schema": 1, "panels": [{"setting": {"model": "resnet50", "network": "10GbE", "local_batch": 64,
            "dilate": 8.0, "compute": {}}, "groups": [{"workers": 32, "noise": 0.02, "rows": [
            {"method": "wfbp-ps", "result": {"samples_per_s": {"mean": 7000.0, "std": null, "median": 7000.0, "half_width_95": null, "runs": 1}, "iteration_s": 0.29,
             "exposed_communication_s": 0.01, "exposed_share": 0.034, "processors_waiting": 0.97, "iterations": [[2, 5]],
             "abandoned": [{"strategy": "schedule=none,arch=a2a:ring", "plan_hash": "0b", "iteration": 0, "changed": true,
              "predicted_iteration_s": 0.2, "predicted_low_s": 0.19, "predicted_high_s": 0.21,
              "expected_iteration_s": 0.2, "reasons": [], "measured_iteration_s": 0.4}],
             "decision": {"strategy": "schedule=wfbp,arch=ps:2", "plan_hash": "0a", "iteration": 7, "changed": true,
              "predicted_iteration_s": 0.28, "predicted_low_s": 0.27, "predicted_high_s": 0.3,
              "expected_iteration_s": 0.28, "reasons": ["the best of 3"], "measured_iteration_s": 0.29}}, "failures": [],
             "predicted": {"samples_per_s": 7140.0, "samples_per_s_low": 7000.0, "samples_per_s_high": 7200.0, "bottleneck": "computation"}, "prediction_error": 0.02,
             "occasions": [{"ended": 1795268645, "load": 0.5}, {"ended": 1795272240, "load": null}],
             "samples_per_s_of_runs": [7000.0, null]},
            {"method": "mg-wfbp", "result": {"samples_per_s": {"mean": 6900.0, "std": null, "median": 6900.0, "half_width_95": null, "runs": 1}, "iteration_s": 0.3,
             "exposed_communication_s": 0.03, "exposed_share": 0.1, "processors_waiting": 0.97}, "failures": ["run 2: late"]},
            {"method": "bsp-a2a", "result": null, "failures": ["run 1: late"]}]}]}]}"#;
        let cells = parse(text).expect("it is such a file");
        assert_eq!(cells.len(), 3);
        let found = find(&cells, "resnet50", "10GbE", 32, "wfbp-ps").expect("it is there");
        assert_eq!((found.samples_per_s, found.noise, found.dilate), (Some(7000.0), Some(0.02), 8.0));
        assert_eq!((found.throughput, &*found.rounds), (Estimate::of(&[7000.0]), &[Some(7000.0), None][..]));
        assert_eq!((found.predicted, found.prediction_error), (Some(7140.0), Some(0.02)));
        assert_eq!(found.predicted_interval, Some([7000.0, 7200.0]));
        assert_eq!((&*found.iterations, found.runs_and_iterations()), (&[(2, 5)][..], "1 × 5 after 2".to_owned()));
        let several = |iterations: &[(usize, usize)]| {
            Cell { iterations: iterations.to_vec(), ..found.clone() }.runs_and_iterations()
        };
        assert_eq!(several(&[(2, 2); 3]), "3 × 2 after 2");
        assert_eq!((several(&[(2, 2), (2, 3)]), several(&[])), ("2 after 2, 3 after 2".to_owned(), "–".to_owned()));
        assert_eq!(found.chosen.as_deref(), Some("schedule=wfbp,arch=ps:2"));
        let held: Vec<Option<bool>> = found.decisions.iter().map(Decision::came_true).collect();
        assert_eq!(held, [Some(false), Some(true)], "what was left stands before what ran");
        assert_eq!(found.measured, "2026-11-21 13:44, load 0.50; 2026-11-21 14:44");
        assert_eq!((&found.limited, found.remark()), (&None, String::new()), "hardly anybody waits");
        let limited = find(&cells, "resnet50", "10GbE", 32, "mg-wfbp").expect("it is there");
        assert!(limited.limited.as_ref().is_some_and(|why| why.contains("97 % of the processors")), "{limited:?}");
        assert!(limited.remark().starts_with("run 2: late; its links were slower"), "{limited:?}");
        let failed = find(&cells, "resnet50", "10GbE", 32, "bsp-a2a").expect("it is there");
        assert_eq!((failed.samples_per_s, failed.failures.len()), (None, 1));
        assert!(limited.chosen.is_none() && limited.decisions.is_empty() && failed.decisions.is_empty());
        assert!(find(&cells, "resnet50", "10GbE", 16, "wfbp-ps").is_none());
    }
}
