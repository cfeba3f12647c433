//! What carries an operation between the ranks.

use std::ops::Range;
use std::time::Duration;

use paceline_comm::{Buffer, CallOptions, CommError, Origin, Pending, VerifiedProgram};
use paceline_compress::{Compression, Piece};
use paceline_plan::{CollectiveKind, Plan, Reduction};
use paceline_server::{Assignment, Mode, PendingUpdate};
use paceline_strategy::Strategy;

use super::coder::{Coder, Gathered, Gathering, Pushing};
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
    /// Contributions are compressed, and gathered instead of reduced: by everybody, or by servers that add up.
    compression: Option<Compression>,
    /// Of servers.
    mode: Mode,
}

/// One operation of a plan, whatever the iteration.
pub(crate) struct Call {
    shard: usize,
    options: CallOptions,
    /// Of the caller's, if one is run instead of an algorithm.
    program: Option<VerifiedProgram>,
    /// If contributions are compressed.
    coder: Option<Coder>,
}

/// How an all-reduce is done: by what its options name, or by a program of the caller's, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(super) options: CallOptions,
    pub(super) program: Option<VerifiedProgram>,
}

impl From<CallOptions> for Way {
    fn from(options: CallOptions) -> Way {
        Way { options, program: None }
    }
}

impl Call {
    /// How the all-reduce is done, if it is one.
    pub(crate) fn all_reduce(&self) -> Option<AllReduce> {
        let program = self.program.as_ref().map(|program| program.algorithm().to_owned());
        let algorithm = program.or_else(|| self.options.algorithm.clone()).filter(|_| self.coder.is_none())?;
        Some(AllReduce { algorithm, chunk_bytes: self.options.chunk_bytes? })
    }

    /// How it is called.
    pub(super) fn options(&self) -> &CallOptions {
        &self.options
    }

    /// From here on, it is done like this.
    pub(super) fn set(&mut self, way: Way) {
        (self.options, self.program) = (way.options, way.program);
    }
}

/// An operation under way. It has its buffers until it has ended.
pub(crate) enum Travelling {
    /// The sum comes back in the gradient's place.
    Sum(Pending<f32>),
    /// New parameters come back beside the gradient.
    Update(PendingUpdate),
    /// What all ranks have compressed comes back.
    Gathering(Gathering),
    /// The sum of what all ranks have compressed comes back in the gradient's place.
    Pushing(Pushing),
}

/// What an operation that has ended has left.
pub(crate) enum Landed {
    /// The sum.
    Sum(Buffer<f32>),
    /// The gradient, and new parameters.
    Update(Buffer<f32>, Buffer<f32>),
    /// What is to be decompressed.
    Gathered(Gathered),
}

impl Landed {
    /// The gradient's place, with the sum in it if that came back.
    pub(crate) fn into_gradient(self) -> Buffer<f32> {
        match self {
            Landed::Sum(gradient) | Landed::Update(gradient, _) => gradient,
            Landed::Gathered(gathered) => gathered.sum(),
        }
    }
}

impl Travelling {
    /// Has it ended, well or not?
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Travelling::Sum(pending) => pending.is_done(),
            Travelling::Update(pending) => pending.is_done(),
            Travelling::Gathering(pending) => pending.is_done(),
            Travelling::Pushing(pending) => pending.is_done(),
        }
    }

    /// Waits at most so long for its end.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Result<(), CommError> {
        match self {
            Travelling::Sum(pending) => pending.wait_timeout(timeout),
            Travelling::Update(pending) => pending.wait_timeout(timeout),
            Travelling::Gathering(pending) => pending.wait_timeout(timeout),
            Travelling::Pushing(pending) => pending.wait_timeout(timeout),
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(self) -> Result<Landed, CommError> {
        match self {
            Travelling::Sum(pending) => pending.wait().map(Landed::Sum),
            Travelling::Update(pending) => pending.wait().map(|(gradient, values)| Landed::Update(gradient, values)),
            Travelling::Gathering(pending) => pending.wait().map(Landed::Gathered),
            Travelling::Pushing(pending) => pending.wait().map(Landed::Sum),
        }
    }
}

impl Carrier {
    pub(crate) fn new(peers: Peers, algorithm: Option<String>) -> Carrier {
        Carrier { peers, algorithm, compression: None, mode: Mode::Aggregate }
    }

    /// The same, with contributions that are compressed, if there is a compression.
    pub(crate) fn compressing(self, compression: Option<Compression>) -> Carrier {
        Carrier { compression, ..self }
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
                let mode = match (&self.mode, &self.compression) {
                    (Mode::Aggregate, Some(_)) => Mode::Decompress,
                    (mode, _) => mode.clone(),
                };
                let assignment = Assignment { plan: plan.clone(), iterations, mode };
                Ok(server.assign(&assignment)?)
            }
        }
    }

    /// How each operation of the plan is called. The algorithm is chosen here, once, so that every iteration adds up in
    /// the same order; or it was chosen before, by operation.
    pub(crate) fn calls(&self, plan: &Plan, chosen: &[AllReduce]) -> Result<Vec<Call>, CommError> {
        // Then they are under way together, and but for the last ones while backward still runs.
        let is_one_of_several = plan.operations() > 1;
        let call = |(operation, (bucket, partition)): (usize, (usize, &paceline_plan::Partition))| {
            let whole = &plan.buckets[bucket];
            let origin = match (is_one_of_several, whole.tensors.len() > 1) {
                (true, true) => Origin::FusedPipelined,
                (true, false) if whole.partitions.len() > 1 => Origin::Pipelined,
                (true, false) => Origin::Layer,
                (false, true) => Origin::Fused,
                (false, false) => Origin::Lone,
            };
            let mut options = CallOptions {
                priority: plan.worker_priority(bucket),
                plan_version: plan.version,
                tag: bucket as u64,
                origin,
                ..CallOptions::default()
            };
            let elements = partition.elements.len();
            let coder = self.coder(operation, elements)?;
            if let Peers::AllToAll(workers) = &self.peers {
                let chosen = chosen.get(operation);
                options.algorithm = chosen.map(|chosen| chosen.algorithm.clone()).or_else(|| self.algorithm.clone());
                options.chunk_bytes = chosen.map(|chosen| chosen.chunk_bytes);
                let (kind, bytes) = match &coder {
                    None => (CollectiveKind::AllReduce, elements * size_of::<f32>()),
                    Some(coder) => (CollectiveKind::AllGather, coder.bytes()),
                };
                let (algorithm, chunk_bytes) = workers.choice(kind, bytes, &options)?;
                options.algorithm = Some(algorithm.to_owned());
                options.chunk_bytes = Some(chunk_bytes.max(1));
            }
            Ok(Call { shard: partition.shard.unwrap_or_default(), options, program: None, coder })
        };
        plan.partitions().enumerate().map(call).collect()
    }

    /// What compresses an operation, if something does.
    fn coder(&self, operation: usize, elements: usize) -> Result<Option<Coder>, CommError> {
        let Some(compression) = &self.compression else { return Ok(None) };
        let workers = self.peers.workers();
        let piece = Piece { elements, operation, rank: workers.rank() };
        let gathered = match &self.peers {
            Peers::AllToAll(_) => workers.world_size(),
            Peers::Servers(_) => 0,
        };
        Coder::new(workers, compression, &piece, gathered).map(Some)
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
            (Peers::AllToAll(workers), _) => match (&call.coder, &call.program) {
                (None, None) => workers.start_all_reduce(gradient, Reduction::Sum, &options).map(Travelling::Sum),
                (None, Some(program)) => {
                    workers.start_program_in_place(program, gradient, Reduction::Sum, &options).map(Travelling::Sum)
                }
                (Some(coder), _) => coder.start(workers, gradient, &options).map(Travelling::Gathering),
            },
            (Peers::Servers(server), None) => match &call.coder {
                None => server.start_push_pull(call.shard, gradient, &options).map(Travelling::Sum),
                Some(coder) => coder.start_push(server, call.shard, gradient, &options).map(Travelling::Pushing),
            },
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
