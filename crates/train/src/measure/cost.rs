//! What an operation costs that has the network for itself, shares it with others, or overtakes them.

use std::iter;
use std::ops::RangeInclusive;
use std::time::Duration;

use paceline_plan::{Bucket, Partition, Plan};

use super::probe::{Group, Probed};
use super::statistics::{fit, median, relative_half_width};
use super::{CommunicationCost, InFlight, Overtaking};
use crate::error::TrainError;
use crate::exchange::Carrier;

/// What is measured: from what starting costs to what bytes cost. Of a shorter gradient all of it is the largest.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// So many operations of the smallest size are also measured together, and as many large ones: what each of them takes then
/// occupies the network, and what one takes longer by itself is latency, or its own pipeline that fills, which others hide.
const IN_FLIGHT: usize = 8;

/// Bytes of those large ones: an eighth of all gradients, if that is much, as no more are ever in flight; and no more than a
/// partition usually has.
const LARGE_IN_FLIGHT: RangeInclusive<usize> = 1 << 20..=4 << 20;

/// Bytes of what overtakes the large ones: a single tensor that backward gives last, whole, and several fused, which are cut into
/// blocks as larger ones are, whose rounds wait for each other.
const OVERTAKING: [usize; 2] = [SIZES[0], SIZES[1]];

/// So many of each size while the same large ones are in flight, in turns: how long each waits is chance.
const OVERTAKING_EACH: usize = 3;

/// How often each, after one that does not count: memory and servers are new to it. The median counts.
const REPETITIONS: usize = 5;

/// What a worker does between a barrier and an operation that is timed.
pub(crate) type Before<'a> = &'a mut dyn FnMut() -> Result<(), TrainError>;

/// Measures operations of a few sizes up to about `bytes`, on all workers at the same time, through the same calls as
/// gradients. `start_up` is added to each. Every worker comes to the same numbers.
///
/// What workers do before an operation they do not end at once. So the fastest of them tells what it takes then: the last one to
/// come, for whom all others wait.
pub(crate) fn communication_cost(
    carrier: &Carrier,
    bytes: usize,
    start_up: Duration,
    before: Option<Before<'_>>,
) -> Result<CommunicationCost, TrainError> {
    measured(carrier, bytes, start_up, 0, before).map(|(cost, _)| cost)
}

/// The same, for a training in which operations have been measured so many `times`: nothing is named twice. Besides by which
/// share what was measured is uncertain: half of the 95 % interval, the mean over the sizes.
pub(crate) fn communication_cost_again(
    carrier: &Carrier,
    bytes: usize,
    start_up: Duration,
    times: u32,
    before: Option<Before<'_>>,
) -> Result<(CommunicationCost, f64), TrainError> {
    measured(carrier, bytes, start_up, times, before)
}

fn measured(
    carrier: &Carrier,
    bytes: usize,
    start_up: Duration,
    times: u32,
    before: Option<Before<'_>>,
) -> Result<(CommunicationCost, f64), TrainError> {
    let (sizes, large) = (sizes(bytes), large_in_flight(bytes));
    let together: Vec<usize> = iter::once(SIZES[0]).chain(large).collect();
    let at_once = together.iter().flat_map(|&size| [size; IN_FLIGHT]);
    let mut all: Vec<usize> = sizes.iter().copied().chain(at_once).collect();
    let alone = (0..sizes.len()).map(|operation| operation..operation + 1);
    let at_once = (sizes.len()..all.len()).step_by(IN_FLIGHT).map(|first| first..first + IN_FLIGHT);
    let mut groups: Vec<Group> = alone.chain(at_once).map(Group::of).collect();
    let mut urgent = all.len();
    if let Some(large) = large {
        let overtaken = urgent..urgent + IN_FLIGHT;
        urgent = overtaken.end;
        all.extend([large; IN_FLIGHT].into_iter().chain([OVERTAKING; OVERTAKING_EACH].concat()));
        groups.push(Group { operations: overtaken, overtaken_by: urgent..all.len() });
    }
    let plan = plan(&all, carrier.peers().shards(), urgent);
    let plan = Plan { version: Carrier::PROBE_VERSION - times, ..plan };
    let behind_passes = before.is_some();
    let Probed { slowest, fastest, overtaking } = carrier.probe(&plan, &groups, REPETITIONS, before)?;
    let (alone, at_once) = if behind_passes { &fastest } else { &slowest }.split_at(sizes.len());
    let uncertain = alone.iter().map(|seconds| relative_half_width(seconds)).sum::<f64>() / sizes.len() as f64;
    let start_up_s = start_up.as_secs_f64();
    let of = |operations: usize, bytes: usize, seconds: &[f64]| InFlight {
        operations,
        bytes: bytes as u64,
        seconds: median(seconds.iter().copied()) + operations as f64 * start_up_s,
    };
    let points: Vec<(u64, f64)> =
        sizes.iter().zip(alone).map(|(&bytes, all)| (bytes as u64, of(1, bytes, all).seconds)).collect();
    let mut in_flight = together.iter().zip(at_once).map(|(&bytes, all)| of(IN_FLIGHT, bytes, all));
    let (in_flight, large_in_flight) = (in_flight.next(), in_flight.next());
    // In turns.
    let overtook = |index: usize| median(overtaking.iter().copied().skip(index).step_by(OVERTAKING.len()));
    // They are the first of the sizes that were measured alone.
    let overtaking =
        OVERTAKING.iter().zip(&fastest).enumerate().filter(|_| large.is_some()).map(|(index, (&bytes, alone))| {
            let longer_s = (overtook(index) - median(alone.iter().copied())).max(0.0);
            Overtaking { bytes: bytes as u64, longer_s }
        });
    let overtaking = overtaking.collect();
    let (alpha_s, beta_s_per_byte) = fit(&points);
    Ok((CommunicationCost { alpha_s, beta_s_per_byte, points, in_flight, large_in_flight, overtaking }, uncertain))
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

/// An operation for each size; they take turns at the shards. From one of them on they are more urgent than those before.
fn plan(sizes: &[usize], shards: usize, urgent: usize) -> Plan {
    let mut end = 0;
    let bucket = |(tensor, &bytes): (usize, &usize)| {
        let elements = end..end + bytes / size_of::<f32>();
        end = elements.end;
        let shard = (shards > 0).then(|| tensor % shards);
        Bucket {
            partitions: vec![Partition { elements: elements.clone(), shard }],
            priority: u32::from(tensor < urgent),
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::on_ranks::on_ranks;
    use crate::peers::Peers;

    /// Whoever comes first waits for the other one, who computes: that is no cost of an operation.
    #[test]
    fn waiting_for_who_still_computes_is_not_counted() {
        const COMPUTES: Duration = Duration::from_millis(20);
        let counted = on_ranks(2, |workers| {
            let (computes, mut passes) = (workers.rank() == 1, 0);
            let mut pass = || {
                passes += 1;
                thread::sleep(if computes { COMPUTES } else { Duration::ZERO });
                Ok(())
            };
            let carrier = Carrier::new(Peers::from(&workers), None);
            let cost = communication_cost(&carrier, 128 << 10, Duration::ZERO, Some(&mut pass)).unwrap();
            (cost.points, passes)
        });
        let (points, passes) = &counted[0];
        // Three sizes by themselves, and one of them several at once.
        assert_eq!((points.len(), *passes), (3, 4 * (REPETITIONS + 1)));
        assert!(points.iter().all(|(_, seconds)| *seconds < COMPUTES.as_secs_f64() / 2.0), "{points:?}");
        assert_eq!(counted[0], counted[1], "every worker comes to the same");
    }

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
