//! Between hosts tiles are cut shorter than the formulas say.
//!
//! A rank sends on as soon as a tile has come, and with few of them a port idles until it has. The formulas hardly see that, and have a port wait for
//! each message's overhead, of which processors have most while the kernel sends: of a ring of 16 MiB over four hosts at 1 Gbit/s they say that four
//! tiles take 0.8 % less than 64, and measured are 2 to 9 % more (docs/benchmarking.md, "Short tiles between hosts").

use paceline_plan::CollectiveKind;

use crate::Algorithm;
use crate::select::CLOSE_ACROSS;

/// No tile is cut shorter.
const TILE_BYTES_MIN: usize = 1 << 18;
/// Nor are its messages: that is what was measured, on four hosts.
const MESSAGE_BYTES_MIN: usize = 1 << 16;
/// Nor may what one tile costs whatever its length, latencies and overheads of all its rounds, be more than this of what its bytes do: a rank
/// has few tiles in work, which would wait for each other.
const LATENCY: f64 = 0.2;

/// The shortest of `tile_sizes`, which ascend, in which `bytes` per block cost at most [`CLOSE_ACROSS`] more than `least_s`, and of whose time
/// little is latency; `tile_bytes`, which the formula has chosen, if there is none. `parts`: into how many `algorithm` cuts a tile. `seconds`: of so many bytes in tiles of so
/// many, by its formula. Of all-reduce, reduce-scatter and all-gather only, and not of what is made for a network of a certain shape: the rest was not measured.
pub fn shortest(
    algorithm: &dyn Algorithm,
    tile_bytes: usize,
    parts: u32,
    bytes: usize,
    tile_sizes: impl Iterator<Item = usize>,
    least_s: f64,
    seconds: impl Fn(usize, usize) -> f64,
) -> usize {
    if !is_measured(algorithm) {
        return tile_bytes;
    }
    let is_long = |tile: usize| {
        let (one, double) = (seconds(tile, tile), seconds(2 * tile, 2 * tile));
        let by_bytes = double - one;
        tile / parts.max(1) as usize >= MESSAGE_BYTES_MIN && one - by_bytes <= LATENCY * by_bytes
    };
    tile_sizes
        .skip_while(|tile| *tile < TILE_BYTES_MIN)
        .take_while(|tile| *tile < tile_bytes)
        .find(|tile| is_long(*tile) && seconds(bytes, *tile) <= least_s * (1.0 + CLOSE_ACROSS))
        .unwrap_or(tile_bytes)
}

fn is_measured(algorithm: &dyn Algorithm) -> bool {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    matches!(algorithm.kind(), AllReduce | ReduceScatter | AllGather) && !algorithm.for_network()
}

#[cfg(test)]
mod tests {
    use paceline_plan::{LinkCost, LinkCosts};

    use super::*;
    use crate::Topology;
    use crate::select::{Choice, cheapest, cheapest_in_tiles, tile_sizes};

    /// Four hosts at 1 Gbit/s, as probed.
    const LINK: LinkCost = LinkCost { alpha: 25e-6, overhead: 4.9e-6, beta: 8.84e-9, gamma: 0.02e-9 };

    fn choose(kind: CollectiveKind, hosts: &Topology, bytes: usize, link: LinkCost, name: &str) -> Choice {
        cheapest(kind, hosts, bytes, &LinkCosts::uniform(link), |it| name.is_empty() || it.name() == name).unwrap()
    }

    /// The tile that the formula alone finds cheapest, and what it takes.
    fn by_formula(hosts: &Topology, bytes: usize, link: LinkCost, chosen: &Choice) -> (usize, f64) {
        let costs = LinkCosts::uniform(link);
        let seconds = |tile| (tile, chosen.algorithm.seconds(hosts, bytes, tile, &costs));
        let all: Vec<_> = tile_sizes(hosts.hosts(), &costs).map(seconds).collect();
        all.into_iter().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap()
    }

    #[test]
    fn tiles_are_short_where_latency_is_little_of_them() {
        let hosts = Topology::regular(4, 1);
        for bytes in [2 << 20, 4 << 20, 16 << 20, 64 << 20] {
            let chosen = choose(CollectiveKind::AllReduce, &hosts, bytes, LINK, "ring");
            let (tile_bytes, least_s) = by_formula(&hosts, bytes, LINK, &chosen);
            assert_eq!(chosen.tile_bytes, TILE_BYTES_MIN, "{bytes} bytes");
            assert!(tile_bytes > chosen.tile_bytes && chosen.seconds < 1.05 * least_s, "{tile_bytes}, {least_s} s");
            // As processors of crowded hosts let it look.
            let crowded = LinkCost { alpha: 90e-6, overhead: 25e-6, ..LINK };
            let chosen = choose(CollectiveKind::AllReduce, &hosts, bytes, crowded, "ring");
            assert!((1..=2).contains(&(chosen.tile_bytes / TILE_BYTES_MIN)), "{bytes} bytes: {chosen:?}");
        }
    }

    #[test]
    fn the_formulas_tile_stays_where_latency_is_much_of_it_or_messages_would_be_short() {
        let far = LinkCost { alpha: 2e-3, ..LINK };
        for (ranks, bytes, link, shortest) in [
            (4, 16 << 20, far, 4 * TILE_BYTES_MIN),
            (16, 64 << 20, LINK, 16 * MESSAGE_BYTES_MIN),
            (4, 1 << 18, LINK, 0),
        ] {
            let hosts = Topology::regular(ranks, 1);
            let chosen = choose(CollectiveKind::AllReduce, &hosts, bytes, link, "ring");
            let (tile_bytes, _) = by_formula(&hosts, bytes, link, &chosen);
            assert!((shortest..=tile_bytes).contains(&chosen.tile_bytes), "{ranks}: {chosen:?}, {tile_bytes}");
        }
    }

    #[test]
    fn what_was_not_measured_keeps_the_formulas_tile() {
        let hosts = Topology::regular(4, 1);
        for (kind, name) in [
            (CollectiveKind::AllReduce, "2d-torus"),
            (CollectiveKind::Broadcast, ""),
            (CollectiveKind::PushPull, ""),
            (CollectiveKind::AllToAll, ""),
        ] {
            let chosen = choose(kind, &hosts, 16 << 20, LINK, name);
            let (tile_bytes, least_s) = by_formula(&hosts, 16 << 20, LINK, &chosen);
            // Where two take the same, the smaller.
            assert!(chosen.tile_bytes <= tile_bytes && chosen.seconds <= least_s * 1.000_001, "{chosen:?}");
        }
        let (costs, tile) = (LinkCosts::uniform(LINK), 1 << 22);
        let named = cheapest_in_tiles(tile, CollectiveKind::AllReduce, &hosts, 16 << 20, &costs, |_| true).unwrap();
        assert_eq!(named.tile_bytes, tile, "somebody has decided");
    }

    /// Whoever gives time away so that ports are busy for less does not give as much away once more.
    #[test]
    fn all_that_is_given_away_is_a_twentieth() {
        let within = LinkCost { alpha: 9.3e-6, overhead: 9.3e-6, beta: 0.283e-9, gamma: 1.9e-12 };
        for beta in [0.5e-9, 0.963e-9, 4e-9, 8.84e-9] {
            let across = LinkCost { alpha: 100e-6, overhead: 30e-6, beta, gamma: 1.9e-12 };
            let costs = LinkCosts { across, ..LinkCosts::uniform(within) };
            for (topology, bytes) in [(2, 2), (4, 2), (4, 4)]
                .into_iter()
                .flat_map(|(hosts, ranks)| [1 << 20, 2 << 20, 16 << 20].map(|it| (Topology::regular(hosts, ranks), it)))
            {
                let of = |admits: &dyn Fn(&dyn Algorithm) -> bool| {
                    cheapest(CollectiveKind::AllReduce, &topology, bytes, &costs, admits).unwrap()
                };
                let chosen = of(&|_| true);
                let least = crate::registry::of_kind(CollectiveKind::AllReduce)
                    .filter(|it| it.supports(topology.world()) && !it.for_network())
                    .flat_map(|it| tile_sizes(topology.hosts(), &costs).map(move |tile| (it, tile)))
                    .map(|(it, tile)| it.seconds(&topology, bytes, tile, &costs))
                    .fold(f64::INFINITY, f64::min);
                assert!(chosen.seconds <= least * (1.0 + CLOSE_ACROSS + 1e-9), "{chosen:?} {least}");
            }
        }
    }
}
