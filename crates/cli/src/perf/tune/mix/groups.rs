//! Who communicates with whom: the dimensions of the job on the ranks that there are.

use paceline_comm::{CommError, Communicator};
use paceline_tune::Parallelism;

/// A dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The ranks of a host.
    Tensor,
    /// Two ranks, on different hosts if there are several.
    Pipeline,
    /// Ranks of all hosts with the same place in each.
    Data,
}

/// This rank's communicator of each dimension. Where hosts have one rank, or there is one host, those of tensors and of data
/// are the whole world.
pub struct Groups {
    tensor: Communicator,
    /// None for the last of an odd number.
    pipeline: Option<Communicator>,
    data: Communicator,
}

impl Group {
    pub const ALL: [Group; 3] = [Group::Tensor, Group::Pipeline, Group::Data];

    /// Whose calls these are.
    pub fn of(parallelism: Parallelism) -> Group {
        match parallelism {
            Parallelism::Tensor => Group::Tensor,
            Parallelism::Pipeline => Group::Pipeline,
            Parallelism::Data | Parallelism::Sharded => Group::Data,
        }
    }
}

impl Groups {
    /// Of a world; all ranks together.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn of(world: &Communicator) -> Result<Groups, CommError> {
        let topology = world.topology();
        let (rank, hosts) = (world.rank(), topology.hosts());
        // By host and place in it; the whole world as one host where that makes no groups.
        let (host, place) =
            if topology.is_flat() { (0, 0) } else { (topology.host(rank), topology.index_on_host(rank)) };
        let (pair, is_paired) = if topology.is_flat() {
            (rank / 2, rank / 2 * 2 + 1 < world.world_size())
        } else {
            let (first, second) = (host / 2 * 2, host / 2 * 2 + 1);
            let has = |host: usize| host < hosts && place < topology.members(host).len();
            (place * hosts + host / 2, has(first) && has(second))
        };
        let everybody = || world.clone();
        let tensor = world.split(Some(host as u32), 0)?.unwrap_or_else(everybody);
        let pipeline = world.split(is_paired.then_some(pair as u32), 0)?;
        let data = world.split(Some(place as u32), 0)?.unwrap_or_else(everybody);
        Ok(Groups { tensor, pipeline, data })
    }

    /// That of a dimension.
    pub fn get(&self, group: Group) -> Option<&Communicator> {
        match group {
            Group::Tensor => Some(&self.tensor),
            Group::Pipeline => self.pipeline.as_ref(),
            Group::Data => Some(&self.data),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_comm::ThreadsConfig;

    use super::*;

    #[test]
    fn tensors_stay_within_hosts_and_data_and_pipelines_cross_them() {
        let config = ThreadsConfig { hosts: 3, ..ThreadsConfig::default() };
        let ranks = Communicator::threads_with(6, &config).expect("threads connect").into_iter().map(|world| {
            thread::spawn(move || {
                let groups = Groups::of(&world).expect("all ranks split");
                let members = |group| {
                    let its = |it: &Communicator| (0..it.world_size()).map(|rank| it.rank_in_world(rank)).collect();
                    groups.get(group).map_or(Vec::new(), its)
                };
                (world.rank(), Group::ALL.map(members))
            })
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let expected: [[&[usize]; 3]; 6] = [
            [&[0, 1], &[0, 2], &[0, 2, 4]],
            [&[0, 1], &[1, 3], &[1, 3, 5]],
            [&[2, 3], &[0, 2], &[0, 2, 4]],
            [&[2, 3], &[1, 3], &[1, 3, 5]],
            [&[4, 5], &[], &[0, 2, 4]],
            [&[4, 5], &[], &[1, 3, 5]],
        ];
        for (rank, groups) in all {
            let groups: Vec<&[usize]> = groups.iter().map(Vec::as_slice).collect();
            assert_eq!(groups, expected[rank], "rank {rank}");
        }
    }
}
