//! What was observed, context by context.

use std::collections::BTreeMap;
use std::mem;

use serde::{Deserialize, Serialize};

use super::Expected;
use super::knobs::Knobs;
use super::usual::Usual;
use crate::action::{Action, Arm, Situation};
use crate::guard::DEFAULTS_FIRST;
use crate::prior::leaning;
use crate::state::Context;
use crate::statistics::{Middle, Tally};
use crate::trial::INTERRUPTED;

/// How far the logarithm of the truth is from that of the model, for all arms of a family together: NCCL's model is
/// within a third for most of what it is asked.
const FAMILY_DEVIATION: f64 = 0.3;

/// How far arms of a family are from each other, besides.
pub(super) const ARM_DEVIATION: f64 = 0.12;

/// The same of a whole model, where it is one that is off by more than a family may be: links that are described by hand, or are not what
/// they were when they were measured. Of ten models, one is.
const MODEL_DEVIATION: f64 = 1.2;
const MODELS_OFF: f64 = 0.1;

/// A model that is off by no more, two thirds, is none that is: where nothing is off, guesses would cost more than they save (tests/drift.rs).
const MODEL_LEAST: f64 = 0.5;

/// What single calls vary before anything is known of that.
const NOISE: f64 = 0.1;

/// No network is quieter than that; it keeps a few lucky samples from looking like certainty.
const NOISE_MIN: f64 = 0.005;

/// What an observation leaves of those before it, of the same arm: about fifty of them count.
const KEEP: f64 = 0.98;

/// The observations of all contexts, as logarithms of seconds over modelled seconds.
#[derive(Clone, Debug, Default)]
pub struct Experience {
    contexts: BTreeMap<Context, Seen>,
    /// The squares of what is left between a sample and the mean of its arm, over all contexts.
    noise: Tally,
    /// What knobs are worth everywhere, if contexts share that, and how many samples ago it was reckoned.
    knobs: Option<(Knobs, u32)>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    arms: Vec<Tally>,
    /// The same without what an earlier job has told: what this one has found out by itself.
    own: Vec<Tally>,
    /// What is usual of each arm: late calls count for their sum, but say nothing about the next one.
    usual: Vec<Usual>,
    /// What the arms are, and of which family each one is.
    actions: Vec<Action>,
    family_of: Vec<usize>,
    /// Of each family, without what its knobs are worth.
    families: Vec<Tally>,
    /// By how much all of them take longer than is modelled, as a logarithm: what the model is off by, and what the network has become since.
    /// The tallies are relative to it.
    level: f64,
    /// How that became known.
    anchor: Anchor,
}

/// How it is known how far a model is off in a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// It is not.
    #[default]
    None,
    /// By a single call of the default, or by what an earlier job has told of it.
    Provisional,
    /// By several calls, or what was seen since says it.
    Final,
}

/// What one job has learned of an arm, for the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// Where.
    pub context: Context,
    /// Of what.
    pub action: Action,
    /// The weight of its samples.
    pub samples: f64,
    /// The mean of the logarithm of its seconds over the modelled ones.
    pub mean: f64,
}

/// What knobs are worth is reckoned anew after so many samples.
const RECKONED_AFTER: u32 = 64;

/// A lesson of another day counts as so many samples at most: the network may be another.
const RECALLED_MAX: f64 = 2.0;

/// When a network changes, choices keep their order as a rule, and not their distances: what was known of one is known within so
/// much from then on. As much as choices of a family differ.
const AFTER_CHANGE: f64 = 0.12;

/// Up to so many samples are the first of an arm.
const FIRST: f64 = 4.0;

/// How an arm's calls vary by itself is believed as far as it has more samples than that; all arms together say the rest.
const OWN_NOISE: f64 = 8.0;

/// What is known of an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The weight of its own samples.
    pub samples: f64,
    /// The logarithm of its mean seconds, with the prior.
    pub mean: f64,
    /// How far that may be off.
    pub deviation: f64,
}

impl Experience {
    /// In which contexts learn from each other what knobs are worth.
    pub fn sharing() -> Experience {
        Experience { knobs: Some((Knobs::default(), 0)), ..Experience::default() }
    }

    /// By how much an action takes longer than others of its family, as a logarithm, by what all contexts say of its knobs.
    pub fn worth(&self, action: &Action) -> f64 {
        self.knobs.as_ref().map_or(0.0, |(knobs, _)| knobs.worth(action))
    }

    /// Adds a time. Seconds of it that count: those of a late call say less than it took.
    pub fn add(&mut self, situation: &Situation, arm: usize, seconds: f64) -> f64 {
        self.reckon();
        let noise = self.noise_deviation();
        let worth = self.worth(&situation.arms[arm].action);
        let seen = self.seen(situation);
        let residual = seconds.ln() - situation.arms[arm].modelled_s.ln() - seen.level;
        let late = INTERRUPTED.ln();
        let residual = residual.min(seen.usual_of(situation, arm) + late);
        let counted_s = situation.arms[arm].modelled_s * (residual + seen.level).exp();
        // One of the first may have been late before it was known what is usual.
        let [own, of_family] = [(&mut seen.arms[arm], 0.0), (&mut seen.families[situation.family_of[arm]], worth)];
        for (tally, less) in [own, of_family, (&mut seen.own[arm], 0.0)] {
            if tally.weight <= FIRST {
                tally.lower_to(residual - less + late);
            }
        }
        let tally = &mut seen.arms[arm];
        // Of a mean of n, a further sample is away by σ²·(1 + 1/n).
        let middle = seen.usual[arm].middle().map_or(tally.mean, |middle| middle.mean(tally.mean));
        let square = (residual - middle).powi(2) / (1.0 + 1.0 / tally.weight);
        let says_noise = tally.weight >= 1.0;
        seen.usual[arm].add(residual);
        tally.add(residual, KEEP);
        seen.own[arm].add(residual, KEEP);
        seen.families[situation.family_of[arm]].add(residual - worth, KEEP);
        if says_noise {
            // A straggler is no noise that one could average.
            self.noise.add(square.min(4.0 * noise.powi(2).max(0.01)), 0.995);
        }
        counted_s
    }

    /// Now and then: what knobs are worth by all that was seen.
    fn reckon(&mut self) {
        let noise = self.noise_deviation().powi(2);
        let Some((knobs, since)) = &mut self.knobs else { return };
        *since += 1;
        if *since >= RECKONED_AFTER {
            let groups: Vec<Vec<(Action, Tally)>> = self.contexts.values().flat_map(Seen::played).collect();
            (*knobs, *since) = (Knobs::of(&groups, noise), 0);
        }
    }

    /// What was seen in a context, with its arms and families.
    fn seen(&mut self, situation: &Situation) -> &mut Seen {
        let seen = self.contexts.entry(situation.context).or_default();
        if seen.arms.len() != situation.arms.len() || seen.families.len() != situation.families.len() {
            // The library has other choices now: what was learned of these means nothing.
            seen.arms = vec![Tally::default(); situation.arms.len()];
            seen.own.clone_from(&seen.arms);
            seen.usual = vec![Usual::default(); situation.arms.len()];
            seen.actions = situation.arms.iter().map(|arm| arm.action).collect();
            seen.family_of.clone_from(&situation.family_of);
            seen.families = vec![Tally::default(); situation.families.len()];
        }
        seen
    }

    /// By how much everything in a context takes longer than is modelled, as a logarithm.
    pub fn level(&self, context: &Context) -> f64 {
        self.contexts.get(context).map_or(0.0, |seen| seen.level)
    }

    /// What was found out of the arms of a situation since this began: what an earlier job has told is not told again as if it had been
    /// measured twice.
    pub fn lessons(&self, situation: &Situation) -> Vec<Lesson> {
        let Some(seen) = self.contexts.get(&situation.context) else { return Vec::new() };
        let known = seen.own.iter().zip(&situation.arms).filter(|(tally, _)| tally.weight >= 1.0);
        let lesson = |(tally, arm): (&Tally, &Arm)| Lesson {
            context: situation.context,
            action: arm.action,
            samples: tally.weight,
            mean: tally.mean + seen.level,
        };
        let fits = seen.arms.len() == situation.arms.len();
        known.filter(|_| fits).map(lesson).collect()
    }

    /// What was known of them on another day; it says nothing about how calls vary on this one. What makes no sense, or does not
    /// exist here, is left out. Returns of how many arms something is known now.
    pub fn recall(&mut self, situation: &Situation, lessons: &[Lesson]) -> usize {
        let default = situation.arms[situation.default].action;
        let of_default =
            |it: &&Lesson| it.context == situation.context && it.action == default && it.mean.abs() <= 10.0;
        if let Some(told) = lessons.iter().find(of_default) {
            self.anchor(situation, told.mean, Anchor::Provisional);
        }
        let seen = self.seen(situation);
        let mut recalled = 0;
        for lesson in lessons.iter().filter(|lesson| lesson.context == situation.context) {
            let Some(arm) = situation.arms.iter().position(|arm| arm.action == lesson.action) else { continue };
            let weight = lesson.samples.min(RECALLED_MAX);
            if lesson.mean.abs() <= 10.0 && weight > 0.0 {
                seen.arms[arm].include(weight, lesson.mean - seen.level);
                seen.families[situation.family_of[arm]].include(weight, lesson.mean - seen.level);
                recalled += 1;
            }
        }
        recalled
    }

    /// The standard deviation of single calls, of the logarithm.
    pub fn noise_deviation(&self) -> f64 {
        let prior = 8.0;
        let square = (prior * NOISE * NOISE + self.noise.weight * self.noise.mean) / (prior + self.noise.weight);
        square.sqrt().max(NOISE_MIN)
    }

    /// What is known of an arm. `offset`: what other contexts say of how far the model is off here, and how far that may
    /// itself be off; (0, a third) if nothing.
    pub fn known(&self, situation: &Situation, arm: usize, offset: Option<(f64, f64)>) -> Known {
        self.here(situation).known(situation, arm, offset)
    }

    /// What is expected of the next call of an arm. `offset` as in [`Experience::known`].
    pub fn expected(&self, situation: &Situation, arm: usize, offset: Option<(f64, f64)>) -> Expected {
        let here = self.here(situation);
        let (own, middle) = (here.own(arm), here.middle_of(arm));
        let usual = middle.map_or(own.mean, |middle| middle.mean(own.mean));
        let Known { mean, deviation, .. } = here.of_logs(situation, arm, offset, (own.weight, usual));
        Expected { mean, deviation, noise: here.noise_of(&own, middle) }
    }

    /// What is known of a context, for whoever asks about many of its arms.
    pub(super) fn here(&self, situation: &Situation) -> Here<'_> {
        let seen = self.contexts.get(&situation.context).filter(|seen| seen.arms.len() == situation.arms.len());
        let knobs = self.knobs.as_ref().map(|(knobs, _)| knobs);
        Here { seen, knobs, noise: self.noise_deviation().powi(2) }
    }

    /// How many samples of an arm count here.
    pub fn samples(&self, situation: &Situation, arm: usize) -> f64 {
        self.contexts.get(&situation.context).and_then(|seen| seen.arms.get(arm)).map_or(0.0, |tally| tally.weight)
    }

    /// How many samples of an arm's family count here.
    pub fn family_samples(&self, situation: &Situation, arm: usize) -> f64 {
        let seen = self.contexts.get(&situation.context).filter(|seen| seen.arms.len() == situation.arms.len());
        seen.and_then(|seen| seen.families.get(situation.family_of[arm])).map_or(0.0, |tally| tally.weight)
    }

    /// How many samples of all arms count in a context.
    pub fn samples_in(&self, context: &Context) -> f64 {
        self.contexts.get(context).map_or(0.0, |seen| seen.arms.iter().map(|tally| tally.weight).sum())
    }

    /// Before anything but its default is seen in a context: that takes longer by `off`, a logarithm, than is modelled. As far as that is
    /// more than its family may be off, the model is, and all that is not known yet takes so much longer, too. A first guess, of a single call
    /// or of another day, is provisional and may be mended once.
    pub fn anchor(&mut self, situation: &Situation, off: f64, anchor: Anchor) {
        let seen = self.seen(situation);
        if seen.anchor == Anchor::Final || seen.anchor == Anchor::None && seen.arms.iter().any(|it| it.weight > 0.0) {
            return;
        }
        let level = Some(share_of_model(off)).filter(|level| level.abs() > MODEL_LEAST).unwrap_or(0.0);
        let higher = level - mem::replace(&mut seen.level, level);
        for tally in [&mut seen.arms, &mut seen.own, &mut seen.families].into_iter().flatten() {
            tally.mean -= if tally.weight > 0.0 { higher } else { 0.0 };
        }
        seen.usual.iter_mut().for_each(|usual| usual.lower(higher));
        seen.anchor = anchor;
    }

    /// Is it known how far the model of a context is off?
    pub fn anchored(&self, context: &Context) -> Anchor {
        self.contexts.get(context).map_or(Anchor::None, |seen| seen.anchor)
    }

    /// The network has changed in a context: everything there takes longer by `shift`, a logarithm, than before. What is known of
    /// each choice is known less well.
    pub fn changed(&mut self, context: &Context, shift: f64) {
        let noise = self.noise_deviation().powi(2);
        let Some(seen) = self.contexts.get_mut(context) else { return };
        seen.level += shift;
        seen.anchor = Anchor::Final;
        weaken(&mut seen.arms, noise);
        weaken(&mut seen.own, noise);
        weaken(&mut seen.families, noise + ARM_DEVIATION.powi(2));
        seen.usual.iter_mut().for_each(Usual::forget);
    }

    /// An arm no longer takes what it took, though the network is what it was: what is known of it is known less well.
    pub fn doubted(&mut self, situation: &Situation, arm: usize) {
        let noise = self.noise_deviation().powi(2);
        let Some(seen) = self.contexts.get_mut(&situation.context) else { return };
        for tallies in [&mut seen.arms, &mut seen.own] {
            weaken(tallies.get_mut(arm..=arm).unwrap_or_default(), noise);
        }
        seen.usual.get_mut(arm).into_iter().for_each(Usual::forget);
    }
}

/// What of the default's distance to its model is the whole model's, in the mean: by how likely a distance is where only its family is off, and
/// where the model is, too.
fn share_of_model(off: f64) -> f64 {
    let likely = |variance: f64| (-0.5 * off * off / variance).exp() / variance.sqrt();
    let (of_family, of_model) = (FAMILY_DEVIATION.powi(2), MODEL_DEVIATION.powi(2));
    let [family, both] = [(1.0 - MODELS_OFF) * likely(of_family), MODELS_OFF * likely(of_family + of_model)];
    let is_off = if both > 0.0 { both / (family + both) } else { 1.0 };
    is_off * off * of_model / (of_family + of_model)
}

/// Makes means less sure: as if what is known were off by [`AFTER_CHANGE`] at least. `variance`: of a sample.
fn weaken(tallies: &mut [Tally], variance: f64) {
    for tally in tallies {
        let weight_max = variance / AFTER_CHANGE.powi(2);
        tally.fade((weight_max / tally.weight.max(1e-9)).min(1.0));
    }
}

impl Seen {
    /// What calls of an arm have taken so far, or the default's if it is new: what is far more was interrupted, and how far says nothing.
    /// Infinite if nothing is known.
    fn usual_of(&self, situation: &Situation, arm: usize) -> f64 {
        let (own, default) = (&self.arms[arm], &self.arms[situation.default]);
        let modelled = |arm: usize| situation.arms[arm].modelled_s.ln();
        if own.weight >= 1.0 {
            own.mean
        } else if default.weight >= DEFAULTS_FIRST as f64 {
            default.mean + modelled(situation.default) - modelled(arm)
        } else {
            f64::INFINITY
        }
    }

    /// Of each family, what was played.
    fn played(&self) -> Vec<Vec<(Action, Tally)>> {
        let mut groups = vec![Vec::new(); self.families.len()];
        for ((tally, action), family) in self.arms.iter().zip(&self.actions).zip(&self.family_of) {
            if tally.weight > 0.5 {
                groups[*family].push((*action, *tally));
            }
        }
        groups
    }
}

/// What is known of a context.
pub(super) struct Here<'a> {
    seen: Option<&'a Seen>,
    /// What knobs are worth everywhere.
    knobs: Option<&'a Knobs>,
    /// The variance of single calls.
    noise: f64,
}

impl Here<'_> {
    /// What is known of an arm; as [`Experience::known`].
    pub(super) fn known(&self, situation: &Situation, arm: usize, offset: Option<(f64, f64)>) -> Known {
        let own = self.own(arm);
        let known = self.of_logs(situation, arm, offset, (own.weight, own.mean));
        Known { mean: known.mean + self.restless(&own), ..known }
    }

    /// The samples of an arm.
    fn own(&self, arm: usize) -> Tally {
        self.seen.map_or_else(Tally::default, |seen| seen.arms[arm])
    }

    fn middle_of(&self, arm: usize) -> Option<Middle> {
        self.seen.and_then(|seen| seen.usual[arm].middle())
    }

    /// What calls of an arm vary, late ones apart: by itself as far as that is known, else as all do.
    fn noise_of(&self, own: &Tally, middle: Option<Middle>) -> f64 {
        let Some(variance) = own.variance() else { return self.noise.sqrt() };
        let usual = middle.map_or(variance, |middle| middle.variance(variance));
        let counted = own.weight - 1.0;
        ((counted * usual + OWN_NOISE * self.noise) / (counted + OWN_NOISE)).sqrt()
    }

    /// The same of the mean of logarithms, which a call is as likely to be above as below. `own`: the weight of the arm's own
    /// samples, and what they say.
    fn of_logs(
        &self,
        situation: &Situation,
        arm: usize,
        offset: Option<(f64, f64)>,
        (own_weight, own_mean): (f64, f64),
    ) -> Known {
        let families = self.seen.map(|seen| &seen.families);
        let of_family = families.and_then(|it| it.get(situation.family_of[arm])).copied().unwrap_or_default();
        let (elsewhere, mut deviation) = offset.unwrap_or((0.0, FAMILY_DEVIATION));
        if self.seen.is_some_and(|seen| seen.level != 0.0) {
            // The others, and the model, speak of another network than this one.
            deviation = deviation.hypot(AFTER_CHANGE);
        }
        let noise = self.noise;
        // The family: what others say, and its own samples, each of which has the noise and the distance of its arm.
        let (believed, counted) = (1.0 / deviation.powi(2), of_family.weight / (noise + ARM_DEVIATION.powi(2)));
        let family_mean = (believed * elsewhere + counted * of_family.mean) / (believed + counted);
        let family_variance = 1.0 / (believed + counted);
        // The arm: its family, its knobs, and its own samples.
        let worth = self.knobs.map_or(0.0, |knobs| knobs.worth(&situation.arms[arm].action));
        let (believed, counted) = (1.0 / (family_variance + ARM_DEVIATION.powi(2)), own_weight / noise);
        let mean = (believed * (family_mean + worth) + counted * own_mean) / (believed + counted);
        let leaning = leaning(&situation.state, situation.arms[arm].action.family.protocol);
        let level = self.seen.map_or(0.0, |seen| seen.level);
        Known {
            samples: own_weight,
            mean: situation.arms[arm].modelled_s.ln() + level + mean + leaning * believed / (believed + counted),
            deviation: (1.0 / (believed + counted)).sqrt(),
        }
    }

    /// How much longer calls of an arm take in the mean than their logarithms say, beside those of others: half the variance
    /// (exactly so of a normal distribution of the logarithm). What is usually fast and sometimes slow is judged by its sum.
    fn restless(&self, own: &Tally) -> f64 {
        let Some(variance) = own.variance() else { return 0.0 };
        let counted = own.weight - 1.0;
        0.5 * counted / (counted + OWN_NOISE) * (variance - self.noise)
    }
}

#[cfg(test)]
mod tests;
