//! What an operation costs that has the network for itself.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Reduction};
use paceline_plan::{Bucket, Partition, Plan};

use super::CommunicationCost;
use super::statistics::{fit, relative_half_width};
use crate::error::TrainError;
use crate::exchange::Carrier;

/// What is measured: from what starting costs to what bytes cost.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// How often each; the median counts.
const REPETITIONS: usize = 5;

/// Measures operations of a few sizes up to about `bytes`, on all workers at the same time, through the same calls as
/// gradients. `start_up` is added to each. Every worker comes to the same numbers.
pub(crate) fn communication_cost(
    carrier: &Carrier,
    bytes: usize,
    start_up: Duration,
) -> Result<CommunicationCost, TrainError> {
    communication_cost_again(carrier, bytes, start_up, 0).map(|(cost, _)| cost)
}

/// The same, for a training in which operations have been measured `before` times: nothing is named twice. Besides by which
/// share what was measured is uncertain: half of the 95 % interval, the mean over the sizes.
pub(crate) fn communication_cost_again(
    carrier: &Carrier,
    bytes: usize,
    start_up: Duration,
    before: u32,
) -> Result<(CommunicationCost, f64), TrainError> {
    let sizes: Vec<usize> = SIZES.into_iter().filter(|&size| size == SIZES[0] || size <= bytes).collect();
    let version = Carrier::PROBE_VERSION - before;
    let plan = Plan { version, ..plan(&sizes, carrier.peers().shards()) };
    let (mut points, mut uncertain) = (Vec::new(), 0.0);
    carrier.probe(&plan, REPETITIONS, |operation, seconds| {
        let mut seconds = seconds.to_vec();
        seconds.sort_by(f64::total_cmp);
        uncertain += relative_half_width(&seconds) / sizes.len() as f64;
        points.push((sizes[operation] as u64, seconds[REPETITIONS / 2] + start_up.as_secs_f64()));
    })?;
    let (alpha_s, beta_s_per_byte) = fit(&points);
    Ok((CommunicationCost { alpha_s, beta_s_per_byte, points }, uncertain))
}

/// An operation for each size; they take turns at the shards.
fn plan(sizes: &[usize], shards: usize) -> Plan {
    let mut end = 0;
    let bucket = |(tensor, &bytes): (usize, &usize)| {
        let elements = end..end + bytes / size_of::<f32>();
        end = elements.end;
        let shard = (shards > 0).then(|| tensor % shards);
        Bucket {
            partitions: vec![Partition { elements: elements.clone(), shard }],
            ..Bucket::whole(vec![tensor], elements)
        }
    };
    Plan {
        version: Carrier::PROBE_VERSION,
        strategy: "probe".into(),
        buckets: sizes.iter().enumerate().map(bucket).collect(),
        shards,
        credit_bytes: None,
        forward_overlap: false,
        server_priority_only: false,
    }
}

impl Carrier {
    /// The version of plans that only measure, counting down: no training has so many.
    pub(crate) const PROBE_VERSION: u32 = u32::MAX;

    /// Runs each operation of a plan by itself, so many times, and tells how long it took: the maximum over the workers.
    fn probe(&self, plan: &Plan, repetitions: usize, mut told: impl FnMut(usize, &[f64])) -> Result<(), TrainError> {
        let carrier = self.aggregating();
        carrier.assign(plan, 0..repetitions as u64)?;
        let workers = self.peers().workers();
        let measured = || -> Result<Vec<Vec<f64>>, CommError> {
            let calls = carrier.calls(plan, &[])?;
            let mut all = vec![Vec::new(); calls.len()];
            let mut buffers = Vec::new();
            for (_, partition) in plan.partitions() {
                buffers.push(Some(workers.alloc::<f32>(partition.elements.len())?));
            }
            for repetition in 0..repetitions {
                for (operation, call) in calls.iter().enumerate() {
                    let Some(buffer) = buffers[operation].take() else { continue };
                    workers.barrier(&CallOptions::default())?;
                    let began = Instant::now();
                    let id = (repetition * calls.len() + operation) as u64;
                    let pending = carrier.start(call, id, buffer, None)?;
                    buffers[operation] = Some(pending.wait()?.0);
                    all[operation].push(began.elapsed().as_secs_f64());
                }
            }
            for seconds in &mut all {
                workers.all_reduce(seconds, Reduction::Max, &CallOptions::default())?;
            }
            Ok(all)
        };
        let measured = measured().map_err(|source| TrainError::Communication {
            doing: "measuring what operations cost",
            source: Box::new(source),
        })?;
        measured.iter().enumerate().for_each(|(operation, seconds)| told(operation, seconds));
        Ok(())
    }
}
