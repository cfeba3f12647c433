//! Every arm once, then the one with the best bound (Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the
//! multiarmed bandit problem", 2002).

use super::{Belief, Experience, Learner, least};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// UCB1 in each context by itself. It knows no prior but the order in which it tries: by the modelled time.
#[derive(Clone, Debug, Default)]
pub struct Ucb1 {
    experience: Experience,
}

/// Rewards lie in 0 to 1 for UCB1; the logarithms of times lie within about this range.
const RANGE: f64 = 0.5;

impl Learner for Ucb1 {
    fn name(&self) -> &'static str {
        "ucb1"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], _: &mut Random) -> usize {
        let samples = |arm: usize| self.experience.samples(situation, arm);
        let untried = arms.iter().copied().filter(|&arm| samples(arm) < 0.5);
        if let Some(next) = least(untried, |arm| situation.arms[arm].modelled_s) {
            return next;
        }
        let total = self.experience.samples_in(&situation.context).max(1.0).ln();
        let bound = |arm: usize| believed[arm].mean - RANGE * (2.0 * total / samples(arm).max(1.0)).sqrt();
        least(arms.iter().copied(), bound).unwrap_or(situation.default)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.experience.add(situation, arm, seconds);
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        self.experience.known(situation, arm, None).into()
    }

    fn changed(&mut self, context: &Context, shift: f64) {
        self.experience.changed(context, shift);
    }
}
