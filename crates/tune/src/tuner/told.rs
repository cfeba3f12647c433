//! What a tuner is told besides the times of the calls that it has decided, and what it says besides its decisions.

use super::{Course, Role, Standing, Tuner};
use crate::action::{Choice, Situation};
use crate::state::Context;

impl Tuner {
    /// A further call that a schedule has repeated: it is counted by the guard, compared with what was expected, and learned from. (Were it
    /// only learned from, a network that has changed in the middle of many of them would pass for what is usual when they end.)
    pub fn observe_repeated(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.observe_further(situation, (arm, seconds), Tuner::take_repeated);
    }

    /// The same of a call that somebody else has decided, together with others: these may take something else than what was expected of
    /// it is from, so it is not compared with that.
    pub fn observe_elsewhere(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.observe_further(situation, (arm, seconds), Tuner::take_from_elsewhere);
    }

    /// A call that no decision waits for: it is counted, and taken in as `take` says.
    fn observe_further(
        &mut self,
        situation: &Situation,
        (arm, seconds): (usize, f64),
        take: fn(&mut Tuner, &Situation, &mut Course, (usize, f64)),
    ) {
        let Some(mut course) = self.courses.remove(&situation.context) else { return };
        let is_time = seconds.is_finite() && seconds > 0.0 && arm < situation.arms.len();
        if is_time && course.arrival.is_some() {
            self.arrive(situation, &mut course, (arm, Role::Ordinary, seconds), false);
        } else if is_time {
            self.account(situation, &mut course, (arm, seconds), false);
            take(self, situation, &mut course, (arm, seconds));
            // Too much is not waited for until something is decided again.
            self.judge_sum(situation, &mut course);
        }
        self.courses.insert(situation.context, course);
    }

    fn take_repeated(&mut self, situation: &Situation, course: &mut Course, (arm, seconds): (usize, f64)) {
        let (is_default, call) = (arm == situation.default, (arm, Role::Ordinary, seconds));
        if is_default {
            course.add_default(seconds);
        }
        match course.is_in_doubt() {
            true if is_default => self.ask(situation, course, call),
            true => self.learn(situation, course, (arm, seconds), true),
            false => match self.compare(situation, course, arm, seconds) {
                (_, true) => self.alarmed(situation, course, call),
                (counts, false) => self.learn(situation, course, (arm, seconds), counts),
            },
        }
        self.show_lateness(situation, &course.calm_down());
    }

    fn take_from_elsewhere(&mut self, situation: &Situation, course: &mut Course, (arm, seconds): (usize, f64)) {
        self.learn(situation, course, (arm, seconds), true);
        if arm == situation.default && course.drift.is_calm() && !course.is_in_doubt() {
            self.show_lateness(situation, &[seconds]);
        }
    }

    /// Does what stands in a context have to show that it is not late of itself, as it was by more than it has saved? Until then the default is called in its place.
    /// It is the same while its sum is in doubt.
    pub fn is_on_probation(&self, context: &Context) -> bool {
        self.guard.is_on_probation(context) || self.guard.asks(context).is_some()
    }

    /// What stands in a context, which is the default where nothing else does.
    pub fn stands_with(&self, context: &Context) -> Choice {
        match self.course(context).map(Course::standing) {
            Some(Standing::Chosen(choice, _)) => choice,
            _ => Choice::Default,
        }
    }

    /// What a context takes where nothing is tried: what stands, or the default in its place.
    pub fn rests_with(&self, context: &Context) -> Choice {
        if self.is_on_probation(context) { Choice::Default } else { self.stands_with(context) }
    }

    /// What its calls take that nobody times. Of the default called there nothing would be learned: what stands goes on, until it is late again.
    pub fn goes_on_with(&self, context: &Context) -> Choice {
        if self.guard.is_late_again(context) { Choice::Default } else { self.stands_with(context) }
    }

    /// The longest of several calls whose mean is observed next took so many seconds, less what the default's stick out as a rule. While
    /// their arm is tried, that may be enough to put it out, unless the default's are late, too. If the mean is late as well, that tells.
    pub fn observe_longest(&mut self, situation: &Situation, arm: usize, [mean_s, longest_s]: [f64; 2]) {
        let context = &situation.context;
        if self.guard.is_slow(context, mean_s) || !self.guard.is_slow(context, longest_s) || arm >= situation.arms.len()
        {
            return;
        }
        if arm == situation.default {
            self.guard.shows_lateness(context, longest_s);
        } else if self.course(context).and_then(Course::stands) != Some(arm) {
            self.guard.was_late_once(situation, arm, longest_s);
        }
    }

    /// A choice turns out to be none: the library does not do it. It is out until the network changes, also where it stands or is tried.
    pub fn veto(&mut self, situation: &Situation, arm: usize) {
        let Some(action) = situation.arms.get(arm).filter(|_| arm != situation.default).map(|it| it.action) else {
            return;
        };
        self.guard.veto(&situation.context, action);
        let Some(mut course) = self.courses.remove(&situation.context) else { return };
        if course.stands() == Some(arm) {
            self.revert(situation, &mut course, Choice::Play(action));
        }
        self.courses.insert(situation.context, course);
    }

    /// Somebody has seen from elsewhere that the network is another one, while all calls of a context were the default's, of which
    /// [`Tuner::observe_elsewhere`] was told: it begins anew.
    pub fn changed(&mut self, situation: &Situation) {
        let Some(mut course) = self.courses.remove(&situation.context) else { return };
        if situation.arms.len() > 1 {
            // What the default has taken since is no loss and no gain of anybody.
            course.calm_until = self.guard.calls(&situation.context);
            self.begin_anew(situation, &mut course);
            course.stood = None;
        }
        self.courses.insert(situation.context, course);
    }
}
