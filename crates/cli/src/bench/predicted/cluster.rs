//! The cluster on which a cell runs: of an emulated network what the network's model says, of other links what the ranks
//! measured when they met. Pure.

use std::collections::{BTreeMap, BTreeSet};

use paceline_comm::OVERHEAD_EMULATED_S;
use paceline_plan::{Cluster, Constant, LinkClass, LinkConstants, LinkCost, LinkCosts, NetworkModel, Profile};
use paceline_strategy::{Call, Strategy};
use paceline_train::{CommunicationCost, InFlight, Interference, Overtaking, calibrate};

use super::super::cell::Cell;
use super::super::placement::Placement;
use super::super::statistics::{Estimate, mean, median};

/// What was known of the machine's processors when the study began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// How many ranks can compute at once.
    pub cores: usize,
    /// Gamma: seconds in which one of them adds a byte to another.
    pub combine_s_per_byte: f64,
}

/// Workers on hosts, as many on each but perhaps the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// With workers.
    pub hosts: usize,
    /// On the fullest one.
    pub workers_per_host: usize,
}

/// What the ranks of a world measured before its first iteration.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// How they communicate.
    pub strategy: Strategy,
    /// What their links cost.
    pub links: LinkCosts,
    /// What single operations took.
    pub operations: Option<&'a CommunicationCost>,
}

impl Layout {
    /// Of a cell whose links are not emulated: all on this host, unless a launcher has placed them.
    pub fn of(cell: &Cell, placement: Option<&Placement>) -> Layout {
        let Some(placement) = placement else { return Layout { hosts: 1, workers_per_host: cell.workers.max(1) } };
        let stage = placement.stage();
        let workers = stage.workers(&cell.setting.servers_on).into_iter().take(cell.workers);
        let hosts: Vec<usize> = workers.map(|rank| stage.hosts.host(rank)).collect();
        let different: BTreeSet<usize> = hosts.iter().copied().collect();
        let on = |host: &usize| hosts.iter().filter(|other| *other == host).count();
        let fullest = different.iter().map(on).max();
        Layout { hosts: different.len().max(1), workers_per_host: fullest.unwrap_or(1).max(1) }
    }

    /// On an emulated network.
    pub fn emulated(cell: &Cell) -> Layout {
        let workers_per_host = cell.setting.workers_per_host.unwrap_or(1).max(1);
        Layout { hosts: cell.workers.div_ceil(workers_per_host), workers_per_host }
    }
}

/// Seconds of this machine between the arrival of a message on an emulated network and what its receiver does with it, as a timer
/// must wake a thread; and as much more for each rank that shares the processor, as ranks that were sent to at the same time
/// take turns. Measured: docs/emulation.md.
const WAKE_S: f64 = 30e-6;
const TURN_S: f64 = 10e-6;

/// Seconds that a wake-up takes where a cell runs on an emulated network, in the time of the undilated machine.
pub fn wake_up_s(cell: &Cell, cores: usize) -> f64 {
    (WAKE_S + TURN_S * ranks_per_core(cell, cores)) / cell.setting.dilate.max(1.0)
}

/// Ranks that share a processor; at least 1.
fn ranks_per_core(cell: &Cell, cores: usize) -> f64 {
    let processes = cell.workers + if cell.dedicated_servers { cell.shards } else { 0 };
    (processes as f64 / cores.max(1) as f64).max(1.0)
}

/// The emulated cluster, in the time of the undilated machine.
///
/// The network's model says what its links cost. What this machine adds to a message goes on while the ports of the network are
/// busy with others, and a message that had to wait reserves its port from when that was free, not from when its sender was
/// awake: of what a port carries in a second, none is lost. But whatever waits for a message waits for the wake-up of its
/// receiver, too. So a wake-up is part of alpha, and no overhead: messages that depend on each other pay it each time, many
/// at once once.
///
/// The runtime counts more: when it chooses an algorithm and its tiles, each message keeps a port busy for a while
/// (docs/emulation.md). The same number chooses here.
///
/// That holds as long as the processors keep up, which dilation is there for. The interval goes to where nothing hides, each
/// message keeping a port busy for as long as that, and ranks that add up what they receive sharing the cores.
pub fn emulated(cell: &Cell, network: NetworkModel, machine: Machine) -> Cluster {
    let Layout { hosts, workers_per_host } = Layout::emulated(cell);
    let mut cluster = Cluster::of_network(network, hosts, workers_per_host);
    cluster.server_hosts = server_hosts(cell);
    let (shared, dilate) = (ranks_per_core(cell, machine.cores), cell.setting.dilate.max(1.0));
    let woken = wake_up_s(cell, machine.cores);
    let counted = OVERHEAD_EMULATED_S * shared / dilate;
    for link in [&mut cluster.within, &mut cluster.across] {
        let (alpha, overhead) = (link.alpha_s.value, link.overhead_s.value);
        link.alpha_s = Constant::between(alpha + woken, alpha, alpha + counted.max(woken));
        link.counted_overhead_s = counted.clamp(overhead, alpha + woken);
        link.overhead_s = Constant::between(overhead, overhead, link.counted_overhead_s);
    }
    let alone = machine.combine_s_per_byte / dilate;
    let combine = Constant::between(alone, alone, alone * shared);
    cluster.combine_s_per_byte = combine;
    cluster.server.combine_s_per_byte = combine;
    cluster.server.own_ports = true;
    cluster
}

/// A cluster of links that were measured: each constant the median over the worlds, its interval from the least to the
/// most. Single operations then are what they were measured to take, as `strategy=auto` has it, as uncertain as worlds differ.
/// Besides what was measured and is not believed, in sentences. None if nobody has measured any.
///
/// # Errors
/// What was measured makes no cluster, in a sentence.
pub fn measured(
    seen: &[Seen<'_>],
    layout: Layout,
    profile: &Profile,
    workers: usize,
) -> Result<Option<(Cluster, Vec<String>)>, String> {
    if seen.is_empty() {
        return Ok(None);
    }
    let nothing = LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte: 0.0 };
    let nothing = NetworkModel { within: nothing, across: nothing };
    let mut cluster = Cluster::of_network(nothing, layout.hosts, layout.workers_per_host);
    cluster.name = "these links".to_owned();
    cluster.source = "measured by the ranks when they met".to_owned();
    cluster.within = link(seen, |costs| costs.within);
    cluster.across = link(seen, |costs| costs.across);
    cluster.combine_s_per_byte = over(seen, |costs| costs.within.gamma);
    cluster.across.incast_s_per_byte = over(seen, |costs| costs.contention);
    cluster.within.incast_s_per_byte = over(seen, |costs| costs.contention_within);
    cluster.within.fetched = layout.workers_per_host > 1 && seen.iter().all(|seen| seen.links.fetched);
    // However operations turn out, ranks choose their algorithms and tiles by what they agreed.
    cluster.agreed = Some(agreed(seen));
    let mut doubts = Vec::new();
    for servers in [false, true] {
        let of_kind = |one: &&Seen<'_>| (one.strategy.arch.name == "ps") == servers;
        let Some(first) = seen.iter().find(of_kind) else { continue };
        let alike = seen.iter().filter(|one| one.strategy.arch == first.strategy.arch);
        if let Some(measured) = operations(alike) {
            let found = calibrate(&mut cluster, &closed(&first.strategy), profile, workers, &measured);
            doubts.extend(found.map_err(|error| error.to_string())?);
        }
    }
    cluster.check().map_err(|error| error.to_string())?;
    Ok(Some((cluster, doubts)))
}

/// Seconds that each all-reduce of so many bytes costs computation, and that it takes longer itself: the mean over the worlds that have
/// measured it, with its 95 % interval; of a single world from nothing to twice that.
pub fn lost_beside(measured: &[Interference]) -> Option<(u64, [Constant; 2])> {
    let lost_s = |which: usize| -> Option<Constant> {
        let all = Estimate::of(&measured.iter().map(|one| one.lost_s()[which]).collect::<Vec<f64>>())?;
        let half = all.half_width_95.unwrap_or(all.mean);
        Some(Constant::between(all.mean, (all.mean - half).max(0.0), all.mean + half))
    };
    Some((measured.first()?.bytes, [lost_s(0)?, lost_s(1)?]))
}

/// Hosts that serve and do nothing else.
pub fn server_hosts(cell: &Cell) -> usize {
    match (cell.dedicated_servers, cell.setting.servers_on.len()) {
        (false, _) => 0,
        (true, 0) => cell.shards,
        (true, hosts) => hosts,
    }
}

/// With an arch: what is left open begins all-to-all.
fn closed(strategy: &Strategy) -> Strategy {
    match strategy.arch_is_open() {
        true => Strategy { arch: Call::all_to_all("auto"), ..strategy.clone() },
        false => strategy.clone(),
    }
}

/// By size the median of what operations took, and by which share they are uncertain: half of the 95 % interval over the worlds,
/// the mean over the sizes. Nobody can tell of a single world.
fn operations<'a>(seen: impl Iterator<Item = &'a Seen<'a>>) -> Option<(CommunicationCost, f64)> {
    let all: Vec<&CommunicationCost> = seen.filter_map(|one| one.operations).collect();
    let mut by_size = BTreeMap::<u64, Vec<f64>>::new();
    for &(bytes, seconds) in all.iter().flat_map(|cost| &cost.points) {
        by_size.entry(bytes).or_default().push(seconds);
    }
    let shares = by_size.values().map(|seconds| Estimate::of(seconds)?.relative_half_width());
    let shares: Vec<f64> = shares.map(|share| share.unwrap_or(0.0)).collect();
    let uncertain = mean(&shares)?;
    let points = by_size.into_iter().filter_map(|(bytes, seconds)| Some((bytes, median(&seconds)?))).collect();
    let cost = CommunicationCost {
        in_flight: at_once(all.iter().filter_map(|cost| cost.in_flight)),
        large_in_flight: at_once(all.iter().filter_map(|cost| cost.large_in_flight)),
        overtaking: overtaking(all.iter().flat_map(|cost| &cost.overtaking)),
        ..CommunicationCost::of_points(points)
    };
    Some((cost, uncertain))
}

/// The median of those of the smallest size.
fn at_once(measured: impl Iterator<Item = InFlight>) -> Option<InFlight> {
    let mut by_size = BTreeMap::<(u64, usize), Vec<f64>>::new();
    for InFlight { operations, bytes, seconds } in measured {
        by_size.entry((bytes, operations)).or_default().push(seconds);
    }
    let ((bytes, operations), seconds) = by_size.into_iter().next()?;
    Some(InFlight { operations, bytes, seconds: median(&seconds)? })
}

/// By size the median.
fn overtaking<'a>(measured: impl Iterator<Item = &'a Overtaking>) -> Vec<Overtaking> {
    let mut by_size = BTreeMap::<u64, Vec<f64>>::new();
    measured.for_each(|one| by_size.entry(one.bytes).or_default().push(one.longer_s));
    by_size.into_iter().filter_map(|(bytes, all)| Some(Overtaking { bytes, longer_s: median(&all)? })).collect()
}

/// What ranks count when they choose: the medians.
fn agreed(seen: &[Seen<'_>]) -> LinkCosts {
    let median = |value: &dyn Fn(&LinkCosts) -> f64| over(seen, value).value;
    let link = |class: fn(&LinkCosts) -> LinkCost| LinkCost {
        alpha: median(&|costs| class(costs).alpha),
        overhead: median(&|costs| class(costs).overhead),
        beta: median(&|costs| class(costs).beta),
        gamma: median(&|costs| class(costs).gamma),
    };
    LinkCosts {
        within: link(|costs| costs.within),
        across: link(|costs| costs.across),
        contention: median(&|costs| costs.contention),
        contention_within: median(&|costs| costs.contention_within),
        fetched: seen.iter().all(|seen| seen.links.fetched),
    }
}

fn link(seen: &[Seen<'_>], class: fn(&LinkCosts) -> LinkCost) -> LinkConstants {
    LinkConstants {
        alpha_s: over(seen, |costs| class(costs).alpha),
        overhead_s: over(seen, |costs| class(costs).overhead),
        beta_s_per_byte: over(seen, |costs| class(costs).beta).at_least(BETA_MIN),
        ..LinkConstants::default()
    }
}

/// A byte takes some time.
const BETA_MIN: f64 = 1e-15;

/// The median, between the least and the most.
fn over(seen: &[Seen<'_>], value: impl Fn(&LinkCosts) -> f64) -> Constant {
    let values: Vec<f64> = seen.iter().map(|seen| value(&seen.links)).collect();
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)));
    median(&values).map_or(Constant::ZERO, |middle| Constant::between(middle, low, high))
}

#[cfg(test)]
mod tests {
    use paceline_plan::built_in_profile;
    use paceline_predict::search::operation_alone_s;
    use paceline_strategy::Registry;

    use super::super::super::cell::samples::{cell, replayed, setting};
    use super::super::super::cell::{ServerHost, Setting};
    use super::super::super::placement::samples::placement;
    use super::*;

    #[test]
    fn an_emulated_cluster_is_its_network_and_what_this_machine_adds() {
        let machine = Machine { cores: 2, combine_s_per_byte: 0.1e-9 };
        let setting = Setting { dilate: 4.0, ..replayed("resnet50", "10GbE", 253.1) };
        let cluster = emulated(&cell(&setting, "mg-wfbp", 8), NetworkModel::TEN_GBE, machine);
        assert_eq!((cluster.hosts, cluster.workers_per_host, cluster.server_hosts), (2, 4, 0));
        assert_eq!(cluster.across.beta_s_per_byte, Constant::exact(8.8162e-10));
        // Eight ranks on two cores: four times 50 µs, of which dilation leaves a quarter.
        let overhead = cluster.across.overhead_s;
        assert!((overhead.high - 50e-6).abs() < 1e-12 && overhead.low == 0.0, "{overhead:?}");
        assert_eq!(cluster.within.overhead_s.value, 0.0);
        // What is counted when algorithms and tiles are chosen, as in the runtime.
        assert!((cluster.across.counted_overhead_s - 50e-6).abs() < 1e-12, "{}", cluster.across.counted_overhead_s);
        assert_eq!(cluster.within.counted_overhead_s, cluster.within.alpha_s.value);
        // 30 µs and four times 10, of which dilation leaves a quarter; at most the 50 µs.
        for (link, alpha) in [(&cluster.within, 5.7e-6), (&cluster.across, 95.556e-6)] {
            let found = link.alpha_s;
            let expected = [alpha + 17.5e-6, alpha, alpha + 50e-6];
            let found = [found.value, found.low, found.high];
            assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12), "{found:?}");
        }
        // Part of alpha.
        assert_eq!(cluster.within.overhead_s.high, cluster.within.alpha_s.value);
        assert!((cluster.combine_s_per_byte.high - 0.1e-9).abs() < 1e-18);
        assert!((cluster.combine_s_per_byte.value - 0.025e-9).abs() < 1e-18);
        assert_eq!(cluster.check(), Ok(()));
    }

    #[test]
    fn servers_of_their_own_have_hosts_of_their_own() {
        let setting = replayed("resnet50", "10GbE", 253.1);
        let dedicated = Cell { shards: 3, dedicated_servers: true, ..cell(&setting, "wfbp-ps", 8) };
        assert_eq!(server_hosts(&dedicated), 3);
        let host = |number: usize| ServerHost { number, name: number.to_string() };
        let named = Setting { servers_on: vec![host(2), host(3)], ..setting };
        assert_eq!(server_hosts(&Cell { setting: named, ..dedicated }), 2);
    }

    #[test]
    fn workers_are_where_the_launcher_has_put_them() {
        let four = cell(&setting("mlp"), "bsp-a2a", 4);
        assert_eq!(Layout::of(&four, None), Layout { hosts: 1, workers_per_host: 4 });
        let dealt = placement("0,1,0,1", &[2, 2]);
        assert_eq!(Layout::of(&four, Some(&dealt)), Layout { hosts: 2, workers_per_host: 2 });
        let filled = placement("2x3", &[2, 2]);
        assert_eq!(Layout::of(&four, Some(&filled)), Layout { hosts: 2, workers_per_host: 3 });
    }

    #[test]
    fn what_worlds_lose_beside_each_other_is_their_mean() {
        let world = |computation: f64| Interference { bytes: 1 << 20, call_s: 2.0, computation, communication: 0.5 };
        let (bytes, [computation, communication]) = lost_beside(&[world(0.1), world(0.3)]).expect("two worlds");
        assert_eq!((bytes, communication), (1 << 20, Constant::exact(1.0)));
        assert!((computation.value - 0.4).abs() < 1e-12, "{computation:?}");
        assert!(computation.low == 0.0 && computation.high > 0.8, "two worlds say little: {computation:?}");
        let (_, [alone, _]) = lost_beside(&[world(0.1)]).expect("one world");
        assert_eq!(alone, Constant::between(0.2, 0.0, 0.4));
        assert_eq!(lost_beside(&[]), None);
    }

    #[test]
    fn measured_links_are_medians_with_what_operations_took() {
        let profile = built_in_profile("resnet50").expect("it is built in");
        let strategy = Registry::built_in().parse("wfbp-a2a").expect("a preset");
        let points = vec![(4096, 0.2e-3), (8 << 20, 10e-3)];
        let cost = CommunicationCost::of_points(points);
        let seen = |alpha: f64| Seen {
            strategy: strategy.clone(),
            links: LinkCosts::uniform(LinkCost { alpha, overhead: 1e-6, beta: 0.5e-9, gamma: 0.1e-9 }),
            operations: Some(&cost),
        };
        let layout = Layout { hosts: 1, workers_per_host: 4 };
        let all = [seen(30e-6), seen(10e-6), seen(20e-6)];
        let (cluster, doubts) = measured(&all, layout, &profile, 4).expect("it makes sense").expect("there are links");
        assert_eq!(doubts, Vec::<String>::new());
        assert_eq!(cluster.within.alpha_s, Constant::between(20e-6, 10e-6, 30e-6));
        // Whatever operations took, ranks choose by the links.
        assert_eq!(cluster.agreed, Some(seen(20e-6).links));
        for (bytes, seconds) in [(4096, 0.2e-3), (8 << 20, 10e-3)] {
            let predicted = operation_alone_s(&cluster, &profile, 4, &strategy, bytes).expect("a prediction");
            assert!((predicted / seconds - 1.0).abs() < 0.1, "{bytes}: {predicted} and not {seconds}");
        }
        assert!(measured(&[], layout, &profile, 4).is_ok_and(|cluster| cluster.is_none()));
        // Worlds that differ leave their constants open; what cannot be is told.
        let slower = CommunicationCost::of_points(vec![(4096, 0.3e-3), (8 << 20, 14e-3)]);
        let doubtful = [seen(20e-6), Seen { operations: Some(&slower), ..seen(20e-6) }];
        let (cluster, _) = measured(&doubtful, layout, &profile, 4).expect("it makes sense").expect("there are links");
        assert!(!cluster.within.beta_s_per_byte.is_exact(), "{:?}", cluster.within.beta_s_per_byte);
        let nonsense = CommunicationCost::of_points(vec![(4096, 2e-3), (8 << 20, 1e-3)]);
        let all = [Seen { operations: Some(&nonsense), ..seen(20e-6) }];
        let (_, doubts) = measured(&all, layout, &profile, 4).expect("it makes sense").expect("there are links");
        assert!(doubts.iter().any(|doubt| doubt.contains("do not say what a byte takes")), "{doubts:?}");
    }
}
