//! What an operation costs that has the network for itself.

use std::ops::Range;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Reduction};
use paceline_plan::{Bucket, Partition, Plan};

use super::statistics::{fit, median, relative_half_width};
use super::{CommunicationCost, InFlight};
use crate::error::TrainError;
use crate::exchange::{Carrier, Travelling};

/// What is measured: from what starting costs to what bytes cost. Of a shorter gradient all of it is the largest.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// So many operations of the smallest size are also measured together: what each of them takes then occupies the network, and what
/// one takes longer by itself is latency, which others hide.
const IN_FLIGHT: usize = 8;

/// How often each, after one that does not count: memory and servers are new to it. The median counts.
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
    let sizes = sizes(bytes);
    let all = [&sizes[..], &[SIZES[0]; IN_FLIGHT]].concat();
    let plan = Plan { version: Carrier::PROBE_VERSION - before, ..plan(&all, carrier.peers().shards()) };
    let Probed { alone, together } = carrier.probe(&plan, sizes.len(), REPETITIONS)?;
    let uncertain = alone.iter().map(|seconds| relative_half_width(seconds)).sum::<f64>() / sizes.len() as f64;
    let seconds = |seconds: &Vec<f64>| median(seconds.iter().copied());
    let start_up_s = start_up.as_secs_f64();
    let points: Vec<(u64, f64)> =
        sizes.iter().zip(&alone).map(|(&bytes, all)| (bytes as u64, seconds(all) + start_up_s)).collect();
    let in_flight = InFlight {
        operations: IN_FLIGHT,
        bytes: SIZES[0] as u64,
        seconds: seconds(&together) + IN_FLIGHT as f64 * start_up_s,
    };
    let (alpha_s, beta_s_per_byte) = fit(&points);
    Ok((CommunicationCost { alpha_s, beta_s_per_byte, points, in_flight: Some(in_flight) }, uncertain))
}

/// Those that are measured for operations up to so many bytes, ascending.
fn sizes(bytes: usize) -> Vec<usize> {
    let largest = bytes.next_multiple_of(size_of::<f32>()).clamp(SIZES[0], SIZES[SIZES.len() - 1]);
    SIZES.into_iter().filter(|&size| size < largest).chain([largest]).collect()
}

/// Seconds of the slowest worker, by repetition.
struct Probed {
    /// By operation.
    alone: Vec<Vec<f64>>,
    /// Of all the others at once.
    together: Vec<f64>,
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

    /// Runs each of the first `alone` operations of a plan by itself, and then the others at once; so many times that count.
    fn probe(&self, plan: &Plan, alone: usize, repetitions: usize) -> Result<Probed, TrainError> {
        let carrier = self.aggregating();
        carrier.assign(plan, 0..repetitions as u64 + 1)?;
        let measured = || -> Result<Probed, CommError> {
            let workers = self.peers().workers();
            let calls = carrier.calls(plan, &[])?;
            let mut buffers = Vec::new();
            for (_, partition) in plan.partitions() {
                buffers.push(workers.alloc::<f32>(partition.elements.len())?);
            }
            let mut probed = Probed { alone: vec![Vec::new(); alone], together: Vec::new() };
            for repetition in 0..=repetitions {
                let mut idle = std::mem::take(&mut buffers).into_iter();
                // Seconds of the next operations, started one after the other at once.
                let mut timed = |operations: Range<usize>| -> Result<f64, CommError> {
                    workers.barrier(&CallOptions::default())?;
                    let began = Instant::now();
                    let start = |operation: usize| {
                        let id = (repetition * calls.len() + operation) as u64;
                        idle.next().map(|buffer| carrier.start(&calls[operation], id, buffer, None))
                    };
                    let travelling: Vec<Travelling> = operations.filter_map(start).collect::<Result<_, _>>()?;
                    for one in travelling {
                        buffers.push(one.wait()?.into_gradient());
                    }
                    Ok(began.elapsed().as_secs_f64())
                };
                for (operation, seconds) in probed.alone.iter_mut().enumerate() {
                    seconds.push(timed(operation..operation + 1)?);
                }
                probed.together.push(timed(alone..calls.len())?);
                if repetition == 0 {
                    probed.alone.iter_mut().for_each(Vec::clear);
                    probed.together.clear();
                }
            }
            for seconds in probed.alone.iter_mut().chain([&mut probed.together]) {
                workers.all_reduce(seconds, Reduction::Max, &CallOptions::default())?;
            }
            Ok(probed)
        };
        measured().map_err(|source| TrainError::Communication {
            doing: "measuring what operations cost",
            source: Box::new(source),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_that_of_all_gradients_if_these_are_short() {
        assert_eq!(sizes(0), [4096]);
        assert_eq!(sizes(4096), [4096]);
        assert_eq!(sizes(407_080), [4096, 65_536, 407_080]);
        assert_eq!(sizes(407_078), [4096, 65_536, 407_080], "whole elements");
        assert_eq!(sizes(100 << 20), SIZES);
    }
}
