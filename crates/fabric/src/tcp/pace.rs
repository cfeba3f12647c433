//! How fast a connection goes, and so how many bytes may stand in front of an urgent frame.

use std::time::{Duration, Instant};

/// What has been accepted and not sent keeps an urgent frame waiting no longer than about twice this, frame in the middle
/// included. At 1 Gbit/s it is 62 kB; on loopback more than a frame.
const WAIT: Duration = Duration::from_micros(500);
/// A frame costs its header and a few microseconds on both sides, whatever its length: less than this per frame is lost
/// time even on a slow link.
const BYTES_MIN: usize = 32 << 10;
/// A rate is taken over at least so long: the kernel takes bytes in gulps.
const SAMPLE_MIN: Duration = Duration::from_millis(2);

/// The rate at which the kernel takes bytes of a stream that has more of them than it takes.
///
/// It is measured from one moment at which the kernel's buffer is full to another: what was taken in between is what was
/// sent. A stream that had nothing to send for a while says nothing about its connection.
#[derive(Debug, Default)]
pub(super) struct Pace {
    full_since: Option<Instant>,
    taken: usize,
    bytes_per_s: Option<f64>,
}

impl Pace {
    /// The kernel has taken so many bytes just now, and would not take those that are left.
    pub(super) fn full(&mut self, taken: usize, now: Instant) {
        let Some(since) = self.full_since else {
            (self.full_since, self.taken) = (Some(now), 0);
            return;
        };
        self.taken += taken;
        let time = now.saturating_duration_since(since);
        if time < SAMPLE_MIN {
            return;
        }
        let rate = self.taken as f64 / time.as_secs_f64();
        // A receiver that was not scheduled for a while makes no slow link: believe more at once, less by and by.
        let known = self.bytes_per_s.unwrap_or(rate);
        self.bytes_per_s = Some(rate.max(0.75 * known + 0.25 * rate));
        (self.full_since, self.taken) = (Some(now), 0);
    }

    /// Has the kernel refused bytes since it had all?
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// The kernel has taken all that there was.
    pub(super) fn drained(&mut self) {
        self.full_since = None;
    }

    /// The bytes that may wait, and the longest frame; at most `most`, which it is until the rate is known.
    pub(super) fn bytes(&self, most: usize) -> usize {
        let of = |rate: f64| (rate * WAIT.as_secs_f64()) as usize;
        self.bytes_per_s.map_or(most, |rate| of(rate).max(BYTES_MIN).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256 << 10;

    /// A kernel that takes `bytes_per_ms` each millisecond of those and is full again.
    fn after(pace: &mut Pace, start: Instant, milliseconds: u32, bytes_per_ms: usize) -> Instant {
        let end = start + Duration::from_millis(1) * milliseconds;
        (0..=milliseconds).for_each(|ms| pace.full(bytes_per_ms, start + Duration::from_millis(1) * ms));
        end
    }

    #[test]
    fn half_a_millisecond_of_the_rate_may_wait() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.bytes(MOST), MOST, "nothing is known");
        let end = after(&mut pace, start, 10, 125_000);
        assert_eq!(pace.bytes(MOST), 62_500);
        // Faster is believed at once.
        after(&mut pace, end, 4, 400_000);
        assert!(pace.bytes(MOST) > 190_000, "{pace:?}");
    }

    #[test]
    fn slow_is_believed_by_and_by_and_has_a_limit() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let end = after(&mut pace, start, 10, 125_000);
        let later = after(&mut pace, end, 2, 1_000);
        assert!(pace.bytes(MOST) > 40_000, "one bad moment: {pace:?}");
        after(&mut pace, later, 100, 1_000);
        assert_eq!(pace.bytes(MOST), BYTES_MIN);
        assert_eq!(pace.bytes(1000), 1000, "the options are the limit");
    }

    #[test]
    fn a_pause_is_not_taken_for_a_slow_link() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let end = after(&mut pace, start, 10, 125_000);
        pace.drained();
        assert!(!pace.is_full());
        after(&mut pace, end + Duration::from_secs(5), 4, 125_000);
        assert_eq!(pace.bytes(MOST), 62_500);
    }
}
