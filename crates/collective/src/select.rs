//! The algorithm and the tile size that the closed formulas find cheapest: what `algorithm=auto` runs.

use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};

use crate::{Algorithm, Topology, registry, short_tiles};

/// The tile sizes that are tried: powers of two from 16 KiB, below which overheads rule, to 4 MiB, above which a
/// pipeline gains nothing more.
pub const TILE_BYTES: std::ops::RangeInclusive<usize> = 1 << 14..=1 << 22;

/// The longest tile of what receivers fetch from shared memory on one host. Of longer ones less stays in caches until it is
/// read. Measured: docs/benchmarking.md, "Whom to begin with".
const TILE_BYTES_FETCHED: usize = 1 << 20;

/// From so many bytes per block on, algorithms that fetch from shared memory are judged by bytes alone: processors are busy
/// with those, and messages wait behind them. Measured: "Whom to begin with" there.
pub const LARGE_BLOCK_BYTES_MIN: usize = 4 << 20;

/// Formulas that say the same may differ by rounding. This much, relatively, is no difference.
const TIE: f64 = 1e-9;

/// What the formulas leave out on one host is worth as much as this, relatively, from [`LARGE_BLOCK_BYTES_MIN`] on: the
/// overheads of large tiles are less. Measured: docs/benchmarking.md, "Large messages in shared memory".
const CLOSE: f64 = 0.04;
/// The same where receivers fetch what they are sent from shared memory: "Staging" there.
const CLOSE_IN_MEMORY: f64 = 0.08;

/// Where ranks share hosts, something may be slower by so much, relatively, if it keeps ports busy for less: operations are hardly ever
/// alone, and those in flight beside each other take what ports do. Measured: docs/benchmarking.md, "Predictions".
pub const CLOSE_ACROSS: f64 = 0.05;

/// What was chosen.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    /// Bytes per tile of a block.
    pub tile_bytes: usize,
    /// What the formula promises.
    pub seconds: f64,
}

/// The cheapest algorithm for `bytes` per block among those that `admits` lets through, and its cheapest tile size.
/// None if none is left.
///
/// A pure function: ranks that agree about the costs of the links choose the same. Of equals it takes the first in the
/// registry, and the smallest tile. On one host it prefers fewer rounds to a twenty-fifth of the time, in shared memory to a
/// twelfth; where ranks share hosts, less work for ports to a twentieth; and between hosts [short tiles](short_tiles::shortest), to a twentieth. Where workers share hosts, servers add up host by host whatever it costs, so that the bits do not depend on
/// measurements. What is made for a network of a certain shape it takes only if nothing else is admitted. One rank alone, for which
/// all tiles cost nothing, has the longest: each is a step.
pub fn cheapest(
    kind: CollectiveKind,
    topology: &Topology,
    bytes: usize,
    costs: &LinkCosts,
    admits: impl Fn(&dyn Algorithm) -> bool,
) -> Option<Choice> {
    let tile_sizes = tile_sizes(topology.hosts(), costs);
    if topology.world() == 1 {
        return cheapest_in(tile_sizes.last().into_iter(), kind, topology, bytes, costs, admits);
    }
    cheapest_in(tile_sizes, kind, topology, bytes, costs, admits)
}

/// [`cheapest`] for blocks that are cut into tiles of `tile_bytes`, as somebody has decided.
pub fn cheapest_in_tiles(
    tile_bytes: usize,
    kind: CollectiveKind,
    topology: &Topology,
    bytes: usize,
    costs: &LinkCosts,
    admits: impl Fn(&dyn Algorithm) -> bool,
) -> Option<Choice> {
    cheapest_in(std::iter::once(tile_bytes), kind, topology, bytes, costs, admits)
}

fn cheapest_in(
    tile_sizes: impl Iterator<Item = usize> + Clone,
    kind: CollectiveKind,
    topology: &Topology,
    bytes: usize,
    costs: &LinkCosts,
    admits: impl Fn(&dyn Algorithm) -> bool,
) -> Option<Choice> {
    let admitted = || registry::of_kind(kind).filter(|it| it.supports(topology.world()) && admits(*it));
    // In which order servers add up stands in no plan: it follows from who shares a host, not from what was measured.
    let adds_on_hosts = matches!(kind, CollectiveKind::PushPull | CollectiveKind::Push) && !topology.is_flat();
    let made_for_it = || {
        admitted().filter(|it| {
            let fits = if it.for_hosts() { !topology.is_flat() } else { !adds_on_hosts };
            fits && !it.for_network()
        })
    };
    let of = |algorithms: &mut dyn Iterator<Item = &'static dyn Algorithm>| {
        let choices: Vec<Choice> = algorithms
            .filter_map(|algorithm| {
                let choices = tile_sizes.clone().map(|tile_bytes| {
                    let seconds = algorithm.seconds(topology, bytes, tile_bytes, costs);
                    Choice { algorithm, tile_bytes, seconds }
                });
                first_of_cheapest(choices)
            })
            .collect();
        if topology.hosts() > 1 {
            let cheapest = first_of_cheapest(choices.iter().copied())?;
            let (least_s, chosen) = (cheapest.seconds, least_busy(cheapest, &choices, topology, bytes, costs));
            let Choice { algorithm, tile_bytes, .. } = chosen;
            let (parts, sizes) = (algorithm.parts(topology), tile_sizes.clone());
            let seconds = |bytes, tile_bytes| algorithm.seconds(topology, bytes, tile_bytes, costs);
            let tile_bytes = short_tiles::shortest(algorithm, tile_bytes, parts, bytes, sizes, least_s, seconds);
            return Some(Choice { algorithm, tile_bytes, seconds: seconds(bytes, tile_bytes) });
        }
        let by_bytes = large_block_costs(costs).filter(|_| bytes >= LARGE_BLOCK_BYTES_MIN);
        let judged = |choice: &Choice| {
            let seconds = |costs| choice.algorithm.seconds(topology, bytes, choice.tile_bytes, costs);
            Choice { seconds: by_bytes.as_ref().map_or(choice.seconds, seconds), ..*choice }
        };
        let fewest = fewest_rounds(&choices.iter().map(judged).collect::<Vec<_>>(), topology, bytes, costs)?;
        choices.into_iter().find(|choice| choice.algorithm.name() == fewest.algorithm.name())
    };
    of(&mut made_for_it()).or_else(|| of(&mut admitted()))
}

/// On one host, by which share fewer rounds may be slower by the formulas and are still preferred.
pub fn tolerated_share(costs: &LinkCosts, bytes: usize) -> f64 {
    match costs.fetched {
        true => CLOSE_IN_MEMORY,
        false if bytes >= LARGE_BLOCK_BYTES_MIN => CLOSE,
        false => 0.0,
    }
}

fn first_of_cheapest(mut choices: impl Iterator<Item = Choice>) -> Option<Choice> {
    let first = choices.next()?;
    Some(choices.fold(first, |best, choice| if choice.seconds < best.seconds * (1.0 - TIE) { choice } else { best }))
}

/// Between hosts the cheapest; where ranks share these, of what is about as cheap, that whose busiest port is busy for least.
fn least_busy(cheapest: Choice, choices: &[Choice], topology: &Topology, bytes: usize, costs: &LinkCosts) -> Choice {
    if topology.is_flat() {
        return cheapest;
    }
    let busy_s = |choice: &Choice| choice.algorithm.busy_seconds(topology, bytes, choice.tile_bytes, costs);
    let close = choices.iter().filter(|choice| choice.seconds <= cheapest.seconds * (1.0 + CLOSE_ACROSS));
    let less = |best: Choice, other: &Choice| if busy_s(other) < busy_s(&best) * (1.0 - TIE) { *other } else { best };
    close.fold(cheapest, less)
}

/// Of what is about as cheap as the cheapest, that with the fewest rounds; of those, the cheapest. Between rounds results
/// lie in memory and a rank waits for its peers' turns on the processors. The formulas count neither.
fn fewest_rounds(choices: &[Choice], topology: &Topology, bytes: usize, costs: &LinkCosts) -> Option<Choice> {
    let cheapest = first_of_cheapest(choices.iter().copied())?;
    let rounds = |choice: &Choice| choice.algorithm.rounds(topology);
    let most = cheapest.seconds * (1.0 + tolerated_share(costs, bytes));
    Some(choices.iter().filter(|choice| choice.seconds <= most).copied().fold(cheapest, |best, choice| {
        let better = (rounds(&choice), choice.seconds) < (rounds(&best), best.seconds * (1.0 - TIE));
        if better { choice } else { best }
    }))
}

/// By what algorithms are judged for blocks of [`LARGE_BLOCK_BYTES_MIN`] bytes and more on one host, if not by `costs`.
pub fn large_block_costs(costs: &LinkCosts) -> Option<LinkCosts> {
    let within = LinkCost { alpha: 0.0, overhead: 0.0, ..costs.within };
    costs.fetched.then_some(LinkCosts { within, ..*costs })
}

/// The tile sizes that are tried on so many hosts: powers of two in [`TILE_BYTES`].
pub fn tile_sizes(hosts: usize, costs: &LinkCosts) -> impl Iterator<Item = usize> + Clone + use<> {
    let longest = if costs.fetched && hosts == 1 { TILE_BYTES_FETCHED } else { *TILE_BYTES.end() };
    std::iter::successors(Some(*TILE_BYTES.start()), |bytes| Some(bytes * 2)).take_while(move |&bytes| bytes <= longest)
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in tiles of {} bytes, {} s", self.algorithm.name(), self.tile_bytes, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: LinkCosts = LinkCosts::uniform(LinkCost::hockney(20e-6, 1e-9, 0.1e-9));

    fn name(kind: CollectiveKind, world: usize, bytes: usize) -> &'static str {
        cheapest(kind, &Topology::flat(world), bytes, &COSTS, |_| true).unwrap().algorithm.name()
    }

    #[test]
    fn latency_decides_for_small_messages_and_bandwidth_for_large_ones() {
        use CollectiveKind::{AllGather, AllReduce, Broadcast};
        assert_eq!(name(AllReduce, 16, 1 << 10), "recursive-doubling");
        assert_eq!(name(AllReduce, 16, 1 << 24), "halving-doubling");
        assert_eq!(name(AllReduce, 13, 1 << 27), "direct-scatter");
        let between_hosts = Topology::regular(13, 1);
        let choice = cheapest(AllReduce, &between_hosts, 1 << 27, &COSTS, |_| true).unwrap();
        assert_eq!(choice.algorithm.name(), "ring");
        assert_eq!(name(AllGather, 16, 1 << 10), "bruck");
        assert_eq!(name(Broadcast, 16, 1 << 10), "binomial");
        assert_eq!(name(Broadcast, 16, 1 << 24), "pipelined");
    }

    #[test]
    fn a_pipeline_gets_the_tile_that_balances_latency_and_bandwidth() {
        let choice = cheapest(CollectiveKind::Broadcast, &Topology::flat(8), 1 << 24, &COSTS, |_| true).unwrap();
        // The optimum of (n − 2 + S/c)(alpha + c·beta) is c = √(S·alpha/((n − 2)·beta)): 236 KiB.
        assert_eq!(choice.tile_bytes, 1 << 18, "{choice:?}");
    }

    #[test]
    fn a_rank_alone_does_not_cut_its_data_into_small_tiles() {
        for kind in [CollectiveKind::AllReduce, CollectiveKind::Broadcast] {
            let choice = cheapest(kind, &Topology::flat(1), 1 << 30, &COSTS, |_| true).unwrap();
            assert_eq!(choice.tile_bytes, *TILE_BYTES.end(), "{choice:?}");
        }
    }

    /// A chain lives by its tiles: what travels whole takes another way.
    #[test]
    fn what_may_not_be_cut_takes_what_is_cheapest_whole() {
        let (ranks, kind, bytes) = (Topology::flat(8), CollectiveKind::Broadcast, 1 << 24);
        let cut = cheapest(kind, &ranks, bytes, &COSTS, |_| true).unwrap();
        let whole = cheapest_in_tiles(bytes, kind, &ranks, bytes, &COSTS, |_| true).unwrap();
        assert_eq!(whole.tile_bytes, bytes);
        assert_ne!(whole.algorithm.name(), cut.algorithm.name());
        assert!(whole.seconds < cut.algorithm.seconds(&ranks, bytes, bytes, &COSTS), "{whole:?}");
    }

    #[test]
    fn rounds_decide_where_a_round_costs_much_and_a_message_little() {
        // More ranks than processors on one host: a peer's turn takes long to come, a message little.
        let link = LinkCost { alpha: 8e-6, overhead: 0.4e-6, beta: 0.1e-9, gamma: 0.1e-9 };
        let name = |world, bytes| {
            let costs = LinkCosts::uniform(link);
            let choice = cheapest(CollectiveKind::AllReduce, &Topology::flat(world), bytes, &costs, |_| true);
            choice.unwrap().algorithm.name()
        };
        assert_eq!([name(4, 1 << 10), name(8, 1 << 10)], ["direct"; 2]);
        assert_eq!([name(4, 1 << 16), name(8, 1 << 16)], ["direct-scatter"; 2]);
    }

    #[test]
    fn the_network_interfaces_of_hosts_decide_where_ranks_share_them() {
        let within = LinkCost { alpha: 5e-6, overhead: 1e-6, beta: 0.1e-9, gamma: 0.1e-9 };
        let across = LinkCost { alpha: 40e-6, overhead: 10e-6, beta: 8e-9, gamma: 0.1e-9 };
        let costs = LinkCosts { across, ..LinkCosts::uniform(within) };
        // Two hosts of four ranks, which are numbered in turn.
        let in_turn = Topology::of_hosts(&[0, 1, 0, 1, 0, 1, 0, 1]);
        for topology in [Topology::regular(4, 4), in_turn] {
            for (kind, bytes) in [
                (CollectiveKind::AllReduce, 1 << 18),
                (CollectiveKind::AllReduce, 1 << 24),
                (CollectiveKind::AllGather, 1 << 16),
                (CollectiveKind::Broadcast, 1 << 10),
                (CollectiveKind::PushPull, 1 << 16),
                (CollectiveKind::Push, 1 << 22),
            ] {
                let choice = cheapest(kind, &topology, bytes, &costs, |_| true).unwrap();
                assert_eq!(choice.algorithm.name(), "hierarchical", "{kind} of {bytes} bytes, {topology:?}");
            }
        }
    }

    /// As measured on an emulated network of 10 Gbit/s among four hosts of two: alone a ring takes a little less, and hosts carry a sixth
    /// more of it, which is what counts where operations follow each other.
    #[test]
    fn ports_decide_where_times_are_close() {
        let within = LinkCost { alpha: 9.3e-6, overhead: 9.3e-6, beta: 0.283e-9, gamma: 1.9e-12 };
        let across = LinkCost { alpha: 100e-6, overhead: 30e-6, beta: 0.963e-9, gamma: 1.9e-12 };
        let costs = LinkCosts { across, ..LinkCosts::uniform(within) };
        let hosts = Topology::regular(4, 2);
        let of = |name: &'static str| {
            cheapest(CollectiveKind::AllReduce, &hosts, 2 << 20, &costs, |algorithm| algorithm.name() == name).unwrap()
        };
        let (ring, hierarchical) = (of("ring"), of("hierarchical"));
        let more = hierarchical.seconds / ring.seconds - 1.0;
        assert!(more > 0.0 && more < CLOSE_ACROSS, "{ring:?} {hierarchical:?}");
        let chosen = cheapest(CollectiveKind::AllReduce, &hosts, 2 << 20, &costs, |_| true).unwrap();
        assert_eq!(chosen.algorithm.name(), "hierarchical", "{chosen:?}");
        let busy_s = |choice: &Choice| choice.algorithm.busy_seconds(&hosts, 2 << 20, choice.tile_bytes, &costs);
        // A ring crosses between hosts with 14/8 of the bytes, hierarchical with 12/8.
        let (of_ring, of_hierarchical) = (busy_s(&ring), busy_s(&hierarchical));
        assert!((of_ring / (14.0 * across.overhead + 1.75 * (2 << 20) as f64 * across.beta) - 1.0).abs() < 0.01);
        assert!(of_hierarchical < 0.97 * of_ring, "{of_hierarchical} {of_ring}");
        // Farther away than that, time decides, and where no rank shares a host it always does.
        let slow_within = LinkCosts { within: LinkCost { beta: 1.5e-9, ..within }, ..costs };
        for (topology, costs) in [(&hosts, slow_within), (&Topology::regular(8, 1), costs)] {
            let least = registry::of_kind(CollectiveKind::AllReduce)
                .filter(|it| it.supports(8) && !it.for_network() && (!topology.is_flat() || !it.for_hosts()))
                .flat_map(|it| tile_sizes(topology.hosts(), &costs).map(move |tile_bytes| (it, tile_bytes)))
                .map(|(it, tile_bytes)| it.seconds(topology, 2 << 20, tile_bytes, &costs))
                .fold(f64::INFINITY, f64::min);
            let chosen = cheapest(CollectiveKind::AllReduce, topology, 2 << 20, &costs, |_| true).unwrap();
            let most = if topology.is_flat() { 1.0 + TIE } else { 1.0 + CLOSE_ACROSS };
            assert!(chosen.seconds <= least * most, "{chosen:?} {least}");
        }
    }

    /// A shard beside workers and one on a host of its own: the last rank.
    #[test]
    fn a_shard_pays_for_hosts_and_not_for_workers() {
        let within = LinkCost { alpha: 5e-6, overhead: 1e-6, beta: 0.1e-9, gamma: 0.1e-9 };
        let across = LinkCost { alpha: 40e-6, overhead: 10e-6, beta: 0.9e-9, gamma: 0.1e-9 };
        let costs = LinkCosts { across, ..LinkCosts::uniform(within) };
        let workers = |hosts: usize| (0..4 * hosts).map(|rank| rank / 4);
        for hosts in [2, 3, 8] {
            for own in 0..=hosts {
                let topology = Topology::of_hosts(&workers(hosts).chain([own]).collect::<Vec<_>>());
                for bytes in [1 << 16, 1 << 18, 4_096_000, 100 << 20] {
                    let seconds = |kind| {
                        let choice = cheapest(kind, &topology, bytes, &costs, |_| true).unwrap();
                        (choice.algorithm.name(), choice.seconds)
                    };
                    let (push_pull, push) = (seconds(CollectiveKind::PushPull), seconds(CollectiveKind::Push));
                    assert_eq!([push_pull.0, push.0], ["hierarchical"; 2], "{bytes} bytes, {topology:?}");
                    let pull = seconds(CollectiveKind::Broadcast);
                    // A chain of ranks that lie host after host knows hosts by its order.
                    assert_ne!(pull.0, "binomial", "{bytes} bytes, {topology:?}");
                    assert!(pull.1 < push_pull.1 && push.1 < push_pull.1, "{push:?} {pull:?} {push_pull:?}");
                }
            }
        }
    }

    #[test]
    fn neighbours_win_where_streams_that_meet_lose_time() {
        let link = LinkCost { alpha: 60e-6, overhead: 10e-6, beta: 8e-9, gamma: 0.1e-9 };
        let name = |hosts, ranks, bytes, contention| {
            let (topology, costs) =
                (Topology::regular(hosts, ranks), LinkCosts { contention, ..LinkCosts::uniform(link) });
            cheapest(CollectiveKind::AllReduce, &topology, bytes, &costs, |_| true).unwrap().algorithm.name()
        };
        assert_eq!(name(4, 1, 100 << 20, 0.0), "halving-doubling");
        // A twentieth of beta, as measured on four hosts at 1 Gbit/s.
        for bytes in [10 << 20, 100 << 20] {
            assert_eq!(name(4, 1, bytes, 0.4e-9), "ring");
        }
        // Rounds still decide for what is small, and on one host nothing meets at a switch.
        assert_ne!(name(4, 1, 1 << 10, 0.4e-9), "ring");
        assert_eq!(name(1, 4, 100 << 20, 0.4e-9), "direct-scatter");
    }

    /// As measured over TCP with 8 ranks on 2 cores: 56 ms by a ring, 68 by halving and doubling, for 16 MiB.
    #[test]
    fn neighbours_win_where_ranks_outnumber_processors() {
        let link = LinkCost { alpha: 60e-6, overhead: 10e-6, beta: 1.9e-9, gamma: 0.1e-9 };
        let name = |bytes, contention_within| {
            let costs = LinkCosts { contention_within, ..LinkCosts::uniform(link) };
            cheapest(CollectiveKind::AllReduce, &Topology::flat(8), bytes, &costs, |_| true).unwrap().algorithm.name()
        };
        assert_eq!(name(16 << 20, 0.2e-9), "ring");
        assert_ne!(name(16 << 20, 0.0), "ring");
        assert_eq!(name(1 << 20, 0.2e-9), name(1 << 20, 0.0), "what stays in caches");
    }

    #[test]
    fn on_one_host_fewer_rounds_win_where_overheads_do_not_count() {
        let link = LinkCost { alpha: 8e-6, overhead: 6e-6, beta: 0.1e-9, gamma: 0.1e-9 };
        let name = |topology, bytes| {
            cheapest(CollectiveKind::AllReduce, &topology, bytes, &LinkCosts::uniform(link), |_| true).unwrap()
        };
        let (large, middle) = (64 << 20, 256 << 10);
        assert_eq!(name(Topology::flat(4), large).algorithm.name(), "direct-scatter");
        assert_eq!(name(Topology::flat(4), middle).algorithm.name(), "halving-doubling");
        // What is fetched from memory is judged by bytes alone once it is large, whatever messages cost.
        let fetched = LinkCosts { fetched: true, ..LinkCosts::uniform(LinkCost::hockney(20e-6, 0.1e-9, 0.1e-9)) };
        let name_fetched = |bytes| {
            cheapest(CollectiveKind::AllReduce, &Topology::flat(8), bytes, &fetched, |_| true).unwrap().algorithm.name()
        };
        let around = [LARGE_BLOCK_BYTES_MIN / 2, LARGE_BLOCK_BYTES_MIN];
        assert_eq!(around.map(name_fetched), ["halving-doubling", "direct-scatter"]);
        // Between hosts everything is on the wire, and the formulas say what that takes.
        assert_eq!(name(Topology::regular(4, 1), large).algorithm.name(), "halving-doubling");
    }

    #[test]
    fn only_admitted_algorithms_are_chosen() {
        let in_pairs = |algorithm: &dyn Algorithm| algorithm.name() == "direct";
        let choice = cheapest(CollectiveKind::AllReduce, &Topology::flat(16), 1 << 24, &COSTS, in_pairs).unwrap();
        assert_eq!(choice.algorithm.name(), "direct");
        assert!(cheapest(CollectiveKind::AllReduce, &Topology::flat(16), 1 << 24, &COSTS, |_| false).is_none());
        assert!(cheapest(CollectiveKind::SendReceive, &Topology::flat(3), 1, &COSTS, |_| true).is_none());
    }

    #[test]
    fn in_which_order_servers_add_up_does_not_depend_on_costs() {
        // Two hosts of two workers, and a shard on the second.
        let group = Topology::of_hosts(&[0, 0, 1, 1, 1]);
        let slow_within = LinkCosts { within: LinkCost::hockney(1e-3, 1e-9, 0.0), ..COSTS };
        for kind in [CollectiveKind::PushPull, CollectiveKind::Push] {
            for (costs, bytes) in [(COSTS, 1 << 10), (slow_within, 1 << 10), (COSTS, 1 << 24)] {
                let choice = cheapest(kind, &group, bytes, &costs, |_| true).unwrap();
                assert_eq!(choice.algorithm.name(), "hierarchical", "{kind}, {bytes} bytes, {costs:?}");
            }
            let named = cheapest(kind, &group, 1 << 10, &COSTS, |algorithm| algorithm.name() == "direct").unwrap();
            assert_eq!(named.algorithm.name(), "direct");
            assert_eq!(cheapest(kind, &Topology::flat(3), 8, &COSTS, |_| true).unwrap().algorithm.name(), "direct");
        }
    }

    #[test]
    fn a_torus_or_a_bcube_is_not_taken_for_granted() {
        let (hosts, bytes) = (Topology::regular(12, 1), 1 << 22);
        let choose = |admits: &dyn Fn(&dyn Algorithm) -> bool| {
            cheapest(CollectiveKind::AllReduce, &hosts, bytes, &COSTS, admits).unwrap()
        };
        let choice = choose(&|_| true);
        assert!(!choice.algorithm.for_network());
        for name in ["2d-torus", "bcube"] {
            let named = choose(&|algorithm| algorithm.name() == name);
            assert_eq!(named.algorithm.name(), name);
            // It is not the formula that keeps it out.
            assert!(named.seconds < choice.seconds, "{named:?}, {choice:?}");
        }
    }

    #[test]
    fn every_collective_has_a_choice_in_every_world() {
        for &kind in CollectiveKind::ALL.iter().filter(|&&kind| kind != CollectiveKind::SendReceive) {
            // A shard that nobody pushes to has nothing to do.
            for world in (1..40).filter(|&world| kind.contributors(world) > 0) {
                for bytes in [0, 1, 1 << 14, (1 << 20) + 1] {
                    let choice = cheapest(kind, &Topology::flat(world), bytes, &COSTS, |_| true).unwrap();
                    assert!(choice.seconds.is_finite() && choice.seconds >= 0.0, "{kind}, {world}: {choice:?}");
                }
            }
        }
    }
}
