use paceline_collective::cost::Load;
use paceline_collective::{Algorithm, tiles};
use paceline_plan::{Cluster, Hosts, LinkCosts};

use super::World;
use crate::PredictError;
use crate::programs::{Combining, Machine, PreparedProgram, simulate};
use crate::topology::{Network, Shape, Speeds};

/// Programs of more ranks are not simulated.
pub(crate) const RANKS_MAX: usize = 1024;

/// Messages of a simulated operation, at most, unless one tile has more: what takes a quarter of a second.
const MESSAGES_MAX: usize = 1 << 18;

/// Tiles in flight, as in the runtime.
const WINDOW: usize = 4;

/// Programs on a cluster's topology.
pub(crate) struct Simulated<'a> {
    shape: Shape,
    world: &'a World,
    cluster: &'a Cluster,
    gamma: f64,
}

impl<'a> Simulated<'a> {
    pub fn new(shape: Shape, world: &'a World, costs: &LinkCosts, cluster: &'a Cluster) -> Simulated<'a> {
        Simulated { shape, world, cluster, gamma: costs.across.gamma }
    }

    /// Is one simulation of an algorithm enough, because it is as long as all may be together?
    pub fn once(&self, algorithm: &dyn Algorithm) -> bool {
        algorithm.messages(&self.world.topology()) > MESSAGES_MAX
    }

    /// How many times longer an operation takes on the topology than under one switch, by simulation of its program on both.
    ///
    /// # Errors
    /// The topology has no room for so many hosts, or the program would never end.
    pub fn ratio(&self, algorithm: &dyn Algorithm, bytes: usize, tile_bytes: usize) -> Result<f64, PredictError> {
        let topology = self.world.topology();
        let program = PreparedProgram::of_algorithm(algorithm, &topology, 0)?;
        // Fewer and larger tiles where there would be too many messages.
        let tiles_max = (MESSAGES_MAX / algorithm.messages(&topology).max(1)).max(1);
        let tile_bytes = if tiles(bytes, tile_bytes) > tiles_max { bytes.div_ceil(tiles_max) } else { tile_bytes };
        let load = Load { bytes, tile_bytes, window: WINDOW };
        let by_rank = (0..self.world.workers).map(|rank| rank / self.world.per_host).collect();
        let Some(hosts) = Hosts::of_ranks(by_rank) else { return Ok(1.0) };
        let speeds = Speeds { fetched: self.cluster.within.fetched, ..Speeds::of(self.cluster.network()) };
        let seconds = |shape: Shape| -> Result<f64, PredictError> {
            let network = Network::new(shape, &hosts, &speeds)?;
            let combining = Combining::InsteadOfReceiving;
            let machine = Machine { gamma: self.gamma, combining, ..Machine::new(&network) };
            Ok(simulate(&program, &load, &machine)?.seconds)
        };
        let (there, flat) = (seconds(self.shape)?, seconds(Shape::Flat)?);
        Ok(if flat > 0.0 { there / flat } else { 1.0 })
    }
}
