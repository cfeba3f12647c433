//! What the tests of training share.
#![allow(dead_code)] // Each test program uses some of it.

pub mod emulated;
pub mod fake_backend;
pub mod lossless;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, process, thread};

use paceline_comm::{Communicator, ThreadsConfig};
use paceline_server::{ParameterServer, Roles, ServeOptions, serve};
use paceline_train::{
    Backend, Batch, BatchSize, CandleBackend, Cnn, Data, DataSource, Dataset, GradientSink, Images, Mlp, ModelName,
    Normalise, OpenGate, OptimizerSettings, Peers, SgdSettings, SharedSink, SinkClosed, TrainOptions, serve_options,
};
use safetensors::SafeTensors;

/// Worlds of several tests at once would only wait for the same few cores. One at a time, as long as the guard lives.
fn one_world() -> MutexGuard<'static, ()> {
    static ONE_WORLD: Mutex<()> = Mutex::new(());
    ONE_WORLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs `rank` on each of the ranks of a new world; the results by rank.
pub fn on_ranks<R: Send>(world_size: usize, rank: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let _world = one_world();
    let communicators = Communicator::threads(world_size).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        // Each thread drops its own: a communicator that leaves waits a little for the others to leave.
        let ranks = communicators.into_iter().map(|communicator| scope.spawn(move || rank(&communicator)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs `worker` on each of so many workers, with `shards` shards that are threads of this process; none: all-to-all.
pub fn on_workers<R: Send>(workers: usize, shards: usize, worker: impl Fn(&Peers) -> R + Sync) -> Vec<R> {
    if shards == 0 {
        return on_ranks(workers, |world| worker(&Peers::from(world)));
    }
    on_hosts(&ThreadsConfig::default(), workers, shards, worker)
}

/// The same with at least one shard, on the hosts and links that the configuration says.
pub fn on_hosts<R: Send>(
    config: &ThreadsConfig,
    workers: usize,
    shards: usize,
    worker: impl Fn(&Peers) -> R + Sync,
) -> Vec<R> {
    on_served(config, &serve_options(), workers, shards, worker)
}

/// The same with shards that serve like this.
pub fn on_served<R: Send>(
    config: &ThreadsConfig,
    serving: &ServeOptions,
    workers: usize,
    shards: usize,
    worker: impl Fn(&Peers) -> R + Sync,
) -> Vec<R> {
    let _world = one_world();
    let roles = Roles::new(workers, shards).unwrap();
    let mut ranks = Communicator::threads_with(roles.world_size(), config).unwrap();
    let servers = ranks.split_off(workers);
    thread::scope(|scope| {
        let worker = &worker;
        for world in servers {
            scope.spawn(move || serve(&world, roles, serving).unwrap());
        }
        let of_worker = |world: Communicator| {
            scope.spawn(move || {
                let server = Arc::new(ParameterServer::connect(&world, roles).unwrap());
                let result = worker(&Peers::from(&server));
                server.stop().unwrap();
                result
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(of_worker).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The first images of the built-in sample.
pub fn sample(training: usize, test: usize) -> Data {
    let first = |dataset: Dataset, count: usize| match dataset {
        Dataset::Images(images) => Dataset::Images(Images {
            pixels: images.pixels[..count * images.features()].to_vec(),
            labels: images.labels[..count].to_vec(),
            ..images
        }),
        other => panic!("the sample is {other:?}"),
    };
    let data = Data::load(&DataSource::Sample, ModelName::Cnn.form()).unwrap();
    Data { training: first(data.training, training), test: first(data.test, test) }
}

/// The tensors of a dump, by name.
pub fn parameters(dump: &[u8]) -> HashMap<String, Vec<f32>> {
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let tensors = SafeTensors::deserialize(dump).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
}

/// Collects the gradients of one batch.
pub struct Gradients(Vec<Vec<f32>>);

impl Gradients {
    /// By parameter.
    pub fn of(backend: &mut dyn Backend, batch: &Batch) -> Vec<Vec<f32>> {
        let gradients = Arc::new(Mutex::new(Gradients(vec![Vec::new(); backend.parameters().len()])));
        let sink: SharedSink = gradients.clone();
        backend.gradients(batch, &mut OpenGate, &sink).unwrap();
        let mut gradients = gradients.lock().unwrap();
        std::mem::take(&mut gradients.0)
    }
}

impl GradientSink for Gradients {
    fn ready(&mut self, parameter: usize, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        self.0[parameter] = gradient.expect("every parameter has a gradient").to_vec();
        Ok(())
    }
}

/// A new directory, removed when the test ends.
pub struct Directory(PathBuf);

impl Directory {
    /// Nobody else's.
    pub fn new() -> Directory {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("paceline-train-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it, whose folder exists.
    pub fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// SGD without Nesterov's momentum.
pub fn sgd(momentum: f32, weight_decay: f32) -> OptimizerSettings {
    OptimizerSettings::Sgd(SgdSettings { momentum, nesterov: false, weight_decay })
}

/// Twenty small steps.
pub fn options() -> TrainOptions {
    TrainOptions {
        iterations: Some(20),
        batch: BatchSize::Global(12),
        optimizer: sgd(0.5, 0.01),
        learning_rate: 0.02,
        ..TrainOptions::default()
    }
}

/// The model of a rank. Only rank 0's values must count, so the others begin with different ones.
pub fn backend(model: ModelName, rank: usize) -> Box<dyn Backend> {
    let seed = rank as u64 + 1;
    let normalise = Normalise { mean: 0.3 + rank as f32, deviation: 0.4 };
    match model {
        ModelName::Cnn => Box::new(CandleBackend::new(Cnn::new((28, 28), 10, normalise).unwrap(), seed).unwrap()),
        ModelName::Mlp => Box::new(CandleBackend::new(Mlp::new(28 * 28, 10, normalise), seed).unwrap()),
        other => panic!("{other} is not trained here"),
    }
}
