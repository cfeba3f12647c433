//! `cargo xtask compare`: our all-reduce and those of others, in one run, by one set of rules, interleaved.
//!
//! Rules (DESIGN.md §10): out of place, a barrier before each call, a call takes as long as its slowest rank, every
//! element is checked. Each round measures ours before every rival. What is quoted is the median over the rounds of the
//! median over the calls; a difference smaller than what ours differs from itself is called a tie.

mod command;
mod gloo;
mod openmpi;
mod ours;
mod profile;
mod report;
mod results;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;

use command::Error;
use gloo::Gloo;
use openmpi::OpenMpi;
use ours::Ours;
use profile::profile;
use results::{OURS, Results, Setting};

/// What `compare` is told.
#[derive(Args)]
pub struct Options {
    /// Few sizes, one round, little time: to see that everything works
    #[arg(long)]
    quick: bool,

    /// World sizes
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<usize>,

    /// Transports
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_parser = ["shm", "tcp"])]
    transports: Vec<String>,

    /// The smallest size in bytes
    #[arg(long, default_value_t = 1 << 10)]
    min: usize,

    /// The largest size in bytes [default: 104857600, with --quick 1048576]
    #[arg(long)]
    max: Option<usize>,

    /// A Python with torch: Gloo is measured through torch.distributed
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,

    /// How often everything is measured [default: 5, with --quick 1]
    #[arg(long)]
    rounds: Option<usize>,

    /// Where the report goes [default: benches/runs/<date>-<machine>]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The sizes grow by this.
const FACTOR: usize = 4;

/// Measures everything and writes `compare.json` and `compare.md`.
pub fn run(options: &Options) -> Result<(), Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies in no workspace")?;
    let scratch = root.join("target/compare");
    fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    let rivals = Rivals {
        openmpi: skipped(OpenMpi::prepare(root, &scratch)),
        gloo: options.torch.as_ref().and_then(|python| skipped(Gloo::prepare(root, &scratch, python))),
    };
    if options.torch.is_none() {
        eprintln!("Gloo is left out: no --torch PYTHON");
    }
    let ours = Ours::build(root, &scratch)?;
    let (max, rounds, seconds) = if options.quick { (1 << 20, 1, 0.05) } else { (100 << 20, 5, 0.2) };
    let sizes = sizes(options.min, options.max.unwrap_or(max));
    let rounds = options.rounds.unwrap_or(rounds);

    let mut results = Results::new(rounds, date(SystemTime::now()));
    let mut profiles = Vec::new();
    for transport in &options.transports {
        for &ranks in &options.ranks {
            let setting = Setting { transport: transport.clone(), ranks, seconds };
            measure(&setting, &sizes, rounds, &ours, &rivals, &mut results)?;
            profiles.extend(profile(&ours, &setting, &results, &scratch));
        }
    }
    results.versions = rivals.versions();
    results.machine = ours.machine();
    let folder = options.out.clone().unwrap_or_else(|| {
        root.join("benches/runs").join(format!("{}-{}", results.date, report::machine_name(&results.machine)))
    });
    report::write(&folder, &results, &profiles)
}

/// Those who are there.
struct Rivals {
    openmpi: Option<OpenMpi>,
    gloo: Option<Gloo>,
}

impl Rivals {
    fn versions(&self) -> Vec<String> {
        let openmpi = self.openmpi.as_ref().map(|openmpi| openmpi.version.clone());
        let gloo = self.gloo.as_ref().map(|gloo| gloo.version.clone());
        [openmpi, gloo].into_iter().flatten().collect()
    }
}

/// One world size on one transport.
fn measure(
    setting: &Setting,
    sizes: &[usize],
    rounds: usize,
    ours: &Ours,
    rivals: &Rivals,
    results: &mut Results,
) -> Result<(), Error> {
    let best = rivals.openmpi.as_ref().map(|openmpi| openmpi.scout(setting, sizes)).transpose()?;
    for round in 1..=rounds {
        eprintln!("{}, {} ranks: round {round} of {rounds}", setting.transport, setting.ranks);
        if let Some(openmpi) = &rivals.openmpi {
            results.add(setting, OURS, ours.measure(setting, sizes)?);
            results.add(setting, "openmpi", openmpi.measure(setting, None, sizes)?);
        }
        if let (Some(openmpi), Some(best)) = (&rivals.openmpi, &best) {
            results.add(setting, OURS, ours.measure(setting, sizes)?);
            results.add(setting, "openmpi-tuned", openmpi.measure_best(setting, best)?);
        }
        // Gloo has TCP only.
        if let Some(gloo) = rivals.gloo.as_ref().filter(|_| setting.transport == "tcp") {
            results.add(setting, OURS, ours.measure(setting, sizes)?);
            results.add(setting, "gloo", gloo.measure(setting, sizes)?);
        }
        // Closes the bracket, and is all there is if nobody else came.
        results.add(setting, OURS, ours.measure(setting, sizes)?);
    }
    Ok(())
}

/// A rival that is not there is not a failure.
fn skipped<T>(prepared: Result<T, Error>) -> Option<T> {
    prepared.map_err(|error| eprintln!("left out: {error}")).ok()
}

fn sizes(min: usize, max: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(min.max(4)), |size| size.checked_mul(FACTOR));
    powers.take_while(|size| *size < max).chain([max]).collect()
}

/// `YYYY-MM-DD` in UTC.
///
/// Source: H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn date(now: SystemTime) -> String {
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let days = since_epoch.as_secs() / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_civil() {
        let day = |days: u64| date(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399));
        assert_eq!(
            [day(0), day(59), day(11_016), day(20_512)],
            ["1970-01-01", "1970-03-01", "2000-02-29", "2026-02-28"]
        );
    }
}
