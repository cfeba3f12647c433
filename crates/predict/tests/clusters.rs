//! Whatever a cluster file may say can be predicted.

use paceline_plan::{BUILT_IN_CLUSTERS, Cluster, NetworkModel, built_in_profile};
use paceline_predict::search::{Question, Space, search};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;

/// Seconds of an iteration of ResNet-50 on all workers of a cluster.
fn seconds(cluster: &Cluster, strategy: &str) -> f64 {
    let profile = built_in_profile("resnet50").unwrap();
    let strategy = Registry::built_in().parse(strategy).unwrap();
    let workers = cluster.workers();
    let job = Job { cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
    estimate(&job).unwrap_or_else(|error| panic!("{}, {strategy}: {error}", cluster.name)).iteration_s
}

#[test]
fn clusters_that_are_built_in_are_predicted() {
    for name in BUILT_IN_CLUSTERS {
        let cluster = Cluster::named(name).unwrap();
        for strategy in ["bsp-a2a", "mg-wfbp", "wfbp-ps", "bytescheduler-a2a"] {
            let seconds = seconds(&cluster, strategy);
            assert!(seconds.is_finite() && seconds > 0.0, "{name}, {strategy}: {seconds} s");
        }
    }
}

/// The text of the comparative study (Shi et al., arXiv 2005.13247) has 441 ms for the gradients of BERT-Large on the four devices of a
/// host, whatever is between hosts.
#[test]
fn an_all_reduce_takes_what_the_text_of_the_study_says() {
    let profile = built_in_profile("bert-large@rtx2080ti").unwrap();
    let strategy = Registry::built_in().parse("schedule=none,arch=a2a:ring").unwrap();
    for name in ["study-10gbe", "study-100gbib", "study-100gbe"] {
        let cluster = Cluster::named(name).unwrap();
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
        let prediction = estimate(&job).unwrap();
        assert_eq!(prediction.plan.operations(), 1, "{name}");
        let seconds = prediction.communication_s;
        assert!((seconds / 0.441 - 1.0).abs() <= 0.05, "{name}: {seconds} s");
    }
}

/// One of each kind for sixteen hosts: none is faster than a single switch, but where hosts have a second port for the tile that
/// follows, and oversubscription costs.
#[test]
fn clusters_of_every_shape_are_predicted() {
    let of = |shape: &str| {
        let flat = Cluster::of_network(NetworkModel::TEN_GBE, 16, 1);
        let cluster = Cluster { topology: shape.to_owned(), name: shape.to_owned(), ..flat };
        assert_eq!(cluster.check(), Ok(()), "{shape}");
        seconds(&cluster, "schedule=none,arch=a2a:halving-doubling")
    };
    let flat = of("flat");
    let shapes = ["tree:4:1", "tree:4:4", "fat-tree:4:1", "fat-tree:4:4", "torus:4x4", "bcube:4:2"];
    for (shape, ports) in shapes.into_iter().zip([1.0, 1.0, 1.0, 1.0, 4.0, 2.0]) {
        let seconds = of(shape);
        println!("{shape}: {seconds:.3} s, {flat:.3} s on a flat network");
        assert!(seconds >= flat / ports * (1.0 - 1e-9) && seconds < 20.0 * flat, "{shape}: {seconds} s, {flat} s");
    }
    // A quarter of the links, and half of the bytes go over them.
    assert!(of("tree:4:4") > 1.2 * of("tree:4:1"));
}

/// Switches that are never in the way make nothing faster or slower, whether a formula or a program says how long it takes;
/// and those that are make nothing faster.
#[test]
fn a_tree_takes_as_long_as_one_switch_if_it_is_not_oversubscribed() {
    for algorithm in ["ring", "binary-tree", "double-binary-tree", "direct-scatter", "recursive-doubling"] {
        let of = |shape: &str| {
            let flat = Cluster::of_network(NetworkModel::TEN_GBE, 16, 1);
            let cluster = Cluster { topology: shape.to_owned(), name: shape.to_owned(), ..flat };
            seconds(&cluster, &format!("schedule=none,arch=a2a:{algorithm}"))
        };
        let (flat_s, tree_s, less_s) = (of("flat"), of("tree:4:1"), of("tree:4:4"));
        assert!((tree_s / flat_s - 1.0).abs() < 1e-6, "{algorithm}: {tree_s}, {flat_s} s under one switch");
        assert!(less_s >= 0.98 * flat_s, "{algorithm}: {less_s}, {flat_s} s under one switch");
    }
}

/// The program follows the cables, whichever side is the longer one.
#[test]
fn a_torus_may_lie_on_either_side() {
    let of = |shape: &str, algorithm: &str| {
        let flat = Cluster::of_network(NetworkModel::TEN_GBE, 32, 1);
        let cluster = Cluster { topology: shape.to_owned(), name: shape.to_owned(), ..flat };
        seconds(&cluster, &format!("schedule=none,arch=a2a:{algorithm}"))
    };
    let (wide, high) = (of("torus:8x4", "2d-torus"), of("torus:4x8", "2d-torus"));
    assert!((wide / high - 1.0).abs() < 0.01, "{wide} {high}");
    assert!(wide < of("torus:8x4", "ring"), "{wide}");
}

/// Where hosts have several ports and communication counts, a plan takes a program that uses them. (On a torus of short rings that
/// of BCube is as good as its own: it goes both ways round, in fewer rounds.)
#[test]
fn plans_take_the_programs_that_suit_the_topology() {
    let profile = built_in_profile("bert-base").unwrap();
    for (shape, hosts, names) in [("torus:4x4", 16, &["2d-torus", "bcube"][..]), ("bcube:3:2", 9, &["bcube"])] {
        let flat = Cluster::of_network(NetworkModel::TEN_GBE, hosts, 1);
        let cluster = Cluster { topology: shape.to_owned(), ..flat };
        let space = Space { effort: 0, intervals: 0, ..Space::default() };
        let answer = search(&Question { cluster: &cluster, profile: &profile, workers: hosts, space: &space }).unwrap();
        let all_to_all = answer.candidates.iter().find(|candidate| candidate.strategy.arch.name == "a2a").unwrap();
        let chosen = all_to_all.strategy.algorithm().unwrap_or("none");
        assert!(names.contains(&chosen), "{shape}: {}", all_to_all.strategy);
    }
}
