//! A small learned policy: an actor that prefers arms, and a critic that says what was to be expected (actor and critic as
//! in Sutton and Barto, "Reinforcement Learning", §13.5; with one decision to an episode).

use std::collections::BTreeMap;

use super::features::{OF_ACTION, of_state, with_action};
use super::{Belief, FEATURES, Kind, Learner, features, switches};
use crate::action::Situation;
use crate::random::Random;
use crate::state::{Context, State};

/// Units of the hidden layer.
const HIDDEN: usize = 16;

/// How far a sample moves the weights.
const STEP: f64 = 0.05;

/// How far preferences are from certainty at first: the modelled times, so many times.
const SHARPNESS: f64 = 10.0;

/// The network: features → 16 tanh → one number for each arm, which is added to what the cost model says, and a number
/// of its own for each family of a collective.
#[derive(Clone, Debug)]
pub struct PolicyNetwork {
    inner: [[f64; FEATURES]; HIDDEN],
    outer: [f64; HIDDEN],
    families: BTreeMap<Kind, f64>,
    /// What is expected of a context: the critic.
    expected: BTreeMap<Context, f64>,
}

impl Default for PolicyNetwork {
    fn default() -> PolicyNetwork {
        let mut random = Random::new(0, 0x11e7);
        let mut inner = [[0.0; FEATURES]; HIDDEN];
        inner.iter_mut().flatten().for_each(|weight| *weight = 0.3 * random.normal());
        PolicyNetwork { inner, outer: [0.0; HIDDEN], families: BTreeMap::new(), expected: BTreeMap::new() }
    }
}

impl PolicyNetwork {
    /// The sums before the hidden units, of a call alone: `before` adds an action's part.
    fn of_call(&self, state: &State) -> [f64; HIDDEN] {
        let at = of_state(state);
        self.inner.map(|row| row.iter().zip(&at).map(|(weight, value)| weight * value).sum())
    }

    fn hidden(&self, of_call: &[f64; HIDDEN], at: &[f64; FEATURES]) -> [f64; HIDDEN] {
        let mut hidden = *of_call;
        for (unit, row) in hidden.iter_mut().zip(&self.inner) {
            let of_action: f64 = OF_ACTION.iter().map(|&number| row[number] * at[number]).sum();
            *unit = (*unit + of_action).tanh();
        }
        hidden
    }

    /// The higher, the better; of arms that are not admitted, −∞.
    fn preferences(&self, situation: &Situation, admitted: &[bool]) -> Vec<f64> {
        let (of_call, of_state) = (self.of_call(&situation.state), of_state(&situation.state));
        let cheapest_s = situation.cheapest_s();
        let preference = |arm: usize| {
            if !admitted[arm] {
                return f64::NEG_INFINITY;
            }
            let it = &situation.arms[arm];
            let hidden = self.hidden(&of_call, &with_action(&of_state, &it.action));
            let learned: f64 = hidden.iter().zip(&self.outer).map(|(unit, weight)| unit * weight).sum();
            let kind = (situation.state.collective, it.action.family);
            let of_family = self.families.get(&kind).copied().unwrap_or(0.0);
            learned + of_family - SHARPNESS * (it.modelled_s / cheapest_s).ln()
        };
        (0..situation.arms.len()).map(preference).collect()
    }

    /// How likely each admitted arm is played.
    fn probabilities(&self, situation: &Situation, admitted: &[bool]) -> Vec<f64> {
        let preferences = self.preferences(situation, admitted);
        let most = preferences.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = preferences.iter().map(|preference| (preference - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

impl Learner for PolicyNetwork {
    fn name(&self) -> &'static str {
        "policy-network"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], _: &[Belief], random: &mut Random) -> usize {
        let admitted = &switches(situation, arms);
        let mut left = random.unit();
        for (arm, probability) in self.probabilities(situation, admitted).into_iter().enumerate() {
            left -= probability;
            if left <= 0.0 && admitted[arm] {
                return arm;
            }
        }
        self.best(situation, admitted)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let reward = -(seconds / situation.cheapest_s()).ln();
        let expected = self.expected.entry(situation.context).or_insert(reward);
        let advantage = (reward - *expected).clamp(-1.0, 1.0);
        *expected += 0.1 * (reward - *expected);
        let all = vec![true; situation.arms.len()];
        let probability = self.probabilities(situation, &all)[arm];
        // The gradient of the logarithm of a softmax, without the parts of the other arms: those are small where there are
        // many, and a step costs as much as a choice so.
        let gain = STEP * SHARPNESS * advantage * (1.0 - probability);
        let action = &situation.arms[arm].action;
        let at = features(&situation.state, action);
        let hidden = self.hidden(&self.of_call(&situation.state), &at);
        for ((outer, inner), unit) in self.outer.iter_mut().zip(&mut self.inner).zip(&hidden) {
            let back = gain * *outer * (1.0 - unit.powi(2));
            *outer += gain * unit;
            inner.iter_mut().zip(&at).for_each(|(weight, value)| *weight += back * value);
        }
        *self.families.entry((situation.state.collective, action.family)).or_insert(0.0) += gain;
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        let mut only = vec![false; situation.arms.len()];
        only[arm] = true;
        self.beliefs(situation, &only)[arm]
    }

    fn beliefs(&self, situation: &Situation, admitted: &[bool]) -> Vec<Belief> {
        // A preference is no time; what it says about the order of times is kept.
        let cheapest = situation.cheapest_s().ln();
        let belief = |preference: f64| Belief { mean: cheapest - preference / SHARPNESS, deviation: 0.2 };
        self.preferences(situation, admitted).into_iter().map(belief).collect()
    }

    fn changed(&mut self, context: &Context, _: f64) {
        self.expected.remove(context);
    }
}
