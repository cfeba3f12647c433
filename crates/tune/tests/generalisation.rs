//! What is learned on some clusters, on others (evidence 7 of the issue), and what is lost without what a call is part of.

use paceline_plan::{Cluster, CollectiveKind};
use paceline_tune::environment::{Call, CostModel, Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
use paceline_tune::learner::{Learner, Thompson};
use paceline_tune::{Action, Arm, Family, Random, Situation, State, WireProtocol};

const SEED: u64 = 20_261_121;

fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

/// A cluster by name, with so many hosts and workers on each. Half of what its truth differs from its model by is the library's,
/// the same on all clusters; the rest is its own.
fn cluster(name: &str, library: u64, seed: u64) -> SimulatedCluster {
    let machine = Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let model = Box::new(OwnModel::of(&machine));
    SimulatedCluster::new(model, Misfit::USUAL, Disturbances::usual(), seed).of_library(library)
}

/// The share by which what a learner would choose, asked once and for all, is slower than the best. Geometric mean.
fn regret(cluster: &mut SimulatedCluster, learner: &dyn Learner, workload: &Workload) -> f64 {
    let mut logs = Vec::new();
    for call in &workload.calls {
        let state = cluster.state(call, 0);
        let Some(situation) = cluster.situation(&state).cloned() else { continue };
        let admitted = paceline_tune::guard::Guard::default().admitted(&situation);
        let best = cluster.oracle(&situation, 0);
        let chosen = learner.best(&situation, &admitted);
        logs.push((cluster.truth_s(&situation, chosen, 0) / cluster.truth_s(&situation, best, 0)).ln());
    }
    logs.iter().sum::<f64>() / logs.len() as f64
}

fn train(cluster: &mut SimulatedCluster, learner: &mut dyn Learner, workload: &Workload, calls: usize, seed: u64) {
    let mut random = Random::new(seed, 5);
    for number in 0..calls {
        let call = &workload.calls[number % workload.calls.len()];
        let state = cluster.state(call, 0);
        let Some(situation) = cluster.situation(&state).cloned() else { continue };
        let admitted = paceline_tune::guard::Guard::default().admitted(&situation);
        let arm = learner.choose(&situation, &admitted, &mut random);
        let seconds = cluster.call(&situation, arm, 0);
        learner.observe(&situation, arm, seconds);
    }
}

/// A learner that has seen NVLink and InfiniBand is put onto PCIe and slow Ethernet, clusters of other seeds with the same library: it is
/// worse there than one that was trained there, and no worse than the cost model alone, from which both begin: by no more than chance
/// explains, two standard errors of the difference. With many seeds it is better.
#[test]
fn what_is_learned_elsewhere_does_no_harm() {
    let seeds = if long() { 40 } else { 6 };
    let (hosts, workers) = (4, 4);
    let workload = Workload::data_parallel(hosts, hosts * workers);
    let calls = 300 * workload.calls.len();
    let (mut elsewhere, mut there, mut untrained) = (0.0, 0.0, 0.0);
    let mut harms = Vec::new();
    for seed in SEED..SEED + seeds {
        let mut agent = Thompson::default();
        for (number, name) in ["hdr+nvlink3:4x4", "roce+nvlink2:4x4"].into_iter().enumerate() {
            train(&mut cluster(name, seed, 1000 + seed), &mut agent, &workload, calls, seed + number as u64);
        }
        for name in ["10gbe+pcie3:4x4", "1gbe+pcie3:4x4"] {
            let mut target = cluster(name, seed, 2000 + seed);
            let mut local = Thompson::default();
            train(&mut target, &mut local, &workload, calls, 3000 + seed);
            there += regret(&mut target, &local, &workload);
            let with = regret(&mut target, &agent, &workload);
            let without = regret(&mut target, &Thompson::default(), &workload);
            (elsewhere, untrained) = (elsewhere + with, untrained + without);
            harms.push(100.0 * (with - without));
        }
    }
    let count = 2.0 * seeds as f64;
    let [elsewhere, there, untrained] = [elsewhere, there, untrained].map(|sum| 100.0 * sum / count);
    println!(
        "{seeds} seeds from {SEED} on: trained elsewhere {elsewhere:.1} %, there {there:.1} %, not at all {untrained:.1} %"
    );
    assert!(there < elsewhere && there < 5.0, "training helps: {there:.1} % after {untrained:.1} %");
    let harm = elsewhere - untrained;
    let variance = harms.iter().map(|one| (one - harm).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (variance / count).sqrt();
    assert!(harm < 2.0 * error, "{elsewhere:.1} % after {untrained:.1} %, with a standard error of {error:.1}");
    // Few seeds do not tell by how much it helps.
    assert!(!long() || harm + 2.0 * error < 0.0, "no help: {elsewhere:.1} % after {untrained:.1} % ± {error:.1}");
}

/// The two crossovers of the survey, as a truth to be found: whether calls are pipelined decides between parameter servers
/// and all-to-all, and intensity between fusing and partitioning. The model knows neither.
fn crossover(state: &State, action: &Action) -> f64 {
    let servers = action.family.algorithm == 1;
    let fuses = action.family.protocol == WireProtocol::Simple;
    let arch: f64 = if servers == state.is_pipelined_layer { 1.0 } else { 1.5 };
    let pieces: f64 = if fuses == (state.model_intensity >= 400.0) { 1.0 } else { 1.3 };
    1e-3 * arch * pieces
}

fn choices(is_pipelined_layer: bool, model_intensity: f64, size: u32) -> Situation {
    let call = Call {
        collective: CollectiveKind::AllReduce,
        bytes: 1 << size,
        ranks: 32,
        hosts: 8,
        is_pipelined_layer,
        model_intensity,
        ..Workload::data_parallel(8, 32).calls[0]
    };
    let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
    let family = |algorithm, protocol| Family { algorithm, protocol };
    let families = [0, 1]
        .into_iter()
        .flat_map(|algorithm| [WireProtocol::Middle, WireProtocol::Simple].map(|protocol| family(algorithm, protocol)));
    let arm = |family| Arm { action: Action { family, channels: 1, threads: 1, chunk_log2: 18 }, modelled_s: 1e-3 };
    Situation::new(model.state(&call), families.map(arm).collect(), 0).expect("four arms")
}

/// Mean regret in contexts that were not trained on, with features hidden by `blind`.
fn ablated(seed: u64, blind: impl Fn(State) -> State) -> f64 {
    let (mut learner, mut random) = (Thompson::default(), Random::new(seed, 8));
    let seen = |truth: &Situation| {
        Situation::new(blind(truth.state), truth.arms.clone(), truth.default).expect("the same arms")
    };
    let mut regret = 0.0;
    let (trained, tested) = (1200, 400);
    for call in 0..trained + tested {
        // Sizes from 2^17 on are kept for the test.
        let size = if call < trained { 13 + random.below(4) } else { 17 + random.below(4) };
        let intensity = [100.0, 250.0, 470.0, 900.0][random.below(4)];
        let truth = choices(random.below(2) == 0, intensity, size as u32);
        let situation = seen(&truth);
        let admitted = [true; 4];
        let arm = if call < trained {
            learner.choose(&situation, &admitted, &mut random)
        } else {
            learner.best(&situation, &admitted)
        };
        let seconds = crossover(&truth.state, &truth.arms[arm].action);
        if call < trained {
            learner.observe(&situation, arm, seconds * (0.05 * random.normal()).exp());
        } else {
            regret += (seconds / 1e-3).ln();
        }
    }
    regret / f64::from(tested)
}

#[test]
fn both_crossovers_are_found_and_lost_without_their_feature() {
    for seed in SEED..SEED + if long() { 20 } else { 3 } {
        let all = ablated(seed, |state| state);
        let without_pipelining = ablated(seed, |state| State { is_pipelined_layer: false, ..state });
        let without_intensity = ablated(seed, |state| State { model_intensity: 256.0, ..state });
        println!("seed {seed}: {all:.3}, without pipelining {without_pipelining:.3}, without I {without_intensity:.3}");
        assert!(all < 0.05, "seed {seed}: {all}");
        assert!(without_pipelining > all + 0.1, "seed {seed}: {without_pipelining}");
        assert!(without_intensity > all + 0.05, "seed {seed}: {without_intensity}");
    }
}
