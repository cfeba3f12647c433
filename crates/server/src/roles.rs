use paceline_plan::{Hosts, Rank};

/// More ranks than this are a mistake (as at the rendezvous).
const RANKS_MAX: usize = 1 << 16;

/// How many ranks of a world compute gradients, and how many serve: ranks `0..workers` are workers, those after them
/// shards. Where a shard lives that has no process of its own, the workers' hosts say ([`Hosts::rank_of_shard`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Roles {
    workers: usize,
    shards: usize,
}

/// Roles that no world can have, or not this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    /// Nobody computes gradients.
    #[error("a parameter server needs at least one worker, not 0")]
    NoWorker,
    /// Nobody serves.
    #[error("a parameter server needs at least one shard, not 0; without shards workers communicate all-to-all")]
    NoShard,
    /// More ranks than a world may have.
    #[error("{workers} workers and {shards} shards are more than the {RANKS_MAX} ranks that a world may have")]
    TooMany {
        /// Ranks that compute gradients.
        workers: usize,
        /// Ranks that serve.
        shards: usize,
    },
    /// The hosts are those of another world.
    #[error("the workers' hosts {hosts} are those of {} workers, and there are {workers}", hosts.ranks())]
    Hosts {
        /// Of each worker.
        hosts: Hosts,
        /// Ranks that compute gradients.
        workers: usize,
    },
    /// The world has another number of ranks.
    #[error(
        "{workers} workers and {shards} shards are {} ranks, but the world has {world}: start as many as are needed",
        workers + shards
    )]
    WorldSize {
        /// Ranks that compute gradients.
        workers: usize,
        /// Ranks that serve.
        shards: usize,
        /// Ranks that there are.
        world: usize,
    },
    /// A shard was asked to work, or a worker to serve.
    #[error("rank {rank} of {workers} workers and {shards} shards is a {is}, and cannot take the role of a {asked}")]
    WrongRole {
        /// Who.
        rank: Rank,
        /// Ranks that compute gradients.
        workers: usize,
        /// Ranks that serve.
        shards: usize,
        /// What it is.
        is: &'static str,
        /// What it was asked to be.
        asked: &'static str,
    },
}

impl Roles {
    /// Roles of a world of `workers + shards` ranks.
    ///
    /// # Errors
    /// If there is no worker, no shard, or more ranks than a world may have.
    pub fn new(workers: usize, shards: usize) -> Result<Roles, RolesError> {
        match (workers, shards) {
            (0, _) => Err(RolesError::NoWorker),
            (_, 0) => Err(RolesError::NoShard),
            _ if workers.saturating_add(shards) > RANKS_MAX => Err(RolesError::TooMany { workers, shards }),
            _ => Ok(Roles { workers, shards }),
        }
    }

    /// Ranks that compute gradients.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Ranks that serve.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Ranks of the world.
    pub fn world_size(&self) -> usize {
        self.workers + self.shards
    }

    /// The rank of a shard.
    pub fn rank_of(&self, shard: usize) -> Rank {
        self.workers + shard
    }

    /// Which shard a rank is; None for a worker.
    pub fn shard_of(&self, rank: Rank) -> Option<usize> {
        rank.checked_sub(self.workers).filter(|&shard| shard < self.shards)
    }

    /// Does a rank of a world of this size have the role that it takes?
    pub(crate) fn check(&self, rank: Rank, world: usize, serves: bool) -> Result<(), RolesError> {
        let Roles { workers, shards } = *self;
        if world != self.world_size() {
            return Err(RolesError::WorldSize { workers, shards, world });
        }
        let role = |serves| if serves { "shard" } else { "worker" };
        let is_shard = self.shard_of(rank).is_some();
        if is_shard != serves {
            return Err(RolesError::WrongRole { rank, workers, shards, is: role(is_shard), asked: role(serves) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_come_first() {
        let roles = Roles::new(2, 3).unwrap();
        assert_eq!((roles.world_size(), roles.rank_of(0), roles.rank_of(2)), (5, 2, 4));
        assert_eq!([0, 1, 2, 3, 4, 5].map(|rank| roles.shard_of(rank)), [None, None, Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        assert_eq!(Roles::new(0, 1), Err(RolesError::NoWorker));
        assert_eq!(Roles::new(1, 0), Err(RolesError::NoShard));
        assert!(matches!(Roles::new(usize::MAX, 1), Err(RolesError::TooMany { .. })));
        let roles = Roles::new(2, 1).unwrap();
        assert_eq!(roles.check(0, 3, false), Ok(()));
        assert_eq!(roles.check(2, 3, true), Ok(()));
        let told = |error: Result<(), RolesError>| error.unwrap_err().to_string();
        assert!(told(roles.check(0, 4, false)).contains("2 workers and 1 shards are 3 ranks, but the world has 4"));
        assert!(told(roles.check(0, 3, true)).contains("rank 0 of 2 workers and 1 shards is a worker"));
        assert!(told(roles.check(2, 3, false)).contains("cannot take the role of a worker"));
    }
}
