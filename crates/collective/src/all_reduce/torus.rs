use paceline_plan::{CollectiveKind, LinkCost, LinkCosts, Rank};

use crate::algorithm::side_by_side;
use crate::arithmetic::{ahead, behind};
use crate::{Algorithm, FlatAlgorithm, Place, Program, RankBuilder, RankProgram, Slot, Space, TileSeconds, Topology};

/// 2-D torus: one half of every tile goes round rings along x, then along y; the other half along y, then along x. So
/// the links of both dimensions are busy all the time, each message goes to a neighbour, and there are as many rounds as
/// in two rings of a side each.
///
/// The torus is that of the topology, if it says one; otherwise it is as near a square as the world allows, and if the world is
/// prime, it has one row and this is `ring`.
///
/// Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2018), the 2D-torus
/// all-reduce; Sack and Gropp, "Collective algorithms for multiported torus networks" (2015), a part of the data for each
/// order of the dimensions.
pub(crate) struct Torus;

const NAME: &str = "2d-torus";

impl Algorithm for Torus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn for_network(&self) -> bool {
        true
    }

    /// In a single row it would be the ring.
    fn follows(&self, topology: &Topology) -> bool {
        topology.torus().is_some_and(|sides| !sides.contains(&1))
    }

    fn parts(&self, topology: &Topology) -> u32 {
        Algorithm::parts(&Grid::of(topology), topology)
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        Algorithm::rank_program(&Grid::of(topology), rank, topology, root)
    }

    fn messages(&self, topology: &Topology) -> usize {
        Algorithm::messages(&Grid::of(topology), topology)
    }

    fn rounds(&self, topology: &Topology) -> usize {
        Algorithm::rounds(&Grid::of(topology), topology)
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        Algorithm::bytes_sent(&Grid::of(topology), topology, bytes)
    }

    fn fan_in(&self, topology: &Topology) -> usize {
        Algorithm::fan_in(&Grid::of(topology), topology)
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        Algorithm::tile_seconds(&Grid::of(topology), topology, bytes, costs)
    }
}

/// The all-reduce `2d-torus` on a torus with these sides, x before y, where rank y·`sides[0]` + x stands at (x, y). The
/// registry's chooses the sides itself.
///
/// ```
/// use paceline_collective::{Capacity, torus_all_reduce, verify};
///
/// // As many rounds as rings of two and of eight ranks have together.
/// let program = torus_all_reduce([2, 8]);
/// assert_eq!(verify(&program, Capacity::Rendezvous)?.rounds, 2 * (1 + 7));
/// # Ok::<(), paceline_collective::Refusal>(())
/// ```
pub fn torus_all_reduce(sides: [usize; 2]) -> Program {
    Grid { sides }.program(&Topology::flat(sides[0] * sides[1]), 0)
}

/// The same on a torus that is known: how ranks lie on it, row by row, x first.
#[derive(Clone, Copy)]
struct Grid {
    sides: [usize; 2],
}

impl Grid {
    fn of(topology: &Topology) -> Self {
        topology.torus().map_or_else(|| Grid::near_square(topology.world()), |sides| Grid { sides })
    }

    /// As near a square as can be; x is the shorter side.
    fn near_square(world: usize) -> Self {
        let short = (1..=world.isqrt()).rev().find(|&side| world.is_multiple_of(side)).unwrap_or(1);
        Grid { sides: [short, world / short] }
    }

    /// Which dimension is the first and which the second, for each half of a tile. In a single row there is one way
    /// only, for all of it.
    fn orders(&self) -> &'static [[usize; 2]] {
        if self.sides.contains(&1) { &[[0, 1]] } else { &[[0, 1], [1, 0]] }
    }

    fn axis(&self, rank: Rank, dimension: usize) -> Axis {
        let (stride, length) = ([1, self.sides[0]][dimension], self.sides[dimension]);
        let index = rank / stride % length;
        let at = |other: usize| rank - index * stride + other * stride;
        Axis { index, length, previous: at(behind(index, 1, length)), next: at(ahead(index, 1, length)) }
    }
}

impl FlatAlgorithm for Grid {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, _world: usize) -> Option<Vec<Rank>> {
        let axes = [0, 1].map(|dimension| self.axis(rank, dimension));
        Some(axes.iter().filter(|axis| axis.length > 1).map(|axis| axis.next).collect())
    }

    fn parts(&self, world: usize) -> u32 {
        (self.orders().len() * world) as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let place = Place { kind: CollectiveKind::AllReduce, rank, world, root };
        let mut builder = RankBuilder::new(place, FlatAlgorithm::parts(self, world));
        if world == 1 {
            return builder.alone();
        }
        let half = |(number, &[first, second]): (usize, &[usize; 2])| Half {
            part: number * world,
            first: self.axis(rank, first),
            second: self.axis(rank, second),
        };
        let halves: Vec<Half> = self.orders().iter().enumerate().map(half).collect();
        // Phase by phase: in each phase the halves use different links.
        halves.iter().for_each(|half| half.reduce_scatter(&mut builder));
        halves.iter().for_each(|half| half.all_reduce(&mut builder));
        halves.iter().for_each(|half| half.all_gather(&mut builder));
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world * self.orders().len() * FlatAlgorithm::rounds(self, world)
    }

    fn rounds(&self, _world: usize) -> usize {
        self.sides.iter().map(|side| 2 * (side - 1)).sum()
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        2.0 * (world - 1) as f64 / world as f64 * bytes
    }

    /// The neighbour along x and the neighbour along y.
    fn fan_in(&self, _world: usize) -> usize {
        self.orders().len()
    }

    /// On ranks with one port for both dimensions, as everywhere in this crate.
    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (halves, rounds) = (self.orders().len() as f64, FlatAlgorithm::rounds(self, world) as f64);
        let reduced = (world - 1) as f64 / world as f64 * bytes;
        let port = halves * rounds * link.overhead + reduced * (2.0 * link.beta + link.gamma);
        side_by_side(halves, rounds, link, port)
    }
}

/// A ring along one dimension, as one of its ranks sees it.
struct Axis {
    index: usize,
    length: usize,
    previous: Rank,
    next: Rank,
}

impl Axis {
    /// Slot i starts on the i-th rank, takes in the contribution of each that it reaches, and is whole on the one before
    /// the i-th. `last`: the result is final.
    fn reduce_scatter(&self, builder: &mut RankBuilder, slot: impl Fn(Space, usize) -> Slot, from: Space, last: bool) {
        let hops = self.length - 1;
        if hops > 0 {
            builder.send(self.next, slot(from, self.index));
        }
        for hop in 1..=hops {
            let passing = behind(self.index, hop, self.length);
            let into = slot(Space::Output, passing);
            builder.receive_fold(self.previous, slot(from, passing), into, last && hop == hops);
            if hop < hops {
                builder.send(self.next, into);
            }
        }
    }

    /// Every slot goes on from where the reduce-scatter left it, once round.
    fn all_gather(&self, builder: &mut RankBuilder, slot: impl Fn(Space, usize) -> Slot) {
        let hops = self.length - 1;
        if hops > 0 {
            builder.send(self.next, slot(Space::Output, self.whole()));
        }
        for hop in 1..=hops {
            let passing = slot(Space::Output, behind(self.index, hop - 1, self.length));
            builder.receive(self.previous, passing);
            if hop < hops {
                builder.send(self.next, passing);
            }
        }
    }

    /// The slot that the reduce-scatter leaves here.
    fn whole(&self) -> usize {
        ahead(self.index, 1, self.length)
    }
}

/// What one rank does with one half of a tile. It consists of a group of parts for each rank along the first dimension,
/// with a part for each rank along the second.
struct Half {
    /// The first part.
    part: usize,
    first: Axis,
    second: Axis,
}

impl Half {
    fn reduce_scatter(&self, builder: &mut RankBuilder) {
        self.first.reduce_scatter(builder, self.groups(), Space::Input, self.second.length == 1);
    }

    fn all_reduce(&self, builder: &mut RankBuilder) {
        let from = if self.first.length == 1 { Space::Input } else { Space::Output };
        self.second.reduce_scatter(builder, self.parts_of(self.first.whole()), from, true);
        self.second.all_gather(builder, self.parts_of(self.first.whole()));
    }

    fn all_gather(&self, builder: &mut RankBuilder) {
        self.first.all_gather(builder, self.groups());
    }

    fn groups(&self) -> impl Fn(Space, usize) -> Slot {
        let (first, parts) = (self.part, self.second.length);
        move |space, group| Slot::of_parts(space, 0, (first + group * parts) as u32, parts as u32)
    }

    fn parts_of(&self, group: usize) -> impl Fn(Space, usize) -> Slot {
        let first = self.part + group * self.second.length;
        move |space, part| Slot::of_parts(space, 0, (first + part) as u32, 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::all_reduce::Ring;
    use crate::{Action, Capacity, verify};

    #[test]
    fn a_torus_is_as_near_a_square_as_can_be() {
        assert_eq!(
            [1, 2, 4, 6, 12, 16, 48].map(|world| Grid::near_square(world).sides),
            [[1, 1], [1, 2], [2, 2], [2, 3], [3, 4], [4, 4], [6, 8]]
        );
    }

    #[test]
    fn a_torus_of_one_row_is_the_ring() {
        for world in [1, 2, 3, 7, 13] {
            for rank in 0..world {
                let of_ring = FlatAlgorithm::rank_program(&Ring, rank, world, 0);
                assert_eq!(FlatAlgorithm::rank_program(&Grid::near_square(world), rank, world, 0), of_ring);
            }
        }
    }

    #[test]
    fn a_torus_may_have_any_sides() {
        for (x, y) in (1..=5).flat_map(|x| (1..=5).map(move |y| (x, y))) {
            for capacity in [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Unbounded] {
                let proof = verify(&torus_all_reduce([x, y]), capacity).unwrap_or_else(|refusal| {
                    panic!("{x} x {y}, {capacity:?}: {refusal}");
                });
                assert_eq!(proof.rounds, 2 * (x - 1) + 2 * (y - 1), "{x} x {y}");
            }
        }
        assert_eq!(torus_all_reduce([3, 4]).ranks[5], FlatAlgorithm::rank_program(&Grid::near_square(12), 5, 12, 0));
    }

    #[test]
    fn the_sides_that_the_topology_says_are_those_of_the_program() {
        let (hosts, link) = (
            Topology::regular(8, 1),
            LinkCosts::uniform(LinkCost { alpha: 1.0, overhead: 0.0, beta: 1e-3, gamma: 0.0 }),
        );
        for sides @ [x, y] in [[4, 2], [2, 4], [8, 1], [1, 8]] {
            let there = hosts.on_torus(x, y);
            let program = Torus.program(&there, 0);
            assert_eq!(program, torus_all_reduce(sides));
            let sent = program.ranks.iter().flat_map(|rank| &rank.steps);
            let sent = sent.filter(|step| matches!(step.action, Action::Send { .. })).count();
            assert_eq!(Torus.messages(&there), sent, "{sides:?}");
        }
        let seconds = |x, y| Torus.tile_seconds(&hosts.on_torus(x, y), 1e3, &link);
        assert_eq!(seconds(4, 2), Torus.tile_seconds(&hosts, 1e3, &link));
        assert!(seconds(8, 1).first > seconds(4, 2).first, "a ring has more rounds");
    }

    #[test]
    fn it_follows_a_torus_of_several_rows_that_it_is_told_of() {
        let hosts = Topology::regular(8, 1);
        for (topology, follows) in [
            (hosts.on_torus(4, 2), true),
            (hosts.on_torus(8, 1), false),
            (hosts.on_torus(1, 8), false),
            (hosts.on_bcube(2, 3), false),
            (Topology::regular(8, 2).on_torus(4, 2), false),
            (hosts, false),
        ] {
            assert_eq!(Torus.follows(&topology), follows, "{:?}", topology.shape());
        }
        // Rows or columns of one are the ring.
        let ring = Ring.program(&Topology::regular(8, 1), 0).ranks;
        assert!([[8, 1], [1, 8]].iter().all(|&sides| torus_all_reduce(sides).ranks == ring));
    }

    /// On a torus, every link has a port of its own: its share of the bytes is what the algorithm is for.
    #[test]
    fn everything_goes_to_a_neighbour_and_the_dimensions_share_the_work() {
        for (x, y) in [(2, 3), (3, 3), (3, 5), (4, 4)] {
            let program = torus_all_reduce([x, y]);
            for (rank, content) in program.ranks.iter().enumerate() {
                let along_x = rank / x * x + (rank + 1) % x;
                let along_y = (rank + x) % (x * y);
                let mut parts: BTreeMap<Rank, usize> = BTreeMap::new();
                for step in &content.steps {
                    if let Action::Send { to, from, .. } = step.action {
                        *parts.entry(to).or_default() += from.parts as usize;
                    }
                }
                // Half a tile is x·y parts.
                let of = |own: usize, other: usize| 2 * (own - 1) * other + 2 * (own - 1);
                assert_eq!(parts, BTreeMap::from([(along_x, of(x, y)), (along_y, of(y, x))]), "{x} x {y}, {rank}");
                // What needs not wait goes both ways.
                let first = content
                    .steps
                    .iter()
                    .filter(|step| step.after.is_empty())
                    .filter_map(|step| if let Action::Send { to, .. } = step.action { Some(to) } else { None });
                assert_eq!(first.collect::<Vec<_>>(), [along_x, along_y]);
            }
        }
    }
}
