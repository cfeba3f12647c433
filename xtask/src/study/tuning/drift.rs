//! The lab's rate drops to a fifth while a tuned world lives, and comes back: how soon does the tuner take as long as the best
//! that there is then?

use serde_json::{Value, json};

use super::super::report::Table;
use super::sizes::{cut_off, rehearsal_s, search_ended, size};
use super::world::{Case, Links};
use super::{Measured, Over, Question, Section, in_words, numbers, together};

/// From the 100th call after a change on: the tuner's total over the best's.
const OVER_ORACLE_MAX: f64 = 1.05;
const HOSTS: usize = 4;
const SIZES: [usize; 5] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Calls while it learns, and after each change.
const LEARNING: usize = 400;
const COMPARED: usize = 300;
/// Of each network.
const SEARCH_S: f64 = 60.0;
/// How many times as long a call takes while the network is slow.
const SLOWER: f64 = 5.0;

pub fn question(quick: bool, cores: usize) -> Question {
    let cases = if quick {
        vec![case(2, 64 << 10, [32, 120], 0.5, cores)]
    } else {
        SIZES.map(|bytes| case(HOSTS, bytes, [LEARNING, COMPARED], SEARCH_S, cores)).into()
    };
    Question { name: "drift", cases, runs: 3, is_enough: |_| false, judge }
}

fn case(hosts: usize, bytes: usize, calls: [usize; 2], search_s: f64, cores: usize) -> Case {
    let [learning, compared] = calls;
    let call_s = Links::Lab.call_s(hosts, bytes, cores);
    let rehearsal_s = rehearsal_s(call_s);
    let words = [
        ("--max", bytes.to_string()),
        ("--min", bytes.to_string()),
        ("--tune-calls", learning.to_string()),
        ("--tune-compared", compared.to_string()),
        ("--tune-search", search_s.to_string()),
        ("--tune-rehearsal", rehearsal_s.to_string()),
    ];
    let arguments = ["--tune", "--tune-drift"].map(str::to_owned).into_iter();
    // The tuner, the default, and the best of each network.
    let calls = 4.0 * (learning as f64 + compared as f64 * (1.0 + SLOWER));
    Case {
        name: format!("drift-{hosts}-{}", size(bytes as f64)),
        links: Links::Lab,
        ranks: hosts,
        per_host: 1,
        arguments: arguments.chain(words.into_iter().flat_map(|(word, value)| [word.to_owned(), value])).collect(),
        seconds: 5.0 + 2.0 * search_s + rehearsal_s + calls * call_s,
    }
}

fn drifts(runs: &[Value]) -> Vec<&Value> {
    runs.iter().map(|run| &run["drift"]).collect()
}

/// Of each run, what came after a change.
fn phases(runs: &[Value], place: usize) -> Vec<&Value> {
    runs.iter().map(|run| &run["drift"]["phases"][place]).collect()
}

/// Of each run, how often the network was taken for changed in a phase. What a run counts goes on from phase to phase.
fn noticed(runs: &[Value], place: usize) -> Vec<Option<u64>> {
    let so_far = |run: &Value, place: usize| run["drift"]["phases"][place]["drifts"].as_u64();
    let in_phase = |run: &Value| {
        let before = if place == 0 { 0 } else { so_far(run, place - 1)? };
        Some(so_far(run, place)?.saturating_sub(before))
    };
    runs.iter().map(in_phase).collect()
}

/// What is demanded is demanded of all that the tuner takes, and shown of its calls alone, too: the fields of a phase.
const COUNTED: [(&str, &str); 2] = [("boundaries included", "over_oracle"), ("calls alone", "calls_over_oracle")];

/// The phases, and what they are called.
const PHASES: [(usize, &str); 3] = [(0, "as it was"), (1, "down to 200 Mbit/s"), (2, "back at 1 Gbit/s")];

fn judge(all: &[Measured]) -> Section {
    let mut table = Table::new(
        "A network that changes",
        format!(
            "All-reduces in the lab, whose NICs fall from 1 Gbit/s to 200 Mbit/s while the world lives, and come back. The best of \
             the default and of what a search in each of the two networks has found takes turns with the tuner, which has rehearsed in the \
             network as it was (for five seconds, or as long as 300 calls take). \"Recovered\": \
             calls after the change until 20 together took at most 5 % longer than the best, run by run. \"Over best\": totals \
             from the 100th call on, boundaries after every 4 calls included or not, mean over the runs (≤ {OVER_ORACLE_MAX} is demanded); \
             \"at first\": of calls 100 to 199 alone, boundaries included. \"Cut off\": a search's time was over before all were called, so \
             that a better one may have been missed: being near what was found is undecided then. \
             \"Changes noticed\": how often the network was taken for changed in these calls, run by run; there is one change in \
             the second and the third, and none in the first."
        ),
        &[
            "hosts",
            "size",
            "network",
            "runs",
            "recovered",
            "over best",
            "calls over best",
            "at first",
            "over default",
            "changes noticed",
            "the best",
            "the tuner's",
        ],
    );
    let (mut targets, mut measured) = (Vec::new(), Vec::new());
    for (place, name) in PHASES {
        for one in all {
            let runs = phases(&one.runs, place);
            let over = COUNTED.map(|(_, field)| Over::of(&numbers(runs.iter().copied(), field)));
            let noticed = noticed(&one.runs, place);
            table.rows.push(row(one, name, &runs, &over, &noticed));
            measured.push(json!({"case": one.case.name, "network": name, "over_oracle": over[0],
                "calls_over_oracle": over[1], "changes_noticed": noticed, "runs": runs}));
        }
        // Before the first change nothing is demanded here; that is what `sizes` asks.
        if place == 0 {
            continue;
        }
        for (counted, field) in COUNTED {
            let found = all.iter().filter_map(|one| {
                let over = Over::of(&numbers(phases(&one.runs, place), field))?;
                // Of a search that was cut off, nobody knows what it has missed: only a miss is certain then.
                let met = over.is_at_most(OVER_ORACLE_MAX).filter(|met| !met || search_ended(&drifts(&one.runs)));
                Some((one.case.name.clone(), over.mean, met))
            });
            let demanded = format!("each size: from 100 calls after it on, total over the best's ≤ {OVER_ORACLE_MAX}");
            targets.push(together(format!("the network is {name}, {counted}"), demanded, &found.collect::<Vec<_>>()));
        }
    }
    Section { targets, tables: vec![table], measured: Value::Array(measured) }
}

fn row(
    one: &Measured,
    network: &str,
    runs: &[&Value],
    over_oracle: &[Option<Over>; 2],
    noticed: &[Option<u64>],
) -> Vec<String> {
    let recovered = runs.iter().map(|run| run["recovered_after"].as_u64());
    let last = |name: &str| super::last_text(runs, name);
    vec![
        one.case.ranks.to_string(),
        one.case.name.rsplit('-').next().unwrap_or_default().to_owned(),
        network.to_owned(),
        runs.len().to_string(),
        each(recovered, "never"),
        in_words(over_oracle[0].as_ref()),
        in_words(over_oracle[1].as_ref()),
        in_words(Over::of(&numbers(runs.iter().copied(), "over_oracle_at_first")).as_ref()),
        in_words(Over::of(&numbers(runs.iter().copied(), "over_default")).as_ref()),
        each(noticed.iter().copied(), "–"),
        last("oracle") + cut_off(&drifts(&one.runs)),
        last("chosen"),
    ]
}

/// A number of each run, in order.
fn each(numbers: impl Iterator<Item = Option<u64>>, none: &str) -> String {
    let texts: Vec<String> =
        numbers.map(|number| number.map_or_else(|| none.to_owned(), |number| number.to_string())).collect();
    if texts.is_empty() { "–".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `drifts`: so far.
    fn phase(recovered_after: Option<usize>, over_oracle: f64, drifts: u32) -> Value {
        json!({"recovered_after": recovered_after, "over_oracle": over_oracle, "calls_over_oracle": 1.0, "over_default": 0.9,
            "drifts": drifts, "oracle": "ring", "chosen": "default"})
    }

    #[test]
    fn a_search_that_was_cut_off_proves_no_success() {
        let cut = |over: f64| {
            let phases = [phase(Some(0), 1.0, 0), phase(Some(80), over, 1), phase(Some(80), over, 2)];
            let run = json!({"drift": {"search_ended": false, "phases": phases}});
            let measured =
                Measured { case: case(4, 1 << 20, [400, 300], 60.0, 2), runs: vec![run], failures: Vec::new() };
            judge(&[measured])
        };
        assert!(cut(1.02).targets.iter().all(|target| target.met.is_none()));
        assert_eq!(cut(1.2).targets[0].met, Some(false));
        assert_eq!(cut(1.2).tables[0].rows[1][10], "ring, cut off");
    }

    #[test]
    fn both_changes_are_judged_and_the_beginning_is_not() {
        let run = json!({"drift": {"phases": [phase(Some(0), 1.2, 1), phase(Some(80), 1.04, 3), phase(None, 1.3, 4)]}});
        let measured = Measured { case: case(4, 1 << 20, [400, 300], 60.0, 2), runs: vec![run], failures: Vec::new() };
        let section = judge(&[measured]);
        let met: Vec<Option<bool>> = section.targets.iter().map(|target| target.met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(false), Some(true)]);
        let rows = &section.tables[0].rows;
        assert!(rows.iter().all(|row| row.len() == section.tables[0].columns.len()));
        assert_eq!((&*rows[1][1], &*rows[1][4], &*rows[2][4]), ("1MiB", "80", "never"));
        let noticed: Vec<&str> = rows.iter().map(|row| &*row[9]).collect();
        assert_eq!(noticed, ["1", "2", "1"], "each phase's own");
        assert_eq!(section.measured[1]["changes_noticed"], json!([2]));
    }
}
