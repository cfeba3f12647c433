//! What knobs are worth wherever they are turned: a chunk that suits a machine suits it for most sizes and families.

use std::collections::BTreeMap;

use crate::action::Action;
use crate::statistics::Tally;

/// How far a step of a knob is from its mean in a single family and context, as a logarithm of time: where one wants twice the
/// chunk, another one wants half of it.
const STEP_DEVIATION: f64 = 0.1;

/// How much a step is worth before anything is known of it: nothing, give or take this.
const STEP_BELIEVED: f64 = 0.1;

/// A knob of an action, and log2 of its number.
type Notch = (usize, usize);

/// Knobs, and the logarithms of their numbers: no chunk is as large.
const KNOBS: usize = 3;
const NOTCHES: usize = 40;

/// By how much calls take longer with a number of channels or threads, or with a chunk, than with others that were played, as a
/// logarithm: in the mean over families and contexts.
#[derive(Clone, Debug)]
pub struct Knobs([[f64; NOTCHES]; KNOBS]);

/// Nothing is known.
impl Default for Knobs {
    fn default() -> Knobs {
        Knobs([[0.0; NOTCHES]; KNOBS])
    }
}

/// What is known of a number: a sum of values and of their weights.
#[derive(Clone, Copy, Debug, Default)]
struct Weighted {
    sum: f64,
    weight: f64,
}

impl Knobs {
    /// From what was measured: of each family in each context, its actions that were played. `noise`: the variance of single calls.
    ///
    /// Only steps are compared, within a family and a context: what was played more, as it was better, says no more about the others.
    pub fn of(groups: &[Vec<(Action, Tally)>], noise: f64) -> Knobs {
        let mut steps: BTreeMap<Notch, Weighted> = BTreeMap::new();
        for group in groups {
            for (notch, step) in steps_of(group, noise) {
                let variance = 1.0 / step.weight + STEP_DEVIATION.powi(2);
                steps.entry(notch).or_default().add(step.sum / step.weight, 1.0 / variance);
            }
        }
        let worth = |step: &Weighted| step.sum / (step.weight + 1.0 / STEP_BELIEVED.powi(2));
        let mut knobs = Knobs::default();
        for (knob, numbers) in knobs.0.iter_mut().enumerate() {
            for log2 in 1..NOTCHES {
                numbers[log2] = numbers[log2 - 1] + steps.get(&(knob, log2 - 1)).map_or(0.0, worth);
            }
        }
        knobs.centred(groups)
    }

    /// Of an action; what a number is worth of which nothing is known, the next smaller one is.
    pub fn worth(&self, action: &Action) -> f64 {
        notches(action).iter().map(|&(knob, log2)| self.0[knob][log2]).sum()
    }

    /// With 0 in the mean of what was played, so that it says the same whichever number is the smallest.
    fn centred(mut self, groups: &[Vec<(Action, Tally)>]) -> Knobs {
        let mut means = [Weighted::default(); KNOBS];
        for (knob, log2) in groups.iter().flatten().flat_map(|(action, _)| notches(action)) {
            means[knob].add(self.0[knob][log2], 1.0);
        }
        for (numbers, mean) in self.0.iter_mut().zip(&means) {
            numbers.iter_mut().for_each(|worth| *worth -= mean.sum / mean.weight.max(1.0));
        }
        self
    }
}

impl Weighted {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }
}

/// By how much calls of a family take longer from a number to the next one up, with all else the same.
fn steps_of(group: &[(Action, Tally)], noise: f64) -> BTreeMap<Notch, Weighted> {
    let mut steps: BTreeMap<Notch, Weighted> = BTreeMap::new();
    for (place, (one, of_one)) in group.iter().enumerate() {
        for (other, of_other) in &group[..place] {
            if !one.is_beside(other) {
                continue;
            }
            let (ones, others) = (notches(one), notches(other));
            let Some(knob) = (0..ones.len()).find(|&knob| ones[knob] != others[knob]) else { continue };
            let more =
                if ones[knob] > others[knob] { of_one.mean - of_other.mean } else { of_other.mean - of_one.mean };
            let variance = noise * (1.0 / of_one.weight + 1.0 / of_other.weight);
            steps.entry(ones[knob].min(others[knob])).or_default().add(more, 1.0 / variance);
        }
    }
    steps
}

fn notches(action: &Action) -> [Notch; KNOBS] {
    let log2 = |number: u8| number.checked_ilog2().unwrap_or(0) as usize;
    [(0, log2(action.channels)), (1, log2(action.threads)), (2, usize::from(action.chunk_log2).min(NOTCHES - 1))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::action;

    /// A family in a context, in which each doubling of the channels costs `channels` and of the chunk `chunk`.
    fn group(channels: f64, chunk: f64, offset: f64) -> Vec<(Action, Tally)> {
        let all = [1u8, 2, 4].into_iter().flat_map(|lanes| (16..19).map(move |log2| action(0, lanes, log2)));
        let mean =
            |it: &Action| offset + channels * f64::from(it.channels).log2() + chunk * (f64::from(it.chunk_log2) - 16.0);
        all.map(|it| (it, Tally::known(4.0, mean(&it), 0.0))).collect()
    }

    #[test]
    fn what_holds_in_many_contexts_is_believed() {
        let groups: Vec<_> = (0..20).map(|number| group(0.05, -0.1, 0.3 * f64::from(number))).collect();
        let knobs = Knobs::of(&groups, 1e-4);
        let more = |one: Action, other: Action| knobs.worth(&one) - knobs.worth(&other);
        assert!((more(action(3, 4, 17), action(3, 1, 17)) - 0.1).abs() < 0.01);
        assert!((more(action(3, 2, 18), action(3, 2, 16)) + 0.2).abs() < 0.02);
        let sum: f64 = groups[0].iter().map(|(action, _)| knobs.worth(action)).sum();
        assert!(sum.abs() < 1e-9, "what was played is where it was: {sum}");
        // Of what was never played nothing is known, and of a single context little.
        assert_eq!(knobs.worth(&action(0, 64, 30)) - knobs.worth(&action(0, 64, 31)), 0.0);
        let once = Knobs::of(&groups[..1], 1e-4);
        let believed = once.worth(&action(3, 2, 18)) - once.worth(&action(3, 2, 16));
        assert!((believed + 0.1).abs() < 0.02, "half of it: {believed}");
    }

    #[test]
    fn what_differs_from_context_to_context_is_worth_nothing() {
        let groups: Vec<_> = (0..20).map(|number| group(0.0, if number % 2 == 0 { 0.1 } else { -0.1 }, 0.0)).collect();
        let knobs = Knobs::of(&groups, 1e-4);
        for one in [action(0, 1, 16), action(0, 4, 18)] {
            assert!(knobs.worth(&one).abs() < 1e-9, "{one:?}");
        }
        assert_eq!(Knobs::default().worth(&action(0, 1, 16)), 0.0);
    }
}
