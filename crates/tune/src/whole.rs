//! The time of the iteration decides about the choices of all calls together: what calls gain may have been hidden behind
//! computation, and the channels that they take may be missed by it.
//!
//! A *step* is what iterations are compared by: one of them, or a round of several of which the mean counts. Steps with everything
//! that was found and steps without take turns, in the blocks of a [`Trial`].

use std::collections::BTreeMap;
use std::mem;

use crate::action::Choice;
use crate::drift::Drift;
use crate::random::Random;
use crate::state::Context;
use crate::trial::{Errors, Gain, Side, Trial, Verdict, WORTHWHILE};

/// A trial ends in vain after so many steps in a row that say nothing of whose turn it was.
const LOST_MAX: u32 = 64;

/// By context, what is better than the default as far as calls tell.
pub type Found = BTreeMap<Context, Choice>;

/// How far the choices of all calls together are.
#[derive(Clone, Debug)]
pub struct Whole {
    stage: Stage,
    /// After so many steps in which what was found stays unused, or stands, it is tried once more, even if nothing seems to have changed.
    tried_again: u32,
    /// What has won its trial, until a verdict or another network says otherwise: also while a call is explored again, or more is on trial.
    verified: Option<Verified>,
    /// Of trials of iterations.
    errors: Errors,
    random: Random,
}

/// What has shortened iterations.
#[derive(Clone, Debug)]
struct Verified {
    /// As far as calls still say so.
    found: Found,
    /// By how much it has.
    gain: Gain,
    /// As in [`Stage::Stands`], when that was left.
    watched: Drift,
    /// The same.
    steps: u32,
}

/// What has come of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A trial has begun, of what was found of so many contexts.
    Trial(usize),
    /// It stands, with this gain.
    Gain(Gain),
    /// Iterations took no less.
    NoSignificantGain,
    /// Nothing is better than the default, as far as calls tell.
    NothingBetter,
    /// A call is open again.
    Again,
    /// Iterations take another time than they did while nothing was used: what was found is to be found out anew
    /// ([`crate::Tuner::changed`]).
    Changed,
}

/// A stage of it.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Some call is not decided.
    Learning,
    /// Steps with the choices and without take turns. `turn`: whose the next step is.
    OnTrial {
        /// What is tried.
        candidate: Found,
        /// Its trial.
        trial: Trial,
        /// A side of it, and the block in which it counts.
        turn: Option<(Side, usize)>,
        /// So many steps in a row have said nothing: its turn is still to come.
        lost: u32,
    },
    /// They stand. None, and no gain, where nothing is better than the default. What iterations take is watched: if that changes, those
    /// with them may be the longer ones.
    Stands {
        /// What stands.
        chosen: Found,
        /// By how much iterations are shorter.
        gain: Option<Gain>,
        /// Of the steps since then.
        watched: Drift,
        /// How many there were.
        steps: u32,
    },
    /// Iterations took no less with all that was found: the default stands, or what had shortened them before more was found. What they
    /// take is watched: if that changes, calls that were hidden may decide.
    Unused {
        /// Of the steps since then.
        watched: Drift,
        /// How many there were.
        steps: u32,
    },
}

/// What calls take in the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn<'a> {
    /// What their own tuner says.
    ByCalls,
    /// These, and all others the default.
    Found(&'a Found),
    /// The default.
    Default,
}

impl Whole {
    /// Before anything is known. The order of the sides of a block follows from the seed; what is decided is looked at again after so
    /// many steps.
    pub fn new(seed: u64, tried_again: u32) -> Whole {
        let (errors, random) = (Errors::default(), Random::new(seed, 0x3401));
        Whole { stage: Stage::Learning, tried_again, verified: None, errors, random }
    }

    /// Before the job, iterations that were made for their time only have decided: this stands, which shortens them so much, or nothing
    /// that is better than the default was found.
    pub fn rehearsed(&mut self, won: Option<(Found, Gain)>) {
        self.begin_anew();
        match won {
            Some((found, gain)) => {
                self.errors.found();
                self.stand(found, Some(gain));
            }
            None => self.stage = Stage::Unused { watched: Drift::default(), steps: 0 },
        }
    }

    /// With which probability a trial of iterations before the job may report a gain where there is none: it is one of the job's.
    pub fn next_level(&mut self) -> f64 {
        self.errors.next_level()
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The trials that were begun.
    pub fn trials(&self) -> u32 {
        self.errors.begun()
    }

    /// Is nothing open, and does nothing look as if it soon were?
    pub fn is_settled(&self) -> bool {
        match &self.stage {
            Stage::Learning | Stage::OnTrial { .. } => false,
            Stage::Stands { watched, .. } | Stage::Unused { watched, .. } => !watched.is_suspicious(),
        }
    }

    /// What calls take in the next step.
    pub fn turn(&self) -> Turn<'_> {
        match &self.stage {
            Stage::Learning | Stage::Stands { .. } => Turn::ByCalls,
            Stage::OnTrial { candidate, turn: Some((Side::Candidate, _)), .. } => Turn::Found(candidate),
            Stage::Unused { .. } => self.stands().map_or(Turn::Default, Turn::Found),
            Stage::OnTrial { .. } => Turn::Default,
        }
    }

    /// What stands and shortens iterations: what is on trial for the first time or was found in vain does not.
    pub fn stands(&self) -> Option<&Found> {
        self.verified.as_ref().map(|verified| &verified.found)
    }

    /// The same of a context.
    pub fn chosen(&self, context: &Context) -> Choice {
        self.stands().and_then(|stands| stands.get(context)).copied().unwrap_or_default()
    }

    /// By how much what stands shortens iterations.
    pub fn gain(&self) -> Option<Gain> {
        self.verified.as_ref().map(|verified| verified.gain)
    }

    /// Other calls come: what was found of those before means nothing for them.
    pub fn begin_anew(&mut self) {
        self.break_off();
        (self.stage, self.verified) = (Stage::Learning, None);
    }

    /// So many steps have ended, and some call is explored again, though the network is what it was as far as anybody knows: what has
    /// shortened iterations stands for as long as calls say so. `found`: what is better by their times, of those that are decided.
    pub fn explore_again(&mut self, found: &Found, ended: u32) -> Option<Event> {
        self.set_aside();
        self.keep_part_of(found);
        if let Some(verified) = &mut self.verified {
            verified.steps = verified.steps.saturating_add(ended);
        }
        self.break_off();
        let before = mem::replace(&mut self.stage, Stage::Learning);
        (!matches!(before, Stage::Learning)).then_some(Event::Again)
    }

    /// So many steps have ended; while something is on trial, one. `found`: what is better by the times of calls; None while some call is
    /// open, and what stood means nothing, as in another network ([`Whole::explore_again`] otherwise). `iteration_s`: seconds of the
    /// iterations of those steps that say something, in which calls took what their turn was, or what stands.
    pub fn judge(&mut self, found: Option<Found>, iteration_s: &[f64], ended: u32) -> Option<Event> {
        let Some(found) = found else {
            let was_learning = matches!(self.stage, Stage::Learning);
            self.begin_anew();
            return (!was_learning).then_some(Event::Again);
        };
        self.keep_part_of(&found);
        match &mut self.stage {
            Stage::Learning => Some(self.go_on(found)),
            Stage::OnTrial { candidate, .. }
                if *candidate == found
                    || self.verified.as_ref().is_some_and(|verified| verified.found == *candidate) =>
            {
                self.judge_trial(&found, iteration_s)
            }
            Stage::OnTrial { .. } => {
                self.break_off();
                Some(self.go_on(found))
            }
            // What is no longer better has gone, which needs no trial; something new does.
            Stage::Stands { chosen, .. } if !is_part(&found, chosen) => Some(self.try_out(found)),
            Stage::Stands { chosen, gain, watched, steps } => {
                *steps = steps.saturating_add(ended);
                if (takes_another(watched, iteration_s) || *steps >= self.tried_again) && !found.is_empty() {
                    return Some(self.try_out(found));
                }
                if found.len() < chosen.len() {
                    *gain = gain.filter(|_| !found.is_empty());
                    *chosen = found;
                    // That iterations take something else now is no wonder.
                    *watched = Drift::default();
                }
                None
            }
            // What was more than that has gone.
            Stage::Unused { .. } if self.verified.as_ref().is_some_and(|verified| verified.found == found) => {
                Some(self.go_on(found))
            }
            Stage::Unused { watched, steps } => {
                *steps = steps.saturating_add(ended);
                if let Some(verified) = &mut self.verified {
                    verified.steps = verified.steps.saturating_add(ended);
                }
                if takes_another(watched, iteration_s) {
                    self.stage = Stage::Learning;
                    return Some(Event::Changed);
                }
                if *steps >= self.tried_again && found.is_empty() {
                    // There is nothing to try; iterations are watched on.
                    *steps = 0;
                    return None;
                }
                (*steps >= self.tried_again).then(|| self.try_out(found))
            }
        }
    }

    /// If something is on trial, it is not any more.
    fn break_off(&mut self) {
        if let Stage::OnTrial { trial, .. } = &self.stage {
            self.errors.broken_off(trial);
        }
    }

    /// What stands is no longer watched: how far that was is known when it stands again.
    fn set_aside(&mut self) {
        if let (Stage::Stands { watched, steps, .. }, Some(verified)) = (&mut self.stage, &mut self.verified) {
            (verified.watched, verified.steps) = (mem::take(watched), *steps);
        }
    }

    /// What is no longer better by the times of calls has gone. Where calls have found something better yet, what has shortened iterations
    /// is still better than the default: it stands until the better one has won its trial, and if that is in vain.
    fn keep_part_of(&mut self, found: &Found) {
        let Some(verified) = &mut self.verified else { return };
        let before = verified.found.len();
        verified.found.retain(|context, _| found.contains_key(context));
        if verified.found.is_empty() {
            self.verified = None;
        } else if verified.found.len() < before {
            // That iterations take something else now is no wonder.
            verified.watched = Drift::default();
        }
    }

    /// All is decided again: if nothing else was found than what has won its trial, it stands again without another one.
    fn go_on(&mut self, found: Found) -> Event {
        match &mut self.verified {
            Some(verified) if verified.found == found && verified.steps < self.tried_again => {
                let (gain, watched, steps) = (verified.gain, mem::take(&mut verified.watched), verified.steps);
                self.stage = Stage::Stands { chosen: found, gain: Some(gain), watched, steps };
                Event::Gain(gain)
            }
            _ => self.try_out(found),
        }
    }

    /// Lets the time of the iteration decide about what was found, or about what has stood.
    fn try_out(&mut self, found: Found) -> Event {
        if found.is_empty() {
            self.stand(found, None);
            return Event::NothingBetter;
        }
        self.set_aside();
        if let Some(verified) = self.verified.as_mut().filter(|verified| verified.found == found) {
            // Whatever this trial is broken off for, it is owed.
            verified.steps = self.tried_again;
        }
        let event = Event::Trial(found.len());
        let level = self.errors.next_level();
        // What has won by little before the job is not given up for less.
        let is_small = |verified: &Verified| verified.found == found && verified.gain.share < 2.0 * WORTHWHILE;
        let mut trial =
            if self.verified.as_ref().is_some_and(is_small) { Trial::patient(level) } else { Trial::new(level) };
        let turn = trial.next(&mut self.random);
        self.stage = Stage::OnTrial { candidate: found, trial, turn, lost: 0 };
        event
    }

    fn stand(&mut self, chosen: Found, gain: Option<Gain>) {
        self.verified = gain.map(|gain| Verified { found: chosen.clone(), gain, watched: Drift::default(), steps: 0 });
        self.stage = Stage::Stands { chosen, gain, watched: Drift::default(), steps: 0 };
    }

    /// `found`: what is better by the times of calls, which may be more than what is on trial.
    fn judge_trial(&mut self, found: &Found, iteration_s: &[f64]) -> Option<Event> {
        let Stage::OnTrial { candidate, trial, turn, lost, .. } = &mut self.stage else { return None };
        match (*turn, iteration_s) {
            (Some((side, block)), [seconds]) if is_time(seconds) => {
                trial.observe(side, block, *seconds);
                *lost = 0;
            }
            _ => {
                *lost += 1;
                return (*lost >= LOST_MAX).then(|| self.leave());
            }
        }
        match trial.verdict() {
            Some(Verdict::Gain(gain)) => {
                let chosen = mem::take(candidate);
                self.errors.found();
                Some(self.won(chosen, gain, found))
            }
            Some(Verdict::NoSignificantGain) => Some(self.leave()),
            None => match trial.next(&mut self.random) {
                Some(next) => {
                    *turn = Some(next);
                    None
                }
                None => Some(self.leave()),
            },
        }
    }

    /// What was tried is better than the default. It stands, unless it is clearly less so than what does already; and if calls say that
    /// something else is better yet, it stands while that stays unused.
    fn won(&mut self, chosen: Found, gain: Gain, found: &Found) -> Event {
        let is_less = |than: &Gain| gain.share + gain.margin < than.share - than.margin;
        if self.verified.as_ref().is_some_and(|verified| verified.found != chosen && is_less(&verified.gain)) {
            return self.leave_unused();
        }
        let is_all = chosen == *found;
        self.stand(chosen, Some(gain));
        if !is_all {
            self.stage = Stage::Unused { watched: Drift::default(), steps: 0 };
        }
        Event::Gain(gain)
    }

    /// The default is no worse than what was tried. If that was more than what has won a trial of its own, this stands.
    fn leave(&mut self) -> Event {
        if let Stage::OnTrial { candidate, .. } = &self.stage {
            _ = self.verified.take_if(|verified| verified.found == *candidate);
        }
        self.leave_unused()
    }

    /// What was tried stays unused. What stands meanwhile meets the default once more if it has not for long.
    fn leave_unused(&mut self) -> Event {
        let due = self.verified.as_ref().filter(|verified| verified.steps >= self.tried_again);
        if let Some(found) = due.map(|verified| verified.found.clone()) {
            return self.try_out(found);
        }
        self.stage = Stage::Unused { watched: Drift::default(), steps: 0 };
        Event::NoSignificantGain
    }
}

/// Is all of it in this, too?
fn is_part(found: &Found, all: &Found) -> bool {
    found.iter().all(|(context, choice)| all.get(context) == Some(choice))
}

/// Do iterations take another time than they did? What differs by no more than is worth a change is none.
fn takes_another(watched: &mut Drift, iteration_s: &[f64]) -> bool {
    iteration_s.iter().any(|seconds| is_time(seconds) && watched.observe(*seconds, WORTHWHILE, 0.0))
}

fn is_time(seconds: &f64) -> bool {
    seconds.is_finite() && *seconds > 0.0
}

#[cfg(test)]
mod tests;
