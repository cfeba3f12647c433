//! This world as a cluster, with the constants that were measured here.

use paceline_comm::Communicator;
use paceline_plan::{Cluster, Constant, LinkClass, LinkCost, MeasuredRange, NetworkModel, Profile};
use paceline_predict::PredictError;
use paceline_predict::search::operation_alone_s;
use paceline_strategy::Strategy;

use crate::measure::{CommunicationCost, fit};

/// Seconds per byte where nobody has measured links, as between threads: about what copying takes.
const OF_MEMORY: f64 = 1e-10;

/// What links cost, as the ranks agreed when they met.
pub(super) fn of_world(workers: &Communicator) -> Cluster {
    let (topology, costs) = (workers.topology(), workers.link_costs());
    let class = |link: LinkCost| LinkClass {
        alpha_s: link.alpha,
        overhead_s: link.overhead,
        beta_s_per_byte: if link.beta > 0.0 { link.beta } else { OF_MEMORY },
    };
    let network = NetworkModel { within: class(costs.within), across: class(costs.across) };
    let mut cluster = Cluster::of_network(network, topology.hosts(), topology.ranks_per_host_max());
    cluster.name = "this world".to_owned();
    cluster.source = "measured when the ranks met, and by operations alone".to_owned();
    cluster.combine_s_per_byte = costs.within.gamma.into();
    cluster.across.incast_s_per_byte = costs.contention.into();
    cluster
}

/// Hosts of which some have fewer ranks than others are taken to be full: in words, or nothing.
pub(super) fn of_uneven_hosts(workers: &Communicator) -> Vec<String> {
    let (topology, ranks) = (workers.topology(), workers.world_size());
    let (hosts, most) = (topology.hosts(), topology.ranks_per_host_max());
    let uneven = (0..hosts).any(|host| topology.members(host).len() != most);
    let doubt = format!("{ranks} workers on {hosts} hosts are predicted as if full hosts of {most} came first");
    if uneven { vec![doubt] } else { Vec::new() }
}

/// The measured operations are off by no more than this factor in either direction; beyond it something else was measured.
const FACTOR_MAX: f64 = 20.0;

/// Makes predictions of single operations on a strategy's arch what was measured of them, with the share by which that is
/// uncertain: the slope of the line through them is that of the links' bandwidth, and what is then missing is a start
/// (all-to-all), or a partition's time (servers); what is then too much is in the links' latency. What was measured and cannot be
/// believed is not used, but told: the links' own constants, of when the ranks met, stay.
///
/// # Errors
/// The cluster cannot be predicted.
pub fn calibrate(
    cluster: &mut Cluster,
    strategy: &Strategy,
    profile: &Profile,
    workers: usize,
    (measured, uncertain): &(CommunicationCost, f64),
) -> Result<Vec<String>, PredictError> {
    let points: Vec<(u64, f64)> = measured.points.iter().copied().filter(|(_, s)| s.is_finite() && *s > 0.0).collect();
    let (Some(&(small, _)), Some(&(large, _))) = (points.first(), points.last()) else {
        return Ok(vec![format!("what operations on {} take could not be measured", strategy.arch)]);
    };
    let predicted = |cluster: &Cluster| -> Result<Vec<(u64, f64)>, PredictError> {
        let seconds =
            |&(bytes, _): &(u64, f64)| Ok((bytes, operation_alone_s(cluster, profile, workers, strategy, bytes)?));
        points.iter().map(seconds).collect()
    };
    let servers = strategy.arch.name == "ps";
    let ((_, slope), (_, known)) = (fit(&points), fit(&predicted(cluster)?));
    let mut doubts = Vec::new();
    if servers && cluster.hosts == 1 {
        // Nothing is between hosts: what bytes take more is the server's processor.
        let more = (slope - known).max(0.0);
        cluster.server.combine_s_per_byte = about(cluster.server.combine_s_per_byte.value + more, *uncertain);
    } else if known > 0.0 && slope > 0.0 && (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&(slope / known)) {
        scale(cluster, servers, slope / known, *uncertain);
    } else if known > 0.0 || points.len() < 2 {
        doubts.push(format!(
            "operations of {small} to {large} bytes on {} do not say what a byte takes: {slope:.1e} s, and {known:.1e} s by \
             what was measured when the ranks met, which is used",
            strategy.arch
        ));
    }
    let missing_s = missing_s(&points, &predicted(cluster)?);
    let start = if servers && cluster.hosts > 1 {
        &mut cluster.server.partition_s
    } else if servers {
        &mut cluster.server.local_partition_s
    } else {
        &mut cluster.operation.start_s
    };
    *start = about((start.value + missing_s).max(0.0), *uncertain);
    if missing_s < 0.0 && !servers {
        quicken(cluster, |cluster| Ok(self::missing_s(&points, &predicted(cluster)?)))?;
    }
    // Of several archs what all of them were measured for.
    let bytes = cluster.measured.map_or([small, large], |range| [range.bytes[0].max(small), range.bytes[1].min(large)]);
    cluster.measured = Some(MeasuredRange { workers: [workers, workers], bytes });
    Ok(doubts)
}

/// However little repetitions agree, a time is more than nothing.
const UNCERTAIN_MAX: f64 = 0.9;

/// A constant and the ends of its interval.
fn about(value: f64, uncertain: f64) -> Constant {
    let share = uncertain.clamp(0.0, UNCERTAIN_MAX);
    Constant::between(value, value * (1.0 - share), value * (1.0 + share))
}

/// What predictions of operations lack, as relative errors weigh it.
fn missing_s(measured: &[(u64, f64)], predicted: &[(u64, f64)]) -> f64 {
    let weights = || measured.iter().map(|(_, seconds)| 1.0 / (seconds * seconds));
    let lacking = measured.iter().zip(predicted).map(|((_, measured_s), (_, predicted_s))| measured_s - predicted_s);
    weights().zip(lacking).map(|(weight, seconds)| weight * seconds).sum::<f64>() / weights().sum::<f64>()
}

/// Lets links have less latency, none at the least, until nothing is too much.
fn quicken(
    cluster: &mut Cluster,
    missing_s: impl Fn(&Cluster) -> Result<f64, PredictError>,
) -> Result<(), PredictError> {
    let with = |share: f64| {
        let mut quicker = cluster.clone();
        for link in [&mut quicker.within, &mut quicker.across] {
            (link.alpha_s, link.overhead_s) = (link.alpha_s.times(share), link.overhead_s.times(share));
        }
        quicker
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        if missing_s(&with(middle))? < 0.0 { high = middle } else { low = middle }
    }
    *cluster = with(low);
    Ok(())
}

/// What an arch's bytes cost, times a factor. All-to-all comes first, and then servers beside it, whose own constants are
/// those that differ.
fn scale(cluster: &mut Cluster, servers: bool, factor: f64, uncertain: f64) {
    if servers {
        let beta = cluster.server.beta_s_per_byte.unwrap_or(cluster.across.beta_s_per_byte);
        cluster.server.beta_s_per_byte = Some(about(beta.value * factor, uncertain));
        return;
    }
    for link in [&mut cluster.within, &mut cluster.across] {
        link.beta_s_per_byte = about(link.beta_s_per_byte.value * factor, uncertain);
        link.incast_s_per_byte = link.incast_s_per_byte.times(factor);
    }
    cluster.combine_s_per_byte = cluster.combine_s_per_byte.times(factor);
}

#[cfg(test)]
mod tests {
    use paceline_plan::built_in_profile;
    use paceline_strategy::Registry;

    use super::*;

    fn calibrated(cluster: &mut Cluster, points: &[(u64, f64)], uncertain: f64) -> Vec<String> {
        let profile = built_in_profile("resnet50").unwrap();
        let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
        let measured = CommunicationCost { alpha_s: 0.0, beta_s_per_byte: 0.0, points: points.to_vec() };
        calibrate(cluster, &strategy, &profile, cluster.workers(), &(measured, uncertain)).unwrap()
    }

    fn seconds(cluster: &Cluster, bytes: u64) -> f64 {
        let profile = built_in_profile("resnet50").unwrap();
        let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
        operation_alone_s(cluster, &profile, cluster.workers(), &strategy, bytes).unwrap()
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
            assert!(
                doubts.iter().any(|doubt| doubt.contains("do not say what a byte takes")),
                "{points:?}: {doubts:?}"
            );
        }
        let mut cluster = untouched.clone();
        assert!(calibrated(&mut cluster, &[], 0.5)[0].contains("could not be measured"));
        assert_eq!(cluster, untouched);
    }
}
