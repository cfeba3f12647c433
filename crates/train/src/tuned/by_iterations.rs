//! In a job whose boundaries end iterations, the time of the iteration decides: what calls gain may be lost by others that are under way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_comm::CommError;
use paceline_tune::trial::Gain;
use paceline_tune::whole::{Event, Found, Stage, Turn, Whole};
use paceline_tune::{Context, Course, Situation, Standing, State};

use super::TunedCalls;
use super::leader::Leader;
use super::learning::situation_of;
use super::policies::{Plays, Version};

/// After so many steps in which what was found stays unused, or stands, it is tried once more, even if nothing seems to have changed.
const TRIED_AGAIN: u32 = 4096;

/// Rank 0's part.
pub(super) struct ByIterations {
    /// Its steps are what lies between two meetings.
    whole: Whole,
    /// What rehearsed iterations have found, which nobody learns more about until iterations take another time. None: calls are learned from.
    rehearsed: Option<Found>,
    /// How often the network has changed, as far as calls have shown.
    drifts: u64,
    /// Was something else called in the step than what stands?
    tried: bool,
}

/// Iterations since the ranks have met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub(super) iterations: u32,
    pub(super) seconds: f64,
}

impl Step {
    /// One more.
    pub(super) fn add(&mut self, iteration: Duration) {
        self.iterations += 1;
        self.seconds += iteration.as_secs_f64();
    }

    /// What one takes in the mean.
    fn mean_s(&self) -> f64 {
        self.seconds / f64::from(self.iterations.max(1))
    }
}

impl ByIterations {
    pub(super) fn new(seed: u64) -> ByIterations {
        ByIterations { whole: Whole::new(seed, TRIED_AGAIN), rehearsed: None, drifts: 0, tried: false }
    }

    /// Is nothing open, as far as iterations tell?
    pub(super) fn is_settled(&self) -> bool {
        self.whole.is_settled()
    }

    /// Does each context go by its own tuner, and not all of them by what is found out of iterations?
    pub(super) fn goes_by_calls(&self) -> bool {
        matches!(self.whole.turn(), Turn::ByCalls)
    }

    /// Do calls tell nothing that is listened to?
    fn is_rehearsed(&self) -> bool {
        self.rehearsed.is_some()
    }
}

impl<'a> TunedCalls<'a> {
    /// The same where each boundary ends an iteration, whose time decides: what calls have found stands when it has shortened iterations.
    /// `seed`: of the order in which they take turns; calls of several communicators in the same iterations have one each, and another seed.
    #[must_use]
    pub fn by_iterations(mut self, seed: u64) -> TunedCalls<'a> {
        self.counts_iterations = true;
        if let Some(leader) = &mut self.leader {
            leader.by_iterations = Some(ByIterations::new(seed));
        }
        self
    }

    /// With which probability the next trial of iterations before the job may report a gain where there is none; on rank 0.
    pub(super) fn next_level_of_iterations(&mut self) -> Option<f64> {
        self.leader.as_mut()?.by_iterations.as_mut().map(|it| it.whole.next_level())
    }

    /// Rehearsed iterations have shown this: what stands from here on.
    pub(super) fn stand_by_iterations(&mut self, won: Option<(&Found, Gain)>) -> Result<(), CommError> {
        let mut next = None;
        if let Some(leader) = &mut self.leader {
            next = leader.rehearsed_iterations(self.policies.active(), won);
        }
        self.policies.spread(self.communicator, next.as_ref(), &mut [])?;
        self.kinds.forget();
        self.listens = false;
        self.glances.set(0);
        // What was rehearsed is no iteration of the job.
        (self.ended, self.step) = (Instant::now(), Step::default());
        Ok(())
    }
}

impl Leader {
    /// Are calls learned from?
    pub(super) fn listens(&self) -> bool {
        !self.by_iterations.as_ref().is_some_and(ByIterations::is_rehearsed)
    }

    /// Goes by what rehearsed iterations have shown; the version that follows. `active`: the one in force.
    fn rehearsed_iterations(&mut self, active: u64, won: Option<(&Found, Gain)>) -> Option<Version> {
        let it = self.by_iterations.as_mut()?;
        let own = |found: &Found| -> Found {
            let is_here = |(context, _): &(&Context, _)| self.situations.contains_key(*context);
            found.iter().filter(is_here).map(|(context, choice)| (*context, *choice)).collect()
        };
        let won = won.map(|(found, gain)| (own(found), gain)).filter(|(found, _)| !found.is_empty());
        it.rehearsed = Some(won.as_ref().map(|(found, _)| found.clone()).unwrap_or_default());
        it.whole.rehearsed(won);
        if active < self.published.number {
            // Somebody lacks it, and versions follow each other: it is sent again, and this goes into the next one.
            return Some(self.published.clone());
        }
        let plays: Vec<Plays> =
            it.rehearsed.iter().flatten().map(|(context, choice)| Plays::always(*context, *choice)).collect();
        self.published = Version::new(self.published.number + 1, plays);
        Some(self.published.clone())
    }

    /// Goes on from what stands, if the time of the iterations is a reason.
    pub(super) fn judge_iterations(&mut self, step: Step, numbers: &BTreeMap<Context, (u64, State)>) {
        let (found, is_open) = self.found_by_calls(numbers);
        let drifts = self.learning.drifts();
        let is_probed = |context: &Context| !self.is_gone(context) && self.learning.tuner.is_on_probation(context);
        let on_probation = self.situations.keys().any(is_probed);
        let Some(it) = &mut self.by_iterations else { return };
        let is_same_network = std::mem::replace(&mut it.drifts, drifts) == drifts;
        let says = [step.mean_s()];
        // Nor do those say what stands takes in which the default was called in its place.
        let probed = matches!(it.whole.turn(), Turn::ByCalls) && on_probation;
        let was_tried = std::mem::replace(&mut it.tried, probed);
        let says = if was_tried || probed { &[][..] } else { &says[..] };
        let event = match &it.rehearsed {
            Some(found) => it.whole.judge(Some(found.clone()), says, step.iterations.max(1)),
            None if is_open && is_same_network => it.whole.explore_again(&found, step.iterations.max(1)),
            None => it.whole.judge((!is_open).then_some(found), says, step.iterations.max(1)),
        };
        if event == Some(Event::Changed) {
            it.rehearsed = None;
            for situation in self.situations.values().flatten() {
                self.learning.changed(situation);
            }
        }
    }

    /// What is better than the default, call by call, and whether some context is open.
    fn found_by_calls(&self, numbers: &BTreeMap<Context, (u64, State)>) -> (Found, bool) {
        let has_choices =
            |(context, situation): &(&Context, &Option<Situation>)| situation.is_some() && !self.is_gone(context);
        // What is not called is not waited for.
        let of_context = |(context, _)| (context, numbers.contains_key(context));
        self.learning.found(self.situations.iter().filter(has_choices).map(of_context))
    }

    /// What calls take until the ranks meet again. `by_calls`: as their own tuner says.
    pub(super) fn plays_by_iterations(&mut self, by_calls: impl FnOnce(&mut Leader) -> Vec<Plays>) -> Vec<Plays> {
        let Some(it) = &self.by_iterations else { return by_calls(self) };
        let always = |found: &Found| found.iter().map(|(context, choice)| Plays::always(*context, *choice)).collect();
        match (it.whole.stage(), it.whole.turn()) {
            (_, Turn::Found(found)) => always(found),
            (_, Turn::Default) => Vec::new(),
            (Stage::Stands { chosen, .. }, Turn::ByCalls) if it.is_rehearsed() => always(chosen),
            (Stage::Stands { .. }, Turn::ByCalls) => {
                let all = by_calls(self);
                self.note_what_is_tried(&all);
                all
            }
            // What has shortened no iteration does not stand while others are explored.
            (_, Turn::ByCalls) => {
                let mut all = by_calls(self);
                for plays in &mut all {
                    if let Some(Standing::Chosen(..)) = self.learning.course(&plays.context).map(Course::standing)
                        && let Some(situation) = situation_of(&self.situations, &plays.context)
                    {
                        self.learning.forget(situation);
                        let verified = self.by_iterations.as_ref().map(|it| it.whole.chosen(&plays.context));
                        *plays = Plays::always(plays.context, verified.unwrap_or_default());
                    }
                }
                all
            }
        }
    }

    /// Iterations in which something else is called than what stands do not say what that takes.
    fn note_what_is_tried(&mut self, all: &[Plays]) {
        let tried = all.iter().any(|plays| plays.turns.turns().iter().any(|turn| *turn != plays.then));
        if let Some(it) = &mut self.by_iterations {
            it.tried |= tried;
        }
    }
}
