//! Which learner ships: all of them with the same guard and the same trials, on the same clusters.

use std::fmt;

use crate::environment::{SimulatedCluster, Workload};
use crate::learner::{LEARNERS, by_name};
use crate::simulation;
use crate::tuner::Tuner;

/// How a learner has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub learner: &'static str,
    /// The share of the oracle's time by which all calls took longer, those of finding out included: the mean over seeds.
    pub regret: f64,
    /// The same of calls after the first 300 of their context: what it has settled for.
    pub learned: f64,
    /// The share of the default's time that all calls saved; negative if they took longer.
    pub saved: f64,
    /// The largest total over the default's, from 100 calls on, of all contexts and seeds.
    pub worst_prefix: f64,
    /// Times that a network was taken for changed. Of one that never does, all are wrong.
    pub drifts: u32,
}

/// All learners on the same clusters and calls, the best first by what they have settled for. `cluster` makes one from a seed.
pub fn learners(
    cluster: impl Fn(u64) -> SimulatedCluster,
    workload: &Workload,
    iterations: u64,
    seeds: std::ops::Range<u64>,
) -> Vec<Row> {
    let mut rows: Vec<Row> =
        LEARNERS.iter().filter_map(|name| row(name, &cluster, workload, iterations, seeds.clone())).collect();
    rows.sort_by(|one, other| one.learned.total_cmp(&other.learned));
    rows
}

fn row(
    learner: &'static str,
    cluster: &impl Fn(u64) -> SimulatedCluster,
    workload: &Workload,
    iterations: u64,
    seeds: std::ops::Range<u64>,
) -> Option<Row> {
    let mut row = Row { learner, regret: 0.0, learned: 0.0, saved: 0.0, worst_prefix: 0.0, drifts: 0 };
    let share = 1.0 / (seeds.end - seeds.start).max(1) as f64;
    for seed in seeds {
        let mut tuner = Tuner::new(by_name(learner)?, seed);
        let outcome = simulation::run(&mut cluster(seed), workload, &mut tuner, iterations, seed);
        let all = outcome.totals.last().copied().unwrap_or_default();
        row.regret += share * all.over_oracle();
        row.saved += share * all.saved();
        let contexts = outcome.contexts.values().filter(|progress| progress.learned.calls > 0);
        let over: Vec<f64> = contexts.map(|progress| progress.learned.over_oracle()).collect();
        row.learned += share * over.iter().sum::<f64>() / over.len().max(1) as f64;
        row.worst_prefix =
            outcome.contexts.values().map(|progress| progress.worst_prefix).fold(row.worst_prefix, f64::max);
        row.drifts += tuner.courses().map(|(_, course)| course.drifts).sum::<u32>();
    }
    Some(row)
}

/// A table of [`Row`]s.
#[derive(Clone, Debug)]
pub struct Comparison(pub Vec<Row>);

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<20} {:>14} {:>16} {:>8} {:>21}",
            "learner", "after 300", "with learning", "saved", "at worst of default"
        )?;
        for row in &self.0 {
            let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
            writeln!(
                f,
                "{:<20} {:>14} {:>16} {:>8} {:>21.4}",
                row.learner,
                percent(row.learned),
                percent(row.regret),
                percent(row.saved),
                row.worst_prefix
            )?;
        }
        Ok(())
    }
}
