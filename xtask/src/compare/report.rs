//! `compare.json` and `compare.md`.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::command::Error;
use super::profile::Profile;
use super::results::{Duel, OURS, Results, Setting, geometric_mean};

/// Up to here latency decides, above it bandwidth.
const SMALL_BYTES_MAX: usize = 64 << 10;

#[derive(Serialize)]
struct File<'a> {
    #[serde(flatten)]
    results: &'a Results,
    ratios: Vec<Ratio<'a>>,
    geometric_means: Vec<Mean<'a>>,
    profiles: &'a [Profile],
}

#[derive(Serialize)]
struct Ratio<'a> {
    transport: &'a str,
    ranks: usize,
    rival: &'a str,
    bytes: usize,
    ours_us: f64,
    rival_us: f64,
    /// The rival's time over ours.
    ratio: f64,
    tie: bool,
}

#[derive(Serialize)]
struct Mean<'a> {
    transport: &'a str,
    ranks: usize,
    rival: &'a str,
    small: Option<f64>,
    large: Option<f64>,
    all: Option<f64>,
}

/// Writes both files.
pub fn write(folder: &Path, results: &Results, profiles: &[Profile]) -> Result<(), Error> {
    let mut markdown = String::new();
    let means = means(results);
    let formatted = write_markdown(results, &means, profiles, &mut markdown);
    formatted.map_err(|error| format!("cannot format the report: {error}"))?;
    let file = File { results, ratios: ratios(results), geometric_means: means, profiles };
    let json = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, text) in [("compare.json", json + "\n"), ("compare.md", markdown)] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// A name for a folder: processor and cores.
pub fn machine_name(machine: &Value) -> String {
    let processor = machine["processor"].as_str().unwrap_or("unknown").to_lowercase();
    let plain = processor.replace("(r)", "").replace("(tm)", "").replace("processor", "").replace("cpu", "");
    let words = plain.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("{}-{}-cores", words.collect::<Vec<_>>().join("-"), machine["cores"])
}

fn ratios(results: &Results) -> Vec<Ratio<'_>> {
    let mut ratios = Vec::new();
    for (setting, rival) in pairs(results) {
        ratios.extend(results.duels(setting, rival).iter().map(|duel| Ratio {
            transport: &setting.transport,
            ranks: setting.ranks,
            rival,
            bytes: duel.ours.bytes,
            ours_us: duel.ours.median_us(),
            rival_us: duel.rival.median_us(),
            ratio: duel.ratio(),
            tie: duel.is_tie(),
        }));
    }
    ratios
}

fn means(results: &Results) -> Vec<Mean<'_>> {
    let mean = |(setting, rival)| {
        let duels = results.duels(setting, rival);
        let over = |wanted: &dyn Fn(usize) -> bool| {
            geometric_mean(duels.iter().filter(|duel| wanted(duel.ours.bytes)).map(Duel::ratio))
        };
        Mean {
            transport: &setting.transport,
            ranks: setting.ranks,
            rival,
            small: over(&|bytes| bytes <= SMALL_BYTES_MAX),
            large: over(&|bytes| bytes > SMALL_BYTES_MAX),
            all: over(&|_| true),
        }
    };
    pairs(results).into_iter().map(mean).collect()
}

fn pairs(results: &Results) -> Vec<(&Setting, &str)> {
    let settings = results.settings();
    let rivals = |setting| results.rivals(setting).into_iter().map(move |rival| (setting, rival));
    settings.into_iter().flat_map(rivals).collect()
}

fn write_markdown(results: &Results, means: &[Mean<'_>], profiles: &[Profile], out: &mut String) -> fmt::Result {
    write_head(results, out)?;
    write_means(means, out)?;
    for setting in results.settings() {
        write_setting(results, setting, out)?;
    }
    write_profiles(profiles, out)
}

fn write_head(results: &Results, out: &mut String) -> fmt::Result {
    let text = |name: &str| results.machine[name].as_str().unwrap_or("unknown").to_owned();
    let memory_gib = results.machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
    let rivals = if results.versions.is_empty() { "nobody".to_owned() } else { results.versions.join(", ") };
    writeln!(out, "# All-reduce: Paceline and others\n")?;
    writeln!(out, "{}, {} cores, {memory_gib:.0} GiB", text("processor"), results.machine["cores"])?;
    writeln!(out, "{}, kernel {}, {}\n", text("system"), text("kernel"), text("architecture"))?;
    writeln!(
        out,
        "{}. Rivals: {rivals}. Rounds: {}. Written by `cargo xtask compare`.\n",
        results.date, results.rounds
    )?;
    writeln!(
        out,
        "f32, sum, out of place (Gloo: in place, it has nothing else), a barrier before each call, a call takes as \
         long as its slowest rank, every element checked. Times are medians over the rounds of the median over the \
         calls, in microseconds. A ratio is the rival's time over ours: above 1 we are faster. `~` marks a tie: the \
         difference is within what our own runs differ. `openmpi` chooses its algorithm itself, `openmpi-tuned` has \
         for every size the fastest of `coll_tuned`.\n"
    )
}

fn write_means(means: &[Mean<'_>], out: &mut String) -> fmt::Result {
    writeln!(out, "## Geometric means of the ratios\n")?;
    writeln!(out, "| transport | ranks | rival | up to 64 KiB | above | all |\n|---|---|---|---|---|---|")?;
    for mean in means {
        let [small, large, all] = [mean.small, mean.large, mean.all].map(|mean| match mean {
            Some(mean) => format!("{mean:.2}"),
            None => "none".to_owned(),
        });
        writeln!(out, "| {} | {} | {} | {small} | {large} | {all} |", mean.transport, mean.ranks, mean.rival)?;
    }
    Ok(())
}

fn write_setting(results: &Results, setting: &Setting, out: &mut String) -> fmt::Result {
    let rivals = results.rivals(setting);
    writeln!(out, "\n## {}, {} ranks\n", setting.transport, setting.ranks)?;
    write!(out, "| bytes | paceline | algorithm |")?;
    for rival in &rivals {
        write!(out, " {rival} | ratio |")?;
    }
    writeln!(out, "\n|---|---|---|{}", "---|---|".repeat(rivals.len()))?;
    for ours in results.rows_of(setting, OURS) {
        write!(out, "| {} | {:.1} | {} |", ours.bytes, ours.median_us(), ours.algorithm)?;
        for rival in &rivals {
            let Some(rival) = results.row(setting, rival, ours.bytes) else {
                write!(out, " | |")?;
                continue;
            };
            let duel = Duel { ours, rival };
            let tie = if duel.is_tie() { "~" } else { "" };
            let algorithm = if rival.contestant == "openmpi-tuned" { &rival.algorithm } else { "" };
            let gap = if algorithm.is_empty() { "" } else { " " };
            write!(out, " {:.1}{gap}{algorithm} | {tie}{:.2} |", rival.median_us(), duel.ratio())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_profiles(profiles: &[Profile], out: &mut String) -> fmt::Result {
    writeln!(out, "\n## Where our time goes")?;
    if profiles.is_empty() {
        writeln!(out, "\nNeither `perf` nor `strace` works on this machine.")?;
    }
    for profile in profiles {
        let Profile { setting, bytes, of, .. } = profile;
        writeln!(out, "\n### {}, {} ranks, {bytes} bytes: {of}\n", setting.transport, setting.ranks)?;
        writeln!(out, "| % | where |\n|---|---|")?;
        for entry in &profile.entries {
            writeln!(out, "| {:.1} | `{}` |", entry.share, entry.place)?;
        }
    }
    Ok(())
}
