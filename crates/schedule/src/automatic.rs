//! Fuse or partition, tensor by tensor: the schedule that no fixed rule gives.
//!
//! Two families are compared, on one channel that carries the most urgent operation that has started:
//!
//! - without overlap with the next forward pass: the best merge of neighbours ([`merge`](crate::mg_wfbp::merge)), exact by
//!   dynamic programming;
//! - with it: small neighbours fused up to a limit, or by that merge; buckets above a partition's length cut; what forward
//!   needs first goes first; a bounded number of bytes in flight. The limits are tried, and each schedule is played in
//!   virtual time as the runtime would start it (its [`Dispatcher`](crate::Dispatcher)). This is a heuristic: which tensors to
//!   fuse depends on what waits when, and no recurrence is known for it.
//!
//! Sources: Shi, Chu and Li, "MG-WFBP", INFOCOM 2019, for the merge; Peng et al., "A generic communication scheduler for
//! distributed DNN training acceleration" (ByteScheduler), SOSP 2019, for partitions, priorities and credit.

use paceline_plan::{Plan, TensorId};
use paceline_strategy::Call;

use crate::planner::buckets_of;
use crate::priority::urgency;
use crate::steady_state::played_s;
use crate::workload::Forward;
use crate::{CommunicationTime, ELEMENT_BYTES, Schedule, ScheduleError, Workload, fuse, mg_wfbp};

/// Below these sizes neighbours are fused: from not at all to what a fast network takes a millisecond for.
const FUSED_BYTES: [u64; 7] = [0, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Above these sizes buckets are cut; the last one cuts nothing.
const PARTITION_BYTES: [u64; 5] = [512 << 10, 2 << 20, 8 << 20, 32 << 20, u64::MAX];

/// So many partitions may be in flight: one, so that links hold little when something urgent becomes ready; four, as in the default of
/// ByteScheduler here, so that the channel never idles.
const CREDIT_PARTITIONS: [u64; 2] = [1, 4];

/// More operations in an iteration than this are not worth what it costs to start them.
const OPERATIONS_MAX: u64 = 4096;

/// Less than this, relatively, is no gain: of such the schedule that comes first wins, which is the simpler one.
const TIE: f64 = 1e-6;

/// A schedule, and what it would take on one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The schedule.
    pub schedule: Schedule,
    /// Seconds of an iteration among many; without the workload's [`forward`](Workload::forward) those from the start of
    /// backward until the channel falls silent.
    pub iteration_s: f64,
}

/// `schedule=auto`: the best of the [`candidates`].
pub(crate) fn automatic(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    // Which is the simplest of those that are as good.
    Ok(candidates(workload)?.swap_remove(0).schedule)
}

/// The schedules among which `schedule=auto` chooses, the best on one channel first, without repetition. At least one: the best
/// merge. Where it is not known when forward needs the parameters, no schedule overlaps with the next forward pass.
///
/// Costs the merge's L²/2 calls of the cost function for L tensors, and for each of up to 81 schedules three played
/// iterations of as many operations as it has.
///
/// # Errors
/// The workload lacks the times of backward or of the network, or contradicts itself.
pub fn candidates(workload: &Workload) -> Result<Vec<Candidate>, ScheduleError> {
    workload.check()?;
    let merged = mg_wfbp::best_merge("auto", workload)?;
    let (Some(cost), Some(forward)) = (workload.communication_s, &workload.forward) else {
        let iteration_s = silent_s(workload, &merged);
        return Ok(vec![Candidate { schedule: merged, iteration_s }]);
    };
    let mut schedules = vec![merged.clone()];
    for schedule in overlapping(workload, merged.buckets) {
        if !schedules.contains(&schedule) {
            schedules.push(schedule);
        }
    }
    let played = |schedule: Schedule| {
        let iteration_s = iteration_s(workload, forward, &schedule, cost);
        Candidate { schedule, iteration_s }
    };
    let mut candidates: Vec<Candidate> = schedules.into_iter().map(played).collect();
    candidates.sort_by(|one, other| one.iteration_s.total_cmp(&other.iteration_s));
    // Stable, so the simplest of those that are as good stands before the others; it need not be the first of all.
    let best_s = candidates[0].iteration_s;
    let as_good = |candidate: &Candidate| candidate.iteration_s <= best_s * (1.0 + TIE);
    let simplest = (0..candidates.len()).filter(|&index| as_good(&candidates[index]));
    let simplest = simplest.min_by_key(|&index| complexity(&candidates[index].schedule)).unwrap_or(0);
    candidates[..=simplest].rotate_right(1);
    Ok(candidates)
}

/// Of two schedules that are as good, the one that waits for all before forward, and of those the one with fewer buckets.
fn complexity(schedule: &Schedule) -> (bool, usize) {
    (schedule.forward_overlap, schedule.buckets.len())
}

/// Every combination of fusion, partition and credit, with overlap.
fn overlapping(workload: &Workload, merged: Vec<Vec<TensorId>>) -> Vec<Schedule> {
    let bytes: Vec<u64> = workload.ready.iter().map(|&tensor| workload.sizes[tensor] as u64 * ELEMENT_BYTES).collect();
    let total: u64 = bytes.iter().sum();
    let by_limit = |limit: u64| -> Vec<Vec<TensorId>> {
        fuse(&bytes, limit, limit).into_iter().map(|positions| workload.ready[positions].to_vec()).collect()
    };
    let mut groupings: Vec<Vec<Vec<TensorId>>> = vec![merged];
    for grouping in FUSED_BYTES.into_iter().map(by_limit) {
        if !groupings.contains(&grouping) {
            groupings.push(grouping);
        }
    }
    let mut schedules = Vec::new();
    for buckets in groupings {
        let bytes_of = |bucket: &Vec<TensorId>| bucket.iter().map(|&tensor| workload.sizes[tensor] as u64).sum::<u64>();
        let largest = buckets.iter().map(bytes_of).max().unwrap_or(0) * ELEMENT_BYTES;
        let priorities = urgency(&buckets, &workload.used);
        let whole = PARTITION_BYTES.iter().position(|&bytes| bytes >= largest).unwrap_or(0);
        for &partition_bytes in &PARTITION_BYTES[..=whole] {
            if total / partition_bytes > OPERATIONS_MAX {
                continue;
            }
            for partitions in CREDIT_PARTITIONS {
                schedules.push(Schedule {
                    priorities: priorities.clone(),
                    partition_bytes: (partition_bytes < largest).then_some(partition_bytes),
                    credit_bytes: Some(partition_bytes.min(largest).max(1).saturating_mul(partitions)),
                    forward_overlap: true,
                    ..Schedule::of(buckets.clone())
                });
            }
        }
    }
    schedules
}

/// When the channel falls silent, from the start of backward, if buckets travel whole in the order in which they are ready.
fn silent_s(workload: &Workload, schedule: &Schedule) -> f64 {
    let (Some(cost), Some(ready_s)) = (workload.communication_s, &workload.ready_s) else { return 0.0 };
    schedule.buckets.iter().fold(0.0, |free_s: f64, bucket| {
        let ready_s = bucket.iter().map(|&tensor| ready_s[tensor]).fold(0.0, f64::max);
        let elements: u64 = bucket.iter().map(|&tensor| workload.sizes[tensor] as u64).sum();
        free_s.max(ready_s) + cost(elements * ELEMENT_BYTES)
    })
}

/// Seconds of one iteration among many under a schedule, on one channel.
fn iteration_s(workload: &Workload, forward: &Forward, schedule: &Schedule, cost: &CommunicationTime) -> f64 {
    let Some(ready_s) = &workload.ready_s else { return f64::INFINITY };
    let plan = Plan {
        version: 1,
        strategy: String::new(),
        buckets: buckets_of(schedule, None, &workload.sizes),
        shards: 0,
        credit_bytes: schedule.credit_bytes,
        forward_overlap: schedule.forward_overlap,
        server_priority_only: false,
    };
    played_s(workload, ready_s, forward, &plan, cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tensors that forward needs in their order and backward gives in the reverse order.
    fn workload<'a>(sizes: &[usize], ready_s: &[f64], needed_s: &[f64], total_s: f64) -> Workload<'a> {
        let forward = Forward { needed_s: needed_s.to_vec(), total_s, update_s: 0.0 };
        Workload { ready_s: Some(ready_s.to_vec()), forward: Some(forward), ..Workload::of_sizes(sizes) }
    }

    /// Each tensor takes 4 s on the network. In the order in which they are ready, from 1 s on, all have come at 13 s, and
    /// forward takes 6 s more. The first layer's first: it is ready at 3 s, overtakes the others, of which a second each has
    /// been sent, and comes at 7 s. The second's comes at 10 s, the last one's at 13 s, 2 s after forward needs it.
    #[test]
    fn overlap_wins_where_forward_can_hide_what_is_left() {
        let cost = |bytes: u64| bytes as f64;
        let workload = workload(&[1, 1, 1], &[3.0, 2.0, 1.0], &[0.0, 4.0, 5.0], 6.0).with_communication(&cost);
        let candidates = candidates(&workload).unwrap();
        let best = &candidates[0];
        assert!(best.schedule.forward_overlap && best.iteration_s == 14.0, "{best:?}");
        let barrier = candidates.iter().find(|candidate| !candidate.schedule.forward_overlap).unwrap();
        assert_eq!(barrier.iteration_s, 19.0);
    }

    #[test]
    fn without_the_times_of_forward_nothing_overlaps() {
        let cost = |bytes: u64| 0.5 + bytes as f64 * 1e-3;
        let known = workload(&[10, 20, 30], &[3.0, 2.0, 1.0], &[0.0, 1.0, 2.0], 3.0).with_communication(&cost);
        let unknown = Workload { forward: None, ..known.clone() };
        let only = candidates(&unknown).unwrap();
        assert_eq!(only.len(), 1);
        assert_eq!(only[0].schedule, mg_wfbp::best_merge("auto", &unknown).unwrap());
        // One by one they end at 1.62, 2.58 and 3.54 s: each is sent before the next is ready.
        assert!((only[0].iteration_s - 3.54).abs() < 1e-12, "{only:?}");
        assert!(candidates(&known).unwrap().len() > 1);
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let error = automatic(&Call::named("auto"), &Workload::of_sizes(&[1])).unwrap_err();
        assert!(matches!(error, ScheduleError::NotMeasured { schedule: "auto", .. }), "{error}");
    }

    /// A network that costs nothing: all schedules are as good, and the simplest is taken.
    #[test]
    fn of_equals_the_simplest_wins() {
        let cost = |_: u64| 0.0;
        let workload = workload(&[10, 20, 30], &[3.0, 2.0, 1.0], &[0.0, 1.0, 2.0], 3.0).with_communication(&cost);
        let best = &candidates(&workload).unwrap()[0];
        assert!(!best.schedule.forward_overlap && best.iteration_s == 6.0, "{best:?}");
    }
}
