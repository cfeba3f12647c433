//! Whole iterations, message by message: what predictions are held to.

use super::*;
use crate::iteration::PATIENCE_S;
use crate::iteration::tests::profile;

/// Ten layers of all sizes, so many times: each ten have 12 MB of gradients, and 15 ms of computation.
fn layers(times: usize) -> Profile {
    let elements = [400, 3_000, 800_000, 60_000, 200, 1_000_000, 16_384, 300_000, 2_048, 700_000];
    let layers: Vec<(usize, f64, f64)> =
        (0..times).flat_map(|_| elements).map(|elements| (elements, 0.5e-3, 1e-3)).collect();
    profile(&layers, 0.2e-3)
}

struct Case {
    hosts: usize,
    per_host: usize,
    network: NetworkModel,
    topology: &'static str,
}

impl Case {
    fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::of_network(self.network, self.hosts, self.per_host);
        cluster.topology = self.topology.to_owned();
        cluster
    }

    /// Message by message, over predicted; and of what.
    fn ratio(&self, profile: &Profile, text: &str) -> (f64, String) {
        self.ratio_of(self.hosts * self.per_host, profile, text)
    }

    /// The same of so many workers.
    fn ratio_of(&self, workers: usize, profile: &Profile, text: &str) -> (f64, String) {
        let (cluster, strategy) = (self.cluster(), strategy(text));
        let job = Job { cluster: &cluster, profile, strategy: &strategy, workers, local_batch: None };
        let predicted = estimate(&job).expect("a prediction");
        let played = predict_by_message(&job, &predicted.plan).expect("an iteration");
        let Case { hosts, per_host, topology, network } = self;
        let beta = network.across.beta_s_per_byte;
        let name = format!("{workers} workers on {hosts} x {per_host} {topology}, beta {beta:e}, {text}");
        (played.iteration_s / predicted.iteration_s, name)
    }
}

/// Networks of 1, 10 and 25 Gbit/s, on the first of which an iteration waits for nothing but bytes.
fn networks() -> [NetworkModel; 3] {
    let class = |alpha_s, overhead_s, gbit_s: f64| LinkClass { alpha_s, overhead_s, beta_s_per_byte: 8e-9 / gbit_s };
    let within = class(5e-6, 1e-6, 100.0);
    [1.0, 10.0, 25.0].map(|gbit_s| NetworkModel { within, across: class(50e-6, 10e-6, gbit_s) })
}

fn held(near: f64, ratios: &[(f64, String)]) {
    assert!(!ratios.is_empty());
    let apart: Vec<_> = ratios.iter().filter(|(ratio, _)| (ratio - 1.0).abs() >= near).collect();
    assert!(apart.is_empty(), "{near}: {apart:#?}");
}

/// These cases and strategies, on networks of 1, 10 and 25 Gbit/s.
fn ratios(profile: &Profile, places: &[(usize, usize, &'static str)], strategies: &[&str]) -> Vec<(f64, String)> {
    let mut ratios = Vec::new();
    for (&(hosts, per_host, topology), network) in
        places.iter().flat_map(|place| networks().map(|network| (place, network)))
    {
        let case = Case { hosts, per_host, network, topology };
        ratios.extend(strategies.iter().map(|text| case.ratio(profile, text)));
    }
    ratios
}

/// One worker to a host, under one switch.
#[test]
fn all_to_all_iterations_are_what_their_messages_take() {
    let (profile, places) = (layers(2), [2, 4, 8].map(|hosts| (hosts, 1, "flat")));
    let of = |strategies: &[&str]| ratios(&profile, &places, strategies);
    let plain = ["bsp-a2a", "wfbp-a2a", "ddp", "mg-wfbp", "schedule=wfbp,arch=a2a:ring"];
    held(0.01, &of(&plain));
    // Urgent operations find less urgent ones on the way; and where ranks send to several others, those that overlap share ports.
    held(0.06, &of(&["bytescheduler-a2a"]));
    held(0.06, &of(&["schedule=mg-wfbp,arch=a2a:double-binary-tree"]));
}

/// Hosts of several workers, and switches that are in the way.
#[test]
fn iterations_on_shared_hosts_and_topologies_are_what_their_messages_take() {
    let profile = layers(2);
    let of = |places: &[(usize, usize, &'static str)]| ratios(&profile, places, &["bsp-a2a", "wfbp-a2a", "mg-wfbp"]);
    held(0.02, &of(&[(2, 2, "flat"), (4, 2, "flat"), (2, 4, "flat")]));
    let unequal = [(2, 3, 4), (2, 3, 5), (3, 4, 9), (4, 4, 13)].into_iter().flat_map(|(hosts, per_host, workers)| {
        let of = |network| Case { hosts, per_host, network, topology: "flat" };
        let name = "schedule=wfbp,arch=a2a:hierarchical";
        networks().map(|network| of(network).ratio_of(workers, &profile, name))
    });
    held(0.02, &unequal.collect::<Vec<_>>());
    held(0.06, &of(&[(8, 1, "tree:4:4"), (4, 2, "tree:2:2"), (4, 1, "torus:2x2")]));
}

/// A server adds up what workers send in their order, so a partition has to be passed on from one to the next; formulas know no such
/// beginning. That is little where there are many partitions for each server, and much where there are few.
#[test]
fn iterations_with_servers_are_what_their_messages_take() {
    let of = |times: usize, places: &[(usize, usize, &'static str)], strategies: &[&str]| {
        ratios(&layers(times), places, strategies)
    };
    let one = ["schedule=wfbp,arch=ps:1:1MiB", "schedule=wfbp,arch=ps:1:1MiB:dedicated"];
    held(0.04, &of(2, &[(2, 1, "flat"), (4, 1, "flat"), (8, 1, "flat"), (4, 2, "flat")], &one));
    let several = ["wfbp-ps", "schedule=wfbp,arch=ps:hosts:1MiB:dedicated"];
    held(0.04, &of(16, &[(2, 1, "flat"), (4, 1, "flat"), (2, 2, "flat")], &several));
    let few = of(2, &[(8, 1, "flat")], &several);
    assert!(few.iter().all(|(ratio, _)| (0.98..1.5).contains(ratio)), "{few:?}");
}

/// Where that may be more than predictions are off anyway, they say so, at least where it is; and not where messages have decided.
#[test]
fn few_partitions_for_many_servers_are_said() {
    let [_, network, _] = networks();
    let said = |predicted: &Prediction| predicted.extrapolated.iter().any(|doubt| doubt.starts_with(FEW_PARTITIONS));
    for (hosts, times, text, expected) in [
        (8, 2, "wfbp-ps", true),
        (8, 2, "schedule=wfbp,arch=ps:hosts:1MiB:dedicated", true),
        (4, 16, "wfbp-ps", false),
        (8, 2, "schedule=wfbp,arch=ps:1:1MiB", false),
        (8, 2, "wfbp-a2a", false),
    ] {
        let case = Case { hosts, per_host: 1, network, topology: "flat" };
        let (cluster, strategy, profile) = (case.cluster(), strategy(text), layers(times));
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: hosts, local_batch: None };
        let predicted = estimate(&job).expect("a prediction");
        assert_eq!(said(&predicted), expected, "{text} on {hosts} hosts: {:?}", predicted.extrapolated);
        let played = predict_by_message(&job, &predicted.plan).expect("an iteration").iteration_s;
        assert!(expected || played < 1.06 * predicted.iteration_s, "{text} on {hosts} hosts: {played} s");
        assert!(!said(&played_emulated(&job, &predicted).expect("an iteration")), "{text}: its messages were played");
    }
    // What partitions cost there was fitted, to servers that take what comes first.
    let (cluster, strategy) = (Cluster::named("study-10gbe").expect("it is built in"), strategy("wfbp-ps"));
    let profile = layers(2);
    let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 32, local_batch: None };
    assert!(!said(&estimate(&job).expect("a prediction")));
}

/// Start-ups that occupy the worker's port, and those that wait for the operation in front. Where workers end at different times and
/// urgent operations come in between, two may wait for each other until their patience is over, of which formulas know nothing. When it
/// is, all begin the most urgent operation that has not ended, and it ends: so there is patience for each operation at most.
#[test]
fn operations_that_take_time_to_start_end_all_the_same() {
    let profile = layers(2);
    let case = Case { hosts: 4, per_host: 1, network: networks()[1], topology: "flat" };
    let mut cluster = case.cluster();
    cluster.operation.start_s = Constant::exact(0.5e-3);
    cluster.unlike = vec![UnlikeWorkers { ranks: vec![1], slower: 1.2 }, UnlikeWorkers { ranks: vec![3], slower: 1.1 }];
    let both = |text: &str| {
        let strategy = strategy(text);
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
        let predicted = estimate(&job).expect("a prediction");
        let played_s = predict_by_message(&job, &predicted.plan).expect("an iteration").iteration_s;
        (predicted, played_s)
    };
    for (text, near) in [
        ("wfbp-a2a", 0.06),
        ("schedule=wfbp,arch=a2a:ring:1ms", 0.02),
        ("schedule=wfbp,arch=ps:1:1MiB:colocated:aggregate:1ms", 0.04),
    ] {
        let (predicted, played_s) = both(text);
        held(near, &[(played_s / predicted.iteration_s, text.to_owned())]);
    }
    let (predicted, played_s) = both("schedule=bytescheduler,arch=a2a:ring:1ms");
    let patience_s = predicted.plan.operations() as f64 * PATIENCE_S;
    // Besides, at worst all that computes and travels comes one after the other.
    let in_turn_s = predicted.forward_s + predicted.backward_s + predicted.update_s + predicted.communication_s;
    let expected = 0.94 * predicted.iteration_s..1.06 * in_turn_s + patience_s;
    assert!(expected.contains(&played_s), "{played_s} s, not {expected:?}");
}

/// Each worker draws for itself, and the mean is that of the slowest of all.
#[test]
fn workers_that_draw_are_as_slow_as_the_slowest() {
    let profile = layers(2);
    let case = Case { hosts: 4, per_host: 1, network: networks()[2], topology: "flat" };
    let mut cluster = case.cluster();
    cluster.computation = ComputationConstants {
        spread: Constant::exact(0.1),
        distribution: Distribution::Exponential,
        draws: 60,
        seed: 3,
        ..ComputationConstants::default()
    };
    let strategy = strategy("bsp-a2a");
    let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
    let predicted = estimate(&job).expect("a prediction");
    let played = predict_by_message(&job, &predicted.plan).expect("an iteration");
    assert!(played.deviation_s > 0.0);
    held(0.05, &[(played.iteration_s / predicted.iteration_s, "drawn".to_owned())]);
}

/// Slow workers, wherever they are, hold up all.
#[test]
fn workers_that_the_cluster_names_are_late() {
    let profile = layers(2);
    let case = Case { hosts: 4, per_host: 1, network: networks()[2], topology: "flat" };
    let mut cluster = case.cluster();
    cluster.unlike = vec![UnlikeWorkers { ranks: vec![2], slower: 1.7 }];
    let strategy = strategy("wfbp-a2a");
    let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
    let predicted = estimate(&job).expect("a prediction");
    let played = predict_by_message(&job, &predicted.plan).expect("an iteration");
    held(0.02, &[(played.iteration_s / predicted.iteration_s, "late".to_owned())]);
    assert!(predicted.iteration_s > 1.6 * profile.iteration_s());
    // The others wait, and have time to spare: who is late where all are equally slow makes nobody slower.
    let mut slow = cluster.clone();
    slow.unlike[0].ranks = vec![0, 1, 2, 3];
    let job = Job { cluster: &slow, ..job };
    let all = predict_by_message(&job, &predicted.plan).expect("an iteration").iteration_s;
    assert!(all >= played.iteration_s * (1.0 - 1e-9), "{all} {}", played.iteration_s);
}

#[test]
fn what_cannot_be_played_says_why() {
    let profile = layers(2);
    let refused = |hosts: usize, per_host: usize, workers: usize, text: &str| {
        let case = Case { hosts, per_host, network: networks()[1], topology: "flat" };
        let (cluster, strategy) = (case.cluster(), strategy(text));
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
        let plan = estimate(&job).expect("a prediction").plan;
        predict_by_message(&job, &plan).expect_err("it cannot be played").to_string()
    };
    assert!(refused(4, 1, 1, "wfbp-a2a").ends_with("a worker is alone"));
    assert!(refused(1, 4, 4, "wfbp-ps").contains("single host"));
    assert!(refused(512, 1, 512, "schedule=wfbp,arch=a2a:ring").contains("messages"));
}

/// What has no place among messages is named.
#[test]
fn what_is_left_out_is_said() {
    let profile = layers(2);
    let case = Case { hosts: 2, per_host: 1, network: networks()[1], topology: "flat" };
    let mut cluster = case.cluster();
    let left_out = |cluster: &Cluster, text: &str| {
        let strategy = strategy(text);
        let job = Job { cluster, profile: &profile, strategy: &strategy, workers: 2, local_batch: None };
        let plan = estimate(&job).expect("a prediction").plan;
        predict_by_message(&job, &plan).expect("an iteration").left_out
    };
    assert_eq!([left_out(&cluster, "wfbp-a2a"), left_out(&cluster, "wfbp-ps")], [Vec::<String>::new(), Vec::new()]);
    cluster.interference.computation = Constant::exact(0.1);
    cluster.server.partition_s = Constant::exact(1e-5);
    let [all_to_all, servers] = ["wfbp-a2a", "wfbp-ps"].map(|text| left_out(&cluster, text));
    assert!(all_to_all.len() == 1 && all_to_all[0].contains("interference.computation"), "{all_to_all:?}");
    assert!(servers.len() == 2 && servers[1].contains("server.partition_s"), "{servers:?}");
}

/// Over emulated links a worker whose server is beside another waits behind what the server beside itself answers, and then behind what
/// all others push; so all wait for it, and ports are idle. Where servers have hosts of their own, nobody waits twice.
#[test]
fn servers_beside_workers_take_longer_over_emulated_links() {
    let profile = built_in_profile("resnet50").expect("it is built in");
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 6, 1);
    // With this the runtime chooses tiles there.
    cluster.across.counted_overhead_s = 50e-6;
    let ratio = |servers: &str| {
        let strategy = strategy(&format!("schedule=wfbp,arch=ps:{servers}"));
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 6, local_batch: None };
        let predicted = estimate(&job).expect("a prediction");
        let played = predict_emulated(&job, &predicted.plan, usize::MAX).expect("an iteration");
        assert_eq!(played.left_out, Vec::<String>::new());
        let shared = predict_by_message(&job, &predicted.plan).expect("an iteration");
        let over = |iteration_s: f64| played.iteration_s / iteration_s;
        (over(predicted.iteration_s), over(shared.iteration_s), servers.to_owned())
    };
    let beside = ["2", "3", "4"].map(ratio);
    assert!(beside.iter().all(|(predicted, ..)| (1.03..1.2).contains(predicted)), "{beside:?}");
    // Of four servers it is hardly the emulation.
    assert!(beside[..2].iter().all(|(_, shared, _)| (1.03..1.2).contains(shared)), "{beside:?}");
    let dedicated = ["1:4000KiB:dedicated", "2:4000KiB:dedicated"].map(ratio);
    held(0.04, &dedicated.map(|(predicted, _, servers)| (predicted, servers)));
}

/// What is counted in iterations follows from how long one is.
#[test]
fn a_prediction_takes_what_was_played() {
    let profile = layers(2);
    let case = Case { hosts: 4, per_host: 1, network: networks()[1], topology: "flat" };
    let (mut cluster, strategy) = (case.cluster(), strategy("wfbp-ps"));
    cluster.across.beta_s_per_byte = Constant::between(8e-10, 7e-10, 9e-10);
    let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
    let predicted = predict(&job).expect("a prediction");
    let longer = predicted.clone().with_iteration_s(2.0 * predicted.iteration_s);
    for (found, expected) in [
        (longer.iteration_s, 2.0 * predicted.iteration_s),
        (longer.low_s, 2.0 * predicted.low_s),
        (longer.high_s, 2.0 * predicted.high_s),
        (longer.samples_per_s, predicted.samples_per_s / 2.0),
        (longer.speedup, predicted.speedup / 2.0),
        (longer.exposed_s, predicted.exposed_s + predicted.iteration_s),
    ] {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}: {longer:?}");
    }
    // Half of it is not computed.
    assert_ne!(longer.bottleneck, Bottleneck::Computation);
    assert!((longer.bottleneck_share - predicted.busiest.1 / longer.iteration_s).abs() < 1e-9, "{longer:?}");
    let refused = predict_emulated(&job, &predicted.plan, 100).expect_err("there are more messages");
    assert!(refused.to_string().contains("100 at most"), "{refused}");
}
