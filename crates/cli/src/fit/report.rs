//! What `fit` found, for people and for programs.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use paceline_predict::fit::{Errors, Fit, FittedParameter, FittedRow};
use paceline_predict::study::Study;
use serde::Serialize;

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
pub struct Report {
    clusters: Vec<ClusterFile>,
    constants: Vec<Parameter>,
    errors: Spread,
    left_out: Vec<LeftOut>,
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
    converged: bool,
    elapsed_us: f64,
}

#[derive(Serialize)]
struct ClusterFile {
    network: String,
    file: String,
}

#[derive(Serialize)]
struct Parameter {
    constant: String,
    network: Option<String>,
    unit: &'static str,
    value: f64,
    low: f64,
    high: f64,
    origin: &'static str,
    informed: f64,
    prior: &'static str,
}

#[derive(Serialize)]
struct Spread {
    predictions: usize,
    median_error: f64,
    p90_error: f64,
    max_error: f64,
}

#[derive(Serialize)]
struct LeftOut {
    left_out: String,
    #[serde(flatten)]
    errors: Spread,
}

#[derive(Serialize)]
struct Row {
    line: usize,
    model: String,
    network: String,
    method: String,
    workers: usize,
    samples_per_s: f64,
    predicted_samples_per_s: f64,
    error: f64,
}

#[derive(Serialize)]
struct Skipped {
    line: usize,
    reason: String,
}

impl Report {
    /// Of a fit that took so long.
    pub fn of(study: &Study, fit: &Fit, elapsed: Duration) -> Report {
        let row = |fitted: &FittedRow| {
            let row = &study.rows[fitted.row];
            Row {
                line: row.line,
                model: row.model.clone(),
                network: row.network.clone(),
                method: row.method.clone(),
                workers: row.workers,
                samples_per_s: row.samples_per_s.unwrap_or_default(),
                predicted_samples_per_s: fitted.predicted_samples_per_s,
                error: fitted.error,
            }
        };
        let left_out = fit
            .left_out
            .iter()
            .map(|left| LeftOut { left_out: format!("{} {}", left.what, left.name), errors: Spread::of(&left.errors) });
        let skipped = fit.skipped.iter().map(|skipped| Skipped { line: skipped.line, reason: skipped.reason.clone() });
        Report {
            clusters: Vec::new(),
            constants: fit.parameters.iter().map(Parameter::of).collect(),
            errors: Spread::of(&fit.errors),
            left_out: left_out.collect(),
            rows: fit.rows.iter().map(row).collect(),
            skipped: skipped.collect(),
            converged: fit.converged,
            elapsed_us: elapsed.as_secs_f64() * 1e6,
        }
    }

    /// The same with the files that were written.
    pub fn with_files(self, files: &[(String, PathBuf)]) -> Report {
        let file = |(network, path): &(String, PathBuf)| ClusterFile {
            network: network.clone(),
            file: path.display().to_string(),
        };
        Report { clusters: files.iter().map(file).collect(), ..self }
    }

    /// Tables.
    ///
    /// # Errors
    /// The writer's.
    pub fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        for Skipped { line, reason } in &self.skipped {
            writeln!(out, "line {line} is not used: it {reason}")?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["constant", "network", "value", "95 % interval", "unit", "known from"]);
        for parameter in &self.constants {
            table.add_row(parameter.cells());
        }
        for column in table.column_iter_mut().skip(2).take(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{table}\n")?;
        writeln!(out, "predicted against measured: {}", self.errors)?;
        for LeftOut { left_out, errors } in &self.left_out {
            writeln!(out, "without {left_out}, and predicting it: {errors}")?;
        }
        if !self.converged {
            writeln!(out, "the fit had not come to an end: take its constants with care")?;
        }
        for ClusterFile { network, file } in &self.clusters {
            writeln!(out, "{network}: {file}")?;
        }
        Ok(())
    }
}

impl Parameter {
    fn of(parameter: &FittedParameter) -> Parameter {
        Parameter {
            constant: parameter.name.clone(),
            network: parameter.network.clone(),
            unit: parameter.unit,
            value: parameter.value.value,
            low: parameter.value.low,
            high: parameter.value.high,
            origin: parameter.origin().name(),
            informed: parameter.informed,
            prior: parameter.prior,
        }
    }

    /// In the unit that is next to the value.
    fn cells(&self) -> [String; 6] {
        let (factor, unit) = match self.unit {
            "s" => (1e3, "ms"),
            "s/byte" => (1e9, "ns/byte"),
            unit => (1.0, unit),
        };
        let number = |value: f64| format!("{:.4}", value * factor);
        let known = if self.origin == "throughputs" {
            self.origin.to_owned()
        } else {
            format!("{}: {}", self.origin, self.prior)
        };
        [
            self.constant.clone(),
            self.network.clone().unwrap_or_else(|| "all".to_owned()),
            number(self.value),
            format!("{} to {}", number(self.low), number(self.high)),
            unit.to_owned(),
            known,
        ]
    }
}

impl Spread {
    fn of(errors: &Errors) -> Spread {
        let &Errors { rows, median, p90, worst } = errors;
        Spread { predictions: rows, median_error: median, p90_error: p90, max_error: worst }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let (median, p90, worst) = (percent(self.median_error), percent(self.p90_error), percent(self.max_error));
        write!(f, "median error {median}, 90 % within {p90}, worst {worst} ({} throughputs)", self.predictions)
    }
}
