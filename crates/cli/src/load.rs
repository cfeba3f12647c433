//! What else a machine has to do: its load averages, and what they say of numbers that are measured beside that.

use std::fs;

/// Above this load average over a minute, somebody needs the machine.
const QUIET: f64 = 0.5;

/// Processes that wanted to run, as means over 1, 5 and 15 minutes, as the kernel writes them; empty where it does not.
pub fn load_averages() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// The first of these averages; None where nobody knows.
pub fn load_of_last_minute(averages: &str) -> Option<f64> {
    averages.split(' ').next()?.parse().ok()
}

/// Did somebody need the machine? What is measured does, too: only what was read before it speaks of somebody else.
pub fn is_busy(load_average: f64) -> bool {
    load_average > QUIET
}

/// What to say before anything is measured, if the machine was busy.
pub fn busy_warning(averages: &str) -> Option<String> {
    let busy = load_of_last_minute(averages).is_some_and(is_busy);
    busy.then(|| {
        format!(
            "the machine was busy in the last minute (load averages {averages}): these numbers will be noisy, unless \
             that has ended"
        )
    })
}

/// The load averages beside the runs of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudyLoad {
    /// Over the minute before the first run.
    pub before: f64,
    /// Over the minute before a run: the least of all.
    pub least: f64,
    /// And the greatest.
    pub greatest: f64,
}

impl StudyLoad {
    /// Of runs: when each ended, in seconds, and the load average before it; None where nobody looked.
    pub fn of(runs: impl IntoIterator<Item = (u64, Option<f64>)>) -> Option<StudyLoad> {
        let known: Vec<(u64, f64)> = runs.into_iter().filter_map(|(ended, load)| Some((ended, load?))).collect();
        let (_, before) = *known.iter().min_by_key(|(ended, _)| *ended)?;
        let loads = || known.iter().map(|(_, load)| *load);
        Some(StudyLoad { before, least: loads().fold(before, f64::min), greatest: loads().fold(before, f64::max) })
    }

    /// Did somebody else need the machine when the study began?
    pub fn began_busy(&self) -> bool {
        is_busy(self.before)
    }

    /// For people.
    pub fn in_words(&self) -> String {
        let StudyLoad { before, least, greatest } = self;
        let busy = if self.began_busy() { ", when the machine was busy with something else" } else { "" };
        format!(
            "{before:.2} over the minute before the first run{busy}; {least:.2} to {greatest:.2} before all runs, \
             which the study itself raises"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_measures_on_a_busy_machine_is_warned() {
        let warning = busy_warning("1.90 0.10 0.10").expect("it is busy");
        assert!(warning.contains("busy in the last minute (load averages 1.90 0.10 0.10): these"), "{warning}");
        assert_eq!(["0.12 3.00 4.00", "0.50 0.50 0.50", ""].map(busy_warning), [None, None, None]);
        let now = load_averages();
        assert!(now.split(' ').count() == 3 && load_of_last_minute(&now).is_some_and(|load| load >= 0.0), "{now}");
    }

    /// The first run is the one that ended first, wherever it stands; what the others met is the study's own, too.
    #[test]
    fn only_the_load_before_the_first_run_is_somebody_elses() {
        let quiet = StudyLoad::of([(20, Some(3.5)), (10, Some(0.2)), (5, None), (30, Some(2.0))]).expect("three know");
        assert_eq!(quiet, StudyLoad { before: 0.2, least: 0.2, greatest: 3.5 });
        assert!(!quiet.began_busy() && !quiet.in_words().contains("busy"), "{}", quiet.in_words());
        let busy = StudyLoad::of([(10, Some(7.92)), (20, Some(3.08))]).expect("both know");
        let words = busy.in_words();
        assert!(busy.began_busy() && words.starts_with("7.92 over the minute before the first run, when "), "{words}");
        assert!(words.contains("busy with something else; 3.08 to 7.92 before all runs"), "{words}");
        assert_eq!(StudyLoad::of([(10, None)]), None, "nobody looked");
    }
}
