//! Rank 0's part: call by call a tuner finds what is faster, and then the time of the iteration decides about all of it together.

use std::collections::BTreeMap;
use std::mem;

use paceline_tune::environment::OwnModel;
use paceline_tune::learner::Lesson;
use paceline_tune::whole::{self, Event, Found, Stage, Whole};
use paceline_tune::{Congestion, Context, Cost, Policy, Schedule};

use crate::tuned::{Learning, Made, Plays, SHARE, Situations, TURNS, Version, situation_of};
use crate::tuning::{TuningNews, TuningReport, TuningStanding, contexts};

/// Iterations of a window while something is open, at least: each is a turn of each context.
const LEARNING: usize = TURNS as usize;

/// Iterations of a window while nothing is: a network that changes is noticed within so many and a few.
const DECIDED: usize = 32;

/// Calls of so many of them are timed, the last ones, to see if the network changes, and if the default is better again.
const WATCHED: usize = 4;

/// After so many iterations in which what was found stays unused, or stands, it is tried once more, even if nothing seems to have changed.
const TRIED_AGAIN: u32 = 4096;

/// Decides.
pub(super) struct Leader {
    pub(super) learning: Learning,
    published: Version,
    /// How far the choices of all calls together are; its steps are iterations.
    whole: Whole,
    /// How often the network has changed, as far as calls have shown.
    drifts: u64,
    /// Iterations so far.
    iterations: u64,
    /// Iterations of the window, and how many of them are recorded, as it was said last.
    said: (usize, usize),
    /// Was the default called in the place of what stands in some context of the window, also where nobody timed it?
    replaced: bool,
    news: Vec<TuningNews>,
}

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
            published: Version::default(),
            whole: Whole::new(seed, TRIED_AGAIN),
            drifts: 0,
            iterations: 0,
            replaced: false,
            said: (1, 0),
            news: Vec::new(),
        }
    }

    /// A window has ended: learns from it, and says what comes next.
    pub(super) fn turn(&mut self, ended: &Ended<'_>) -> Turn {
        self.iterations += ended.iteration_s.len() as u64;
        let settled = |whole: &Whole| matches!(whole.stage(), Stage::Stands { .. } | Stage::Unused { .. });
        if ended.active < self.published.number {
            // Somebody lacks it: it is sent again, and what was called meanwhile was nobody's turn.
            let (version, (iterations, recorded)) = (Some(self.published.clone()), self.said);
            return Turn { version, iterations, recorded, settled: settled(&self.whole) };
        }
        self.learning.learn(ended.made, ended.situations, true);
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

    /// Has an earlier job told something of a context, or was it called?
    pub(super) fn knows(&self, context: &Context) -> bool {
        self.learning.is_told_of(context) || self.learning.course(context).is_some()
    }

    /// Something has been found out.
    pub(super) fn tell(&mut self, news: TuningNews) {
        self.news.push(news);
    }

    /// How much others are in the way, by the calls of a window; every situation says it from here on.
    pub(super) fn observe_congestion(&mut self, made: &[Made], situations: &mut Situations) -> Congestion {
        self.learning.observe_congestion(made, situations);
        self.learning.congestion()
    }

    /// What is called how in the next window, how long that is, and how many of its iterations are recorded.
    fn plays(&mut self, ended: &Ended<'_>) -> (Vec<Plays>, usize, usize) {
        let (window, recorded) = match (self.whole.stage(), self.whole.turn()) {
            (Stage::Learning, _) => (learning_window(ended), learning_window(ended)),
            (Stage::Stands { .. }, _) => (DECIDED, WATCHED),
            (Stage::OnTrial { .. }, whole::Turn::Found(found)) => return (always(found), 1, 0),
            (Stage::OnTrial { .. }, _) => return (Vec::new(), 1, 0),
            (Stage::Unused { .. }, whole::Turn::Found(found)) => return (always(found), DECIDED, WATCHED),
            // All calls are the default's. They are timed, so that it is known what they take, and how much others are in the way.
            (Stage::Unused { .. }, _) => return (Vec::new(), DECIDED, WATCHED),
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
        let count = ended.iteration_s.len();
        // Where something stands, something else may have been called in those that were recorded.
        let says =
            if let Stage::Stands { .. } = self.whole.stage() { count.saturating_sub(self.said.1) } else { count };
        // Nor do those say what stands takes in which the default was called in its place, beside those that were recorded.
        let tuner = &self.learning.tuner;
        let is_replaced = |context: &Context| tuner.goes_on_with(context) != tuner.stands_with(context);
        let replaced = matches!(self.whole.stage(), Stage::Stands { .. }) && ended.calls.keys().any(is_replaced);
        let says = if mem::replace(&mut self.replaced, replaced) || replaced { 0 } else { says };
        let steps = u32::try_from(count).unwrap_or(u32::MAX);
        let drifts = self.learning.drifts();
        let is_same_network = mem::replace(&mut self.drifts, drifts) == drifts;
        let has_choices = |context: &&Context| situation_of(ended.situations, context).is_some();
        let (found, is_open) =
            self.learning.found(ended.calls.keys().filter(has_choices).map(|context| (context, true)));
        // What was left alone for long is explored again in the same network, and what shortens iterations there does so all the same.
        let event = if is_open && is_same_network {
            self.whole.explore_again(&found, steps)
        } else {
            self.whole.judge((!is_open).then_some(found), &ended.iteration_s[..says], steps)
        };
        let news = match event {
            None => return,
            Some(Event::Trial(contexts)) => TuningNews::Trial { contexts },
            Some(Event::Gain(gain)) => TuningNews::Tuned(gain.into()),
            Some(Event::NoSignificantGain) => TuningNews::NoSignificantGain,
            Some(Event::NothingBetter) => TuningNews::Unchanged,
            Some(Event::Again) => TuningNews::Again,
            Some(Event::Changed) => {
                for situation in ended.calls.keys().filter_map(|context| situation_of(ended.situations, context)) {
                    self.learning.changed(situation);
                }
                TuningNews::Again
            }
        };
        self.news.push(news);
    }

    /// Other operations come: what is on trial means nothing for them.
    pub(super) fn replanned(&mut self, situations: &Situations) {
        self.learning.forget_all(situations);
        self.whole.begin_anew();
        self.said = (1, 0);
    }

    /// Calls have other choices from here on. What is known of those that are still there is remembered.
    pub(super) fn renew(&mut self, situations: &Situations) {
        let lessons = self.lessons(situations);
        self.learning.start_over();
        self.learning.remember(lessons);
    }

    pub(super) fn take_news(&mut self) -> Vec<TuningNews> {
        mem::take(&mut self.news)
    }

    pub(super) fn lessons(&self, situations: &Situations) -> Vec<Lesson> {
        self.learning.lessons(situations)
    }

    pub(super) fn report(&self, model: &OwnModel, situations: &Situations) -> TuningReport {
        let (standing, gain) = TuningStanding::of(&self.whole);
        let Cost { measured_s, regret_s } =
            self.learning.tuner.courses().map(|(context, _)| self.learning.cost(context, situations)).sum();
        TuningReport {
            standing,
            gain,
            tuned_iterations: self.iterations,
            trials: self.learning.tuner.trials(),
            iteration_trials: self.whole.trials(),
            policies: self.published.number,
            remembered: self.learning.recalled(),
            measured_s,
            regret_s,
            boundaries_s: 0.0,
            rehearsal_s: 0.0,
            congestion: None,
            fusion: None,
            contexts: contexts(&self.learning.tuner, model),
            lessons: Vec::new(),
            policy: self.policy(),
        }
    }

    /// What stands, and shortens iterations: what is on trial for the first time, or was found in vain, is nothing to follow.
    fn policy(&self) -> Policy {
        let stands = self.whole.stands().into_iter().flatten();
        Policy::new(self.published.number, stands.map(|(context, choice)| (*context, Schedule::always(*choice))))
    }
}

/// Every call as it was found.
fn always(found: &Found) -> Vec<Plays> {
    found.iter().map(|(context, choice)| Plays::always(*context, *choice)).collect()
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
