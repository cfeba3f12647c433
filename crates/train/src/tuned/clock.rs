//! How long calls last, on clocks that the ranks have compared.
//!
//! A call lasts from when the last rank has begun it until the last one has ended it. No rank sees that alone: who comes early waits for the
//! others, and of a tree or a ring some ranks have their result long before others. So beginning and end are taken by a clock that is the same
//! on all ranks ([`Communicator::compare_clocks`]).

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, ClockOffset, CommError, Communicator};
use paceline_tune::Schedule;

use super::Made;

/// By which share of the time clocks of hosts run apart at most: that is much for a quartz.
const APART: f64 = 50e-6;
/// So they are compared again after so long: they may be a tenth of a millisecond apart by then.
const OLD: Duration = Duration::from_secs(2);
/// And no oftener than so that it takes a thousandth of the time, unless that would be longer than clocks can be trusted.
const OLD_TIMES: u32 = 1000;
const OLD_MAX: Duration = Duration::from_secs(30);

/// Where nobody meets, they are compared again after so many calls: clocks that run apart by 50 millionths are three thousandths of a call apart by
/// then.
const AGAIN: u64 = 64;

/// Any moment by which two offsets are compared.
const NOON: Duration = Duration::ZERO;

/// Of so many exchanges between two hosts the shortest counts.
const ROUND_TRIPS: usize = 5;

/// A clock that is the same on all ranks, as far as each knows by how much its own differs from rank 0's.
#[derive(Debug, Default)]
pub struct CommonClock {
    /// None before anybody has asked; and since when it is known.
    offset: Option<(ClockOffset, Instant)>,
    /// So many calls of [`CommonClock::compare_now_and_then`] since it was last compared.
    calls: u64,
}

impl CommonClock {
    /// Compares the ranks' clocks. All of them call it, while no message is under way. What was known before stays if it is still known
    /// better, and the two do not contradict each other: where links are busy, a round trip is long, and half of it is the error.
    ///
    /// # Errors
    /// As [`Communicator::compare_clocks`].
    pub fn compare(&mut self, communicator: &Communicator) -> Result<(), CommError> {
        let found = communicator.compare_clocks(ROUND_TRIPS)?;
        self.calls = 0;
        self.keep_the_better(found, Instant::now());
        Ok(())
    }

    fn keep_the_better(&mut self, found: ClockOffset, now: Instant) {
        let is_better = |(known, since): (ClockOffset, Instant)| {
            let error_now_ns = known.error_ns() as f64 + 1e9 * APART * now.duration_since(since).as_secs_f64();
            // What both say of one and the same moment.
            let apart_ns = found.on_rank_0_ns(NOON).saturating_sub(known.on_rank_0_ns(NOON));
            is_known_better(error_now_ns, found.error_ns() as f64, apart_ns as f64)
        };
        if !self.offset.is_some_and(is_better) {
            self.offset = Some((found, now));
        }
    }

    /// The same at the first of some calls, which all ranks make, and among several hosts at every 64th.
    ///
    /// # Errors
    /// As [`CommonClock::compare`].
    pub fn compare_now_and_then(&mut self, communicator: &Communicator) -> Result<(), CommError> {
        self.calls += 1;
        let is_old = self.calls >= AGAIN && communicator.topology().hosts() > 1;
        if self.offset.is_none() || is_old { self.compare(communicator) } else { Ok(()) }
    }

    /// What a call took on this rank.
    pub fn took(&self, communicator: &Communicator, began: Instant, took: Duration) -> Took {
        let offset = self.offset.map(|(offset, _)| offset).unwrap_or_default();
        Took::by_clock(offset, communicator.clock_at(began), took)
    }
}

/// Is what is known to so many nanoseconds better than what was found? Not if they contradict each other: clocks may have been set, or have
/// stopped with their machine.
fn is_known_better(error_ns: f64, of_found_ns: f64, apart_ns: f64) -> bool {
    error_ns < of_found_ns && apart_ns.abs() <= error_ns + of_found_ns
}

/// The clock of a job's calls.
#[derive(Debug)]
pub(super) struct Clock {
    common: CommonClock,
    /// When it was last compared, and what that took.
    compared: (Instant, Duration),
    /// For tests, which compare again after so long.
    pub(super) old_after: Option<Duration>,
    /// Of the calls since the ranks have met: when they began, and what they took.
    spans: Vec<(Instant, Duration)>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let spans = Vec::with_capacity(Schedule::LENGTH_MAX);
        Clock { common: CommonClock::default(), compared: (Instant::now(), Duration::ZERO), old_after: None, spans }
    }

    /// As [`CommonClock::compare`].
    ///
    /// # Errors
    /// The same.
    pub(super) fn compare(&mut self, communicator: &Communicator) -> Result<(), CommError> {
        if communicator.topology().hosts() > 1 {
            // What it takes is not how long the last rank was waited for.
            communicator.barrier(&CallOptions::default())?;
        }
        let began = Instant::now();
        self.common.compare(communicator)?;
        self.compared = (Instant::now(), began.elapsed());
        Ok(())
    }

    /// When that was last.
    #[cfg(test)]
    pub(super) fn compared_at(&self) -> Instant {
        self.compared.0
    }

    pub(super) fn is_compared(&self) -> bool {
        self.common.offset.is_some()
    }

    /// Is it long ago that they were compared? On one host they never have to be again.
    pub(super) fn is_old(&self, communicator: &Communicator) -> bool {
        let (when, took) = self.compared;
        let old_after = self.old_after.unwrap_or_else(|| OLD.max(took * OLD_TIMES).min(OLD_MAX));
        communicator.topology().hosts() > 1 && when.elapsed() >= old_after
    }

    /// What something took on this rank.
    pub(super) fn took(&self, communicator: &Communicator, began: Instant, took: Duration) -> Took {
        self.common.took(communicator, began, took)
    }

    /// A call was made.
    pub(super) fn note(&mut self, began: Instant, took: Duration) {
        self.spans.push((began, took));
    }

    /// What the ranks take the maximum of: nothing, or of each of so many calls [`Took::told`].
    pub(super) fn told(&self, communicator: &Communicator, calls: usize) -> Vec<f64> {
        let is_known = self.is_compared() && self.spans.len() == calls;
        let spans = if is_known { &self.spans[..] } else { &[] };
        spans.iter().flat_map(|(began, took)| self.took(communicator, *began, *took).told()).collect()
    }

    /// Calls last until the last rank has ended them. `told`: the maximum of what all have told.
    pub(super) fn lengthen(made: &mut [Made], told: &[f64]) {
        for (made, told) in made.iter_mut().zip(told.as_chunks().0).filter(|(made, _)| made.seconds.is_finite()) {
            made.seconds = Took::lasted(*told);
        }
    }

    /// All ranks have met: other calls follow.
    pub(super) fn met(&mut self) {
        self.spans.clear();
    }
}

/// What a call took on a rank.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    seconds: f64,
    /// When it began and ended, in seconds of rank 0's clock.
    span: Option<[f64; 2]>,
}

/// Of a call that all ranks begin together.
impl From<f64> for Took {
    fn from(seconds: f64) -> Took {
        Took { seconds, span: None }
    }
}

impl Took {
    /// Of what was never done: it would take for ever.
    pub(super) const NEVER: Took = Took { seconds: f64::INFINITY, span: None };

    /// On this rank.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// When it began by this rank's clock ([`Communicator::clock_at`]), and what it took.
    fn by_clock(offset: ClockOffset, began: Duration, took: Duration) -> Took {
        let (began_s, seconds) = (1e-9 * offset.on_rank_0_ns(began) as f64, took.as_secs_f64());
        Took::between(began_s, began_s + seconds)
    }

    /// From one second of rank 0's clock to another.
    pub(super) fn between(began_s: f64, ended_s: f64) -> Took {
        Took { seconds: ended_s - began_s, span: Some([began_s, ended_s]) }
    }

    /// As if it had taken so many times as long.
    #[must_use]
    pub fn times(self, factor: f64) -> Took {
        let seconds = factor * self.seconds;
        Took { seconds, span: self.span.map(|[began_s, _]| [began_s, began_s + seconds]) }
    }

    pub(super) fn is_by_clock(&self) -> bool {
        self.span.is_some()
    }

    /// What the ranks take the maximum of: what it took, negative; when it began and ended; and what it took.
    pub fn told(&self) -> [f64; 4] {
        let [began_s, ended_s] = self.span.unwrap_or([0.0, self.seconds]);
        [-self.seconds, began_s, ended_s, self.seconds]
    }

    /// How long the call lasted: from when the last rank has begun it until the last one has ended it. `told`: the maximum of what all have. It is
    /// no less than on the rank on which it took least, and no more than on the one on which it took longest, however far clocks are apart.
    pub fn lasted(told: [f64; 4]) -> f64 {
        let [_, began_s, ended_s, _] = told;
        let least_s = Took::least_s(told);
        (ended_s - began_s).min(Took::longest_s(told)).max(least_s)
    }

    /// What it took on the rank on which it took least.
    pub fn least_s(told: [f64; 4]) -> f64 {
        -told[0]
    }

    pub(super) fn longest_s(told: [f64; 4]) -> f64 {
        told[3]
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_comm::ThreadsConfig;
    use paceline_tune::Choice;
    use paceline_tune::environment::{CostModel, OwnModel};

    use super::*;
    use crate::tuned::tests::CALL;

    /// What calls take, in milliseconds. Of each rank, by how many its clock is wrong, and when it began and ended each call.
    fn lasting(ranks: &[(u64, &[[u64; 2]])]) -> Vec<f64> {
        let cluster = paceline_plan::Cluster::named("study-10gbe:4x1").expect("it is built in");
        let context = OwnModel::of(&cluster).state(&CALL).context();
        let calls = ranks[0].1.len();
        let mut told = vec![f64::NEG_INFINITY; 4 * calls];
        let (communicator, met) = (Communicator::solo().unwrap(), Instant::now());
        for (wrong, spans) in ranks {
            let common = CommonClock { offset: Some((ClockOffset::default(), met)), calls: 0 };
            let mut clock = Clock { common, ..Clock::new() };
            for [began, ended] in *spans {
                clock.note(met + Duration::from_millis(began + wrong), Duration::from_millis(ended - began));
            }
            told.iter_mut().zip(clock.told(&communicator, calls)).for_each(|(most, told)| *most = most.max(told));
        }
        let call = Made { context, number: 0, choice: Choice::Default, calls: 1, seconds: 1.0, longest: 1.0 };
        let mut made = vec![call; calls];
        Clock::lengthen(&mut made, &told);
        made.iter().map(|made| (made.seconds * 1e3).round()).collect()
    }

    #[test]
    fn a_call_lasts_from_the_last_to_begin_until_the_last_to_end() {
        // In the second call rank 1 has its result 200 ms late, and so begins the third one late, for which the others wait. In the
        // last one, rank 1 comes late and has its result at once, and the others do not.
        let usual: &[[u64; 2]] = &[[10, 12], [20, 22], [30, 232], [300, 335]];
        let late: &[[u64; 2]] = &[[10, 12], [20, 222], [230, 232], [330, 331]];
        assert_eq!(lasting(&[(0, usual), (0, late), (0, usual)]), [2.0, 202.0, 2.0, 5.0]);
        // Where clocks are wrong, a call takes no less than on any rank, and no more than on the slowest.
        assert_eq!(lasting(&[(600, usual), (0, late)]), [2.0, 2.0, 202.0, 35.0]);
        assert_eq!(lasting(&[(0, usual), (600, late)]), [2.0, 202.0, 2.0, 1.0]);
    }

    #[test]
    fn what_is_known_better_stays_unless_it_is_contradicted() {
        // To 60 us, and from links that were busy.
        assert!(is_known_better(60e3, 3e6, -1e6));
        assert!(!is_known_better(60e3, 3e6, 10e6), "somebody has set a clock");
        assert!(!is_known_better(60e3, 20e3, 0.0) && !is_known_better(60e3, 60e3, 0.0));

        let config = ThreadsConfig { hosts: 2, ..ThreadsConfig::default() };
        let world = Communicator::threads_with(2, &config).expect("threads connect");
        let compare = |communicator: Communicator| thread::spawn(move || communicator.compare_clocks(1));
        let ranks: Vec<_> = world.into_iter().map(compare).collect();
        let found = ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("both are there"));
        let [exact, rough] = found.collect::<Vec<_>>()[..] else { panic!("two ranks") };
        assert!(exact.error_ns() == 0 && rough.error_ns() >= 1000, "{rough:?}");
        let (mut clock, met) = (CommonClock::default(), Instant::now());
        let mut known = |found, after_s| {
            clock.keep_the_better(found, met + Duration::from_secs(after_s));
            clock.offset.map(|(offset, _)| offset)
        };
        assert_eq!(known(rough, 0), Some(rough));
        assert_eq!(known(exact, 0), Some(exact));
        // Clocks may be seconds apart by then.
        assert_eq!(known(rough, 86400), Some(rough));
    }

    #[test]
    fn there_is_no_clock_before_they_were_compared_and_none_of_some_calls() {
        let (mut clock, communicator) = (Clock::new(), Communicator::solo().unwrap());
        clock.note(Instant::now(), Duration::from_millis(1));
        assert!(clock.told(&communicator, 1).is_empty() && !clock.is_compared());
        clock.compare(&communicator).unwrap();
        let told = |clock: &Clock, calls: usize| clock.told(&communicator, calls).len();
        assert_eq!((told(&clock, 1), told(&clock, 2)), (4, 0), "all of them, or none");
        clock.met();
        assert_eq!((told(&clock, 0), told(&clock, 1)), (0, 0));
        assert!(Took::lasted([f64::NAN; 4]).is_nan());
        Clock::lengthen(&mut [], &[]);
    }
}
