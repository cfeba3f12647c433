//! `cargo xtask publish`: puts the numbers of a kept run into the README, and draws its chart.

use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::chart;
use super::command::Error;
use super::report::{self, Report, ratio, title};
use super::results::{OPENMPI, Verdict};
use super::summary::{Comparison, Mean};
use crate::readme::{Section, failed, run_of};

/// What `publish` is told.
#[derive(Args)]
pub struct Options {
    /// The folder of a run of `cargo xtask compare`, below benches/runs
    run: PathBuf,
}

/// What the folder of the other collectives' run has behind the name of the all-reduces'.
const OTHERS: &str = "-collectives";
const SECTION: Section =
    Section { begin: "<!-- numbers of ", end: "<!-- end of numbers -->\n", none: "<!-- no numbers yet -->\n" };
const CHART: &str = "docs/all-reduce.svg";

/// Rewrites the section and the chart.
pub fn run(options: &Options) -> Result<(), Error> {
    let root = super::root()?;
    let run = run_of(root, &options.run)?;
    let published = Published::of(root, &run)?;
    let readme = SECTION.write(root, &run, &published.section)?;
    let chart = root.join(CHART);
    fs::write(&chart, published.chart).map_err(|error| failed(&chart, &error))?;
    println!("{}\n{}", readme.display(), chart.display());
    Ok(())
}

/// What is published of a run.
struct Published {
    section: String,
    chart: String,
}

impl Published {
    /// Of the run in this folder, relative to the root.
    fn of(root: &Path, run: &str) -> Result<Published, Error> {
        let report = report::read(&root.join(run))?;
        let failed = |error: fmt::Error| Error::from(format!("cannot format the numbers of {run}: {error}"));
        let mut section = String::new();
        write_section(&report, run, &mut section).map_err(failed)?;
        let others = format!("{run}{OTHERS}");
        if root.join(&others).is_dir() {
            write_others(&report::read(&root.join(&others))?, &others, &mut section).map_err(failed)?;
        }
        Ok(Published { section, chart: chart::draw(&report.summary) })
    }
}

fn write_section(report: &Report, run: &str, out: &mut String) -> fmt::Result {
    let Report { results, summary, .. } = report;
    let cores = &results.machine["cores"];
    writeln!(out, "![The rival's time over ours, by size, transport and world]({CHART})\n")?;
    writeln!(
        out,
        "All-reduce of f32, sum, on {cores} cores: the rival's time divided by ours, geometric means; above 1 we are \
         faster. From\n[one interleaved run]({run}/compare.md) of {} rounds, made by\n`{}`.\n\"Best\" is, size by size, \
         the better of Open MPI's own choice and the best algorithm of its `coll_tuned`. Gloo is\nmeasured through \
         torch.distributed, in place, Python's call included. A cell is lost where the difference exceeds the noise.\n",
        results.rounds,
        results.command.join(" ")
    )?;
    if results.rounds < 5 || results.loads.first().is_none_or(|load| !load.is_quiet()) {
        writeln!(
            out,
            "**Preliminary**: too few rounds, or the machine was busy with something else (load averages before the \
             run: {}).\n",
            results.loads.first().map_or("unknown", |load| &load.averages)
        )?;
    }
    writeln!(out, "| | rival | up to 64 KiB | above | all | won | tied | lost |\n|---|---|---|---|---|---|---|---|")?;
    let means = || summary.geometric_means.iter().filter(|mean| mean.setting.collective == "all-reduce");
    for mean in means() {
        let of = |wanted: Verdict| of_mean(report, mean).filter(|one| one.verdict == wanted).count();
        let [small, large, all] = [mean.small, mean.large, mean.all].map(ratio);
        let [won, tied, lost] = [Verdict::Won, Verdict::Tied, Verdict::Lost].map(of);
        let (place, rival) = (place(mean), title(&mean.rival));
        writeln!(out, "| {place} | {rival} | {small} | {large} | {all} | {won} | {tied} | {lost} |")?;
    }
    if means().any(|mean| !mean.unsteady.is_empty()) {
        writeln!(out, "\nA dash: at one of these sizes ours differed from itself by more than a half.")?;
    }
    write_lost(report, out)
}

/// Every lost cell, by world and rival.
fn write_lost(report: &Report, out: &mut String) -> fmt::Result {
    let mut lines = Vec::new();
    for mean in report.summary.geometric_means.iter().filter(|mean| mean.setting.collective == "all-reduce") {
        let lost: Vec<String> = of_mean(report, mean)
            .filter(|one| one.verdict == Verdict::Lost)
            .map(|one| format!("{} ({:.2})", size(one.bytes), one.ratio))
            .collect();
        if !lost.is_empty() {
            lines.push(format!("- {}, {}: {}", place(mean), title(&mean.rival), lost.join(", ")));
        }
    }
    match lines.is_empty() {
        true => writeln!(out, "\nWe lose no cell."),
        false => writeln!(out, "\nWhere we lose:\n\n{}", lines.join("\n")),
    }
}

/// The means of the other collectives against Open MPI as it is by default, and every cell that is lost.
fn write_others(report: &Report, run: &str, out: &mut String) -> fmt::Result {
    let means: Vec<&Mean> = report.summary.geometric_means.iter().filter(|mean| mean.rival == OPENMPI).collect();
    let of_collectives: Vec<&[&Mean]> =
        means.chunk_by(|one, next| one.setting.collective == next.setting.collective).collect();
    let Some(first) = of_collectives.first() else { return Ok(()) };
    let places: Vec<String> = first.iter().map(|mean| place(mean)).collect();
    writeln!(out, "\nOther collectives, over Open MPI's default in the mean ([their run]({run}/compare.md)):\n")?;
    writeln!(out, "| | {} | lost |\n|---|{}---|", places.join(" | "), "---|".repeat(places.len()))?;
    for means in of_collectives {
        let found: Vec<String> = means.iter().map(|mean| ratio(mean.all)).collect();
        let lost: Vec<String> = means
            .iter()
            .flat_map(|mean| of_mean(report, mean).map(move |one| (mean, one)))
            .filter(|(_, one)| one.verdict == Verdict::Lost)
            .map(|(mean, one)| format!("{}, {} ({:.2})", place(mean), size(one.bytes), one.ratio))
            .collect();
        let lost = if lost.is_empty() { "no cell".to_owned() } else { lost.join("; ") };
        writeln!(out, "| {} | {} | {lost} |", means[0].setting.collective, found.join(" | "))?;
    }
    Ok(())
}

fn of_mean<'a>(report: &'a Report, mean: &'a Mean) -> impl Iterator<Item = &'a Comparison> {
    report.summary.comparisons.iter().filter(|one| one.setting == mean.setting && one.rival == mean.rival)
}

fn place(mean: &Mean) -> String {
    let transport = if mean.setting.transport == "shm" { "shared memory" } else { "TCP on loopback" };
    format!("{transport}, {} ranks", mean.setting.ranks)
}

fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::summarize;
    use super::*;
    use crate::readme::README;

    fn root() -> &'static Path {
        super::super::root().expect("the workspace")
    }

    #[test]
    fn the_readme_and_its_chart_are_those_of_the_kept_run() {
        let readme = fs::read_to_string(root().join(README)).expect("a README");
        let (run, section) = SECTION.read(&readme).expect("the README has numbers between its marks");
        let published = Published::of(root(), run).expect("the run is kept");
        let hint = format!("run `cargo xtask publish {run}`");
        assert_eq!(section, published.section, "{hint}");
        let chart = fs::read_to_string(root().join(CHART)).expect("a chart");
        assert!(chart == published.chart, "{CHART} is not that of {run}: {hint}");
    }

    #[test]
    fn what_a_kept_run_says_follows_from_what_it_measured() {
        let readme = fs::read_to_string(root().join(README)).expect("a README");
        let (run, _) = SECTION.read(&readme).expect("the README has numbers between its marks");
        let report = report::read(&root().join(run)).expect("the run is kept");
        let json = |summary| serde_json::to_value(summary).expect("JSON");
        let (kept, derived) = (json(&report.summary), json(&summarize(&report.results)));
        assert_eq!(kept, derived, "the numbers of {run} do not follow from its cells");
    }
}
