//! What carries an operation between the ranks.

use std::ops::Range;
use std::time::Duration;

use paceline_comm::{Buffer, CallOptions, CommError, Origin, Pending};
use paceline_plan::{CollectiveKind, Plan, Reduction};
use paceline_server::{Assignment, Mode, PendingUpdate};
use paceline_strategy::Strategy;

use crate::error::TrainError;
use crate::executed::AllReduce;
use crate::on_server::Specification;
use crate::peers::Peers;

/// What carries the operations of a plan.
#[derive(Clone)]
pub(crate) struct Carrier {
    peers: Peers,
    /// Of all-reduces. `None`: the one that is cheapest for an operation's size.
    algorithm: Option<String>,
    /// Of servers.
    mode: Mode,
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

    /// How it is called.
    pub(super) fn options(&self) -> &CallOptions {
        &self.options
    }

    /// From here on, it is called like this.
    pub(super) fn set_options(&mut self, options: CallOptions) {
        self.options = options;
    }
}

/// An operation under way. It has its buffers until it has ended.
pub(crate) enum Travelling {
    /// The sum comes back in the gradient's place.
    Sum(Pending<f32>),
    /// New parameters come back beside the gradient.
    Update(PendingUpdate),
}

impl Travelling {
    /// Has it ended, well or not?
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Travelling::Sum(pending) => pending.is_done(),
            Travelling::Update(pending) => pending.is_done(),
        }
    }

    /// Waits at most so long for its end.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        match self {
            Travelling::Sum(pending) => pending.wait_timeout(timeout),
            Travelling::Update(pending) => pending.wait_timeout(timeout),
        }
    }

    /// Waits for its end: the gradient's buffer, and that of the parameters if it had one.
    pub(crate) fn wait(self) -> Result<(Buffer<f32>, Option<Buffer<f32>>), CommError> {
        match self {
            Travelling::Sum(pending) => Ok((pending.wait()?, None)),
            Travelling::Update(pending) => pending.wait().map(|(gradient, parameters)| (gradient, Some(parameters))),
        }
    }
}

impl Carrier {
    pub(crate) fn new(peers: Peers, algorithm: Option<String>) -> Carrier {
        Carrier { peers, algorithm, mode: Mode::Aggregate }
    }

    /// What carries the operations of a strategy whose arch is not open, where `peers` may have shards that do not serve it.
    pub(crate) fn of_strategy(peers: &Peers, strategy: &Strategy) -> Carrier {
        let algorithm = strategy.algorithm().map(str::to_owned);
        match strategy.arch.name.as_str() {
            "ps" => Carrier::new(peers.clone(), algorithm),
            _ => Carrier::new(Peers::AllToAll(peers.workers().clone()), algorithm),
        }
    }

    /// The same, with servers that have the parameters.
    pub(crate) fn applying(self, specification: &Specification) -> Carrier {
        Carrier { mode: Mode::Apply { optimizer: specification.to_bytes() }, ..self }
    }

    /// Do servers have the parameters?
    pub(crate) fn applies(&self) -> bool {
        self.mode != Mode::Aggregate
    }

    /// The same for operations that give sums back, whatever the servers do otherwise.
    pub(crate) fn aggregating(&self) -> Carrier {
        Carrier { mode: Mode::Aggregate, ..self.clone() }
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The algorithm of all-reduces that the strategy has chosen, if it has.
    pub(super) fn algorithm(&self) -> Option<&str> {
        self.algorithm.as_deref().filter(|name| *name != "auto")
    }

    /// Can all-reduces be done like this?
    pub(super) fn check(&self, algorithm: &str, chunk_bytes: usize) -> Result<(), CommError> {
        let options = CallOptions { chunk_bytes: Some(chunk_bytes), ..CallOptions::algorithm(algorithm) };
        self.peers.workers().choice(CollectiveKind::AllReduce, size_of::<f32>(), &options).map(drop)
    }

    /// Tells the shards, if there are any, which iterations of a plan come next. All workers call it.
    pub(crate) fn assign(&self, plan: &Plan, iterations: Range<u64>) -> Result<(), TrainError> {
        match &self.peers {
            Peers::AllToAll(_) => Ok(()),
            Peers::Servers(server) => {
                let assignment = Assignment { plan: plan.clone(), iterations, mode: self.mode.clone() };
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

    /// Starts an operation. `id` is the same on all ranks, which may start their operations in different orders. Where servers
    /// have the parameters, `parameters` is where the new ones go.
    pub(crate) fn start(
        &self,
        call: &Call,
        id: u64,
        gradient: Buffer<f32>,
        parameters: Option<Buffer<f32>>,
    ) -> Result<Travelling, CommError> {
        let options = CallOptions { operation: Some(id), ..call.options.clone() };
        match (&self.peers, parameters) {
            (Peers::AllToAll(workers), _) => {
                workers.start_all_reduce(gradient, Reduction::Sum, &options).map(Travelling::Sum)
            }
            (Peers::Servers(server), None) => {
                server.start_push_pull(call.shard, gradient, &options).map(Travelling::Sum)
            }
            (Peers::Servers(server), Some(parameters)) => {
                server.start_update(call.shard, gradient, parameters, &options).map(Travelling::Update)
            }
        }
    }

    /// Starts to give worker 0's parameters to the shard of an operation, and to all workers; `None` without servers.
    pub(crate) fn initialise(
        &self,
        call: &Call,
        id: u64,
        parameters: Buffer<f32>,
    ) -> Result<Option<Pending<f32>>, CommError> {
        let options = CallOptions { operation: Some(id), ..call.options.clone() };
        match &self.peers {
            Peers::AllToAll(_) => Ok(None),
            Peers::Servers(server) => server.start_initialise(call.shard, parameters, &options).map(Some),
        }
    }
}
