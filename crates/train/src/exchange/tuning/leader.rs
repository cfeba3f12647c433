//! Rank 0's part: call by call a tuner finds what is faster, and then the time of the iteration decides about all of it together.

use std::collections::BTreeMap;
use std::mem;

use paceline_tune::drift::Drift;
use paceline_tune::environment::OwnModel;
use paceline_tune::learner::Lesson;
use paceline_tune::trial::{Errors, Gain, Side, Trial, Verdict, WORTHWHILE};
use paceline_tune::{Congestion, Context, Course, Policy, Random, Schedule, Standing, Tuner};

use crate::tuned::{Cost, Learning, Made, Plays, SHARE, Situations, TURNS, Version, situation_of};
use crate::tuning::{TuningNews, TuningReport, TuningStanding, contexts};

/// Iterations of a window while something is open, at least: each is a turn of each context.
const LEARNING: usize = TURNS as usize;

/// Iterations of a window while nothing is: a network that changes is noticed within so many and a few.
const DECIDED: usize = 32;

/// Calls of so many of them are timed, the last ones, to see if the network changes, and if the default is better again.
const WATCHED: usize = 4;

/// After so many iterations in which what was found stays unused, it is tried once more, even if nothing has changed.
const TRIED_AGAIN: usize = 4096;

/// Decides.
pub(super) struct Leader {
    learning: Learning,
    seed: u64,
    random: Random,
    published: Version,
    whole: Whole,
    /// Of trials of iterations.
    errors: Errors,
    /// Iterations so far, and those since a trial that has found nothing.
    iterations: u64,
    unused: usize,
    /// Iterations of the window, and how many of them are recorded, as it was said last.
    said: (usize, usize),
    news: Vec<TuningNews>,
}

/// How far the choices of all calls together are.
enum Whole {
    /// Some call is not decided.
    Learning,
    /// Iterations with the choices and without take turns. `turn`: whose the window's is.
    OnTrial { candidate: Found, trial: Trial, turn: Option<(Side, usize)> },
    /// They stand. None, and no gain, where nothing is better than the default.
    Stands { chosen: Found, gain: Option<Gain> },
    /// Iterations took no less. What they take is watched: if that changes, calls that were hidden may decide.
    Unused { watched: Drift },
}

/// By context, what is better than the default.
type Found = Vec<Plays>;

/// What is known when a window has ended.
pub(super) struct Ended<'a> {
    /// The version under which it ran.
    pub(super) active: u64,
    /// The calls, each with its least time over all ranks.
    pub(super) made: &'a [Made],
    /// The time of each iteration, the longest over all ranks; not finite if it says nothing.
    pub(super) iteration_s: &'a [f64],
    /// Seconds that a boundary has taken so far, in the mean; 0 if unknown.
    pub(super) boundary_s: f64,
    pub(super) situations: &'a Situations,
    /// Calls of each context in an iteration.
    pub(super) calls: &'a BTreeMap<Context, usize>,
}

/// What comes next.
pub(super) struct Turn {
    /// If it is another one.
    pub(super) version: Option<Version>,
    /// Of the next window, and how many of its last ones are recorded.
    pub(super) iterations: usize,
    pub(super) recorded: usize,
    /// Nothing is open.
    pub(super) settled: bool,
}

impl Leader {
    pub(super) fn new(learning: Learning, seed: u64) -> Leader {
        Leader {
            learning,
            seed,
            random: Random::new(seed, 0x17e2),
            published: Version::default(),
            whole: Whole::Learning,
            errors: Errors::default(),
            iterations: 0,
            unused: 0,
            said: (1, 0),
            news: Vec::new(),
        }
    }

    /// A window has ended: learns from it, and says what comes next.
    pub(super) fn turn(&mut self, ended: &Ended<'_>) -> Turn {
        self.iterations += ended.iteration_s.len() as u64;
        let settled = |whole: &Whole| matches!(whole, Whole::Stands { .. } | Whole::Unused { .. });
        if ended.active < self.published.number {
            // Somebody lacks it: it is sent again, and what was called meanwhile was nobody's turn.
            let (version, (iterations, recorded)) = (Some(self.published.clone()), self.said);
            return Turn { version, iterations, recorded, settled: settled(&self.whole) };
        }
        self.learning.learn(ended.made, ended.situations);
        self.judge(ended);
        let (plays, iterations, recorded) = self.plays(ended);
        self.said = (iterations, recorded);
        let next = Version::new(self.published.number + 1, plays);
        let version = (!next.plays_as(&self.published)).then_some(next);
        if let Some(version) = &version {
            self.published = version.clone();
        }
        Turn { version, iterations, recorded, settled: settled(&self.whole) }
    }

    /// How much others are in the way, by the calls of a window; every situation says it from here on.
    pub(super) fn observe_congestion(&mut self, made: &[Made], situations: &mut Situations) -> Congestion {
        self.learning.observe_congestion(made, situations);
        self.learning.congestion()
    }

    /// What is called how in the next window, how long that is, and how many of its iterations are recorded.
    fn plays(&mut self, ended: &Ended<'_>) -> (Found, usize, usize) {
        let (window, recorded) = match &self.whole {
            Whole::Learning => (learning_window(ended), learning_window(ended)),
            Whole::Stands { .. } => (DECIDED, WATCHED),
            Whole::OnTrial { candidate, turn: Some((Side::Candidate, _)), .. } => return (candidate.clone(), 1, 0),
            Whole::OnTrial { .. } => return (Vec::new(), 1, 0),
            // All calls are the default's. They are timed, so that it is known what they take, and how much others are in the way.
            Whole::Unused { .. } => return (Vec::new(), DECIDED, WATCHED),
        };
        let mut all = Vec::new();
        for context in ended.calls.keys() {
            if let Some(situation) = situation_of(ended.situations, context) {
                all.push(self.learning.plays(situation, recorded));
            }
        }
        (all, window, recorded)
    }

    /// Goes on from what stands, if there is a reason.
    fn judge(&mut self, ended: &Ended<'_>) {
        match &mut self.whole {
            Whole::OnTrial { .. } => self.judge_trial(ended.iteration_s),
            Whole::Learning => {
                if let Some(found) = self.found(ended) {
                    self.try_out(found);
                }
            }
            Whole::Stands { chosen, .. } => {
                let stood = mem::take(chosen);
                match self.found(ended) {
                    None => {
                        self.whole = Whole::Learning;
                        self.news.push(TuningNews::Again);
                    }
                    // What is no longer better has gone, which needs no trial; something new does.
                    Some(found) if found.iter().all(|plays| stood.contains(plays)) => self.keep(found),
                    Some(found) => self.try_out(found),
                }
            }
            Whole::Unused { watched } => {
                self.unused += ended.iteration_s.len();
                // What differs by no more than is worth a change is none.
                let is_another =
                    |seconds: &f64| seconds.is_finite() && *seconds > 0.0 && watched.observe(*seconds, WORTHWHILE, 0.0);
                if ended.iteration_s.iter().any(is_another) {
                    self.begin_anew(ended);
                } else if self.unused >= TRIED_AGAIN
                    && let Some(found) = self.found(ended)
                {
                    self.try_out(found);
                }
            }
        }
    }

    /// The network has changed, or what is computed has: what was found and not used is found out anew.
    fn begin_anew(&mut self, ended: &Ended<'_>) {
        for situation in ended.calls.keys().filter_map(|context| situation_of(ended.situations, context)) {
            self.learning.changed(situation);
        }
        self.whole = Whole::Learning;
        self.news.push(TuningNews::Again);
    }

    /// Here stands less than before, or the same.
    fn keep(&mut self, found: Found) {
        if let Whole::Stands { chosen, gain } = &mut self.whole {
            if found.is_empty() {
                *gain = None;
            }
            *chosen = found;
        }
    }

    fn judge_trial(&mut self, iteration_s: &[f64]) {
        let Whole::OnTrial { candidate, trial, turn } = &mut self.whole else { return };
        if let (Some((side, block)), [seconds]) = (turn.take(), iteration_s)
            && seconds.is_finite()
        {
            trial.observe(side, block, *seconds);
        }
        match trial.verdict() {
            Some(Verdict::Gain(gain)) => {
                self.errors.found();
                self.news.push(TuningNews::Tuned(gain.into()));
                self.whole = Whole::Stands { chosen: mem::take(candidate), gain: Some(gain) };
            }
            Some(Verdict::NoSignificantGain) => self.leave(),
            None => match trial.next(&mut self.random) {
                Some(next) => *turn = Some(next),
                // Too many iterations were interrupted.
                None => self.leave(),
            },
        }
    }

    fn leave(&mut self) {
        self.unused = 0;
        self.news.push(TuningNews::NoSignificantGain);
        self.whole = Whole::Unused { watched: Drift::default() };
    }

    /// Lets the time of the iteration decide about what was found.
    fn try_out(&mut self, found: Found) {
        if found.is_empty() {
            self.news.push(TuningNews::Unchanged);
            self.whole = Whole::Stands { chosen: found, gain: None };
            return;
        }
        self.news.push(TuningNews::Trial { contexts: found.len() });
        let mut trial = Trial::new(self.errors.next_level());
        let turn = trial.next(&mut self.random);
        self.whole = Whole::OnTrial { candidate: found, trial, turn };
    }

    /// What is better than the default, call by call; None while some context is open.
    fn found(&self, ended: &Ended<'_>) -> Option<Found> {
        let courses: BTreeMap<&Context, &Course> = self.learning.tuner.courses().collect();
        let mut found = Vec::new();
        for context in ended.calls.keys() {
            if situation_of(ended.situations, context).is_none() {
                continue;
            }
            match courses.get(context)?.standing() {
                Standing::Learning => return None,
                Standing::Chosen(choice, _) => found.push(Plays::always(*context, choice)),
                Standing::Settled(_) => {}
            }
        }
        Some(found)
    }

    /// Other operations come: what is on trial means nothing for them.
    pub(super) fn replanned(&mut self, situations: &Situations) {
        self.learning.forget_all(situations);
        if let Whole::OnTrial { trial, .. } = mem::replace(&mut self.whole, Whole::Learning) {
            self.errors.broken_off(&trial);
        }
        self.said = (1, 0);
    }

    /// Calls have other choices from here on. What is known of those that are still there is remembered.
    pub(super) fn renew(&mut self, situations: &Situations) {
        let lessons = self.lessons(situations);
        self.learning = Learning::new(Tuner::shipped(self.seed));
        self.learning.remember(lessons);
    }

    pub(super) fn take_news(&mut self) -> Vec<TuningNews> {
        mem::take(&mut self.news)
    }

    pub(super) fn lessons(&self, situations: &Situations) -> Vec<Lesson> {
        self.learning.lessons(situations)
    }

    pub(super) fn report(&self, model: &OwnModel, situations: &Situations) -> TuningReport {
        let (standing, gain) = match &self.whole {
            Whole::Learning => (TuningStanding::Learning, None),
            Whole::OnTrial { .. } => (TuningStanding::OnTrial, None),
            Whole::Stands { gain: Some(gain), .. } => (TuningStanding::Tuned, Some((*gain).into())),
            Whole::Stands { .. } => (TuningStanding::Unchanged, None),
            Whole::Unused { .. } => (TuningStanding::NoSignificantGain, None),
        };
        let costs: Vec<Cost> =
            self.learning.tuner.courses().map(|(context, _)| self.learning.cost(context, situations)).collect();
        TuningReport {
            standing,
            gain,
            tuned_iterations: self.iterations,
            trials: self.learning.tuner.trials(),
            iteration_trials: self.errors.begun(),
            policies: self.published.number,
            remembered: self.learning.recalled(),
            measured_s: costs.iter().map(|cost| cost.measured_s).sum(),
            regret_s: costs.iter().map(|cost| cost.regret_s).sum(),
            boundaries_s: 0.0,
            congestion: None,
            contexts: contexts(&self.learning.tuner, model),
            lessons: Vec::new(),
            policy: self.policy(),
        }
    }

    /// What stands, and shortens iterations: what is on trial, or was found in vain, is nothing to follow.
    fn policy(&self) -> Policy {
        let stands = match &self.whole {
            Whole::Stands { chosen, .. } => chosen.as_slice(),
            _ => &[],
        };
        Policy::new(self.published.number, stands.iter().map(|plays| (plays.context, Schedule::always(plays.then))))
    }
}

/// Iterations of the next window, while something is open: windows grow until a boundary takes no more than its share of them, as far
/// as decisions can be made that far ahead.
fn learning_window(ended: &Ended<'_>) -> usize {
    let shortest_s =
        ended.iteration_s.iter().copied().filter(|seconds| seconds.is_finite()).fold(f64::INFINITY, f64::min);
    // Of a time that is none, or infinite, nothing follows; and what is cast saturates.
    ((ended.boundary_s / (SHARE * shortest_s)).ceil() as usize).clamp(LEARNING, Schedule::LENGTH_MAX)
}

#[cfg(test)]
mod tests;
