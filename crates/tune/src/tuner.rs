//! The tuner of a job: what each call takes, and what is known after it.
//!
//! A context goes through phases: the default alone, until its time is known; exploration, in which a learner proposes and
//! the guard admits; a trial of the best against the default; and then the winner, watched, beside which others are still tried with a
//! share of what it saves. When it looks as if the network had changed, the default is asked; if it has, all begins anew with what was
//! known of the one before. It lives on the leading rank; the others only read policies.

mod arrival;
mod beside;
mod course;
mod doubt;
mod networks;
mod rehearsed;
mod standing;
mod told;
mod trials;
mod tryable;
mod watched;

use std::collections::BTreeMap;

use arrival::Arrival;
use beside::Beside;
pub use course::Course;
use course::{Origin, Phase};
use networks::STANDS_ON_WITHIN;
pub use rehearsed::Outcome;
pub use standing::{Reason, Standing};

use crate::action::{Choice, Situation};
use crate::guard::{Guard, Risk};
use crate::learner::{Learner, Lesson, Thompson};
use crate::policy::{Policy, Schedule};
use crate::random::Random;
use crate::state::Context;
use crate::statistics::median;
use crate::trial::{Errors, Gain, Side, Verdict};
use tryable::Tryable;

/// Calls of exploration. How much they may cost is the guard's affair; what it refuses leaves room for later. With the default's
/// first calls and the longest trial, a context is decided after 300, unless the best of few wins no trial.
const EXPLORED: u64 = 192;

/// The same where an earlier job has explored: what it has found is measured again, and little else.
const EXPLORED_AGAIN: u64 = 64;

/// An earlier job has explored if it has lessons of so many choices.
const LESSONS: usize = 5;

/// The same after a change of the network: choices keep their order as a rule. With the calls until it is noticed, the default's, and 8
/// or 16 blocks of a trial, a context is decided again within 100 calls.
const EXPLORED_AFTER_CHANGE: u64 = 24;

/// While others are explored, a call in so many is the default's: what is gained and lost is counted against it.
const LOOKED_AFTER: u64 = 16;

/// A call counts for whether the network has changed if its time was known so well before, as a logarithm, or as well as so many calls like
/// it say, where calls vary much.
const EXPECTED: f64 = 0.08;
const EXPECTED_CALLS: f64 = 16.0;

/// The tuner.
pub struct Tuner {
    learner: Box<dyn Learner>,
    guard: Guard,
    /// Boxed, as one is taken out for each call that is decided or observed.
    courses: BTreeMap<Context, Box<Course>>,
    random: Random,
    errors: Errors,
    /// The same of trials against what stands.
    errors_beside: Errors,
    trials: u32,
    version: u64,
    /// What earlier jobs have learned of contexts that have not come yet.
    remembered: BTreeMap<Context, Vec<Lesson>>,
    /// The contexts that came, with their arms.
    situations: BTreeMap<Context, Situation>,
}

/// What a call takes, to be given back with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The arm.
    pub arm: usize,
    /// What the guard has set aside for it.
    risk: Risk,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Ordinary,
    /// Of the trial of this number: its side, and its block.
    OfTrial(u32, Side, usize),
    Sentinel,
}

/// What calls in a row are decided by: nothing is observed between them. None before something is to be tried.
type Row = Option<Tryable>;

impl Tuner {
    /// With a learner, and a seed for everything that is left to chance.
    pub fn new(learner: Box<dyn Learner>, seed: u64) -> Tuner {
        let random = Random::new(seed, 0x7e57);
        Tuner {
            learner,
            guard: Guard::default(),
            courses: BTreeMap::new(),
            random,
            errors: Errors::default(),
            errors_beside: Errors::default(),
            trials: 0,
            version: 0,
            remembered: BTreeMap::new(),
            situations: BTreeMap::new(),
        }
    }

    /// With the learner that ships.
    pub fn shipped(seed: u64) -> Tuner {
        Tuner::new(Box::<Thompson>::default(), seed)
    }

    /// Calls have other choices from here on: nothing that is known of them holds. What is promised of the whole job stays: the errors that
    /// its trials may make together, and the account of what everything tried has cost. The learner is the one that ships.
    pub fn start_over(&mut self) {
        self.learner = Box::<Thompson>::default();
        self.guard.start_over();
        self.courses.clear();
        self.remembered.clear();
        self.situations.clear();
    }

    /// What an earlier job has learned on this cluster. It counts as a few samples of each choice, and makes exploration short; a
    /// trial comes all the same.
    pub fn remember(&mut self, lessons: impl IntoIterator<Item = Lesson>) {
        for lesson in lessons {
            self.remembered.entry(lesson.context).or_default().push(lesson);
        }
    }

    /// What a later job may begin with: what was measured by this one. What it was told itself ([`Tuner::remember`]) is not in it.
    pub fn lessons(&self) -> Vec<Lesson> {
        self.situations.values().flat_map(|situation| self.learner.lessons(situation)).collect()
    }

    /// A context comes for the first time.
    fn begin(&mut self, situation: &Situation) -> Box<Course> {
        let lessons = self.remembered.remove(&situation.context).unwrap_or_default();
        let recalled = self.learner.recall(situation, &lessons);
        self.situations.insert(situation.context, situation.clone());
        Box::new(Course::new(situation, if recalled >= LESSONS { EXPLORED_AGAIN } else { EXPLORED }))
    }

    /// What a call takes. Calls may be decided before the times of earlier ones are known.
    pub fn decide(&mut self, situation: &Situation) -> Decision {
        self.decide_in(situation, &mut None)
    }

    fn decide_in(&mut self, situation: &Situation, row: &mut Row) -> Decision {
        let begun = self.courses.remove(&situation.context);
        let mut course = begun.unwrap_or_else(|| self.begin(situation));
        course.calls += 1;
        let suspicious = course.drift.is_suspicious();
        let stands = match course.phase {
            Phase::Chosen(_, choice) => situation.arm_of(choice),
            _ => situation.default,
        };
        let asks_default = course.arrival.as_mut().is_some_and(Arrival::decides_default);
        if course.arrival.as_ref().is_some_and(Arrival::is_given_up) {
            course.arrival = None;
        }
        let is_on_probation = self.guard.is_on_probation(&situation.context);
        let asks = self.guard.asks(&situation.context).filter(|_| !is_on_probation);
        let number = course.calls;
        let (arm, role) = match &mut course.phase {
            Phase::Baseline | Phase::Settled(_) => (situation.default, Role::Ordinary),
            Phase::Chosen(..) if asks_default => (situation.default, Role::Sentinel),
            Phase::Chosen(..) | Phase::Explore { .. } if course.arrival.is_some() => (stands, Role::Ordinary),
            Phase::Explore { calls, .. } => {
                *calls += 1;
                // Others are new, and tell nobody whether the network has changed.
                let looks = suspicious || *calls % LOOKED_AFTER == 0;
                (if looks { situation.default } else { self.explore(situation, row) }, Role::Ordinary)
            }
            Phase::Trial(tried) => self.of_trial(situation, tried, situation.default),
            // What the default takes then is the sentinel's affair, if the network is what it was.
            Phase::Doubt(_) => (situation.default, Role::Sentinel),
            Phase::Chosen(..) if asks.is_some_and(|asks| asks.is_default(number)) => {
                (situation.default, Role::Ordinary)
            }
            Phase::Chosen(..) if asks.is_some() => (stands, Role::Ordinary),
            Phase::Chosen(..) if course.sentinel.is_due() => (situation.default, Role::Sentinel),
            Phase::Chosen(..) if is_on_probation => (situation.default, Role::Ordinary),
            Phase::Chosen(..) => self.beside(situation, &mut course, stands, row),
        };
        let decision = self.admit(situation, &mut course, stands, (arm, role));
        self.courses.insert(situation.context, course);
        decision
    }

    /// What is tried next. If there is no room for what the learner wishes, something that is believed to be better than the
    /// default even at the upper end takes its turn, or the default, until there is room: what costs a little and tells
    /// nothing would use up what is saved for the wish.
    fn explore(&mut self, situation: &Situation, row: &mut Row) -> usize {
        let Tryable { admitted, worth_a_look, believed, means_s, .. } =
            row.get_or_insert_with(|| Tryable::of(&self.guard, &*self.learner, situation));
        let wish = self.learner.choose_of(situation, worth_a_look, believed, &mut self.random);
        let Some(room) = self.guard.room(situation) else { return situation.default };
        if wish == situation.default || room.has_for(believed[wish]) {
            return wish;
        }
        let may_be = |arm: usize| arm == situation.default || room.is_free(means_s[arm], believed[arm]);
        let free: Vec<usize> = admitted.iter().copied().filter(|&arm| may_be(arm)).collect();
        let free = self.learner.worth_a_look(situation, &free, believed);
        self.learner.choose_of(situation, &free, believed, &mut self.random)
    }

    /// The guard has the last word. What it refuses is the turn of what stands, or of the default.
    fn admit(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        stands: usize,
        (arm, role): (usize, Role),
    ) -> Decision {
        if arm == situation.default || arm == stands {
            return Decision { arm, risk: Risk::default(), role };
        }
        let belief = self.learner.belief(situation, arm);
        if !self.guard.may_play(situation, arm, belief) {
            if let (Some(tried), Role::OfTrial(_, side, _)) = (course.tried_mut(), role) {
                tried.trial.give_back(side);
                tried.refused += 1;
            }
            return Decision { arm: stands, risk: Risk::default(), role: Role::Ordinary };
        }
        course.explored += 1;
        Decision { arm, risk: self.guard.began(situation, arm, belief), role }
    }

    /// A call took so many seconds. What is no time is not learned from.
    pub fn observe(&mut self, situation: &Situation, decision: Decision, seconds: f64) {
        let Decision { arm, risk, role } = decision;
        self.guard.release(&situation.context, risk);
        if !(seconds.is_finite() && seconds > 0.0) || arm >= situation.arms.len() {
            return;
        }
        let Some(mut course) = self.courses.remove(&situation.context) else { return };
        if course.arrival.is_some() {
            self.arrive(situation, &mut course, (arm, role, seconds), true);
            self.courses.insert(situation.context, course);
            return;
        }
        self.account(situation, &mut course, (arm, seconds), true);
        if arm == situation.default {
            course.add_default(seconds);
        }
        if course.is_in_doubt() {
            self.ask(situation, &mut course, (arm, role, seconds));
        } else {
            self.follow(situation, &mut course, (arm, role, seconds));
        }
        self.show_lateness(situation, &course.calm_down());
        // What is due after that, is not waited for.
        self.judge_sum(situation, &mut course);
        self.courses.insert(situation.context, course);
    }

    /// A call while nothing is in doubt.
    fn follow(&mut self, situation: &Situation, course: &mut Course, (arm, role, seconds): (usize, Role, f64)) {
        let (counts, alarm) = self.compare(situation, course, arm, seconds);
        if alarm {
            return self.alarmed(situation, course, (arm, role, seconds));
        }
        self.learn(situation, course, (arm, seconds), counts);
        self.advance(situation, course, arm, role, seconds);
    }

    /// Compares a call with what was expected of it. That a model is wrong about a choice is no change, so only those count that have been
    /// measured: does this one, and does it look as if the network had changed?
    fn compare(&self, situation: &Situation, course: &mut Course, arm: usize, seconds: f64) -> (bool, bool) {
        let expected = self.learner.expected(situation, arm);
        let known_to = EXPECTED.max(expected.noise / EXPECTED_CALLS.sqrt());
        let counts = !matches!(course.phase, Phase::Baseline) && expected.deviation <= known_to;
        if course.drift.is_calm() {
            course.calm_until = self.guard.calls(&situation.context) - 1;
        }
        let times = seconds / expected.mean.exp();
        let alarm = counts && course.drift.observe(times, expected.deviation, expected.noise);
        (counts, alarm && situation.arms.len() > 1)
    }

    /// The guard's books, and those of what stands. `tried`: was it decided for this very call?
    fn account(&mut self, situation: &Situation, course: &mut Course, (arm, seconds): (usize, f64), tried: bool) {
        let stands = course.stands() == Some(arm);
        if stands || tried {
            self.count_beside(situation, course, arm, seconds);
        }
        if stands {
            self.guard.ended_chosen(&situation.context, seconds);
        } else if tried || arm == situation.default {
            self.guard.ended(situation, arm, seconds);
        } else {
            self.guard.ended_untried(situation, arm, seconds);
        }
    }

    fn advance(&mut self, situation: &Situation, course: &mut Course, arm: usize, role: Role, seconds: f64) {
        match &mut course.phase {
            Phase::Baseline => {
                if arm == situation.default && course.add_baseline(seconds) {
                    self.after_baseline(situation, course);
                }
            }
            Phase::Explore { calls, enough } if *calls >= *enough => {
                self.conclude(situation, course);
            }
            Phase::Explore { .. } => {}
            Phase::Trial(tried) => {
                let (candidate, origin) = (tried.candidate, tried.origin);
                let verdict = self.verdict(situation, tried, role, seconds);
                let (vetoed, refused) = (self.is_vetoed(situation, tried), tried.is_refused());
                if vetoed || refused {
                    self.errors.broken_off(&tried.trial);
                }
                match verdict {
                    None => {}
                    Some(Verdict::Gain(gain)) => {
                        self.errors.found();
                        course.stand(Phase::Chosen(candidate, situation.choice(candidate)), Some(gain));
                        let is_of_few = match origin {
                            Origin::Explored => course.has_explored_little(),
                            Origin::Remembered => false,
                            Origin::OfFew | Origin::Stood => true,
                        };
                        if is_of_few {
                            course.beside = Beside::at_once();
                        }
                    }
                    // In the network before it was no such thing, and nothing was explored in this one.
                    Some(Verdict::NoSignificantGain) if vetoed && origin == Origin::Stood => {
                        course.explore(EXPLORED_AFTER_CHANGE);
                    }
                    // If it was the network, that will be noticed soon, and what was best in the one before is still known then.
                    Some(Verdict::NoSignificantGain) if vetoed => course.rest(Reason::NoSignificantGain),
                    // What was best when the network was like this once is not any more: others may be.
                    Some(Verdict::NoSignificantGain) if origin != Origin::Explored => {
                        course.forget_best();
                        course.explore(EXPLORED_AFTER_CHANGE);
                    }
                    // It was the best of few.
                    Some(Verdict::NoSignificantGain) if !refused && course.explores_on() => {
                        course.forget_best();
                        course.explore(EXPLORED_AGAIN);
                    }
                    Some(Verdict::NoSignificantGain) => {
                        course.stand(Phase::Settled(Reason::NoSignificantGain), None);
                    }
                }
            }
            Phase::Chosen(..) | Phase::Settled(_) => self.watch(situation, course, arm, role, seconds),
            // Its calls are looked at when it is over.
            Phase::Doubt(_) => {}
        }
    }

    /// The default's time is known, for the first time or again.
    fn after_baseline(&mut self, situation: &Situation, course: &mut Course) {
        let shift = course.shift();
        match shift {
            Some(shift) => self.learner.changed(&situation.context, shift),
            None => self.anchor(situation, course.baseline_s()),
        }
        for seconds in course.take_baseline() {
            self.learner.observe(situation, situation.default, seconds);
        }
        let rehearsed = course.take_rehearsed().map(|(choice, origin)| (choice, origin, None));
        // In a network that is new, choices keep their order as a rule.
        let is_little = shift.is_some_and(|shift| shift.abs() <= STANDS_ON_WITHIN);
        let stood = course.stood.take();
        if let (None, true, Some((choice, Some(gain)))) = (rehearsed, is_little, stood) {
            return self.stand_on(situation, course, choice, gain);
        }
        let of_then = || course.best_of_then().map(|(choice, gain)| (choice, Origin::Remembered, gain));
        let known = rehearsed.or_else(of_then);
        if let (None, Some(_), Some((choice, gain))) = (known, shift, course.best_nearby()) {
            return self.stand_on(situation, course, choice, gain);
        }
        let of_another = || course.best_of_another().filter(|_| shift.is_some());
        let stood = stood.map(|(choice, _)| choice).or_else(of_another).map(|choice| (choice, Origin::Stood, None));
        let Some((choice, origin, gain)) = known.or(stood) else {
            return course.explore(course.to_explore);
        };
        let best = situation.arm_of(choice);
        match gain {
            _ if best == situation.default => course.explore(course.to_explore),
            // It has won a trial in this network. If it is another one after all, the sum and the sentinel tell.
            Some(gain) => course.stand(Phase::Chosen(best, choice), Some(gain)),
            None => self.try_out(course, best, origin),
        }
    }

    /// The network has changed little, or is nearly what another one was: what stood stands on, in doubt until its calls have shown that it is still better.
    fn stand_on(&mut self, situation: &Situation, course: &mut Course, choice: Choice, gain: Gain) {
        course.stand(Phase::Chosen(situation.arm_of(choice), choice), Some(gain));
        // Here it has won no trial.
        course.remember_best(choice, None);
        course.beside = Beside::at_once();
        self.guard.stands_unproved(&situation.context);
    }

    /// What the default takes says how far the model is off, before anything else is known.
    fn anchor(&mut self, situation: &Situation, default_s: &[f64]) {
        if let Some(usual_s) = median(default_s) {
            self.learner.anchor(situation, (usual_s / situation.arms[situation.default].modelled_s).ln());
        }
    }

    /// Exploration has ended.
    fn conclude(&mut self, situation: &Situation, course: &mut Course) {
        match self.better_than(situation, situation.default) {
            Some(best) => {
                course.remember_best(situation.choice(best), None);
                self.try_out(course, best, Origin::Explored);
            }
            None if course.goes_on() => {}
            None => course.stand(Phase::Settled(course.why_settled()), None),
        }
    }

    /// The network has changed.
    fn begin_anew(&mut self, situation: &Situation, course: &mut Course) {
        self.guard.stands_anew(&situation.context);
        self.guard.forget(&situation.context, course.calm_until);
        self.break_off_beside(course);
        if let Phase::Trial(tried) = &course.phase {
            self.errors.broken_off(&tried.trial);
        }
        course.change(EXPLORED_AFTER_CHANGE);
    }

    /// The contexts that were seen.
    pub fn courses(&self) -> impl Iterator<Item = (&Context, &Course)> {
        self.courses.iter().map(|(context, course)| (context, &**course))
    }

    /// What has become of a context, if it has come.
    pub fn course(&self, context: &Context) -> Option<&Course> {
        self.courses.get(context).map(|course| &**course)
    }

    /// The learner.
    pub fn learner(&self) -> &dyn Learner {
        &*self.learner
    }

    /// What all choices together took more than the default would have, as a share; negative if they gained.
    pub fn excess(&self) -> f64 {
        self.guard.excess()
    }

    /// The trials that were begun.
    pub fn trials(&self) -> u32 {
        self.trials
    }

    /// What has been decided, as the next version of the policy.
    pub fn policy(&mut self) -> Policy {
        self.version += 1;
        let decided = self.courses.iter().filter_map(|(context, course)| match course.standing() {
            Standing::Chosen(choice, _) => Some((*context, Schedule::always(choice))),
            _ => None,
        });
        Policy::new(self.version, decided)
    }

    /// The next calls of a context as a schedule for all ranks, with the decisions behind it in the same order.
    pub fn schedule(&mut self, situation: &Situation, calls: usize) -> (Schedule, Vec<Decision>) {
        let count = calls.clamp(1, Schedule::LENGTH_MAX);
        let mut row = None;
        let decisions: Vec<Decision> = (0..count).map(|_| self.decide_in(situation, &mut row)).collect();
        let choices: Vec<Choice> = decisions.iter().map(|decision| situation.choice(decision.arm)).collect();
        (Schedule::of(&choices).unwrap_or_else(|| Schedule::always(Choice::Default)), decisions)
    }
}

#[cfg(test)]
mod tests;
