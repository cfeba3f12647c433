//! What links and operations of a cluster cost, and what the built-in ones were measured to.

use paceline_plan::{Cluster, Constant, LinkCosts, NetworkModel, PCIE_3_X16};

#[test]
fn links_cost_what_the_cluster_says() {
    let cluster = Cluster::of_network(NetworkModel::TEN_GBE, 8, 4);
    cluster.check().unwrap();
    assert_eq!((cluster.network(), cluster.workers(), cluster.hosts_of(9)), (NetworkModel::TEN_GBE, 32, 3));
    let costs = cluster.link_costs();
    assert_eq!((costs.within, costs.across), (PCIE_3_X16.cost(0.0), NetworkModel::TEN_GBE.across.cost(0.0)));
    // What is counted for a choice is no less than the overhead, and no more than alpha.
    let mut emulated = cluster.clone();
    (emulated.within.counted_overhead_s, emulated.across.counted_overhead_s) = (1.0, 50e-6);
    let counted = emulated.counted_costs_among(8);
    assert_eq!((counted.within.overhead, counted.across.overhead), (counted.within.alpha, 50e-6));
    assert_eq!((emulated.link_costs(), cluster.counted_costs_among(8)), (costs, costs));
    // What ranks have agreed on they count, and it takes what it takes; over links that nobody has met they have agreed on nothing.
    let agreed = LinkCosts { contention: 1e-9, ..counted };
    let met = Cluster { agreed: Some(agreed), ..cluster.clone() };
    assert_eq!((met.link_costs(), met.counted_costs_among(8), met.counted_costs_among(2)), (costs, agreed, agreed));
    assert_eq!(Cluster::from_toml(&met.to_toml()).expect("a cluster"), cluster);
    assert!(met.with_link("25gbe").expect("a link").agreed.is_none());
    let mut crowded = cluster.clone();
    crowded.across.contention = Constant::exact(0.01);
    crowded.across.jitter_s = Constant::exact(1e-3);
    crowded.across.incast_s_per_byte = Constant::exact(1e-10);
    crowded.within.incast_s_per_byte = Constant::exact(2e-10);
    crowded.combine_s_per_byte = Constant::exact(3e-10);
    for hosts in [0, 1, 2] {
        assert_eq!(crowded.link_costs_among(hosts).across.beta, costs.across.beta);
        assert_eq!(crowded.jitter_s(hosts), 0.0);
    }
    assert!((crowded.link_costs().across.beta / costs.across.beta - 1.6).abs() < 1e-12);
    assert!((crowded.jitter_s(4) - 12e-3).abs() < 1e-12);
    assert!(!crowded.link_costs().fetched);
    crowded.within.fetched = true;
    let found = crowded.link_costs_among(3);
    assert!(found.fetched);
    assert_eq!((found.contention, found.contention_within), (1e-10, 2e-10));
    assert_eq!((found.contention, found.within.gamma, found.across.gamma), (1e-10, 3e-10, 3e-10));
}

#[test]
fn starts_and_overheads_grow_as_they_are_named() {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 8, 4);
    cluster.operation.start_s = Constant::exact(2e-4);
    cluster.operation.start_per_doubling_s = Constant::exact(1e-4);
    for (workers, start) in [(1, 2e-4), (4, 2e-4), (8, 3e-4), (32, 5e-4)] {
        assert!((cluster.start_s(workers) - start).abs() < 1e-15, "{workers}");
    }
    assert_eq!(cluster.overhead_s("resnet50"), 0.0);
    cluster.computation.overhead_s.insert("*".into(), Constant::exact(0.5));
    cluster.computation.overhead_s.insert("resnet50".into(), Constant::exact(-0.25));
    assert_eq!((cluster.overhead_s("resnet50"), cluster.overhead_s("other")), (-0.25, 0.5));
}

/// The measured points stand in the file. (What was fitted, `paceline-predict` tests.)
#[test]
fn the_study_is_what_the_study_measured() {
    for name in ["study-10gbe", "study-100gbe", "study-100gbib"] {
        let cluster = Cluster::named(name).unwrap();
        assert_eq!((cluster.hosts, cluster.workers_per_host, cluster.server_hosts), (8, 4, 8));
        // Every point of the data set, the better one of two of a size.
        let points = include_str!("../../../data/p2p_points.csv").lines().skip(1).map(|line| {
            let fields: Vec<&str> = line.splitn(4, ',').collect();
            (fields[0].to_owned(), fields[1].parse::<u64>().unwrap(), fields[2].parse::<f64>().unwrap() * 1e-3)
        });
        let network = name.trim_start_matches("study-");
        let of_it = points.filter(|(of, ..)| of.to_lowercase().starts_with(&format!("{network} ")));
        let mut least = std::collections::BTreeMap::new();
        for (_, bytes, seconds) in of_it {
            least.entry(bytes).and_modify(|known: &mut f64| *known = known.min(seconds)).or_insert(seconds);
        }
        assert!(least.len() >= 2, "{name}");
        for ((bytes, seconds), (known, stated)) in least.into_iter().zip(&cluster.across.points) {
            assert!(bytes == *known && (stated.value / seconds - 1.0).abs() < 1e-9, "{name}: {bytes} bytes");
        }
    }
}

/// The published speedup lies within what an all-reduce of BERT-Large's gradient can take on these links, over an
/// iteration of about 1.5 s.
#[test]
fn nvlink_hosts_scale_as_the_study_says() {
    let beta = Cluster::named("4xv100-nvlink").unwrap().within.beta_s_per_byte;
    let speedup = |beta: f64| 4.0 * 1.53 / (1.53 + 1.5 * 1.344_929_032e9 * beta);
    assert!((speedup(beta.value) / 3.82 - 1.0).abs() < 0.01, "{}", speedup(beta.value));
    assert!(speedup(beta.high) < 3.82 && speedup(beta.low) > 3.82);
}

#[test]
fn rounds_that_overtake_wait_by_their_bytes() {
    let mut operation = Cluster::of_network(NetworkModel::TEN_GBE, 2, 1).operation;
    operation.overtaking_s = Constant::exact(3e-3);
    assert_eq!([1, 4096, 1 << 30].map(|bytes| operation.overtaking_round_s(bytes)), [3e-3; 3]);
    operation.overtaking_small_s = Some(Constant::exact(1e-3));
    let waits_s = [0, 4096, 16384, 65536, 1 << 30].map(|bytes| operation.overtaking_round_s(bytes));
    for (waits_s, expected_s) in waits_s.into_iter().zip([1e-3, 1e-3, 2e-3, 3e-3, 3e-3]) {
        assert!((waits_s - expected_s).abs() < 1e-12, "{waits_s} {expected_s}");
    }
}
