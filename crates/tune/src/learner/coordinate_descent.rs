//! One knob after the other, to whatever is better, until none is: the search of AutoCCL (Xu et al., "AutoCCL: automated
//! collective communication tuning for accelerating distributed and parallel DNN training", NSDI 2025), family by family.

use super::{Belief, Experience, Learner, lowest, switches};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// Measurements of an arm before it is judged.
const SAMPLES: f64 = 3.0;

/// Coordinate descent in each context by itself. Where a search stands follows from what was measured, so that whoever asks with
/// fewer arms admitted for once, as the guard does, changes nothing about it.
#[derive(Clone, Debug, Default)]
pub struct CoordinateDescent {
    experience: Experience,
}

impl Learner for CoordinateDescent {
    fn name(&self) -> &'static str {
        "coordinate-descent"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], _: &[Belief], _: &mut Random) -> usize {
        let admitted = switches(situation, arms);
        let families = 0..situation.families.len();
        let next = families.filter_map(|family| self.next(situation, &admitted, family)).next();
        next.unwrap_or_else(|| self.best(situation, &admitted))
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.experience.add(situation, arm, seconds);
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        self.experience.known(situation, arm, None).into()
    }

    fn best(&self, situation: &Situation, admitted: &[bool]) -> usize {
        let tried = |arm: usize| admitted[arm] && self.experience.samples(situation, arm) > 0.5;
        let tried: Vec<bool> = (0..admitted.len()).map(tried).collect();
        lowest(&tried, |arm| self.belief(situation, arm).mean).unwrap_or(situation.default)
    }

    fn changed(&mut self, context: &Context, shift: f64) {
        self.experience.changed(context, shift);
    }
}

impl CoordinateDescent {
    /// What is to be measured next in a family; None when its search has ended.
    fn next(&self, situation: &Situation, admitted: &[bool], family: usize) -> Option<usize> {
        let short = |arm: usize| self.experience.samples(situation, arm) < SAMPLES - 0.5;
        let mean = |arm: usize| self.belief(situation, arm).mean;
        let inside: Vec<bool> =
            (0..situation.arms.len()).map(|arm| admitted[arm] && situation.family_of[arm] == family).collect();
        let mut here = lowest(&inside, |arm| situation.arms[arm].modelled_s)?;
        loop {
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
            here = better.min_by(|&one, &other| mean(one).total_cmp(&mean(other)))?;
        }
    }
}
