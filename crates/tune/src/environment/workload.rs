//! What jobs call, iteration by iteration.

use paceline_plan::CollectiveKind;

use super::model::Call;
use crate::random::Random;
use crate::state::Parallelism;

/// The calls of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// The calls, in their order; each is made [`Call::times`] times.
    pub calls: Vec<Call>,
}

/// There is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no workload; there is: llm-3d, data-parallel")]
pub struct UnknownWorkload {
    /// The name given.
    pub name: String,
}

/// Calls of a kind in an iteration of the small one, at most.
const SMALL_TIMES: u32 = 4;

/// A large language model on workers in three dimensions: tensor, pipeline and data parallelism, the last with parameters
/// in shards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Hosts.
    pub hosts: u32,
    /// Workers of each.
    pub workers_per_host: u32,
    /// Layers of the model.
    pub layers: u32,
    /// The width of a layer: 12·width² parameters each.
    pub width: u64,
    /// Tokens of a sample.
    pub sequence: u64,
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of an iteration.
    pub micro_batches: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// All sizes are divided by this, for small machines.
    pub scale: u64,
}

impl Mix {
    /// A model of 13 billion parameters on a cluster of this size: tensor parallelism within hosts, up to 8 workers; a
    /// pipeline of up to 4 stages; data parallelism over the rest.
    pub fn on(hosts: usize, workers_per_host: usize) -> Mix {
        let hosts = (hosts as u32).max(1);
        Mix {
            hosts,
            workers_per_host: (workers_per_host as u32).max(1),
            layers: 40,
            width: 5120,
            sequence: 2048,
            micro_batch: 1,
            micro_batches: 8,
            stages: if hosts.is_multiple_of(4) {
                4
            } else if hosts.is_multiple_of(2) {
                2
            } else {
                1
            },
            scale: 1,
        }
    }

    /// The calls. With 13 billion parameters in halves on 8 hosts of 8 workers: per layer and micro-batch two
    /// tensor-parallel all-reduces of 21 MB forward and two backward, a pipeline's activations of 21 MB at each boundary,
    /// all-gathers and reduce-scatters of a stage's shards of 100 MB to 1 GB, and one data-parallel all-reduce of gradients
    /// in full precision.
    pub fn workload(&self) -> Workload {
        let halves = 2;
        let (tensor, data) = self.ways();
        let hosts_of_data = (self.hosts / self.stages).max(1);
        let activations = halves * u64::from(self.micro_batch) * self.sequence * self.width / self.scale;
        let layers_of_stage = (self.layers / self.stages).max(1);
        let parameters = 12 * self.width * self.width;
        let shard_of_layer = halves * parameters / u64::from(tensor) / self.scale;
        let gradients = 4 * parameters * u64::from(layers_of_stage) / u64::from(tensor) / self.scale;
        // A transformer computes about two operations per parameter and token.
        let (model_intensity, local_batch) = (2.0 * self.sequence as f64, self.micro_batch * self.micro_batches);
        let call = |collective, bytes: u64, ranks, hosts, parallelism, times| Call {
            collective,
            bytes: bytes.max(1),
            ranks,
            hosts,
            parallelism,
            is_pipelined_layer: !matches!(parallelism, Parallelism::Data),
            is_fused_call: matches!(parallelism, Parallelism::Data),
            is_ps_deployment: false,
            model_intensity,
            local_batch,
            times,
        };
        let mut calls = Vec::new();
        if tensor > 1 {
            let times = 4 * layers_of_stage * self.micro_batches;
            calls.push(call(CollectiveKind::AllReduce, activations, tensor, 1, Parallelism::Tensor, times));
            // Norms and losses: small ones among them.
            calls.push(call(CollectiveKind::AllReduce, activations / 64, tensor, 1, Parallelism::Tensor, times / 4));
        }
        if self.stages > 1 {
            let times = 2 * self.micro_batches;
            calls.push(call(CollectiveKind::SendReceive, activations, 2, 2, Parallelism::Pipeline, times));
        }
        if data > 1 {
            for (collective, times) in [(CollectiveKind::AllGather, 2), (CollectiveKind::ReduceScatter, 1)] {
                let bytes = 4 * shard_of_layer;
                calls.push(call(
                    collective,
                    bytes,
                    data,
                    hosts_of_data,
                    Parallelism::Sharded,
                    times * layers_of_stage / 4,
                ));
            }
            calls.push(call(CollectiveKind::AllReduce, gradients, data, hosts_of_data, Parallelism::Data, 1));
        }
        calls.retain(|call| call.times > 0);
        Workload { name: LLM.to_owned(), calls }
    }

    /// A small one of which a tuner makes every kind of call often: 8 layers and 2 micro-batches, all messages a sixteenth, and at most
    /// four calls of a kind in an iteration. Every kind comes 300 times and more in 400 iterations, and few come much more often.
    pub fn small_workload(hosts: usize, workers_per_host: usize) -> Workload {
        let mix = Mix { layers: 8, micro_batches: 2, scale: 16, ..Mix::on(hosts, workers_per_host) };
        let mut workload = mix.workload();
        workload.calls.iter_mut().for_each(|call| call.times = call.times.min(SMALL_TIMES));
        workload
    }

    /// The kinds of parallelism that a model on this cluster does without, and so their calls; and why.
    pub fn left_out(&self) -> Vec<(Parallelism, &'static str)> {
        let (tensor, data) = self.ways();
        let no_rest = "the stages of the pipeline and the parts of layers take all workers";
        let kinds = [
            (tensor, Parallelism::Tensor, "a layer is divided within a host, and each host has one worker"),
            (self.stages, Parallelism::Pipeline, "it takes hosts in twos or fours, and their number is odd"),
            (data, Parallelism::Sharded, no_rest),
            (data, Parallelism::Data, no_rest),
        ];
        kinds.into_iter().filter(|(ways, ..)| *ways < 2).map(|(_, kind, why)| (kind, why)).collect()
    }

    /// Workers among which a layer is divided, and among which the batch is.
    fn ways(&self) -> (u32, u32) {
        let (workers, tensor) = (self.hosts * self.workers_per_host, self.workers_per_host.min(8));
        (tensor, (workers / (tensor * self.stages)).max(1))
    }
}

/// The workload of a [`Mix`].
const LLM: &str = "llm-3d";

impl Workload {
    /// The workload of a name, on a cluster of this size.
    ///
    /// # Errors
    /// There is none of the name.
    pub fn named(name: &str, hosts: usize, workers_per_host: usize) -> Result<Workload, UnknownWorkload> {
        match name {
            LLM => Ok(Mix::on(hosts, workers_per_host).workload()),
            "data-parallel" => Ok(Workload::data_parallel(hosts as u32, (hosts * workers_per_host) as u32)),
            _ => Err(UnknownWorkload { name: name.to_owned() }),
        }
    }

    /// The kinds of parallelism that it does without on a cluster of this size, and so their calls; and why.
    pub fn left_out(&self, hosts: usize, workers_per_host: usize) -> Vec<(Parallelism, &'static str)> {
        if self.name == LLM { Mix::on(hosts, workers_per_host).left_out() } else { Vec::new() }
    }

    /// Data-parallel training: gradients of every size from 16 KiB to 64 MiB, which set off while backward goes on: tensors by
    /// themselves, and from 4 MiB on buckets of several.
    pub fn data_parallel(hosts: u32, workers: u32) -> Workload {
        let call = |size: u32| Call {
            collective: CollectiveKind::AllReduce,
            bytes: 1 << size,
            ranks: workers,
            hosts,
            parallelism: Parallelism::Data,
            is_pipelined_layer: true,
            is_fused_call: size >= 22,
            is_ps_deployment: false,
            model_intensity: 249.0,
            local_batch: 8,
            times: 1,
        };
        Workload { name: "data-parallel".to_owned(), calls: (14..=26).step_by(2).map(call).collect() }
    }

    /// One iteration: each call with its repetitions, those of different kinds mixed by chance, as they overlap in a job.
    pub fn iteration(&self, random: &mut Random) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        for call in &self.calls {
            calls.extend(std::iter::repeat_n(*call, call.times as usize));
        }
        for last in (1..calls.len()).rev() {
            calls.swap(last, random.below(last + 1));
        }
        calls
    }
}
