//! `compare.json` and `compare.md`.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command::{Error, Setting};
use super::profile::Profile;
use super::results::{Cell, GLOO, OPENMPI_BEST, OPENMPI_TUNED, OURS, OURS_ALLOC, Results, Verdict};
use super::summary::{Comparison, RIVALS, Summary};

/// What stands in `compare.json`.
#[derive(Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub results: Results,
    #[serde(flatten)]
    pub summary: Summary,
    pub profiles: Vec<Profile>,
}

/// Writes both files.
pub fn write(folder: &Path, report: &Report) -> Result<(), Error> {
    let mut markdown = String::new();
    write_markdown(report, &mut markdown).map_err(|error| format!("cannot format the report: {error}"))?;
    let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, text) in [("compare.json", json + "\n"), ("compare.md", markdown)] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Reads `compare.json` again.
pub fn read(folder: &Path) -> Result<Report, Error> {
    let path = folder.join("compare.json");
    let failed = |error: &dyn fmt::Display| Error::from(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

/// A name for a folder: processor and cores.
pub fn machine_name(machine: &Value) -> String {
    let processor = machine["processor"].as_str().unwrap_or("unknown").to_lowercase();
    let plain = processor.replace("(r)", "").replace("(tm)", "").replace("processor", "").replace("cpu", "");
    let words = plain.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("{}-{}-cores", words.collect::<Vec<_>>().join("-"), machine["cores"])
}

fn write_markdown(report: &Report, out: &mut String) -> fmt::Result {
    let Report { results, summary, profiles } = report;
    write_head(results, out)?;
    write_targets(summary, out)?;
    write_means(summary, out)?;
    write_lost(summary, out)?;
    for setting in results.settings() {
        write_setting(results, summary, setting, out)?;
    }
    write_bounds(summary, out)?;
    write_circumstances(results, out)?;
    write_profiles(profiles, out)
}

fn write_head(results: &Results, out: &mut String) -> fmt::Result {
    let text = |name: &str| results.machine[name].as_str().unwrap_or("unknown").to_owned();
    let memory_gib = results.machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
    let rivals = if results.versions.is_empty() { "nobody".to_owned() } else { results.versions.join(", ") };
    let changed = if results.commit.changed { " with changes" } else { "" };
    writeln!(out, "# Collectives: Paceline and others\n")?;
    writeln!(out, "- machine: {}, {} cores, {memory_gib:.0} GiB", text("processor"), results.machine["cores"])?;
    writeln!(out, "- system: {}, kernel {}, {}", text("system"), text("kernel"), text("architecture"))?;
    writeln!(out, "- rivals: {rivals}")?;
    writeln!(out, "- commit: {}{changed}, {}", results.commit.id, results.date)?;
    writeln!(out, "- command: `{}` ({} rounds)", results.command.join(" "), results.rounds)?;
    if results.loads.first().is_some_and(|load| !load.is_quiet()) {
        writeln!(out, "- **the machine was busy with something else when this run began: see its load averages**")?;
    }
    writeln!(
        out,
        "\nf32, sum; out of place (Gloo: in place, through torch.distributed, Python's call included); a barrier before \
         each call; a call takes as long as its slowest rank; every element of the first and of the last call checked. \
         Contestants take turns size by size; ours is measured before and after each rival. Times are medians over the \
         rounds of the median over the calls, in microseconds. A ratio is the median over the rounds of the rival's \
         time over the geometric mean of ours before and after it: above 1 we are faster. A difference within the noise \
         is tied. `openmpi` chooses its algorithm itself; `openmpi-best` is, size by size, the better of that and of the \
         best of `coll_tuned` over ob1. docs/benchmarking.md has the rules.\n"
    )
}

fn write_targets(summary: &Summary, out: &mut String) -> fmt::Result {
    writeln!(out, "## Targets\n\n| case | demanded | measured | |\n|---|---|---|---|")?;
    for target in &summary.targets {
        let met = if target.met { "met" } else { "**missed**" };
        writeln!(out, "| {} | {} | {} | {met} |", target.case, target.demanded, target.measured)?;
    }
    writeln!(out)
}

fn write_means(summary: &Summary, out: &mut String) -> fmt::Result {
    writeln!(out, "## Geometric means of the ratios\n")?;
    writeln!(out, "| collective | transport | ranks | rival | up to 64 KiB | above | all | won | tied | lost |")?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for mean in &summary.geometric_means {
        let [small, large, all] = [mean.small, mean.large, mean.all].map(ratio);
        let Setting { collective, transport, ranks } = &mean.setting;
        let rows = summary.comparisons.iter().filter(|one| one.setting == mean.setting && one.rival == mean.rival);
        let verdicts: Vec<Verdict> = rows.map(|row| row.verdict).collect();
        let [won, tied, lost] = [Verdict::Won, Verdict::Tied, Verdict::Lost]
            .map(|wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count());
        writeln!(
            out,
            "| {collective} | {transport} | {ranks} | {} | {small} | {large} | {all} | {won} | {tied} | {lost} |",
            mean.rival
        )?;
    }
    if summary.geometric_means.iter().any(|mean| !mean.unsteady.is_empty()) {
        writeln!(out, "\nNo mean (–) is quoted over sizes at which ours differed from itself by more than a half.")?;
    }
    writeln!(out)
}

/// A mean, or a dash.
pub fn ratio(mean: Option<f64>) -> String {
    mean.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}"))
}

fn write_lost(summary: &Summary, out: &mut String) -> fmt::Result {
    let lost: Vec<&Comparison> = summary.comparisons.iter().filter(|one| one.verdict == Verdict::Lost).collect();
    writeln!(out, "## Where we lose: {} of {} cells\n", lost.len(), summary.comparisons.len())?;
    if !lost.is_empty() {
        writeln!(out, "| case | bytes | rival | ours | rival's | ratio |\n|---|---|---|---|---|---|")?;
    }
    for Comparison { setting, bytes, rival, ours_us, rival_us, ratio, .. } in lost {
        writeln!(out, "| {setting} | {bytes} | {rival} | {ours_us:.1} | {rival_us:.1} | {ratio:.2} |")?;
    }
    Ok(())
}

fn write_setting(results: &Results, summary: &Summary, setting: &Setting, out: &mut String) -> fmt::Result {
    let has = |contestant: &str| results.cells_of(setting).any(|cell| cell.median_us(contestant).is_some());
    let rivals: Vec<&str> = RIVALS
        .into_iter()
        .filter(|rival| summary.comparisons.iter().any(|one| one.setting == *setting && one.rival == *rival))
        .collect();
    let allocated = has(OURS_ALLOC);
    writeln!(out, "\n## {setting}\n")?;
    write!(out, "| bytes | paceline | algorithm |{}", if allocated { " paceline-alloc |" } else { "" })?;
    rivals.iter().try_for_each(|rival| write!(out, " {rival} | ratio | | target |"))?;
    writeln!(out, "\n|---|---|---|{}{}", if allocated { "---|" } else { "" }, "---|---|---|---|".repeat(rivals.len()))?;
    for cell in results.cells_of(setting) {
        write!(out, "| {} | {} | {} |", cell.bytes, time(cell, OURS), cell.algorithms(OURS))?;
        if allocated {
            write!(out, " {} |", time(cell, OURS_ALLOC))?;
        }
        for rival in &rivals {
            let of = |one: &&Comparison| one.setting == *setting && one.bytes == cell.bytes && one.rival == *rival;
            match summary.comparisons.iter().find(of) {
                Some(one) => write_comparison(cell, one, out)?,
                None => write!(out, " | | | |")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_comparison(cell: &Cell, one: &Comparison, out: &mut String) -> fmt::Result {
    let algorithm = match one.rival.as_str() {
        OPENMPI_BEST if cell.median_us(OPENMPI_TUNED) == Some(one.rival_us) => cell.algorithms(OPENMPI_TUNED),
        OPENMPI_BEST => "default".to_owned(),
        _ => String::new(),
    };
    let verdict = match one.verdict {
        Verdict::Won => "won",
        Verdict::Tied => "tied",
        Verdict::Lost => "**lost**",
    };
    let target = match (one.target, one.met()) {
        (Some(target), Some(true)) => format!("≥ {target:.2} met"),
        (Some(target), _) => format!("≥ {target:.2} **missed**"),
        (None, _) => String::new(),
    };
    write!(out, " {:.1} {algorithm} | {:.2} | {verdict} | {target} |", one.rival_us, one.ratio)
}

fn time(cell: &Cell, contestant: &str) -> String {
    cell.median_us(contestant).map_or_else(String::new, |time| format!("{time:.1}"))
}

fn write_bounds(summary: &Summary, out: &mut String) -> fmt::Result {
    if !summary.bounds.is_empty() {
        writeln!(out, "\n## What the machine can do\n")?;
        writeln!(
            out,
            "The bound's time over ours: 100 % is all that it can do. The memory floor is for the bytes that all ranks must \
             at least read and write, the raw exchange for those that each must send and take in.\n"
        )?;
        writeln!(out, "| case | bytes | bound | us | measured | contestant | us | share | target |")?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    }
    for bound in &summary.bounds {
        let target = bound.target.map_or_else(String::new, |target| {
            format!("≥ {:.0} % {}", target * 100.0, if bound.share >= target { "met" } else { "**missed**" })
        });
        writeln!(
            out,
            "| {} | {} | {} | {:.1} | {} | {} | {:.1} | {:.0} % | {target} |",
            bound.setting,
            bound.bytes,
            bound.bound,
            bound.bound_us,
            bound.measured,
            bound.contestant,
            bound.ours_us,
            bound.share * 100.0
        )?;
    }
    if !summary.crowds.is_empty() {
        writeln!(out, "\n## More ranks than cores\n\nTimes over those of 4 ranks.\n")?;
        writeln!(out, "| case | bytes | us | slower | per byte sent | target |\n|---|---|---|---|---|---|")?;
    }
    for crowd in &summary.crowds {
        let target = crowd.target.map_or_else(String::new, |target| {
            format!("≤ {target:.2} {}", if crowd.slower_per_byte_sent <= target { "met" } else { "**missed**" })
        });
        writeln!(
            out,
            "| {} | {} | {:.1} | {:.2} | {:.2} | {target} |",
            crowd.setting, crowd.bytes, crowd.ours_us, crowd.slower, crowd.slower_per_byte_sent
        )?;
    }
    Ok(())
}

fn write_circumstances(results: &Results, out: &mut String) -> fmt::Result {
    writeln!(out, "\n## Circumstances\n\n| load averages | 1, 5, 15 minutes |\n|---|---|")?;
    for load in &results.loads {
        writeln!(out, "| {} | {} |", load.when, load.averages)?;
    }
    if !results.openmpi_conditions.is_empty() {
        writeln!(out, "\n| Open MPI | candidate | yields when idle | single copy | bindings |\n|---|---|---|---|---|")?;
    }
    for one in &results.openmpi_conditions {
        let flag = |value: i64| if value < 0 { "unknown".to_owned() } else { value.to_string() };
        let bindings = one.bindings.join("; ").replace('|', "/");
        let copy = match one.single_copy_mechanism {
            1 => "CMA".to_owned(),
            3 => "none".to_owned(),
            other => flag(other),
        };
        let yields = flag(one.yields_when_idle);
        writeln!(out, "| {} | {} | {yields} | {copy} | {bindings} |", one.setting, one.candidate)?;
    }
    Ok(())
}

fn write_profiles(profiles: &[Profile], out: &mut String) -> fmt::Result {
    if !profiles.is_empty() {
        writeln!(out, "\n## Where our time goes")?;
    }
    for profile in profiles {
        let Profile { setting, bytes, of, .. } = profile;
        writeln!(out, "\n### {setting}, {bytes} bytes: {of}\n")?;
        writeln!(out, "| % | where |\n|---|---|")?;
        for entry in &profile.entries {
            writeln!(out, "| {:.1} | `{}` |", entry.share, entry.place)?;
        }
    }
    Ok(())
}

/// How the rivals are called in the documents.
pub fn title(rival: &str) -> &'static str {
    match rival {
        OPENMPI_BEST => "Open MPI, best",
        GLOO => "Gloo",
        _ => "Open MPI, default",
    }
}
