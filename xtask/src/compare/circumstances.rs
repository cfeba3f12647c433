//! Under which circumstances a run was made, so that it can be judged and repeated.

use std::process::Command;
use std::time::{Duration, SystemTime};

use paceline_cli::{busy_warning, is_busy, load_averages, load_of_last_minute};
use serde::{Deserialize, Serialize};

use super::command;

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Commit {
    pub id: String,
    /// Files that it contains were changed; new ones, such as a run's own report, do not count.
    pub changed: bool,
}

/// What else the machine was doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub when: String,
    /// Processes that wanted to run, as means over 1, 5 and 15 minutes (`/proc/loadavg`). In the middle of a run these
    /// are ours and the rivals'.
    pub averages: String,
}

impl Commit {
    /// The one that is checked out.
    pub fn here() -> Commit {
        let git = |arguments: &[&str]| command::output(Command::new("git").args(arguments)).ok();
        let id = git(&["rev-parse", "HEAD"]).map_or_else(|| "unknown".to_owned(), |id| id.trim().to_owned());
        let changed =
            git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|status| !status.trim().is_empty());
        Commit { id, changed }
    }
}

impl Load {
    /// Now.
    pub fn now(when: impl Into<String>) -> Load {
        Load { when: when.into(), averages: load_averages() }
    }

    /// Now, before anything is measured. Says so if somebody else needs the machine.
    pub fn before(when: &str) -> Load {
        let load = Load::now(when);
        if let Some(warning) = busy_warning(&load.averages) {
            eprintln!("{warning}");
        }
        load
    }

    /// Did the machine have nothing else to do, in the last minute?
    pub fn is_quiet(&self) -> bool {
        load_of_last_minute(&self.averages).is_some_and(|average| !is_busy(average))
    }
}

/// What was called, for whoever repeats it.
pub fn command_line() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut command: Vec<String> = ["cargo".to_owned(), "xtask".to_owned()].into_iter().chain(words).collect();
    // He has another Python.
    if let Some(place) = command.iter().position(|word| word == "--torch") {
        command[place + 1..].iter_mut().take(1).for_each(|path| "PYTHON".clone_into(path));
    }
    command
}

/// `YYYY-MM-DD` in UTC.
///
/// Source: H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
pub fn date(now: SystemTime) -> String {
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
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
    use super::*;

    #[test]
    fn dates_are_civil() {
        let day = |days: u64| date(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399));
        assert_eq!(
            [day(0), day(59), day(11_016), day(20_512)],
            ["1970-01-01", "1970-03-01", "2000-02-29", "2026-02-28"]
        );
    }

    #[test]
    fn a_busy_machine_is_noticed() {
        let load = |averages: &str| Load { when: String::new(), averages: averages.to_owned() };
        assert!(load("0.12 3.00 4.00").is_quiet());
        assert!(!load("1.90 0.10 0.10").is_quiet());
        assert!(!load("").is_quiet(), "unknown is not quiet");
    }
}
