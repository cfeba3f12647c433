//! What is learned on clusters with NVLink and InfiniBand, on others that have neither.

use paceline_tune::environment::{SimulatedCluster, Workload};
use paceline_tune::guard::Guard;
use paceline_tune::learner::Learner;
use paceline_tune::{Tuner, simulation};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target};
use super::super::{Over, Section, in_words};
use super::cluster;
use crate::compare::Error;

const TRAINED: [&str; 2] = ["hdr+nvlink3:4x4", "roce+nvlink2:4x4"];
const UNSEEN: [&str; 2] = ["10gbe+pcie3:4x4", "1gbe+pcie3:4x4"];
const HOSTS: u32 = 4;
const WORKERS: u32 = 16;
/// How far the truth is from the model follows from a seed: elsewhere it is another one. Half of what families are off by is the
/// library's, though, which is the same everywhere: that can be learned beforehand.
const ELSEWHERE: u64 = 1_000;

/// Regret on one unseen cluster, as ratios: what is chosen over the best.
#[derive(Serialize)]
struct Row {
    cluster: &'static str,
    seeds: u64,
    /// Asked once and for all, trained there, elsewhere, or not at all.
    there: Option<Over>,
    elsewhere: Option<Over>,
    untrained: Option<Over>,
    /// The regret of who was trained elsewhere, and of who was not trained, over that of who was trained there.
    elsewhere_over_there: Option<Over>,
    untrained_over_there: Option<Over>,
    /// The one over the other, seed by seed: below 1, what was learned elsewhere helps.
    elsewhere_over_untrained: Option<Over>,
    /// All calls of a job there, which learns from the first one on: begun untrained, and trained elsewhere.
    job_untrained: Option<Over>,
    job_elsewhere: Option<Over>,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (seeds, iterations) = if quick { (1, 12) } else { (20, 300) };
    let workload = Workload::data_parallel(HOSTS, WORKERS);
    let mut rows = Vec::new();
    for name in UNSEEN {
        let mut values: [Vec<f64>; 5] = Default::default();
        for seed in 1..=seeds {
            let elsewhere = trained(&TRAINED, &workload, iterations, (seed + ELSEWHERE, seed))?;
            let there = trained(&[name], &workload, iterations, (seed, seed))?;
            let untrained = Tuner::shipped(seed);
            let mut target = cluster(name, seed)?;
            for (value, tuner) in values.iter_mut().zip([&there, &elsewhere, &untrained]) {
                value.push(regret(&mut target, tuner.learner(), &workload));
            }
            for (value, mut tuner) in values[3..].iter_mut().zip([untrained, elsewhere]) {
                let outcome = simulation::run(&mut cluster(name, seed)?, &workload, &mut tuner, iterations, seed);
                value.extend(outcome.totals.last().map(|totals| 1.0 + totals.over_oracle()));
            }
        }
        let ratio = |one: usize, other: usize| {
            Over::of(&values[one].iter().zip(&values[other]).map(|(one, other)| one / other).collect::<Vec<f64>>())
        };
        let (elsewhere_over_there, untrained_over_there) = (ratio(1, 0), ratio(2, 0));
        let elsewhere_over_untrained = ratio(1, 2);
        let [there, elsewhere, untrained, job_untrained, job_elsewhere] = values.map(|values| Over::of(&values));
        rows.push(Row {
            cluster: name,
            seeds,
            there,
            elsewhere,
            untrained,
            elsewhere_over_there,
            untrained_over_there,
            elsewhere_over_untrained,
            job_untrained,
            job_elsewhere,
        });
    }
    let targets = if quick { Vec::new() } else { rows.iter().flat_map(targets).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

/// A tuner that has run jobs on these clusters, one after the other: drawn from a seed, with the library of another.
fn trained(names: &[&str], workload: &Workload, iterations: u64, (seed, library): (u64, u64)) -> Result<Tuner, Error> {
    let mut tuner = Tuner::shipped(seed);
    for name in names {
        let mut cluster = cluster(name, seed)?.of_library(library);
        simulation::run(&mut cluster, workload, &mut tuner, iterations, seed);
    }
    Ok(tuner)
}

/// What a learner would choose, asked once and for all, over the best: the geometric mean over the calls.
fn regret(cluster: &mut SimulatedCluster, learner: &dyn Learner, workload: &Workload) -> f64 {
    let mut logs = Vec::new();
    for call in &workload.calls {
        let state = cluster.state(call, 0);
        let Some(situation) = cluster.situation(&state).cloned() else { continue };
        let admitted = Guard::default().admitted(&situation);
        let best = cluster.oracle(&situation, 0);
        let chosen = learner.best(&situation, &admitted);
        logs.push((cluster.truth_s(&situation, chosen, 0) / cluster.truth_s(&situation, best, 0)).ln());
    }
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Who was trained there must be better than who was not. Who was trained elsewhere is compared with who was trained there: what that
/// leaves must be less than what no training leaves, by more than seeds leave open.
fn targets(row: &Row) -> [Target; 2] {
    let ratio = row.there.as_ref().zip(row.untrained.as_ref()).map(|(there, untrained)| there.mean / untrained.mean);
    let there = Target::at_most(
        format!("simulated: trained on {}", row.cluster),
        "regret ratio over that of an untrained agent",
        1.0,
        ratio,
    );
    let elsewhere = Target {
        case: format!("simulated: trained on {}, asked on {}", TRAINED.join(" and "), row.cluster),
        demanded: "regret ratio over that of an agent trained there: below an untrained agent's".into(),
        found: format!(
            "{}, untrained {}",
            in_words(row.elsewhere_over_there.as_ref()),
            in_words(row.untrained_over_there.as_ref())
        ),
        met: row.elsewhere_over_untrained.as_ref().and_then(|over| over.is_at_most(1.0)),
    };
    [there, elsewhere]
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: clusters that were not seen",
        format!(
            "All-reduces of data-parallel training among {WORKERS} workers on {HOSTS} hosts. Trained elsewhere: on {}. What is chosen, \
             asked once and for all, over the best; how far truth and model differ is drawn anew there, but for the half that is the library's \
             (geometric mean over calls; mean over seeds ± its 95 % interval); and all calls \
             of a job there, which learns from the first one on.",
            TRAINED.join(" and ")
        ),
        &[
            "cluster",
            "seeds",
            "trained there",
            "trained elsewhere",
            "untrained",
            "elsewhere over there",
            "untrained over there",
            "a job, begun untrained",
            "a job, begun with what was learned elsewhere",
        ],
    );
    table.rows.extend(rows.iter().map(|row| {
        let mut texts = vec![row.cluster.to_owned(), row.seeds.to_string()];
        let over = [
            &row.there,
            &row.elsewhere,
            &row.untrained,
            &row.elsewhere_over_there,
            &row.untrained_over_there,
            &row.job_untrained,
            &row.job_elsewhere,
        ];
        texts.extend(over.map(|over| in_words(over.as_ref())));
        texts
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_elsewhere_must_help_by_more_than_seeds_leave_open() {
        let met = |there: f64, elsewhere_over_untrained: &[f64]| {
            let over = |value: f64| Over::of(&[value]);
            let row = Row {
                cluster: UNSEEN[0],
                seeds: 3,
                there: over(there),
                elsewhere: over(1.2),
                untrained: over(1.3),
                elsewhere_over_there: over(1.2 / there),
                untrained_over_there: over(1.3 / there),
                elsewhere_over_untrained: Over::of(elsewhere_over_untrained),
                job_untrained: None,
                job_elsewhere: None,
            };
            let targets = targets(&row);
            assert_eq!(targets[1].found, format!("{:.3}, untrained {:.3}", 1.2 / there, 1.3 / there));
            assert_eq!(table(&[row]).rows[0].len(), table(&[]).columns.len());
            targets.map(|target| target.met)
        };
        assert_eq!(met(1.1, &[0.9, 0.91, 0.92]), [Some(true); 2]);
        assert_eq!(met(1.4, &[1.1, 1.11, 1.12]), [Some(false); 2]);
        assert_eq!(met(1.1, &[0.9, 1.0, 1.1]), [Some(true), None]);
        assert_eq!(met(1.1, &[]), [Some(true), None]);
    }
}
