//! What an operation costs that has the network for itself.

use std::iter;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Reduction};
use paceline_plan::{Bucket, Partition, Plan};

use super::statistics::{fit, median, relative_half_width};
use super::{CommunicationCost, InFlight};
use crate::error::TrainError;
use crate::exchange::{Carrier, Travelling};

/// What is measured: from what starting costs to what bytes cost. Of a shorter gradient all of it is the largest.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// So many operations of the smallest size are also measured together, and as many large ones: what each of them takes then
/// occupies the network, and what one takes longer by itself is latency, or its own pipeline that fills, which others hide.
const IN_FLIGHT: usize = 8;

/// Bytes of those large ones: an eighth of all gradients, if that is much, as no more are ever in flight; and no more than a
/// partition usually has.
const LARGE_IN_FLIGHT: RangeInclusive<usize> = 1 << 20..=4 << 20;

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
    let (sizes, large) = (sizes(bytes), large_in_flight(bytes));
    let together: Vec<usize> = iter::once(SIZES[0]).chain(large).collect();
    let all = sizes.iter().copied().chain(together.iter().flat_map(|&size| [size; IN_FLIGHT]));
    let all: Vec<usize> = all.collect();
    let plan = Plan { version: Carrier::PROBE_VERSION - before, ..plan(&all, carrier.peers().shards()) };
    let alone = (0..sizes.len()).map(|operation| operation..operation + 1);
    let at_once = (sizes.len()..all.len()).step_by(IN_FLIGHT).map(|first| first..first + IN_FLIGHT);
    let groups: Vec<Range<usize>> = alone.chain(at_once).collect();
    let probed = carrier.probe(&plan, &groups, REPETITIONS)?;
    let (alone, at_once) = probed.split_at(sizes.len());
    let uncertain = alone.iter().map(|seconds| relative_half_width(seconds)).sum::<f64>() / sizes.len() as f64;
    let seconds = |seconds: &Vec<f64>| median(seconds.iter().copied());
    let start_up_s = start_up.as_secs_f64();
    let points: Vec<(u64, f64)> =
        sizes.iter().zip(alone).map(|(&bytes, all)| (bytes as u64, seconds(all) + start_up_s)).collect();
    let mut in_flight = together.iter().zip(at_once).map(|(&bytes, all)| InFlight {
        operations: IN_FLIGHT,
        bytes: bytes as u64,
        seconds: seconds(all) + IN_FLIGHT as f64 * start_up_s,
    });
    let (in_flight, large_in_flight) = (in_flight.next(), in_flight.next());
    let (alpha_s, beta_s_per_byte) = fit(&points);
    Ok((CommunicationCost { alpha_s, beta_s_per_byte, points, in_flight, large_in_flight }, uncertain))
}

/// Those that are measured for operations up to so many bytes, ascending.
fn sizes(bytes: usize) -> Vec<usize> {
    let largest = bytes.next_multiple_of(size_of::<f32>()).clamp(SIZES[0], SIZES[SIZES.len() - 1]);
    SIZES.into_iter().filter(|&size| size < largest).chain([largest]).collect()
}

/// Bytes of each of several large operations, unless all gradients are too few for that.
fn large_in_flight(bytes: usize) -> Option<usize> {
    let each = (bytes / IN_FLIGHT).min(*LARGE_IN_FLIGHT.end()).next_multiple_of(size_of::<f32>());
    LARGE_IN_FLIGHT.contains(&each).then_some(each)
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

    /// Runs the operations of each group at once, one group after the other; so many times that count. By group and repetition
    /// the seconds of the slowest worker. The groups are all operations of the plan, in its order.
    fn probe(&self, plan: &Plan, groups: &[Range<usize>], repetitions: usize) -> Result<Vec<Vec<f64>>, TrainError> {
        let carrier = self.aggregating();
        carrier.assign(plan, 0..repetitions as u64 + 1)?;
        let measured = || -> Result<Vec<Vec<f64>>, CommError> {
            let workers = self.peers().workers();
            let calls = carrier.calls(plan, &[])?;
            let mut buffers = Vec::new();
            for (_, partition) in plan.partitions() {
                buffers.push(workers.alloc::<f32>(partition.elements.len())?);
            }
            let mut probed = vec![Vec::new(); groups.len()];
            for repetition in 0..=repetitions {
                let mut idle = std::mem::take(&mut buffers).into_iter();
                for (group, probed) in groups.iter().zip(&mut probed) {
                    workers.barrier(&CallOptions::default())?;
                    let began = Instant::now();
                    let start = |operation: usize| {
                        let id = (repetition * calls.len() + operation) as u64;
                        idle.next().map(|buffer| carrier.start(&calls[operation], id, buffer, None))
                    };
                    let travelling: Vec<Travelling> = group.clone().filter_map(start).collect::<Result<_, _>>()?;
                    for one in travelling {
                        buffers.push(one.wait()?.into_gradient());
                    }
                    // The first time does not count.
                    if repetition > 0 {
                        probed.push(began.elapsed().as_secs_f64());
                    }
                }
            }
            for seconds in &mut probed {
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

    #[test]
    fn no_more_is_in_flight_than_there_are_gradients() {
        assert_eq!([0, 407_080, (8 << 20) - 64].map(large_in_flight), [None; 3]);
        assert_eq!(large_in_flight(8 << 20), Some(1 << 20));
        assert_eq!(large_in_flight(25_000_012), Some(3_125_004), "whole elements");
        assert_eq!(large_in_flight(1 << 30), Some(4 << 20));
    }
}
