//! What this machine is too small for, on clusters that are simulated: promises kept over many of them, the best configuration for each
//! collective met, learners compared, gains reported where there are none, what is learned on some and used on others, which features
//! decide, what the tuner loses that does not see them, and iterations of training at 1 to 32 workers.

mod ablations;
mod crossovers;
mod fixed;
mod generalisation;
mod honesty;
mod iterations;

use paceline_plan::{Cluster, CollectiveKind};
use paceline_tune::comparison::learners;
use paceline_tune::environment::{Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
use paceline_tune::{Congestion, Parallelism, State, TopologyClass, Transport, Tuner, simulation};
use serde::Serialize;
use serde_json::json;

use super::super::report::{Table, Target, percent};
use super::{Over, Section, in_words};
use crate::compare::Error;

/// All calls together, from 100 on, over the default's.
const PREFIX_MAX: f64 = 1.02;
/// What a context takes after its first 300 calls over the best, in the mean.
const LEARNED_MAX: f64 = 1.03;
/// Of contexts by themselves, so many may be above [`PREFIX_MAX`]: the last call that is tried may take longer than anybody
/// believed.
const ABOVE_SHARE_MAX: f64 = 0.005;

/// Clusters, calls and iterations. Most of the mix is in the conservative regime, which may spend half of what others may.
const PROMISED: [(&str, &str, u64); 4] = [
    ("study-100gbe:4x1", "data-parallel", 400),
    ("study-10gbe:8x4", "data-parallel", 400),
    ("1gbe+pcie3:8x1", "data-parallel", 400),
    // Its rarest calls are one in an iteration.
    ("25gbe+pcie4:8x4", "llm-3d", 400),
];

/// The first seed of clusters that are drawn: none of those at which limits were chosen (docs/tuning.md).
const SEEDS: u64 = 301;

/// A bucket of gradients among 8 hosts, of a model of low intensity. Questions change of it what they ask about.
const STATE: State = State {
    collective: CollectiveKind::AllReduce,
    bytes: 1 << 20,
    ranks: 8,
    hosts: 8,
    model_intensity: 100.0,
    local_batch: 8,
    has_nvlink: false,
    transport: Transport::Tcp10g,
    topology: TopologyClass::Flat,
    is_ps_deployment: false,
    is_pipelined_layer: false,
    is_fused_call: true,
    parallelism: Parallelism::Data,
    congestion: Congestion::None,
};

pub fn run(quick: bool) -> Result<Section, Error> {
    let mut all = Section::default();
    let mut measured = serde_json::Map::new();
    for (name, section) in [
        ("promises", promises(quick)?),
        ("fixed", fixed::run(quick)?),
        ("learners", compared(quick)?),
        ("honesty", honesty::run(quick)?),
        ("generalisation", generalisation::run(quick)?),
        ("crossovers", crossovers::run(quick)?),
        ("ablations", ablations::run(quick)?),
        ("iterations", iterations::run(quick)?),
    ] {
        all.targets.extend(section.targets);
        all.tables.extend(section.tables);
        measured.insert(name.to_owned(), section.measured);
    }
    Ok(Section { measured: measured.into(), ..all })
}

/// A cluster by name, whose truth is drawn from the seed.
fn cluster(name: &str, seed: u64) -> Result<SimulatedCluster, Error> {
    Ok(of_machine(&machine(name)?, seed))
}

fn of_machine(machine: &Cluster, seed: u64) -> SimulatedCluster {
    SimulatedCluster::new(Box::new(OwnModel::of(machine)), Misfit::USUAL, Disturbances::usual(), seed)
}

fn machine(name: &str) -> Result<Cluster, Error> {
    Cluster::named(name).map_err(|error| format!("{name}: {error}").into())
}

fn workload(name: &str, machine: &Cluster) -> Result<Workload, Error> {
    Workload::named(name, machine.hosts, machine.workers_per_host).map_err(|error| error.to_string().into())
}

/// What is promised, on clusters that differ by chance.
#[derive(Serialize)]
struct Kept {
    cluster: &'static str,
    workload: &'static str,
    seeds: u64,
    contexts: usize,
    /// Of them, those that had more than 300 calls.
    learned_contexts: usize,
    /// What these take after them, over the best.
    learned: Option<Over>,
    /// Of all calls, seed by seed: at worst over the default's.
    prefix: Option<Over>,
    /// Contexts that were above the promise by themselves, and the worst of them all.
    above: usize,
    worst_context: f64,
    /// The share of the default's time that all calls saved, those of finding out included.
    saved: Option<Over>,
}

fn promises(quick: bool) -> Result<Section, Error> {
    let (count, seeds) = if quick { (1, SEEDS..SEEDS + 1) } else { (PROMISED.len(), SEEDS..SEEDS + 14) };
    let mut kept = Vec::new();
    for &(name, mix, iterations) in &PROMISED[..count] {
        let iterations = if quick { 40 } else { iterations };
        let machine = machine(name)?;
        let workload = workload(mix, &machine)?;
        let (mut learned, mut prefixes, mut saved) = (Vec::new(), Vec::new(), Vec::new());
        let (mut contexts, mut above, mut worst_context) = (0, 0, 0.0f64);
        for seed in seeds.clone() {
            let mut tuner = Tuner::shipped(seed);
            let outcome = simulation::run(&mut of_machine(&machine, seed), &workload, &mut tuner, iterations, seed);
            prefixes.push(outcome.worst_prefix);
            saved.extend(outcome.totals.last().map(simulation::Totals::saved));
            for progress in outcome.contexts.values() {
                contexts += 1;
                above += usize::from(progress.worst_prefix > PREFIX_MAX);
                worst_context = worst_context.max(progress.worst_prefix);
                if progress.learned.calls > 0 {
                    learned.push(1.0 + progress.learned.over_oracle());
                }
            }
        }
        let learned_contexts = learned.len();
        let [learned, prefix, saved] = [learned, prefixes, saved].map(|values| Over::of(&values));
        let seeds = seeds.clone().count() as u64;
        kept.push(Kept {
            cluster: name,
            workload: mix,
            seeds,
            contexts,
            learned_contexts,
            learned,
            prefix,
            above,
            worst_context,
            saved,
        });
    }
    Ok(Section { targets: promise_targets(&kept), tables: vec![promise_table(&kept)], measured: json!(kept) })
}

fn promise_targets(kept: &[Kept]) -> Vec<Target> {
    let place = |one: &Kept| format!("simulated: {} on {}", one.workload, one.cluster);
    let mut targets = Vec::new();
    for one in kept {
        let worst = one.prefix.as_ref().map(|prefix| prefix.worst);
        targets.push(Target::at_most(
            place(one),
            "all calls over the default's, from 100 on, any seed",
            PREFIX_MAX,
            worst,
        ));
        let mean = one.learned.as_ref().map(|learned| learned.mean);
        targets.push(Target::at_most(place(one), "contexts after 300 calls over the best, mean", LEARNED_MAX, mean));
    }
    let (above, contexts) = kept.iter().fold((0, 0), |(above, all), one| (above + one.above, all + one.contexts));
    let share = (contexts > 0).then(|| above as f64 / contexts as f64);
    let what = format!("share of contexts above {PREFIX_MAX} by themselves");
    targets.push(Target::at_most("simulated: single contexts", &what, ABOVE_SHARE_MAX, share));
    targets
}

fn promise_table(kept: &[Kept]) -> Table {
    let mut table = Table::new(
        "Simulated: what is promised",
        "\"After 300\": what contexts take after their first 300 calls over the best, of as many as had more, mean, and of the worst single context. \
         \"Prefix\": all calls over the default's, at worst from 100 calls on, of all seeds; \"worst context\": the same of single contexts. \"Saved\": of the default's \
         time, by all calls, those of finding out included.",
        &[
            "cluster",
            "calls",
            "seeds",
            "contexts",
            "with more than 300 calls",
            "after 300",
            "after 300, at worst",
            "prefix",
            "worst context",
            "contexts above",
            "saved",
        ],
    );
    table.rows.extend(kept.iter().map(|one| {
        vec![
            one.cluster.to_owned(),
            one.workload.to_owned(),
            one.seeds.to_string(),
            one.contexts.to_string(),
            one.learned_contexts.to_string(),
            in_words(one.learned.as_ref()),
            one.learned.as_ref().map_or_else(|| "–".to_owned(), |learned| format!("{:.3}", learned.worst)),
            one.prefix.as_ref().map_or_else(|| "–".to_owned(), |prefix| format!("{:.4}", prefix.worst)),
            format!("{:.4}", one.worst_context),
            one.above.to_string(),
            percent(one.saved.as_ref().map(|saved| saved.mean)),
        ]
    }));
    table
}

/// All learners with the same guard and the same trials, on the same clusters.
fn compared(quick: bool) -> Result<Section, Error> {
    let clusters = ["study-100gbe:4x1", "study-10gbe:8x4"];
    let (count, iterations, seeds) =
        if quick { (1, 40, SEEDS..SEEDS + 1) } else { (clusters.len(), 500, SEEDS..SEEDS + 10) };
    let mut table = Table::new(
        "Simulated: learners",
        "Calls of data-parallel training; the same guard and trials. Means over ten clusters that differ by chance: what contexts take \
         after 300 calls over the best; all calls over the best; what all calls save of the default's time. \"Prefix\": the \
         worst context from 100 calls on over the default's.",
        &["cluster", "learner", "after 300", "all calls", "saved", "prefix", "changes noticed wrongly"],
    );
    let (mut targets, mut measured) = (Vec::new(), Vec::new());
    for name in &clusters[..count] {
        let machine = machine(name)?;
        let workload = workload("data-parallel", &machine)?;
        let rows = learners(|seed| of_machine(&machine, seed), &workload, iterations, seeds.clone());
        let shipped = Tuner::shipped(0).learner().name();
        if !quick {
            let best = rows.first().map_or("none", |row| row.learner);
            targets.push(Target {
                case: format!("simulated: learners on {name}"),
                demanded: "the one that ships settles for least".into(),
                found: format!("{best} settles for least, {shipped} ships"),
                met: Some(best == shipped),
            });
        }
        for row in rows {
            let fields = [row.learned, row.regret, row.saved].map(|share| percent(Some(share)));
            let mut texts = vec![(*name).to_owned(), row.learner.to_owned()];
            texts.extend(fields);
            texts.extend([format!("{:.4}", row.worst_prefix), row.drifts.to_string()]);
            table.rows.push(texts);
            measured
                .push(json!({"cluster": name, "learner": row.learner, "learned": row.learned, "regret": row.regret,
                "saved": row.saved, "worst_prefix": row.worst_prefix, "drifts": row.drifts}));
        }
    }
    Ok(Section { targets, tables: vec![table], measured: json!(measured) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_context_stands_beside_the_mean_which_is_judged_of_every_mix() {
        let over = |values: &[f64]| Over::of(values);
        let kept = Kept {
            cluster: "study-100gbe:4x1",
            workload: "llm-3d",
            seeds: 1,
            contexts: 3,
            learned_contexts: 3,
            learned: over(&[1.0, 1.0, 1.3]),
            prefix: over(&[1.0]),
            above: 0,
            worst_context: 1.01,
            saved: over(&[0.3]),
        };
        let judged = promise_targets(std::slice::from_ref(&kept));
        assert!(judged.iter().any(|it| it.demanded.contains("mean") && it.met == Some(false)), "{judged:?}");
        let table = promise_table(&[kept]);
        let place = table.columns.iter().position(|column| column == "after 300, at worst").expect("a column");
        assert!(table.rows[0][place - 1].starts_with("1.100"), "{:?}", table.rows);
        assert_eq!(table.rows[0][place], "1.300");
    }

    #[test]
    fn the_smallest_cases_fill_every_table() {
        let section = run(true).expect("all clusters and models are built in");
        assert_eq!(section.tables.len(), 8);
        for table in &section.tables {
            assert!(!table.rows.is_empty(), "{}", table.title);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.title);
        }
        let mut names: Vec<&String> = section.measured.as_object().expect("an object").keys().collect();
        names.sort();
        let all =
            ["ablations", "crossovers", "fixed", "generalisation", "honesty", "iterations", "learners", "promises"];
        assert_eq!(names, all);
    }
}
