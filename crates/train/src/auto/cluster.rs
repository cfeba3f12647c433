//! This world as a cluster, with the constants that were measured here.

use paceline_comm::Communicator;
use paceline_plan::{Cluster, LinkClass, LinkCost, NetworkModel, Profile};
use paceline_predict::PredictError;
use paceline_predict::search::operation_alone_s;
use paceline_strategy::Strategy;

use crate::measure::CommunicationCost;

/// What links cost, as the ranks agreed when they met.
pub(super) fn of_world(workers: &Communicator) -> Cluster {
    let (topology, costs) = (workers.topology(), workers.link_costs());
    let class = |link: LinkCost| LinkClass {
        alpha_s: link.alpha,
        overhead_s: link.overhead,
        beta_s_per_byte: link.beta.max(f64::MIN_POSITIVE),
    };
    let network = NetworkModel { within: class(costs.within), across: class(costs.across) };
    let mut cluster = Cluster::of_network(network, topology.hosts(), topology.ranks_per_host_max());
    cluster.name = "this world".to_owned();
    cluster.source = "measured when the ranks met, and by operations alone".to_owned();
    cluster.combine_s_per_byte = costs.within.gamma.into();
    cluster.across.incast_s_per_byte = costs.contention.into();
    cluster
}

/// The measured operations are off by no more than this factor in either direction; beyond it something else was measured.
const FACTOR_MAX: f64 = 20.0;

/// Makes predictions of single operations on a strategy's arch what was measured of them: the slope between the smallest and
/// the largest one is that of the links' bandwidth, and what is then missing is a start (all-to-all), or a partition's time
/// (servers).
///
/// # Errors
/// The cluster cannot be predicted.
pub fn calibrate(
    cluster: &mut Cluster,
    strategy: &Strategy,
    profile: &Profile,
    workers: usize,
    measured: &CommunicationCost,
) -> Result<(), PredictError> {
    let (Some(&(small, small_s)), Some(&(large, large_s))) = (measured.points.first(), measured.points.last()) else {
        return Ok(());
    };
    let servers = strategy.arch.name == "ps";
    let predicted = |cluster: &Cluster, bytes| operation_alone_s(cluster, profile, workers, strategy, bytes);
    // Where the predicted slope is nothing, the bandwidth says nothing.
    let slope = predicted(cluster, large)? - predicted(cluster, small)?;
    if large > small && slope > 0.0 && !(servers && cluster.hosts == 1) {
        let factor = ((large_s - small_s) / slope).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        scale(cluster, servers, factor);
    }
    if servers && cluster.hosts == 1 && large > small {
        // Nothing is between hosts: what bytes take more is the server's processor.
        let missing = (large_s - small_s - slope).max(0.0) / (large - small) as f64;
        cluster.server.combine_s_per_byte = (cluster.server.combine_s_per_byte.value + missing).into();
    }
    let missing_s = (small_s - predicted(cluster, small)?).max(0.0);
    if servers && cluster.hosts > 1 {
        cluster.server.partition_s = (cluster.server.partition_s.value + missing_s).into();
    } else if servers {
        cluster.server.local_partition_s = (cluster.server.local_partition_s.value + missing_s).into();
    } else {
        cluster.operation.start_s = (cluster.operation.start_s.value + missing_s).into();
    }
    Ok(())
}

/// What an arch's bytes cost, times a factor. All-to-all comes first, and then servers beside it, whose own constants are
/// those that differ.
fn scale(cluster: &mut Cluster, servers: bool, factor: f64) {
    if servers {
        let beta = cluster.server.beta_s_per_byte.unwrap_or(cluster.across.beta_s_per_byte);
        cluster.server.beta_s_per_byte = Some(beta.times(factor));
        return;
    }
    for link in [&mut cluster.within, &mut cluster.across] {
        link.beta_s_per_byte = link.beta_s_per_byte.times(factor);
        link.incast_s_per_byte = link.incast_s_per_byte.times(factor);
    }
    cluster.combine_s_per_byte = cluster.combine_s_per_byte.times(factor);
}

#[cfg(test)]
mod tests {
    use paceline_plan::built_in_profile;
    use paceline_strategy::Registry;

    use super::*;

    /// After calibration single operations take what was measured.
    #[test]
    fn what_was_measured_is_predicted() {
        let profile = built_in_profile("resnet50").unwrap();
        let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
        for (hosts, per_host) in [(4, 1), (2, 2), (1, 4)] {
            let workers = hosts * per_host;
            let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host);
            let points = vec![(4096, 0.9e-3), (1 << 20, 4e-3), (8 << 20, 30e-3)];
            let measured = CommunicationCost { alpha_s: 0.0, beta_s_per_byte: 0.0, points };
            calibrate(&mut cluster, &strategy, &profile, workers, &measured).unwrap();
            for (bytes, seconds) in [(4096, 0.9e-3), (8 << 20, 30e-3)] {
                let predicted = operation_alone_s(&cluster, &profile, workers, &strategy, bytes).unwrap();
                assert!(
                    (predicted / seconds - 1.0).abs() < 0.1,
                    "{hosts}x{per_host}, {bytes}: {predicted} of {seconds}"
                );
            }
        }
    }
}
