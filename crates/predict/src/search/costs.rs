//! What an operation occupies the communication of a way for.

use paceline_plan::{Bucket, Cluster, Partition, Plan, Profile, ProfileTensor, Step};
use paceline_strategy::{Call, Strategy};

use super::ways::Way;
use super::{Question, Subject};
use crate::prediction::point;
use crate::{Job, PredictError, estimate_plan, job};

/// The smallest operation that is looked at.
const SMALLEST_BYTES: u64 = 1 << 10;

/// Between two sizes that are looked at.
const RATIO: f64 = std::f64::consts::SQRT_2;

/// Operations in flight behind the first, for each shard, and at most so many: enough that up to eight shards work. Of
/// more only some do, and what is planned for them is planned for a network that is somewhat faster.
const PER_SHARD: usize = 2;
const BEHIND_MAX: usize = 16;

/// Seconds by bytes: what one operation more takes where others are in flight. From predictions of operations alone, in
/// which computation takes no time.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// Rising sizes; at least one.
    points: Vec<(u64, f64)>,
}

impl Costs {
    /// Predicts operations of all sizes up to the whole model, as many as half octaves.
    pub(crate) fn of(subject: Subject, way: &Way, network: &job::Costs) -> Result<Costs, PredictError> {
        let total = subject.profile.sizes().iter().sum::<usize>() as u64 * 4;
        let mut points = Vec::new();
        let mut bytes = SMALLEST_BYTES;
        loop {
            points.push((bytes, seconds_of_one_more(subject, way, network, bytes)?));
            if bytes >= total {
                return Ok(Costs { points });
            }
            // In whole elements.
            bytes = (((bytes as f64 * RATIO) as u64).div_ceil(4) * 4).min(total);
        }
    }

    /// Between the sizes that were predicted on the line through them.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        let after = self.points.partition_point(|&(size, _)| size <= bytes);
        let (low, high) = match after {
            0 => return self.points[0].1,
            _ if self.points.len() == 1 => {
                let (size, seconds) = self.points[0];
                return seconds * bytes as f64 / size as f64;
            }
            all if all == self.points.len() => (self.points[all - 2], self.points[all - 1]),
            after => (self.points[after - 1], self.points[after]),
        };
        let slope = (high.1 - low.1) / (high.0 - low.0) as f64;
        (low.1 + slope * (bytes as f64 - low.0 as f64)).max(0.0)
    }
}

/// The mean over a few operations behind the first, of one size, dealt out to the shards in turn.
fn seconds_of_one_more(subject: Subject, way: &Way, network: &job::Costs, bytes: u64) -> Result<f64, PredictError> {
    let Question { cluster, workers, .. } = *subject.question;
    let behind = (PER_SHARD * way.shards).clamp(PER_SHARD, BEHIND_MAX);
    let seconds = |operations: usize| -> Result<f64, PredictError> {
        let (profile, plan) = operations_alone(subject.profile, way, operations, (bytes / 4).max(1) as usize);
        let alone = Job { cluster, profile: &profile, strategy: &way.strategy, workers, local_batch: None };
        Ok(point(&job::Subject::new(&alone)?, network, plan, false).iteration_s)
    };
    Ok(((seconds(1 + behind)? - seconds(1)?) / behind as f64).max(0.0))
}

/// Seconds that a single operation of so many bytes takes under a strategy whose arch is not open, from the moment at which it
/// is ready until its sum has arrived, where nothing is computed meanwhile.
///
/// # Errors
/// As [`estimate_plan`].
pub fn operation_alone_s(
    cluster: &Cluster,
    profile: &Profile,
    workers: usize,
    strategy: &Strategy,
    bytes: u64,
) -> Result<f64, PredictError> {
    operations_alone_s(cluster, profile, workers, strategy, bytes, 1)
}

/// The same for so many operations that are ready at once, dealt out to the shards in turn: until the last one's sum has
/// arrived. What it takes longer than a single one is what the others occupy, and not what each of them takes.
///
/// # Errors
/// As [`estimate_plan`].
pub fn operations_alone_s(
    cluster: &Cluster,
    profile: &Profile,
    workers: usize,
    strategy: &Strategy,
    bytes: u64,
    operations: usize,
) -> Result<f64, PredictError> {
    let servers = strategy.servers(workers, cluster.hosts_of(workers));
    let way = Way { strategy: strategy.clone(), shards: servers.map_or(0, |servers| servers.shards) };
    let (alone, plan) = operations_alone(profile, &way, operations.max(1), (bytes / 4).max(1) as usize);
    let job = Job { cluster, profile: &alone, strategy, workers, local_batch: None };
    Ok(estimate_plan(&job, &plan)?.iteration_s)
}

/// How many messages of an operation of so many bytes wait for each other: a round is what each of those takes that it waits for.
///
/// # Errors
/// As [`estimate_plan`].
pub fn operation_rounds(
    cluster: &Cluster,
    profile: &Profile,
    workers: usize,
    strategy: &Strategy,
    bytes: u64,
) -> Result<usize, PredictError> {
    let job = Job { cluster, profile, strategy, workers, local_batch: None };
    Ok(job::Subject::new(&job)?.costs(cluster)?.communication.rounds(bytes))
}

/// What an all-reduce that has the network for itself keeps busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduceSeconds {
    /// For which it occupies the network, with what the strategy adds to its start: what `interference.communication` makes longer.
    pub occupied_s: f64,
    /// For which bytes move within hosts: what `interference.computation` counts by.
    pub within_s: f64,
}

/// Seconds of an all-reduce of so many bytes, over the strategy's protocol, and by its algorithm if it is all-to-all.
///
/// # Errors
/// As [`estimate_plan`].
pub fn all_reduce_seconds(
    cluster: &Cluster,
    profile: &Profile,
    workers: usize,
    strategy: &Strategy,
    bytes: u64,
) -> Result<AllReduceSeconds, PredictError> {
    let mut way = Way { strategy: strategy.clone(), shards: 0 };
    if way.strategy.arch.name != "a2a" {
        way.strategy.arch = Call::all_to_all("auto");
    }
    let (alone, plan) = operations_alone(profile, &way, 1, (bytes / 4).max(1) as usize);
    let job = Job { cluster, profile: &alone, strategy: &way.strategy, workers, local_batch: None };
    let traffic = job::Subject::new(&job)?.costs(cluster)?.communication.traffic(&plan);
    Ok(AllReduceSeconds { occupied_s: traffic.operations.line_busy_s(), within_s: traffic.within_s })
}

/// So many tensors that are ready at once, each an operation of its own.
fn operations_alone(profile: &Profile, way: &Way, operations: usize, elements: usize) -> (Profile, Plan) {
    let tensor = |number: usize| ProfileTensor { name: number.to_string(), elements, forward_macs_per_sample: 0 };
    let steps: Vec<Step> = (0..operations).map(|tensor| Step { tensor, seconds: 0.0 }).collect();
    let bucket = |number: usize| {
        let range = number * elements..(number + 1) * elements;
        let shard = (way.shards > 0).then(|| number % way.shards);
        let partitions = vec![Partition { elements: range.clone(), shard }];
        Bucket { partitions, ..Bucket::whole(vec![number], range) }
    };
    let plan = Plan {
        version: 1,
        strategy: way.strategy.to_string(),
        buckets: (0..operations).map(bucket).collect(),
        shards: way.shards,
        credit_bytes: None,
        forward_overlap: false,
        server_priority_only: false,
    };
    let alone = Profile {
        tensors: (0..operations).map(tensor).collect(),
        forward: steps.clone(),
        backward: steps,
        update_s: 0.0,
        memory: None,
        ..profile.clone()
    };
    (alone, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_sizes_it_is_a_line() {
        let costs = Costs { points: vec![(1000, 1.0), (2000, 1.5), (4000, 2.0)] };
        let seconds = [1, 1000, 1500, 2000, 3000, 4000, 8000].map(|bytes| costs.seconds(bytes));
        assert_eq!(seconds, [1.0, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0]);
        let one = Costs { points: vec![(1000, 1.0)] };
        assert_eq!([one.seconds(10), one.seconds(3000)], [1.0, 3.0]);
    }
}
