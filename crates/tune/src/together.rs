//! A race of the choices of all calls at once, by the time of the iteration.
//!
//! What a call takes alone, or as one of a kind in a row, is not what it adds to an iteration: there others are under way on the same
//! cores and links, and ranks come at different times. So every iteration plays one choice of each call, drawn by chance: each of them
//! tells of all calls, as effects on the logarithm of its time add up (a factorial design; R. A. Fisher, "The Design of Experiments",
//! chapter 6). The worse half of each call's choices leaves after each heat (successive halving: Jamieson and Talwalkar,
//! arXiv 1502.07943), but for the default, with which the others are compared.

use crate::random::Random;
use crate::statistics::median;

/// An iteration that takes so many times the median was interrupted: it counts as that.
const INTERRUPTED: f64 = 3.0;
/// Sweeps in which effects settle: each is what its iterations take more than all others of them explain.
const SWEEPS: usize = 20;
/// A choice is better than the default if it looks so by so many standard deviations of the difference.
const BETTER: f64 = 1.5;

/// Numbers of choices, one for each call. 0 is the default.
pub type Picks = Vec<usize>;

/// The race.
#[derive(Clone, Debug)]
pub struct Together {
    /// By call, how many choices there are.
    choices: Vec<usize>,
    /// By call, who is left besides the default.
    left: Vec<Vec<usize>>,
    /// What was played, and the logarithm of its seconds.
    played: Vec<(Picks, f64)>,
    /// Heats to come.
    heats: u32,
    random: Random,
}

impl Together {
    /// Of calls with so many choices each, the default included.
    pub fn new(choices: &[usize], seed: u64) -> Together {
        let most = choices.iter().copied().max().unwrap_or(1).max(1);
        // Each halves those besides the default; in the last one, one of them meets it.
        let heats = if most > 1 { (most - 1).next_power_of_two().ilog2() + 1 } else { 0 };
        let left = choices.iter().map(|&count| (1..count).collect()).collect();
        Together { choices: choices.to_vec(), left, played: Vec::new(), heats, random: Random::new(seed, 0x706) }
    }

    /// Heats to come.
    pub fn heats(&self) -> u32 {
        self.heats
    }

    /// What the iterations of the next heat play, about so many, and two of each choice at least; nothing after the last one. All choices of a
    /// call have equally many of them, but for one.
    pub fn heat(&mut self, iterations: usize) -> Vec<Picks> {
        let Some(heats) = self.heats.checked_sub(1) else { return Vec::new() };
        self.heats = heats;
        let most = self.left.iter().map(|left| left.len() + 1).max().unwrap_or(0);
        let mut picks = vec![vec![0; self.left.len()]; iterations.max(2 * most)];
        for (call, left) in self.left.iter().enumerate() {
            let mut bag: Vec<usize> = Vec::new();
            for picks in &mut picks {
                if bag.is_empty() {
                    bag.extend(left.iter().copied().chain([0]));
                }
                picks[call] = bag.swap_remove(self.random.below(bag.len()));
            }
        }
        picks
    }

    /// The iterations of a heat took so many seconds. The worse half leaves.
    pub fn observe(&mut self, picks: &[Picks], seconds: &[f64]) {
        let is_time = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
        let timed = picks.iter().zip(seconds).filter(|(_, seconds)| is_time(seconds));
        self.played.extend(timed.map(|(picks, seconds)| (picks.clone(), seconds.ln())));
        let effects = self.effects();
        for (left, effects) in self.left.iter_mut().zip(&effects.mean) {
            left.sort_by(|one, other| effects[*one].total_cmp(&effects[*other]));
            left.truncate(left.len().div_ceil(2));
        }
    }

    /// The best of each call: the default, where no other is clearly better.
    pub fn winners(&self) -> Picks {
        let Effects { mean, count, deviation } = self.effects();
        let best = |call: usize| {
            let of = |choice: &usize| mean[call][*choice];
            let best = self.left[call].iter().copied().min_by(|one, other| of(one).total_cmp(&of(other)))?;
            let margin = deviation * (1.0 / count[call][best] + 1.0 / count[call][0]).sqrt();
            (of(&best) - of(&0) < -BETTER * margin).then_some(best)
        };
        (0..self.left.len()).map(|call| best(call).unwrap_or(0)).collect()
    }

    /// What each choice adds to the logarithm of an iteration's time, by least squares, one call after the other.
    fn effects(&self) -> Effects {
        let zeros = || self.choices.iter().map(|&count| vec![0.0; count.max(1)]).collect::<Vec<Vec<f64>>>();
        let (mut mean, mut count) = (zeros(), zeros());
        let logs: Vec<f64> = self.played.iter().map(|(_, log)| *log).collect();
        let Some(middle) = median(&logs) else { return Effects { mean, count, deviation: f64::INFINITY } };
        let capped = |log: f64| (log - middle).min(INTERRUPTED.ln());
        let usual = logs.iter().map(|log| capped(*log)).sum::<f64>() / logs.len() as f64;
        let mut rest: Vec<f64> = logs.iter().map(|log| capped(*log) - usual).collect();
        for (picks, _) in &self.played {
            picks.iter().enumerate().for_each(|(call, choice)| count[call][*choice] += 1.0);
        }
        for _ in 0..SWEEPS {
            for call in 0..mean.len() {
                let mut sums = vec![0.0; mean[call].len()];
                for ((picks, _), rest) in self.played.iter().zip(&rest) {
                    sums[picks[call]] += rest;
                }
                for (choice, sum) in sums.iter_mut().enumerate() {
                    *sum /= count[call][choice].max(1.0);
                    mean[call][choice] += *sum;
                }
                for ((picks, _), rest) in self.played.iter().zip(&mut rest) {
                    *rest -= sums[picks[call]];
                }
            }
        }
        // A mean, and of each call what its choices differ from one of them.
        let known: usize = count.iter().flatten().filter(|count| **count > 0.0).count();
        let parameters = (known + 1).saturating_sub(mean.len());
        let squares = rest.iter().map(|rest| rest * rest).sum::<f64>();
        let free = self.played.len().saturating_sub(parameters);
        // As many as there are explain everything, and say nothing about chance.
        let deviation = if free > 0 { (squares / free as f64).sqrt() } else { f64::INFINITY };
        Effects { mean, count, deviation }
    }
}

/// By call and choice.
struct Effects {
    mean: Vec<Vec<f64>>,
    /// Iterations of each.
    count: Vec<Vec<f64>>,
    /// Of an iteration, from what the effects explain.
    deviation: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a race in which choices have these effects, with noise; the winners.
    fn winners(effects: &[&[f64]], iterations: usize, noise: f64, seed: u64) -> Picks {
        let choices: Vec<usize> = effects.iter().map(|of| of.len()).collect();
        let (mut race, mut random) = (Together::new(&choices, seed), Random::new(seed, 9));
        let each = iterations / race.heats().max(1) as usize;
        while race.heats() > 0 {
            let heat = race.heat(each);
            let seconds: Vec<f64> = heat
                .iter()
                .map(|picks| {
                    let sum: f64 = picks.iter().zip(effects).map(|(choice, of)| of[*choice]).sum();
                    0.02 * (sum + noise * random.normal()).exp()
                })
                .collect();
            race.observe(&heat, &seconds);
        }
        assert!(race.heat(10).is_empty());
        race.winners()
    }

    /// Five calls, of which one choice saves 6 % of an iteration, one 3 %, and others cost more; with 5 % of noise.
    #[test]
    fn what_shortens_iterations_is_found_of_all_calls_at_once() {
        let effects: [&[f64]; 5] = [
            &[0.0, 0.3, -0.06, 0.1, 0.2, 0.05, 0.4, 0.02],
            &[0.0, 0.02, 0.01, 0.0, 0.1],
            &[0.0],
            &[0.0, -0.03, 0.05, 0.1],
            &[0.0, 0.2],
        ];
        let mut right = 0;
        for seed in 0..20 {
            let found = winners(&effects, 600, 0.05, seed);
            assert!(found[2] == 0 && found[4] == 0 && found[0] == 2, "seed {seed}: {found:?}");
            right += usize::from(found[3] == 1);
        }
        assert!(right >= 18, "{right} of 20");
    }

    /// Where nothing is better, the default wins as a rule; what looks better all the same has a trial to come.
    #[test]
    fn where_nothing_is_better_the_default_wins_as_a_rule() {
        let effects: [&[f64]; 6] = [&[0.0; 8]; 6];
        let others = (0..40).map(|seed| winners(&effects, 400, 0.1, seed).iter().filter(|it| **it > 0).count());
        let share = others.sum::<usize>() as f64 / 240.0;
        // The best of several is compared: one in five looks better by that.
        assert!(share < 0.3, "{share}");
    }

    #[test]
    fn without_choices_or_times_the_default_stays() {
        assert_eq!(winners(&[], 100, 0.1, 1), Picks::new());
        assert_eq!(winners(&[&[0.0], &[0.0]], 100, 0.1, 1), [0, 0]);
        let mut race = Together::new(&[3, 3], 1);
        let heat = race.heat(50);
        race.observe(&heat, &[f64::NAN, 0.0]);
        assert_eq!(race.winners(), [0, 0]);
        // Six iterations of six effects: all is explained, and nothing is known.
        let mut race = Together::new(&[4, 4], 1);
        let heat: Vec<Picks> = race.heat(8).into_iter().take(6).collect();
        race.observe(&heat, &[1.0, 2.0, 3.0, 1.5, 2.5, 0.5]);
        assert_eq!(race.winners(), [0, 0]);
    }
}
