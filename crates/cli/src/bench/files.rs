//! The files besides the report: JSON, CSV, trace. They are opened before the work, so that a path that cannot be written
//! to is found out in time.

use std::fmt::Write;

use serde::Serialize;

use super::arguments::BenchArguments;
use super::predicted::{Errors, Predicted};
use super::summary::{Panel, Row, RowResult};
use super::trace_events::trace_events;
use crate::failure::Failure;
use crate::json_file::{JsonFile, PlainFile};
use crate::report::Report;

/// What was asked for.
pub struct Files {
    json: Option<JsonFile>,
    csv: Option<PlainFile>,
    trace: Option<PlainFile>,
}

/// What stands in the file of `--json`, besides machine and command line.
#[derive(Serialize)]
struct Results<'a> {
    protocol: &'a str,
    version: &'a str,
    /// Of the errors of all predictions that count, without their signs.
    prediction_error_median: Option<f64>,
    panels: &'a [Panel],
}

impl Files {
    /// Opens them.
    ///
    /// # Errors
    /// One cannot be written to.
    pub fn create(arguments: &BenchArguments) -> Result<Files, Failure> {
        // The report's place, too, though it is written at once.
        PlainFile::create(&arguments.report)?;
        Ok(Files {
            json: arguments.json.as_deref().map(JsonFile::create).transpose()?,
            csv: arguments.csv.as_deref().map(PlainFile::create).transpose()?,
            trace: arguments.trace.as_deref().map(PlainFile::create).transpose()?,
        })
    }

    /// Writes them.
    ///
    /// # Errors
    /// The disk is full, or a file has become unwritable.
    pub fn write(self, report: &Report) -> Result<(), Failure> {
        let Report { study, panels } = report;
        if let Some(json) = self.json {
            // A study that went on is that of the call that began it, as on the page.
            let prediction_error_median = Errors::of_panels(panels).map(|errors| errors.median);
            let (protocol, version) = (study.protocol.as_str(), study.version.as_str());
            let results = Results { protocol, version, prediction_error_median, panels };
            json.write_of(&study.machine, &study.command, &results)?;
        }
        if let Some(csv) = self.csv {
            csv.write(&table(panels))?;
        }
        if let Some(trace) = self.trace {
            trace.write(&trace_events(panels).to_string())?;
        }
        Ok(())
    }
}

/// The names of the columns (docs/json.md).
const HEAD: &str = "model,compute,network,workers_per_host,local_batch,dilate,workers,method,shards,runs,\
                    samples_per_s,std_samples_per_s,median_samples_per_s,half_width_95_samples_per_s,speedup,\
                    efficiency,iteration_s,compute_s,exposed_communication_s,late_share,processors_waiting,\
                    bytes_per_iteration,messages_per_iteration,plan_hash,best,failures,predicted_samples_per_s,\
                    samples_per_s_low,samples_per_s_high,predicted_iteration_s,\
                    predicted_exposed_communication_s,prediction_error,extrapolated";

/// A line for each method and number of workers, below the names of the columns. Empty where there is no number.
fn table(panels: &[Panel]) -> String {
    let mut out = format!("{HEAD}\n");
    for panel in panels {
        for group in &panel.groups {
            for row in &group.rows {
                let best = group.verdict.is_among_the_best(&row.method);
                // Writing to memory does not fail.
                let _ = writeln!(out, "{}", line(panel, group.workers, row, best));
            }
        }
    }
    out
}

fn line(panel: &Panel, workers: usize, row: &Row, best: bool) -> String {
    let setting = &panel.setting;
    let result = row.result.as_ref();
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let of = |value: fn(&RowResult) -> f64| number(result.map(value));
    let expected = |value: fn(&Predicted) -> f64| number(row.predicted.as_ref().map(value));
    let fields = [
        setting.model.clone(),
        if setting.is_replayed() { "replay".to_owned() } else { "real".to_owned() },
        setting.network.clone().unwrap_or_default(),
        setting.workers_per_host.map(|workers| workers.to_string()).unwrap_or_default(),
        setting.local_batch.to_string(),
        setting.dilate.to_string(),
        workers.to_string(),
        row.method.clone(),
        row.shards.to_string(),
        result.map_or(0, |result| result.samples_per_s.runs).to_string(),
        of(|result| result.samples_per_s.mean),
        number(result.and_then(|result| result.samples_per_s.std)),
        of(|result| result.samples_per_s.median),
        number(result.and_then(|result| result.samples_per_s.half_width_95)),
        number(result.and_then(|result| result.speedup)),
        number(result.and_then(|result| result.efficiency)),
        of(|result| result.iteration_s),
        of(|result| result.compute_s),
        of(|result| result.exposed_communication_s),
        number(result.and_then(|result| result.late_share)),
        number(result.and_then(|result| result.processors_waiting)),
        of(|result| result.bytes_per_iteration),
        of(|result| result.messages_per_iteration),
        result.map(|result| result.plan_hash.clone()).unwrap_or_default(),
        best.to_string(),
        row.failures.join(" | "),
        expected(|predicted| predicted.samples_per_s),
        expected(|predicted| predicted.samples_per_s_low),
        expected(|predicted| predicted.samples_per_s_high),
        expected(|predicted| predicted.iteration_s),
        expected(|predicted| predicted.exposed_communication_s),
        number(row.prediction_error),
        row.predicted.as_ref().map(|predicted| predicted.extrapolated.join(" | ")).unwrap_or_default(),
    ];
    fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",")
}

/// As RFC 4180 has it.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::predicted::samples::predict;
    use super::super::summary::{panels, samples};
    use super::*;

    #[test]
    fn every_column_is_documented_in_its_order() {
        let page = include_str!("../../../../docs/json.md");
        let (_, part) = page.split_once("\n# The lines of `bench --csv`\n").expect("the page has such a part");
        let rows = part.lines().take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| "));
        let names: Vec<&str> = rows.filter_map(|row| row.split(" | ").next()).collect();
        let columns: Vec<&str> = HEAD.split(',').collect();
        assert_eq!(names, [&["column"], &columns[..]].concat());
    }

    #[test]
    fn every_row_has_a_line_with_as_many_fields_as_the_head() {
        let text = table(&panels(&samples::study(), 2));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 + 3 + 4);
        let fields = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == fields), "{text}");
        assert!(
            lines.iter().any(|line| line.starts_with("resnet50,replay,10GbE,4,64,1,8,bytescheduler-ps,8,3,1903.")),
            "{text}"
        );
        let mut panels = panels(&samples::study(), 2);
        predict(&mut panels, 1.25);
        let row = &mut panels[0].groups[0].rows[0];
        let doubts = ["few hosts, like these", "a large batch"].map(str::to_owned).to_vec();
        row.predicted.as_mut().expect("all were predicted").extrapolated = doubts;
        let text = table(&panels);
        let mut lines = text.lines().skip(1);
        assert!(
            lines.next().is_some_and(|line| line.ends_with(",0.25,\"few hosts, like these | a large batch\"")),
            "{text}"
        );
        assert!(lines.all(|line| line.ends_with(",0.25,")), "{text}");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
