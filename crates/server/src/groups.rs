//! The communicators of a world with shards.

use paceline_comm::Communicator;

use crate::error::ServerError;
use crate::roles::Roles;

/// The communicators that this rank belongs to.
pub(crate) struct Groups {
    /// The workers; None on a shard.
    pub workers: Option<Communicator>,
    /// By shard: all workers, then that shard. None on the other shards.
    pub shards: Vec<Option<Communicator>>,
}

impl Groups {
    /// Forms them. All ranks of the world call it, whatever their part: a group of each shard with all workers takes one
    /// split of the world each, as groups of one split do not overlap. That is one small all-gather per shard, once.
    pub fn form(world: &Communicator, roles: Roles) -> Result<Groups, ServerError> {
        let part = roles.shard_of(world.rank());
        let color = |belongs: bool| belongs.then_some(0);
        let workers = world.split(color(part.is_none()), 0)?;
        let of_shard = |shard| world.split(color(part.is_none_or(|own| own == shard)), 0);
        let shards = (0..roles.shards()).map(of_shard).collect::<Result<_, _>>()?;
        Ok(Groups { workers, shards })
    }
}
