//! `cargo xtask publish-study`: puts the numbers of a kept study into the README, and its chart beside the documents.

use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use paceline_cli::{StudyLoad, busy_processors, shell_command_line};
use serde_json::Value;

use crate::compare::{self, Error};
use crate::readme::{Section, failed, run_of};

/// What `publish-study` is told.
#[derive(Args)]
pub struct Options {
    /// A folder below benches/runs with study.json (`bench --json`), study.html (`--report`) and study.svg (`report --svg`)
    run: PathBuf,
}

const SECTION: Section =
    Section { begin: "<!-- study of ", end: "<!-- end of study -->\n", none: "<!-- no study is kept yet -->\n" };
/// Which the README shows first of all.
const CHART: &str = "docs/study.svg";

/// Rewrites the section, and copies the chart.
pub fn run(options: &Options) -> Result<(), Error> {
    let root = compare::root()?;
    let run = run_of(root, &options.run)?;
    let readme = SECTION.write(root, &run, &section(root, &run)?)?;
    let (from, to) = (root.join(&run).join("study.svg"), root.join(CHART));
    fs::copy(&from, &to).map_err(|error| failed(&from, &error))?;
    println!("{}\n{}", readme.display(), to.display());
    Ok(())
}

/// What the README says of the run in this folder, relative to the root.
fn section(root: &Path, run: &str) -> Result<String, Error> {
    let path = root.join(run).join("study.json");
    let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
    let study: Value = serde_json::from_str(&text).map_err(|error| failed(&path, &error))?;
    let mut out = String::new();
    write_section(&study, run, &mut out).map_err(|error| failed(&path, &error))?;
    Ok(out)
}

fn write_section(study: &Value, run: &str, out: &mut String) -> fmt::Result {
    let machine = &study["machine"];
    let words: Vec<String> = list(&study["command"]).iter().map(text).collect();
    writeln!(
        out,
        "Samples/s of all workers together, on {} cores ({}); {}{}. From [one run]({run}/study.html), made by\n`{}`.\n",
        machine["cores"],
        text(&machine["processor"]),
        text(&study["protocol"]),
        busy_when_it_began(study),
        shell_command_line(&words)
    )?;
    writeln!(out, "| | workers | fastest | samples/s | speedup | |\n|---|---|---|---|---|---|")?;
    for panel in list(&study["panels"]) {
        let mut labels: Vec<String> = list(&panel["labels"]).iter().map(text).collect();
        if labels.is_empty() {
            labels.push("computed here".to_owned());
        }
        let setting = &panel["setting"];
        let place = format!("{}, local batch {}", text(&setting["model"]), setting["local_batch"]);
        for group in list(&panel["groups"]) {
            let rows = list(&group["rows"]).iter();
            let measured: Vec<(&Value, f64)> = rows.filter_map(|row| Some((row, throughput(row)?))).collect();
            if measured.is_empty() {
                continue;
            }
            let [method, mean, speedup] = fastest(&measured).unwrap_or_default();
            let workers = &group["workers"];
            let (method, verdict) =
                if *workers == 1 { alone(&method) } else { (method, verdict(&group["verdict"], &measured)) };
            let labels = [labels.clone(), list(&group["labels"]).iter().map(text).collect()].concat().join(", ");
            writeln!(out, "| {place} ({labels}) | {workers} | {method} | {mean} | {speedup} | {verdict} |")?;
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What else the machine had to do, if that was much. Only before the first run: later on the study itself keeps it busy.
fn busy_when_it_began(study: &Value) -> String {
    let groups = list(&study["panels"]).iter().flat_map(|panel| list(&panel["groups"]));
    let runs = groups.flat_map(|group| list(&group["rows"])).flat_map(|row| list(&row["occasions"]));
    let load = StudyLoad::of(runs.map(|run| (run["ended"].as_u64().unwrap_or_default(), run["load"].as_f64())));
    let busy = load.filter(StudyLoad::began_busy);
    busy.map_or_else(String::new, |load| {
        format!("; when it began, the machine was busy with something else (load average {:.2})", load.before)
    })
}

/// What stands in the place of winner and verdict where there is one worker: no method has anything to send to another one.
fn alone(method: &str) -> (String, String) {
    let of = if method.is_empty() { String::new() } else { format!("; the numbers are those of {method}") };
    ("–".to_owned(), format!("not compared: there is no other worker to communicate with{of}"))
}

/// Samples per second.
fn throughput(row: &Value) -> Option<f64> {
    row["result"]["samples_per_s"]["mean"].as_f64()
}

/// Method, samples per second and speedup of the fastest row; None if the processors, and not the links, have limited
/// them all.
fn fastest(measured: &[(&Value, f64)]) -> Option<[String; 3]> {
    let is_limited = |row: &Value| {
        let result = &row["result"];
        let exposed_share = result["exposed_share"].as_f64().unwrap_or_default();
        busy_processors(result["processors_waiting"].as_f64(), exposed_share).is_some()
    };
    let compared = measured.iter().filter(|(row, _)| !is_limited(row));
    let (row, mean) = compared.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let std = row["result"]["samples_per_s"]["std"].as_f64().map(|std| format!(" ± {std:.1}")).unwrap_or_default();
    let speedup = row["result"]["speedup"].as_f64().map(|speedup| format!("{speedup:.2}×")).unwrap_or_default();
    Some([row["method"].as_str().unwrap_or_default().to_owned(), format!("{mean:.1}{std}"), speedup])
}

fn verdict(verdict: &Value, measured: &[(&Value, f64)]) -> String {
    match verdict["verdict"].as_str() {
        Some("winner") => format!(
            "wins, {:.1} % ahead of {}",
            100.0 * verdict["margin"].as_f64().unwrap_or_default(),
            verdict["runner_up"].as_str().unwrap_or_default()
        ),
        Some("tie") => {
            let tied = list(&verdict["methods"]);
            format!(
                "tie of {}: they differ by less than the same method from itself, or than their runs leave open{}",
                tied.len(),
                behind(tied, measured)
            )
        }
        _ => format!("undecided: {}", verdict["why"].as_str().unwrap_or("not said")),
    }
}

/// The methods that are slower than those of a tie, from the next one on.
fn behind(tied: &[Value], measured: &[(&Value, f64)]) -> String {
    let is_tied = |row: &Value| tied.contains(&row["method"]);
    let fastest = measured.iter().filter(|(row, _)| is_tied(row)).map(|(_, mean)| *mean).fold(0.0, f64::max);
    let mut others: Vec<&(&Value, f64)> = measured.iter().filter(|(row, _)| !is_tied(row)).collect();
    others.sort_by(|one, other| other.1.total_cmp(&one.1));
    let by =
        |(row, mean): &&(&Value, f64)| format!("{} by {:.0} %", text(&row["method"]), 100.0 * (1.0 - mean / fastest));
    let others: Vec<String> = others.iter().map(by).collect();
    if others.is_empty() { String::new() } else { format!("; slower: {}", others.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readme::README;

    #[test]
    fn a_row_says_what_its_workers_shared_and_how_it_was_decided() {
        let result = |mean: f64| serde_json::json!({"samples_per_s": {"mean": mean, "std": 1.5}, "speedup": 2.0});
        let rows = [
            serde_json::json!({"method": "ddp", "result": result(100.0)}),
            serde_json::json!({"method": "bsp-ps", "result": result(99.0)}),
            serde_json::json!({"method": "bsp-a2a", "result": result(72.0)}),
            serde_json::json!({"method": "wfbp-ps", "result": result(90.0)}),
        ];
        let group = |workers: usize, labels: &[&str], verdict: Value| serde_json::json!({"workers": workers, "labels": labels, "rows": rows, "verdict": verdict});
        let study = serde_json::json!({
            "command": ["paceline", "bench", "--methods", "ddp;bsp-ps"], "machine": {"cores": 2}, "protocol": "3 runs",
            "panels": [{"labels": [], "setting": {"model": "cnn", "local_batch": 32}, "groups": [
                group(2, &[], serde_json::json!({"verdict": "tie", "methods": ["ddp", "bsp-ps"]})),
                group(4, &["4 workers on 2 cores"], serde_json::json!({"verdict": "undecided", "why": "no noise"})),
            ]}],
        });
        let mut out = String::new();
        write_section(&study, "runs/one", &mut out).expect("it can be written");
        assert!(out.contains("`paceline bench --methods 'ddp;bsp-ps'`"), "{out}");
        let tie = "tie of 2: they differ by less than the same method from itself, or than their runs leave open; slower: \
                   wfbp-ps by 10 %, bsp-a2a by 28 %";
        assert!(
            out.contains(&format!("| cnn, local batch 32 (computed here) | 2 | ddp | 100.0 ± 1.5 | 2.00× | {tie} |")),
            "{out}"
        );
        assert!(out.contains("| cnn, local batch 32 (computed here, 4 workers on 2 cores) | 4 |"), "{out}");
        assert!(out.contains("| undecided: no noise |"), "{out}");
    }

    /// The load before the first run is somebody else's; that of the others is the study's own, too.
    #[test]
    fn a_busy_machine_is_told_and_one_worker_is_not_compared() {
        let of = |before: f64| {
            let occasions = serde_json::json!([{"ended": 20, "load": 9.0}, {"ended": 10, "load": before}]);
            let result = serde_json::json!({"samples_per_s": {"mean": 100.0, "std": 1.5}, "speedup": 1.0});
            let row = serde_json::json!({"method": "ddp", "result": result, "occasions": occasions});
            let verdict = serde_json::json!({"verdict": "winner", "margin": 0.5, "runner_up": "bsp-ps"});
            let group = serde_json::json!({"workers": 1, "labels": [], "rows": [row], "verdict": verdict});
            let setting = serde_json::json!({"model": "cnn", "local_batch": 32});
            let panels = serde_json::json!([{"labels": [], "setting": setting, "groups": [group]}]);
            let mut out = String::new();
            let study = serde_json::json!({"protocol": "3 runs", "panels": panels});
            write_section(&study, "runs/one", &mut out).expect("it can be written");
            out
        };
        let (quiet, busy) = (of(0.2), of(7.92));
        assert!(quiet.contains("; 3 runs. From [one run]"), "{quiet}");
        let words = "; 3 runs; when it began, the machine was busy with something else (load average 7.92). From";
        assert!(busy.contains(words), "{busy}");
        let why = "not compared: there is no other worker to communicate with; the numbers are those of ddp";
        assert!(busy.contains(&format!("| 1 | – | 100.0 ± 1.5 | 1.00× | {why} |")), "{busy}");
    }

    #[test]
    fn what_processors_have_limited_is_not_the_fastest() {
        let row = |method: &str, mean: f64, waiting: f64, exposed_share: f64| {
            let samples_per_s = serde_json::json!({"mean": mean, "std": null});
            let result = serde_json::json!({"samples_per_s": samples_per_s, "speedup": null,
                "processors_waiting": waiting, "exposed_share": exposed_share});
            serde_json::json!({"method": method, "result": result})
        };
        let of = |rows: &[Value]| {
            let group = serde_json::json!({"workers": 8, "labels": [], "rows": rows,
                "verdict": {"verdict": "undecided", "why": "the processors"}});
            let setting = serde_json::json!({"model": "cnn", "local_batch": 32});
            let study = serde_json::json!({"panels": [{"labels": [], "setting": setting, "groups": [group]}]});
            let mut out = String::new();
            write_section(&study, "runs/one", &mut out).expect("it can be written");
            out
        };
        let (limited, slower) = (row("ddp", 200.0, 0.97, 0.5), row("bsp-ps", 100.0, 0.97, 0.01));
        let out = of(&[limited.clone(), slower]);
        assert!(out.contains("| 8 | bsp-ps | 100.0 |  | undecided: the processors |"), "{out}");
        let out = of(&[limited]);
        assert!(out.contains("| 8 |  |  |  | undecided: the processors |"), "{out}");
    }

    #[test]
    fn the_readme_says_what_the_kept_study_says() {
        let root = compare::root().expect("the workspace");
        let readme = fs::read_to_string(root.join(README)).expect("a README");
        assert!(readme.contains(&format!("]({CHART})")), "the README does not show {CHART}");
        let Some((run, said)) = SECTION.read(&readme) else {
            assert!(
                readme.contains(SECTION.none),
                "the README has neither a study between its marks nor a place for one"
            );
            return;
        };
        assert_eq!(said, section(root, run).expect("the run is kept"), "run `cargo xtask publish-study {run}`");
    }
}
