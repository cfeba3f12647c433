//! The closed formulas of `collective` on a world in which all hosts have as many ranks, evaluated once and then cheap.
//!
//! A formula for a tile is a line over its bytes, or a few pieces of one. Some of its points give it back, and with them an
//! operation of any size in tiles of any size costs a few additions.

use paceline_collective::{Algorithm, TileSeconds, Topology, WINDOW, registry, tiles};
use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};

use super::World;

/// Formulas of larger worlds are not evaluated rank by rank.
const RANKS_MAX: usize = 128;

/// Within a host streams that meet lose time from so many bytes on; what is smaller stays in caches.
const CROWDED: usize = LinkCosts::CONTENTION_WITHIN_FROM;

/// The one algorithm that asks who shares a host and that has a formula here.
const HIERARCHICAL: &str = "hierarchical";

/// Where a formula is evaluated: an empty tile, and each power of two from 4 KiB to the largest that is used. Across hosts it bends
/// where the interface takes longer than the chain of messages.
const TILES: [f64; POINTS] = {
    let mut tiles = [0.0; POINTS];
    let mut place = 1;
    while place < POINTS {
        tiles[place] = (4096 << (place - 1)) as f64;
        place += 1;
    }
    tiles
};
const POINTS: usize = 12;

/// An all-reduce on a world.
pub(crate) struct ClosedForm {
    pub algorithm: &'static dyn Algorithm,
    pub rounds: usize,
    /// Messages of one tile, of all ranks.
    pub messages: usize,
    /// Into how many parts a tile is cut.
    pub parts: u32,
    /// Bytes that the busiest rank sends, by bytes of the operation.
    pub sent: f64,
    /// Seconds per byte that are lost where streams meet, and from how many bytes on.
    lost_s_per_byte: f64,
    lost_from: usize,
    at: [TileSeconds; POINTS],
}

impl ClosedForm {
    /// The all-reduces that a world and the caller admit, in the order of the registry.
    pub fn all(world: &World, costs: &LinkCosts, admits: impl Fn(&dyn Algorithm) -> bool) -> Vec<ClosedForm> {
        let flat = Topology::flat(world.workers);
        let topology = if world.workers <= RANKS_MAX { world.topology() } else { flat.clone() };
        registry::of_kind(CollectiveKind::AllReduce)
            .filter(|algorithm| algorithm.supports(world.workers) && admits(*algorithm))
            .filter_map(|algorithm| match (world.workers <= RANKS_MAX, algorithm.name()) {
                (true, _) => Some(ClosedForm::exact(algorithm, &topology, costs)),
                (false, HIERARCHICAL) if world.hosts > 1 => {
                    Some(hierarchical(algorithm, world, costs, Leaving::ThroughPorts))
                }
                // What is made for a network is asked for by name only, and may take its time.
                (false, _) if algorithm.for_network() => Some(ClosedForm::exact(algorithm, &world.topology(), costs)),
                (false, _) if algorithm.for_hosts() => None,
                (false, _) => Some(ClosedForm::symmetric(algorithm, world, &flat, costs)),
            })
            .collect()
    }

    fn exact(algorithm: &'static dyn Algorithm, topology: &Topology, costs: &LinkCosts) -> ClosedForm {
        ClosedForm {
            algorithm,
            rounds: algorithm.rounds(topology),
            messages: algorithm.messages(topology),
            parts: algorithm.parts(topology),
            sent: algorithm.bytes_sent(topology, 1.0),
            lost_s_per_byte: algorithm.contention_seconds(topology, CROWDED as f64, costs) / CROWDED as f64,
            lost_from: if topology.hosts() == 1 { CROWDED } else { 0 },
            at: TILES.map(|bytes| algorithm.tile_seconds(topology, bytes, costs)),
        }
    }

    fn symmetric(algorithm: &'static dyn Algorithm, world: &World, flat: &Topology, costs: &LinkCosts) -> ClosedForm {
        let sent = algorithm.bytes_sent(flat, 1.0);
        let meet = algorithm.fan_in(flat).saturating_sub(1) as f64;
        let (contention, lost_from) =
            if world.hosts > 1 { (costs.contention, 0) } else { (costs.contention_within, CROWDED) };
        ClosedForm {
            algorithm,
            rounds: algorithm.rounds(flat),
            messages: algorithm.messages(flat),
            parts: algorithm.parts(flat),
            sent,
            lost_s_per_byte: meet * sent * contention,
            lost_from,
            at: TILES.map(|bytes| symmetric(algorithm, world, flat, bytes, costs)),
        }
    }

    /// Seconds of an operation alone, and those for which others that follow it must wait, in tiles of so many bytes.
    pub fn seconds(&self, bytes: usize, tile_bytes: usize) -> (f64, f64) {
        let (count, lost) = (tiles(bytes, tile_bytes), self.lost_s(bytes));
        let full = self.tile(bytes.min(tile_bytes) as f64);
        let last = self.tile((bytes - (count - 1) * tile_bytes) as f64);
        let alone = full.of_tiles(count, &last);
        let busy = full.next * (count - 1) as f64 + last.next;
        (alone + lost, busy.min(alone) + lost)
    }

    /// For how long a rank has a tile in work, over what the busiest port takes for as many tiles as it has in work.
    pub fn held_over_window(&self, tile_bytes: usize) -> f64 {
        let TileSeconds { next, held, .. } = self.tile(tile_bytes as f64);
        held / (WINDOW as f64 * next)
    }

    /// Seconds that an operation loses where streams meet.
    pub fn lost_s(&self, bytes: usize) -> f64 {
        if bytes >= self.lost_from { self.lost_s_per_byte * bytes as f64 } else { 0.0 }
    }

    fn tile(&self, bytes: f64) -> TileSeconds {
        let place = TILES[1..POINTS - 1].iter().take_while(|&&known| known < bytes).count();
        let share = (bytes - TILES[place]) / (TILES[place + 1] - TILES[place]);
        let (low, high) = (&self.at[place], &self.at[place + 1]);
        let between = |low: f64, high: f64| low + share * (high - low);
        TileSeconds {
            first: between(low.first, high.first),
            next: between(low.next, high.next),
            gaps: between(low.gaps, high.gaps),
            held: between(low.held, high.held),
        }
    }
}

/// An algorithm that does not ask who shares a host, where blocks of ranks do: as `collective` estimates it, with what
/// crosses between hosts by formula instead of counted rank by rank.
fn symmetric(algorithm: &dyn Algorithm, world: &World, flat: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
    let on = |link: LinkCost| algorithm.tile_seconds(flat, bytes, &LinkCosts::uniform(link));
    let LinkCosts { within, across, .. } = *costs;
    if world.hosts == 1 {
        return algorithm.tile_seconds(flat, bytes, costs);
    }
    if world.per_host == 1 {
        return on(across);
    }
    let (most, share) = crossing(algorithm.name(), world);
    let messages = algorithm.messages(flat) as f64 / world.workers as f64;
    let sent_by_one = messages * across.overhead + algorithm.bytes_sent(flat, bytes) * across.beta;
    let next = on(across.max(&within)).next.max(most * sent_by_one);
    let mean = |within: f64, across: f64| within + share * (across - within);
    let link = LinkCost {
        alpha: mean(within.alpha, across.alpha),
        overhead: mean(within.overhead, across.overhead),
        beta: mean(within.beta, across.beta),
        gamma: mean(within.gamma, across.gamma),
    };
    on(if share < 1.0 { link } else { across.max(&within) }).beside(next, &across)
}

/// The traffic of how many ranks a host's interface carries, and the share of all messages that cross.
fn crossing(algorithm: &str, world: &World) -> (f64, f64) {
    let per_host = world.per_host as f64;
    match algorithm {
        // The last rank of each host sends to the first of the next.
        "ring" => (1.0, 1.0 / per_host),
        // Partners at distances below the ranks of a host share it.
        "recursive-doubling" => {
            let share = 1.0 - per_host.log2() / (world.workers as f64).log2();
            (per_host * share, share)
        }
        // In the order of the ranks two of each host's are connected to others: by three edges and by one.
        "double-binary-tree" => (4.0 / 3.0, (4.0 / 3.0 / per_host).min(1.0)),
        // To everybody, or to ranks far away.
        _ => (per_host * (1.0 - (per_host - 1.0) / (world.workers as f64 - 1.0)), 1.0),
    }
}

/// Where the network is faster than the ports of the ranks of a host, what leaves it evidently goes past them, as it does where
/// messages are simulated ([`crate::topology::Network::route`]). The runtime, when it chooses, has every rank send one message at a
/// time. Whether any formula now says something else.
pub(crate) fn go_past_ports(forms: &mut [ClosedForm], world: &World, costs: &LinkCosts) -> bool {
    let shared = world.is_full() && world.hosts > 1 && world.per_host > 1;
    let concerned = forms.iter_mut().find(|form| form.algorithm.name() == HIERARCHICAL);
    match concerned.filter(|_| shared && costs.across.beta < costs.within.beta) {
        Some(form) => *form = hierarchical(form.algorithm, world, costs, Leaving::PastPorts),
        None => return false,
    }
    true
}

/// How what leaves a host gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Through the ports of the ranks, which are busy with it.
    ThroughPorts,
    /// Past them.
    PastPorts,
}

/// Reduce-scatter within hosts, a ring of every column across, all-gather within: the formula of docs/algorithms.md for
/// hosts that have as many ranks each.
fn hierarchical(algorithm: &'static dyn Algorithm, world: &World, costs: &LinkCosts, leaving: Leaving) -> ClosedForm {
    let LinkCosts { within, across, .. } = *costs;
    let (hosts, ranks) = (world.hosts as f64, world.per_host as f64);
    let (hops, peers) = (hosts - 1.0, ranks - 1.0);
    let tile = |bytes: f64| {
        let (column, part) = (bytes / ranks, bytes / (hosts * ranks));
        let (busy_within, busy_across) = (within.overhead + within.beta * column, across.overhead + across.beta * part);
        let scattering = peers * (busy_within + within.gamma * column);
        let gathering = peers * busy_within;
        let folding = hops * part * across.gamma;
        let interface = ranks * busy_across;
        let latency = if peers > 0.0 { within.latency() } else { 0.0 };
        let waiting = 2.0 * hops * (across.latency() + interface) + folding;
        let exchanging = if leaving == Leaving::ThroughPorts { 2.0 * hops * busy_across } else { 0.0 };
        let port = scattering + exchanging + folding + gathering;
        let first = 2.0 * latency + scattering + gathering + waiting;
        TileSeconds::with_gaps(first, port.max(2.0 * hops * interface), (2.0 * hops - 1.0) * across.latency())
    };
    let shares = world.hosts > 1 && world.per_host > 1;
    ClosedForm {
        algorithm,
        rounds: 2 * (world.hosts - 1) + if shares { 2 } else { 0 },
        messages: 2 * world.workers * (world.per_host - 1) + 2 * (world.hosts - 1) * world.workers,
        parts: world.workers as u32,
        sent: peers / ranks * 2.0 + 2.0 * hops / hosts / ranks,
        lost_s_per_byte: 0.0,
        lost_from: 0,
        at: TILES.map(tile),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: LinkCosts = LinkCosts {
        within: LinkCost { alpha: 6e-6, overhead: 1e-6, beta: 0.1e-9, gamma: 0.05e-9 },
        across: LinkCost { alpha: 30e-6, overhead: 5e-6, beta: 0.8e-9, gamma: 0.05e-9 },
        contention: 0.02e-9,
        contention_within: 0.03e-9,
        fetched: false,
    };

    /// The lines are the formulas, for any size in any tiles.
    #[test]
    fn an_operation_costs_what_the_formula_says() {
        for (workers, per_host) in [(2, 1), (4, 4), (8, 1), (12, 4), (16, 4), (33, 1), (128, 8)] {
            let world = World::of(workers, per_host);
            for form in ClosedForm::all(&world, &COSTS, |_| true) {
                for bytes in [0, 1, 5000, 1 << 16, 300_000, 5 << 20, 100_000_000] {
                    for tile_bytes in [1 << 14, 1 << 18, 1 << 22] {
                        let expected = form.algorithm.seconds(&world.topology(), bytes, tile_bytes, &COSTS);
                        let (seconds, busy) = form.seconds(bytes, tile_bytes);
                        let name = form.algorithm.name();
                        let off = (seconds - expected).abs() / expected.max(1e-12);
                        assert!(
                            off < 0.02,
                            "{name} {workers}/{per_host}, {bytes} in {tile_bytes}: {seconds} {expected}"
                        );
                        assert!(busy <= seconds * (1.0 + 1e-12) && busy >= 0.0, "{name}: {busy} {seconds}");
                    }
                }
            }
        }
    }

    /// Where both ways to evaluate apply, they agree.
    #[test]
    fn large_worlds_continue_small_ones() {
        for (workers, per_host) in [(64, 1), (64, 4), (128, 8)] {
            let world = World::of(workers, per_host);
            let flat = Topology::flat(workers);
            for small in ClosedForm::all(&world, &COSTS, |_| true) {
                let name = small.algorithm.name();
                let made_for = small.algorithm.for_hosts() || small.algorithm.for_network();
                if made_for && name != HIERARCHICAL {
                    continue;
                }
                let large: [TileSeconds; POINTS] = if name == HIERARCHICAL {
                    let large = hierarchical(small.algorithm, &world, &COSTS, Leaving::ThroughPorts);
                    assert_eq!((large.messages, large.rounds), (small.messages, small.rounds), "{name}");
                    assert!((large.sent / small.sent - 1.0).abs() < 1e-9, "{name}: {} {}", large.sent, small.sent);
                    large.at
                } else {
                    TILES.map(|bytes| symmetric(small.algorithm, &world, &flat, bytes, &COSTS))
                };
                // Trees cross in ways that depend on the numbers of ranks.
                let tolerance = if name.contains("tree") { 0.5 } else { 1e-6 };
                for (one, other) in small.at.iter().zip(&large) {
                    for (one, other) in [(one.first, other.first), (one.next, other.next)] {
                        assert!((one / other - 1.0).abs() < tolerance, "{name} {workers}/{per_host}: {one} {other}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_hundred_thousand_workers_have_closed_forms() {
        let world = World::of(100_000, 8);
        let forms = ClosedForm::all(&world, &COSTS, |known| !known.for_network());
        assert!(forms.len() >= 8);
        for form in forms {
            let (seconds, busy) = form.seconds(100 << 20, 1 << 20);
            assert!(seconds.is_finite() && busy > 0.0, "{}", form.algorithm.name());
        }
    }
}
