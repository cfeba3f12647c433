//! Thompson sampling: what is played is the best in a world drawn from what is believed (Thompson, 1933; Agrawal and
//! Goyal, "Thompson sampling for contextual bandits with linear payoffs", ICML 2013).
//!
//! Of the channels, threads and chunks of a family only the best so far and its neighbours are drawn: times have one valley
//! in each of them, so that whatever is not the best has a neighbour that is better (Paladino, Trovò, Restelli and Gatti,
//! "Unimodal Thompson sampling for graph-structured arms", AAAI 2017).

use std::collections::BTreeMap;

use super::features::{of_state, with_action};
use super::{Belief, Experience, FEATURES, Learner, Lesson, Ridge, features, lowest};
use crate::action::{Action, Family, Situation};
use crate::random::Random;
use crate::state::Context;

/// Samples of a family elsewhere from which they say something about a context of which nothing is known.
const SHARED_FROM: u64 = 16;

/// What the shared regression misses of a context.
const SHARED_DEVIATION: f64 = 0.15;

/// Of the best arm, its mean and so many deviations are taken: a trial is worth more for one that was measured.
const DOUBT: f64 = 0.5;

/// Thompson sampling, with what contexts share in a regression for each family.
#[derive(Clone, Debug, Default)]
pub struct Thompson {
    experience: Experience,
    shared: BTreeMap<Family, Ridge>,
}

impl Thompson {
    /// What was observed.
    pub fn experience(&self) -> &Experience {
        &self.experience
    }

    /// What other contexts say of a family: its regression, and how far that may be off.
    fn elsewhere(&self, of_state: &[f64; FEATURES], family: Family) -> Option<(&Ridge, f64)> {
        let ridge = self.shared.get(&family).filter(|ridge| ridge.samples >= SHARED_FROM)?;
        let middle = Action { family, channels: 2, threads: 1, chunk_log2: 18 };
        let deviation = ridge.deviation(&with_action(of_state, &middle)) * self.experience.noise_deviation();
        // Far from everything seen, it knows no more than nobody.
        Some((ridge, deviation.hypot(SHARED_DEVIATION).min(0.3)))
    }

    /// The best of each family, and its neighbours.
    fn candidates(&self, situation: &Situation, admitted: &[bool], means: &[f64]) -> Vec<usize> {
        let mut candidates = Vec::new();
        for family in 0..situation.families.len() {
            let of_it = |arm: usize| admitted[arm] && situation.family_of[arm] == family;
            let inside: Vec<bool> = (0..situation.arms.len()).map(of_it).collect();
            let Some(leader) = lowest(&inside, |arm| means[arm]) else { continue };
            let centre = situation.arms[leader].action;
            let beside = |arm: &usize| situation.arms[*arm].action.is_beside(&centre);
            candidates.push(leader);
            candidates.extend((0..situation.arms.len()).filter(|&arm| inside[arm]).filter(beside));
        }
        candidates
    }
}

impl Learner for Thompson {
    fn name(&self) -> &'static str {
        "thompson"
    }

    fn choose(&mut self, situation: &Situation, admitted: &[bool], random: &mut Random) -> usize {
        let beliefs = self.beliefs(situation, admitted);
        let means: Vec<f64> = beliefs.iter().map(|belief| belief.mean).collect();
        let mut drawn = vec![false; situation.arms.len()];
        let mut values = means;
        for arm in self.candidates(situation, admitted, &values) {
            drawn[arm] = true;
        }
        for arm in (0..drawn.len()).filter(|&arm| drawn[arm]) {
            values[arm] += beliefs[arm].deviation * random.normal();
        }
        lowest(&drawn, |arm| values[arm]).unwrap_or(situation.default)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.experience.add(situation, arm, seconds);
        let Situation { state, arms, .. } = situation;
        let residual = seconds.ln() - arms[arm].modelled_s.ln();
        let ridge = self.shared.entry(arms[arm].action.family).or_default();
        ridge.add(&features(state, &arms[arm].action), residual.clamp(-2.0, 2.0));
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        let mut only = vec![false; situation.arms.len()];
        only[arm] = true;
        self.beliefs(situation, &only)[arm]
    }

    fn beliefs(&self, situation: &Situation, admitted: &[bool]) -> Vec<Belief> {
        let of_state = of_state(&situation.state);
        let elsewhere: Vec<Option<(&Ridge, f64)>> =
            situation.families.iter().map(|&family| self.elsewhere(&of_state, family)).collect();
        let here = self.experience.here(situation);
        let belief = |arm: usize| {
            if !admitted[arm] {
                return Belief::NEVER;
            }
            let offset = elsewhere[situation.family_of[arm]].map(|(ridge, deviation)| {
                let at = with_action(&of_state, &situation.arms[arm].action);
                (ridge.mean(&at).clamp(-1.0, 1.0), deviation)
            });
            let known = here.known(situation, arm, offset);
            Belief { mean: known.mean, deviation: known.deviation }
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

    fn recall(&mut self, situation: &Situation, lessons: &[Lesson]) {
        self.experience.recall(situation, lessons);
    }

    fn fade(&mut self, context: &Context, keep: f64) {
        self.experience.fade(context, keep);
    }
}
