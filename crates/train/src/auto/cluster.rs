//! This world as a cluster, with the constants that were measured here.

use paceline_comm::{Communicator, Topology};
use paceline_plan::{
    Cluster, Constant, InterferenceConstants, LinkClass, LinkConstants, LinkCost, MeasuredRange, NetworkModel,
    OVERTAKING_BYTES, Profile,
};
use paceline_predict::PredictError;
use paceline_predict::search::{AllReduceSeconds, all_reduce_seconds, operation_rounds, operations_alone_s};
use paceline_strategy::Strategy;

use crate::measure::{CommunicationCost, Overtaking, fit};

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
    cluster.within.incast_s_per_byte = costs.contention_within.into();
    // Where each rank has a host for itself, nobody is there from whom it could fetch.
    cluster.within.fetched = costs.fetched && topology.ranks_per_host_max() > 1;
    // What programs follow counts; where they follow nothing, all that was measured went through what joins the hosts, too. An emulated
    // network is flat, whatever programs are told.
    if !workers.is_emulated() && (topology.torus().is_some() || topology.bcube().is_some()) {
        cluster.topology = topology.shape().to_string();
    }
    // However operations turn out, the runtime goes on to choose their algorithms and tiles by that.
    cluster.agreed = Some(costs);
    cluster
}

/// What a cluster does not say of these hosts, in words: some may have fewer ranks than others.
pub(super) fn unsaid(topology: &Topology) -> Option<String> {
    let (ranks, hosts, most) = (topology.world(), topology.hosts(), topology.ranks_per_host_max());
    let uneven = (0..hosts).any(|host| topology.members(host).len() != most);
    uneven.then(|| format!("{ranks} workers on {hosts} hosts are predicted as if full hosts of {most} came first"))
}

/// The measured operations are off by no more than this factor in either direction; beyond it something else was measured.
const FACTOR_MAX: f64 = 20.0;

/// Makes predictions of single operations on a strategy's arch what was measured of them, with the share by which that is
/// uncertain: what a byte takes in several large ones at once, or else the slope of the line through large ones by themselves, is
/// that of the links' bandwidth (of servers on one host, of their processors).
///
/// What is then missing, or too much, of several that are in flight at once occupies the network: the start of an operation
/// (all-to-all), or a partition's time (servers). What is missing of one by itself, or too much, only takes time: the links'
/// latency. Where several were not measured, all that is missing counts as start. What one takes longer that overtakes others is,
/// over its rounds, what each of these waits for bytes that links have taken in. What was measured and cannot be believed is
/// not used, but told: the links' own constants, of when the ranks met, stay.
///
/// What servers cost are constants of an interface, a processor or a partition, so predictions for other numbers of
/// shards follow from them. They say that they leave what was measured: where it was the servers' processors that took
/// the time between hosts, that has become the time of the links' bytes, of which fewer servers carry more each, but
/// not as many times as many as they add up.
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
    let servers = strategy.arch.name == "ps";
    let uncertain = *uncertain;
    let calibration = Calibration { strategy, profile, workers, measured, points, servers, uncertain };
    let doubt = calibration.fit_bandwidth(cluster)?;
    match measured.occupied_s() {
        Some(occupied) => calibration.fit_starts_and_latencies(cluster, occupied, doubt.is_none())?,
        None => {
            let missing_s = calibration.missing_s(cluster)?;
            start_later(cluster, servers, missing_s, uncertain);
            if missing_s < 0.0 && !servers {
                adjust(cluster, 1.0, quicker, |cluster| calibration.missing_s(cluster))?;
            }
        }
    }
    calibration.fit_overtaking(cluster)?;
    // Of several archs what all of them were measured for; and of servers how many there were.
    let before = cluster.measured;
    let bytes = before.map_or([small, large], |range| [range.bytes[0].max(small), range.bytes[1].min(large)]);
    let shards = strategy.servers(workers, cluster.hosts_of(workers)).map(|servers| [servers.shards; 2]);
    let shards = shards.or_else(|| before?.shards);
    cluster.measured = Some(MeasuredRange { workers: [workers; 2], bytes, shards, ..MeasuredRange::default() });
    Ok(doubt.into_iter().collect())
}

/// Lets computation and communication slow each other down as they were measured to, where all-reduces of so many bytes followed one
/// another without a break: each cost computation the first seconds, and took the second ones longer. What computation loses is
/// counted by the seconds for which bytes move within a host, what communication loses by those for which an operation occupies the
/// network; nothing is lost where there are none.
///
/// # Errors
/// The cluster cannot be predicted.
pub fn interfere(
    cluster: &mut Cluster,
    strategy: &Strategy,
    profile: &Profile,
    workers: usize,
    bytes: u64,
    lost_s: [Constant; 2],
) -> Result<(), PredictError> {
    let AllReduceSeconds { occupied_s, within_s } = all_reduce_seconds(cluster, profile, workers, strategy, bytes)?;
    let [computation, communication] = lost_s;
    let for_each = |lost_s: Constant, second_s: f64| match second_s > 0.0 {
        true => lost_s.times(1.0 / second_s),
        false => Constant::ZERO,
    };
    let (computation, communication) = (for_each(computation, within_s), for_each(communication, occupied_s));
    cluster.set_interference(InterferenceConstants { computation, communication });
    Ok(())
}

/// So often starts and latencies are made to fit each other.
const ROUNDS: usize = 2;

/// What was measured of operations where nothing is computed, and what is predicted of the same.
struct Calibration<'a> {
    strategy: &'a Strategy,
    profile: &'a Profile,
    workers: usize,
    measured: &'a CommunicationCost,
    /// Of operations by themselves: bytes and seconds that make sense, from the smallest to the largest.
    points: Vec<(u64, f64)>,
    /// Is the arch one of servers?
    servers: bool,
    /// By which share what was measured is uncertain.
    uncertain: f64,
}

/// From one operation to so many in flight.
const IN_FLIGHT: usize = 8;

impl Calibration<'_> {
    /// Makes a byte cost what was measured. Why not, if that cannot be believed.
    fn fit_bandwidth(&self, cluster: &mut Cluster) -> Result<Option<String>, PredictError> {
        let (slope, known) = self.slopes(cluster)?;
        if self.bound_by_processors(cluster) {
            // Nothing is between hosts: what bytes take more is the server's processor.
            let more = (slope - known).max(0.0) / (self.workers.max(2) - 1) as f64;
            let combine = &mut cluster.server.combine_s_per_byte;
            *combine = about(combine.value + more, self.uncertain);
        } else if known > 0.0 && slope > 0.0 && (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&(slope / known)) {
            scale(cluster, self.servers, slope / known, self.uncertain);
        } else if known > 0.0 || self.points.len() < 2 {
            return Ok(Some(self.disbelieved(slope, known)));
        }
        Ok(None)
    }

    fn disbelieved(&self, slope: f64, known: f64) -> String {
        let [small, large] = [self.points.first(), self.points.last()].map(|point| point.map_or(0, |point| point.0));
        format!(
            "operations of {small} to {large} bytes on {} do not say what a byte takes: {slope:.1e} s, and {known:.1e} s by \
             what was measured when the ranks met, which is used",
            self.strategy.arch
        )
    }

    /// Where all are on one host, servers are bound by their processors.
    fn bound_by_processors(&self, cluster: &Cluster) -> bool {
        self.servers && cluster.hosts == 1
    }

    /// What a byte takes, as measured and as predicted: by several large operations at once if they were measured, or else by
    /// single ones. Of all-to-all operations what each one more of several takes longer: a single one fills its own pipeline. Of
    /// servers', which share links with each other from the start, what all take longer than as many small ones.
    fn slopes(&self, cluster: &Cluster) -> Result<(f64, f64), PredictError> {
        let bytes_at_once = self.measured.occupied_s_per_byte().filter(|_| !self.bound_by_processors(cluster));
        match (bytes_at_once, self.measured.in_flight, self.measured.large_in_flight) {
            (Some(_), Some(small), Some(large)) if self.servers && small.operations == large.operations => {
                let [small_s, large_s] = [small, large].map(|all| self.seconds(cluster, all.bytes, all.operations));
                let bytes = (large.operations as u64 * (large.bytes - small.bytes)) as f64;
                Ok(((large.seconds - small.seconds) / bytes, (large_s? - small_s?) / bytes))
            }
            (Some((bytes, slope)), ..) => Ok((slope, self.occupied_s_per_byte(cluster, bytes)?)),
            (None, ..) => Ok((slope_of_large(&self.points), slope_of_large(&self.predicted(cluster)?))),
        }
    }

    /// Makes each of several small operations occupy the network for `each_s`, and those by themselves take what was measured.
    /// With other latencies other algorithms are the cheapest, and they occupy the network otherwise. `bytes_too`: bandwidth was
    /// believed, and is fitted again.
    fn fit_starts_and_latencies(
        &self,
        cluster: &mut Cluster,
        (bytes, each_s): (u64, f64),
        bytes_too: bool,
    ) -> Result<(), PredictError> {
        let more_s = |cluster: &Cluster| -> Result<f64, PredictError> { Ok(each_s - self.occupied_s(cluster, bytes)?) };
        if self.servers {
            // Latency of links is all-to-all's, which was measured first.
            start_later(cluster, true, more_s(cluster)?, self.uncertain);
            return Ok(());
        }
        for _ in 0..ROUNDS {
            start_later(cluster, false, more_s(cluster)?, self.uncertain);
            adjust(cluster, 1.0, lighter, more_s)?;
            if bytes_too && self.measured.occupied_s_per_byte().is_some() {
                // Each message of a large operation occupied its port, too, for as long as was known when the ranks met. What
                // makes no sense any more changes nothing.
                let _ = self.fit_bandwidth(cluster)?;
            }
            adjust(cluster, LATENCY_MAX, later, |cluster| self.missing_s(cluster))?;
        }
        // Links without latency cannot have more of it.
        start_later(cluster, false, self.missing_s(cluster)?.max(0.0), self.uncertain);
        Ok(())
    }

    /// Makes each round of an operation that overtakes others wait as one was measured to. Links are the same for all archs, of
    /// which all-to-all comes first.
    fn fit_overtaking(&self, cluster: &mut Cluster) -> Result<(), PredictError> {
        let is_known = cluster.measured.is_some();
        if self.servers && is_known {
            return Ok(());
        }
        for &Overtaking { bytes, longer_s } in &self.measured.overtaking {
            let rounds = operation_rounds(cluster, self.profile, self.workers, self.strategy, bytes)?.max(1) as f64;
            // A difference of two times that are as uncertain as any.
            let off_s = self.uncertain * (longer_s + 2.0 * self.measured.seconds(bytes)) / rounds;
            let each_s = longer_s / rounds;
            let each_s = Constant::between(each_s, (each_s - off_s).max(0.0), each_s + off_s);
            match bytes <= OVERTAKING_BYTES[0] {
                true => cluster.operation.overtaking_small_s = Some(each_s),
                false => cluster.operation.overtaking_s = each_s,
            }
        }
        Ok(())
    }

    fn seconds(&self, cluster: &Cluster, bytes: u64, operations: usize) -> Result<f64, PredictError> {
        operations_alone_s(cluster, self.profile, self.workers, self.strategy, bytes, operations)
    }

    /// Of operations by themselves, of the sizes that were measured.
    fn predicted(&self, cluster: &Cluster) -> Result<Vec<(u64, f64)>, PredictError> {
        self.points.iter().map(|&(bytes, _)| Ok((bytes, self.seconds(cluster, bytes, 1)?))).collect()
    }

    /// What predictions of operations by themselves lack, as relative errors weigh it.
    fn missing_s(&self, cluster: &Cluster) -> Result<f64, PredictError> {
        let predicted = self.predicted(cluster)?;
        let weights = || self.points.iter().map(|(_, seconds)| 1.0 / (seconds * seconds));
        let lacking =
            self.points.iter().zip(&predicted).map(|((_, measured_s), (_, predicted_s))| measured_s - predicted_s);
        Ok(weights().zip(lacking).map(|(weight, seconds)| weight * seconds).sum::<f64>() / weights().sum::<f64>())
    }

    /// Seconds that one more of several takes.
    fn occupied_s(&self, cluster: &Cluster, bytes: u64) -> Result<f64, PredictError> {
        let more_s = self.seconds(cluster, bytes, IN_FLIGHT)? - self.seconds(cluster, bytes, 1)?;
        Ok(more_s / (IN_FLIGHT - 1) as f64)
    }

    /// Seconds that one more byte of each takes.
    fn occupied_s_per_byte(&self, cluster: &Cluster, [small, large]: [u64; 2]) -> Result<f64, PredictError> {
        Ok((self.occupied_s(cluster, large)? - self.occupied_s(cluster, small)?) / (large - small) as f64)
    }
}

/// Lets each operation occupy the network for so much longer, or shorter.
fn start_later(cluster: &mut Cluster, servers: bool, more_s: f64, uncertain: f64) {
    let start = match (servers, cluster.hosts > 1) {
        (true, true) => &mut cluster.server.partition_s,
        (true, false) => &mut cluster.server.local_partition_s,
        (false, _) => &mut cluster.operation.start_s,
    };
    *start = about((start.value + more_s).max(0.0), uncertain);
}

/// Latency becomes at most so many times what it was when the ranks met.
const LATENCY_MAX: f64 = 1024.0;

/// Messages of so many times their latency, with what of it is the sender's.
fn quicker(link: &mut LinkConstants, factor: f64) {
    (link.alpha_s, link.overhead_s) = (link.alpha_s.times(factor), link.overhead_s.times(factor));
}

/// Messages that occupy a port for so many times as long.
fn lighter(link: &mut LinkConstants, factor: f64) {
    link.overhead_s = link.overhead_s.times(factor);
}

/// Messages that take so many times as long, of which they occupy their ports for no longer.
fn later(link: &mut LinkConstants, factor: f64) {
    link.alpha_s = link.alpha_s.times(factor).at_least(link.overhead_s.high.max(link.overhead_s.value));
}

/// However little repetitions agree, a time is more than nothing.
const UNCERTAIN_MAX: f64 = 0.9;

/// A constant and the ends of its interval.
fn about(value: f64, uncertain: f64) -> Constant {
    let share = uncertain.clamp(0.0, UNCERTAIN_MAX);
    Constant::between(value, value * (1.0 - share), value * (1.0 + share))
}

/// Operations of at least this share of the largest one's bytes say what a byte takes: in smaller ones latencies hide behind each
/// other, or other algorithms are the cheapest, and a line through all would tilt.
const LARGE: f64 = 1.0 / 16.0;

/// What a byte takes, by the large ones of some operations, from the smallest to the largest.
fn slope_of_large(points: &[(u64, f64)]) -> f64 {
    let largest = points.last().map_or(0, |point| point.0);
    let first = points.partition_point(|point| (point.0 as f64) < LARGE * largest as f64);
    fit(&points[first.min(points.len().saturating_sub(2))..]).1
}

/// Changes the links by the factor, at most `most`, at which nothing is missing any more: the less is missing, the larger it is.
/// As little as possible: they stay as they are if nothing is missing without, and change as far as it goes if that is not enough.
fn adjust(
    cluster: &mut Cluster,
    most: f64,
    change: fn(&mut LinkConstants, f64),
    missing_s: impl Fn(&Cluster) -> Result<f64, PredictError>,
) -> Result<(), PredictError> {
    let with = |factor: f64| {
        let mut changed = cluster.clone();
        [&mut changed.within, &mut changed.across].into_iter().for_each(|link| change(link, factor));
        changed
    };
    let (mut low, mut high) = (0.0, 1.0);
    while high < most && missing_s(&with(high))? > 0.0 {
        (low, high) = (high, 2.0 * high);
    }
    if missing_s(&with(high))? < 0.0 {
        for _ in 0..12 {
            let middle = (low + high) / 2.0;
            if missing_s(&with(middle))? < 0.0 { high = middle } else { low = middle }
        }
        high = low;
    }
    *cluster = with(high);
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
mod tests;
