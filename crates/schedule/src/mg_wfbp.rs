use paceline_strategy::Call;

use crate::{ELEMENT_BYTES, Schedule, ScheduleError, Workload};

/// Neighbours in the ready order, merged so that communication ends as soon as possible.
///
/// Source: Shi, Chu and Li, "MG-WFBP: efficient data communication for distributed synchronous SGD algorithms", INFOCOM
/// 2019. They merge greedily, which is optimal where an operation costs α + βS; [`merge`] is so for any cost.
pub(crate) fn merged(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    best_merge("mg-wfbp", workload)
}

/// The same for another schedule, which is to be named if something has not been measured.
pub(crate) fn best_merge(schedule: &'static str, workload: &Workload) -> Result<Schedule, ScheduleError> {
    let lacking = |lacking| ScheduleError::NotMeasured { schedule, lacking };
    let ready_s = workload.ready_s.as_ref().ok_or(lacking("the times of backward"))?;
    let communication_s = workload.communication_s.ok_or(lacking("the network's times"))?;
    let in_order = workload.ready.iter();
    let ready_s: Vec<f64> = in_order.clone().map(|&tensor| ready_s[tensor]).collect();
    let bytes: Vec<u64> = in_order.map(|&tensor| workload.sizes[tensor] as u64 * ELEMENT_BYTES).collect();
    let (_, ends) = merge(&bytes, &ready_s, communication_s)?;
    let mut start = 0;
    let buckets = ends.iter().map(|&end| workload.ready[std::mem::replace(&mut start, end)..end].to_vec());
    Ok(Schedule::of(buckets.collect()))
}

/// Ends within this share of each other are as early. Of such the one with the fewest buckets wins.
const TIE: f64 = 1e-12;

/// The best merge of tensors of so many `bytes` that become ready at the times `ready_s`, in that order, on a channel
/// that takes one bucket after the other and `communication_s` seconds for each. Returns when the channel falls silent
/// (seconds, on the clock of `ready_s`) and where each bucket ends.
///
/// With F(i) the earliest time at which the first i tensors can have been sent,
/// F(j) = min over i < j of max(F(i), r(j)) + t_c(S(i+1) + … + S(j)): an earlier end of the first i never harms, as the
/// channel is free earlier and nothing else depends on it. So not only the last bucket ends as early as it can, but each,
/// which leaves room for measured times to vary.
///
/// Cost: L²/2 calls of `communication_s`, and time in proportion, L the number of tensors.
pub(crate) fn merge(
    bytes: &[u64],
    ready_s: &[f64],
    communication_s: &dyn Fn(u64) -> f64,
) -> Result<(f64, Vec<usize>), ScheduleError> {
    let tensors = bytes.len();
    let mut best = vec![Prefix::default()];
    for to in 1..=tensors {
        let mut run = 0;
        let mut earliest = Prefix { end_s: f64::INFINITY, buckets: 0, from: 0 };
        let mut later_s = f64::INFINITY;
        for from in (0..to).rev() {
            run += bytes[from];
            let seconds = time_of(run, communication_s)?;
            let before = &best[from];
            let end_s = before.end_s.max(ready_s[to - 1]) + seconds;
            if end_s > later_s {
                continue;
            }
            let tie = (end_s - earliest.end_s).abs() <= TIE * end_s;
            let better = if tie { before.buckets + 1 < earliest.buckets } else { end_s < earliest.end_s };
            if better {
                earliest = Prefix { end_s, buckets: before.buckets + 1, from };
                later_s = end_s * (1.0 + 2.0 * TIE);
            }
        }
        best.push(earliest);
    }
    let mut ends = Vec::new();
    let mut end = tensors;
    while end > 0 {
        ends.push(end);
        end = best[end].from;
    }
    ends.reverse();
    Ok((best[tensors].end_s, ends))
}

/// The best way to send the first tensors.
#[derive(Default)]
struct Prefix {
    end_s: f64,
    buckets: usize,
    /// Where its last bucket begins.
    from: usize,
}

fn time_of(bytes: u64, communication_s: &dyn Fn(u64) -> f64) -> Result<f64, ScheduleError> {
    let seconds = communication_s(bytes);
    if (0.0..=f64::MAX).contains(&seconds) {
        return Ok(seconds);
    }
    Err(ScheduleError::Cost { bytes, seconds: seconds.to_string() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// When the channel falls silent if buckets end where `ends` says.
    fn silent(bytes: &[u64], ready_s: &[f64], ends: &[usize], communication_s: &dyn Fn(u64) -> f64) -> f64 {
        let (mut start, mut free) = (0, 0.0f64);
        for &end in ends {
            free = free.max(ready_s[end - 1]) + communication_s(bytes[start..end].iter().sum());
            start = end;
        }
        free
    }

    /// All merges of neighbours: each tensor but the last ends a bucket or does not.
    fn exhaustive(bytes: &[u64], ready_s: &[f64], communication_s: &dyn Fn(u64) -> f64) -> f64 {
        let tensors = bytes.len();
        let merges = (0..1u32 << (tensors - 1)).map(|mask| {
            let ends = (1..=tensors).filter(|&end| end == tensors || mask >> (end - 1) & 1 == 1);
            let ends: Vec<usize> = ends.collect();
            silent(bytes, ready_s, &ends, communication_s)
        });
        merges.fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// Up to 16 tensors, on networks with a start-up, with one that has steps (protocols that change with the size), with a
        /// start-up that grows, and with one where splitting pays.
        #[test]
        fn no_merge_is_better(
            tensors in prop::collection::vec((1u64..1000, 0.0f64..3.0), 1..=16),
            (alpha, beta) in (0.0f64..4.0, 0.0f64..0.01),
            shape in 0..4,
        ) {
            let bytes: Vec<u64> = tensors.iter().map(|tensor| tensor.0).collect();
            let ready_s: Vec<f64> = tensors.iter().scan(0.0, |now, tensor| { *now += tensor.1; Some(*now) }).collect();
            let cost = |bytes: u64| {
                let linear = alpha + beta * bytes as f64;
                match shape {
                    0 => linear,
                    1 => linear + if bytes > 700 { alpha } else { 0.0 },
                    2 => linear + beta * (bytes as f64).sqrt(),
                    _ => alpha * 0.1 + beta * (bytes as f64).powf(1.2),
                }
            };
            let (time, ends) = merge(&bytes, &ready_s, &cost).expect("a merge");
            let best = exhaustive(&bytes, &ready_s, &cost);
            prop_assert!((time - best).abs() <= 1e-9 * best, "{} instead of {}", time, best);
            prop_assert!((silent(&bytes, &ready_s, &ends, &cost) - time).abs() <= 1e-9 * time);
        }
    }

    /// The closed case: three tensors ready at 1, 2 and 3 s, a start-up of 2 s, nothing per byte. One by one they end at 3,
    /// 5 and 7 s; all merged at 5 s; and two buckets, the first sent at 1 s, at 3 + 2 = 5 s, too, which is one bucket more.
    #[test]
    fn a_start_up_that_dominates_merges_all() {
        let (time, ends) = merge(&[1, 1, 1], &[1.0, 2.0, 3.0], &|_| 2.0).unwrap();
        assert_eq!((time, ends), (5.0, vec![3]));
    }

    /// Without a start-up there is nothing to gain from waiting for the next tensor.
    #[test]
    fn without_start_up_nothing_that_waits_is_merged() {
        let (time, ends) = merge(&[2, 2, 2], &[1.0, 3.0, 5.0], &|bytes| bytes as f64).unwrap();
        assert_eq!((time, ends), (7.0, vec![1, 2, 3]));
    }

    /// The condition of the paper, at its edge: tensor 2 is ready at 1 s and would be sent until 3.5 s; tensor 1 is ready at
    /// 2 s. Merging delays tensor 2 by a second and saves the start-up; it pays if that is more than a second.
    #[test]
    fn a_merge_pays_if_the_wait_is_shorter_than_the_start_up() {
        let merged = |alpha: f64| {
            let cost = move |bytes: u64| alpha + bytes as f64;
            merge(&[2, 3], &[1.0, 2.0], &cost).unwrap().1.len() == 1
        };
        assert!(merged(1.1) && !merged(0.9));
    }

    #[test]
    fn a_cost_that_is_no_time_is_refused() {
        let error = merge(&[1, 1], &[0.0, 1.0], &|bytes| if bytes > 1 { f64::NAN } else { 1.0 }).unwrap_err();
        assert_eq!(error, ScheduleError::Cost { bytes: 2, seconds: "NaN".into() });
        assert!(merge(&[1], &[0.0], &|_| -1.0).is_err());
        assert_eq!(merge(&[], &[], &|_| 1.0).unwrap(), (0.0, vec![]));
    }
}
