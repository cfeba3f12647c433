use super::{Link, LinkId, Node, PathChoice, Speeds, add, capacity};

/// A grid whose rows and columns are rings.
#[derive(Clone, Debug)]
pub(super) struct Torus {
    x: usize,
    y: usize,
    /// The ports of each host: to the next one in its row, to the one before, and the same in its column.
    ports: Vec<[LinkId; 4]>,
}

/// There is no port: the ring has one host, or two, which one cable connects.
const NONE: LinkId = LinkId::MAX;

impl Torus {
    pub fn new(x: usize, y: usize, speeds: &Speeds, links: &mut Vec<Link>) -> Torus {
        let across = &speeds.network.across;
        let host = |column: usize, row: usize| row * x + column;
        let mut ports = Vec::with_capacity(x * y);
        for (row, column) in (0..y).flat_map(|row| (0..x).map(move |column| (row, column))) {
            let from = Node::Host(host(column, row));
            let mut port = |exists: bool, neighbour: usize| {
                let latency_s = across.alpha_s - across.overhead_s;
                if exists { add(links, from, Node::Host(neighbour), capacity(across), latency_s) } else { NONE }
            };
            ports.push([
                port(x > 1, host((column + 1) % x, row)),
                port(x > 2, host((column + x - 1) % x, row)),
                port(y > 1, host(column, (row + 1) % y)),
                port(y > 2, host(column, (row + y - 1) % y)),
            ]);
        }
        Torus { x, y, ports }
    }

    /// Dimension by dimension, each the shorter way round, and upwards if both are as long.
    pub fn path(&self, from: usize, to: usize, choice: &PathChoice, links: &mut Vec<LinkId>) {
        let (mut column, mut row) = (from % self.x, from / self.x);
        let goal = (to % self.x, to / self.x);
        let dimensions = if choice.y_first { [1, 0] } else { [0, 1] };
        for dimension in dimensions {
            let (place, goal, size) = match dimension {
                0 => (&mut column, goal.0, self.x),
                _ => (&mut row, goal.1, self.y),
            };
            let upwards = (goal + size - *place) % size;
            let (hops, step, direction) = match size - upwards {
                downwards if downwards < upwards => (downwards, size - 1, 1),
                _ => (upwards, 1, 0),
            };
            let mut passed = Vec::with_capacity(hops);
            for _ in 0..hops {
                passed.push(*place);
                *place = (*place + step) % size;
            }
            for place in passed {
                let host = if dimension == 0 { row * self.x + place } else { place * self.x + column };
                links.push(self.ports[host][2 * dimension + direction]);
            }
        }
    }
}
