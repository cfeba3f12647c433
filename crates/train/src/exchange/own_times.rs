//! How long calls have taken by themselves, where several were under way at once, as all ranks together have seen it.
//!
//! Whoever comes early to a call waits for the last rank, which waits for nobody: of each call the least time of all ranks is its own.
//! (Of a mean of many calls it is not: if ranks come last in turn, each one's mean contains waits.)
//!
//! But calls queue, and of one that was made before the one before it had ended, a rank sees only how much later it has ended. Ranks
//! see ends at slightly different times, and whoever has seen the one before late takes this call for short: the least of that, call by
//! call, would add up to less than the link has worked. So ranks compare how long after the beginning of its queue a call has ended. Of
//! that the least counts, and own times are what it grows by from call to call. A queue begins with a call that was made when nothing
//! was under way; a rank whose queue begins later than that of others has come late, and what it sees contains no wait for it.

use std::time::Duration;

/// Of a call that ends so soon after another one, as a share of what that one took, the link has carried both at once.
const TOGETHER: f64 = 0.1;

/// A queue is no longer than that, in seconds: longer ones count as if they were.
const QUEUE_S: f64 = 1024.0;

/// Queues are told apart by the call with which they begin, up to this one. An `f64` of 53 bits then holds seconds to 15 ns.
const BEGINNING_MAX: usize = (1 << 17) - 1;

/// A call on one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: Duration,
    pub(super) end: Duration,
}

/// What a rank tells of its calls, a number for each, of which the least over all ranks counts: the later its queue has begun, the less it
/// is, and of queues that have begun with the same call, the sooner it has ended. Infinite stands for a call of which a rank knows nothing.
pub(super) fn told(calls: &[Span]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&call| calls[call].end);
    let mut told = vec![f64::INFINITY; calls.len()];
    let (mut began, mut beginning, mut last) = (Duration::ZERO, 0, Duration::ZERO);
    for (place, call) in order.into_iter().enumerate() {
        let Span { start, end } = calls[call];
        if start >= last {
            (began, beginning) = (start, place.min(BEGINNING_MAX));
        }
        let until_s = end.saturating_sub(began).as_secs_f64().min(QUEUE_S - 1.0);
        told[call] = (BEGINNING_MAX - beginning) as f64 * QUEUE_S + until_s;
        last = end;
    }
    told
}

/// Seconds of each call, of so many bytes, out of the least that ranks have told; infinite if none has. In O(calls · log calls).
///
/// A link carries one large call after the other: what a call has waited for those before it is not its own time. So that counts
/// from the beginning of its queue, or from the end of the last one that ended before it. Small calls travel beside each
/// other and end all at once: they share the time of the first of them, by their bytes.
pub(super) fn own_times(least: &[f64], bytes: &[usize]) -> Vec<f64> {
    // Queue by queue, and in each as calls have ended.
    let mut order: Vec<usize> = (0..least.len()).filter(|&call| least[call].is_finite()).collect();
    order.sort_by(|&one, &other| least[one].total_cmp(&least[other]));
    let mut own = vec![f64::INFINITY; least.len()];
    let mut group: Vec<usize> = Vec::new();
    // The group's first call took so long, and all of it.
    let (mut first_s, mut all_s) = (0.0, 0.0);
    let mut last: Option<(u64, f64)> = None;
    for call in order {
        let (queue, until_s) = ((least[call] / QUEUE_S) as u64, least[call] % QUEUE_S);
        let before_s = last.filter(|(of, _)| *of == queue).map(|(_, until_s)| until_s);
        let gap_s = until_s - before_s.unwrap_or(0.0);
        if before_s.is_none() || gap_s >= TOGETHER * first_s {
            share(bytes, &group, all_s, &mut own);
            group.clear();
            (first_s, all_s) = (gap_s, 0.0);
        }
        group.push(call);
        all_s += gap_s;
        last = Some((queue, until_s));
    }
    share(bytes, &group, all_s, &mut own);
    own
}

/// Shares the time of a group among its calls.
fn share(bytes: &[usize], group: &[usize], seconds: f64, own: &mut [f64]) {
    let bytes = |call: usize| bytes[call].max(1) as f64;
    let all: f64 = group.iter().map(|&call| bytes(call)).sum();
    for &call in group {
        own[call] = seconds * bytes(call) / all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(&(start, end): &(u64, u64)) -> Span {
        Span { start: Duration::from_millis(start), end: Duration::from_millis(end) }
    }

    /// Milliseconds of calls of so many bytes, each of which every rank has seen from so many milliseconds to so many.
    fn of_ranks(ranks: &[&[(u64, u64)]], bytes: &[usize]) -> Vec<f64> {
        let mut least = vec![f64::INFINITY; bytes.len()];
        for calls in ranks {
            let calls: Vec<Span> = calls.iter().map(span).collect();
            least.iter_mut().zip(told(&calls)).for_each(|(least, told)| *least = least.min(told));
        }
        own_times(&least, bytes).iter().map(|seconds| (1e6 * seconds).round() / 1e3).collect()
    }

    /// The same of a rank that has seen what all have.
    fn own(calls: &[(u64, u64, usize)]) -> Vec<f64> {
        let times: Vec<(u64, u64)> = calls.iter().map(|&(start, end, _)| (start, end)).collect();
        of_ranks(&[&times[..]], &calls.iter().map(|&(.., bytes)| bytes).collect::<Vec<_>>())
    }

    #[test]
    fn what_waits_in_a_queue_is_not_charged_for_it() {
        assert_eq!(own(&[(0, 10, 8), (0, 20, 8), (1, 40, 8)]), [10.0, 10.0, 20.0]);
        // Whoever comes later has waited less, in whatever order they are given.
        assert_eq!(own(&[(12, 40, 8), (0, 10, 8), (5, 20, 8)]), [20.0, 10.0, 10.0]);
        assert_eq!(own(&[(0, 10, 8), (15, 20, 8)]), [10.0, 5.0], "the link was idle between them");
    }

    #[test]
    fn what_ends_at_once_shares_the_time() {
        assert_eq!(own(&[(0, 100, 8), (0, 101, 8), (0, 102, 8), (0, 105, 8)]), [26.25; 4]);
        assert_eq!(own(&[(0, 100, 1900), (0, 105, 100)]), [99.75, 5.25], "a small one behind a large one");
        assert_eq!(own(&[(0, 7, 0), (0, 7, 0)]), [3.5, 3.5]);
    }

    #[test]
    fn no_call_and_one_of_no_length_are_nothing_special() {
        assert!(own(&[]).is_empty());
        assert_eq!(own(&[(5, 5, 1)]), [0.0]);
    }

    /// Each rank is last for some call, by its own clock: the mean of no rank is free of waits.
    #[test]
    fn who_waits_for_ranks_that_come_late_in_turn_is_not_charged_for_it() {
        let here = [(0, 12), (30, 32), (40, 52)];
        let there = [(1010, 1012), (1020, 1032), (1050, 1052)];
        assert_eq!(of_ranks(&[&here, &there], &[8; 3]), [2.0; 3]);
    }

    /// The other rank makes the second call when the first has ended long ago: the queue of this one was a wait for it.
    #[test]
    fn a_queue_in_which_somebody_comes_late_begins_anew() {
        let here = [(0, 10), (0, 30), (0, 40)];
        let there = [(0, 10), (20, 30), (21, 40)];
        assert_eq!(of_ranks(&[&here, &there], &[8; 3]), [10.0; 3]);
        assert_eq!(of_ranks(&[&there, &here], &[8; 3]), [10.0; 3]);
    }

    /// The link works for 40 ms. Of each call's own time the least would be 10, 8, 10 and 8 ms.
    #[test]
    fn ends_that_one_rank_sees_late_do_not_shorten_what_follows() {
        let here = [(0, 10), (0, 20), (0, 30), (0, 40)];
        let there = [(0, 12), (0, 20), (0, 32), (0, 40)];
        assert_eq!(of_ranks(&[&here, &there], &[8; 4]), [10.0; 4]);
    }

    #[test]
    fn what_one_rank_does_not_know_another_tells() {
        let least = |calls: &[(u64, u64)]| told(&calls.iter().map(span).collect::<Vec<_>>());
        let of_one = least(&[(0, 10), (0, 30)]);
        let own = own_times(&[of_one[0], f64::INFINITY, of_one[1]], &[8; 3]);
        assert!((own[0] - 10e-3).abs() < 1e-6 && own[1].is_infinite() && (own[2] - 20e-3).abs() < 1e-6, "{own:?}");
        // Longer than any queue may be, and no less than one that has begun before.
        let long = least(&[(0, 1), (2, 10_000_000)]);
        assert!(long[1] < long[0] && own_times(&long, &[8; 2])[1] > 1000.0, "{long:?}");
    }
}
