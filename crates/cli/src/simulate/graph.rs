//! Tasks from a file.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use paceline_predict::graph::{Played, TaskGraph, Work};
use paceline_train::read_json;
use serde::Serialize;
use serde_json::{Value, json};

use super::timeline::in_tracks;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report<'a> {
    seconds: f64,
    resources: Vec<Busy<'a>>,
    links: Vec<Link<'a>>,
    critical: &'a [String],
    tasks: Vec<Piece<'a>>,
}

#[derive(Serialize)]
struct Busy<'a> {
    resource: &'a str,
    busy_s: f64,
}

#[derive(Serialize)]
struct Link<'a> {
    link: &'a str,
    bytes: f64,
    busy_s: f64,
}

/// A task.
#[derive(Serialize)]
struct Piece<'a> {
    name: &'a str,
    /// None: it is a transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a [String]>,
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
    let graph: TaskGraph = read_json(text.as_bytes())
        .map_err(|error| usage(&error).help("docs/json.md says what a file of tasks looks like"))?;
    let played = graph.play().map_err(|error| usage(&error))?;
    let resources = played.busy_s.iter().map(|(resource, &busy_s)| Busy { resource, busy_s });
    let links = played.links.iter().map(|(link, carried)| Link { link, bytes: carried.bytes, busy_s: carried.busy_s });
    let tasks = graph.tasks.iter().zip(&played.times_s).map(|(task, &(start_s, end_s))| {
        let (resource, route) = match &task.work {
            Work::OnResource { resource, .. } => (Some(resource.as_str()), None),
            Work::Transfer { route, .. } => (None, Some(route.as_slice())),
        };
        Piece { name: &task.name, resource, route, start_s, end_s }
    });
    let report = Report {
        seconds: played.seconds,
        resources: resources.collect(),
        links: links.collect(),
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
    let share = |busy_s: f64| if played.seconds > 0.0 { 100.0 * busy_s / played.seconds } else { 0.0 };
    for &Busy { resource, busy_s } in &report.resources {
        writeln!(out, "  {resource:<20} busy {busy_s:.6} s, {:.0} %", share(busy_s))?;
    }
    for &Link { link, bytes, busy_s } in &report.links {
        writeln!(out, "  {link:<20} busy {busy_s:.6} s, {:.0} %, with {bytes} bytes", share(busy_s))?;
    }
    writeln!(out, "each of these waited for the one before: {}", report.critical.join(", "))
}

fn trace_events(report: &Report<'_>) -> Value {
    let (threads, count) = threads(report);
    let names = (0..count).map(|tid| {
        let name = report.resources.get(tid).map_or("transfers", |busy| busy.resource);
        json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}})
    });
    let spans = report.tasks.iter().zip(threads).map(|(task, tid)| {
        let (ts, dur) = (1e6 * task.start_s, 1e6 * (task.end_s - task.start_s));
        json!({"ph": "X", "name": task.name, "pid": 0, "tid": tid, "ts": ts, "dur": dur})
    });
    json!({"traceEvents": names.chain(spans).collect::<Vec<_>>(), "displayTimeUnit": "ms"})
}

/// By task its thread, and how many there are: one for each resource, then as many as transfers are under way at once, as
/// spans of one thread must not overlap.
fn threads(report: &Report<'_>) -> (Vec<usize>, usize) {
    let of_resource = |name: &str| report.resources.iter().position(|busy| busy.resource == name).unwrap_or(0);
    let mut threads: Vec<usize> = report.tasks.iter().map(|task| task.resource.map_or(0, of_resource)).collect();
    let transfers = (0..threads.len()).filter(|&task| report.tasks[task].resource.is_none());
    let tracks = in_tracks(transfers, |&task| [report.tasks[task].start_s, report.tasks[task].end_s]);
    for (track, transfers) in tracks.iter().enumerate() {
        transfers.iter().for_each(|&task| threads[task] = report.resources.len() + track);
    }
    (threads, report.resources.len() + tracks.len())
}
