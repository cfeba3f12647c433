//! The calls of a large language model against the best configuration that could have been set before the job: one for each collective,
//! the same for all sizes. Who sets it would have to know the truth.

use paceline_tune::Tuner;
use paceline_tune::environment::Mix;
use paceline_tune::simulation::{self, LEARNED, Totals};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target};
use super::super::{Over, Section, in_words};
use super::{SEEDS, machine, of_machine};
use crate::compare::Error;

/// Those of the long test (crates/tune/tests/promises.rs), as many iterations and as many seeds: others.
const CLUSTERS: [&str; 2] = ["25gbe+pcie4:8x4", "study-10gbe:8x4"];
const ITERATIONS: u64 = 1000;
const COUNT: u64 = 20;
/// The tuner's total over the fixed configuration's.
const OVER_FIXED: f64 = 1.0;

/// A cluster; all totals are over the fixed configuration's, seed by seed.
#[derive(Serialize)]
struct Row {
    cluster: &'static str,
    seeds: u64,
    /// Calls after the first [`LEARNED`] of their context.
    learned: Option<Over>,
    /// All calls, those of finding out included.
    all: Option<Over>,
    /// What there is to gain: the best of everything, call by call, in the same calls as `learned`.
    best: Option<Over>,
    /// Seeds in which the tuner takes less in these.
    ahead: usize,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (clusters, iterations, seeds) =
        if quick { (&CLUSTERS[..1], 20, 1) } else { (&CLUSTERS[..], ITERATIONS, COUNT) };
    let mut rows = Vec::new();
    for &cluster in clusters {
        rows.push(row(cluster, iterations, seeds)?);
    }
    let targets = if quick { Vec::new() } else { rows.iter().flat_map(targets).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn row(cluster: &'static str, iterations: u64, seeds: u64) -> Result<Row, Error> {
    let machine = machine(cluster)?;
    let workload = Mix::small_workload(machine.hosts, machine.workers_per_host);
    let (mut learned, mut all, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for seed in SEEDS..SEEDS + seeds {
        let mut tuner = Tuner::shipped(seed);
        let outcome = simulation::run(&mut of_machine(&machine, seed), &workload, &mut tuner, iterations, seed);
        let mut later = Totals::default();
        outcome.contexts.values().for_each(|progress| later.add(&progress.learned));
        learned.extend(over_fixed(later.tuned_s, &later));
        best.extend(over_fixed(later.oracle_s, &later));
        all.extend(outcome.totals.last().and_then(|total| over_fixed(total.tuned_s, total)));
    }
    let ahead = learned.iter().filter(|over| **over < OVER_FIXED).count();
    let [learned, all, best] = [learned, all, best].map(|values| Over::of(&values));
    Ok(Row { cluster, seeds, learned, all, best, ahead })
}

/// None: there were no such calls.
fn over_fixed(seconds: f64, totals: &Totals) -> Option<f64> {
    (totals.fixed_s > 0.0).then(|| seconds / totals.fixed_s)
}

/// The tuner is better once it has learned, and with all that this has cost.
fn targets(row: &Row) -> [Target; 2] {
    let after = format!("after {LEARNED} calls of each kind");
    [(after, &row.learned), ("with all that finding out has cost".to_owned(), &row.all)].map(|(when, over)| Target {
        case: format!("simulated: calls of a large language model on {}, {when}", row.cluster),
        demanded: format!("total over that of the best configuration for each collective < {OVER_FIXED}"),
        found: in_words(over.as_ref()),
        met: over.as_ref().and_then(|over| over.is_at_most(OVER_FIXED)),
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: calls of a large language model, and one configuration for each collective",
        format!(
            "The llm-3d mix with 8 layers, 4 micro-batches of three lengths and messages of a sixteenth, at most four calls of a kind in each of \
             {ITERATIONS} iterations. The fixed configuration is the same for all sizes of a collective, and the best of all that there are \
             by the truth: no job knows it. Totals over its total, mean over seeds ± its 95 % interval: of the tuner after the first \
             {LEARNED} calls of each kind; of the tuner with all calls, those of finding out included; and of the best of everything, call \
             by call, after the first {LEARNED}, which is what there is to gain. \"Ahead\": seeds in which the tuner takes less then."
        ),
        &["cluster", "seeds", "after 300", "all calls", "the best of everything", "ahead"],
    );
    table.rows.extend(rows.iter().map(|row| {
        let [learned, all, best] = [&row.learned, &row.all, &row.best].map(|over| in_words(over.as_ref()));
        vec![row.cluster.to_owned(), row.seeds.to_string(), learned, all, best, row.ahead.to_string()]
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_configuration_is_beaten_by_more_than_seeds_leave_open() {
        let over = |values: &[f64]| Over::of(values);
        let row = |learned: &[f64], all: &[f64]| Row {
            cluster: CLUSTERS[0],
            seeds: 3,
            learned: over(learned),
            all: over(all),
            best: None,
            ahead: 3,
        };
        let met = |row: Row| targets(&row).map(|target| target.met);
        let [less, open, more] = [[0.98, 0.981, 0.979], [0.9, 1.05, 1.0], [1.03, 1.031, 1.029]];
        assert_eq!(met(row(&less, &more)), [Some(true), Some(false)]);
        assert_eq!(met(row(&open, &[])), [None, None]);
        let table = table(&[row(&less, &more)]);
        assert_eq!(table.rows[0].len(), table.columns.len());
        assert!(table.rows[0][2].starts_with("0.980 ±") && table.rows[0][4] == "–", "{:?}", table.rows);
    }

    /// Each in every iteration, so that its first 300 are made long before the last one.
    #[test]
    fn every_kind_of_call_is_made_and_none_often() {
        for name in CLUSTERS {
            let machine = machine(name).expect("it is built in");
            let calls = Mix::small_workload(machine.hosts, machine.workers_per_host).calls;
            assert!(calls.len() > 3 && calls.iter().all(|call| (1..=4).contains(&call.times)), "{calls:?}");
        }
    }
}
