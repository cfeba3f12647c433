use paceline_plan::{CollectiveKind, LinkCost, LinkCosts, Rank};

use crate::algorithm::side_by_side;
use crate::{Algorithm, FlatAlgorithm, Place, Program, RankBuilder, RankProgram, Slot, Space, TileSeconds, Topology};

/// BCube: ranks are numbers of k digits, and a switch joins those that differ in one digit, so that each has k network
/// interfaces. Every tile is cut into k slices. A slice is reduce-scattered digit by digit, directly among the ranks of a
/// switch, and gathered the same way back; each slice begins with another digit, so that in every round every
/// interface is busy, each with another slice.
///
/// The BCube is that of the topology, if it says one. Otherwise a world of pᵏ ranks has k levels of switches with p ports; of
/// several k it takes the smallest from 2 on. Another world has two levels with different ports, a prime one a single level;
/// that is `direct-scatter` in another order.
///
/// Source: Guo et al., "BCube: a high performance, server-centric network architecture for modular data centers" (2009);
/// Wang et al., "BML: a high-performance, low-cost gradient synchronization algorithm for DML training" (2018).
pub(crate) struct BCube;

const NAME: &str = "bcube";

impl Algorithm for BCube {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn for_network(&self) -> bool {
        true
    }

    fn follows(&self, topology: &Topology) -> bool {
        topology.bcube().is_some()
    }

    fn parts(&self, topology: &Topology) -> u32 {
        Algorithm::parts(&Cube::of(topology), topology)
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        Algorithm::rank_program(&Cube::of(topology), rank, topology, root)
    }

    fn messages(&self, topology: &Topology) -> usize {
        Algorithm::messages(&Cube::of(topology), topology)
    }

    fn rounds(&self, topology: &Topology) -> usize {
        Algorithm::rounds(&Cube::of(topology), topology)
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        Algorithm::bytes_sent(&Cube::of(topology), topology, bytes)
    }

    fn fan_in(&self, topology: &Topology) -> usize {
        Algorithm::fan_in(&Cube::of(topology), topology)
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        Algorithm::tile_seconds(&Cube::of(topology), topology, bytes, costs)
    }
}

/// The all-reduce `bcube` on switches with so many ports at each level, from that of the lowest digit of a rank on: p
/// repeated k times is BCube(p, k). A level whose switches have one port joins nobody and is left out. The registry's
/// takes the levels of the topology, or chooses them itself.
///
/// ```
/// use paceline_collective::{Capacity, bcube_all_reduce, verify};
///
/// // 27 ranks with three interfaces each, at switches of three ports.
/// let program = bcube_all_reduce(&[3, 3, 3]);
/// assert_eq!(verify(&program, Capacity::Rendezvous)?.rounds, 6);
/// # Ok::<(), paceline_collective::Refusal>(())
/// ```
pub fn bcube_all_reduce(ports: &[usize]) -> Program {
    let cube = Cube { ports: ports.iter().copied().filter(|&ports| ports != 1).collect() };
    cube.program(&Topology::flat(cube.world()), 0)
}

/// The levels of switches.
struct Cube {
    /// The ports of a switch, which are the values of a digit. The lowest digit first.
    ports: Vec<usize>,
}

impl Cube {
    fn of(topology: &Topology) -> Self {
        let of_world = || Cube::of_world(topology.world());
        topology.bcube().map_or_else(of_world, |(ports, levels)| Cube { ports: vec![ports; levels] })
    }

    /// With few levels, but more than one if that can be.
    fn of_world(world: usize) -> Self {
        let power = |levels: u32| {
            let not_above = |ports: &usize| ports.checked_pow(levels).is_some_and(|power| power <= world);
            let ports = (2..).take_while(not_above).find(|ports: &usize| ports.pow(levels) == world)?;
            Some(vec![ports; levels as usize])
        };
        let product = || {
            let short = (1..=world.isqrt()).rev().find(|&ports| world.is_multiple_of(ports)).unwrap_or(1);
            [short, world / short].into_iter().filter(|&ports| ports > 1).collect()
        };
        Cube { ports: (2..=world.ilog2()).find_map(power).unwrap_or_else(product) }
    }

    fn world(&self) -> usize {
        self.ports.iter().product()
    }

    fn levels(&self) -> usize {
        self.ports.len()
    }

    /// To how many others a rank has a link through a single switch.
    fn neighbours(&self) -> usize {
        self.ports.iter().map(|ports| ports - 1).sum()
    }

    fn switch(&self, rank: Rank, level: usize) -> Switch {
        let stride: usize = self.ports[..level].iter().product();
        Switch { rank, stride, ports: self.ports[level], own: rank / stride % self.ports[level] }
    }

    /// Each rank of a switch gets its piece of what they all have from the others.
    fn reduce_scatter(&self, builder: &mut RankBuilder, rank: Rank, slice: usize, round: usize) {
        let (switch, piece) = self.step(rank, slice, round);
        let mut have = if round == 0 { Space::Input } else { Space::Output };
        for digit in switch.ahead() {
            builder.send(switch.member(digit), piece(have, digit));
        }
        for (count, digit) in (1..).zip(switch.behind()) {
            let last = round + 1 == self.levels() && count + 1 == switch.ports;
            let into = piece(Space::Output, switch.own);
            builder.receive_fold(switch.member(digit), piece(have, switch.own), into, last);
            have = Space::Output;
        }
    }

    /// Each rank of a switch gives its piece to the others.
    fn all_gather(&self, builder: &mut RankBuilder, rank: Rank, slice: usize, round: usize) {
        let (switch, piece) = self.step(rank, slice, round);
        for digit in switch.ahead() {
            builder.send(switch.member(digit), piece(Space::Output, switch.own));
        }
        for digit in switch.behind() {
            builder.receive(switch.member(digit), piece(Space::Output, digit));
        }
    }

    /// The switch that a slice uses in a round, and the pieces of what its ranks share then, by their digits.
    fn step(&self, rank: Rank, slice: usize, round: usize) -> (Switch, impl Fn(Space, usize) -> Slot) {
        let switch = |round: usize| self.switch(rank, (slice + round) % self.levels());
        let (mut first, mut parts) = (slice * self.world(), self.world());
        for earlier in (0..round).map(switch) {
            parts /= earlier.ports;
            first += earlier.own * parts;
        }
        let switch = switch(round);
        parts /= switch.ports;
        (switch, move |space, digit| Slot::of_parts(space, 0, (first + digit * parts) as u32, parts as u32))
    }
}

impl FlatAlgorithm for Cube {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, _world: usize) -> Option<Vec<Rank>> {
        Some((0..self.levels()).flat_map(|level| self.switch(rank, level).others()).collect())
    }

    /// In every slice one for each rank.
    fn parts(&self, world: usize) -> u32 {
        (self.levels().max(1) * world) as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let place = Place { kind: CollectiveKind::AllReduce, rank, world, root };
        let mut builder = RankBuilder::new(place, FlatAlgorithm::parts(self, world));
        if world == 1 {
            return builder.alone();
        }
        // Round by round: in each round the slices use different levels.
        for round in 0..self.levels() {
            (0..self.levels()).for_each(|slice| self.reduce_scatter(&mut builder, rank, slice, round));
        }
        for round in (0..self.levels()).rev() {
            (0..self.levels()).for_each(|slice| self.all_gather(&mut builder, rank, slice, round));
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world * 2 * self.levels() * self.neighbours()
    }

    fn rounds(&self, _world: usize) -> usize {
        2 * self.levels()
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        2.0 * (world - 1) as f64 / world as f64 * bytes
    }

    /// Every neighbour sends in every round.
    fn fan_in(&self, _world: usize) -> usize {
        self.neighbours()
    }

    /// On ranks with one port for all levels, as everywhere in this crate.
    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (levels, neighbours) = (self.levels() as f64, self.neighbours() as f64);
        let reduced = (world - 1) as f64 / world as f64 * bytes;
        let port = 2.0 * levels * neighbours * link.overhead + reduced * (2.0 * link.beta + link.gamma);
        side_by_side(levels, 2.0 * levels, link, port)
    }
}

/// The ranks that differ in one digit only, as one of them sees them.
struct Switch {
    rank: Rank,
    stride: usize,
    ports: usize,
    /// The own digit.
    own: usize,
}

impl Switch {
    fn member(&self, digit: usize) -> Rank {
        self.rank - self.own * self.stride + digit * self.stride
    }

    /// The other digits, from the next on: while all send so, nobody gets two messages at a time.
    fn ahead(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (own, ports) = (self.own, self.ports);
        (1..ports).map(move |offset| (own + offset) % ports)
    }

    /// The other digits in the order in which they send here.
    fn behind(&self) -> impl Iterator<Item = usize> + use<> {
        self.ahead().rev()
    }

    fn others(self) -> impl Iterator<Item = Rank> {
        self.ahead().map(move |digit| self.member(digit))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Action, Capacity, verify};

    #[test]
    fn a_world_has_few_levels_and_more_than_one_if_it_can() {
        let levels = |world| Cube::of_world(world).ports;
        assert_eq!([4, 8, 9, 16].map(levels), [vec![2, 2], vec![2, 2, 2], vec![3, 3], vec![4, 4]]);
        assert_eq!([27, 32, 64].map(levels), [vec![3, 3, 3], vec![2; 5], vec![8, 8]]);
        assert_eq!([1, 2, 12, 13, 48].map(levels), [vec![], vec![2], vec![3, 4], vec![13], vec![6, 8]]);
        assert!((1..2000).all(|world| Cube::of_world(world).world() == world));
    }

    #[test]
    fn switches_may_have_any_ports() {
        for ports in [&[][..], &[1], &[4], &[2, 3], &[3, 2], &[3, 3], &[1, 3], &[2, 2, 2], &[3, 2, 4], &[2, 2, 2, 2]] {
            for capacity in [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Unbounded] {
                verify(&bcube_all_reduce(ports), capacity)
                    .unwrap_or_else(|refusal| panic!("{ports:?}, {capacity:?}: {refusal}"));
            }
        }
        assert_eq!(bcube_all_reduce(&[3, 4]).ranks[5], BCube.rank_program(5, &Topology::flat(12), 0));
    }

    #[test]
    fn the_levels_that_the_topology_says_are_those_of_the_program() {
        let hosts = Topology::regular(16, 1);
        for (ports, levels) in [(2, 4), (4, 2), (16, 1)] {
            let there = hosts.on_bcube(ports, levels);
            let program = BCube.program(&there, 0);
            assert_eq!(program, bcube_all_reduce(&vec![ports; levels]));
            let sent = program.ranks.iter().flat_map(|rank| &rank.steps);
            let sent = sent.filter(|step| matches!(step.action, Action::Send { .. })).count();
            assert_eq!((BCube.messages(&there), BCube.rounds(&there)), (sent, 2 * levels), "BCube({ports}, {levels})");
        }
        // Whoever is told nothing takes the fewest levels.
        assert_eq!(BCube.program(&hosts, 0), bcube_all_reduce(&[4, 4]));
    }

    #[test]
    fn it_follows_a_bcube_that_it_is_told_of() {
        let hosts = Topology::regular(4, 1);
        assert!(BCube.follows(&hosts.on_bcube(2, 2)) && BCube.follows(&hosts.on_bcube(4, 1)));
        assert!(!BCube.follows(&hosts) && !BCube.follows(&hosts.on_torus(2, 2)));
        assert!(!BCube.follows(&Topology::regular(4, 2).on_bcube(2, 2)));
    }

    /// With an interface for each level: 2k(p − 1) messages and 2(N − 1)/(kN) of the bytes through each.
    #[test]
    fn everything_crosses_one_switch_and_the_interfaces_share_the_work() {
        for (ports, levels) in [(2_usize, 2_usize), (2, 3), (3, 2), (3, 3), (4, 2)] {
            let (program, world) = (bcube_all_reduce(&vec![ports; levels]), ports.pow(levels as u32));
            for (rank, content) in program.ranks.iter().enumerate() {
                let mut sent: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
                for step in &content.steps {
                    let Action::Send { to, from, .. } = step.action else { continue };
                    let digit = |rank: Rank, level: usize| rank / ports.pow(level as u32) % ports;
                    let differ: Vec<_> = (0..levels).filter(|&level| digit(rank, level) != digit(to, level)).collect();
                    assert_eq!(differ.len(), 1, "from {rank} to {to}");
                    let (messages, parts) = sent.entry(differ[0]).or_default();
                    *messages += 1;
                    *parts += from.parts as usize;
                }
                // A tile is levels · world parts.
                let each = (2 * levels * (ports - 1), 2 * (world - 1));
                let expected: BTreeMap<_, _> = (0..levels).map(|level| (level, each)).collect();
                assert_eq!(sent, expected, "rank {rank} of BCube({ports}, {levels})");
            }
        }
    }
}
