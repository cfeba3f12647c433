//! Honesty on real noise: all calls are the default's, whatever a tuner chooses, so that every gain that it reports is none.

use serde_json::{Value, json};

use super::super::report::{NOT_MEASURED, Table, Target, percent};
use super::sizes::size;
use super::world::{Case, Links};
use super::{Measured, Question, Section, median_us, number};

/// The share of jobs that report a gain where there is none.
const REPORTED_MAX: f64 = 0.05;
/// The share of jobs that find a fifth where there is one: who never reports anything is honest, too.
const FOUND_MIN: f64 = 0.5;
const JOBS: usize = 200;
const CALLS: usize = 600;
/// Links, ranks and bytes: few ranks and more than there are cores, memory, loopback and the lab.
const PLACES: [(Links, usize, usize); 5] = [
    (Links::Shm, 2, 64 << 10),
    (Links::Shm, 8, 16 << 10),
    (Links::Tcp, 4, 64 << 10),
    (Links::Lab, 4, 4 << 10),
    (Links::Lab, 4, 64 << 10),
];

pub fn question(quick: bool, cores: usize) -> Question {
    let cases = match quick {
        true => vec![case((Links::Shm, 2, 16 << 10), [2, 64], cores)],
        false => PLACES.map(|place| case(place, [JOBS, CALLS], cores)).into(),
    };
    Question { name: "alike", cases, runs: 1, is_enough: |_| false, judge }
}

fn case((links, ranks, bytes): (Links, usize, usize), [jobs, calls]: [usize; 2], cores: usize) -> Case {
    let words = [
        ("--min", bytes.to_string()),
        ("--max", bytes.to_string()),
        ("--tune-alike", jobs.to_string()),
        ("--tune-calls", calls.to_string()),
    ];
    let words = words.into_iter().flat_map(|(word, value)| [word.to_owned(), value]);
    Case {
        name: format!("alike-{}-{ranks}-{}", links.name(), size(bytes as f64)),
        links,
        ranks,
        per_host: 1,
        arguments: std::iter::once("--tune".to_owned()).chain(words).collect(),
        // A barrier before each call takes about as long as a small one.
        seconds: 5.0 + (jobs * calls) as f64 * 2.0 * links.call_s(ranks, bytes, cores),
    }
}

/// What all runs of a case have counted together.
struct Counted {
    jobs: f64,
    reported: f64,
    trials: f64,
    explored: f64,
    drifts: f64,
    found: f64,
}

impl Counted {
    fn of(runs: &[&Value]) -> Counted {
        let sum = |name: &str| runs.iter().filter_map(|run| number(run, name)).sum::<f64>();
        Counted {
            jobs: sum("jobs"),
            reported: sum("reported"),
            trials: sum("trials"),
            explored: sum("explored"),
            drifts: sum("drifts"),
            found: sum("found"),
        }
    }

    fn share(&self, of: f64) -> Option<f64> {
        (self.jobs > 0.0).then(|| of / self.jobs)
    }

    /// Nothing was tried, nothing could be reported: that says nothing.
    fn is_honest(&self) -> Option<bool> {
        self.share(self.reported).filter(|_| self.trials > 0.0).map(|share| share <= REPORTED_MAX)
    }
}

fn judge(all: &[Measured]) -> Section {
    let mut table = Table::new(
        "Gains that are none, on real noise",
        format!(
            "All calls are made as the library makes them, whatever a tuner chooses, and each job has a tuner of its own, {CALLS} calls \
             long. \"Explored\": calls of a job that were decided to take something else than the default, trials' included, and \
             \"changes noticed\": how often a job took the network for changed, both in the mean. \"Reported\": jobs that at any time \
             reported a gain (≤ {} is demanded). \"A fifth found\": as many tuners learn from the same calls, of which those of one \
             algorithm are said to take a fifth less, and so many of them report it (≥ {} is demanded: what never reports anything \
             is honest, too). \"Deviation\": of the logarithm of calls' times within a job; \"late\": calls that take more than twice \
             the median. Times in us.",
            percent(Some(REPORTED_MAX)),
            percent(Some(FOUND_MIN))
        ),
        &[
            "links",
            "ranks",
            "size",
            "jobs",
            "a call",
            "deviation",
            "late",
            "trials begun",
            "explored",
            "changes noticed",
            "reported",
            "share",
            "a fifth found",
        ],
    );
    let (mut targets, mut measured) = (Vec::new(), Vec::new());
    for one in all {
        let runs: Vec<&Value> = one.runs.iter().map(|run| &run["alike"][0]).collect();
        let counted = Counted::of(&runs);
        let share = counted.share(counted.reported);
        let found = match share {
            Some(share) => format!("{} of {} jobs, in {} trials", percent(Some(share)), counted.jobs, counted.trials),
            None => NOT_MEASURED.to_owned(),
        };
        let place = format!("{}, {} ranks", one.case.links.name(), one.case.ranks);
        targets.push(Target {
            case: format!("calls that are all alike, {place}"),
            demanded: format!("jobs that report a gain ≤ {}", percent(Some(REPORTED_MAX))),
            found,
            met: counted.is_honest(),
        });
        let share_found = counted.share(counted.found);
        targets.push(Target {
            case: format!("calls of which those of one algorithm are said to take a fifth less, {place}"),
            demanded: format!("a fifth found: jobs that report it ≥ {}", percent(Some(FOUND_MIN))),
            found: share_found.map_or_else(|| NOT_MEASURED.to_owned(), |share| percent(Some(share))),
            met: share_found.map(|share| share >= FOUND_MIN),
        });
        let each = |sum: f64| counted.share(sum).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}"));
        let last = |name: &str| runs.last().and_then(|run| number(run, name));
        table.rows.push(vec![
            one.case.links.name().to_owned(),
            one.case.ranks.to_string(),
            last("bytes").map_or_else(|| "?".to_owned(), size),
            counted.jobs.to_string(),
            median_us(&runs, "call_us"),
            percent(last("deviation")),
            percent(last("late")),
            counted.trials.to_string(),
            each(counted.explored),
            each(counted.drifts),
            counted.reported.to_string(),
            percent(share),
            percent(share_found),
        ]);
        measured
            .push(json!({"case": one.case.name, "links": one.case.links, "ranks": one.case.ranks, "runs": one.runs}));
    }
    Section { targets, tables: vec![table], measured: Value::Array(measured) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tries_nothing_has_shown_nothing_and_who_finds_nothing_misses() {
        let met = |reported: usize, trials: usize, found: usize| {
            let run = json!({"alike": [{"bytes": 65536, "jobs": 200, "calls": 600, "reported": reported, "trials": trials,
                "explored": 5000, "drifts": 20, "found": found, "call_us": 80.0, "deviation": 0.2, "late": 0.01}]});
            let case = case((Links::Shm, 2, 64 << 10), [200, 600], 2);
            let section = judge(&[Measured { case, runs: vec![run], failures: Vec::new() }]);
            let row = &section.tables[0].rows[0];
            assert_eq!(row.len(), section.tables[0].columns.len());
            assert_eq!((&*row[2], &*row[8], &*row[9]), ("64KiB", "25.0", "0.1"));
            assert_eq!(row[12], percent(Some(found as f64 / 200.0)));
            [section.targets[0].met, section.targets[1].met]
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!([met(10, 80, 100), met(11, 80, 150), met(0, 0, 0)], [[yes, yes], [no, yes], [None, no]]);
    }
}
