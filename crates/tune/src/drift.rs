//! Notices that a network is no longer what it was.

use std::collections::VecDeque;

use crate::statistics::Tally;

/// A call in so many is the default's, for as long as another choice stands and nothing is in doubt: the sentinel.
pub const SENTINEL_EVERY: u64 = 256;

/// Deviations that are normal. One: the mean that calls are compared with is off by some tenths of a deviation itself, and half a
/// deviation to each side would take that for a change sooner or later.
const SLACK: f64 = 1.0;

/// The sum from which it is worth asking the default. Of normal noise whose deviation is known, and of calls of which none says anything
/// about the next, it would come once in e^24 calls. Real calls are not like that: noise rises, has tails, and lasts for some
/// calls, and then alarms come of nothing. So an alarm is believed only when the default says the same.
const ALARM: f64 = 12.0;

/// The sum from which it is worth a look: one call that is three deviations away.
const SUSPICIOUS: f64 = 2.0;

/// No single call counts for more deviations than that, so that a straggler alone is no drift.
const CLIPPED: f64 = 4.0;

/// What is learned of a call is no further away than so many deviations: a straggler says little, and noise that has risen is noticed all
/// the same, as every call is learned from.
const LEARNED: f64 = 2.5;

/// Calls from which the mean is known well enough to compare with.
const KNOWN: f64 = 16.0;

/// The least deviation that counts, of the logarithm: one percent.
const DEVIATION_MIN: f64 = 0.01;

/// Watches how much longer calls take than was expected of them: sums of deviations to both sides (Page, "Continuous inspection
/// schemes", 1954).
#[derive(Clone, Debug, Default)]
pub struct Drift {
    reference: Tally,
    /// The variance when nothing was suspected last: calls since then may be those of another network.
    calm: f64,
    slower: f64,
    faster: f64,
}

impl Drift {
    /// A call took so many times as long as was expected, and that may be off by `doubt` (a standard deviation of the logarithm); `noise` is
    /// what calls like it are known to vary. True if it looks as if the network has changed; then sums begin anew.
    pub fn observe(&mut self, ratio: f64, doubt: f64, noise: f64) -> bool {
        let value = ratio.ln();
        if self.reference.weight < KNOWN {
            self.reference.add(value, 1.0);
            self.calm = self.reference.variance().unwrap_or(0.0);
            return false;
        }
        // Few calls say little about a deviation: it may be larger than it looks.
        let unsure = 1.0 + 2.0 / self.reference.weight.sqrt();
        let varies = self.reference.variance().unwrap_or(0.0).sqrt();
        let deviation = (unsure * varies).max(noise).max(DEVIATION_MIN);
        let distance = value - self.reference.mean;
        let away = (distance / deviation.hypot(doubt)).clamp(-CLIPPED, CLIPPED);
        self.slower = (self.slower + away - SLACK).max(0.0);
        self.faster = (self.faster - away - SLACK).max(0.0);
        if self.is_calm() {
            self.calm = varies.powi(2);
        }
        let most = LEARNED * varies.max(noise).max(DEVIATION_MIN);
        let near = distance.clamp(-most, most);
        self.reference.add(self.reference.mean + near, 0.995);
        let alarm = self.slower > ALARM || self.faster > ALARM;
        if alarm {
            (self.slower, self.faster) = (0.0, 0.0);
        }
        alarm
    }

    /// The network has changed. How calls vary is still known, and that they will take what is expected; so the next change is noticed
    /// as soon. (Were it only learned anew, a change in between would pass for what is usual, and nobody could tell the next ones.)
    pub fn begin_anew(&mut self) {
        let Drift { calm, .. } = *self;
        *self = Drift { reference: Tally::known(KNOWN, 0.0, calm), calm, ..Drift::default() };
    }

    /// Was there a call so far away that the next ones should tell?
    pub fn is_suspicious(&self) -> bool {
        self.slower.max(self.faster) > SUSPICIOUS
    }

    /// Is all as it was, as far as is known?
    pub fn is_calm(&self) -> bool {
        self.slower <= 0.0 && self.faster <= 0.0
    }
}

/// Compares a choice that stands with the default, by the sentinel's calls: in seconds, as what is promised are sums.
#[derive(Clone, Debug)]
pub struct Sentinel {
    chosen: Tally,
    default: VecDeque<f64>,
    /// Calls since the last one of the sentinel, and after how many the next one is due.
    since: u64,
    wait: u64,
}

/// The first call of a sentinel comes after so many, and so does the next one whenever there is doubt.
const SENTINEL_FIRST: u64 = 16;

/// The sentinel's last calls that count: so many follow each other closely when there is doubt, so that it ends soon.
const SENTINEL_CALLS: usize = 5;

/// The default is better again if it is so many standard deviations better. It is asked after each of the sentinel's calls, some hundred
/// times in a job; four deviations are so rare that all of them together are.
const SENTINEL_SURE: f64 = 4.0;

impl Default for Sentinel {
    fn default() -> Sentinel {
        Sentinel { chosen: Tally::default(), default: VecDeque::new(), since: 0, wait: SENTINEL_FIRST }
    }
}

impl Sentinel {
    /// Is the next call the sentinel's? Counts it. One in [`SENTINEL_EVERY`] is when all is as it was, and more often at first and
    /// when there is doubt.
    pub fn is_due(&mut self) -> bool {
        self.since += 1;
        let due = self.since >= self.wait;
        if due {
            self.since = 0;
        }
        due
    }

    /// Something looks wrong: the next call is the sentinel's.
    pub fn hurry(&mut self) {
        self.wait = 1;
    }

    /// The next one comes as late as the first: what was asked so far was asked for another reason.
    pub fn wait_as_at_first(&mut self) {
        (self.since, self.wait) = (0, SENTINEL_FIRST);
    }

    /// The choice is not what it was: only these calls of it count, and those that come. The default's count as before.
    pub fn begin_anew(&mut self, chosen_s: impl IntoIterator<Item = f64>) {
        self.chosen = Tally::default();
        chosen_s.into_iter().for_each(|seconds| self.add_chosen(seconds));
    }

    /// A call of the choice.
    pub fn add_chosen(&mut self, seconds: f64) {
        self.chosen.add(seconds, 0.98);
    }

    /// A call of the default.
    pub fn add_default(&mut self, seconds: f64) {
        self.default.push_back(seconds);
        if self.default.len() > SENTINEL_CALLS {
            self.default.pop_front();
        }
        let doubtful = seconds < self.chosen.mean;
        self.wait = if doubtful { SENTINEL_FIRST } else { (2 * self.wait).clamp(SENTINEL_FIRST, SENTINEL_EVERY) };
    }

    /// Is the default better, by all that is known? Then there is no reason to stand by the choice. To be asked after a call of the
    /// sentinel.
    pub fn prefers_default(&self) -> bool {
        let mut default = Tally::default();
        self.default.iter().for_each(|&seconds| default.add(seconds, 1.0));
        let (Some(here), Some(there)) = (self.chosen.variance(), default.variance()) else { return false };
        if self.default.len() < SENTINEL_CALLS {
            return false;
        }
        // Both vary alike; five calls alone would look too quiet now and then.
        let error = (here.max(there) * (1.0 / self.chosen.weight + 1.0 / default.weight)).sqrt();
        default.mean + SENTINEL_SURE * error < self.chosen.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn calls_until_noticed(factor: f64, seed: u64) -> Option<usize> {
        let (mut drift, mut random) = (Drift::default(), Random::new(seed, 3));
        for call in 0..3000 {
            let factor = if call < 200 { 1.0 } else { factor };
            if drift.observe(factor * (0.05 * random.normal()).exp(), 0.0, 0.0) {
                return Some(call);
            }
        }
        None
    }

    #[test]
    fn a_change_is_noticed_within_ten_calls_and_noise_is_not() {
        for seed in 0..20 {
            for factor in [5.0, 1.5, 0.6] {
                let call = calls_until_noticed(factor, seed);
                assert!(call.is_some_and(|call| (200..210).contains(&call)), "seed {seed}, {factor}: {call:?}");
            }
            assert_eq!(calls_until_noticed(1.0, seed), None, "seed {seed}");
        }
    }

    /// Two percent of the calls take half as long again, and the network is good and bad in turn for some calls.
    #[test]
    fn a_second_mode_and_short_bursts_are_no_change() {
        let mut alarms = 0;
        for seed in 0..20 {
            let (mut drift, mut random) = (Drift::default(), Random::new(seed, 4));
            for call in 0..3000 {
                let slow = if random.unit() < 0.02 { 1.5 } else { 1.0 };
                let burst = if call % 100 < 2 { 1.2 } else { 1.0 };
                alarms += u32::from(drift.observe(slow * burst * (0.03 * random.normal()).exp(), 0.0, 0.0));
            }
        }
        // Two calls in a row add up to 6 at most.
        assert!(alarms <= 3, "{alarms} alarms in 60,000 calls");
    }

    /// After a change, the next one is noticed as soon.
    #[test]
    fn changes_that_follow_each_other_are_all_noticed() {
        let (mut drift, mut random) = (Drift::default(), Random::new(2, 6));
        let mut calls = |drift: &mut Drift, factor: f64, count: usize| {
            let mut once = |_: &usize| drift.observe(factor * (0.05 * random.normal()).exp(), 0.02, 0.0);
            (0..count).find(&mut once).unwrap_or(count)
        };
        assert_eq!(calls(&mut drift, 1.0, 100), 100);
        for factor in [2.0, 0.5, 2.0, 0.5] {
            let noticed = calls(&mut drift, factor, 12);
            assert!(noticed < 10, "{factor}: {noticed}, {drift:?}");
            drift.begin_anew();
            // What is expected has followed.
            assert_eq!(calls(&mut drift, 1.0, 3), 3);
        }
    }

    /// Noise that becomes three times as large raises some alarms, and is known soon.
    #[test]
    fn noise_that_rises_is_noise_before_long() {
        let (mut soon, mut late) = (0, 0);
        for seed in 0..20 {
            let (mut drift, mut random) = (Drift::default(), Random::new(seed, 8));
            for call in 0..2000 {
                let noise = if call < 200 { 0.03 } else { 0.09 };
                let alarm = drift.observe((noise * random.normal()).exp(), 0.0, 0.0);
                assert!(!alarm || call >= 200, "seed {seed}");
                *if call < 400 { &mut soon } else { &mut late } += u32::from(alarm);
            }
        }
        assert!(soon <= 20 && late <= 2, "{soon} alarms in 200 calls of 20 seeds, and then {late} in 1600");
    }

    /// Who is known to vary more than the others is given more room.
    #[test]
    fn an_arm_with_noise_of_its_own_raises_no_alarm() {
        let alarms = |noise: f64| {
            let (mut drift, mut random) = (Drift::default(), Random::new(3, 9));
            (0..300).for_each(|_| assert!(!drift.observe((0.02 * random.normal()).exp(), 0.0, 0.02)));
            (0..40).filter(|_| drift.observe((0.2 * random.normal()).exp(), 0.0, noise)).count()
        };
        assert!(alarms(0.2) == 0 && alarms(0.02) > 0, "{} and {}", alarms(0.2), alarms(0.02));
    }

    #[test]
    fn the_sentinel_reverts_when_the_default_is_better() {
        let (mut worse, mut better) = (Sentinel::default(), Sentinel::default());
        for call in 0..20 {
            let wobble = 1.0 + 0.01 * f64::from(call % 3);
            worse.add_chosen(1.3e-3 * wobble);
            better.add_chosen(0.9e-3 * wobble);
            [&mut worse, &mut better].into_iter().for_each(|it| it.add_default(1e-3 * wobble));
        }
        assert!(worse.prefers_default() && !better.prefers_default());
    }

    #[test]
    fn the_sentinel_comes_seldom_when_all_is_well_and_often_when_not() {
        let due = |sentinel: &mut Sentinel, calls: u64, default_s: f64| {
            let mut due = Vec::new();
            for call in 1..=calls {
                if sentinel.is_due() {
                    due.push(call);
                    sentinel.add_default(default_s);
                } else {
                    sentinel.add_chosen(0.8e-3);
                }
            }
            due
        };
        let mut sentinel = Sentinel::default();
        assert_eq!(due(&mut sentinel, 1024, 1e-3), [16, 48, 112, 240, 496, 752, 1008]);
        // The default alone becomes faster.
        let calls = due(&mut sentinel, 400, 0.5e-3);
        assert!(sentinel.prefers_default() && calls.len() > 5, "{calls:?}");
        sentinel.hurry();
        assert!(sentinel.is_due());
    }

    /// A gain of 3 % under noise of a tenth: no false alarm in a long job.
    #[test]
    fn the_sentinel_does_not_give_up_what_is_better() {
        for seed in 0..20 {
            let (mut sentinel, mut random) = (Sentinel::default(), Random::new(seed, 5));
            for _ in 0..20_000 {
                let noise = (0.1 * random.normal()).exp();
                if sentinel.is_due() {
                    sentinel.add_default(1e-3 * noise);
                    assert!(!sentinel.prefers_default(), "seed {seed}");
                } else {
                    sentinel.add_chosen(0.97e-3 * noise);
                }
            }
        }
    }
}
