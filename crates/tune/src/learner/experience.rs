//! What was observed, context by context.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{Action, Arm, Situation};
use crate::prior::leaning;
use crate::state::Context;
use crate::statistics::Tally;

/// How far the logarithm of the truth is from that of the model, for all arms of a family together: NCCL's model is
/// within a third for most of what it is asked.
const FAMILY_DEVIATION: f64 = 0.3;

/// How far arms of a family are from each other, besides.
const ARM_DEVIATION: f64 = 0.12;

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
}

#[derive(Clone, Debug, Default)]
struct Seen {
    arms: Vec<Tally>,
    families: Vec<Tally>,
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

/// A lesson of another day counts as so many samples at most: the network may be another.
const RECALLED_MAX: f64 = 2.0;

/// What is known of an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The weight of its own samples.
    pub samples: f64,
    /// The mean of the logarithm of its seconds, with the prior.
    pub mean: f64,
    /// How far that may be off.
    pub deviation: f64,
}

impl Experience {
    /// Adds a time.
    pub fn add(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let residual = seconds.ln() - situation.arms[arm].modelled_s.ln();
        let noise = self.noise_deviation();
        let seen = self.contexts.entry(situation.context).or_default();
        if seen.arms.len() != situation.arms.len() || seen.families.len() != situation.families.len() {
            // The library has other choices now: what was learned of these means nothing.
            *seen = Seen {
                arms: vec![Tally::default(); situation.arms.len()],
                families: vec![Tally::default(); situation.families.len()],
            };
        }
        let tally = &mut seen.arms[arm];
        if tally.weight >= 1.0 {
            // Of a mean of n, a further sample is away by σ²·(1 + 1/n).
            let square = (residual - tally.mean).powi(2) / (1.0 + 1.0 / tally.weight);
            // A straggler is no noise that one could average.
            self.noise.add(square.min(4.0 * noise.powi(2).max(0.01)), 0.995);
        }
        tally.add(residual, KEEP);
        seen.families[situation.family_of[arm]].add(residual, KEEP);
    }

    /// What is known of the arms of a situation.
    pub fn lessons(&self, situation: &Situation) -> Vec<Lesson> {
        let seen = self.contexts.get(&situation.context).filter(|seen| seen.arms.len() == situation.arms.len());
        let arms = seen.map_or(&[][..], |seen| seen.arms.as_slice()).iter().zip(&situation.arms);
        let known = arms.filter(|(tally, _)| tally.weight >= 1.0);
        let lesson = |(tally, arm): (&Tally, &Arm)| Lesson {
            context: situation.context,
            action: arm.action,
            samples: tally.weight,
            mean: tally.mean,
        };
        known.map(lesson).collect()
    }

    /// What was known of them on another day. What makes no sense, or does not exist here, is left out.
    pub fn recall(&mut self, situation: &Situation, lessons: &[Lesson]) {
        for lesson in lessons.iter().filter(|lesson| lesson.context == situation.context) {
            let Some(arm) = situation.arms.iter().position(|arm| arm.action == lesson.action) else { continue };
            let seconds = situation.arms[arm].modelled_s * lesson.mean.exp();
            let count = lesson.samples.clamp(0.0, RECALLED_MAX) as usize;
            if lesson.mean.abs() <= 10.0 {
                (0..count).for_each(|_| self.add(situation, arm, seconds));
            }
        }
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

    /// What is known of a context, for whoever asks about many of its arms.
    pub(super) fn here(&self, situation: &Situation) -> Here<'_> {
        let seen = self.contexts.get(&situation.context).filter(|seen| seen.arms.len() == situation.arms.len());
        Here { seen, noise: self.noise_deviation().powi(2) }
    }

    /// How many samples of an arm count here.
    pub fn samples(&self, situation: &Situation, arm: usize) -> f64 {
        self.contexts.get(&situation.context).and_then(|seen| seen.arms.get(arm)).map_or(0.0, |tally| tally.weight)
    }

    /// How many samples of all arms count in a context.
    pub fn samples_in(&self, context: &Context) -> f64 {
        self.contexts.get(context).map_or(0.0, |seen| seen.arms.iter().map(|tally| tally.weight).sum())
    }

    /// What is known of a context keeps this share of its weight.
    pub fn fade(&mut self, context: &Context, keep: f64) {
        if let Some(seen) = self.contexts.get_mut(context) {
            seen.arms.iter_mut().chain(&mut seen.families).for_each(|tally| tally.fade(keep));
        }
    }
}

/// What is known of a context.
pub(super) struct Here<'a> {
    seen: Option<&'a Seen>,
    /// The variance of single calls.
    noise: f64,
}

impl Here<'_> {
    /// What is known of an arm; as [`Experience::known`].
    pub(super) fn known(&self, situation: &Situation, arm: usize, offset: Option<(f64, f64)>) -> Known {
        let (own, of_family) = self.seen.map_or_else(Default::default, |seen| {
            (seen.arms[arm], seen.families.get(situation.family_of[arm]).copied().unwrap_or_default())
        });
        let (elsewhere, deviation) = offset.unwrap_or((0.0, FAMILY_DEVIATION));
        let noise = self.noise;
        // The family: what others say, and its own samples, each of which has the noise and the distance of its arm.
        let (believed, counted) = (1.0 / deviation.powi(2), of_family.weight / (noise + ARM_DEVIATION.powi(2)));
        let family_mean = (believed * elsewhere + counted * of_family.mean) / (believed + counted);
        let family_variance = 1.0 / (believed + counted);
        // The arm: its family, and its own samples.
        let (believed, counted) = (1.0 / (family_variance + ARM_DEVIATION.powi(2)), own.weight / noise);
        let mean = (believed * family_mean + counted * own.mean) / (believed + counted);
        let leaning = leaning(&situation.state, situation.arms[arm].action.family.protocol);
        Known {
            samples: own.weight,
            mean: situation.arms[arm].modelled_s.ln() + mean + leaning * believed / (believed + counted),
            deviation: (1.0 / (believed + counted)).sqrt(),
        }
    }
}
