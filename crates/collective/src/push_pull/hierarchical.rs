use paceline_plan::{CollectiveKind, LinkCosts, Rank};

use crate::host_sums::Workers;
use crate::{Algorithm, Place, RankProgram, TileSeconds, Topology};

/// Hierarchical: a direct reduce-scatter within every host, whose workers then send the root the part that each of them
/// has added; the root adds host after host, sends every host its sums back to those who sent them, and they give them to
/// each other. A host's network interface carries one contribution and one sum, however many workers the host has.
///
/// Within a host the workers add in the order of their ranks, and the root adds in the order of the hosts: the bits depend
/// on who shares a host, and on nothing else.
///
/// Source: Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU
/// clusters" (BytePS, 2020), §4.2, which sums up the gradients of a machine's GPUs before they leave it.
pub(crate) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::PushPull
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
        Workers::rank_program(place, topology, true)
    }

    fn messages(&self, topology: &Topology) -> usize {
        2 * Workers::of(topology, self.usual_root(topology)).messages()
    }

    fn rounds(&self, topology: &Topology) -> usize {
        2 * Workers::of(topology, self.usual_root(topology)).rounds()
    }

    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64 {
        Workers::of(topology, self.usual_root(topology)).bytes_sent(bytes)
    }

    /// The root adds one host's sums after the other's.
    fn fan_in(&self, _topology: &Topology) -> usize {
        1
    }

    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds {
        Workers::of(topology, self.usual_root(topology)).directions(bytes, costs).push_pull()
    }
}
