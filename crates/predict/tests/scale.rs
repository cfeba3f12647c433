//! How long it takes to predict and to plan. `cargo test --release -p paceline-predict --test scale -- --nocapture
//! --test-threads 1` shows it beside what it is meant to take, and fails if it takes longer: on a machine that does nothing else.
//! Without optimisation, and beside other tests, bounds are generous.

use std::time::Instant;

use paceline_collective::cost::Load;
use paceline_collective::{Topology, registry};
use paceline_plan::{Cluster, CollectiveKind, Hosts, LinkClass, LinkCosts, NetworkModel, built_in_profile};
use paceline_predict::programs::{Machine, PreparedProgram, simulate};
use paceline_predict::search::{Question, Space, ddp_settings, explain, search};
use paceline_predict::topology::{Network, PathChoice, Speeds, Spines};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;

const WORLD: usize = 1024;
const BYTES: usize = 100_000_000;
/// What is meant, for 1,024 ranks; for a formula, four or a hundred thousand workers; where programs are simulated first, also on another
/// topology than a flat one; for the best of all strategies.
const RANKS_S: f64 = 2.0;
const FORMULA_S: f64 = 1e-3;
const SYMMETRIC_S: f64 = 10e-3;
const PROGRAMS_S: f64 = 10e-3;
const WIRED_S: f64 = 0.5;
const PLANNED_S: f64 = 10.0;
const BYTES_MAX: u64 = 1 << 30;
/// A test fails when it takes so many times as long: optimised, when it takes longer than it is meant to.
const SLACK: f64 = if cfg!(debug_assertions) { 10.0 } else { 1.0 };

/// Checks the most that this process has held so far, of which Linux tells.
fn held_at_most() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak: Option<u64> =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    if let Some(kib) = peak {
        println!("{} MiB held at most (of {} MiB)", kib >> 10, BYTES_MAX >> 20);
        assert!(kib << 10 < BYTES_MAX, "{kib} KiB");
    }
}

/// The predicted time, after the wall-clock time of preparing and simulating was printed and checked.
fn seconds(name: &str, shape: &str, tile_bytes: usize) -> f64 {
    let begin = Instant::now();
    let algorithm = registry::find(CollectiveKind::AllReduce, name).unwrap();
    let program = PreparedProgram::of_algorithm(algorithm, &Topology::regular(WORLD, 1), 0).unwrap();
    let prepared = begin.elapsed().as_secs_f64();
    let speeds = Speeds { hop_s: 1e-6, ..Speeds::of(NetworkModel::TEN_GBE) };
    let network = Network::new(shape.parse().unwrap(), &Hosts::regular(WORLD, 1), &speeds).unwrap();
    let choice = PathChoice { spines: Spines::Hash { seed: 1 }, ..PathChoice::default() };
    let load = Load { bytes: BYTES, tile_bytes, window: paceline_collective::WINDOW };
    let outcome = simulate(&program, &load, &Machine { choice, ..Machine::new(&network) }).unwrap();
    let all = begin.elapsed().as_secs_f64();
    println!(
        "{WORLD} ranks, {name} on {shape}, {} messages: {:.3} s predicted in {all:.2} s (of {RANKS_S} s), \
         {prepared:.2} s of them to prepare",
        outcome.messages, outcome.seconds
    );
    assert!(all < SLACK * RANKS_S, "{all} s");
    held_at_most();
    outcome.seconds
}

fn formula(name: &str, tile_bytes: usize) -> f64 {
    let costs = LinkCosts::uniform(NetworkModel::TEN_GBE.across.cost(0.0));
    let algorithm = registry::find(CollectiveKind::AllReduce, name).unwrap();
    algorithm.seconds(&Topology::regular(WORLD, 1), BYTES, tile_bytes, &costs)
}

#[test]
fn a_ring_of_1024_ranks() {
    let flat = seconds("ring", "flat", BYTES);
    assert!((flat / formula("ring", BYTES) - 1.0).abs() < 1e-6, "{flat}");
    // One message at a time crosses each switch's links: oversubscription is not in the way, latency is.
    let tree = seconds("ring", "fat-tree:32:4", BYTES);
    assert!(tree >= flat && tree < 1.03 * flat, "{tree}, {flat} on a flat network");
}

#[test]
fn trees_of_1024_ranks() {
    let tile_bytes = 4 << 20;
    let flat = seconds("binary-tree", "flat", tile_bytes);
    assert!((flat / formula("binary-tree", tile_bytes) - 1.0).abs() < 0.25, "{flat}");
    seconds("double-binary-tree", "fat-tree:32:4", tile_bytes);
}

#[test]
fn halving_and_doubling_of_1024_ranks() {
    let flat = seconds("halving-doubling", "flat", BYTES);
    assert!((flat / formula("halving-doubling", BYTES) - 1.0).abs() < 1e-6, "{flat}");
    let tree = seconds("halving-doubling", "fat-tree:32:4", BYTES);
    assert!(tree > 3.0 * flat, "{tree}, {flat} on a flat network");
    // Routes of up to 32 links, each of which carries many of them.
    let torus = seconds("halving-doubling", "torus:32x32", BYTES);
    assert!(torus > flat, "{torus}, {flat} on a flat network");
}

/// The shortest of some predictions of a job, and how long an iteration takes.
fn predicted(cluster: &str, model: &str, strategy: &str, workers: usize) -> f64 {
    predicted_on(&Cluster::named(cluster).unwrap(), model, strategy, workers)
}

fn predicted_on(cluster: &Cluster, model: &str, strategy: &str, workers: usize) -> f64 {
    let profile = built_in_profile(model).unwrap();
    let parsed = Registry::built_in().parse(strategy).unwrap();
    let job = Job { cluster, profile: &profile, strategy: &parsed, workers, local_batch: None };
    let (mut shortest_s, mut iteration_s) = (f64::INFINITY, 0.0);
    for _ in 0..10 {
        let begin = Instant::now();
        iteration_s = estimate(&job).unwrap().iteration_s;
        shortest_s = shortest_s.min(begin.elapsed().as_secs_f64());
    }
    let (name, us) = (&cluster.name, 1e6 * shortest_s);
    println!("{name}: {model}, {strategy}, {workers} workers: {iteration_s:.3} s predicted in {us:.0} us");
    shortest_s
}

#[test]
fn a_formula() {
    for model in ["resnet50", "bert-base", "bert-large"] {
        for strategy in ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp"] {
            let seconds = predicted("study-10gbe", model, strategy, 32);
            assert!(seconds < SLACK * FORMULA_S, "{model}, {strategy}: {seconds} s");
        }
        // Priorities take no formula: every layer is dispatched.
        for strategy in ["bytescheduler-ps", "bytescheduler-a2a"] {
            let seconds = predicted("study-10gbe", model, strategy, 32);
            assert!(seconds < SLACK * SYMMETRIC_S, "{model}, {strategy}: {seconds} s");
        }
    }
}

/// Where messages cost something besides their bytes, tiles have to be found; and where ports are shared, or the network outruns
/// them, programs are simulated first.
#[test]
fn programs_for_want_of_a_formula() {
    let named = |name| Cluster::named(name).unwrap();
    let clusters = [
        (measured(8, 4), 32),
        (named("4xv100-nvlink"), 4),
        (named("25gbe+pcie4:8x4"), 32),
        (named("roce+pcie3:8x2"), 16),
    ];
    for (cluster, workers) in &clusters {
        for model in ["resnet50", "bert-base", "bert-large"] {
            for strategy in ["wfbp-ps", "schedule=wfbp,arch=ps:1", "wfbp-a2a", "mg-wfbp", "bytescheduler-a2a"] {
                let seconds = predicted_on(cluster, model, strategy, *workers);
                assert!(seconds < SLACK * PROGRAMS_S, "{}, {model}, {strategy}: {seconds} s", cluster.name);
            }
        }
    }
}

/// All sizes that a plan has are simulated there.
#[test]
fn programs_on_a_fat_tree() {
    let cluster = wired("25gbe+pcie4:32x1", "fat-tree:8:2");
    for strategy in ["wfbp-a2a", "mg-wfbp", "wfbp-ps", "bytescheduler-a2a"] {
        let seconds = predicted_on(&cluster, "bert-large", strategy, 32);
        assert!(seconds < SLACK * WIRED_S, "{strategy}: {seconds} s");
    }
}

#[test]
fn a_hundred_thousand_workers() {
    for (model, strategy) in [
        ("resnet50", "wfbp-a2a"),
        ("resnet50", "mg-wfbp"),
        ("resnet50", "wfbp-ps"),
        ("bert-large", "mg-wfbp"),
        ("bert-large", "bytescheduler-a2a"),
    ] {
        let seconds = predicted("study-10gbe:25000x4", model, strategy, 100_000);
        assert!(seconds < SLACK * SYMMETRIC_S, "{model}, {strategy}: {seconds} s");
    }
}

fn wired(name: &str, topology: &str) -> Cluster {
    Cluster { topology: topology.into(), ..Cluster::named(name).unwrap() }
}

/// Hosts of so many workers, with what a message costs besides its bytes.
fn measured(hosts: usize, workers_per_host: usize) -> Cluster {
    let class = |alpha_s, overhead_s, beta_s_per_byte| LinkClass { alpha_s, overhead_s, beta_s_per_byte };
    let network = NetworkModel { within: class(5e-6, 1e-6, 1e-10), across: class(50e-6, 10e-6, 8e-10) };
    Cluster::of_network(network, hosts, workers_per_host)
}

/// All that `paceline plan` says of the largest model of the study: the whole lossless space, the reasons, and DDP.
#[test]
fn a_plan_with_its_reasons() {
    let clusters = [
        (wired("study-10gbe", "flat"), "bert-large", 32),
        (wired("25gbe+pcie4:8x4", "flat"), "bert-large", 32),
        // Programs of all algorithms are simulated on it, and under one switch.
        (wired("25gbe+pcie4:32x1", "fat-tree:8:2"), "bert-large", 32),
        // What servers with few partitions take, messages say: sixteen hosts, and as many that only serve.
        (Cluster { name: "served".to_owned(), server_hosts: 16, ..measured(16, 1) }, "bert-base", 16),
    ];
    for (cluster, model, workers) in &clusters {
        let (name, workers, profile) = (&cluster.name, *workers, built_in_profile(model).unwrap());
        let space = Space { messages: true, ..Space::default() };
        let question = Question { cluster, profile: &profile, workers, space: &space };
        let begin = Instant::now();
        let answer = search(&question).unwrap();
        let searched = begin.elapsed().as_secs_f64();
        let (reasons, ddp) = (explain(&question, &answer).sentences.len(), ddp_settings(&question, &answer).unwrap());
        let all = begin.elapsed().as_secs_f64();
        println!(
            "{name}, {}: {model} planned in {searched:.2} s ({} predictions, {} played), with {reasons} reasons and {ddp} in \
             {all:.2} s (of {PLANNED_S} s)",
            cluster.topology, answer.predictions, answer.played
        );
        assert!(all < SLACK * PLANNED_S, "{name}: {all} s");
        assert!(answer.played > 0 || name != "served", "nothing was played");
        held_at_most();
    }
}
