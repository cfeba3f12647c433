//! Tasks from a file.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use paceline_predict::graph::{Played, TaskGraph};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report<'a> {
    seconds: f64,
    resources: Vec<Busy<'a>>,
    critical: &'a [String],
    tasks: Vec<Piece<'a>>,
}

#[derive(Serialize)]
struct Busy<'a> {
    resource: &'a str,
    busy_s: f64,
}

#[derive(Serialize)]
struct Piece<'a> {
    name: &'a str,
    resource: &'a str,
    start_s: f64,
    end_s: f64,
}

/// Plays a graph.
///
/// # Errors
/// The file cannot be read, or makes no sense.
pub fn run(path: &Path, json: Option<JsonFile>, trace: Option<PlainFile>) -> Result<ExitCode, Failure> {
    let text = super::read(path, "graph")?;
    let usage = |reason: &dyn std::fmt::Display| Failure::usage(format!("{}: {reason}", path.display()));
    let graph: TaskGraph = serde_json::from_str(&text)
        .map_err(|error| usage(&error).help("docs/json.md says what a file of tasks looks like"))?;
    let played = graph.play().map_err(|error| usage(&error))?;
    let resources = played.busy_s.iter().map(|(resource, &busy_s)| Busy { resource, busy_s });
    let tasks = graph.tasks.iter().zip(&played.times_s).map(|(task, &(start_s, end_s))| Piece {
        name: &task.name,
        resource: &task.resource,
        start_s,
        end_s,
    });
    let report = Report {
        seconds: played.seconds,
        resources: resources.collect(),
        critical: &played.critical,
        tasks: tasks.collect(),
    };
    if let Some(trace) = trace {
        trace.write(&trace_events(&report).to_string())?;
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(show(&report, &played, &mut io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

fn show(report: &Report<'_>, played: &Played, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} tasks take {:.6} s", report.tasks.len(), played.seconds)?;
    for Busy { resource, busy_s } in &report.resources {
        let share = if played.seconds > 0.0 { 100.0 * busy_s / played.seconds } else { 0.0 };
        writeln!(out, "  {resource:<20} busy {busy_s:.6} s, {share:.0} %")?;
    }
    writeln!(out, "each of these waited for the one before: {}", report.critical.join(", "))
}

/// A thread for each resource.
fn trace_events(report: &Report<'_>) -> Value {
    let thread = |resource: &str| report.resources.iter().position(|busy| busy.resource == resource).unwrap_or(0);
    let names = report.resources.iter().map(|busy| {
        let (tid, name) = (thread(busy.resource), busy.resource);
        json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}})
    });
    let spans = report.tasks.iter().map(|task| {
        let (ts, dur) = (1e6 * task.start_s, 1e6 * (task.end_s - task.start_s));
        json!({"ph": "X", "name": task.name, "pid": 0, "tid": thread(task.resource), "ts": ts, "dur": dur})
    });
    json!({"traceEvents": names.chain(spans).collect::<Vec<_>>(), "displayTimeUnit": "ms"})
}
