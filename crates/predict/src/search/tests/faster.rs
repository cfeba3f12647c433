//! What gets faster on a cluster makes nothing slower.

use super::*;

/// Two hosts of one worker, over a network on which starts and bytes count.
fn two_hosts(overhead_s: f64) -> Cluster {
    let link = LinkClass { alpha_s: 50e-6, overhead_s, beta_s_per_byte: 1e-9 };
    let mut cluster = Cluster::of_network(NetworkModel { within: link, across: link }, 2, 1);
    cluster.operation.start_s = 20e-6.into();
    cluster
}

/// 8 MB, which take longer to be sent than to be computed.
fn profile_of_three() -> Profile {
    let sizes = [300_000, 1_200_000, 500_000];
    let tensor = |(number, elements): (usize, usize)| ProfileTensor {
        name: number.to_string(),
        elements,
        forward_macs_per_sample: 1,
    };
    let step = |seconds: f64| move |tensor: usize| Step { tensor, seconds };
    Profile {
        model: "small".into(),
        tensors: sizes.into_iter().enumerate().map(tensor).collect(),
        forward: (0..sizes.len()).map(step(0.5e-3)).collect(),
        backward: (0..sizes.len()).rev().map(step(1e-3)).collect(),
        update_s: 1e-4,
        ..built_in_profile("resnet50").unwrap()
    }
}

/// The highest throughput that is found, and how it is reached.
fn best_of(cluster: &Cluster, profile: &Profile) -> (f64, String) {
    let archs = archs(&["a2a:auto", "a2a:ring", "a2a:double-binary-tree", "a2a:direct-scatter"]);
    let space = Space { archs, intervals: 0, ..Space::default() };
    let answer = search(&Question { cluster, profile, workers: cluster.workers(), space: &space }).unwrap();
    let rates = answer.candidates.iter().map(|candidate| candidate.prediction.samples_per_s);
    (rates.fold(0.0, f64::max), answer.best().strategy.to_string())
}

/// Latencies that a program hid were once taken off the time for which ports are busy, so that shorter ones left less to take off.
#[test]
fn half_of_a_cost_is_no_loss() {
    let profile = profile_of_three();
    for overhead_s in [0.0, 5e-6] {
        let cluster = two_hosts(overhead_s);
        let (samples_per_s, strategy) = best_of(&cluster, &profile);
        let constants = ["operation.start_s", "across.alpha_s", "across.overhead_s", "across.beta_s_per_byte"];
        let half = |name: &str| {
            let mut other = cluster.clone();
            other.scale(&[name], 0.5);
            (name.to_owned(), other)
        };
        for (change, other) in constants.map(half).into_iter().chain(what_if::faster(&cluster, 2)) {
            let (found, how) = best_of(&other, &profile);
            assert!(found >= samples_per_s * (1.0 - 1e-3), "{change}: {found} by {how}, {samples_per_s} by {strategy}");
        }
    }
}

/// Between two hosts every byte crosses both ports once, whatever the algorithm and the schedule.
#[test]
fn no_plan_is_faster_than_its_bytes() {
    let (mut cluster, profile) = (two_hosts(0.0), profile_of_three());
    cluster.operation.start_s = 0.0.into();
    let ports_s = 4.0 * profile.parameters() as f64 * cluster.across.beta_s_per_byte.value * (1.0 - 1e-9);
    for algorithm in ["ring", "double-binary-tree", "binary-tree", "direct-scatter", "halving-doubling"] {
        for schedule in ["wfbp", "bytescheduler:512KiB:2MiB", "fusion:1MiB"] {
            let text = format!("schedule={schedule},arch=a2a:{algorithm}");
            let strategy = Registry::built_in().parse(&text).unwrap();
            let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 2, local_batch: None };
            let prediction = crate::estimate(&job).unwrap();
            assert!(prediction.communication_s >= ports_s, "{text}: {} of {ports_s} s", prediction.communication_s);
        }
    }
}
