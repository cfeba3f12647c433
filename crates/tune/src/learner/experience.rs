//! What was observed, context by context.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Expected;
use super::knobs::Knobs;
use crate::action::{Action, Arm, Situation};
use crate::prior::leaning;
use crate::state::Context;
use crate::statistics::Tally;

/// How far the logarithm of the truth is from that of the model, for all arms of a family together: NCCL's model is
/// within a third for most of what it is asked.
const FAMILY_DEVIATION: f64 = 0.3;

/// How far arms of a family are from each other, besides.
pub(super) const ARM_DEVIATION: f64 = 0.12;

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
    /// What the arms are, and of which family each one is.
    actions: Vec<Action>,
    family_of: Vec<usize>,
    /// Of each family, without what its knobs are worth.
    families: Vec<Tally>,
    /// By how much all of them take longer than on the first day, as a logarithm: what the network has become. The tallies are
    /// relative to it.
    level: f64,
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

    /// Adds a time.
    pub fn add(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.reckon();
        let noise = self.noise_deviation();
        let worth = self.worth(&situation.arms[arm].action);
        let seen = self.seen(situation);
        let residual = seconds.ln() - situation.arms[arm].modelled_s.ln() - seen.level;
        let tally = &mut seen.arms[arm];
        // Of a mean of n, a further sample is away by σ²·(1 + 1/n).
        let square = (residual - tally.mean).powi(2) / (1.0 + 1.0 / tally.weight);
        let says_noise = tally.weight >= 1.0;
        tally.add(residual, KEEP);
        seen.own[arm].add(residual, KEEP);
        seen.families[situation.family_of[arm]].add(residual - worth, KEEP);
        if says_noise {
            // A straggler is no noise that one could average.
            self.noise.add(square.min(4.0 * noise.powi(2).max(0.01)), 0.995);
        }
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
            seen.actions = situation.arms.iter().map(|arm| arm.action).collect();
            seen.family_of.clone_from(&situation.family_of);
            seen.families = vec![Tally::default(); situation.families.len()];
        }
        seen
    }

    /// By how much everything in a context takes longer than at first, as a logarithm.
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
        let Known { mean, deviation, .. } = here.of_logs(situation, arm, offset);
        Expected { mean, deviation, noise: here.noise_of(arm) }
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

    /// The network has changed in a context: everything there takes longer by `shift`, a logarithm, than before. What is known of
    /// each choice is known less well.
    pub fn changed(&mut self, context: &Context, shift: f64) {
        let noise = self.noise_deviation().powi(2);
        let Some(seen) = self.contexts.get_mut(context) else { return };
        seen.level += shift;
        weaken(&mut seen.arms, noise);
        weaken(&mut seen.own, noise);
        weaken(&mut seen.families, noise + ARM_DEVIATION.powi(2));
    }

    /// An arm no longer takes what it took, though the network is what it was: what is known of it is known less well.
    pub fn doubted(&mut self, situation: &Situation, arm: usize) {
        let noise = self.noise_deviation().powi(2);
        let Some(seen) = self.contexts.get_mut(&situation.context) else { return };
        for tallies in [&mut seen.arms, &mut seen.own] {
            weaken(tallies.get_mut(arm..=arm).unwrap_or_default(), noise);
        }
    }
}

/// Makes means less sure: as if what is known were off by [`AFTER_CHANGE`] at least. `variance`: of a sample.
fn weaken(tallies: &mut [Tally], variance: f64) {
    for tally in tallies {
        let weight_max = variance / AFTER_CHANGE.powi(2);
        tally.fade((weight_max / tally.weight.max(1e-9)).min(1.0));
    }
}

impl Seen {
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
        let known = self.of_logs(situation, arm, offset);
        let own = self.seen.map_or_else(Tally::default, |seen| seen.arms[arm]);
        Known { mean: known.mean + self.restless(&own), ..known }
    }

    /// What calls of an arm vary: by itself as far as that is known, else as all do.
    fn noise_of(&self, arm: usize) -> f64 {
        let own = self.seen.map_or_else(Tally::default, |seen| seen.arms[arm]);
        let Some(variance) = own.variance() else { return self.noise.sqrt() };
        let counted = own.weight - 1.0;
        ((counted * variance + OWN_NOISE * self.noise) / (counted + OWN_NOISE)).sqrt()
    }

    /// The same of the mean of logarithms, which a call is as likely to be above as below.
    fn of_logs(&self, situation: &Situation, arm: usize, offset: Option<(f64, f64)>) -> Known {
        let (own, of_family) = self.seen.map_or_else(Default::default, |seen| {
            (seen.arms[arm], seen.families.get(situation.family_of[arm]).copied().unwrap_or_default())
        });
        let (elsewhere, mut deviation) = offset.unwrap_or((0.0, FAMILY_DEVIATION));
        if self.seen.is_some_and(|seen| seen.level != 0.0) {
            // The others, and the model, speak of another network.
            deviation = deviation.hypot(AFTER_CHANGE);
        }
        let noise = self.noise;
        // The family: what others say, and its own samples, each of which has the noise and the distance of its arm.
        let (believed, counted) = (1.0 / deviation.powi(2), of_family.weight / (noise + ARM_DEVIATION.powi(2)));
        let family_mean = (believed * elsewhere + counted * of_family.mean) / (believed + counted);
        let family_variance = 1.0 / (believed + counted);
        // The arm: its family, its knobs, and its own samples.
        let worth = self.knobs.map_or(0.0, |knobs| knobs.worth(&situation.arms[arm].action));
        let (believed, counted) = (1.0 / (family_variance + ARM_DEVIATION.powi(2)), own.weight / noise);
        let mean = (believed * (family_mean + worth) + counted * own.mean) / (believed + counted);
        let leaning = leaning(&situation.state, situation.arms[arm].action.family.protocol);
        let level = self.seen.map_or(0.0, |seen| seen.level);
        Known {
            samples: own.weight,
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
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::random::Random;

    /// Samples of some arms, with noise of a tenth.
    fn experience(seconds: impl Fn(usize, &mut Random) -> f64) -> Experience {
        let (situation, mut random, mut experience) = (situation(), Random::new(4, 4), Experience::default());
        for call in 0..400 {
            let arm = call % 6;
            let noise = (0.1 * random.normal()).exp();
            experience.add(&situation, arm, seconds(arm, &mut random) * noise);
        }
        experience
    }

    #[test]
    fn lessons_make_nobody_surer_of_the_noise() {
        let situation = situation();
        let first = experience(|arm, _| 1e-3 * (1.0 + 0.1 * arm as f64));
        let mut second = Experience::default();
        let before = second.noise_deviation();
        assert_eq!(second.recall(&situation, &first.lessons(&situation)), 6);
        assert_eq!(second.noise_deviation(), before);
        assert!((first.noise_deviation() - 0.1).abs() < 0.02, "{}", first.noise_deviation());
        for arm in 0..6 {
            let (here, there) = (second.known(&situation, arm, None), first.known(&situation, arm, None));
            assert!((here.mean - there.mean).abs() < 0.06, "arm {arm}: {here:?} {there:?}");
            assert!(here.deviation > 2.0 * there.deviation, "arm {arm}: {here:?} {there:?}");
        }
        let strange = [Lesson { mean: 1e9, ..first.lessons(&situation)[0] }];
        assert_eq!(Experience::default().recall(&situation, &strange), 0);
    }

    /// An earlier job has told its lessons already: an arm that is measured again has the samples of this job, and one that is not has
    /// none.
    #[test]
    fn what_was_told_is_not_told_again() {
        let situation = situation();
        let told = experience(|_, _| 1e-3).lessons(&situation);
        let mut experience = Experience::default();
        assert_eq!(experience.recall(&situation, &told), 6);
        assert_eq!(experience.lessons(&situation), []);
        (0..3).for_each(|_| experience.add(&situation, 2, 4e-3));
        let lessons = experience.lessons(&situation);
        assert_eq!(lessons.len(), 1, "{lessons:?}");
        let (lesson, mean) = (lessons[0], (4e-3 / situation.arms[2].modelled_s).ln());
        assert_eq!(lesson.action, situation.arms[2].action);
        assert!((2.9..=3.0).contains(&lesson.samples) && (lesson.mean - mean).abs() < 1e-9, "{lesson:?}");
        // It is believed, all the same.
        assert!(experience.samples(&situation, 2) > 4.0 && experience.samples(&situation, 1) > 1.0);
    }

    #[test]
    fn arms_are_judged_by_their_sums() {
        let situation = situation();
        let tails = |arm: usize, random: &mut Random| match arm {
            0 if random.unit() < 0.09 => 2.9e-3,
            0 => 0.85e-3,
            _ => 1e-3,
        };
        let experience = experience(tails);
        let (restless, calm) = (experience.known(&situation, 0, None), experience.known(&situation, 1, None));
        assert!((calm.mean.exp() - 1e-3).abs() < 0.05e-3, "{calm:?}");
        assert!(restless.mean > calm.mean - 0.03, "the median is better by 15 %: {restless:?} {calm:?}");
    }

    #[test]
    fn a_change_shifts_what_was_measured_and_what_was_not() {
        let situation = situation();
        let mut experience = experience(|arm, _| 1e-3 * (1.0 + 0.1 * arm as f64));
        let known = |experience: &Experience, arm| experience.known(&situation, arm, None);
        let before: Vec<Known> = (0..12).map(|arm| known(&experience, arm)).collect();
        experience.changed(&situation.context, 1.6);
        for (arm, before) in before.iter().enumerate() {
            let after = known(&experience, arm);
            assert!((after.mean - before.mean - 1.6).abs() < 0.1, "arm {arm}: {before:?} {after:?}");
            assert!(after.deviation >= before.deviation && (arm > 5 || after.deviation > 0.05), "{after:?}");
        }
        // And back.
        experience.changed(&situation.context, -1.6);
        assert_eq!(experience.level(&situation.context), 0.0);
    }

    /// What is expected of a call is what half of them exceed, and an arm with noise of its own is known for it.
    #[test]
    fn a_call_is_expected_to_take_what_half_of_them_take() {
        let situation = situation();
        let restless = |arm: usize, random: &mut Random| if arm == 2 { (0.3 * random.normal()).exp() } else { 1.0 };
        let experience = experience(|arm, random| 1e-3 * restless(arm, random));
        let of = |arm: usize| experience.expected(&situation, arm, None);
        let known = experience.known(&situation, 2, None);
        assert!(known.mean > of(2).mean + 0.01 && known.deviation == of(2).deviation, "{known:?} {:?}", of(2));
        assert!((of(2).mean.exp() - 1e-3).abs() < 0.15e-3 && of(2).noise > 0.2, "{:?}", of(2));
        assert!((of(1).mean.exp() - 1e-3).abs() < 0.05e-3 && of(1).noise < 0.15, "{:?}", of(1));
    }

    #[test]
    fn a_doubted_arm_alone_is_known_less_well() {
        let situation = situation();
        let mut experience = experience(|_, _| 1e-3);
        let before: Vec<Known> = (0..6).map(|arm| experience.known(&situation, arm, None)).collect();
        experience.doubted(&situation, 3);
        for (arm, before) in before.iter().enumerate() {
            let after = experience.known(&situation, arm, None);
            let is_it = after.deviation > 2.0 * before.deviation;
            assert_eq!(is_it, arm == 3, "arm {arm}: {before:?} {after:?}");
        }
        experience.doubted(&situation, 99);
    }
}
