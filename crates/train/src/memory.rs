//! How much memory a run takes, and whether there is that much.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_compress::{Compression, Piece};
use paceline_plan::MemoryNeed;

use crate::backend::{Model, ModelName};
use crate::data::Data;
use crate::options::TrainOptions;

/// What a training on this machine takes, in bytes per worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The model's parameters and buffers.
    pub parameters: u64,
    /// The arena in which gradients are collected and travel.
    pub gradients: u64,
    /// What the optimiser remembers of each parameter.
    pub optimizer: u64,
    /// What autograd keeps from forward for backward: activations, and a copy of each parameter.
    pub activations: u64,
    /// What backward needs besides at the worst moment: gradients of the largest tensors.
    pub backward: u64,
    /// Training and test samples.
    pub data: u64,
    /// The program itself, its threads and links.
    pub process: u64,
    /// Workers on this machine.
    pub workers: usize,
    /// All parameter servers on this machine together: their partitions, and the processes of those that have one.
    pub servers: u64,
}

/// What a worker has allocated before it has a model; measured: 40 to 50 MB.
const PROCESS_BYTES: u64 = 48 << 20;
/// Copies of the largest tensor's gradient that candle's backward holds at once: the product, its transpose, the sum that
/// it is added to, and the result.
const GRADIENT_COPIES: u64 = 4;
/// Tensors as large as the largest activation that a step of candle's backward makes besides: for the average of pixels
/// and the positive part, the spread gradient, the mask, products and sums.
const BACKWARD_COPIES: usize = 10;

/// The estimate for `workers` workers on this machine that compute `local_batch` samples each in a pass.
/// `optimizer_copies` is how many numbers the optimiser keeps for each parameter: 1 with momentum, 2 in AdamW.
pub fn memory_estimate(
    model: ModelName,
    local_batch: usize,
    optimizer_copies: usize,
    workers: usize,
) -> MemoryEstimate {
    let sizes = model.of_its_form();
    let elements: Vec<u64> = sizes.parameters().iter().map(|spec| spec.info.elements() as u64).collect();
    let buffers: u64 = sizes.buffers().iter().map(|spec| spec.info.elements() as u64).sum();
    let parameters: u64 = elements.iter().sum();
    let of_sample = sizes.activations();
    let of_batch = |elements: usize| (elements as u64).saturating_mul(local_batch as u64);
    let largest = elements.into_iter().max().unwrap_or(0);
    let bytes = |elements: u64| elements.saturating_mul(size_of::<f32>() as u64);
    MemoryEstimate {
        parameters: bytes(parameters + buffers),
        gradients: bytes(parameters),
        optimizer: bytes(parameters).saturating_mul(optimizer_copies as u64),
        activations: bytes(of_batch(of_sample.kept).saturating_add(parameters)),
        backward: bytes((GRADIENT_COPIES * largest).saturating_add(of_batch(BACKWARD_COPIES * of_sample.largest))),
        data: 0,
        process: PROCESS_BYTES,
        workers,
        servers: 0,
    }
}

/// What a worker takes that trains the model by itself, with `data_bytes` of samples: the estimate as a line over the local
/// batch. What is available is not said.
pub fn memory_need(model: ModelName, optimizer_copies: usize, data_bytes: u64) -> MemoryNeed {
    let of_batch = |local_batch| memory_estimate(model, local_batch, optimizer_copies, 1).worker_bytes();
    let fixed = of_batch(0);
    MemoryNeed {
        fixed_bytes: fixed.saturating_add(data_bytes),
        bytes_per_sample: of_batch(1).saturating_sub(fixed),
        available_bytes: None,
    }
}

/// The most bytes that this process has held so far. None if the system does not say.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "VmHWM:").map(|kibibytes| kibibytes * 1024)
}

/// The estimate for `workers` workers on this machine that replay a profile of so many parameters, or train a model of
/// which nothing else is known: with `optimizer_copies`, parameters and what autograd copies of them count, too;
/// activations do not. None: a replay, which has neither.
pub fn memory_of_parameters(parameters: u64, optimizer_copies: Option<usize>, workers: usize) -> MemoryEstimate {
    let bytes = parameters.saturating_mul(size_of::<f32>() as u64);
    let trained = if optimizer_copies.is_some() { bytes } else { 0 };
    MemoryEstimate {
        parameters: trained,
        gradients: bytes,
        optimizer: bytes.saturating_mul(optimizer_copies.unwrap_or(0) as u64),
        activations: trained,
        backward: 0,
        data: 0,
        process: PROCESS_BYTES,
        workers,
        servers: 0,
    }
}

/// The estimate for a training of which `workers` of the `world_size` run here, and about as many on every other host.
/// `own_parameters`: of a model of the caller's own, which is all that is known of it.
pub fn training_memory(
    options: &TrainOptions,
    data: &Data,
    own_parameters: Option<u64>,
    world_size: usize,
    workers: usize,
) -> MemoryEstimate {
    // A batch holds at most all samples.
    let global_batch = options.global_batch(world_size).min(data.training.len());
    let copies = options.optimizer.state_copies();
    let model = match own_parameters {
        Some(parameters) => memory_of_parameters(parameters, Some(copies), workers),
        None => memory_estimate(options.model, global_batch.div_ceil(world_size.max(1)), copies, workers),
    };
    let estimate = MemoryEstimate { data: data.training.bytes() + data.test.bytes(), ..model };
    let hosts = world_size.div_ceil(workers.max(1)).max(1);
    let strategy = options.parsed_strategy().ok();
    let compression = strategy.as_ref().and_then(|strategy| options.compression(strategy).ok()?);
    let is_open = world_size > 1 && strategy.as_ref().is_some_and(|strategy| strategy.arch_is_open());
    let servers = strategy.and_then(|strategy| strategy.servers(world_size, hosts));
    let shards = servers.map(|servers| {
        let here = servers.shards.div_ceil(hosts);
        (ShardsHere { here, all: servers.shards, dedicated: servers.dedicated }, servers.apply)
    });
    // One shard of each host, of which the first may be the only one that serves.
    let shards = shards.or(is_open.then_some((ShardsHere { here: 1, all: 1, dedicated: false }, false)));
    let estimate = shards.map_or(estimate, |(shards, apply)| estimate.with_servers(shards, apply));
    let shards = shards.map(|(shards, _)| shards);
    compression.map_or(estimate, |compression| estimate.with_compression(&compression, world_size, shards))
}

/// The shards of a parameter server on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardsHere {
    /// How many live here.
    pub here: usize,
    /// Of how many, which hold about as much each.
    pub all: usize,
    /// They are processes of their own, rather than threads of a worker.
    pub dedicated: bool,
}

impl ShardsHere {
    /// Of so much that all shards have together.
    fn part_of(self, all: u64) -> u64 {
        all.div_ceil(self.all.max(1) as u64).saturating_mul(self.here as u64).min(all)
    }
}

impl MemoryEstimate {
    /// Bytes that one worker takes.
    pub fn worker_bytes(&self) -> u64 {
        self.parts().into_iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that everybody on this machine takes.
    pub fn total_bytes(&self) -> u64 {
        self.worker_bytes().saturating_mul(self.workers as u64).saturating_add(self.servers)
    }

    /// With shards of a parameter server on this machine: a sum for each element, so one set of gradients for all shards
    /// together; and if they `apply` the optimiser, its parameter and the optimiser's state. Then a worker has the
    /// parameters that come back instead of that state.
    pub fn with_servers(self, shards: ShardsHere, apply: bool) -> MemoryEstimate {
        let (optimizer, elements) = match apply {
            true => (self.gradients, self.gradients.saturating_mul(2).saturating_add(self.optimizer)),
            false => (self.optimizer, self.gradients),
        };
        let part = shards.part_of(elements);
        let processes = if shards.dedicated { shards.here as u64 } else { 0 };
        MemoryEstimate { optimizer, servers: part.saturating_add(PROCESS_BYTES * processes), ..self }
    }

    /// With gradients that are compressed: the bytes of this worker, and those of all `workers`, here or at the shards. What the
    /// compressor keeps besides, nobody but itself knows.
    pub fn with_compression(
        self,
        compression: &Compression,
        workers: usize,
        shards: Option<ShardsHere>,
    ) -> MemoryEstimate {
        let elements = usize::try_from(self.gradients / size_of::<f32>() as u64).unwrap_or(usize::MAX);
        let bytes = compression.compressor(&Piece { elements, operation: 0, rank: 0 }).bytes() as u64;
        let (own, all) = (bytes, bytes.saturating_mul(workers as u64));
        let (here, served) = shards.map_or((all, 0), |shards| (0, shards.part_of(all)));
        let gradients = self.gradients.saturating_add(own).saturating_add(here);
        MemoryEstimate { gradients, servers: self.servers.saturating_add(served), ..self }
    }

    fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimiser", self.optimizer),
            ("activations", self.activations),
            ("backward", self.backward),
            ("data", self.data),
            ("process", self.process),
        ]
    }

    /// Is there as much as the run takes?
    ///
    /// # Errors
    /// [`MemoryError`], if `available_bytes` are less.
    pub fn check(&self, model: &str, available_bytes: u64) -> Result<(), MemoryError> {
        if self.total_bytes() <= available_bytes {
            return Ok(());
        }
        Err(MemoryError { model: model.to_owned(), estimate: *self, available_bytes })
    }
}

/// A run that would not fit in memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{model} would not fit in memory: {workers} workers take about {each} each ({parts}){servers}, {total} together, and \
     {available} are available; use fewer workers{smaller}",
    workers = estimate.workers,
    each = size(estimate.worker_bytes()),
    parts = parts(estimate),
    total = size(estimate.total_bytes()),
    available = size(*available_bytes),
    servers = servers(estimate),
    smaller = smaller(estimate)
)]
pub struct MemoryError {
    /// What should be trained or replayed.
    pub model: String,
    /// What that would take.
    pub estimate: MemoryEstimate,
    /// What there is.
    pub available_bytes: u64,
}

fn parts(estimate: &MemoryEstimate) -> String {
    let parts = estimate.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
    parts.map(|(name, bytes)| format!("{name} {}", size(bytes))).collect::<Vec<_>>().join(", ")
}

fn servers(estimate: &MemoryEstimate) -> String {
    if estimate.servers > 0 { format!(", parameter servers {}", size(estimate.servers)) } else { String::new() }
}

/// A replay holds nothing that depends on its batch.
fn smaller(estimate: &MemoryEstimate) -> &'static str {
    if estimate.parameters > 0 { ", a smaller batch, or --compute replay" } else { "" }
}

fn size(bytes: u64) -> String {
    let gigabytes = bytes as f64 / 1e9;
    if gigabytes < 1.0 { format!("{:.0} MB", gigabytes * 1e3) } else { format!("{gigabytes:.1} GB") }
}

/// Bytes that this process and its children may still take: of the machine, or of the control group (a container's limit)
/// where that is less. None if the system does not say.
pub fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
    let machine = machine.map(|kibibytes| kibibytes * 1024);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_limit(line, Path::new("/sys/fs/cgroup")));
    machine.into_iter().chain(limits).min()
}

/// The number behind `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// What is left in a control group, given its line of `/proc/self/cgroup`, and in those around it. Version 2 has one
/// hierarchy (`0::/path`), version 1 one of its own for memory (`5:memory:/path`). In a container the path may be that of
/// the host, and the group's own files then lie at the root.
fn group_limit(line: &str, root: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, [limit, used, reclaimable]) = match controllers {
        "" => (root.to_path_buf(), ["memory.max", "memory.current", "inactive_file "]),
        names if names.split(',').any(|name| name == "memory") => {
            (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
        }
        _ => return None,
    };
    let left = |directory: PathBuf| {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        // "max" is no number: no limit.
        let limit: u64 = read(limit)?.trim().parse().ok()?;
        let used: u64 = read(used)?.trim().parse().ok()?;
        // Pages of files give way.
        let reclaimable = read("memory.stat").and_then(|stat| field(&stat, reclaimable)).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
    };
    let relative = Path::new(path.trim_start_matches('/'));
    relative.ancestors().filter_map(|group| left(root.join(group))).min()
}

#[cfg(test)]
mod tests {
    use paceline_compress::{Compressor, Compressors};
    use paceline_strategy::{Aspect, Method, Registry};

    use super::*;

    /// Makes a tenth of the bytes, so many.
    struct Tenth(usize);

    impl Compressor for Tenth {
        fn bytes(&self) -> usize {
            self.0
        }

        fn compress(&mut self, _gradient: &[f32], _bytes: &mut [u8]) {}

        fn add_decompressed(&self, _bytes: &[u8], _sum: &mut [f32]) {}
    }

    fn tenth() -> Compression {
        let (mut grammar, mut compressors) = (Registry::built_in(), Compressors::default());
        let method = Method {
            aspect: Aspect::Compress,
            name: "tenth",
            parameters: &[],
            sentence: "a tenth of the bytes",
            lossless: false,
            available: true,
        };
        compressors.add(&mut grammar, method, |_, piece| Box::new(Tenth(4 * piece.elements / 10)));
        compressors.of(&grammar.parse("compress=tenth").unwrap()).unwrap().expect("it was added")
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_the_estimate() {
        let estimate = memory_estimate(ModelName::BertLarge, 8, 2, 4);
        // Parameters, their copy, gradients and two numbers of AdamW: five times 1.34 GB.
        assert!(estimate.worker_bytes() > 5 * 1_344_000_000 && estimate.worker_bytes() < 20_000_000_000);
        assert_eq!(estimate.total_bytes(), 4 * estimate.worker_bytes());
        assert_eq!(estimate.check("bert-large", estimate.total_bytes()), Ok(()));
        let error = estimate.check("bert-large", 16_000_000_000).unwrap_err().to_string();
        for part in ["bert-large would not fit", "4 workers", "parameters 1.3 GB", "16.0 GB are available", "replay"] {
            assert!(error.contains(part), "`{error}` does not say {part}");
        }
        // No overflow, whatever is asked for.
        assert!(memory_estimate(ModelName::Cnn, usize::MAX, 2, usize::MAX).check("cnn", u64::MAX - 1).is_err());
    }

    #[test]
    fn the_page_has_the_formula() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
        let words: Vec<String> = fs::read_to_string(page).unwrap().split_whitespace().map(str::to_owned).collect();
        let backward =
            format!("4 · ({GRADIENT_COPIES} · largest tensor + {BACKWARD_COPIES} · batch · largest activation)");
        let process = format!("{} MiB for itself", PROCESS_BYTES >> 20);
        for formula in [backward, process] {
            assert!(words.join(" ").contains(&formula), "docs/models.md does not say `{formula}`");
        }
    }

    /// 32 replays of BERT-Large hold 32 times its gradients, whatever the batch, and servers one set of them more.
    #[test]
    fn replays_and_servers_take_memory_too() {
        const GRADIENTS: u64 = 4 * 336_232_258;
        let replay = memory_of_parameters(336_232_258, None, 32);
        assert_eq!(replay.total_bytes(), 32 * (GRADIENTS + PROCESS_BYTES));
        let both = ShardsHere { here: 2, all: 2, dedicated: true };
        let served = replay.with_servers(both, false);
        assert_eq!(served.total_bytes(), replay.total_bytes() + GRADIENTS + 2 * PROCESS_BYTES);
        let error = served.check("bert-large", 16_000_000_000).unwrap_err().to_string();
        assert!(error.contains("32 workers take about 1.4 GB each (gradients 1.3 GB, process 50 MB)"), "{error}");
        assert!(error.contains("parameter servers 1.4 GB") && error.ends_with("use fewer workers"), "{error}");
        // Compressed to a tenth: a worker's own bytes, and everybody's once at the shards, or at each worker.
        let compression = tenth();
        let served = replay.with_servers(both, false).with_compression(&compression, 32, Some(both));
        assert_eq!(served.total_bytes(), replay.with_servers(both, false).total_bytes() + 64 * (GRADIENTS / 10));
        let gathered = replay.with_compression(&compression, 32, None);
        assert_eq!(gathered.total_bytes(), replay.total_bytes() + 32 * 33 * (GRADIENTS / 10));
        // A model of one's own: parameters, their copy, gradients and a velocity at least.
        assert_eq!(memory_of_parameters(1000, Some(1), 1).worker_bytes(), 4 * 4000 + PROCESS_BYTES);
    }

    /// Eight workers, four of them here: what is on other hosts takes nothing of this one's memory.
    #[test]
    fn a_training_is_estimated_by_what_is_on_this_host() {
        let options = TrainOptions { strategy: "wfbp-ps".into(), ..TrainOptions::default() };
        let data = Data::load(&options.data, options.model.form()).unwrap();
        let here = training_memory(&options, &data, None, 8, 4);
        let all = training_memory(&options, &data, None, 8, 8);
        assert_eq!((here.workers, all.workers), (4, 8));
        assert_eq!(here.worker_bytes(), all.worker_bytes());
        assert!(here.data > 0 && all.servers > 0 && here.servers.abs_diff(all.servers / 2) <= 1, "{here:?} {all:?}");
        // Of the shards that are met, one alone may serve.
        let open = TrainOptions { strategy: "auto".into(), ..TrainOptions::default() };
        assert_eq!(training_memory(&open, &data, None, 8, 4).servers, all.servers);
        // Of a model of the caller's own, its parameters are known.
        let own = training_memory(&options, &data, Some(1_000_000), 8, 4);
        assert_eq!((own.gradients, own.parameters, own.workers, own.data), (4_000_000, 4_000_000, 4, here.data));
    }

    #[test]
    fn memory_is_a_line_over_the_local_batch() {
        for model in ModelName::ALL {
            let need = memory_need(model, 2, 1000);
            for batch in [1, 7, 64] {
                assert_eq!(
                    need.worker_bytes(batch),
                    memory_estimate(model, batch, 2, 1).worker_bytes() + 1000,
                    "{model}"
                );
            }
            let available = MemoryNeed { available_bytes: Some(16 << 30), ..need };
            let largest = available.largest_local_batch().unwrap() as usize;
            assert!(memory_estimate(model, largest, 2, 1).worker_bytes() + 1000 <= 16 << 30, "{model}");
            assert!(memory_estimate(model, largest + 1, 2, 1).worker_bytes() + 1000 > 16 << 30, "{model}");
        }
        assert!(peak_memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn servers_take_memory_too() {
        let estimate = memory_estimate(ModelName::Mlp, 8, 2, 2);
        let all_parameters = estimate.gradients;
        let beside = ShardsHere { here: 2, all: 2, dedicated: false };
        let aggregate = estimate.with_servers(beside, false);
        assert_eq!((aggregate.servers, aggregate.optimizer), (all_parameters, 2 * all_parameters));
        // Sum, parameter and two moments on the servers; on a worker the parameters that come back.
        let apply = estimate.with_servers(beside, true);
        assert_eq!((apply.servers, apply.optimizer), (4 * all_parameters, all_parameters));
        assert_eq!(aggregate.total_bytes(), estimate.total_bytes() + aggregate.servers);
        // One of four shards, as a process.
        let one = estimate.with_servers(ShardsHere { here: 1, all: 4, dedicated: true }, false);
        assert_eq!(one.servers, all_parameters.div_ceil(4) + PROCESS_BYTES);
    }

    #[test]
    fn the_limit_of_a_container_counts() {
        let root = std::env::temp_dir().join(format!("paceline-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, text) in [("max", "max\n"), ("current", "900\n")] {
            write(&format!("a/b/memory.{name}"), text);
        }
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 5\ninactive_file 200\n");
        write("memory/memory.limit_in_bytes", "500\n");
        write("memory/memory.usage_in_bytes", "50\n");
        // The group has no limit, the one around it has 1000, of which 500 are really in use.
        assert_eq!(group_limit("0::/a/b", &root), Some(500));
        assert_eq!(group_limit("0::/", &root), None);
        assert_eq!(group_limit("5:memory:/not/here", &root), Some(450));
        assert_eq!(group_limit("3:cpu:/a", &root), None);
        assert_eq!(group_limit("nonsense", &root), None);
        let _ = fs::remove_dir_all(&root);
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
