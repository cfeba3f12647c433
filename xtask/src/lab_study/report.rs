//! `lab.json` and `lab.md`.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::compare::Error;
use crate::compare::circumstances::{Commit, Load};
use crate::compare::statistics::{median, spread};

/// Everything about one study.
#[derive(Serialize)]
pub struct Study {
    /// The version of this file's form.
    pub schema: u32,
    /// The day, UTC.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    pub commit: Commit,
    /// The machine, as `paceline perf` describes it.
    pub machine: Value,
    pub loads: Vec<Load>,
    /// What `tc` was told for every NIC, in both directions.
    pub shaper: String,
    pub bits_per_s: f64,
    /// How often everything was measured.
    pub rounds: usize,
    pub rows: Vec<Row>,
}

/// What is demanded of one number, and what came of it.
#[derive(Serialize)]
pub struct Row {
    pub case: String,
    /// Behind `cargo xtask lab --hosts … -- paceline`.
    pub command: Vec<String>,
    pub hosts: usize,
    /// Of the all-reduce, where its time is what counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// What its bytes take at the full rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_us: Option<f64>,
    pub demanded: Bound,
    /// Round by round.
    pub values: Vec<f64>,
    /// What `perf` said, round by round.
    pub measurements: Vec<Value>,
}

/// On which side of what the median must lie.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Writes both files.
pub fn write(folder: &Path, study: &Study) -> Result<(), Error> {
    let mut markdown = String::new();
    study.write_markdown(&mut markdown).map_err(|error| format!("cannot format the report: {error}"))?;
    let json = serde_json::to_string_pretty(&study.json()).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, text) in [("lab.json", json + "\n"), ("lab.md", markdown)] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

impl Study {
    /// All of it, each row with its median and what became of the demand.
    fn json(&self) -> Value {
        let mut json = json!(self);
        if let Some(rows) = json["rows"].as_array_mut() {
            for (value, row) in rows.iter_mut().zip(&self.rows) {
                value["median"] = json!(row.median());
                value["met"] = json!(row.met());
            }
        }
        json
    }

    fn write_markdown(&self, out: &mut String) -> fmt::Result {
        let Study { date, command, commit, machine, loads, shaper, rounds, rows, .. } = self;
        let changed = if commit.changed { " with changes" } else { "" };
        writeln!(out, "# All-reduce in the lab\n")?;
        let processor = machine["processor"].as_str().unwrap_or("unknown");
        writeln!(out, "- machine: {processor}, {} cores, which all hosts share", machine["cores"])?;
        writeln!(out, "- every NIC, in both directions: `tc qdisc {shaper}`")?;
        writeln!(out, "- commit: {}{changed}, {date}", commit.id)?;
        writeln!(out, "- command: `{}` ({rounds} rounds)", command.join(" "))?;
        for load in loads {
            writeln!(out, "- load averages {}: {}", load.when, load.averages)?;
        }
        if loads.first().is_some_and(|load| !load.is_quiet()) {
            writeln!(out, "- **the machine was busy with something else when this run began**")?;
        }
        writeln!(
            out,
            "\nf32, sum, a rank on each host. Medians over the rounds; the floor is 2(n−1)/n · bytes / rate.\n"
        )?;
        writeln!(out, "| hosts | case | floor | measured | spread | demanded | |\n|---|---|---|---|---|---|---|")?;
        for row in rows {
            let Row { hosts, case, demanded, values, .. } = row;
            let floor = row.floor_us.map_or("–".to_owned(), |floor| format!("{:.1} ms", floor / 1e3));
            let met = if row.met() { "met" } else { "**missed**" };
            let measured = row.measured();
            writeln!(
                out,
                "| {hosts} | {case} | {floor} | {measured} | ±{:.1} % | {demanded} | {met} |",
                (spread(values) - 1.0) * 100.0
            )?;
        }
        writeln!(out, "\n| case | round by round |\n|---|---|")?;
        for row in rows {
            let values: Vec<_> = row.values.iter().map(|value| format!("{value:.3}")).collect();
            writeln!(out, "| {} | {} |", row.case, values.join(", "))?;
        }
        Ok(())
    }
}

impl Row {
    fn median(&self) -> f64 {
        median(&self.values)
    }

    fn met(&self) -> bool {
        match self.demanded {
            Bound::AtLeast(least) => self.median() >= least,
            Bound::AtMost(most) => self.median() <= most,
        }
    }

    /// The median, with what it is a ratio of.
    fn measured(&self) -> String {
        let of = |name: &str| -> Option<f64> {
            let values: Option<Vec<f64>> = self.measurements.iter().map(|value| value[name].as_f64()).collect();
            values.filter(|values| !values.is_empty()).map(|values| median(&values))
        };
        let value = self.median();
        if let Some(time) = of("p50_us") {
            let mut algorithms: Vec<_> =
                self.measurements.iter().filter_map(|value| value["algorithm"].as_str()).collect();
            algorithms.dedup();
            return format!("{:.1} % ({:.1} ms, {})", value * 100.0, time / 1e3, algorithms.join(" / "));
        }
        match (of("processor_ratio"), of("alone_p50_us"), of("beside_p50_us")) {
            (Some(processor), ..) => format!("{value:.3} (in processor time {processor:.3})"),
            (_, Some(alone), Some(beside)) => format!("{value:.2} ({:.1} ms, {:.1} ms)", alone / 1e3, beside / 1e3),
            _ => format!("{value:.2}"),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "≥ {:.0} %", least * 100.0),
            Bound::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(demanded: Bound, values: &[f64], measurement: Value) -> Row {
        Row {
            case: "a case".into(),
            command: Vec::new(),
            hosts: 4,
            bytes: None,
            floor_us: None,
            demanded,
            values: values.to_vec(),
            measurements: vec![measurement],
        }
    }

    #[test]
    fn the_median_decides() {
        let met = |demanded, values: &[f64]| row(demanded, values, Value::Null).met();
        assert!(met(Bound::AtLeast(0.93), &[0.5, 0.95, 0.94]) && !met(Bound::AtLeast(0.93), &[0.95, 0.92, 0.91]));
        assert!(met(Bound::AtMost(2.5), &[9.0, 2.4, 2.5]) && !met(Bound::AtMost(2.5), &[2.0, 2.6, 2.7]));
        assert!(!met(Bound::AtMost(2.5), &[]), "nothing measured is nothing met");
    }

    #[test]
    fn a_row_says_what_its_number_is_made_of() {
        let large = json!({"p50_us": 131_800.0, "algorithm": "ring"});
        assert_eq!(row(Bound::AtLeast(0.9), &[0.955], large).measured(), "95.5 % (131.8 ms, ring)");
        let urgent = json!({"alone_p50_us": 11_400.0, "beside_p50_us": 57_000.0});
        assert_eq!(row(Bound::AtMost(2.5), &[5.0], urgent).measured(), "5.00 (11.4 ms, 57.0 ms)");
        let computation = json!({"processor_ratio": 1.01, "alone_p50_us": 2.0, "beside_p50_us": 2.0});
        assert_eq!(row(Bound::AtMost(1.05), &[1.2], computation).measured(), "1.200 (in processor time 1.010)");
    }
}
