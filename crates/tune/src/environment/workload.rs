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

/// Tokens of samples, and how many of eight micro-batches have samples so long: whoever trains on texts as they are puts those of about
/// one length together, and so a collective has calls of several sizes in one iteration.
const SEQUENCES: [(u64, u32); 3] = [(512, 2), (2048, 4), (4096, 2)];

/// Parameters of a layer's attention and of its two matrices behind it, in squares of its width: each is gathered and scattered by itself.
const SHARDS: [u64; 2] = [4, 8];

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

    /// The calls. With 13 billion parameters in halves on 8 hosts of 8 workers: per layer and micro-batch two tensor-parallel all-reduces
    /// forward and two backward and, at each boundary, a pipeline's activations, of 5, 21 or 42 MB by how long its samples are;
    /// all-gathers and reduce-scatters of four layers' shards, 105 MB of attention and 210 MB of what is behind it; and one
    /// data-parallel all-reduce of 3 GB of gradients in full precision.
    pub fn workload(&self) -> Workload {
        let (tensor, data) = self.ways();
        let mut calls = Vec::new();
        for (tokens, times) in self.micro_batches_by_length() {
            let bytes = self.activations(tokens);
            if tensor > 1 {
                let times = 4 * self.layers_of_stage() * times;
                calls.push(self.call(CollectiveKind::AllReduce, bytes, (tensor, 1), Parallelism::Tensor, times));
            }
            if self.stages > 1 {
                calls.push(self.call(CollectiveKind::SendReceive, bytes, (2, 2), Parallelism::Pipeline, 2 * times));
            }
        }
        if tensor > 1 {
            // Norms and losses: small ones among them.
            let (bytes, times) =
                (self.activations(self.mean_tokens()) / 64, self.layers_of_stage() * self.micro_batches);
            calls.push(self.call(CollectiveKind::AllReduce, bytes, (tensor, 1), Parallelism::Tensor, times));
        }
        if data > 1 {
            let hosts = (self.hosts / self.stages).max(1);
            calls.extend(self.calls_for_shards(tensor, (data, hosts)));
            let parameters = SHARDS.iter().sum::<u64>() * self.width * self.width;
            let gradients = 4 * parameters * u64::from(self.layers_of_stage()) / u64::from(tensor) / self.scale;
            calls.push(self.call(CollectiveKind::AllReduce, gradients, (data, hosts), Parallelism::Data, 1));
        }
        Workload { name: LLM.to_owned(), calls }
    }

    /// Parameters of four layers at once, in halves: gathered forward and backward, and their gradients scattered.
    fn calls_for_shards(&self, tensor: u32, members: (u32, u32)) -> impl Iterator<Item = Call> {
        let kinds = [(CollectiveKind::AllGather, 2), (CollectiveKind::ReduceScatter, 1)];
        SHARDS.into_iter().flat_map(move |squares| {
            let bytes = 4 * 2 * squares * self.width * self.width / u64::from(tensor) / self.scale;
            kinds.map(|(collective, times)| {
                let times = (times * self.layers_of_stage()).div_ceil(4);
                self.call(collective, bytes, members, Parallelism::Sharded, times)
            })
        })
    }

    /// Calls among so many ranks on so many hosts.
    fn call(
        &self,
        collective: CollectiveKind,
        bytes: u64,
        (ranks, hosts): (u32, u32),
        parallelism: Parallelism,
        times: u32,
    ) -> Call {
        Call {
            collective,
            bytes: bytes.max(1),
            ranks,
            hosts,
            parallelism,
            is_pipelined_layer: !matches!(parallelism, Parallelism::Data),
            is_fused_call: matches!(parallelism, Parallelism::Data),
            is_ps_deployment: false,
            // A transformer computes about two operations per parameter and token.
            model_intensity: 2.0 * self.mean_tokens() as f64,
            local_batch: self.micro_batch * self.micro_batches,
            times,
        }
    }

    /// What a layer of a micro-batch hands on, in halves.
    fn activations(&self, tokens: u64) -> u64 {
        2 * u64::from(self.micro_batch) * tokens * self.width / self.scale
    }

    fn layers_of_stage(&self) -> u32 {
        (self.layers / self.stages).max(1)
    }

    /// Tokens of a sample, and how many micro-batches of an iteration are of such samples: one at least.
    fn micro_batches_by_length(&self) -> [(u64, u32); 3] {
        let eighths = SEQUENCES.iter().map(|(_, eighths)| eighths).sum::<u32>();
        SEQUENCES.map(|(tokens, share)| (tokens, (share * self.micro_batches).div_ceil(eighths)))
    }

    fn mean_tokens(&self) -> u64 {
        let all = self.micro_batches_by_length();
        let tokens: u64 = all.iter().map(|(tokens, times)| tokens * u64::from(*times)).sum();
        tokens / all.iter().map(|(_, times)| u64::from(*times)).sum::<u64>().max(1)
    }

    /// A small one of which a tuner makes every kind of call often: 8 layers and 4 micro-batches, all messages a sixteenth, and at most
    /// four calls of a kind in an iteration. Every kind comes 300 times and more in 400 iterations, and few come much more often.
    pub fn small_workload(hosts: usize, workers_per_host: usize) -> Workload {
        let mix = Mix { layers: 8, micro_batches: 4, scale: 16, ..Mix::on(hosts, workers_per_host) };
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
