//! Honesty on real noise: all calls are the default's, whatever a tuner chooses, so that every gain that it reports is none. Jobs learn as
//! they go, or rehearse before, as jobs do that ship.

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
/// Seconds of a rehearsal, at most: as long as those of `train` and `bench`, if nobody says it. Two tuners of each job rehearse.
const REHEARSAL_S: f64 = 1.0;
/// Where jobs rehearse, too: on this host. In the lab 200 of them would take seven minutes for each size.
const REHEARSED: [Links; 2] = [Links::Shm, Links::Tcp];
/// By which a case says that they do.
const REHEARSAL: &str = "--tune-rehearsal";

pub fn question(quick: bool, cores: usize) -> Question {
    let cases = if quick {
        [0.0, 0.05].map(|rehearsal_s| case((Links::Shm, 2, 16 << 10), [2, 64], rehearsal_s, cores)).into()
    } else {
        let full = |rehearsal_s: f64| PLACES.map(|place| case(place, [JOBS, CALLS], rehearsal_s, cores)).into_iter();
        full(0.0).chain(full(REHEARSAL_S).filter(|case| REHEARSED.contains(&case.links))).collect()
    };
    Question { name: "alike", cases, runs: 1, is_enough: |_| false, judge }
}

fn case(
    (links, ranks, bytes): (Links, usize, usize),
    [jobs, calls]: [usize; 2],
    rehearsal_s: f64,
    cores: usize,
) -> Case {
    let mut words = vec![
        ("--min", bytes.to_string()),
        ("--max", bytes.to_string()),
        ("--tune-alike", jobs.to_string()),
        ("--tune-calls", calls.to_string()),
    ];
    let mut name = format!("alike-{}-{ranks}-{}", links.name(), size(bytes as f64));
    if rehearsal_s > 0.0 {
        words.push((REHEARSAL, rehearsal_s.to_string()));
        name += "-rehearsed";
    }
    let words = words.into_iter().flat_map(|(word, value)| [word.to_owned(), value]);
    // A barrier before each call takes about as long as a small one.
    let calls_s = calls as f64 * 2.0 * links.call_s(ranks, bytes, cores);
    Case {
        name,
        links,
        ranks,
        per_host: 1,
        arguments: std::iter::once("--tune".to_owned()).chain(words).collect(),
        seconds: 5.0 + jobs as f64 * (calls_s + 2.0 * rehearsal_s),
    }
}

/// Do the jobs of a case rehearse?
fn rehearses(case: &Case) -> bool {
    case.arguments.iter().any(|word| word == REHEARSAL)
}

/// What all runs of a case have counted together.
struct Counted {
    jobs: f64,
    reported: f64,
    rehearsal_reported: f64,
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
            rehearsal_reported: sum("rehearsal_reported"),
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
             the median. Times in us. \"Rehearsed\": on this host, not in the lab, as many jobs are measured again that rehearse before their \
             first call, for {REHEARSAL_S} s at most, as long as in train and bench; there, too, each choice takes what the default does, and \
             calls of the one algorithm are said to take a fifth less. So many seconds a job was rehearsed in the mean; \"in rehearsals\": of \
             the reported, those that were reported there.",
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
            "rehearsed",
            "in rehearsals",
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
        let rehearsed = if rehearses(&one.case) { ", rehearsed" } else { "" };
        let place = format!("{}, {} ranks{rehearsed}", one.case.links.name(), one.case.ranks);
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
        let rehearsal_s = last("rehearsal_s").filter(|_| rehearses(&one.case));
        let in_rehearsals = rehearsal_s.map(|_| counted.rehearsal_reported.to_string());
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
            rehearsal_s.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2} s")),
            in_rehearsals.unwrap_or_else(|| "–".to_owned()),
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
            let case = case((Links::Shm, 2, 64 << 10), [200, 600], 0.0, 2);
            let section = judge(&[Measured { case, runs: vec![run], failures: Vec::new() }]);
            let row = &section.tables[0].rows[0];
            assert_eq!(row.len(), section.tables[0].columns.len());
            assert_eq!((&*row[2], &*row[8], &*row[9]), ("64KiB", "25.0", "0.1"));
            assert_eq!(row[12], percent(Some(found as f64 / 200.0)));
            assert_eq!(row[13..], ["–", "–"]);
            [section.targets[0].met, section.targets[1].met]
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!([met(10, 80, 100), met(11, 80, 150), met(0, 0, 0)], [[yes, yes], [no, yes], [None, no]]);
    }

    #[test]
    fn jobs_that_rehearse_are_cases_of_their_own_and_judged_likewise() {
        let cases = question(false, 2).cases;
        let names: Vec<&str> = cases.iter().filter(|case| rehearses(case)).map(|case| &*case.name).collect();
        let rehearsed = ["shm-2-64KiB", "shm-8-16KiB", "tcp-4-64KiB"].map(|name| format!("alike-{name}-rehearsed"));
        assert_eq!(names, rehearsed);
        assert_eq!(cases.len(), PLACES.len() + names.len());
        let judged = |reported: usize| {
            let run = json!({"alike": [{"bytes": 65536, "jobs": 200, "reported": reported, "trials": 150, "found": 190,
                "rehearsal_s": 0.25, "rehearsal_reported": 3}]});
            let case = case((Links::Shm, 2, 64 << 10), [200, 600], REHEARSAL_S, 2);
            judge(&[Measured { case, runs: vec![run], failures: Vec::new() }])
        };
        let section = judged(10);
        assert_eq!(section.tables[0].rows[0][13..], ["0.25 s", "3"]);
        assert!(section.targets[0].case.ends_with("shm, 2 ranks, rehearsed"), "{}", section.targets[0].case);
        assert_eq!([section.targets[0].met, judged(11).targets[0].met], [Some(true), Some(false)]);
    }
}
