//! Where our time goes: `perf` if it works here, else `strace`.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::command::{Error, output};
use super::ours::Ours;
use super::results::Setting;

/// A profile of one size in one setting, over all ranks.
#[derive(Serialize)]
pub struct Profile {
    #[serde(flatten)]
    pub setting: Setting,
    /// The bytes of the data.
    pub bytes: usize,
    /// What the shares are shares of.
    pub of: &'static str,
    /// The largest shares, in per cent.
    pub entries: Vec<Entry>,
}

/// One line of a profile.
#[derive(Serialize)]
pub struct Entry {
    /// In per cent.
    pub share: f64,
    /// A function, with the library or `[kernel]` that it lies in; or a system call.
    pub place: String,
}

/// How many lines of a profile are kept.
const ENTRIES_MAX: usize = 12;
/// Long enough for a thousand samples per rank.
const SECONDS: f64 = 2.0;

/// Profiles the smallest, a middle and the largest size. Says so and gives nothing where no tool works.
pub fn profile(ours: &Ours, setting: &Setting, sizes: &[usize], scratch: &Path) -> Vec<Profile> {
    let setting = Setting { seconds: SECONDS, ..setting.clone() };
    let mut picked: Vec<usize> = [0, sizes.len() / 2, sizes.len() - 1].iter().map(|place| sizes[*place]).collect();
    picked.dedup();
    let mut profiles = Vec::new();
    for bytes in picked {
        let taken = sample(ours, &setting, bytes, scratch).or_else(|perf| {
            trace(ours, &setting, bytes, scratch).map_err(|strace| format!("perf: {perf}; strace: {strace}"))
        });
        match taken {
            Ok((of, entries)) => profiles.push(Profile { setting: setting.clone(), bytes, of, entries }),
            Err(error) => eprintln!("no profile: {error}"),
        }
    }
    profiles
}

type Taken = (&'static str, Vec<Entry>);

/// Samples all ranks with `perf`.
fn sample(ours: &Ours, setting: &Setting, bytes: usize, scratch: &Path) -> Result<Taken, Error> {
    let data = scratch.join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "-F", "499", "-o"]).arg(&data).arg("--");
    append(&mut record, &ours.command(setting, &[bytes]));
    output(&mut record)?;
    let mut report = Command::new("perf");
    report.arg("report").arg("-i").arg(&data);
    report.args(["--stdio", "--quiet", "--no-children", "-g", "none", "--sort", "dso,symbol", "-t", "|"]);
    let text = output(&mut report)?;
    let entries = text.lines().filter_map(|line| {
        let mut columns = line.split('|').map(str::trim);
        let share: f64 = columns.next()?.strip_suffix('%')?.parse().ok()?;
        let (object, symbol) = (columns.next()?, columns.next()?);
        // `[.]` and `[k]` say user and kernel, which the object says as well.
        let symbol = symbol.get(4..).unwrap_or(symbol);
        let place = if object == "paceline" { symbol.to_owned() } else { format!("{symbol} ({object})") };
        // What makes and checks the data lies outside the measured time.
        (!place.contains("perf::pattern")).then_some(Entry { share, place })
    });
    Ok(("samples of all ranks (perf)", entries.take(ENTRIES_MAX).collect()))
}

/// Counts the time in system calls with `strace`, which slows them down.
fn trace(ours: &Ours, setting: &Setting, bytes: usize, scratch: &Path) -> Result<Taken, Error> {
    let table = scratch.join("strace.txt");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-S", "time", "-U", "time-percent,calls,name", "-o"]).arg(&table).arg("--");
    append(&mut strace, &ours.command(setting, &[bytes]));
    output(&mut strace)?;
    let text = std::fs::read_to_string(&table).map_err(|error| format!("{}: {error}", table.display()))?;
    let entries = text.lines().filter_map(|line| {
        let mut columns = line.split_whitespace();
        let share = columns.next()?.parse().ok()?;
        let (calls, name) = (columns.next()?, columns.next()?);
        (name != "total").then(|| Entry { share, place: format!("{name}, {calls} calls") })
    });
    Ok(("time in system calls of all ranks (strace)", entries.take(ENTRIES_MAX).collect()))
}

fn append(command: &mut Command, other: &Command) {
    command.arg(other.get_program()).args(other.get_args());
}
