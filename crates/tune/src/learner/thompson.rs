//! Thompson sampling: what is played is the best in a world drawn from what is believed (Thompson, 1933; Agrawal and
//! Goyal, "Thompson sampling for contextual bandits with linear payoffs", ICML 2013).
//!
//! Of the channels, threads and chunks of a family only the best so far and its neighbours are drawn: times have one valley
//! in each of them, so that whatever is not the best has a neighbour that is better (Paladino, Trovò, Restelli and Gatti,
//! "Unimodal Thompson sampling for graph-structured arms", AAAI 2017).

use std::collections::BTreeMap;

use super::experience::ARM_DEVIATION;
use super::features::{MINOR, of_state};
use super::{Anchor, Belief, Expected, Experience, FEATURES, Kind, Learner, Lesson, Ridge, least, lowest};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// What the shared regression misses of a context: however many samples there are of one, they say no more about another.
const SHARED_DEVIATION: f64 = 0.15;

/// How far a family is from its model wherever it runs, and how much that changes with each of the features: a network of another
/// kind, ten times as many ranks.
const EVERYWHERE: f64 = 0.25;
const WITH_FEATURE: f64 = 0.12;
const WITH_MINOR: f64 = 0.03;

/// All of them, feature by feature: the first one is 1 everywhere.
const BELIEVED: [f64; FEATURES] = {
    let mut deviations = [WITH_FEATURE; FEATURES];
    deviations[0] = EVERYWHERE;
    let mut minor = MINOR;
    while minor < FEATURES {
        deviations[minor] = WITH_MINOR;
        minor += 1;
    }
    deviations
};

/// A coefficient wanders by this share of what it was believed to be off by, squared, with each context that says something, or
/// with as much from one that is asked for long: what forty to ninety of them have said counts, and what was said before is forgotten.
const WANDERS: f64 = 2e-4;

/// Of the best arm, its mean and so many deviations are taken: a trial is worth more for one that was measured.
const DOUBT: f64 = 0.5;

/// How often the best of those that are not the best in the drawn world is played instead: what is chosen at last stands for thousands
/// of calls, so that to know the best counts for more than to play it (top-two sampling: Russo, "Simple Bayesian algorithms for
/// best-arm identification", COLT 2016). Of 0, 0.3, 0.4 and 0.5, by what was settled for on simulated clusters.
const CHALLENGED: f64 = 0.4;

/// Thompson sampling, with what contexts share: a regression for each family of a collective, and what knobs are worth.
#[derive(Clone, Debug)]
pub struct Thompson {
    experience: Experience,
    shared: BTreeMap<Kind, Ridge>,
}

impl Default for Thompson {
    fn default() -> Thompson {
        Thompson { experience: Experience::sharing(), shared: BTreeMap::new() }
    }
}

impl Thompson {
    /// What was observed.
    pub fn experience(&self) -> &Experience {
        &self.experience
    }

    /// What other contexts say of a family, with knobs as they are in the mean: how much longer it takes than is modelled, and how far
    /// that may be off.
    fn elsewhere(&self, of_state: &[f64; FEATURES], kind: Kind) -> Option<(f64, f64)> {
        let ridge = self.shared.get(&kind)?;
        // Far from everything seen, it knows no more than nobody.
        let deviation = ridge.deviation(of_state).hypot(SHARED_DEVIATION).min(0.3);
        Some((ridge.mean(of_state).clamp(-1.0, 1.0), deviation))
    }

    /// How far a sample may be off as one about other contexts, if there were so many of its family in its own: the first ones say most.
    /// All together say as much as one number that is off by [`SHARED_DEVIATION`], or what is played most, as it is best
    /// there, would be taken for what the family is like everywhere.
    fn variance_elsewhere(&self, before: f64) -> f64 {
        let sample = ARM_DEVIATION.powi(2) + self.experience.noise_deviation().powi(2);
        let known = |samples: f64| samples / (samples * SHARED_DEVIATION.powi(2) + sample);
        1.0 / (known(before + 1.0) - known(before))
    }
}

impl Learner for Thompson {
    fn name(&self) -> &'static str {
        "thompson"
    }

    /// The best of each family, and its neighbours.
    fn worth_a_look(&self, situation: &Situation, admitted: &[usize], believed: &[Belief]) -> Vec<usize> {
        let mut leaders: Vec<Option<usize>> = vec![None; situation.families.len()];
        for &arm in admitted {
            let leader = &mut leaders[situation.family_of[arm]];
            if leader.is_none_or(|leader| believed[arm].mean < believed[leader].mean) {
                *leader = Some(arm);
            }
        }
        let is_worth_it = |arm: usize| {
            let leader = leaders[situation.family_of[arm]].unwrap_or(arm);
            arm == leader || situation.arms[arm].action.is_beside(&situation.arms[leader].action)
        };
        admitted.iter().copied().filter(|&arm| is_worth_it(arm)).collect()
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], random: &mut Random) -> usize {
        let mut draw = |but: Option<usize>| {
            // Only they are drawn: rank 0 decides while all others wait.
            let drawn = arms.iter().copied().filter(|&arm| Some(arm) != but);
            let best = least(drawn, |arm| believed[arm].mean + believed[arm].deviation * random.normal());
            (best, random.unit() <= CHALLENGED)
        };
        let (Some(first), challenged) = draw(None) else { return situation.default };
        let challenger = if challenged { draw(Some(first)).0 } else { None };
        challenger.unwrap_or(first)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let variance = self.variance_elsewhere(self.experience.family_samples(situation, arm));
        if arm == situation.default && self.experience.anchored(&situation.context) == Anchor::None {
            // Nothing comes of it if others are known already.
            let off = (seconds / situation.arms[arm].modelled_s).ln();
            self.experience.anchor(situation, off, Anchor::Provisional);
        }
        let counted_s = self.experience.add(situation, arm, seconds);
        if self.experience.anchored(&situation.context) == Anchor::Provisional {
            // What is the family's, and what the model's, is not known yet.
            return;
        }
        let Situation { state, arms, .. } = situation;
        // What the network has become is no property of a family.
        let residual = counted_s.ln() - arms[arm].modelled_s.ln() - self.experience.level(&situation.context);
        let residual = residual - self.experience.worth(&arms[arm].action);
        let kind = (state.collective, arms[arm].action.family);
        let ridge = self.shared.entry(kind).or_insert_with(|| Ridge::believing(&BELIEVED));
        ridge.wander(WANDERS * SHARED_DEVIATION.powi(2) / variance);
        ridge.include(&of_state(state), residual.clamp(-2.0, 2.0), variance);
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        let Situation { state, arms, .. } = situation;
        let elsewhere = self.elsewhere(&of_state(state), (state.collective, arms[arm].action.family));
        self.experience.known(situation, arm, elsewhere).into()
    }

    fn expected(&self, situation: &Situation, arm: usize) -> Expected {
        let Situation { state, arms, .. } = situation;
        let elsewhere = self.elsewhere(&of_state(state), (state.collective, arms[arm].action.family));
        self.experience.expected(situation, arm, elsewhere)
    }

    fn beliefs(&self, situation: &Situation, admitted: &[bool]) -> Vec<Belief> {
        let (of_state, collective) = (of_state(&situation.state), situation.state.collective);
        let elsewhere: Vec<Option<(f64, f64)>> =
            situation.families.iter().map(|&family| self.elsewhere(&of_state, (collective, family))).collect();
        let here = self.experience.here(situation);
        let belief = |arm: usize| {
            if !admitted[arm] {
                return Belief::NEVER;
            }
            here.known(situation, arm, elsewhere[situation.family_of[arm]]).into()
        };
        (0..situation.arms.len()).map(belief).collect()
    }

    /// What is hardly known must look better than what is known.
    fn best(&self, situation: &Situation, admitted: &[bool]) -> usize {
        let beliefs = self.beliefs(situation, admitted);
        lowest(admitted, |arm| beliefs[arm].mean + DOUBT * beliefs[arm].deviation).unwrap_or(situation.default)
    }

    fn lessons(&self, situation: &Situation) -> Vec<Lesson> {
        self.experience.lessons(situation)
    }

    fn recall(&mut self, situation: &Situation, lessons: &[Lesson]) -> usize {
        self.experience.recall(situation, lessons)
    }

    fn anchor(&mut self, situation: &Situation, off: f64) {
        self.experience.anchor(situation, off, Anchor::Final);
    }

    fn changed(&mut self, context: &Context, shift: f64) {
        self.experience.changed(context, shift);
    }

    fn doubted(&mut self, situation: &Situation, arm: usize) {
        self.experience.doubted(situation, arm);
    }
}
