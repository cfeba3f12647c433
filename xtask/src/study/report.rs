//! What a part of the study found, as JSON with all that was measured and as a page of tables.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use serde::Serialize;
use serde_json::Value;

use crate::compare::Error;
use crate::compare::circumstances::{Commit, Load, command_line, date};
use crate::compare::report::machine_name;

/// The version of the JSON's form. Raised when a field is renamed or removed, or its meaning or unit changes.
const SCHEMA: u32 = 1;

/// Under which circumstances a part was measured.
#[derive(Serialize)]
pub struct Circumstances {
    schema: u32,
    /// `lossless`, `overlap`, `efficiency`, `ddp`, `crossovers`, `prediction`, `prediction-joined`, `tuning`, `nccl`.
    part: String,
    /// UTC.
    date: String,
    command: Vec<String>,
    commit: Commit,
    /// As `paceline perf` describes it.
    machine: Value,
    /// Who else took part.
    versions: Vec<String>,
    /// Before and after. None where nothing was measured.
    loads: Vec<Load>,
    /// How long it took.
    seconds: f64,
    #[serde(skip)]
    begun: Instant,
}

/// What was found.
pub struct Findings {
    /// The heading of the page.
    pub title: String,
    /// What was done, by which rules.
    pub text: String,
    /// What is demanded, and whether it was found.
    pub targets: Vec<Target>,
    /// For people.
    pub tables: Vec<Table>,
    /// Everything that was measured.
    pub measured: Value,
}

/// Something that is demanded.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Of what.
    pub case: String,
    /// What.
    pub demanded: String,
    /// And what was found.
    pub found: String,
    /// None: it could not be measured, or what was found leaves it open.
    pub met: Option<bool>,
}

/// What was found of a target that could not be measured.
pub const NOT_MEASURED: &str = "not measured";

/// A table for people.
pub struct Table {
    /// Its heading.
    pub title: String,
    /// What stands above it.
    pub text: String,
    /// The heads of its columns.
    pub columns: Vec<String>,
    /// As many fields as columns each.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows.
    pub fn new(title: impl Into<String>, text: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Table { title: title.into(), text: text.into(), columns, rows: Vec::new() }
    }
}

impl Target {
    /// `found` must be at least `least`; a share, or a ratio.
    pub fn at_least(case: impl Into<String>, what: &str, least: f64, found: Option<f64>) -> Target {
        Target::of(case, format!("{what} ≥ {least}"), found, |found| found >= least)
    }

    /// `found` must be at most `most`.
    pub fn at_most(case: impl Into<String>, what: &str, most: f64, found: Option<f64>) -> Target {
        Target::of(case, format!("{what} ≤ {most}"), found, |found| found <= most)
    }

    fn of(case: impl Into<String>, demanded: String, found: Option<f64>, met: impl Fn(f64) -> bool) -> Target {
        let text = found.map_or_else(|| NOT_MEASURED.to_owned(), |found| format!("{found:.3}"));
        Target { case: case.into(), demanded, found: text, met: found.map(met) }
    }
}

impl Circumstances {
    /// Before anything is measured. Says so if somebody else needs the machine.
    pub fn begin(part: &str, machine: Value) -> Circumstances {
        Circumstances { loads: vec![Load::before("before")], ..Circumstances::of_pages(part, machine) }
    }

    /// Where nothing is measured: pages that are kept say under which loads it was.
    pub fn of_pages(part: &str, machine: Value) -> Circumstances {
        Circumstances {
            schema: SCHEMA,
            part: part.to_owned(),
            date: date(SystemTime::now()),
            command: command_line(),
            commit: Commit::here(),
            machine,
            versions: Vec::new(),
            loads: Vec::new(),
            seconds: 0.0,
            begun: Instant::now(),
        }
    }

    /// Somebody else takes part.
    pub fn versions(&mut self, version: String) {
        self.versions.push(version);
    }

    /// Where the reports go if nobody says it.
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join("benches/runs").join(format!("{}-{}", self.date, machine_name(&self.machine)))
    }

    /// Writes `study-PART.json` and `study-PART.md`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(mut self, folder: &Path, findings: &Findings) -> Result<(), Error> {
        if !self.loads.is_empty() {
            self.loads.push(Load::now("after"));
        }
        self.seconds = self.begun.elapsed().as_secs_f64();
        let json = serde_json::json!({
            "circumstances": self, "targets": findings.targets, "measured": findings.measured,
        });
        let json = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())? + "\n";
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (extension, text) in [("json", json), ("md", self.page(findings))] {
            let path = folder.join(format!("study-{}.{extension}", self.part));
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}", path.display());
        }
        for target in &findings.targets {
            println!("{}: {}: {}: {}", target.case, target.demanded, target.found, verdict(target));
        }
        Ok(())
    }

    fn page(&self, findings: &Findings) -> String {
        let mut out = String::new();
        // Writing to memory does not fail.
        let _ = self.write_head(findings, &mut out);
        if !findings.targets.is_empty() {
            let _ = writeln!(out, "## Targets\n\n| case | demanded | found | |\n|---|---|---|---|");
        }
        for target in &findings.targets {
            let Target { case, demanded, found, .. } = target;
            let _ = writeln!(out, "| {case} | {demanded} | {found} | {} |", verdict(target));
        }
        for table in &findings.tables {
            let _ = writeln!(out, "\n## {}\n\n{}\n\n| {} |", table.title, table.text, table.columns.join(" | "));
            let _ = writeln!(out, "|{}", "---|".repeat(table.columns.len()));
            for row in &table.rows {
                let fields: Vec<String> = row.iter().map(|field| field.replace(['|', '\n'], "/")).collect();
                let _ = writeln!(out, "| {} |", fields.join(" | "));
            }
        }
        out
    }

    fn write_head(&self, findings: &Findings, out: &mut String) -> std::fmt::Result {
        let text = |name: &str| self.machine[name].as_str().unwrap_or("unknown").to_owned();
        let changed = if self.commit.changed { " with changes" } else { "" };
        writeln!(out, "# {}\n", findings.title)?;
        writeln!(out, "- machine: {}, {} cores", text("processor"), self.machine["cores"])?;
        let huge = text("shared_huge_pages");
        writeln!(out, "- system: {}, kernel {}, huge pages for shared memory: {huge}", text("system"), text("kernel"))?;
        writeln!(out, "- commit: {}{changed}, {}", self.commit.id, self.date)?;
        writeln!(out, "- command: `{}`, {:.0} s", self.command.join(" "), self.seconds)?;
        if !self.versions.is_empty() {
            writeln!(out, "- with: {}", self.versions.join(", "))?;
        }
        for load in &self.loads {
            writeln!(out, "- load averages {} it: {}", load.when, load.averages)?;
        }
        if self.loads.first().is_some_and(|load| !load.is_quiet()) {
            writeln!(out, "- **the machine was busy with something else when this run began**")?;
        }
        writeln!(out, "\n{}\n", findings.text)
    }
}

fn verdict(target: &Target) -> &'static str {
    match target.met {
        Some(true) => "met",
        Some(false) => "**missed**",
        None if target.found == NOT_MEASURED => "**not measured**",
        None => "**undecided**",
    }
}

/// Milliseconds, for a table.
pub fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

/// The same; a dash if there is no number.
pub fn ms_if_any(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), ms)
}

/// Per cent, for a table; a dash if there is no number.
pub fn percent(share: Option<f64>) -> String {
    share.filter(|share| share.is_finite()).map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_targets_and_tables_and_the_numbers_stand_in_the_json() {
        let mut table = Table::new("Times", "In ms.", &["method", "ms"]);
        table.rows.push(vec!["a|b".into(), ms(0.0125)]);
        let findings = Findings {
            title: "A title".into(),
            text: "A text.".into(),
            targets: vec![
                Target::at_least("one", "share", 0.9, Some(0.95)),
                Target::at_most("two", "ratio", 1.03, Some(1.1)),
                Target::at_least("three", "share", 0.9, None),
                Target { met: None, ..Target::at_least("four", "share", 0.9, Some(0.91)) },
            ],
            tables: vec![table],
            measured: serde_json::json!({"runs": [1, 2]}),
        };
        let folder = std::env::temp_dir().join(format!("paceline-study-report-{}", std::process::id()));
        let machine = serde_json::json!({"processor": "Some CPU", "cores": 2});
        Circumstances::begin("overlap", machine).write(&folder, &findings).expect("it is written");
        let page = fs::read_to_string(folder.join("study-overlap.md")).expect("a page");
        let json: Value = serde_json::from_str(&fs::read_to_string(folder.join("study-overlap.json")).expect("a file"))
            .expect("JSON");
        fs::remove_dir_all(&folder).expect("it is there");
        for line in [
            "| one | share ≥ 0.9 | 0.950 | met |",
            "| two | ratio ≤ 1.03 | 1.100 | **missed** |",
            "| three | share ≥ 0.9 | not measured | **not measured** |",
            "| four | share ≥ 0.9 | 0.910 | **undecided** |",
            "| a/b | 12.5 |",
        ] {
            assert!(page.contains(line), "{page}");
        }
        assert_eq!(json["measured"]["runs"][1], 2);
        assert_eq!(json["targets"][1]["met"], false);
    }
}
