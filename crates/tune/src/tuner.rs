//! The tuner of a job: what each call takes, and what is known after it.
//!
//! A context goes through phases: the default alone, until its time is known; exploration, in which a learner proposes and
//! the guard admits; a trial of the best against the default; and then the winner, watched. It lives on the leading rank;
//! the others only read policies.

use std::collections::BTreeMap;

use crate::action::{Choice, Situation};
use crate::drift::{Drift, SENTINEL_EVERY, Sentinel};
use crate::guard::{Guard, Risk};
use crate::learner::{Learner, Lesson, Thompson};
use crate::policy::{Policy, Schedule};
use crate::random::Random;
use crate::state::{Context, State};
use crate::statistics::Tally;
use crate::trial::{Gain, Side, Trial, Verdict, WORTHWHILE};

/// Calls of the default at first.
const BASELINE: u64 = 5;

/// Calls of exploration. How much they may cost is the guard's affair; what it refuses leaves room for later. With the default's
/// first calls and the longest trial, a context is decided after 300.
const EXPLORED: u64 = 192;

/// After so many calls at rest, a context is explored once more.
const AGAIN: u64 = 4096;

/// While much is tried, a call counts for whether the network has changed if its time was known so well before, as a logarithm.
const EXPECTED: f64 = 0.08;

/// What is left of what was known when the network changes.
const AFTER_DRIFT: f64 = 0.02;

/// The tuner.
pub struct Tuner {
    learner: Box<dyn Learner>,
    guard: Guard,
    courses: BTreeMap<Context, Course>,
    random: Random,
    trials: u32,
    version: u64,
    /// What earlier jobs have learned of contexts that have not come yet.
    remembered: BTreeMap<Context, Vec<Lesson>>,
    /// The contexts that came, with their arms.
    situations: BTreeMap<Context, Situation>,
}

/// How far a context is.
#[derive(Clone, Debug)]
pub struct Course {
    /// One of its calls.
    pub state: State,
    phase: Phase,
    /// Calls decided.
    pub calls: u64,
    /// Calls that were not the default's and not decided yet: what finding out took.
    pub explored: u64,
    /// Times that the network changed.
    pub drifts: u32,
    /// Seconds of the default, as logarithms.
    pub default: Tally,
    /// Seconds of what stands now, as logarithms.
    pub chosen: Tally,
    drift: Drift,
    sentinel: Sentinel,
    gain: Option<Gain>,
    resting: u64,
}

#[derive(Clone, Debug)]
enum Phase {
    Baseline,
    Explore { calls: u64 },
    Trial { candidate: usize, trial: Trial },
    Chosen(usize, Choice),
    Settled(Reason),
}

/// Why a context stays with the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing looked better by 3 %.
    NothingBetter,
    /// The best looked better, and a trial found no significant gain.
    NoSignificantGain,
    /// What had been chosen is no longer better.
    Reverted,
    /// There is nothing to choose from.
    NoChoice,
}

/// Where a context stands, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Not decided yet.
    Learning,
    /// This, with this gain.
    Chosen(Choice, Gain),
    /// The default.
    Settled(Reason),
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
    OfTrial(Side, usize),
    Sentinel,
}

impl Tuner {
    /// With a learner, and a seed for everything that is left to chance.
    pub fn new(learner: Box<dyn Learner>, seed: u64) -> Tuner {
        let random = Random::new(seed, 0x7e57);
        Tuner {
            learner,
            guard: Guard::default(),
            courses: BTreeMap::new(),
            random,
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

    /// What an earlier job has learned on this cluster. It counts as a few samples of each choice; a trial comes all the same.
    pub fn remember(&mut self, lessons: impl IntoIterator<Item = Lesson>) {
        for lesson in lessons {
            self.remembered.entry(lesson.context).or_default().push(lesson);
        }
    }

    /// What a later job may begin with.
    pub fn lessons(&self) -> Vec<Lesson> {
        self.situations.values().flat_map(|situation| self.learner.lessons(situation)).collect()
    }

    fn recall(&mut self, situation: &Situation) {
        if let Some(lessons) = self.remembered.remove(&situation.context) {
            self.learner.recall(situation, &lessons);
        }
        self.situations.insert(situation.context, situation.clone());
    }

    /// What a call takes. Calls may be decided before the times of earlier ones are known.
    pub fn decide(&mut self, situation: &Situation) -> Decision {
        let mut course = self.courses.remove(&situation.context).unwrap_or_else(|| Course::new(situation.state));
        let call = course.calls;
        course.calls += 1;
        if call == 0 {
            self.recall(situation);
        }
        if situation.arms.len() < 2 {
            course.phase = Phase::Settled(Reason::NoChoice);
        }
        let (arm, role) = match &mut course.phase {
            Phase::Baseline | Phase::Settled(_) => (situation.default, Role::Ordinary),
            Phase::Explore { calls } => {
                *calls += 1;
                (self.explore(situation), Role::Ordinary)
            }
            Phase::Trial { candidate, trial } => match trial.next(&mut self.random) {
                Some((side, block)) => {
                    let arm = if side == Side::Candidate { *candidate } else { situation.default };
                    (arm, Role::OfTrial(side, block))
                }
                None => (situation.default, Role::Ordinary),
            },
            Phase::Chosen(..) if Sentinel::is_due(call) => (situation.default, Role::Sentinel),
            Phase::Chosen(_, choice) => (situation.arm_of(*choice), Role::Ordinary),
        };
        let decision = self.admit(situation, &mut course, arm, role);
        self.courses.insert(situation.context, course);
        decision
    }

    /// What is tried next. If there is no room for what the learner wishes, something that is believed to be better than the
    /// default even at the upper end takes its turn, or the default, until there is room: what costs a little and tells
    /// nothing would use up what is saved for the wish.
    fn explore(&mut self, situation: &Situation) -> usize {
        let mut admitted = self.guard.admitted(situation);
        let wish = self.learner.choose(situation, &admitted, &mut self.random);
        let Some(room) = self.guard.room(situation) else { return situation.default };
        if wish == situation.default || room.has_for(self.learner.belief(situation, wish)) {
            return wish;
        }
        for (arm, belief) in self.learner.beliefs(situation, &admitted).into_iter().enumerate() {
            admitted[arm] &= arm == situation.default || room.is_free(belief);
        }
        self.learner.choose(situation, &admitted, &mut self.random)
    }

    /// The guard has the last word.
    fn admit(&mut self, situation: &Situation, course: &mut Course, arm: usize, role: Role) -> Decision {
        let belief = self.learner.belief(situation, arm);
        let chosen = matches!(course.phase, Phase::Chosen(..));
        let default = situation.default;
        if arm != default && !chosen {
            if !self.guard.may_play(situation, arm, belief) {
                if let (Phase::Trial { trial, .. }, Role::OfTrial(side, _)) = (&mut course.phase, role) {
                    trial.give_back(side);
                }
                return Decision { arm: default, risk: Risk::default(), role: Role::Ordinary };
            }
            course.explored += 1;
        }
        let risk = if chosen { Risk::default() } else { self.guard.began(situation, arm, belief) };
        Decision { arm, risk, role }
    }

    /// A call took so many seconds. What is no time is not learned from.
    pub fn observe(&mut self, situation: &Situation, decision: Decision, seconds: f64) {
        let Decision { arm, risk, role } = decision;
        self.guard.release(&situation.context, risk);
        if !(seconds.is_finite() && seconds > 0.0) || arm >= situation.arms.len() {
            return;
        }
        let Some(mut course) = self.courses.remove(&situation.context) else { return };
        match (&course.phase, course.gain) {
            (Phase::Chosen(chosen, _), Some(gain)) if *chosen == arm => {
                // What won was chosen for looking good: only what it gains at least is credited.
                self.guard.ended_chosen(&situation.context, (gain.share - gain.margin).max(0.0), seconds);
            }
            _ => self.guard.ended(situation, arm, seconds),
        }
        let expected = self.learner.belief(situation, arm);
        self.learner.observe(situation, arm, seconds);
        if arm == situation.default {
            course.default.add(seconds.ln(), 0.97);
        }
        // While much is tried, calls are compared with what was expected of them; that a model is wrong about a choice is
        // no change, so only those count that have been measured.
        let trying = matches!(course.phase, Phase::Explore { .. } | Phase::Trial { .. });
        let known = expected.deviation <= EXPECTED;
        if trying && known && course.drift.observe(seconds / expected.mean.exp()) {
            self.begin_anew(situation, &mut course);
        } else {
            self.advance(situation, &mut course, arm, role, seconds);
        }
        self.courses.insert(situation.context, course);
    }

    /// A further call that a schedule has repeated: it is learned from, and counted by the guard.
    pub fn observe_repeated(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        if seconds.is_finite() && seconds > 0.0 && arm < situation.arms.len() {
            self.guard.ended(situation, arm, seconds);
            self.learner.observe(situation, arm, seconds);
        }
    }

    fn advance(&mut self, situation: &Situation, course: &mut Course, arm: usize, role: Role, seconds: f64) {
        match &mut course.phase {
            Phase::Baseline if course.default.weight > BASELINE as f64 - 0.6 => {
                course.phase = Phase::Explore { calls: 0 };
            }
            Phase::Baseline => {}
            Phase::Explore { calls } if *calls >= EXPLORED => {
                let best = self.learner.best(situation, &self.guard.admitted(situation));
                course.phase = self.conclude(situation, best);
                course.drift = Drift::default();
            }
            Phase::Explore { .. } => {}
            Phase::Trial { candidate, trial } => {
                if let Role::OfTrial(side, block) = role {
                    trial.observe(side, block, seconds);
                }
                let candidate = *candidate;
                // One call may have been enough to veto it.
                let vetoed = self.guard.is_vetoed(&situation.context, &situation.arms[candidate].action);
                let verdict = if vetoed { Some(Verdict::NoSignificantGain) } else { trial.verdict() };
                match verdict {
                    None => {}
                    Some(Verdict::Gain(gain)) => {
                        course.stand(Phase::Chosen(candidate, situation.choice(candidate)), Some(gain));
                    }
                    Some(Verdict::NoSignificantGain) => {
                        course.stand(Phase::Settled(Reason::NoSignificantGain), None);
                    }
                }
            }
            Phase::Chosen(..) | Phase::Settled(_) => self.watch(situation, course, arm, role, seconds),
        }
    }

    /// Exploration has ended with a best arm.
    fn conclude(&mut self, situation: &Situation, best: usize) -> Phase {
        let mean = |arm| self.learner.belief(situation, arm).mean;
        if best == situation.default || mean(situation.default) - mean(best) < WORTHWHILE {
            return Phase::Settled(Reason::NothingBetter);
        }
        self.trials += 1;
        Phase::Trial { candidate: best, trial: Trial::new(self.trials) }
    }

    /// What stands is watched: for a network that changes, and for a default that is better again.
    fn watch(&mut self, situation: &Situation, course: &mut Course, arm: usize, role: Role, seconds: f64) {
        course.resting += 1;
        if role == Role::Sentinel {
            course.sentinel.add_default(seconds);
        } else {
            course.sentinel.add_chosen(seconds);
            course.chosen.add(seconds.ln(), 0.97);
        }
        let stands = match course.phase {
            Phase::Chosen(chosen, _) => chosen,
            _ => situation.default,
        };
        let changed = arm == stands && course.drift.observe(seconds);
        if changed {
            self.begin_anew(situation, course);
        } else if matches!(course.phase, Phase::Chosen(..)) && course.sentinel.prefers_default() {
            course.stand(Phase::Settled(Reason::Reverted), None);
        } else if matches!(course.phase, Phase::Settled(reason) if reason != Reason::NoChoice)
            && course.resting >= AGAIN
        {
            course.stand(Phase::Baseline, None);
        }
    }

    /// The network has changed.
    fn begin_anew(&mut self, situation: &Situation, course: &mut Course) {
        self.learner.fade(&situation.context, AFTER_DRIFT);
        self.guard.forget(&situation.context);
        course.drifts += 1;
        course.default = Tally::default();
        course.stand(Phase::Baseline, None);
    }

    /// The contexts that were seen.
    pub fn courses(&self) -> impl Iterator<Item = (&Context, &Course)> {
        self.courses.iter()
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
        let decided = self.courses.iter().filter_map(|(context, course)| match course.phase {
            Phase::Chosen(_, choice) => Some((*context, Schedule::always(choice))),
            _ => None,
        });
        Policy::new(self.version, decided)
    }

    /// The next calls of a context as a schedule for all ranks, with the decisions behind it in the same order.
    pub fn schedule(&mut self, situation: &Situation, calls: usize) -> (Schedule, Vec<Decision>) {
        let count = calls.clamp(1, Schedule::LENGTH_MAX);
        let decisions: Vec<Decision> = (0..count).map(|_| self.decide(situation)).collect();
        let choices: Vec<Choice> = decisions.iter().map(|decision| situation.choice(decision.arm)).collect();
        (Schedule::of(&choices).unwrap_or_else(|| Schedule::always(Choice::Default)), decisions)
    }
}

impl Course {
    fn new(state: State) -> Course {
        Course {
            state,
            phase: Phase::Baseline,
            calls: 0,
            explored: 0,
            drifts: 0,
            default: Tally::default(),
            chosen: Tally::default(),
            drift: Drift::default(),
            sentinel: Sentinel::default(),
            gain: None,
            resting: 0,
        }
    }

    fn stand(&mut self, phase: Phase, gain: Option<Gain>) {
        (self.phase, self.gain, self.resting) = (phase, gain, 0);
        (self.drift, self.sentinel, self.chosen) = (Drift::default(), Sentinel::default(), Tally::default());
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        match (&self.phase, self.gain) {
            (Phase::Chosen(_, choice), Some(gain)) => Standing::Chosen(*choice, gain),
            (Phase::Settled(reason), _) => Standing::Settled(*reason),
            _ => Standing::Learning,
        }
    }

    /// Is it decided?
    pub fn is_decided(&self) -> bool {
        self.standing() != Standing::Learning
    }
}

impl Reason {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Reason::NothingBetter => "nothing looked better by 3 %",
            Reason::NoSignificantGain => "no significant gain",
            Reason::Reverted => "reverted: the default is better again",
            Reason::NoChoice => "there is nothing to choose from",
        }
    }
}

/// How often a standing choice gives way to the default's sentinel call, for those who count costs.
pub const SENTINEL_SHARE: f64 = 1.0 / SENTINEL_EVERY as f64;

#[cfg(test)]
mod tests;
