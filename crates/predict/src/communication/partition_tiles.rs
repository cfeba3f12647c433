//! Into which tiles the runtime cuts a partition on its way to a server and back. That counts where messages cost something besides
//! their bytes: a partition that is cut costs it as often.

use std::sync::OnceLock;

use paceline_collective::{Topology, select, tiles};
use paceline_plan::{Cluster, CollectiveKind, LinkCosts};

use super::World;
use super::servers_by_message::with_server;

/// The smallest partition that is looked at; what is smaller is one tile. Further ones are twice as large each time.
const SMALLEST: u64 = 16 << 10;
const SIZES: usize = 13;

/// Formulas of larger worlds take long, and their tiles hardly change.
const WORKERS_MAX: usize = 128;

/// Tiles by size of the partition, found when they are asked for. None: nobody asks, and one is as good as many.
#[derive(Default)]
pub(super) struct PartitionTiles(Option<Box<Known>>);

struct Known {
    /// The workers and a server.
    topology: Topology,
    counted: LinkCosts,
    tile_bytes: [OnceLock<usize>; SIZES],
}

impl PartitionTiles {
    /// As the runtime would choose them, for a server on a host of its own or beside the first worker.
    pub fn of(cluster: &Cluster, world: &World, dedicated: bool) -> PartitionTiles {
        let hosts = world.hosts.min((WORKERS_MAX / world.per_host).max(2));
        let small = World { hosts, workers: world.workers.min(hosts * world.per_host), ..*world };
        let topology = with_server(&small, if dedicated { hosts } else { 0 });
        let counted = cluster.counted_costs_among(hosts);
        PartitionTiles(Some(Box::new(Known { topology, counted, tile_bytes: Default::default() })))
    }

    /// Would the runtime choose them by what messages cost here?
    pub fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// How many tiles a partition is.
    pub fn count(&self, bytes: u64) -> usize {
        let Some(known) = self.0.as_ref().filter(|_| bytes > SMALLEST) else { return 1 };
        // Of the sizes that are looked at, the nearest.
        let place = ((bytes as f64 / SMALLEST as f64).log2().round() as usize).min(SIZES - 1);
        tiles(
            bytes as usize,
            *known.tile_bytes[place].get_or_init(|| known.tile_bytes_of((SMALLEST << place) as usize)),
        )
    }
}

impl Known {
    fn tile_bytes_of(&self, bytes: usize) -> usize {
        let choice = select::cheapest(CollectiveKind::PushPull, &self.topology, bytes, &self.counted, |_| true);
        match choice.map_or(bytes, |choice| choice.tile_bytes) {
            // What is somewhat larger is one tile, too.
            tile_bytes if tile_bytes >= bytes => 2 * bytes,
            tile_bytes => tile_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{LinkClass, NetworkModel};

    use super::*;

    #[test]
    fn tiles_are_those_that_the_runtime_would_choose() {
        let class = |alpha_s, overhead_s| LinkClass { alpha_s, overhead_s, beta_s_per_byte: 8e-10 };
        let network = NetworkModel { within: class(5e-6, 1e-6), across: class(50e-6, 10e-6) };
        for (hosts, per_host) in [(2, 1), (8, 1), (4, 2), (1, 4), (400, 1)] {
            let cluster = Cluster::of_network(network, hosts, per_host);
            let world = World::of(hosts * per_host, per_host);
            let found = PartitionTiles::of(&cluster, &world, false);
            assert_eq!([1, 16 << 10].map(|bytes| found.count(bytes)), [1, 1]);
            let topology = with_server(&world, 0);
            let counted = cluster.counted_costs_among(hosts);
            for bytes in [32_usize << 10, 1 << 20, 4 << 20] {
                let choice = select::cheapest(CollectiveKind::PushPull, &topology, bytes, &counted, |_| true);
                let expected = tiles(bytes, choice.expect("a program").tile_bytes);
                assert_eq!(found.count(bytes as u64), expected, "{bytes} on {hosts} x {per_host}");
            }
        }
        assert_eq!(PartitionTiles::default().count(1 << 30), 1);
        // What is sent whole is so a little above a size that is looked at, too.
        let found = PartitionTiles::of(&Cluster::of_network(network, 2, 1), &World::of(2, 1), false);
        assert_eq!([20_000, 22_000].map(|bytes| found.count(bytes)), [1, 1]);
    }
}
