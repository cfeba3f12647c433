use paceline_plan::{CollectiveKind, LinkCosts, Rank};

use crate::host_sums::Workers;
use crate::{Algorithm, Place, RankProgram, TileSeconds, Topology};

/// Hierarchical: a direct reduce-scatter within every host, whose workers then send the root the part that each of them
/// has added: the first half of the hierarchical push-pull, with the same bits.
///
/// Source: Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU
/// clusters" (BytePS, 2020), §4.2.
pub(crate) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Push
    }

    fn supports(&self, world: usize) -> bool {
        world >= 2
    }

    fn for_hosts(&self) -> bool {
        true
    }

    fn parts(&self, topology: &Topology) -> u32 {
        Workers::parts(topology)
    }

    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram {
        let place = Place { kind: self.kind(), rank, world: topology.world(), root };
        Workers::rank_program(place, topology, false)
    }

    fn messages(&self, topology: &Topology) -> usize {
        Workers::of(topology, self.usual_root(topology)).messages()
    }

    fn rounds(&self, topology: &Topology) -> usize {
        Workers::of(topology, self.usual_root(topology)).rounds()
    }

    fn bytes_sent(&self, _topology: &Topology, bytes: f64) -> f64 {
        bytes
    }

    /// The root adds one host's sums after the other's.
    fn fan_in(&self, _topology: &Topology) -> usize {
        1
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        Workers::of(topology, self.usual_root(topology)).directions(bytes, costs).push()
    }
}
