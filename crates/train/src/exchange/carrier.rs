//! What carries an operation between the ranks.

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Origin, Pending};
use paceline_plan::{CollectiveKind, Plan, Reduction};

/// What carries the operations of a plan.
pub(crate) enum Carrier {
    /// The workers add up among themselves.
    AllToAll {
        /// Of the workers.
        workers: Communicator,
        /// `None`: the one that is cheapest for an operation's size.
        algorithm: Option<String>,
    },
}

/// One operation of a plan, whatever the iteration.
pub(super) struct Call {
    shard: Option<usize>,
    options: CallOptions,
}

impl Carrier {
    /// The communicator of the workers.
    pub(crate) fn workers(&self) -> &Communicator {
        match self {
            Carrier::AllToAll { workers, .. } => workers,
        }
    }

    /// How each operation of the plan is called. The algorithm is chosen here, once, so that every iteration adds up in
    /// the same order.
    pub(super) fn calls(&self, plan: &Plan) -> Result<Vec<Call>, CommError> {
        let call = |(bucket, partition): (usize, &paceline_plan::Partition)| {
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
            match self {
                Carrier::AllToAll { workers, algorithm } => {
                    options.algorithm.clone_from(algorithm);
                    let bytes = partition.elements.len() * size_of::<f32>();
                    let (algorithm, _) = workers.choice(CollectiveKind::AllReduce, bytes, &options)?;
                    options.algorithm = Some(algorithm.to_owned());
                }
            }
            Ok(Call { shard: partition.shard, options })
        };
        plan.partitions().map(call).collect()
    }

    /// Starts an operation. `id` is the same on all ranks, which may start their operations in different orders.
    pub(super) fn start(&self, call: &Call, id: u64, buffer: Buffer<f32>) -> Result<Pending<f32>, CommError> {
        let options = CallOptions { operation: Some(id), ..call.options.clone() };
        match (self, call.shard) {
            (Carrier::AllToAll { workers, .. }, _) => workers.start_all_reduce(buffer, Reduction::Sum, &options),
        }
    }
}
