//! `docs/scheduling.md` has every schedule and every preset, and its numbers are those of the code.

use std::time::Duration;

use paceline_schedule::{ELEMENT_BYTES, Schedulers, Workload};
use paceline_strategy::{Aspect, Method, Registry};

const PAGE: &str = include_str!("../../../docs/scheduling.md");
const RESNET50: &str = include_str!("../../../data/resnet50_tensors.csv");

/// The rows of the table under a heading, cell by cell, without the marks of code.
fn table(heading: &str) -> Vec<Vec<String>> {
    let chapter = PAGE.split("\n## ").find(|chapter| chapter.starts_with(heading)).expect("the heading");
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = |row: &str| row.split(" | ").map(|cell| cell.replace('`', "")).collect();
    rows.skip(1).map(cells).collect()
}

/// Each schedule has a row and a paragraph, and the row's arch is what the rules allow.
#[test]
fn every_schedule_is_described() {
    let rows = table("Schedules");
    let schedulers = Schedulers::built_in();
    let documented: Vec<&str> = rows.iter().map(|row| &*row[0]).collect();
    assert_eq!(documented, schedulers.names().collect::<Vec<_>>());
    let available: Vec<&str> =
        Registry::built_in().methods(Aspect::Schedule).filter(|method| method.available).map(|m| m.name).collect();
    assert_eq!(documented, available, "the grammar has what can be planned");
    for row in &rows {
        let allowed = |arch: &str| {
            let argument = if row[0] == "fusion" { ":1MiB" } else { "" };
            Registry::built_in().parse(&format!("schedule={}{argument},arch={arch}", row[0])).is_ok()
        };
        let arch = match (allowed("a2a"), allowed("ps")) {
            (true, true) => "both",
            (true, false) => "a2a",
            (false, true) => "ps",
            (false, false) => "none",
        };
        assert_eq!(row[1], arch, "{}", row[0]);
        let form = Registry::built_in().method(Aspect::Schedule, &row[0]).expect("a method").form();
        assert!(PAGE.contains(&format!("- **{form}**: ")), "no paragraph for {form}");
    }
}

#[test]
fn every_preset_is_written_out() {
    let registry = Registry::built_in();
    let presets = registry.presets().iter().filter_map(|preset| {
        let strategy = registry.parse(preset.name).ok()?;
        Some(vec![preset.name.to_owned(), strategy.to_string()])
    });
    assert_eq!(table("Presets"), presets.collect::<Vec<_>>());
    for form in registry.short_forms().map(Method::form) {
        assert!(PAGE.contains(&format!("`{form}` stands for `schedule={form}`")), "no short form {form}");
    }
}

#[test]
fn the_start_up_of_the_study_is_that_of_the_grammar() {
    let strategy = Registry::built_in().parse("study-wfbp-a2a").expect("a preset");
    let rows = table("Start-up");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let workers: usize = row[0].parse().expect("workers");
        let micros: u64 = row[1].strip_suffix("us").and_then(|micros| micros.parse().ok()).expect("a time");
        assert_eq!(strategy.start_up(workers), Duration::from_micros(micros));
    }
}

#[test]
fn the_example_is_what_the_planner_makes() {
    let field = |line: &str| line.split(',').nth(2).and_then(|field| field.parse().ok());
    let sizes: Vec<usize> = RESNET50.lines().skip(1).map(|line| field(line).expect("elements")).collect();
    let elements: usize = sizes.iter().sum();
    let mut ready_s = vec![0.0; sizes.len()];
    let mut now = 0.0;
    for tensor in (0..sizes.len()).rev() {
        now += 0.160 * sizes[tensor] as f64 / elements as f64;
        ready_s[tensor] = now;
    }
    let cost = |bytes: u64| 0.46e-3 + 0.9e-9 * bytes as f64;
    let workload = Workload { ready_s: Some(ready_s), ..Workload::of_sizes(&sizes) };
    let workload = workload.with_communication(&cost).with_world(32, 8);
    let schedulers = Schedulers::built_in();
    let made = |preset: &str| {
        let strategy = schedulers.grammar().parse(preset).expect("a preset");
        let plan = schedulers.plan(&strategy, &workload).expect("a plan");
        let largest = plan.partitions().map(|(_, part)| part.elements.len() as u64 * ELEMENT_BYTES).max();
        [plan.buckets.len() as u64, plan.operations() as u64, largest.unwrap_or(0)].map(|number| number.to_string())
    };
    let rows = table("One model");
    let written: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.replace(',', "")).collect()).collect();
    let expected = rows.iter().map(|row| [vec![row[0].clone()], made(&row[0]).to_vec()].concat());
    assert_eq!(written, expected.collect::<Vec<_>>(), "left: the page; right: the plans");
    assert_eq!(written.len(), 9);
}
