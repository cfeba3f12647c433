//! What carries an operation between the ranks.

use std::ops::Range;

use paceline_comm::{Buffer, CallOptions, CommError, Origin, Pending};
use paceline_plan::{CollectiveKind, Plan, Reduction};
use paceline_server::{Assignment, Mode};

use crate::error::TrainError;
use crate::executed::AllReduce;
use crate::peers::Peers;

/// What carries the operations of a plan.
#[derive(Clone)]
pub(crate) struct Carrier {
    peers: Peers,
    /// Of all-reduces. `None`: the one that is cheapest for an operation's size.
    algorithm: Option<String>,
}

/// One operation of a plan, whatever the iteration.
pub(crate) struct Call {
    shard: usize,
    options: CallOptions,
}

impl Call {
    /// How the all-reduce is done, if it is one.
    pub(crate) fn all_reduce(&self) -> Option<AllReduce> {
        let algorithm = self.options.algorithm.clone()?;
        Some(AllReduce { algorithm, chunk_bytes: self.options.chunk_bytes? })
    }
}

impl Carrier {
    pub(crate) fn new(peers: Peers, algorithm: Option<String>) -> Carrier {
        Carrier { peers, algorithm }
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Tells the shards, if there are any, which iterations of a plan come next. All workers call it.
    pub(crate) fn assign(&self, plan: &Plan, iterations: Range<u64>) -> Result<(), TrainError> {
        match &self.peers {
            Peers::AllToAll(_) => Ok(()),
            Peers::Servers(server) => {
                let mode = Mode::Aggregate;
                let assignment = Assignment { plan: plan.clone(), iterations, extensible: false, mode };
                Ok(server.assign(&assignment)?)
            }
        }
    }

    /// How each operation of the plan is called. The algorithm is chosen here, once, so that every iteration adds up in
    /// the same order; or it was chosen before, by operation.
    pub(crate) fn calls(&self, plan: &Plan, chosen: &[AllReduce]) -> Result<Vec<Call>, CommError> {
        let call = |(operation, (bucket, partition)): (usize, (usize, &paceline_plan::Partition))| {
            let origin = match &plan.buckets[bucket] {
                whole if whole.partitions.len() > 1 => Origin::Pipelined,
                fused if fused.tensors.len() > 1 => Origin::Fused,
                _ => Origin::Layer,
            };
            let mut options = CallOptions {
                priority: plan.worker_priority(bucket),
                plan_version: plan.version,
                tag: bucket as u64,
                origin,
                ..CallOptions::default()
            };
            if let Peers::AllToAll(workers) = &self.peers {
                let chosen = chosen.get(operation);
                options.algorithm = chosen.map(|chosen| chosen.algorithm.clone()).or_else(|| self.algorithm.clone());
                options.chunk_bytes = chosen.map(|chosen| chosen.chunk_bytes);
                let bytes = partition.elements.len() * size_of::<f32>();
                let (algorithm, chunk_bytes) = workers.choice(CollectiveKind::AllReduce, bytes, &options)?;
                options.algorithm = Some(algorithm.to_owned());
                options.chunk_bytes = Some(chunk_bytes.max(1));
            }
            Ok(Call { shard: partition.shard.unwrap_or_default(), options })
        };
        plan.partitions().enumerate().map(call).collect()
    }

    /// Starts an operation. `id` is the same on all ranks, which may start their operations in different orders.
    pub(crate) fn start(&self, call: &Call, id: u64, buffer: Buffer<f32>) -> Result<Pending<f32>, CommError> {
        let options = CallOptions { operation: Some(id), ..call.options.clone() };
        match &self.peers {
            Peers::AllToAll(workers) => workers.start_all_reduce(buffer, Reduction::Sum, &options),
            Peers::Servers(server) => server.start_push_pull(call.shard, buffer, &options),
        }
    }
}
