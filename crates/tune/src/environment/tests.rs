use std::collections::BTreeSet;

use paceline_collective::Topology;
use paceline_plan::{Cluster, CollectiveKind, LinkCost, LinkCosts};

use super::*;
use crate::action::Choice;
use crate::state::{Parallelism, Transport};

fn cluster() -> Cluster {
    Cluster::named("study-10gbe").expect("it is built in")
}

fn quiet(seed: u64) -> SimulatedCluster {
    SimulatedCluster::new(Box::new(OwnModel::of(&cluster())), Misfit::USUAL, Disturbances::default(), seed)
}

#[test]
fn the_mix_of_a_language_model_has_the_sizes_of_one() {
    let workload = Workload::named("llm-3d", 8, 8).expect("it is known");
    let of = |parallelism| workload.calls.iter().filter(move |call| call.parallelism == parallelism);
    let megabytes = |call: &Call| call.bytes as f64 / 1e6;
    assert!(of(Parallelism::Tensor).all(|call| megabytes(call) <= 100.0 && call.times >= 10));
    assert!(of(Parallelism::Pipeline).all(|call| megabytes(call) <= 100.0 && call.times >= 4));
    for parallelism in [Parallelism::Tensor, Parallelism::Pipeline] {
        let mut sizes: Vec<u64> = of(parallelism).map(|call| call.bytes).filter(|bytes| *bytes > 1 << 20).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [512, 2048, 4096].map(|tokens| 2 * tokens * 5120), "texts of several lengths: {parallelism}");
    }
    assert!(of(Parallelism::Sharded).all(|call| (10.0..1000.0).contains(&megabytes(call))));
    assert!(of(Parallelism::Data).all(|call| (100.0..10_000.0).contains(&megabytes(call)) && call.times == 1));
    for parallelism in Parallelism::ALL {
        assert!(of(*parallelism).count() > 0, "{parallelism}");
    }
    assert!(Workload::named("llm-4d", 1, 1).is_err());
}

/// What a cluster has no place for is not called, and whoever looks at the results is told so.
#[test]
fn what_a_mix_leaves_out_is_what_it_does_not_call() {
    let mut seen = BTreeSet::new();
    for (hosts, per_host) in [(8, 8), (4, 1), (3, 4), (4, 4), (2, 2), (1, 8), (1, 1)] {
        let workload = Workload::named("llm-3d", hosts, per_host).expect("it is known");
        let left_out: Vec<Parallelism> = workload.left_out(hosts, per_host).iter().map(|(kind, _)| *kind).collect();
        for kind in Parallelism::ALL {
            let is_called = workload.calls.iter().any(|call| call.parallelism == *kind);
            assert_ne!(is_called, left_out.contains(kind), "{kind} on {hosts} hosts of {per_host}");
        }
        seen.extend(left_out);
    }
    assert_eq!(seen.len(), Parallelism::ALL.len(), "each is left out somewhere");
    assert!(Workload::data_parallel(1, 1).left_out(1, 1).is_empty());
}

#[test]
fn every_call_has_choices_and_a_default_among_them() {
    for (hosts, per_host) in [(1, 8), (2, 4), (8, 8), (5, 1)] {
        let cluster = Cluster { hosts, workers_per_host: per_host, ..cluster() };
        let model = OwnModel::of(&cluster);
        for workload in ["llm-3d", "data-parallel"] {
            for call in Workload::named(workload, hosts, per_host).expect("it is known").calls {
                let situation = model.situation(&model.state(&call)).unwrap_or_else(|| panic!("{call:?}"));
                let default = situation.arms[situation.default].action;
                assert!(situation.arms.len() > 8, "{call:?}");
                assert!(!model.family_name(&situation.state, &default).contains("program"));
                assert_eq!(situation.choice(situation.default), Choice::Default);
            }
        }
    }
}

/// An arm that does what another one does is tried in vain: what it seems to gain is chance.
#[test]
fn no_two_arms_do_the_same_on_links_that_were_measured() {
    let of = |links: Links, hosts: u32, bytes: u64| {
        let link = LinkCost { alpha: 2e-5, overhead: 2e-6, beta: 2e-10, gamma: 1e-10 };
        let costs = LinkCosts { within: link, across: link, ..cluster().link_costs() };
        let transport = if links.has_tcp() { Transport::Tcp100g } else { Transport::SharedMemory };
        let ranks = Topology::regular(hosts as usize, 4 / hosts as usize);
        let model = OwnModel::measured(&costs, &ranks, transport, links);
        let call = Call { bytes, ranks: 4, hosts, ..Workload::data_parallel(4, 1).calls[0] };
        model.situation(&model.state(&call)).expect("choices")
    };
    let effects = |situation: &Situation, links: Links| -> BTreeSet<_> {
        situation.arms.iter().map(|arm| links.effect(&arm.action)).collect()
    };
    let (one_stream, four_streams) = (Links::new(true, false, 1), Links::new(true, false, 4));
    let (memory, both) = (Links::new(false, true, 4), Links::new(true, true, 4));
    for bytes in [1 << 12, 1 << 18, 1 << 24] {
        let count = |links: Links, hosts: u32| {
            let situation = of(links, hosts, bytes);
            let arms = situation.arms.len();
            assert_eq!(effects(&situation, links).len(), arms, "{links:?}, {bytes} bytes");
            let default = situation.arms[situation.default].action;
            let all_lanes = Action { channels: OwnModel::LANES_BY_ITSELF, ..default };
            assert_eq!((links.effect(&default), default.threads), (links.effect(&all_lanes), 1), "{links:?}");
            arms
        };
        let (alone, spread) = (count(one_stream, 4), count(four_streams, 4));
        assert_eq!(spread, 3 * alone, "{bytes} bytes: 1, 2 and 4 lanes differ");
        let (shared, mixed) = (count(memory, 1), count(both, 2));
        assert!(mixed > shared && shared >= 12, "{bytes} bytes: {shared} and {mixed}");
    }
    // With one stream, an action says all lanes, as the library would: on other links it means the same.
    let situation = of(one_stream, 4, 1 << 20);
    assert!(situation.arms.iter().all(|arm| (arm.action.channels, arm.action.threads) == (8, 1)));
    // And with four, steps lie beside each other. Only what there is costs something.
    let spread = of(four_streams, 4, 1 << 20);
    let [alone, all] = [&situation, &spread].map(|it| it.arms[it.default]);
    assert!(spread.arms.iter().any(|arm| arm.action.is_beside(&all.action) && arm.action.channels == 2));
    assert!((all.modelled_s - alone.modelled_s - 6e-6).abs() < 1e-9, "{alone:?} {all:?}");
    // Two threads share what memory carries, from 256 KiB on.
    let shared = of(memory, 1, 1 << 20);
    let has_two = |arm: &&crate::action::Arm| arm.action.threads == 2;
    assert_eq!(shared.arms.iter().filter(has_two).map(|arm| arm.action.chunk_log2).min(), Some(18));
}

#[test]
fn protocols_trade_latency_against_bandwidth() {
    let model = OwnModel::of(&cluster());
    let best = |bytes: u64| {
        let call = Call { bytes, ..Workload::data_parallel(8, 8).calls[0] };
        let situation = model.situation(&model.state(&call)).expect("choices");
        let arms = situation.arms.iter();
        let best = arms.min_by(|one, other| one.modelled_s.total_cmp(&other.modelled_s)).expect("one");
        best.action.family.protocol
    };
    use crate::action::WireProtocol::{LowLatency, Simple};
    assert_eq!((best(1 << 10), best(1 << 26)), (LowLatency, Simple));
}

/// Who calls says whether the job has servers: an all-reduce of one that has is another context, and a push alone does not make it
/// so.
#[test]
fn whether_there_are_servers_is_the_callers_to_say() {
    let model = OwnModel::of(&cluster());
    for collective in [CollectiveKind::AllReduce, CollectiveKind::PushPull] {
        for is_ps_deployment in [false, true] {
            let call = Call { collective, is_ps_deployment, ..Workload::data_parallel(8, 8).calls[0] };
            assert_eq!(model.state(&call).is_ps_deployment, is_ps_deployment, "{collective}");
        }
    }
}

/// What prior.rs relies on: where bandwidth decides, the cost model itself puts rings before what sends all bytes in each round.
#[test]
fn rings_come_before_trees_where_bandwidth_decides() {
    let model = OwnModel::of(&Cluster { workers_per_host: 1, ..cluster() });
    let call = Call { bytes: 1 << 26, ..Workload::data_parallel(8, 8).calls[0] };
    let situation = model.situation(&model.state(&call)).expect("choices");
    let least = |name: &str| {
        let is_it = |arm: &&crate::action::Arm| {
            OwnModel::algorithm(CollectiveKind::AllReduce, arm.action.family.algorithm) == Some(name)
        };
        situation.arms.iter().filter(is_it).map(|arm| arm.modelled_s).fold(f64::INFINITY, f64::min)
    };
    let ring = least("ring");
    for other in ["binary-tree", "recursive-doubling"] {
        assert!(ring < least(other) && least(other).is_finite(), "{other}: {ring} {}", least(other));
    }
}

#[test]
fn the_truth_is_the_same_whenever_it_is_asked() {
    let mut one = quiet(11);
    let call = Workload::data_parallel(8, 8).calls[2];
    let state = one.state(&call, 0);
    let situation = one.situation(&state).expect("choices").clone();
    let before: Vec<f64> = (0..situation.arms.len()).map(|arm| one.truth_s(&situation, arm, 0)).collect();
    for call in 0..100 {
        assert!(one.call(&situation, call % situation.arms.len(), 0) > 0.0);
    }
    let after: Vec<f64> = (0..situation.arms.len()).map(|arm| one.truth_s(&situation, arm, 0)).collect();
    assert_eq!(before, after);
    let other = quiet(12);
    assert_ne!(before[0], other.truth_s(&situation, 0, 0));
    assert_eq!(one.oracle(&situation, 0), one.oracle(&situation, 7));
}

#[test]
fn networks_drift_and_ranks_come_late() {
    let changes = vec![Change { step: 10, factor: 5.0 }, Change { step: 20, factor: 1.0 }];
    let disturbances =
        Disturbances { changes, is_agreed: true, straggler_share: 1.0, straggler_s: 1.0, ..Default::default() };
    let model = Box::new(OwnModel::of(&cluster()));
    let mut cluster = SimulatedCluster::new(model, Misfit::NONE, disturbances, 1);
    let call = Workload::data_parallel(8, 8).calls[0];
    assert_eq!(call.collective, CollectiveKind::AllReduce);
    assert_eq!(cluster.state(&call, 0).transport, Transport::Tcp10g);
    assert_eq!(cluster.state(&call, 9).congestion, Congestion::None);
    assert_eq!(cluster.state(&call, 10).congestion, Congestion::Heavy);
    assert_eq!(cluster.state(&call, 20).congestion, Congestion::None);
    let state = cluster.state(&call, 0);
    let situation = cluster.situation(&state).expect("choices").clone();
    let played = [9, 10, 20].map(|step| cluster.play(&situation, 0, step));
    let times = played.map(|played| played.call_s / situation.arms[0].modelled_s);
    // A rank that is late makes the others wait, and is not charged to the call.
    assert!([times[0], times[2]].iter().all(|time| (time - 1.0).abs() < 1e-9) && times[1] > 1.1, "{times:?}");
    assert!(played.iter().all(|played| played.late_s > 0.0), "{played:?}");
}

/// No two of seeds and families are the same cluster under another name, and names of clusters count.
#[test]
fn what_is_drawn_is_drawn_once() {
    let call = Workload::data_parallel(8, 8).calls[2];
    let off = |name: &str, seed: u64| -> Vec<u64> {
        let machine = Cluster::named(name).expect("it is built in");
        let mut cluster =
            SimulatedCluster::new(Box::new(OwnModel::of(&machine)), Misfit::USUAL, Disturbances::default(), seed);
        let state = cluster.state(&call, 0);
        let situation = cluster.situation(&state).expect("choices").clone();
        let arm = |family: &Family| situation.arms.iter().position(|arm| arm.action.family == *family).expect("an arm");
        situation
            .families
            .iter()
            .map(arm)
            .map(|arm| cluster.off(&situation.context, &situation.arms[arm].action).0.to_bits())
            .collect()
    };
    let mut all: Vec<u64> = (0..64).flat_map(|seed| off("study-10gbe:8x1", seed)).collect();
    all.extend((0..64).flat_map(|seed| off("1gbe+pcie3:8x1", seed)));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(count > 128 * 8);
}

#[test]
fn tails_belong_to_an_arm_and_leave_its_mean_alone() {
    let model = Box::new(OwnModel::of(&cluster()));
    let misfit = Misfit { tailed: 0.5, ..Misfit::NONE };
    let mut cluster = SimulatedCluster::new(model, misfit, Disturbances::default(), 3);
    let state = cluster.state(&Workload::data_parallel(8, 8).calls[0], 0);
    let situation = cluster.situation(&state).expect("choices").clone();
    let (mut tailed, mut plain) = (0, 0);
    for (number, _) in situation.families.iter().enumerate() {
        let arm = situation.family_of.iter().position(|&family| family == number).expect("an arm");
        let truth = cluster.truth_s(&situation, arm, 0);
        let calls: Vec<f64> = (0..4000).map(|_| cluster.play(&situation, arm, 0).call_s / truth).collect();
        let mean = calls.iter().sum::<f64>() / calls.len() as f64;
        let middle = crate::statistics::median(&calls).expect("calls");
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        if middle < 0.9 { tailed += 1 } else { plain += 1 }
    }
    assert!(tailed > 0 && plain > 0, "{tailed} and {plain}");
}

#[test]
fn bursts_come_and_go() {
    let bursts = Bursts { steps: 10, share: 0.3, factor: 2.0, seed: 5 };
    let disturbances = Disturbances { bursts: Some(bursts), ..Default::default() };
    let slow: Vec<bool> = (0..10_000).map(|step| disturbances.factor(step) == 2.0).collect();
    let (share, turns) =
        (slow.iter().filter(|slow| **slow).count(), slow.windows(2).filter(|two| two[0] != two[1]).count());
    assert!((2500..3500).contains(&share) && (300..600).contains(&turns), "{share} steps, {turns} turns");
}

/// Noise that lasts makes calls in a row alike, is as large as it was said to be, and grows with the network's slowness, if it is to.
#[test]
fn noise_may_last_and_grow() {
    let changes = vec![Change { step: 2000, factor: 3.0 }];
    let disturbances =
        Disturbances { noise: 0.05, persistence: 0.5, noise_grows: true, changes, ..Disturbances::default() };
    let (mut lasting, mut random) = (0.0, crate::random::Random::new(3, 0));
    let mut logs = |steps: std::ops::Range<u64>| -> Vec<f64> {
        steps.map(|step| disturbances.noise_at(step, &mut lasting, &mut random).ln()).collect()
    };
    for (steps, noise) in [(0..2000, 0.05), (2000..4000, 0.15)] {
        let logs = logs(steps);
        let product = |apart: usize| logs.windows(apart + 1).map(|pair| pair[0] * pair[apart]).sum::<f64>();
        let (square, next, far) = (product(0) / 2000.0, product(1) / product(0), product(20) / product(0));
        assert!((square.sqrt() / noise - 1.0).abs() < 0.1, "{}", square.sqrt());
        assert!((next - 0.5).abs() < 0.08 && far.abs() < 0.1, "{next} and {far}");
    }
}
