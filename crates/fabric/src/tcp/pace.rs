//! How fast a connection goes, and so how many bytes may stand in front of an urgent frame.

use std::time::{Duration, Instant};

use super::TcpOptions;

/// What this link has accepted and the kernel has not keeps an urgent frame waiting no longer than about twice this, frame
/// in the middle included. What the kernel has accepted comes on top ([`TcpOptions::kernel_unsent_bytes_max`]: another
/// millisecond at 1 Gbit/s; less there costs rate, see docs/benchmarking.md).
const WAIT: Duration = Duration::from_micros(500);
/// A frame costs its header and a few microseconds on both sides, whatever its length: less than this per frame is lost
/// time even on a slow link.
const BYTES_MIN: usize = 32 << 10;
/// A rate is taken over at least so long: the kernel takes bytes in gulps.
const SAMPLE_MIN: Duration = Duration::from_millis(2);
/// What a link carries is taken over longer ones: the fastest of them, less a little for each that came since. A busy
/// processor makes a link slow now and then; a link that has become slow makes all of them slow.
const LINK_SAMPLE_MIN: Duration = Duration::from_millis(20);
const LINK_MEMORY: f64 = 0.995;
/// A link that takes at once whatever it may be given is not as slow as it was taken for: so much more each time.
const RECOVERY: f64 = 1.1;

/// The rate at which the kernel takes bytes of a stream that has more of them than it takes.
///
/// It is measured from one moment at which the kernel's buffer is full to another: what was taken in between is what was
/// sent. From a full buffer to the end of the data at least as much was sent; where messages are short that is all there
/// is to see, so it counts, added up over several of them, as far as it speaks for a faster link. A stream that had nothing
/// to send says nothing about its connection.
#[derive(Debug, Default)]
pub(super) struct Pace {
    full_since: Option<Instant>,
    sample: Sample,
    /// Of messages that ended before a sample was complete.
    ends: Sample,
    bytes_per_s: Option<f64>,
    link_sample: Sample,
    link_bytes_per_s: f64,
}

/// Bytes that were taken, and how long it took.
#[derive(Debug, Default)]
struct Sample {
    taken: usize,
    time: Duration,
}

impl Sample {
    fn add(&mut self, taken: usize, time: Duration) {
        self.taken += taken;
        self.time += time;
    }

    /// The rate, if that was long enough to believe it. Then the next sample begins.
    fn take_rate(&mut self, least: Duration) -> Option<f64> {
        let Sample { taken, time } = *self;
        (time >= least).then(|| {
            *self = Sample::default();
            taken as f64 / time.as_secs_f64()
        })
    }
}

impl Pace {
    /// The kernel has taken so many bytes just now, and would not take those that are left. What the link carries, in
    /// bytes/s, each time that more is known about it.
    pub(super) fn full(&mut self, taken: usize, now: Instant) -> Option<f64> {
        let time = now.saturating_duration_since(self.full_since.replace(now)?);
        self.sample.add(taken, time);
        if let Some(rate) = self.sample.take_rate(SAMPLE_MIN) {
            // A receiver that was not scheduled for a while makes no slow link: believe more at once, less by and by.
            let known = self.bytes_per_s.unwrap_or(rate);
            self.bytes_per_s = Some(rate.max(0.75 * known + 0.25 * rate));
        }
        self.link_sample.add(taken, time);
        let rate = self.link_sample.take_rate(LINK_SAMPLE_MIN)?;
        self.link_bytes_per_s = rate.max(LINK_MEMORY * self.link_bytes_per_s);
        Some(self.link_bytes_per_s)
    }

    /// Has the kernel refused bytes since it had all?
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// The kernel has taken so many bytes just now, which were all that there was, and has refused none of them.
    pub(super) fn took_all(&mut self, taken: usize, options: &TcpOptions) {
        let unmeasured = rate_of(options.unsent_bytes_unmeasured);
        if let Some(rate) = self.bytes_per_s.filter(|rate| *rate < unmeasured && taken >= self.bytes(options)) {
            self.bytes_per_s = Some((RECOVERY * rate.max(rate_of(BYTES_MIN))).min(unmeasured));
        }
    }

    /// The same after it has refused some.
    pub(super) fn drained(&mut self, taken: usize, now: Instant, options: &TcpOptions) {
        let Some(since) = self.full_since.take() else { return };
        let Sample { taken: before, time } = std::mem::take(&mut self.sample);
        self.ends.add(before + taken, time + now.saturating_duration_since(since));
        let known = self.bytes_per_s.unwrap_or(rate_of(options.unsent_bytes_unmeasured));
        if let Some(rate) = self.ends.take_rate(SAMPLE_MIN).filter(|rate| *rate > known) {
            self.bytes_per_s = Some(rate);
        }
    }

    /// The bytes that may wait, and the longest frame.
    pub(super) fn bytes(&self, options: &TcpOptions) -> usize {
        let of = |rate: f64| ((rate * WAIT.as_secs_f64()) as usize).max(BYTES_MIN);
        self.bytes_per_s.map_or(options.unsent_bytes_unmeasured, of).min(options.unsent_bytes_max)
    }
}

/// Of a connection on which so many bytes may wait.
fn rate_of(bytes: usize) -> f64 {
    bytes as f64 / WAIT.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn options() -> TcpOptions {
        TcpOptions { unsent_bytes_unmeasured: 256 << 10, unsent_bytes_max: 1 << 20, ..TcpOptions::default() }
    }

    /// A kernel that is full at the start, takes `bytes_per_ms` each millisecond of those and is full again.
    fn after(pace: &mut Pace, start: Instant, milliseconds: u32, bytes_per_ms: usize) -> Instant {
        pace.full(0, start);
        (1..=milliseconds).for_each(|ms| _ = pace.full(bytes_per_ms, start + MS * ms));
        start + MS * milliseconds
    }

    #[test]
    fn half_a_millisecond_of_the_rate_may_wait() {
        let (mut pace, start, options) = (Pace::default(), Instant::now(), options());
        assert_eq!(pace.bytes(&options), 256 << 10, "nothing is known");
        let end = after(&mut pace, start, 10, 125_000);
        assert_eq!(pace.bytes(&options), 62_500);
        // Faster is believed at once, also beyond what may wait where nothing is known.
        let end = after(&mut pace, end, 4, 400_000);
        assert!(pace.bytes(&options) > 190_000, "{pace:?}");
        let end = after(&mut pace, end, 4, 1_500_000);
        assert_eq!(pace.bytes(&options), 750_000);
        after(&mut pace, end, 4, 10_000_000);
        assert_eq!(pace.bytes(&options), 1 << 20, "the options are the limit");
        assert_eq!(pace.bytes(&TcpOptions { unsent_bytes_max: 1000, ..options }), 1000);
    }

    #[test]
    fn slow_is_believed_by_and_by_and_has_a_limit() {
        let (mut pace, start, options) = (Pace::default(), Instant::now(), options());
        let end = after(&mut pace, start, 10, 125_000);
        let later = after(&mut pace, end, 2, 1_000);
        assert!(pace.bytes(&options) > 40_000, "one bad moment: {pace:?}");
        after(&mut pace, later, 100, 1_000);
        assert_eq!(pace.bytes(&options), BYTES_MIN);
    }

    #[test]
    fn a_slow_time_is_forgotten_when_the_kernel_takes_all_again() {
        let (mut pace, start, options) = (Pace::default(), Instant::now(), options());
        let end = after(&mut pace, start, 100, 1_000);
        pace.drained(0, end, &options);
        (0..50).for_each(|_| pace.took_all(100, &options));
        assert_eq!(pace.bytes(&options), BYTES_MIN, "little that is taken at once says nothing");
        for _ in 0..50 {
            let may_wait = pace.bytes(&options);
            pace.took_all(may_wait, &options);
        }
        assert_eq!(pace.bytes(&options), 256 << 10, "as much as where nothing is known, and no more");
        // Sending slowly again is seen again.
        after(&mut pace, end, 100, 1_000);
        assert_eq!(pace.bytes(&options), BYTES_MIN);
    }

    /// Messages that are over within less than the time of a sample.
    #[test]
    fn short_messages_on_a_fast_link_are_seen_together_and_make_no_link_slow() {
        let (mut pace, mut now, options) = (Pace::default(), Instant::now(), options());
        let message = |pace: &mut Pace, now: &mut Instant, bytes: usize, took: Duration| {
            pace.full(123_456, *now);
            pace.full(bytes / 2, *now + took / 2);
            pace.drained(bytes / 2, *now + took, &options);
            *now += Duration::from_secs(1);
        };
        for _ in 0..3 {
            message(&mut pace, &mut now, 1_200_000, MS / 2);
            assert_eq!(pace.bytes(&options), 256 << 10, "not long enough: {pace:?}");
        }
        message(&mut pace, &mut now, 1_200_000, MS / 2);
        assert_eq!(pace.bytes(&options), 1 << 20, "2.4 GB/s");
        for _ in 0..100 {
            message(&mut pace, &mut now, 1_000, MS);
        }
        assert_eq!(pace.bytes(&options), 1 << 20, "who came back late cannot say how fast the link was");
    }

    #[test]
    fn a_link_carries_what_it_did_at_its_best_until_it_is_slow_for_long() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut link = |milliseconds: std::ops::Range<u32>, bytes_per_ms: usize| {
            milliseconds.filter_map(|ms| pace.full(bytes_per_ms, start + MS * ms)).last()
        };
        assert_eq!(link(0..20, 125_000), None, "not long enough");
        assert_eq!(link(20..200, 125_000), Some(125e6));
        let busy = link(200..1_000, 20_000).expect("known");
        assert!((100e6..125e6).contains(&busy), "{busy}");
        let slow = link(1_000..20_000, 20_000).expect("known");
        assert!((20e6..21e6).contains(&slow), "{slow}");
    }

    #[test]
    fn a_pause_is_not_taken_for_a_slow_link() {
        let (mut pace, start, options) = (Pace::default(), Instant::now(), options());
        let end = after(&mut pace, start, 10, 125_000);
        pace.drained(1, end, &options);
        assert!(!pace.is_full());
        after(&mut pace, end + Duration::from_secs(5), 4, 125_000);
        assert_eq!(pace.bytes(&options), 62_500);
    }
}
