//! The ways to communicate: between whom, by which algorithm, over how many shards where, on which links.

use paceline_collective::{Algorithm, registry};
use paceline_plan::{CollectiveKind, Protocols, Shape};
use paceline_strategy::{Call, Strategy, Value};

use super::Question;
use crate::communication::COMPARED_HOSTS_MAX;

/// A strategy whose arch is not open, and whose protocol is what it says.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) strategy: Strategy,
    /// 0: workers add up among themselves.
    pub(crate) shards: usize,
}

/// Who adds up where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Workers among themselves.
    Workers,
    /// Servers on the workers' hosts.
    BesideWorkers,
    /// Servers on hosts that do nothing else.
    OwnHosts,
}

/// All numbers of shards up to this one are tried; beyond it those that fit the cluster and the powers of two.
const SHARDS_ALL: usize = 8;

/// More shards than this are not tried, unless the workers have as many hosts.
const SHARDS_MAX: usize = 64;

/// Buckets that are not to be cut by the arch: the schedule cuts them.
const UNCUT_BYTES: u64 = 1 << 30;

impl Way {
    fn of(strategy: Strategy, question: &Question) -> Way {
        let servers = strategy.servers(question.workers, question.cluster.hosts_of(question.workers));
        Way { shards: servers.map_or(0, |servers| servers.shards), strategy }
    }

    /// Who adds up.
    pub(crate) fn place(&self) -> Place {
        match (self.shards, self.strategy.arch.word(2)) {
            (0, _) => Place::Workers,
            (_, Some("dedicated")) => Place::OwnHosts,
            _ => Place::BesideWorkers,
        }
    }

    /// The same with servers that leave it to the schedule into which partitions buckets are cut.
    pub(crate) fn uncut(&self) -> Strategy {
        self.with_partition(UNCUT_BYTES)
    }

    /// The same with servers that want partitions of at most so many bytes.
    pub(crate) fn with_partition(&self, bytes: u64) -> Strategy {
        let mut strategy = self.strategy.clone();
        if self.shards > 0
            && let Some(partition) = strategy.arch.arguments.get_mut(1)
        {
            *partition = Value::Bytes(bytes);
        }
        strategy
    }
}

/// What the arch of the space's strategy stands for, over each protocol that may be chosen.
pub(crate) fn ways(question: &Question) -> Vec<Way> {
    let space = question.space;
    let archs = match (space.strategy.arch_is_open(), &space.archs[..]) {
        (false, _) => vec![space.strategy.arch.clone()],
        (true, []) => [all_to_all(question), servers(question)].concat(),
        (true, given) => given.to_vec(),
    };
    let mut ways = Vec::new();
    for protocol in protocols(question) {
        let over = Strategy { protocol, ..space.strategy.clone() };
        ways.extend(archs.iter().map(|arch| Way::of(Strategy { arch: arch.clone(), ..over.clone() }, question)));
    }
    ways
}

/// The protocol that the strategy names; if it leaves that open, what the runtime takes by itself and then those of which the
/// cluster says what they cost. At least one.
fn protocols(question: &Question) -> Vec<Call> {
    let own = &question.space.strategy.protocol;
    // Hosts share no memory, and one worker sends nothing.
    let can_run = |name: &&str| match question.cluster.hosts_of(question.workers) {
        _ if question.workers < 2 => false,
        1 => true,
        _ => *name != Protocols::MEMORY,
    };
    let known = question.cluster.protocols.iter().map(|(name, _)| name);
    let others = known.filter(|_| own.name == "auto").filter(can_run);
    [own.clone()].into_iter().chain(others.map(Call::named)).collect()
}

/// Is there more than one protocol to choose from?
pub(crate) fn protocol_is_chosen(question: &Question) -> bool {
    protocols(question).len() > 1
}

/// By the cheapest algorithm for each size, and by each algorithm for all sizes.
fn all_to_all(question: &Question) -> Vec<Call> {
    let (workers, cluster) = (question.workers, question.cluster);
    let hosts = cluster.hosts_of(workers);
    let is_flat = hosts == 1 || cluster.workers_per_host <= 1;
    // Beyond that some programs would be simulated on the topology and others, which are longer, not.
    let is_compared = hosts <= COMPARED_HOSTS_MAX || matches!(cluster.topology.parse(), Ok(Shape::Flat));
    let makes_sense =
        |algorithm: &&dyn Algorithm| is_compared && algorithm.supports(workers) && !(algorithm.for_hosts() && is_flat);
    let named = registry::of_kind(CollectiveKind::AllReduce).filter(makes_sense).map(|algorithm| algorithm.name());
    let all: Vec<Call> = ["auto"].into_iter().chain(named).map(Call::all_to_all).collect();
    // One worker sends nothing.
    if workers == 1 { all.into_iter().take(1).collect() } else { all }
}

/// So many shards beside the workers, or on hosts of their own.
fn servers(question: &Question) -> Vec<Call> {
    let (workers, hosts) = (question.workers, question.cluster.hosts_of(question.workers));
    if workers < 2 {
        return Vec::new();
    }
    let own_hosts = question.cluster.server_hosts;
    let beside = shard_counts(hosts, workers).into_iter().map(|shards| Call::servers(shards as u64, false));
    // The workers of a single host add up everything among themselves, and servers elsewhere would have nothing to do.
    let apart = if own_hosts > 0 && hosts > 1 { shard_counts(own_hosts, own_hosts) } else { Vec::new() };
    beside.chain(apart.into_iter().map(|shards| Call::servers(shards as u64, true))).collect()
}

/// What `arch=auto` may stand for in a world that has met so many shards beside its workers: all-to-all, by what the
/// runtime takes for each size; some of these shards, the first ones; or all of them.
pub fn archs_of_world(shards: usize) -> Vec<Call> {
    let some = shard_counts(shards, shards).into_iter().map(|count| Call::servers(count as u64, false));
    [Call::all_to_all("auto")].into_iter().chain(some).collect()
}

/// Rising, each once.
fn shard_counts(hosts: usize, most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(2 * SHARDS_ALL), |count| Some(2 * count));
    let mut counts: Vec<usize> = (1..=SHARDS_ALL).chain(powers.take_while(|&count| count <= SHARDS_MAX)).collect();
    counts.extend([hosts, 2 * hosts, most]);
    counts.retain(|&count| count >= 1 && count <= most.max(hosts) && count <= SHARDS_MAX.max(hosts));
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_tried_one_by_one_and_then_by_what_fits() {
        assert_eq!(shard_counts(1, 1), [1]);
        assert_eq!(shard_counts(2, 4), [1, 2, 3, 4]);
        assert_eq!(shard_counts(8, 32), [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]);
        assert_eq!(shard_counts(12, 12), [1, 2, 3, 4, 5, 6, 7, 8, 12]);
        assert_eq!(shard_counts(100, 400).last(), Some(&100));
    }

    #[test]
    fn a_world_may_take_some_of_the_shards_that_it_has_met() {
        let counts = |shards| archs_of_world(shards).iter().map(|arch| arch.number(0)).collect::<Vec<_>>();
        assert_eq!(counts(0), [None], "all-to-all");
        assert_eq!(counts(3), [None, Some(1), Some(2), Some(3)]);
        assert_eq!(counts(20)[8..], [Some(8), Some(16), Some(20)]);
    }
}
