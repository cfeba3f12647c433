//! Mostly the best so far, and sometimes any (Sutton and Barto, "Reinforcement Learning", §2.2).

use super::{Belief, Experience, Learner, least};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// ε-greedy in each context by itself, from the cost model's prior.
#[derive(Clone, Debug)]
pub struct EpsilonGreedy {
    experience: Experience,
    /// How often any arm is played.
    epsilon: f64,
}

impl Default for EpsilonGreedy {
    fn default() -> EpsilonGreedy {
        EpsilonGreedy { experience: Experience::default(), epsilon: 0.1 }
    }
}

impl Learner for EpsilonGreedy {
    fn name(&self) -> &'static str {
        "epsilon-greedy"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], random: &mut Random) -> usize {
        if random.unit() > self.epsilon {
            return least(arms.iter().copied(), |arm| believed[arm].mean).unwrap_or(situation.default);
        }
        let number = random.below(arms.len());
        arms.get(number).copied().unwrap_or(situation.default)
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
