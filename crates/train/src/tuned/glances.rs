//! Between two meetings the ranks ask each other now and then, in a few numbers, whether calls still take what they took.
//!
//! A meeting takes some small collectives and rank 0's thoughts: calls of half a millisecond are worth one in some hundreds. A network that has
//! changed would be noticed as late. A glance is one collective; only if each rank has seen the same change do they meet at once.
//!
//! Among several hosts nobody waits for it: it begins at one boundary, and what has become of it is asked two boundaries later, when all ranks
//! have made calls since, and so have begun it. What it takes is then some messages more, and not how long these are under way.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Pending, Reduction};
use paceline_tune::statistics::median;
use paceline_tune::{Choice, ContextKey};

use super::clock::{Clock, Took};
use super::early::{Early, SoFar};
use super::{Made, TunedCalls};

/// Glances take no more than this share of the time of the calls between them.
const SHARE: f64 = 0.005;

/// There are so many calls of a context that are timed between two of them, at least.
const CALLS_MIN: f64 = 16.0;

/// Two meetings are so many times as far apart as two glances, at least, or a glance is not worth it.
const WORTH: f64 = 2.0;

/// Among several hosts, so many boundaries lie between its beginning and its end.
const UNDER_WAY: u64 = 2;

/// And it takes such a share of what a collective does that is waited for: its messages need processors, and nobody needs to be there when they
/// come.
const BESIDE: f64 = 0.25;

/// Whoever ends his job waits no longer for the others to have theirs.
const LEFT: Duration = Duration::from_secs(2);

/// The last calls that tell, of the context's choice that stands, and how many before the ranks met say what is usual, at most.
const TELLING: usize = 12;
const USUAL: usize = 64;

/// By how much they differ if something has changed, as a logarithm: three tenths.
const CHANGED: f64 = 0.26;

/// So many may be mistaken in a row, and one for every two meetings without.
const MISTAKES: f64 = 4.0;
const MISTAKES_EARNED: f64 = 0.5;

/// What a context's calls took on this rank when the ranks met last, and by which choice.
#[derive(Clone, Copy, Debug)]
struct Usual {
    choice: Choice,
    log_s: f64,
}

/// The calls of a boundary: of one context, those that are timed, and what all of all contexts take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) timed: f64,
    pub(super) seconds: f64,
}

/// When the ranks glance next, which is the same on all of them, and what a rank has seen.
#[derive(Debug)]
pub(super) struct Glances {
    /// From one to the next, in boundaries, as rank 0 has told; none before it has, and if it says so.
    every: Option<u64>,
    passed: u64,
    /// What the last one took on this rank, and what one takes until the last rank goes on, as all have agreed.
    last: Took,
    mean_s: Option<f64>,
    /// On rank 0.
    mistakes: f64,
    usual: BTreeMap<ContextKey, Usual>,
    /// Before the ranks have met for the first time, after a rehearsal.
    early: Option<Early>,
    /// What has begun and was not asked for yet.
    under_way: Option<UnderWay>,
    /// Of the one before.
    buffer: Option<Buffer<f64>>,
}

/// A glance that has begun.
#[derive(Debug)]
struct UnderWay {
    pending: Pending<f64>,
    /// What beginning it took on this rank.
    began_s: f64,
    /// Boundaries since then.
    passed: u64,
}

impl Default for Glances {
    fn default() -> Glances {
        Glances {
            every: None,
            passed: 0,
            last: Took::NEVER,
            mean_s: None,
            mistakes: MISTAKES,
            usual: BTreeMap::new(),
            early: None,
            under_way: None,
            buffer: None,
        }
    }
}

/// What a glance is believed to take, if a small collective that is waited for takes so long.
fn believed_s(collective_s: f64, hosts: usize) -> f64 {
    if hosts > 1 { BESIDE * collective_s } else { collective_s }
}

impl Glances {
    /// Calls were rehearsed, and nobody has met yet: there are glances from the first calls on, each of which takes so long.
    pub(super) fn begin_early(&mut self, takes_s: f64) {
        self.early = Some(Early::every(takes_s / SHARE, CALLS_MIN));
    }

    /// Are there some before the ranks have met?
    #[cfg(test)]
    pub(super) fn are_early(&self) -> bool {
        self.early.is_some()
    }

    /// A boundary at which they do not meet: do they glance?
    fn is_due(&mut self) -> bool {
        self.passed += 1;
        let is_due = self.every.is_some_and(|every| self.passed >= every);
        if is_due {
            self.passed = 0;
        }
        is_due
    }

    /// A boundary at which they do not meet: do they glance, and have calls changed? `made`: those on this rank since they have met. `so_far`:
    /// before the first meeting, what was called, and of how many contexts. `then`: what a context's calls take that
    /// are not tried.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn have_changed(
        &mut self,
        communicator: &Communicator,
        clock: &Clock,
        made: &[Made],
        so_far: Option<(SoFar, usize)>,
        then: impl Fn(ContextKey) -> Choice,
    ) -> Result<bool, CommError> {
        let is_due = match so_far {
            Some((so_far, contexts)) => self.early.as_mut().is_some_and(|early| early.is_due(so_far, contexts)),
            None => self.is_due(),
        };
        if let Some(under_way) = &mut self.under_way {
            under_way.passed += 1;
            return Ok(under_way.passed >= UNDER_WAY && self.end()?);
        }
        if !is_due {
            return Ok(false);
        }
        // Of what was called too few times before they met, what is usual is what it has taken since.
        let known = self.usual.iter().filter(|(key, usual)| usual.choice == then(**key));
        let known: Vec<ContextKey> = known.map(|(key, _)| *key).collect();
        let cold = if so_far.is_some() { made.len() / 2 } else { 0 };
        let unknown = made[cold..].iter().filter(|made| !known.contains(&made.context.key()));
        self.note_usual(unknown, USUAL, then);
        if communicator.topology().hosts() > 1 {
            self.begin(communicator, made).map(|()| false)
        } else {
            self.look(communicator, clock, made)
        }
    }

    /// Begins a glance.
    fn begin(&mut self, communicator: &Communicator, made: &[Made]) -> Result<(), CommError> {
        let began = Instant::now();
        let [longer, less] = self.unchanged(made);
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => communicator.alloc(3)?,
        };
        buffer.copy_from_slice(&[longer, less, self.last.seconds()]);
        let pending = communicator.start_all_reduce(buffer, Reduction::Max, &CallOptions::default())?;
        self.under_way = Some(UnderWay { pending, began_s: began.elapsed().as_secs_f64(), passed: 0 });
        Ok(())
    }

    /// Nobody asks for the one that is under way any more.
    fn leave(&mut self) {
        if let Some(UnderWay { pending, .. }) = self.under_way.take() {
            let _ = pending.wait_timeout(LEFT);
        }
    }

    /// Ends the one that is under way, if one is: have calls changed?
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn end(&mut self) -> Result<bool, CommError> {
        let Some(UnderWay { pending, began_s, .. }) = self.under_way.take() else { return Ok(false) };
        // Should somebody not have come yet, he is waited for, and that is not what a glance takes.
        let (is_there, began) = (pending.is_done(), Instant::now());
        let most = pending.wait()?;
        let ended_s = if is_there { began.elapsed().as_secs_f64() } else { 0.0 };
        self.last = Took::from(began_s + ended_s);
        self.takes(most[2]);
        let has_changed = most[0] <= 0.0 || most[1] <= 0.0;
        self.buffer = Some(most);
        Ok(has_changed)
    }

    /// Do calls take longer on all ranks than when they met, or less on all of them? (A rank that waits for another one takes longer, and that
    /// one less.)
    fn look(&mut self, communicator: &Communicator, clock: &Clock, made: &[Made]) -> Result<bool, CommError> {
        let began = Instant::now();
        let [longer, less] = self.unchanged(made);
        let [first, second, third, fourth] = self.last.told();
        let mut most = [longer, less, first, second, third, fourth];
        communicator.all_reduce(&mut most, Reduction::Max, &CallOptions::default())?;
        self.last = clock.took(communicator, began, began.elapsed());
        let [longer, less, told @ ..] = most;
        self.takes(Took::lasted(told));
        Ok(longer <= 0.0 || less <= 0.0)
    }

    /// One has taken so long, as all have agreed.
    fn takes(&mut self, last_s: f64) {
        if last_s.is_finite() {
            self.mean_s = Some(self.mean_s.map_or(last_s, |mean_s| 0.5 * (mean_s + last_s)));
        }
    }

    /// [`Glances::changes`], told so that the most of all ranks says it: of what is so on all of them, the most of its opposite is none.
    fn unchanged(&self, made: &[Made]) -> [f64; 2] {
        self.changes(made).map(|is_so| f64::from(u8::from(!is_so)))
    }

    /// Do the last calls of some context take longer here than was usual, and of some less?
    fn changes(&self, made: &[Made]) -> [bool; 2] {
        let mut changes = [false; 2];
        for (key, usual) in &self.usual {
            let is_it = |made: &&Made| made.context.key() == *key && made.choice == usual.choice;
            let last: Vec<f64> = made.iter().rev().filter(is_it).filter_map(log_s).take(TELLING).collect();
            if let Some(now) = median(&last).filter(|_| last.len() == TELLING) {
                changes[0] |= now - usual.log_s >= CHANGED;
                changes[1] |= usual.log_s - now >= CHANGED;
            }
        }
        changes
    }

    /// They meet: what was usual until here, or, if a glance has called them, since something has changed. `made`: as this rank has timed them;
    /// `then`: what a context's calls took that were not tried.
    pub(super) fn meet(&mut self, made: &[Made], at_a_glance: bool, then: impl Fn(ContextKey) -> Choice) {
        self.passed = 0;
        self.note_usual(made.iter(), if at_a_glance { TELLING } else { USUAL }, then);
    }

    /// What the last calls of each context took here, so many at most.
    fn note_usual<'m>(
        &mut self,
        made: impl Iterator<Item = &'m Made>,
        counted: usize,
        then: impl Fn(ContextKey) -> Choice,
    ) {
        let mut logs: BTreeMap<ContextKey, Vec<f64>> = BTreeMap::new();
        for made in made {
            let logs = logs.entry(made.context.key()).or_default();
            logs.extend(log_s(made).filter(|_| made.choice == then(made.context.key())));
        }
        for (key, logs) in logs {
            let last = &logs[logs.len().saturating_sub(counted)..];
            match median(last) {
                Some(log_s) if last.len() >= TELLING => _ = self.usual.insert(key, Usual { choice: then(key), log_s }),
                // So few were made that nobody knows.
                _ => _ = self.usual.remove(&key),
            }
        }
    }

    /// Would a change be seen in calls of all of these, of which each takes what `then` says?
    pub(super) fn know(&self, mut keys: impl Iterator<Item = ContextKey>, then: impl Fn(ContextKey) -> Choice) -> bool {
        keys.all(|key| self.usual.get(&key).is_some_and(|usual| usual.choice == then(key)))
    }

    /// On rank 0: after how many boundaries they glance, if there are `meets_after` until they meet; 0: not at all. `each`: the calls of one boundary;
    /// `believed_s`: what a glance takes at least, whatever was timed: the rank that came last has found what all others had
    /// sent. `was_right`: has something come of the one that has called the ranks together? None if none has.
    pub(super) fn plan(&mut self, meets_after: u64, each: Pace, believed_s: f64, was_right: Option<bool>) -> u64 {
        self.mistakes = match was_right {
            Some(false) => (self.mistakes - 1.0).max(0.0),
            Some(true) => self.mistakes,
            None => (self.mistakes + MISTAKES_EARNED).min(MISTAKES),
        };
        let takes_s = self.mean_s.map_or(believed_s, |mean_s| mean_s.max(believed_s));
        let [for_share, for_calls] = [takes_s / (SHARE * each.seconds), CALLS_MIN / each.timed];
        let every = for_share.max(for_calls);
        let is_worth_it = for_share.is_finite()
            && for_calls.is_finite()
            && WORTH * every <= meets_after as f64
            && self.mistakes >= 1.0;
        if is_worth_it { every.ceil().max(1.0) as u64 } else { 0 }
    }

    /// As rank 0 has told.
    pub(super) fn set(&mut self, every: u64) {
        self.early = None;
        self.every = Some(every).filter(|every| *every > 0);
    }
}

impl TunedCalls<'_> {
    /// A boundary at which the ranks do not meet: do they glance, and have calls changed?
    pub(super) fn glance(&mut self) -> Result<bool, CommError> {
        let so_far = self.meetings.so_far().map(|so_far| (so_far, self.kinds.called()));
        let then = |key| self.policies.current().after_turns(key);
        self.glances.have_changed(self.communicator, &self.clock, &self.made, so_far, then)
    }

    /// What a glance is believed to take.
    pub(super) fn glance_s(&self) -> f64 {
        believed_s(self.meetings.call_s(0), self.communicator.topology().hosts())
    }
}

/// One that has begun ends before its communicator may: all ranks have begun it, unless one has failed.
impl Drop for TunedCalls<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            // What is wrong with it is wrong with the communicator, and its next call says so.
            self.glances.leave();
        }
    }
}

/// What a call took, if that is known.
fn log_s(made: &Made) -> Option<f64> {
    (made.seconds > 0.0 && made.seconds.is_finite()).then(|| made.seconds.ln())
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_tune::environment::{Call, CostModel, OwnModel};
    use paceline_tune::{Action, Family, WireProtocol};

    use super::*;
    use crate::on_ranks::on_ranks;
    use crate::tuned::tests::CALL;

    /// Calls of so many bytes, one for each of these milliseconds.
    fn made(bytes: u64, milliseconds: impl IntoIterator<Item = f64>) -> Vec<Made> {
        let cluster = Cluster::named("study-10gbe:4x1").expect("it is built in");
        let context = OwnModel::of(&cluster).state(&Call { bytes, ranks: 4, hosts: 4, ..CALL }).context();
        let call =
            |ms| Made { context, number: 0, choice: Choice::Default, calls: 1, seconds: 1e-3 * ms, longest: 1.0 };
        milliseconds.into_iter().map(call).collect()
    }

    fn after(usual: &[Made]) -> Glances {
        let mut glances = Glances::default();
        glances.meet(usual, false, |_| Choice::Default);
        glances
    }

    fn is_changed(glances: &Glances, made: &[Made]) -> bool {
        glances.changes(made) != [false; 2]
    }

    #[test]
    fn a_change_is_one_of_the_last_calls_by_three_tenths() {
        let glances = after(&made(1 << 16, [1.0; 20]));
        let is_changed = |ms: [f64; 14]| is_changed(&glances, &made(1 << 16, ms));
        assert_eq!(glances.changes(&made(1 << 16, [1.4; 14])), [true, false]);
        assert_eq!(glances.changes(&made(1 << 16, [0.6; 14])), [false, true]);
        assert!(is_changed([1.4; 14]) && is_changed([0.6; 14]) && !is_changed([1.2; 14]) && !is_changed([0.85; 14]));
        let mut late = [1.0; 14];
        late[6..11].fill(200.0);
        assert!(!is_changed(late), "five of twelve are late");
        late[5..].fill(5.0);
        assert!(is_changed(late), "nine of twelve are");
        assert_eq!(glances.changes(&made(1 << 16, [5.0; TELLING - 1])), [false; 2], "those are few");
    }

    #[test]
    fn each_context_has_its_own_usual_time_and_what_was_tried_is_not_usual() {
        let glances = after(&[made(1 << 16, [1.0; 16]), made(1 << 20, [8.0; 16])].concat());
        assert!(!is_changed(&glances, &[made(1 << 16, [1.0; 16]), made(1 << 20, [8.0; 16])].concat()));
        assert!(is_changed(&glances, &[made(1 << 16, [1.0; 16]), made(1 << 20, [40.0; 16])].concat()));
        assert!(!is_changed(&glances, &made(1 << 24, [40.0; 16])), "nobody knows what is usual there");
        let unknown = made(1 << 16, [f64::NAN; 20]);
        assert!(!is_changed(&glances, &unknown) && after(&unknown).usual.is_empty());
        let mut tried = Glances::default();
        let family = Family { algorithm: 1, protocol: WireProtocol::Simple };
        let stands = Choice::Play(Action { family, channels: 1, threads: 1, chunk_log2: 12 });
        tried.meet(&made(1 << 16, [1.0; 20]), false, |_| stands);
        assert!(tried.usual.is_empty());
    }

    #[test]
    fn a_change_is_seen_only_in_calls_of_what_is_called_from_here_on() {
        let family = Family { algorithm: 1, protocol: WireProtocol::Simple };
        let stands = Choice::Play(Action { family, channels: 1, threads: 1, chunk_log2: 12 });
        let made: Vec<Made> = made(1 << 16, [1.0; 20]).into_iter().map(|it| Made { choice: stands, ..it }).collect();
        let (key, mut glances) = (made[0].context.key(), Glances::default());
        assert!(!glances.know([key].into_iter(), |_| stands));
        glances.meet(&made, false, |_| stands);
        assert!(glances.know([key].into_iter(), |_| stands) && !glances.know([key].into_iter(), |_| Choice::Default));
    }

    /// One rank's calls that take longer may be its own affair, as where it waits for another one; a network that has changed all ranks see.
    #[test]
    fn ranks_meet_if_all_of_them_see_the_same_change() {
        let cases =
            [([5.0; 3], true), ([0.4; 3], true), ([5.0, 5.0, 1.0], false), ([5.0, 0.4, 5.0], false), ([1.0; 3], false)];
        for (ms, meets) in cases {
            let seen = on_ranks(3, |communicator| {
                let (mut glances, clock) = (after(&made(1 << 16, [1.0; 16])), Clock::new());
                let made = made(1 << 16, [ms[communicator.rank()]; 16]);
                let looks = [0, 1].map(|_| glances.look(&communicator, &clock, &made).unwrap());
                (looks, glances.mean_s)
            });
            assert!(seen.iter().all(|(looks, _)| *looks == [meets; 2]), "{ms:?}: {seen:?}");
            assert!(
                seen.iter().all(|(_, mean_s)| mean_s.is_some() && *mean_s == seen[0].1),
                "the last one's: {seen:?}"
            );
        }
    }

    /// Who has met as something has changed does not meet again for that.
    #[test]
    fn after_a_change_that_is_usual_which_came_with_it() {
        let mut glances = after(&made(1 << 16, [1.0; 30]));
        let since = made(1 << 16, [[1.0; 40], [5.0; 40]].concat()[..60].to_vec());
        assert!(is_changed(&glances, &since));
        glances.meet(&since, true, |_| Choice::Default);
        assert!(!is_changed(&glances, &made(1 << 16, [5.0; 16])) && is_changed(&glances, &made(1 << 16, [1.0; 16])));
        glances.meet(&made(1 << 16, [5.0; 6]), false, |_| Choice::Default);
        assert!(!is_changed(&glances, &made(1 << 16, [1.0; 16])), "of six calls nobody knows");
    }

    #[test]
    fn a_glance_takes_its_share_at_most_and_comes_only_where_it_is_worth_it() {
        let plan = |meets_after: u64, call_s: f64| {
            let pace = Pace { timed: 1.0, seconds: call_s };
            Glances::default().plan(meets_after, pace, 1e-4, None)
        };
        // A tenth of a millisecond is a two-hundredth of twenty milliseconds.
        assert_eq!([plan(1000, 1e-3), plan(1000, 5e-4), plan(1000, 1e-2)], [20, 40, CALLS_MIN as u64]);
        assert_eq!([plan(40, 1e-3), plan(39, 1e-3)], [20, 0]);
        assert_eq!([plan(1000, 0.0), plan(1000, f64::NAN)], [0, 0]);
        // What was timed may be less than a glance can take: the rank that came last has waited for nobody.
        let of_the_last = |mean_s| {
            let mut glances = Glances { mean_s: Some(mean_s), ..Glances::default() };
            glances.plan(1000, Pace { timed: 1.0, seconds: 1e-3 }, 1e-4, None)
        };
        assert_eq!([2e-5, 2e-4].map(of_the_last), [20, 40]);
        let mut glances = Glances::default();
        glances.set(3);
        let due: Vec<bool> = (0..7).map(|_| glances.is_due()).collect();
        assert_eq!(due, [false, false, true, false, false, true, false]);
        glances.set(0);
        assert!((0..100).all(|_| !glances.is_due()));
    }

    #[test]
    fn who_was_mistaken_too_often_does_not_glance_for_a_while() {
        let mut glances = Glances::default();
        let mut plan = |was_right| glances.plan(1000, Pace { timed: 1.0, seconds: 1e-3 }, 1e-4, was_right) > 0;
        let mistaken: Vec<bool> = (0..5).map(|_| plan(Some(false))).collect();
        assert_eq!(mistaken, [true, true, true, false, false]);
        assert_eq!([plan(None), plan(None), plan(Some(true)), plan(Some(false))], [false, true, true, false]);
    }
}
