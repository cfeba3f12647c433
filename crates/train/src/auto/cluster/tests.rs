use paceline_plan::built_in_profile;
use paceline_strategy::Registry;

use super::*;
use crate::InFlight;
use crate::on_ranks::{on_hosts, on_ranks};

fn calibrated_on(arch: &str, cluster: &mut Cluster, measured: CommunicationCost, uncertain: f64) -> Vec<String> {
    let profile = built_in_profile("resnet50").unwrap();
    let strategy = Registry::built_in().parse(arch).unwrap();
    calibrate(cluster, &strategy, &profile, cluster.workers(), &(measured, uncertain)).unwrap()
}

fn calibrated(cluster: &mut Cluster, points: &[(u64, f64)], uncertain: f64) -> Vec<String> {
    calibrated_on("wfbp-a2a", cluster, CommunicationCost::of_points(points.to_vec()), uncertain)
}

fn several(cluster: &Cluster, arch: &str, bytes: u64, operations: usize) -> f64 {
    let profile = built_in_profile("resnet50").unwrap();
    let strategy = Registry::built_in().parse(arch).unwrap();
    operations_alone_s(cluster, &profile, cluster.workers(), &strategy, bytes, operations).unwrap()
}

fn seconds(cluster: &Cluster, bytes: u64) -> f64 {
    several(cluster, "wfbp-a2a", bytes, 1)
}

/// Operations of which one takes `alone_s` by itself and occupies the network for `each_s` of it.
fn in_flight(alone_s: f64, each_s: f64) -> CommunicationCost {
    let points = [4096, 1 << 20, 8 << 20].map(|bytes| (bytes, alone_s + 3e-9 * bytes as f64)).to_vec();
    let seconds = points[0].1 + 15.0 * each_s;
    let all = InFlight { operations: 16, bytes: 4096, seconds };
    CommunicationCost { in_flight: Some(all), ..CommunicationCost::of_points(points) }
}

/// Operations of an arch by themselves and at once, as they are measured where the cluster is this one.
fn measured_of(truth: &Cluster, arch: &str) -> CommunicationCost {
    let points = [4096, 65536, 1 << 20, 8 << 20].map(|bytes| (bytes, several(truth, arch, bytes, 1)));
    let at_once = |bytes| InFlight { operations: 8, bytes, seconds: several(truth, arch, bytes, 8) };
    CommunicationCost {
        in_flight: Some(at_once(4096)),
        large_in_flight: Some(at_once(1 << 20)),
        ..CommunicationCost::of_points(points.to_vec())
    }
}

/// What several take at once says what of an operation's time others have to wait for: little of a long latency, or all of a
/// long start.
#[test]
fn starts_and_latencies_are_told_apart() {
    for (hosts, per_host) in [(4, 1), (2, 2), (1, 4)] {
        for (alone_s, each_s) in [(0.9e-3, 0.1e-3), (0.9e-3, 0.85e-3), (0.9e-3, 5e-6), (60e-6, 50e-6)] {
            let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
            assert_eq!(calibrated_on("wfbp-a2a", &mut cluster, in_flight(alone_s, each_s), 0.1), Vec::<String>::new());
            let what = format!("{hosts}x{per_host}, {alone_s}, {each_s}: {cluster:?}");
            let alone = seconds(&cluster, 4096);
            assert!((alone / (alone_s + 12e-6) - 1.0).abs() < 0.1, "{alone}, {what}");
            let each = (several(&cluster, "wfbp-a2a", 4096, 9) - alone) / 8.0;
            // Bytes occupy the network, whatever is measured: of two ranks a host's interface may send all to two others.
            assert!((each / each_s - 1.0).abs() < 0.1 || each_s < each && each < 60e-6, "{each}, {what}");
            assert_eq!(cluster.check(), Ok(()), "{what}");
        }
    }
}

/// What an arch takes for a byte where many operations are under way, once a network is known by what single ones took.
#[test]
fn what_many_large_operations_take_is_predicted_as_well() {
    for (hosts, per_host) in [(2, 2), (4, 1), (2, 1), (4, 2)] {
        let truth = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
        // When the ranks met, each message seemed to keep its port busy for long, as it does where links are emulated.
        let met = |link: LinkClass| LinkClass { overhead_s: 37.5e-6, alpha_s: link.alpha_s.max(37.5e-6), ..link };
        let NetworkModel { within, across } = NetworkModel::TEN_GBE;
        let network = NetworkModel { within: met(within), across: met(across) };
        let mut cluster = Cluster::of_network(network, hosts, per_host);
        for arch in ["wfbp-a2a", "wfbp-ps,arch=ps:2"] {
            assert_eq!(calibrated_on(arch, &mut cluster, measured_of(&truth, arch), 0.1), Vec::<String>::new());
            for bytes in [1 << 20, 4 << 20] {
                let more = |cluster: &Cluster| several(cluster, arch, bytes, 17) - several(cluster, arch, bytes, 1);
                let off = more(&cluster) / more(&truth) - 1.0;
                assert!(off.abs() < 0.02, "{hosts}x{per_host}, {arch}, {bytes}: off by {off}");
            }
        }
    }
}

/// All shards are timed, and fewer of them are predicted: with connections that carry less than the links, and
/// partitions that take their time.
#[test]
fn what_fewer_shards_take_follows_from_what_all_of_them_took() {
    for (hosts, per_host) in [(2, 1), (4, 1), (4, 2)] {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
        let mut truth = cluster.clone();
        truth.server.beta_s_per_byte = Some(truth.across.beta_s_per_byte.times(1.3));
        truth.server.partition_s = 50e-6.into();
        let arch = |shards: usize| format!("wfbp-ps,arch=ps:{shards}");
        let measured = measured_of(&truth, &arch(hosts));
        assert_eq!(calibrated_on(&arch(hosts), &mut cluster, measured, 0.1), Vec::<String>::new());
        assert_eq!(cluster.measured.unwrap().shards, Some([hosts, hosts]));
        for shards in 1..=hosts {
            for bytes in [4096, 1 << 20, 4 << 20] {
                let [found, right] = [&cluster, &truth].map(|cluster| several(cluster, &arch(shards), bytes, 16));
                let off = found / right - 1.0;
                assert!(off.abs() < 0.03, "{hosts}x{per_host}, {shards} shards, {bytes}: off by {off}");
            }
        }
    }
}

/// Where the servers' processors were what took the time, fewer of them look better than they are, and still no better
/// than more.
#[test]
fn slow_processors_do_not_make_fewer_shards_the_better_choice() {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    let mut truth = cluster.clone();
    truth.server.combine_s_per_byte = 5e-9.into();
    let arch = |shards: usize| format!("wfbp-ps,arch=ps:{shards}");
    calibrated_on(&arch(4), &mut cluster, measured_of(&truth, &arch(4)), 0.1);
    let seconds = [1, 2, 4].map(|shards| several(&cluster, &arch(shards), 1 << 20, 16));
    assert!(seconds[0] < several(&truth, &arch(1), 1 << 20, 16), "{seconds:?}");
    assert!(seconds[0] > 1.02 * seconds[1] && seconds[1] > 1.02 * seconds[2], "{seconds:?}");
}

/// Partitions that travel beside each other are no partitions that follow each other.
#[test]
fn what_partitions_occupy_is_their_start() {
    for hosts in [1, 4] {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, 4 / hosts);
        let arch = "wfbp-ps,arch=ps:1";
        calibrated_on(arch, &mut cluster, in_flight(2e-3, 0.2e-3), 0.1);
        let each = (several(&cluster, arch, 4096, 9) - several(&cluster, arch, 4096, 1)) / 8.0;
        assert!((each / 0.2e-3 - 1.0).abs() < 0.1, "{hosts}: {each}");
    }
}

/// After calibration single operations take what was measured, whether the links' latencies are too short or too long.
#[test]
fn what_was_measured_is_predicted() {
    for (hosts, per_host) in [(4, 1), (2, 2), (1, 4)] {
        for start_s in [0.9e-3, 10e-6] {
            let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
            let points = [4096, 1 << 20, 8 << 20].map(|bytes| (bytes, start_s + 3e-9 * bytes as f64));
            assert_eq!(calibrated(&mut cluster, &points, 0.1), Vec::<String>::new());
            for (bytes, measured_s) in [points[0], points[2]] {
                let predicted = seconds(&cluster, bytes);
                let off = (predicted / measured_s - 1.0).abs();
                assert!(off < 0.25, "{hosts}x{per_host}, {start_s}, {bytes}: {predicted} of {measured_s}");
            }
            assert_eq!(cluster.measured.unwrap().bytes, [4096, 8 << 20]);
            assert!(!cluster.across.beta_s_per_byte.is_exact() || hosts == 1);
            assert_eq!(cluster.check(), Ok(()));
        }
    }
}

/// A message that was found to occupy its port for long when the ranks met, and then does not, does not make bytes cheap.
#[test]
fn what_several_large_operations_occupy_is_bandwidth() {
    let network = Cluster::of_network(NetworkModel::TEN_GBE, 4, 2);
    let of = |bytes: u64| {
        let [one, eight] = [1, 8].map(|operations| 1.15 * several(&network, "wfbp-a2a", bytes, operations));
        (one, InFlight { operations: 8, bytes, seconds: eight })
    };
    let points = [4096, 65536, 1 << 20, 4 << 20, 8 << 20].map(|bytes| (bytes, of(bytes).0));
    let measured = CommunicationCost {
        in_flight: Some(of(4096).1),
        large_in_flight: Some(of(4 << 20).1),
        ..CommunicationCost::of_points(points.into())
    };
    let mut met = network.clone();
    met.across.overhead_s = 75e-6.into();
    assert_eq!(calibrated_on("wfbp-a2a", &mut met, measured, 0.05), Vec::<String>::new());
    let [found, expected] = [&met, &network].map(|cluster| several(cluster, "wfbp-a2a", 16 << 20, 8));
    assert!((found / (1.15 * expected) - 1.0).abs() < 0.02, "{found} of {}", 1.15 * expected);
}

/// Small operations take other algorithms, whose slopes are no bandwidth: they do not tilt what large ones take.
#[test]
fn large_operations_take_what_their_bytes_take() {
    let of_links = Cluster::of_network(NetworkModel::TEN_GBE, 4, 2);
    let sizes = [4096, 65536, 1 << 20, 8 << 20];
    let points: Vec<(u64, f64)> = sizes.map(|bytes| (bytes, seconds(&of_links, bytes) + 0.2e-3)).into();
    for small_s in [0.2e-3, 0.5e-3, 1.5e-3] {
        let mut cluster = of_links.clone();
        calibrated(&mut cluster, &[vec![(4096, small_s)], points[1..].to_vec()].concat(), 0.1);
        let (found, expected) = (seconds(&cluster, 128 << 20), seconds(&of_links, 128 << 20));
        assert!((found / expected - 1.0).abs() < 0.03, "{small_s}: {found} of {expected}");
    }
}

/// Larger operations that take no longer, or nothing like what the links carry: the links' own constants stay.
#[test]
fn noise_is_no_bandwidth() {
    let untouched = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    for points in [
        vec![(4096, 2e-3), (65536, 1e-3)],
        vec![(4096, 1e-3)],
        vec![(4096, 1e-3), (65536, f64::NAN)],
        vec![(4096, 1e-3), (8 << 20, 10.0)],
    ] {
        let mut cluster = untouched.clone();
        let doubts = calibrated(&mut cluster, &points, 0.5);
        assert_eq!(cluster.across.beta_s_per_byte, untouched.across.beta_s_per_byte, "{points:?}");
        assert!(doubts.iter().any(|doubt| doubt.contains("do not say what a byte takes")), "{points:?}: {doubts:?}");
    }
    let mut cluster = untouched.clone();
    assert!(calibrated(&mut cluster, &[], 0.5)[0].contains("could not be measured"));
    assert_eq!(cluster, untouched);
}

/// Each round of an operation that overtakes others waits, all-to-all and on the way to servers; what all-to-all says counts, if
/// it was asked.
#[test]
fn whoever_overtakes_waits_as_was_measured() {
    let points = vec![(4096, 1e-3), (65536, 2e-3), (1 << 20, 9e-3)];
    let measured = |longer_s| CommunicationCost {
        overtaking: vec![Overtaking { bytes: 4096, longer_s: longer_s / 2.0 }, Overtaking { bytes: 65536, longer_s }],
        ..CommunicationCost::of_points(points.clone())
    };
    let waits_s = |cluster: &Cluster| cluster.operation.overtaking_s.value;
    // Six rounds of a ring of four.
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    calibrated_on("wfbp-a2a,arch=a2a:ring", &mut cluster, measured(12e-3), 0.1);
    assert!((waits_s(&cluster) - 2e-3).abs() < 1e-12, "{}", waits_s(&cluster));
    calibrated_on("wfbp-ps,arch=ps:2", &mut cluster, measured(3e-3), 0.1);
    assert!((waits_s(&cluster) - 2e-3).abs() < 1e-12, "{}", waits_s(&cluster));
    let small = cluster.operation.overtaking_small_s.unwrap();
    assert!((small.value - 1e-3).abs() < 1e-12 && cluster.operation.overtaking_round_s(16384) == 1.5e-3, "{small:?}");
    // There and back.
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    calibrated_on("wfbp-ps,arch=ps:2", &mut cluster, measured(3e-3), 0.1);
    assert!((waits_s(&cluster) - 1.5e-3).abs() < 1e-12, "{}", waits_s(&cluster));
    // It took no longer, by chance perhaps: servers do not know better.
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    calibrated_on("wfbp-a2a", &mut cluster, measured(0.0), 0.1);
    calibrated_on("wfbp-ps,arch=ps:2", &mut cluster, measured(3e-3), 0.1);
    let Constant { value, high, .. } = cluster.operation.overtaking_s;
    assert!(value == 0.0 && high > 1e-5, "{value} {high}");
}

/// Each all-reduce costs computation half a millisecond and takes a fifth of one longer: predictions of the same say that, whatever
/// the strategy adds to its start.
#[test]
fn what_was_lost_beside_each_other_is_lost_in_predictions() {
    let profile = built_in_profile("resnet50").unwrap();
    for (hosts, per_host) in [(1, 2), (1, 4), (2, 2)] {
        for arch in ["wfbp-a2a", "wfbp-a2a,arch=a2a:auto:8ms", "wfbp-ps"] {
            let strategy = Registry::built_in().parse(arch).unwrap();
            let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
            let (workers, bytes) = (hosts * per_host, 1 << 20);
            let lost_s = [Constant::between(0.5e-3, 0.4e-3, 0.6e-3), Constant::exact(0.2e-3)];
            interfere(&mut cluster, &strategy, &profile, workers, bytes, lost_s).unwrap();
            let of = all_reduce_seconds(&cluster, &profile, workers, &strategy, bytes).unwrap();
            assert!(of.within_s > 0.0 && of.within_s <= of.occupied_s, "{of:?}");
            assert_eq!(of.occupied_s > 8e-3, arch.ends_with("8ms"), "{of:?}");
            let InterferenceConstants { computation, communication } = cluster.interference;
            assert!((computation.value * of.within_s - 0.5e-3).abs() < 1e-9, "{computation:?} {of:?}");
            assert!((computation.high * of.within_s - 0.6e-3).abs() < 1e-9, "{computation:?} {of:?}");
            assert!((communication.value * of.occupied_s - 0.2e-3).abs() < 1e-9, "{communication:?} {of:?}");
            assert_eq!(cluster.check(), Ok(()));
        }
    }
    // One worker sends nothing.
    let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
    let mut alone = Cluster::of_network(NetworkModel::TEN_GBE, 1, 1);
    interfere(&mut alone, &strategy, &profile, 1, 1 << 20, [Constant::exact(0.5); 2]).unwrap();
    assert_eq!(alone.interference, InterferenceConstants::default());
}

/// Operations that were measured to be lighter than ranks count are done by the algorithm that these choose all the same.
#[test]
fn algorithms_are_chosen_by_what_the_ranks_agreed() {
    let found = on_ranks(2, |workers| (of_world(&workers), workers.link_costs()));
    for (mut cluster, agreed) in found {
        assert!(agreed.within.overhead > 0.0, "{agreed:?}");
        (cluster.within.overhead_s, cluster.within.beta_s_per_byte) = (Constant::ZERO, Constant::exact(1.0));
        assert_eq!(cluster.counted_costs_among(1), agreed);
        assert_eq!((cluster.link_costs().within.overhead, cluster.link_costs().within.beta), (0.0, 1.0));
    }
}

#[test]
fn what_a_cluster_does_not_say_of_hosts_is_told() {
    assert_eq!(unsaid(&Topology::regular(4, 2)), None);
    let said = unsaid(&Topology::of_hosts(&[0, 0, 1]));
    assert_eq!(said.as_deref(), Some("3 workers on 2 hosts are predicted as if full hosts of 2 came first"));
}

/// What follows the wires is predicted to use all of a host's ports, and what does not to share them; and what was measured of operations
/// there is predicted again.
#[test]
fn hosts_that_are_wired_otherwise_are_predicted_so() {
    for (topology, program) in [("torus:2x2", "2d-torus"), ("bcube:2:2", "bcube")] {
        let of_ranks = on_hosts(4, topology, |workers| of_world(&workers));
        assert!(
            of_ranks.iter().all(|cluster| cluster.topology == topology && cluster.check() == Ok(())),
            "{of_ranks:?}"
        );
        let flat = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
        let wired = Cluster { topology: of_ranks[0].topology.clone(), ..flat.clone() };
        let arch = format!("wfbp-a2a,arch=a2a:{program}");
        let seconds = |cluster: &Cluster| several(cluster, &arch, 64 << 20, 1);
        assert!(seconds(&wired) < 0.8 * seconds(&flat), "{topology}: {} {}", seconds(&wired), seconds(&flat));
        // Links that are a third slower than those between which messages were timed.
        let mut truth = wired.clone();
        truth.across.beta_s_per_byte = truth.across.beta_s_per_byte.times(4.0 / 3.0);
        for arch in [&arch, "wfbp-ps,arch=ps:4"] {
            let mut found = wired.clone();
            assert_eq!(calibrated_on(arch, &mut found, measured_of(&truth, arch), 0.1), Vec::<String>::new());
            let off = several(&found, arch, 4 << 20, 8) / several(&truth, arch, 4 << 20, 8) - 1.0;
            assert!(off.abs() < 0.05, "{topology}, {arch}: off by {off}");
        }
    }
}
