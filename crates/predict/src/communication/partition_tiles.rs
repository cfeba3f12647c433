//! Into which tiles the runtime cuts a partition on its way to a server and back. That counts where messages cost something besides
//! their bytes: a partition that is cut costs it as often.

use paceline_collective::{select, tiles};
use paceline_plan::{Cluster, CollectiveKind};

use super::World;
use super::servers_by_message::with_server;

/// The smallest partition that is looked at; what is smaller is one tile. Further ones are twice as large each time.
const SMALLEST: u64 = 16 << 10;
const SIZES: usize = 13;

/// Formulas of larger worlds take long, and their tiles hardly change.
const WORKERS_MAX: usize = 128;

/// Bytes of a tile, by size of the partition. Empty: nobody asks, and one is as good as many.
#[derive(Clone, Debug, Default)]
pub(super) struct PartitionTiles(Vec<usize>);

impl PartitionTiles {
    /// As the runtime would choose them, for a server on a host of its own or beside the first worker.
    pub fn of(cluster: &Cluster, world: &World, dedicated: bool) -> PartitionTiles {
        let hosts = world.hosts.min((WORKERS_MAX / world.per_host).max(1));
        let small = World { hosts, workers: world.workers.min(hosts * world.per_host), ..*world };
        let topology = with_server(&small, if dedicated { hosts } else { 0 });
        let counted = cluster.counted_costs_among(hosts);
        let of_size = |place: usize| {
            let bytes = (SMALLEST << place) as usize;
            let choice = select::cheapest(CollectiveKind::PushPull, &topology, bytes, &counted, |_| true);
            choice.map_or(bytes, |choice| choice.tile_bytes)
        };
        PartitionTiles((0..SIZES).map(of_size).collect())
    }

    /// How many tiles a partition is.
    pub fn count(&self, bytes: u64) -> usize {
        let Some(last) = self.0.len().checked_sub(1).filter(|_| bytes > SMALLEST) else { return 1 };
        // Of the sizes that are known, the nearest.
        let place = ((bytes as f64 / SMALLEST as f64).log2().round() as usize).min(last);
        tiles(bytes as usize, self.0[place])
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
            for bytes in [1_u64 << 10, 16 << 10, 100_000, 1 << 20, 4_096_000, 300 << 20] {
                let count = found.count(bytes);
                assert!(count >= 1 && (bytes > 16 << 10 || count == 1), "{bytes}: {count}");
            }
            if hosts * per_host <= 8 {
                let topology = with_server(&world, 0);
                let counted = cluster.counted_costs_among(hosts);
                let choice = select::cheapest(CollectiveKind::PushPull, &topology, 1 << 20, &counted, |_| true);
                let tile_bytes = choice.expect("a program").tile_bytes;
                assert_eq!(found.count(1 << 20), tiles(1 << 20, tile_bytes), "{hosts} x {per_host}");
            }
        }
        assert_eq!(PartitionTiles::default().count(1 << 30), 1);
    }
}
