//! One knob after the other, to whatever is better, until none is: the search of AutoCCL (Xu et al., "AutoCCL: automated
//! collective communication tuning for accelerating distributed and parallel DNN training", NSDI 2025), family by family.

use std::collections::BTreeMap;

use super::{Belief, Experience, Learner, lowest};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// Measurements of an arm before it is judged.
const SAMPLES: f64 = 3.0;

/// Coordinate descent in each context by itself.
#[derive(Clone, Debug, Default)]
pub struct CoordinateDescent {
    experience: Experience,
    searches: BTreeMap<Context, Search>,
}

#[derive(Clone, Debug, Default)]
struct Search {
    /// The family whose knobs are searched; those before are done.
    family: usize,
    /// Where it stands, once it has begun.
    here: Option<usize>,
}

impl Learner for CoordinateDescent {
    fn name(&self) -> &'static str {
        "coordinate-descent"
    }

    fn choose(&mut self, situation: &Situation, admitted: &[bool], _: &mut Random) -> usize {
        let mut search = self.searches.get(&situation.context).cloned().unwrap_or_default();
        let next = self.next(situation, admitted, &mut search);
        self.searches.insert(situation.context, search);
        next.unwrap_or_else(|| self.best(situation, admitted))
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.experience.add(situation, arm, seconds);
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        let known = self.experience.known(situation, arm, None);
        Belief { mean: known.mean, deviation: known.deviation }
    }

    fn best(&self, situation: &Situation, admitted: &[bool]) -> usize {
        let tried = |arm: usize| admitted[arm] && self.experience.samples(situation, arm) > 0.5;
        let tried: Vec<bool> = (0..admitted.len()).map(tried).collect();
        lowest(&tried, |arm| self.belief(situation, arm).mean).unwrap_or(situation.default)
    }

    fn fade(&mut self, context: &Context, keep: f64) {
        self.experience.fade(context, keep);
        self.searches.remove(context);
    }
}

impl CoordinateDescent {
    /// What is to be measured next; None when all families are done.
    fn next(&self, situation: &Situation, admitted: &[bool], search: &mut Search) -> Option<usize> {
        let short = |arm: usize| self.experience.samples(situation, arm) < SAMPLES - 0.5;
        let mean = |arm: usize| self.belief(situation, arm).mean;
        while search.family < situation.families.len() {
            let inside: Vec<bool> = (0..situation.arms.len())
                .map(|arm| admitted[arm] && situation.family_of[arm] == search.family)
                .collect();
            let begin = search.here.or_else(|| lowest(&inside, |arm| situation.arms[arm].modelled_s));
            let Some(here) = begin else {
                search.family += 1;
                continue;
            };
            search.here = Some(here);
            if short(here) {
                return Some(here);
            }
            let centre = situation.arms[here].action;
            let beside: Vec<usize> = (0..situation.arms.len())
                .filter(|&arm| inside[arm] && situation.arms[arm].action.is_beside(&centre))
                .collect();
            if let Some(&next) = beside.iter().find(|&&arm| short(arm)) {
                return Some(next);
            }
            let better = beside.into_iter().filter(|&arm| mean(arm) < mean(here));
            match better.min_by(|&one, &other| mean(one).total_cmp(&mean(other))) {
                Some(better) => search.here = Some(better),
                None => *search = Search { family: search.family + 1, here: None },
            }
        }
        None
    }
}
