//! When the ranks meet: no more often than is worth it. A boundary at which they do not is a number that is counted.

use std::time::Duration;

use paceline_plan::{LinkCost, LinkCosts};
use paceline_tune::Schedule;

use super::early::SoFar;
use super::glances::Pace;

/// Meetings take no more than this share of the time of the calls between them.
pub(crate) const SHARE: f64 = 0.01;

/// Where nothing is open, there are up to so many times as many calls between them, if what changes is still seen in time.
const SETTLED_TIMES: f64 = 4.0;

/// Where nothing is open and glances would show a change, there are so many times as many boundaries between them: the most where the default stands, as
/// its calls need no other ones beside them.
pub(super) const STRETCHES: [u64; 2] = [4, 2];

/// What changes is seen in time if the ranks meet after so many seconds of calls.
const SETTLED_S: f64 = 5e-3;

/// Where only the time of iterations is watched, the ranks meet no oftener than after so many of them.
const WATCHED: f64 = 16.0;

/// Calls are short if more than so many of a context lie between two meetings that take all of [`SHARE`]: then so much is in time.
const SHORT: f64 = 1000.0;
const SETTLED_SHORT_S: f64 = 0.5;

/// The least number of turns of the context that is called most, from one meeting to the next.
pub(crate) const TURNS: u64 = 4;

/// While the default is asked whether the network has changed, the ranks meet after so many calls of a context, whatever that takes: all else waits for
/// the answer.
const ASKED: u64 = 6;
/// While it is open what stands in a network that has changed, after so many, as each of them can be decided for itself.
const DECIDED_AGAIN: u64 = Schedule::LENGTH_MAX as u64;
/// They hurry no oftener than so many times in a row, and once for every two other meetings: noise raises doubts, too.
const HURRIES: f64 = 6.0;
const HURRIES_EARNED: f64 = 0.5;
/// So many are left for doubts.
const KEPT_FOR_DOUBTS: f64 = 2.0;

/// What rank 0 is believed to need for its decisions about a context, in seconds, until a meeting has been timed.
const DECIDING_S: f64 = 50e-6;

/// And about each call that was timed. Where calls are so short that this is much of what they take themselves, it is not waited for longer than
/// for all else: nothing would be learned.
const LEARNING_S: f64 = 4e-6;

/// Collectives of a meeting, at most.
const COLLECTIVES: f64 = 4.0;

/// Of calls that take so long, further ones than those that have turns are timed, up to so many of a context: as many as learning from them is no more
/// than such a share of what all of them take.
const RECORDED_S: f64 = 50e-6;
const RECORDED_MAX: u64 = 1024;
const LEARNING_SHARE: f64 = 0.005;

/// Before the first meeting, so many calls at most: however little links were measured to cost.
const CALLS_MAX: u64 = 1 << 20;

/// From one meeting to the next, there are at most so many times as many boundaries as before: a process that was stopped for a minute
/// is no reason to meet in an hour.
const GROWS: f64 = 16.0;

/// When the ranks meet next. The same on all of them: it follows from what they have agreed on, and from calls that all of them make.
#[derive(Clone, Debug)]
pub(super) struct Meetings {
    /// [`SHARE`] and [`TURNS`], but for tests, which meet at each boundary.
    share: f64,
    turns: u64,
    /// What links were measured to cost, and the rounds of a call.
    link: LinkCost,
    rounds: f64,
    /// From one meeting to the next, in boundaries, as rank 0 has told; before the first one it is not known.
    every: Option<u64>,
    /// Boundaries since the last one.
    passed: u64,
    /// Until the first, calls, those that are timed, and the seconds that all are believed to have taken.
    before: (u64, u64, f64),
    /// What one takes, on average of the last ones; on rank 0.
    mean_s: Option<f64>,
    /// How many may be hurried from here on, and after how many boundaries they would meet without; on rank 0.
    hurries: f64,
    unhurried: f64,
    /// So many times as many boundaries were passed as was planned, and what learning from the calls of the others took; on rank 0.
    stretch: f64,
    more_s: f64,
}

/// The calls since the ranks have met.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Calls {
    /// What they have taken.
    pub(super) seconds: f64,
    /// How many there were of one context, at most.
    pub(super) most: u64,
    /// Is nothing open in any context?
    pub(super) are_settled: bool,
    /// Does nobody learn from them, but from the iterations that they make?
    pub(super) are_watched: bool,
    /// Is the default asked in some context whether the network has changed?
    pub(super) are_in_doubt: bool,
    /// Has the network changed, and is something tried in some context, so that it is decided what stands in this one?
    pub(super) are_decided_again: bool,
    /// So many of them were timed.
    pub(super) timed: usize,
}

impl Meetings {
    /// Of a world whose links cost so much.
    pub(super) fn new(costs: &LinkCosts, hosts: usize, world: usize) -> Meetings {
        let link = if hosts > 1 { costs.across } else { costs.within };
        Meetings {
            share: SHARE,
            turns: TURNS,
            link,
            rounds: world.next_power_of_two().ilog2().into(),
            every: None,
            passed: 0,
            before: (0, 0, 0.0),
            mean_s: None,
            hurries: HURRIES,
            unhurried: 0.0,
            stretch: 1.0,
            more_s: 0.0,
        }
    }

    /// At each boundary, whatever that takes.
    #[cfg(test)]
    pub(super) fn always(self) -> Meetings {
        Meetings { share: f64::INFINITY, turns: 0, ..self }
    }

    /// A call of so many bytes was made, the number of its context, which takes as long as the rehearsed ones, if there were any.
    pub(super) fn called(&mut self, number: u64, bytes: u64, rehearsed_s: Option<f64>) {
        if self.every.is_none() {
            let (calls, timed, seconds) = self.before;
            let is_timed = self.is_recorded(number, bytes);
            self.before =
                (calls + 1, timed + u64::from(is_timed), seconds + rehearsed_s.unwrap_or_else(|| self.call_s(bytes)));
        }
    }

    /// About what a call takes: an all-reduce of two phases. Sums and products only, which are the same on all machines.
    pub(super) fn call_s(&self, bytes: u64) -> f64 {
        2.0 * (self.rounds * self.link.alpha + bytes as f64 * self.link.beta)
    }

    /// Is a call of this number and so many bytes timed? What follows after the turns that can be decided ahead takes what stands; of long
    /// calls these are timed, too, or one that is late now and then would hardly ever be seen. It is the same on all ranks.
    pub(super) fn is_recorded(&self, number: u64, bytes: u64) -> bool {
        if number < Schedule::LENGTH_MAX as u64 {
            return true;
        }
        let one_in = self.one_in(bytes);
        one_in.is_some_and(|one_in| number.is_multiple_of(one_in) && number / one_in < RECORDED_MAX)
    }

    /// One in so many calls is timed behind the turns; None: none is.
    fn one_in(&self, bytes: u64) -> Option<u64> {
        let call_s = self.call_s(bytes);
        (call_s >= RECORDED_S).then(|| (LEARNING_S / (LEARNING_SHARE * call_s)).ceil().max(1.0) as u64)
    }

    /// About what a meeting takes, of so many contexts and calls that were timed.
    fn believed_s(&self, contexts: usize, timed: u64) -> f64 {
        let meeting_s = COLLECTIVES * self.call_s(0) + DECIDING_S * contexts as f64;
        meeting_s + meeting_s.min(LEARNING_S * timed as f64)
    }

    /// What was called before the ranks have met for the first time.
    pub(super) fn so_far(&self) -> Option<SoFar> {
        let (_, timed, seconds) = self.before;
        self.every.is_none().then_some(SoFar { timed, seconds })
    }

    /// Are all calls of so many bytes timed, or some of them, also behind the turns?
    pub(super) fn times_others(&self, bytes: u64) -> bool {
        self.one_in(bytes).is_some()
    }

    /// A boundary: do the ranks meet? `contexts` have been called since they did.
    pub(super) fn is_due(&mut self, contexts: usize) -> bool {
        self.passed += 1;
        match (self.every, self.before) {
            (Some(every), _) => self.passed >= every,
            (None, (calls, timed, seconds)) => {
                calls >= CALLS_MAX || seconds >= self.believed_s(contexts, timed) / self.share
            }
        }
    }

    /// Of these calls since the last one, those of a boundary. `bytes`: of those of the context that is called most.
    pub(super) fn pace(&self, calls: Calls, bytes: u64) -> Pace {
        let passed = self.passed.max(1) as f64;
        let timed = calls.most as f64 / self.one_in(bytes).unwrap_or(1) as f64;
        Pace { timed: timed / passed, seconds: calls.seconds / passed }
    }

    /// On rank 0: how many boundaries there are until the next meeting. `last_s`: what the last one took; infinite before there was one.
    /// `so_far`: what this one has, since all were there.
    pub(super) fn plan(&mut self, last_s: f64, so_far: Duration, calls: Calls) -> u64 {
        let known = self.mean_s.filter(|_| last_s.is_finite());
        // Of calls that came as meetings were seldom it is not to follow that they are seldom still.
        let last_s = (last_s - self.more_s).max(0.0);
        self.more_s = LEARNING_S * calls.timed as f64 * (1.0 - 1.0 / self.stretch);
        let mean_s =
            known.map_or_else(|| so_far.as_secs_f64() + self.believed_s(0, 0), |mean_s| 0.5 * (mean_s + last_s));
        self.mean_s = Some(mean_s);
        let passed = self.passed.max(1) as f64;
        if calls.most == 0 {
            // Nobody has called anything, and nothing follows.
            return passed as u64;
        }
        let for_turns = self.turns as f64 * passed / calls.most as f64;
        let for_share = mean_s * passed / (self.share * calls.seconds);
        // Of calls that have taken no time, or none that is known, nothing follows; and what is cast saturates.
        let every = match (for_share.is_finite(), calls.are_settled) {
            (false, _) => for_turns,
            (true, false) => for_turns.max(for_share),
            (true, true) => {
                let are_short = for_share * calls.most as f64 / passed > SHORT;
                let in_time = if are_short { SETTLED_SHORT_S } else { SETTLED_S } * passed / calls.seconds;
                for_turns.max(for_share).max(in_time.min(SETTLED_TIMES * for_share))
            }
        };
        let every = if calls.are_settled && calls.are_watched { every.max(WATCHED) } else { every };
        // Where a glance has called them early, or they have hurried, it is what was planned that grows.
        let before = passed.max(self.every.unwrap_or(0) as f64).max(self.unhurried);
        self.unhurried = every.min(GROWS * before);
        let soon = match (calls.are_in_doubt, calls.are_decided_again) {
            (true, _) => Some((ASKED, 1.0)),
            (false, true) => Some((DECIDED_AGAIN, 1.0 + KEPT_FOR_DOUBTS)),
            (false, false) => None,
        };
        let soon = soon.filter(|(_, left)| self.hurries >= *left);
        let soon = soon.map(|(calls_until, _)| calls_until as f64 * passed / calls.most as f64);
        let every = soon.map_or(self.unhurried, |soon| soon.min(self.unhurried));
        self.hurries = if calls.are_in_doubt || every < self.unhurried {
            (self.hurries - 1.0).max(0.0)
        } else {
            (self.hurries + HURRIES_EARNED).min(HURRIES)
        };
        every.ceil().max(1.0) as u64
    }

    /// On rank 0: after how many boundaries the ranks meet that would after `every`. `is_watched`: is nothing open, and would glances show a change?
    /// `is_at_rest`: does the default stand? `are_timed`: are calls timed until then, where there are as many as each of [`STRETCHES`] says?
    pub(super) fn stretched(&mut self, every: u64, is_watched: bool, is_at_rest: bool, are_timed: [bool; 2]) -> u64 {
        let may_be = STRETCHES.into_iter().zip(are_timed).skip(usize::from(!is_at_rest));
        let found = may_be.filter(|_| is_watched && self.share.is_finite()).find(|(_, are_timed)| *are_timed);
        let times = found.map_or(1, |(times, _)| times);
        self.stretch = times as f64;
        every.saturating_mul(times)
    }

    /// Are some of such calls timed until so many boundaries have passed? `calls`: as many of them as there were since the last meeting.
    pub(super) fn are_recorded(&self, calls: u64, bytes: u64, boundaries: u64) -> bool {
        let until_then = (calls as f64 / self.passed.max(1) as f64 * boundaries as f64) as u64;
        let last = until_then.saturating_sub(1);
        last < Schedule::LENGTH_MAX as u64
            || self.one_in(bytes).is_some_and(|one_in| self.is_recorded(last - last % one_in, bytes))
    }

    /// They have met, and meet again after so many boundaries.
    pub(super) fn met(&mut self, every: u64) {
        (self.every, self.passed) = (Some(every.max(1)), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meetings(alpha: f64) -> Meetings {
        Meetings::new(&LinkCosts::uniform(LinkCost::hockney(alpha, 1e-10, 0.0)), 1, 4)
    }

    /// Boundaries of `calls` calls until the first meeting.
    fn first(meetings: &mut Meetings, calls: u64, bytes: u64) -> u64 {
        for boundary in 1..1_000_000 {
            (0..calls).for_each(|call| meetings.called((boundary - 1) * calls + call, bytes, None));
            if meetings.is_due(1) {
                return boundary;
            }
        }
        panic!("they never meet: {meetings:?}");
    }

    /// Links are believed to be four times as slow as they are: by calls that were rehearsed the ranks meet four times later.
    #[test]
    fn rehearsed_calls_tell_when_the_first_meeting_is_worth_it() {
        let calls = |rehearsed_s: Option<f64>| {
            let mut meetings = meetings(1e-5);
            (0..CALLS_MAX)
                .find(|_| {
                    // None of them timed, so that a meeting takes the same.
                    meetings.called(u64::MAX, 1 << 10, rehearsed_s);
                    meetings.is_due(1)
                })
                .expect("they meet")
        };
        let believed_s = meetings(1e-5).call_s(1 << 10);
        let [believed, rehearsed] = [None, Some(believed_s / 4.0)].map(calls);
        assert!((4 * believed..=4 * believed + 4).contains(&rehearsed), "{believed}, {rehearsed}");
    }

    #[test]
    fn short_calls_are_made_more_often_before_the_ranks_meet() {
        let [short, middle, long] = [1 << 10, 1 << 20, 1 << 30].map(|bytes| first(&mut meetings(1e-6), 16, bytes));
        assert!(short > 50 && middle < short && long == 1, "{short} {middle} {long}");
        let believed_s = 16.0 * short as f64 * meetings(1e-6).call_s(1 << 10);
        assert!(believed_s * SHARE >= COLLECTIVES * meetings(1e-6).call_s(0) + DECIDING_S, "{believed_s}");
    }

    /// A meeting of a millisecond, which calls of a millisecond are worth a hundred times.
    #[test]
    fn who_asks_whether_the_network_has_changed_hurries_and_not_for_ever() {
        let mut meetings = meetings(1e-6);
        let mut passed = 100;
        let mut every = |are_in_doubt| {
            meetings.met(passed);
            meetings.passed = passed;
            let calls = Calls { seconds: 1e-3 * passed as f64, most: passed, are_in_doubt, ..Calls::default() };
            passed = meetings.plan(1e-3, Duration::from_millis(1), calls);
            passed
        };
        let usual = every(false);
        assert!(usual >= 90, "{usual}");
        let mut hurries = |are_in_doubt| every(are_in_doubt) == ASKED;
        let in_a_row: Vec<bool> = (0..8).map(|_| hurries(true)).collect();
        assert_eq!(in_a_row, [true, true, true, true, true, true, false, false]);
        assert!(!hurries(false) && !hurries(false));
        assert_eq!([hurries(true), hurries(true)], [true, false], "two others were worth one");
    }

    /// The same meetings: while it is decided again they come after sixteen calls, and leave two hurries for the next doubt.
    #[test]
    fn who_decides_again_hurries_less_and_leaves_something_for_doubts() {
        let mut meetings = meetings(1e-6);
        let mut passed = 100;
        let mut every = |are_in_doubt, are_decided_again| {
            meetings.met(passed);
            meetings.passed = passed;
            let seconds = 1e-3 * passed as f64;
            let calls = Calls { seconds, most: passed, are_in_doubt, are_decided_again, ..Calls::default() };
            passed = meetings.plan(1e-3, Duration::from_millis(1), calls);
            passed
        };
        every(false, false);
        let again: Vec<bool> = (0..7).map(|_| every(false, true) == DECIDED_AGAIN).collect();
        assert_eq!(again, [true, true, true, true, false, false, true], "one more was earned");
        assert_eq!([every(true, false), every(true, true)], [ASKED; 2]);
    }

    /// Ten iterations of a second, which a meeting of a tenth of a millisecond would be worth after each.
    #[test]
    fn where_only_iterations_are_watched_the_ranks_meet_seldom() {
        let every = |are_settled, are_watched| {
            let mut meetings = meetings(1e-6);
            (0..10).for_each(|_| _ = meetings.is_due(1));
            let calls = Calls { seconds: 10.0, most: 160, are_settled, are_watched, ..Calls::default() };
            meetings.plan(1e-4, Duration::from_micros(100), calls)
        };
        assert_eq!([every(true, true), every(true, false), every(false, true)], [16, 1, 1]);
    }

    #[test]
    fn meetings_take_their_share_at_most() {
        for (call_s, takes_s) in [(1e-6, 1e-4), (1e-4, 1e-4), (1e-2, 1e-4), (1e-5, 3e-2)] {
            let mut meetings = meetings(1e-6);
            let (mut calls_s, mut all_s, mut last_s, mut since) = (0.0, 0.0, f64::INFINITY, Calls::default());
            for _ in 0..200_000 {
                (0..4).for_each(|_| meetings.called(0, 1 << 10, None));
                calls_s += 4.0 * call_s;
                since = Calls { seconds: since.seconds + 4.0 * call_s, most: since.most + 4, ..since };
                if meetings.is_due(1) {
                    let took = Duration::from_secs_f64(takes_s);
                    let every = meetings.plan(last_s, took, since);
                    meetings.met(every);
                    (last_s, all_s, since) = (takes_s, all_s + takes_s, Calls::default());
                }
            }
            // Where the first one was far off what was believed, it takes two more until that is made up for.
            assert!(all_s <= 1.05 * SHARE * calls_s + 3.0 * takes_s, "calls of {call_s} s: {}", all_s / calls_s);
            assert!(all_s >= 0.5 * SHARE * calls_s || call_s >= 1e-2, "calls of {call_s} s: {}", all_s / calls_s);
        }
    }

    #[test]
    fn long_calls_are_timed_and_of_shorter_ones_some() {
        let meetings = meetings(1e-6);
        let recorded = |bytes: u64| (0..20_000).filter(|&number| meetings.is_recorded(number, bytes)).count();
        let (short, long) = (1 << 10, 1 << 23);
        assert_eq!((recorded(short), recorded(long)), (Schedule::LENGTH_MAX, RECORDED_MAX as usize));
        assert!(meetings.call_s(short) < RECORDED_S && meetings.call_s(long) > LEARNING_S / LEARNING_SHARE);
        // 0.21 ms: one in four, behind the turns.
        let middle = 1 << 20;
        assert_eq!(
            (10..30).filter(|&number| meetings.is_recorded(number, middle)).collect::<Vec<u64>>(),
            [10, 11, 12, 13, 14, 15, 16, 20, 24, 28]
        );
        assert!(meetings.are_recorded(100, middle, 1) && meetings.are_recorded(100, middle, 40));
        assert!(meetings.are_recorded(10, short, 1) && !meetings.are_recorded(20, short, 1));
        assert!(!meetings.are_recorded(100, middle, 41) && !meetings.are_recorded(100, short, 1));
    }

    /// Short calls pay less where nothing is open, those that take longer than it may take to see what changes as much as before.
    #[test]
    fn who_has_nothing_to_decide_meets_less_often_but_in_time() {
        let every = |call_s: f64, takes_s: f64, are_settled: bool| {
            let calls = Calls { seconds: 1e5 * call_s, most: 100_000, are_settled, ..Calls::default() };
            let mut meetings = Meetings { passed: 100_000, mean_s: Some(takes_s), ..meetings(1e-6) };
            meetings.plan(takes_s, Duration::ZERO, calls)
        };
        // Within 5 ms, up to them, beyond them; and the same of short calls and half a second.
        let long = [(1e-4, 1e-5, 4.0), (1e-4, 4e-5, 1.25), (1e-3, 1e-4, 1.0)];
        let cases = long.into_iter().chain([(1e-6, 1e-3, 4.0), (1e-5, 2e-3, 2.5), (1e-5, 1e-2, 1.0)]);
        for (call_s, takes_s, times) in cases {
            let [open, settled] = [false, true].map(|settled| every(call_s, takes_s, settled) as f64);
            assert!((settled / open - times).abs() < 0.05 * times, "{call_s} s, {takes_s} s: {open}, {settled}");
        }
        let calls = Calls { seconds: 1.0, most: 1000, are_settled: true, ..Calls::default() };
        assert_eq!(meetings(1e-6).always().plan(1e-3, Duration::ZERO, calls), 1, "at each boundary is at each one");
    }

    /// A meeting of a millisecond and 4 us for each call of a millisecond, of which all are timed: however often it is stretched, it is by four times.
    #[test]
    fn who_glances_meets_four_times_less_often_and_no_less() {
        let mut meetings = meetings(1e-6);
        let (mut every, mut last_s, mut planned) = (100, f64::INFINITY, 0);
        for _ in 0..30 {
            meetings.passed = every;
            let calls = every as usize;
            let since = Calls {
                seconds: 1e-3 * calls as f64,
                most: every,
                timed: calls,
                are_settled: true,
                ..Calls::default()
            };
            let took_s = 1e-3 + LEARNING_S * calls as f64;
            planned = meetings.plan(last_s, Duration::from_secs_f64(took_s), since);
            every = meetings.stretched(planned, true, true, [true; 2]);
            meetings.met(every);
            last_s = took_s;
        }
        assert_eq!(every, 4 * planned);
        // 1 ms and a fourth of what learning from all of them takes are a hundredth of 1 ms each: 1 / (0.01 - 0.004).
        assert!((150..185).contains(&planned), "{planned}");
        let mut stretched =
            |is_watched, is_at_rest, are_timed| meetings.stretched(100, is_watched, is_at_rest, are_timed);
        assert_eq!(stretched(true, true, [true; 2]), 400);
        assert_eq!(stretched(true, true, [false, true]), 200, "calls are timed to the end");
        let others = [(true, false, [true; 2]), (true, true, [false; 2]), (false, true, [true; 2])];
        assert_eq!(others.map(|(watched, rest, timed)| stretched(watched, rest, timed)), [200, 100, 100]);
        assert_eq!(meetings.always().stretched(1, true, true, [true; 2]), 1, "at each boundary is at each one");
    }

    #[test]
    fn one_that_was_held_up_is_made_up_for() {
        let (mut meetings, calls) = (meetings(1e-6), Calls { seconds: 1e-2, most: 16, ..Calls::default() });
        assert!(meetings.plan(f64::INFINITY, Duration::from_micros(100), calls) <= 4);
        meetings.met(2);
        (0..2).for_each(|_| _ = meetings.is_due(1));
        assert_eq!(meetings.plan(60.0, Duration::from_secs(60), calls), 2 * GROWS as u64);
    }

    #[test]
    fn of_no_time_and_no_calls_nothing_follows() {
        for seconds in [0.0, f64::NAN, f64::INFINITY] {
            let calls = Calls { seconds, most: 1, ..Calls::default() };
            let every = meetings(1e-6).plan(f64::INFINITY, Duration::from_millis(1), calls);
            assert!(every <= 4, "{seconds}: {every}");
        }
        let mut idle = meetings(1e-6);
        idle.met(5);
        for _ in 0..3 {
            while !idle.is_due(0) {}
            let every = idle.plan(1e-3, Duration::from_millis(1), Calls::default());
            idle.met(every);
            assert_eq!(every, 5);
        }
    }

    /// Links that cost nothing, as nobody has measured them.
    #[test]
    fn they_meet_sooner_or_later() {
        let mut meetings = Meetings::new(&LinkCosts::uniform(LinkCost::hockney(0.0, 0.0, 0.0)), 1, 2);
        assert_eq!(first(&mut meetings, 16, 4), CALLS_MAX / 16);
    }
}
