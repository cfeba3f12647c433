//! What can be chosen by ranks that are told how their hosts are wired, and by those that are told nothing.

use super::*;
use crate::action::Choice;
use crate::environment::Workload;
use crate::policy::{Policy, Schedule};
use crate::policy_file;
use crate::state::{Congestion, Context, Parallelism};

const MIB: u64 = 1 << 20;

/// As links may be measured.
const LINK: LinkCost = LinkCost { alpha: 2e-5, overhead: 2e-6, beta: 1e-9, gamma: 1e-10 };

/// The all-reduces that ask for no network, and for no ranks that share hosts, in the order of the registry.
const FLAT: &[&str] = &[
    "ring",
    "binary-tree",
    "recursive-doubling",
    "halving-doubling",
    "direct",
    "direct-scatter",
    "double-binary-tree",
];

/// So many hosts with so many ranks each, wired like this.
fn wired(hosts: usize, per_host: usize, shape: &str) -> Topology {
    Topology::regular(hosts, per_host).on(shape.parse().expect("a shape"))
}

/// Over four TCP connections per pair of ranks.
fn measured(ranks: &Topology) -> OwnModel {
    OwnModel::measured(&LinkCosts::uniform(LINK), ranks, Transport::Tcp10g, Links::new(true, false, 4))
}

/// An all-reduce among these ranks.
fn all_reduce(ranks: &Topology, bytes: u64) -> Call {
    Call { bytes, ..Workload::data_parallel(ranks.hosts() as u32, ranks.world() as u32).calls[0] }
}

fn situation(ranks: &Topology, bytes: u64) -> Situation {
    let model = measured(ranks);
    model.situation(&model.state(&all_reduce(ranks, bytes))).expect("choices")
}

fn name(arm: &Arm) -> Option<&'static str> {
    OwnModel::algorithm(CollectiveKind::AllReduce, arm.action.family.algorithm)
}

/// The algorithms that can be chosen, in the order of the arms.
fn names(situation: &Situation) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = situation.arms.iter().filter_map(name).collect();
    names.dedup();
    names
}

/// Contexts, choices, their order and what is believed of them stay what they were before anybody could be told of a topology, to the
/// bit: what earlier jobs have left means the same.
#[test]
fn who_is_told_nothing_chooses_among_what_there_always_was() {
    for (hosts, per_host) in [(1, 4), (4, 1), (2, 2), (6, 1), (12, 1)] {
        let ranks = Topology::regular(hosts, per_host);
        let model = measured(&ranks);
        for bytes in [1 << 12, MIB, 1 << 26] {
            let situation = situation(&ranks, bytes);
            let mut expected = FLAT.to_vec();
            expected.extend((!ranks.is_flat()).then_some("hierarchical"));
            assert_eq!(names(&situation), expected, "{bytes} bytes among {ranks:?}");
            let mut arms = Vec::new();
            for name in expected {
                let algorithm = registry::find(CollectiveKind::AllReduce, name).expect("it is built in");
                let number = registry::index_of(algorithm).expect("it is built in");
                model.arms_with(number, &situation.state, &mut arms, |action, costs| {
                    Some(algorithm.seconds(&ranks, bytes as usize, 1 << action.chunk_log2, costs))
                });
            }
            assert_eq!(situation.arms, arms, "{bytes} bytes among {ranks:?}");
        }
    }
    let flat = Context {
        collective: CollectiveKind::AllReduce,
        size_log2: 20,
        ranks: 4,
        hosts: 4,
        transport: Transport::Tcp10g,
        topology: TopologyClass::Flat,
        has_nvlink: false,
        is_ps_deployment: false,
        is_pipelined_layer: true,
        is_fused_call: false,
        parallelism: Parallelism::Data,
        intensity_log2: 7,
        inverse_ratio_log2: 10,
        congestion: Congestion::None,
    };
    assert_eq!(situation(&Topology::regular(4, 1), MIB).context, flat);
    let one_host = Context { hosts: 1, topology: TopologyClass::OneHost, ..flat };
    assert_eq!(situation(&Topology::flat(4), MIB).context, one_host);
}

/// Where each rank has a place of its own in it, and nowhere else. All other choices, and the default, stay as they are.
#[test]
fn what_follows_a_network_can_be_chosen_in_it() {
    let (torus, bcube) = (TopologyClass::Torus, TopologyClass::Bcube);
    let two_on_each = wired(4, 2, "torus:2x2");
    for (ranks, class, follows) in [
        (wired(4, 1, "torus:2x2"), torus, Some("2d-torus")),
        (wired(8, 1, "torus:4x2"), torus, Some("2d-torus")),
        (wired(4, 1, "bcube:2:2"), bcube, Some("bcube")),
        (wired(8, 1, "bcube:2:3"), bcube, Some("bcube")),
        // One rank of each host, as workers are beside whom servers live.
        (two_on_each.subset(&[1, 3, 5, 7]), torus, Some("2d-torus")),
        // A single row would be the ring once more.
        (wired(4, 1, "torus:4x1"), torus, None),
        (two_on_each.clone(), torus, None),
        // Some of the hosts.
        (two_on_each.subset(&[0, 2, 4]), TopologyClass::Flat, None),
    ] {
        let hosts: Vec<usize> = (0..ranks.world()).map(|rank| ranks.host(rank)).collect();
        let (told, flat) = (situation(&ranks, MIB), situation(&Topology::of_hosts(&hosts), MIB));
        assert_eq!(told.context, Context { topology: class, ..flat.context }, "{ranks:?}");
        let is_new = |arm: &Arm| follows.is_some() && name(arm) == follows;
        let (new, others): (Vec<Arm>, Vec<Arm>) = told.arms.iter().copied().partition(is_new);
        assert_eq!(others, flat.arms, "{ranks:?}");
        assert_eq!(told.arms[told.default], flat.arms[flat.default], "{ranks:?}");
        // With all the knobs that a ring has.
        let of_ring = flat.arms.iter().filter(|arm| name(arm) == Some("ring")).count();
        assert_eq!(new.len(), if follows.is_some() { of_ring } else { 0 }, "{ranks:?}");
    }
}

/// Calls of a model that knows of a torus, which are none of all its hosts, or which it has no program for.
#[test]
fn other_calls_in_a_torus_have_the_choices_that_they_had() {
    let ranks = wired(8, 1, "torus:4x2");
    let (model, call) = (measured(&ranks), all_reduce(&ranks, MIB));
    let some_hosts = Call { ranks: 4, hosts: 4, ..call };
    for other in [some_hosts, Call { ranks: 16, ..call }, Call { collective: CollectiveKind::AllGather, ..call }] {
        let situation = model.situation(&model.state(&other)).expect("choices");
        assert_eq!(situation.state.topology, TopologyClass::Torus, "{other:?}");
        assert!(situation.arms.iter().all(|arm| name(arm) != Some("2d-torus")), "{other:?}");
    }
}

/// With the sides and levels that were told, not with those that it would choose by itself.
#[test]
fn what_follows_a_network_costs_what_its_formula_says() {
    let mut least = Vec::new();
    let told = [("torus:8x2", "2d-torus"), ("torus:4x4", "2d-torus"), ("bcube:2:4", "bcube"), ("bcube:4:2", "bcube")];
    for (shape, algorithm) in told {
        let (ranks, bytes) = (wired(16, 1, shape), 1u64 << 18);
        let algorithm = registry::find(CollectiveKind::AllReduce, algorithm).expect("it is built in");
        let number = registry::index_of(algorithm).expect("it is built in");
        let plain = Family { algorithm: number, protocol: WireProtocol::Simple };
        let situation = situation(&ranks, bytes);
        let is_plain = |arm: &&Arm| arm.action.family == plain && arm.action.channels == 1;
        let arms: Vec<&Arm> = situation.arms.iter().filter(is_plain).collect();
        assert_eq!(arms.len(), chunks_of(bytes as usize).count(), "{shape}");
        let (costs, start_s) = (LinkCosts::uniform(LINK), measured(&ranks).cluster.start_s(ranks.world()));
        for arm in &arms {
            let seconds = algorithm.seconds(&ranks, bytes as usize, 1 << arm.action.chunk_log2, &costs);
            assert!((arm.modelled_s / (seconds + start_s) - 1.0).abs() < 1e-12, "{shape}: {arm:?}, {seconds} s");
        }
        least.push(arms.iter().map(|arm| arm.modelled_s).fold(f64::INFINITY, f64::min));
    }
    // More rounds, and more messages.
    assert!(least[0] > least[1] && least[2] > least[3], "{least:?}");
}

/// As files and reports have it.
#[test]
fn a_rule_says_for_which_topology_it_is() {
    let ranks = wired(4, 1, "torus:2x2");
    let (model, torus) = (measured(&ranks), situation(&ranks, MIB));
    let action = torus.arms.last().expect("choices").action;
    assert!(model.family_name(&torus.state, &action).starts_with("2d-torus "));
    let policy = Policy::new(3, [(torus.context, Schedule::always(Choice::Play(action)))]);
    let text = policy_file::write(&policy);
    assert!(text.contains("\ntopology = \"torus\"\n") && text.contains("\nhosts = 4\n"), "{text}");
    assert_eq!(policy_file::read(&text), Ok(policy.clone()));
    let flat = situation(&Topology::regular(4, 1), MIB).context;
    assert_eq!(policy.choice(torus.context.key(), 0), Choice::Play(action));
    assert_eq!(policy.choice(flat.key(), 0), Choice::Default);
}

/// Of a simulated cluster its file says it.
#[test]
fn a_simulated_cluster_is_wired_as_it_says() {
    let flat = Cluster::named("study-10gbe:8x1").expect("it is built in");
    for (topology, class, more) in [
        ("flat", TopologyClass::Flat, 0),
        ("tree:4:2", TopologyClass::Tree, 0),
        ("fat-tree:4:2", TopologyClass::Tree, 0),
        ("torus:4x2", TopologyClass::Torus, 1),
        ("bcube:2:3", TopologyClass::Bcube, 1),
    ] {
        let model = OwnModel::of(&Cluster { topology: topology.to_owned(), ..flat.clone() });
        let state = model.state(&all_reduce(&Topology::regular(8, 1), MIB));
        let situation = model.situation(&state).expect("choices");
        assert_eq!((state.topology, names(&situation).len()), (class, FLAT.len() + more), "{topology}");
    }
}

/// Who shares a host is counted off, as ranks fill one host after the other: comparing the hosts of large clusters takes too long.
#[test]
fn ranks_that_are_counted_off_share_hosts_as_those_that_are_compared() {
    let cluster = Cluster::named("study-10gbe:8x1").expect("it is built in");
    for shape in ["flat", "torus:4x2", "bcube:2:3"] {
        let model = OwnModel::of(&Cluster { topology: shape.to_owned(), ..cluster.clone() });
        let state = model.state(&all_reduce(&Topology::regular(8, 1), MIB));
        // On 8 hosts with room for two, 13 ranks fill no more than seven.
        for (ranks, hosts) in [(1usize, 1usize), (5, 1), (7, 3), (8, 8), (13, 8), (16, 8)] {
            let per_host = ranks.div_ceil(hosts);
            let compared: Vec<usize> = (0..ranks).map(|rank| rank / per_host).collect();
            let compared = Topology::of_hosts(&compared).on(shape.parse().expect("a shape"));
            let counted = model.topology_of(&State { ranks: ranks as u32, hosts: hosts as u32, ..state });
            assert_eq!(counted, compared, "{ranks} ranks on {hosts} hosts, {shape}");
        }
    }
}
