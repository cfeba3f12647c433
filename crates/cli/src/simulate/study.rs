//! Every row of a study.

mod choices;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use paceline_plan::{Cluster, ClusterSet, NetworkModel};
use paceline_predict::fit::Errors;
use paceline_predict::protocol_doubt;
use paceline_predict::search::SearchError;
use paceline_predict::study::{Case, Study, StudyRow, same};
use paceline_train::load_profile;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::SimulateArguments;
use crate::Registry;
use crate::clusters::{blamed, load_clusters};
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;
use choices::{Choice, chosen, mean_regret};

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    rows: Vec<Map<String, Value>>,
    errors: Vec<Spread>,
    choices: Vec<Choice>,
    mean_regret: Option<f64>,
    elapsed_us: f64,
}

/// How far predictions are off where there are measurements.
#[derive(Serialize)]
struct Spread {
    method: String,
    predictions: usize,
    median_error: f64,
    p90_error: f64,
    max_error: f64,
    /// How many of them lie in their 95 % interval.
    within: usize,
}

/// A row, its prediction, and how far that is off.
struct Predicted<'a> {
    row: &'a StudyRow,
    /// Does its method leave open how workers communicate?
    is_open: bool,
    samples_per_s: f64,
    interval: (f64, f64),
    extrapolated: Vec<String>,
    error: Option<f64>,
}

/// Predicts a study.
///
/// # Errors
/// A file cannot be read or makes no sense; a model, a network or a method is unknown.
pub fn run(
    path: &Path,
    arguments: &SimulateArguments,
    registry: &Registry,
    json: Option<JsonFile>,
) -> Result<ExitCode, Failure> {
    let usage = |reason: &dyn std::fmt::Display| {
        Failure::usage(format!("{}: {reason}", path.display()))
            .help("docs/prediction.md says which columns and methods a study has; data/study_calibration.csv is one")
    };
    let study = Study::parse(&super::read(path, "study")?).map_err(|error| usage(&error))?;
    let profiles = arguments.profiles.iter().map(|name| load_profile(name).map_err(Failure::usage));
    let profiles = profiles.collect::<Result<Vec<_>, _>>()?;
    let clusters = Clusters(arguments.cluster.as_deref().map(load_clusters).transpose()?);
    let began = Instant::now();
    let mut predicted = Vec::new();
    for row in &study.rows {
        let case = Case::of(row, &profiles, registry.grammar()).map_err(|error| usage(&error))?;
        let (cluster, of_another) = clusters.of(row).map_err(|reason| usage(&reason))?;
        let Case { strategy, workers, .. } = &case;
        let prediction = if case.on_byteps {
            case.predict(&cluster).map_err(SearchError::from)
        } else {
            super::predicted(&case.job(&cluster), registry).map(|(_, prediction)| prediction)
        };
        let mut prediction = prediction.map_err(|error| {
            let error = blamed(arguments.cluster.as_deref().unwrap_or(&cluster.name), &error);
            usage(&format!("line {} of the study: {error}", row.line))
        })?;
        prediction.extrapolated.extend(protocol_doubt(&cluster, *workers, strategy));
        prediction.extrapolated.extend(case.doubt.map(str::to_owned));
        prediction.extrapolated.extend(cluster.measurement_doubt().filter(|_| *workers > 1));
        prediction.extrapolated.extend(of_another.filter(|_| cluster.hosts_of(*workers) > 1));
        let samples = prediction.samples_per_s * prediction.iteration_s;
        predicted.push(Predicted {
            row,
            is_open: strategy.is_open(),
            samples_per_s: prediction.samples_per_s,
            interval: (samples / prediction.high_s, samples / prediction.low_s),
            extrapolated: prediction.extrapolated,
            error: row.samples_per_s.map(|measured| prediction.samples_per_s / measured - 1.0),
        });
    }
    let elapsed_us = 1e6 * began.elapsed().as_secs_f64();
    let rows = predicted.iter().map(|one| one.cells(&study.columns)).collect();
    let choices = chosen(&predicted);
    let mean_regret = mean_regret(&choices);
    let report = Report { rows, errors: spreads(&predicted), choices, mean_regret, elapsed_us };
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(show(&predicted, &report, &mut io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

/// Those that were named, or the ones that are built in.
struct Clusters(Option<ClusterSet>);

impl Clusters {
    /// The cluster of a row, whose workers share a host if its note says so; and in words what is in doubt if it is another network's.
    fn of(&self, row: &StudyRow) -> Result<(Cluster, Option<String>), String> {
        let (mut cluster, of_another) = self.of_network(row)?;
        if row.is_of_one_host() {
            cluster.workers_per_host = cluster.workers_per_host.max(row.workers);
        }
        Ok((cluster, of_another))
    }

    fn of_network(&self, row: &StudyRow) -> Result<(Cluster, Option<String>), String> {
        let (network, line) = (&row.network, row.line);
        let Some(set) = &self.0 else {
            let named = Cluster::named(&format!("study-{network}")).or_else(|_| Cluster::named(network));
            let unknown = |error| format!("line {line} of the study: there is no network {network}: {error}");
            return named.map(|cluster| (cluster, None)).map_err(unknown);
        };
        if let Some(cluster) = set.of(network) {
            return Ok((cluster.clone(), None));
        }
        if let Some(found) = not_fitted(set, network) {
            return Ok(found);
        }
        let known: Vec<&str> = set.networks.keys().map(String::as_str).collect();
        match set.networks.first_key_value() {
            Some((only, cluster)) if known.len() == 1 => {
                let doubt = format!(
                    "the network {network} is predicted with the constants of {only}, the only one of --cluster"
                );
                Ok((cluster.clone(), Some(doubt)))
            }
            _ => {
                let known = known.join(", ");
                Err(format!("line {line} of the study: --cluster has no network {network}; it has {known}"))
            }
        }
    }
}

/// A network that is known and that nobody has fitted, as where one is left out of a split: the fitted one whose links are most like its own, with links
/// that are as many times as fast as messages from point to point are there; and in words what is in doubt.
fn not_fitted(set: &ClusterSet, network: &str) -> Option<(Cluster, Option<String>)> {
    let beta_of = |name: &str| NetworkModel::named_in_any_case(name).map(|network| network.across.beta_s_per_byte);
    let beta = beta_of(network)?;
    let of_fitted = |(name, cluster)| beta_of(name).map(|of_it| (name, cluster, beta / of_it));
    let fitted = set.networks.iter().filter_map(|(name, cluster)| of_fitted((name.as_str(), cluster)));
    let away = |times: &f64| times.ln().abs();
    let (most_like, cluster, times) = fitted.min_by(|one, other| away(&one.2).total_cmp(&away(&other.2)))?;
    let mut cluster = cluster.clone();
    cluster.across.beta_s_per_byte = cluster.across.beta_s_per_byte.times(times);
    let doubt = format!(
        "the network {network} is not in --cluster: it is predicted with the constants of {most_like}, and with links that are faster or slower by as much \
         as messages from point to point"
    );
    Some((cluster, Some(doubt)))
}

impl Predicted<'_> {
    /// What stands in the row, numbers as numbers, and what was predicted: under another name where a column of the table has that one,
    /// but for the prediction itself.
    fn cells(&self, columns: &[String]) -> Map<String, Value> {
        let value = |cell: &String| match (cell.parse::<i64>(), cell.parse::<f64>()) {
            (Ok(whole), _) => json!(whole),
            (_, Ok(number)) if number.is_finite() => json!(number),
            _ => json!(cell),
        };
        let mut cells: Map<String, Value> =
            columns.iter().zip(&self.row.cells).map(|(column, cell)| (column.clone(), value(cell))).collect();
        cells.insert("predicted_samples_per_s".into(), json!(self.samples_per_s));
        let error = self.error.map(|error| ("error", json!(error)));
        let (low, high) = self.interval;
        let found = [
            ("low_samples_per_s", json!(low)),
            ("high_samples_per_s", json!(high)),
            ("extrapolated", json!(self.extrapolated)),
        ];
        for (name, value) in found.into_iter().chain(error) {
            let mut name = name.to_owned();
            while cells.contains_key(&name) {
                name.insert_str(0, "predicted_");
            }
            cells.insert(name, value);
        }
        cells
    }
}

/// By method, in the order in which they first stand there; then of all.
fn spreads(predicted: &[Predicted<'_>]) -> Vec<Spread> {
    let mut methods: Vec<&str> = Vec::new();
    for one in predicted.iter().filter(|one| one.error.is_some()) {
        if !methods.iter().any(|known| same(known, &one.row.method)) {
            methods.push(&one.row.method);
        }
    }
    let spread = |method: &str, of: &dyn Fn(&StudyRow) -> bool| {
        let errors = Errors::of(predicted.iter().filter(|one| of(one.row)).filter_map(|one| one.error));
        let is_within = |one: &&Predicted<'_>| {
            one.row.samples_per_s.is_some_and(|measured| (one.interval.0..=one.interval.1).contains(&measured))
        };
        Spread {
            method: method.to_owned(),
            predictions: errors.rows,
            median_error: errors.median,
            p90_error: errors.p90,
            max_error: errors.worst,
            within: predicted.iter().filter(|one| of(one.row)).filter(is_within).count(),
        }
    };
    let each = methods.iter().map(|method| spread(method, &|row| same(&row.method, method)));
    let mut spreads: Vec<Spread> = each.collect();
    if !spreads.is_empty() {
        spreads.push(spread("all", &|_| true));
    }
    spreads
}

fn show(predicted: &[Predicted<'_>], report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut table = new_table(&["model", "network", "method", "workers", "samples/s", "predicted", "error"], 3);
    for one in predicted {
        let measured = one.row.samples_per_s.map_or_else(String::new, |measured| format!("{measured:.1}"));
        let error = one.error.map_or_else(String::new, |error| format!("{:+.1} %", 100.0 * error));
        table.add_row([
            one.row.model.clone(),
            one.row.network.clone(),
            one.row.method.clone(),
            one.row.workers.to_string(),
            measured,
            format!("{:.1}", one.samples_per_s),
            error,
        ]);
    }
    writeln!(out, "{table}")?;
    show_extrapolated(predicted, out)?;
    if report.errors.is_empty() {
        return Ok(());
    }
    let mut table = new_table(&["method", "rows", "median error", "90th percentile", "largest", "in the interval"], 1);
    for spread in &report.errors {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        table.add_row([
            spread.method.clone(),
            spread.predictions.to_string(),
            percent(spread.median_error),
            percent(spread.p90_error),
            percent(spread.max_error),
            spread.within.to_string(),
        ]);
    }
    writeln!(out, "\n{table}")?;
    choices::show(&report.choices, report.mean_regret, out)
}

/// Each reason once, with the lines of its rows.
fn show_extrapolated(predicted: &[Predicted<'_>], out: &mut dyn Write) -> io::Result<()> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for one in predicted {
        for reason in &one.extrapolated {
            let line = one.row.line.to_string();
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, lines)) => lines.push(line),
                None => reasons.push((reason, vec![line])),
            }
        }
    }
    for (reason, lines) in reasons {
        let s = if lines.len() == 1 { "" } else { "s" };
        writeln!(out, "extrapolated, line{s} {} of the study: {reason}", lines.join(", "))?;
    }
    Ok(())
}

/// From column `numbers` on, numbers.
fn new_table(heading: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heading.to_vec());
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
