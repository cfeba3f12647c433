//! Iterations of ResNet-50 and BERT-Large at 1 to 32 workers, with the tuner and without: gradients travel in buckets while backward
//! goes on, one after the other.

use paceline_plan::{Cluster, CollectiveKind, Profile, built_in_profile};
use paceline_tune::environment::{Call, SimulatedCluster, Workload};
use paceline_tune::trial::Verdict;
use paceline_tune::{Choice, Parallelism, Tuner, simulation};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target, ms, percent};
use super::super::{Over, Section, together};
use super::{machine, of_machine};
use crate::compare::Error;

const MODELS: [&str; 2] = ["resnet50", "bert-large"];
const NETWORKS: [&str; 3] = ["study-10gbe", "study-100gbe", "study-100gbib"];
const WORKERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Of a bucket, as PyTorch's DDP fills them.
const BUCKET_BYTES: u64 = 25 << 20;
/// Iterations in which the tuner learns: the rarest size comes once in each.
const LEARNING: u64 = 320;
/// An iteration with the tuner over one without.
const OVER_DEFAULT_MAX: f64 = 1.0;
/// Truths that are drawn for each row.
const SEEDS: u64 = 5;

/// Gradients that travel together.
#[derive(Clone, Debug, PartialEq)]
struct Bucket {
    bytes: u64,
    tensors: usize,
    /// Seconds of backward until the last of them is final.
    ready_s: f64,
}

/// A model on some workers of a network. Seconds of an iteration are means over the truths.
#[derive(Serialize)]
struct Row {
    model: &'static str,
    network: &'static str,
    workers: usize,
    buckets: usize,
    default_s: f64,
    tuned_s: f64,
    oracle_s: f64,
    /// Truth by truth; none for a worker alone.
    runs: Vec<Run>,
}

/// What was found for one truth. Seconds of an iteration, and of its communication, hidden or not.
#[derive(Serialize)]
struct Run {
    default_s: f64,
    tuned_s: f64,
    oracle_s: f64,
    default_communication_s: f64,
    tuned_communication_s: f64,
    /// All calls while it learned, over the default's, at worst from 100 calls on.
    worst_prefix: f64,
    /// What interleaved iterations of calls found: the share that is saved; None: no significant gain.
    significant_gain: Option<f64>,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (models, networks, workers, learning, seeds) = match quick {
        true => (&MODELS[..1], &NETWORKS[..1], &WORKERS[..2], 40, 1),
        false => (&MODELS[..], &NETWORKS[..], &WORKERS[..], LEARNING, SEEDS),
    };
    let mut rows = Vec::new();
    for &model in models {
        let profile = built_in_profile(model).ok_or_else(|| format!("there is no profile of {model}"))?;
        for &network in networks {
            let machine = machine(network)?;
            let at = |&workers: &usize| row((model, &profile), (network, &machine), workers, learning, seeds);
            rows.extend(workers.iter().map(at));
        }
    }
    let targets = if quick { Vec::new() } else { vec![target(&rows)] };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn row(
    (model, profile): (&'static str, &Profile),
    (network, machine): (&'static str, &Cluster),
    workers: usize,
    learning: u64,
    seeds: u64,
) -> Row {
    let buckets = buckets(profile);
    // Whoever is alone exchanges nothing.
    let seeds = if workers < 2 { 0 } else { seeds };
    let runs: Vec<Run> = (1..=seeds).map(|seed| one((profile, &buckets), machine, workers, learning, seed)).collect();
    let mean = |seconds: fn(&Run) -> f64| {
        let all: Vec<f64> = runs.iter().map(seconds).collect();
        Over::of(&all).map_or(profile.iteration_s(), |over| over.mean)
    };
    let (default_s, tuned_s, oracle_s) = (mean(|run| run.default_s), mean(|run| run.tuned_s), mean(|run| run.oracle_s));
    Row { model, network, workers, buckets: buckets.len(), default_s, tuned_s, oracle_s, runs }
}

fn one((profile, buckets): (&Profile, &[Bucket]), machine: &Cluster, workers: usize, learning: u64, seed: u64) -> Run {
    let calls = buckets.iter().map(|bucket| call(bucket, profile, machine, workers)).collect();
    let workload = Workload { name: format!("{} in buckets", profile.model), calls };
    let (mut cluster, mut tuner) = (of_machine(machine, seed), Tuner::shipped(seed));
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, learning, seed);
    let policy = tuner.policy();
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for call in &workload.calls {
        let of_call = call_s(&mut cluster, call, learning, |key| policy.choice(key, 0));
        seconds.iter_mut().zip(of_call).for_each(|(all, seconds)| all.push(seconds));
    }
    let [default_s, tuned_s, oracle_s] = seconds.each_ref().map(|seconds| iteration_s(profile, buckets, seconds));
    Run {
        default_s,
        tuned_s,
        oracle_s,
        default_communication_s: seconds[0].iter().sum(),
        tuned_communication_s: seconds[1].iter().sum(),
        worst_prefix: outcome.worst_prefix,
        significant_gain: match outcome.verdict {
            Verdict::Gain(gain) => Some(gain.share),
            Verdict::NoSignificantGain => None,
        },
    }
}

/// Seconds of a call as it is by default, as the tuner has decided, and at best: the truth, without noise.
fn call_s(
    cluster: &mut SimulatedCluster,
    call: &Call,
    step: u64,
    choice: impl Fn(paceline_tune::ContextKey) -> Choice,
) -> [f64; 3] {
    let state = cluster.state(call, step);
    let Some(situation) = cluster.situation(&state).cloned() else { return [0.0; 3] };
    let chosen = situation.arm_of(choice(situation.context.key()));
    let best = cluster.oracle(&situation, step);
    [situation.default, chosen, best].map(|arm| cluster.truth_s(&situation, arm, step))
}

fn call(bucket: &Bucket, profile: &Profile, machine: &Cluster, workers: usize) -> Call {
    Call {
        collective: CollectiveKind::AllReduce,
        bytes: bucket.bytes,
        ranks: workers as u32,
        hosts: machine.hosts_of(workers) as u32,
        parallelism: Parallelism::Data,
        is_pipelined_layer: true,
        is_fused_call: bucket.tensors > 1,
        is_ps_deployment: false,
        model_intensity: profile.intensity().unwrap_or(0.0),
        local_batch: profile.local_batch as u32,
        times: 1,
    }
}

/// In the order in which gradients become final; a bucket is full with the tensor that fills it.
fn buckets(profile: &Profile) -> Vec<Bucket> {
    let ready_s = profile.ready_s();
    let mut buckets: Vec<Bucket> = Vec::new();
    for tensor in profile.ready_order() {
        let (bytes, ready_s) = (4 * profile.tensors[tensor].elements as u64, ready_s[tensor]);
        match buckets.last_mut().filter(|last| last.bytes < BUCKET_BYTES) {
            Some(last) => {
                *last =
                    Bucket { bytes: last.bytes + bytes, tensors: last.tensors + 1, ready_s: last.ready_s.max(ready_s) };
            }
            None => buckets.push(Bucket { bytes, tensors: 1, ready_s }),
        }
    }
    buckets
}

/// Forward; backward with the buckets behind it, one after the other; update.
fn iteration_s(profile: &Profile, buckets: &[Bucket], seconds: &[f64]) -> f64 {
    let sent_s =
        buckets.iter().zip(seconds).fold(0.0f64, |free_s, (bucket, seconds)| free_s.max(bucket.ready_s) + seconds);
    profile.forward_s() + sent_s.max(profile.backward_s()) + profile.update_s
}

fn target(rows: &[Row]) -> Target {
    let over = |row: &Row| {
        let ratios = row.runs.iter().map(|run| run.tuned_s / run.default_s);
        let worst = ratios.fold(row.tuned_s / row.default_s, f64::max);
        (format!("{}, {}, {} workers", row.model, row.network, row.workers), worst, Some(worst <= OVER_DEFAULT_MAX))
    };
    // A worker alone makes no calls, and nothing could become slower.
    let found: Vec<_> = rows.iter().filter(|row| !row.runs.is_empty()).map(over).collect();
    let demanded = format!("each, for every truth: iteration with the tuner over without ≤ {OVER_DEFAULT_MAX}");
    together("simulated: ResNet-50 and BERT-Large at 2 to 32 workers".into(), demanded, &found)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: iterations of training",
        format!(
            "In ms, of what the tuner had settled for after {LEARNING} iterations, without noise; means over {SEEDS} truths. Buckets of \
             25 MiB travel while backward goes on, one after the other; computation is the study's GPU's. What computation hides \
             gains nothing: compare the gain of the calls alone with that of the iteration. \"Significant\": for how many truths \
             interleaved iterations of calls, noise included, found a gain in the end. \"Prefix\": at worst."
        ),
        &[
            "model",
            "network",
            "workers",
            "buckets",
            "without",
            "with",
            "at best",
            "gain of the calls",
            "gain of the iteration",
            "significant",
            "prefix",
        ],
    );
    table.rows.extend(rows.iter().map(|row| {
        let sum = |seconds: fn(&Run) -> f64| row.runs.iter().map(seconds).sum::<f64>();
        let (without, with) = (sum(|run| run.default_communication_s), sum(|run| run.tuned_communication_s));
        let found = row.runs.iter().filter(|run| run.significant_gain.is_some()).count();
        let worst = row.runs.iter().map(|run| run.worst_prefix).reduce(f64::max).filter(|worst| *worst > 0.0);
        vec![
            row.model.to_owned(),
            row.network.to_owned(),
            row.workers.to_string(),
            row.buckets.to_string(),
            ms(row.default_s),
            ms(row.tuned_s),
            ms(row.oracle_s),
            percent((without > 0.0).then(|| 1.0 - with / without)),
            percent(Some(1.0 - row.tuned_s / row.default_s)),
            format!("{found} of {}", row.runs.len()),
            worst.map_or_else(|| "–".to_owned(), |worst| format!("{worst:.4}")),
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_gradients_in_the_order_of_backward() {
        let profile = built_in_profile("resnet50").expect("it is built in");
        let buckets = buckets(&profile);
        assert_eq!(buckets.iter().map(|bucket| bucket.bytes).sum::<u64>(), 4 * profile.parameters() as u64);
        assert!(buckets.windows(2).all(|pair| pair[0].ready_s <= pair[1].ready_s), "{buckets:?}");
        let (last, full) = buckets.split_last().expect("buckets");
        assert!(full.iter().all(|bucket| bucket.bytes >= BUCKET_BYTES) && !full.is_empty(), "{buckets:?}");
        assert!((last.ready_s - profile.backward_s()).abs() < 1e-9);
    }

    #[test]
    fn a_worker_alone_proves_nothing() {
        let run = || Run {
            default_s: 1.0,
            tuned_s: 0.9,
            oracle_s: 0.9,
            default_communication_s: 0.5,
            tuned_communication_s: 0.4,
            worst_prefix: 1.0,
            significant_gain: None,
        };
        let row = |workers: usize, runs: Vec<Run>| {
            let (default_s, tuned_s, oracle_s) = (1.0, 1.0, 1.0);
            Row { model: "resnet50", network: "study-10gbe", workers, buckets: 1, default_s, tuned_s, oracle_s, runs }
        };
        assert_eq!(target(&[row(1, Vec::new())]).met, None);
        let both = target(&[row(1, Vec::new()), row(2, vec![run()])]);
        assert!(both.met == Some(true) && both.found.starts_with("1 of 1"), "{}", both.found);
    }

    #[test]
    fn what_backward_hides_costs_nothing() {
        let profile = built_in_profile("resnet50").expect("it is built in");
        let buckets = buckets(&profile);
        let of = |seconds: f64| iteration_s(&profile, &buckets, &vec![seconds; buckets.len()]);
        // Only the last bucket is exposed.
        assert!((of(1e-6) - profile.iteration_s() - 1e-6).abs() < 1e-9);
        let long = 10.0 * profile.iteration_s();
        assert!(of(long) >= buckets.len() as f64 * long);
    }
}
