//! How long calls have taken by themselves, where several were under way at once.

use std::time::Duration;

/// Of a call that ends so soon after another one, as a share of what that one took, the link has carried both at once.
const TOGETHER: f64 = 0.1;

/// A call on one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: Duration,
    pub(super) end: Duration,
    pub(super) bytes: usize,
}

/// Seconds of each call, in O(calls · log calls).
///
/// A link carries one large call after the other: what a call has waited for those before it is not its own time. So that counts
/// from its start, or from the end of the last one that ended before it, whichever is later. Small calls travel beside each
/// other and end all at once: they share the time of the first of them, by their bytes.
pub(super) fn own_times(calls: &[Span]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&call| calls[call].end);
    let mut own = vec![0.0; calls.len()];
    let mut group: Vec<usize> = Vec::new();
    // The group's first call took so long, and all of it.
    let (mut first_s, mut all_s, mut last) = (0.0, 0.0, Duration::ZERO);
    for call in order {
        let Span { start, end, .. } = calls[call];
        let gap_s = end.saturating_sub(start.max(last)).as_secs_f64();
        if group.is_empty() || start >= last || gap_s >= TOGETHER * first_s {
            share(calls, &group, all_s, &mut own);
            group.clear();
            (first_s, all_s) = (gap_s, 0.0);
        }
        group.push(call);
        all_s += gap_s;
        last = end;
    }
    share(calls, &group, all_s, &mut own);
    own
}

/// Shares the time of a group among its calls.
fn share(calls: &[Span], group: &[usize], seconds: f64, own: &mut [f64]) {
    let bytes = |call: usize| calls[call].bytes.max(1) as f64;
    let all: f64 = group.iter().map(|&call| bytes(call)).sum();
    for &call in group {
        own[call] = seconds * bytes(call) / all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of calls from so many milliseconds to so many, of so many bytes.
    fn own(calls: &[(u64, u64, usize)]) -> Vec<f64> {
        let span = |&(start, end, bytes): &(u64, u64, usize)| Span {
            start: Duration::from_millis(start),
            end: Duration::from_millis(end),
            bytes,
        };
        let calls: Vec<Span> = calls.iter().map(span).collect();
        own_times(&calls).iter().map(|seconds| (1e6 * seconds).round() / 1e3).collect()
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
}
