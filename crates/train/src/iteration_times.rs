//! From the times of several iterations to those of a typical one.

use paceline_plan::{Step, TensorId};

use crate::measure::median;

/// One iteration of a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IterationTimes {
    pub(crate) forward: Vec<Step>,
    pub(crate) backward: Vec<Step>,
    pub(crate) update_s: f64,
}

impl IterationTimes {
    pub(crate) fn seconds(&self) -> f64 {
        total(&self.forward) + total(&self.backward) + self.update_s
    }
}

/// By how much two of these differ in the mean, 0 of a single one: Gini's mean difference (David, "Gini's mean difference rediscovered",
/// Biometrika 55, 1968), of all pairs in n·log(n).
pub(crate) fn mean_difference(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    // Each is the larger one of as many pairs as stand before it, and the smaller one of as many as stand behind.
    let weighted = values.iter().enumerate().map(|(place, value)| (2.0 * place as f64 + 1.0 - count) * value);
    if values.len() < 2 { 0.0 } else { (weighted.sum::<f64>() * 2.0 / (count * (count - 1.0))).max(0.0) }
}

/// By how much one of these differs from one of those in the mean: of all pairs of both together, less those within each. 0 where there is
/// none of one.
pub(crate) fn mean_difference_between(one: &[f64], other: &[f64]) -> f64 {
    let of_pairs = |values: &[f64]| mean_difference(values.to_vec()) * pairs(values.len());
    let between = of_pairs(&[one, other].concat()) - of_pairs(one) - of_pairs(other);
    (between / (one.len() * other.len()).max(1) as f64).max(0.0)
}

/// How many there are of so many values.
fn pairs(count: usize) -> f64 {
    count as f64 * (count as f64 - 1.0) / 2.0
}

/// The typical iteration: each phase takes the median of its times, which its steps share as the medians of theirs (steps of
/// their own medians would fall short of the whole, as times are skewed). None if not all iterations have the same steps in
/// the same order, or there is none.
pub(crate) fn typical(iterations: &[IterationTimes]) -> Option<IterationTimes> {
    Some(IterationTimes {
        forward: typical_steps(iterations, |iteration| &iteration.forward)?,
        backward: typical_steps(iterations, |iteration| &iteration.backward)?,
        update_s: median(iterations.iter().map(|iteration| iteration.update_s)),
    })
}

fn typical_steps(iterations: &[IterationTimes], phase: fn(&IterationTimes) -> &[Step]) -> Option<Vec<Step>> {
    let phases: Vec<&[Step]> = iterations.iter().map(phase).collect();
    let mut steps = step_by_step(&phases, |seconds| median(seconds.iter().copied()))?;
    let (whole, sum) = (median(phases.iter().map(|steps| total(steps))), total(&steps));
    if sum > 0.0 {
        steps.iter_mut().for_each(|step| step.seconds *= whole / sum);
    }
    Some(steps)
}

/// Each step as long as `of` makes it of what it took in all of these. None if they are not of the same tensors in the same order, or there
/// is none.
pub(crate) fn step_by_step(phases: &[&[Step]], of: fn(&[f64]) -> f64) -> Option<Vec<Step>> {
    let order = |steps: &[Step]| steps.iter().map(|step| step.tensor).collect::<Vec<TensorId>>();
    let first = order(phases.first()?);
    if phases.iter().any(|steps| order(steps) != first) {
        return None;
    }
    let of_step = |place: usize| of(&phases.iter().map(|steps| steps[place].seconds).collect::<Vec<f64>>());
    Some(first.into_iter().enumerate().map(|(place, tensor)| Step { tensor, seconds: of_step(place) }).collect())
}

fn total(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iteration([one, other]: [f64; 2]) -> IterationTimes {
        let forward = vec![Step { tensor: 1, seconds: one }, Step { tensor: 0, seconds: other }];
        IterationTimes { backward: forward.iter().rev().copied().collect(), forward, update_s: one }
    }

    #[test]
    fn steps_share_the_median_of_their_phase() {
        // Medians of the steps 1 and 3, of their sums 8.
        let found = typical(&[[1.0, 7.0], [0.5, 3.0], [9.0, 2.0]].map(iteration)).expect("one order");
        assert_eq!(found.forward, [Step { tensor: 1, seconds: 2.0 }, Step { tensor: 0, seconds: 6.0 }]);
        assert_eq!(found.backward, [Step { tensor: 0, seconds: 6.0 }, Step { tensor: 1, seconds: 2.0 }]);
        assert_eq!((found.update_s, found.seconds()), (1.0, 17.0));
        // Nothing takes any time.
        let none = [iteration([0.0, 0.0])];
        assert_eq!(typical(&none).as_ref(), Some(&none[0]));
    }

    #[test]
    fn two_iterations_differ_by_the_mean_of_all_pairs() {
        // 1, 3 and 2.
        assert_eq!(mean_difference(vec![3.0, 0.0, 1.0]), 2.0);
        assert_eq!(
            (mean_difference(vec![5.0]), mean_difference(Vec::new()), mean_difference(vec![4.0; 9])),
            (0.0, 0.0, 0.0)
        );
        // An exponential delay differs by its mean: -ln of what is evenly distributed.
        let exponential = (0..10_000).map(|number| -((f64::from(number) + 0.5) / 1e4).ln()).collect();
        assert!((mean_difference(exponential) - 1.0).abs() < 2e-3);
    }

    #[test]
    fn pairs_of_two_lists_differ_by_their_mean() {
        // 1, 3, 2 and 0; 0 of a list with nothing in it.
        assert!((mean_difference_between(&[1.0, 4.0], &[2.0, 4.0]) - 1.5).abs() < 1e-12);
        assert!((mean_difference_between(&[3.0; 7], &[4.0; 2]) - 1.0).abs() < 1e-12);
        assert_eq!(mean_difference_between(&[1.0, 5.0], &[]), 0.0);
    }

    #[test]
    fn iterations_that_differ_have_no_typical_one() {
        let mut iterations = [[1.0, 3.0], [2.0, 9.0]].map(iteration);
        iterations[1].backward.swap(0, 1);
        assert_eq!(typical(&iterations), None);
        iterations[1].backward.pop();
        assert_eq!((typical(&iterations), typical(&[])), (None, None));
    }
}
