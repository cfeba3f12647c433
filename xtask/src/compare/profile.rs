//! Where our time goes: `perf` if it works here, else `strace`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::command::{Error, Setting, output};
use super::ours::Ours;
use super::results::{Cell, OURS, Results};

/// A profile of one size in one setting, over all ranks.
#[derive(Serialize, Deserialize)]
pub struct Profile {
    #[serde(flatten)]
    pub setting: Setting,
    /// The bytes of the data.
    pub bytes: usize,
    /// What the shares are shares of.
    pub of: String,
    /// The largest shares, in per cent.
    pub entries: Vec<Entry>,
}

/// One line of a profile.
#[derive(Serialize, Deserialize)]
pub struct Entry {
    /// In per cent.
    pub share: f64,
    /// A function, with the library or `[kernel]` that it lies in; or a system call.
    pub place: String,
}

/// How many lines of a profile are kept.
const ENTRIES_MAX: usize = 12;
/// How perf calls the kernel.
const KERNEL: &str = "[kernel.kallsyms]";
/// Long enough for a thousand samples per rank.
const SECONDS: f64 = 2.0;

/// Profiles the smallest, a middle and the largest size of those that were measured in a setting. Says so and gives
/// nothing where no tool works.
pub fn profile(ours: &Ours, setting: &Setting, results: &Results, scratch: &Path) -> Vec<Profile> {
    let measured: Vec<&Cell> = results.cells_of(setting).collect();
    let mut picked: Vec<&Cell> = [0, measured.len() / 2, measured.len().saturating_sub(1)]
        .iter()
        .filter_map(|place| measured.get(*place).copied())
        .collect();
    picked.dedup_by_key(|cell| cell.bytes);
    let mut profiles = Vec::new();
    for cell in picked {
        let mut command = ours.command(setting, cell.bytes);
        // Half of the time goes into the barriers.
        let calls = (SECONDS * 1e6 / cell.median_us(OURS).unwrap_or(SECONDS * 1e6) / 2.0).max(5.0) as usize;
        command.args(["--iterations", &calls.to_string()]);
        let taken = sample(&command, scratch)
            .or_else(|perf| trace(&command, scratch).map_err(|strace| format!("perf: {perf}; strace: {strace}")));
        match taken {
            Ok((of, entries)) => profiles.push(Profile { setting: setting.clone(), bytes: cell.bytes, of, entries }),
            Err(error) => eprintln!("no profile: {error}"),
        }
    }
    profiles
}

type Taken = (String, Vec<Entry>);

/// Samples all ranks with `perf`.
fn sample(command: &Command, scratch: &Path) -> Result<Taken, Error> {
    let data = scratch.join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "-F", "997", "-o"]).arg(&data).arg("--");
    append(&mut record, command);
    output(&mut record)?;
    let mut report = Command::new("perf");
    report.arg("report").arg("-i").arg(&data);
    report.args(["--stdio", "--quiet", "--no-children", "-g", "none", "--sort", "dso,symbol", "-t", "|"]);
    let text = output(&mut report)?;
    let mut entries = Vec::new();
    let mut objects: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines() {
        let Some((share, object, symbol)) = parse(line) else { continue };
        // What makes and checks the data, and counts the calls, lies outside the measured time.
        if symbol.contains("paceline::perf::") {
            continue;
        }
        *objects.entry(object).or_default() += share;
        let place = if object == "paceline" { symbol.to_owned() } else { format!("{symbol} ({object})") };
        entries.push(Entry { share, place });
    }
    // Shares of what is left.
    let left: f64 = objects.values().sum();
    entries.iter_mut().for_each(|entry| entry.share *= 100.0 / left);
    objects.values_mut().for_each(|share| *share *= 100.0 / left);
    entries.truncate(ENTRIES_MAX);
    let share_of = |name: &str| objects.get(name).copied().unwrap_or_default();
    let (kernel, own) = (share_of(KERNEL), share_of("paceline"));
    let others = objects.values().sum::<f64>() - kernel - own;
    let of = format!("samples of all ranks (perf): {kernel:.0} % kernel, {own:.0} % paceline, {others:.0} % libraries");
    Ok((of, entries))
}

/// A line of `perf report`: share in per cent, object, symbol.
fn parse(line: &str) -> Option<(f64, &str, &str)> {
    let mut columns = line.split('|').map(str::trim);
    let share = columns.next()?.strip_suffix('%')?.parse().ok()?;
    let (object, symbol) = (columns.next()?, columns.next()?);
    // `[.]` and `[k]` in front of the symbol say user and kernel, which the object says as well.
    Some((share, object, symbol.get(4..).unwrap_or(symbol)))
}

/// Counts the time in system calls with `strace`, which slows them down.
fn trace(command: &Command, scratch: &Path) -> Result<Taken, Error> {
    let table = scratch.join("strace.txt");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-S", "time", "-U", "time-percent,calls,name", "-o"]).arg(&table).arg("--");
    append(&mut strace, command);
    output(&mut strace)?;
    let text = std::fs::read_to_string(&table).map_err(|error| format!("{}: {error}", table.display()))?;
    let entries = text.lines().filter_map(|line| {
        let mut columns = line.split_whitespace();
        let share = columns.next()?.parse().ok()?;
        let (calls, name) = (columns.next()?, columns.next()?);
        (name != "total").then(|| Entry { share, place: format!("{name}, {calls} calls") })
    });
    Ok(("time in system calls of all ranks (strace)".to_owned(), entries.take(ENTRIES_MAX).collect()))
}

fn append(command: &mut Command, other: &Command) {
    command.arg(other.get_program()).args(other.get_args());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_perf_are_read() {
        assert_eq!(parse("  38.20%|[kernel.kallsyms]|[k] _copy_to_iter"), Some((38.2, KERNEL, "_copy_to_iter")));
        assert_eq!(parse("     1.00%|paceline |[.] a::b<c>::d "), Some((1.0, "paceline", "a::b<c>::d")));
        assert_eq!(parse("# a comment"), None);
        assert_eq!(parse(""), None);
    }
}
