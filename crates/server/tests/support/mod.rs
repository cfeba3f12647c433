//! Worlds with shards, plans and gradients for tests.
#![allow(dead_code, reason = "not every test program needs all of it")]

use std::thread::{self, JoinHandle};
use std::time::Duration;

use paceline_comm::{Buffer, CallOptions, Communicator, ThreadsConfig, Transport};
use paceline_plan::{Bucket, Partition, Plan};
use paceline_server::{Assignment, ParameterServer, Roles, ServeOptions, Served, ServerError, serve};

pub const LINKS: [Transport; 3] = [Transport::Memory, Transport::Shm, Transport::Tcp];

/// Random numbers that follow from a seed (xorshift64*, Vigna 2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|index| items.swap(index, self.below(index + 1)));
    }
}

/// A plan of buckets of these lengths, cut into partitions of at most `partition` elements that take turns on the shards.
pub fn plan(version: u32, lengths: &[usize], partition: usize, shards: usize) -> Plan {
    let (mut next, mut turn) = (0, 0);
    let mut buckets = Vec::new();
    for (tensor, &length) in lengths.iter().enumerate() {
        let elements = next..next + length;
        let mut bucket = Bucket { priority: (lengths.len() - tensor) as u32, ..Bucket::whole(vec![tensor], elements) };
        bucket.partitions = (0..length.div_ceil(partition).max(1))
            .map(|piece| {
                let start = (next + piece * partition).min(next + length);
                turn += 1;
                Partition { elements: start..(start + partition).min(next + length), shard: Some(turn % shards) }
            })
            .collect();
        next += length;
        buckets.push(bucket);
    }
    let strategy = format!("arch=ps:{shards}");
    Plan { version, strategy, buckets, shards, credit_bytes: None, forward_overlap: false, server_priority_only: false }
}

/// What a worker contributes: numbers whose sum depends on the order of the additions.
pub fn gradient(worker: usize, iteration: u64, element: usize) -> f32 {
    let number = (worker * 7919 + element * 104_729 + iteration as usize * 31) % 10_007;
    (number as f32 - 5000.0) * 1.37e-3 * 10f32.powi((number % 9) as i32 - 4)
}

/// The contributions of all workers, added one after the other.
pub fn sum(workers: usize, iteration: u64, element: usize) -> f32 {
    let contributions = (0..workers).map(|worker| gradient(worker, iteration, element));
    contributions.reduce(|sum, value| sum + value).expect("there is a worker")
}

pub fn filled(world: &Communicator, elements: std::ops::Range<usize>, value: impl Fn(usize) -> f32) -> Buffer<f32> {
    let mut buffer = world.alloc(elements.len()).expect("memory");
    buffer.iter_mut().zip(elements).for_each(|(place, element)| *place = value(element));
    buffer
}

pub fn assert_bits(found: &[f32], elements: std::ops::Range<usize>, value: impl Fn(usize) -> f32, what: &str) {
    assert_eq!(found.len(), elements.len(), "{what}");
    let wrong = found.iter().zip(elements).find(|(found, element)| found.to_bits() != value(*element).to_bits());
    assert!(wrong.is_none(), "{what}: {wrong:?}, not {:?}", wrong.map(|(_, element)| value(element)));
}

/// One iteration of a worker: all partitions, started in random order with random delays, each with the right sum.
pub fn aggregate(server: &ParameterServer, world: &Communicator, assignment: &Assignment, iteration: u64, seed: u64) {
    let (workers, worker) = (server.roles().workers(), world.rank());
    let mut random = Random::new(seed ^ (worker as u64) << 20 ^ iteration << 40);
    let mut partitions: Vec<(usize, &Partition)> =
        assignment.plan.partitions().map(|(_, partition)| partition).enumerate().collect();
    random.shuffle(&mut partitions);
    let mut pending = Vec::new();
    for (operation, partition) in partitions {
        if random.below(4) == 0 {
            thread::sleep(Duration::from_micros(random.below(1000) as u64));
        }
        let buffer = filled(world, partition.elements.clone(), |element| gradient(worker, iteration, element));
        let options = assignment.options(iteration, operation, CallOptions::default());
        let shard = partition.shard.expect("a shard");
        pending.push((partition, server.start_push_pull(shard, buffer, &options).expect("it starts")));
    }
    for (partition, pending) in pending {
        let found = pending.wait().expect("it ends well");
        let what = format!("seed {seed:#x}, worker {worker}, iteration {iteration}, {partition:?}");
        assert_bits(&found, partition.elements.clone(), |element| sum(workers, iteration, element), &what);
    }
}

/// A world whose workers do this, and whose shards serve. What the shards have done.
pub fn world_with_shards<W>(
    links: Transport,
    roles: Roles,
    options: &ServeOptions,
    work: W,
) -> Vec<Result<Served, ServerError>>
where
    W: Fn(&Communicator, Roles) + Clone + Send + 'static,
{
    on_hosts(&ThreadsConfig { transport: links, ..ThreadsConfig::default() }, roles, options, work)
}

/// The same, on the hosts and links that the configuration says.
pub fn on_hosts<W>(
    config: &ThreadsConfig,
    roles: Roles,
    options: &ServeOptions,
    work: W,
) -> Vec<Result<Served, ServerError>>
where
    W: Fn(&Communicator, Roles) + Clone + Send + 'static,
{
    let ranks = Communicator::threads_with(roles.world_size(), config).expect("a world of threads");
    let threads = ranks.into_iter().map(|world| {
        let (work, options) = (work.clone(), options.clone());
        thread::spawn(move || match roles.shard_of(world.rank()) {
            Some(_) => Some(serve(&world, roles, &options)),
            None => {
                work(&world, roles);
                None
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().filter_map(joined).collect()
}

/// A panic of a thread is the panic of the test.
pub fn joined<R>(thread: JoinHandle<R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
