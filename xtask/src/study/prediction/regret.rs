//! By how much one thing is slower than another, and how much of that chance leaves open. Pure.

use paceline_cli::{Estimate, Ratio, VALUES_MIN};

use super::super::report::{Target, percent};
use super::judge::Outcome;

/// What is demanded.
pub const REGRET_MAX: f64 = 0.02;

/// By how much something is slower than the fastest method of its group; below 0 if it is faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    pub value: f64,
    /// It is larger or smaller by so much at most. None: unknown, of one or two runs without another of the same thing.
    pub open: Option<f64>,
}

impl Regret {
    /// Of something beside another thing. Where both were measured in the same rounds, by the ratio in each of these: what
    /// slows a whole round says nothing about either. Open is then the 95 % interval of the mean logarithm of those ratios (Student's t).
    /// Of fewer rounds the ratio of the means counts, and open is the larger of how far two measurements of the same thing lay
    /// apart and of the 95 % interval of that ratio ([`Ratio`]), as far as they are known.
    pub fn of(chosen: &Outcome, fastest: &Outcome) -> Option<Regret> {
        let value = 1.0 - chosen.measured? / fastest.measured?;
        if std::ptr::eq(chosen, fastest) {
            return Some(Regret { value, open: Some(0.0) });
        }
        if let Some(by_rounds) = Regret::by_rounds(&chosen.rounds, &fastest.rounds) {
            return Some(by_rounds);
        }
        let scatter = chosen
            .throughput
            .zip(fastest.throughput)
            .map(|(chosen, fastest)| Ratio::of(&[(&chosen, 1.0), (&fastest, -1.0)], &[]));
        let known = [chosen.noise, scatter.filter(Ratio::is_known).map(|ratio| ratio.open)];
        Some(Regret { value, open: known.into_iter().flatten().reduce(f64::max) })
    }

    fn by_rounds(chosen: &[Option<f64>], fastest: &[Option<f64>]) -> Option<Regret> {
        let both =
            chosen.iter().zip(fastest).filter_map(|(chosen, fastest)| Some((chosen.as_ref()?, fastest.as_ref()?)));
        let logarithms: Vec<f64> = both.map(|(chosen, fastest)| (chosen / fastest).ln()).collect();
        let Estimate { mean, half_width_95, runs, .. } = Estimate::of(&logarithms)?;
        let ratio = mean.exp();
        (runs >= VALUES_MIN).then(|| Regret { value: 1.0 - ratio, open: half_width_95.map(|half| ratio * half) })
    }

    /// Is it small enough? None if that lies within what is open.
    pub fn is_small(self) -> Option<bool> {
        let hidden = self.open.is_some_and(|open| (self.value - REGRET_MAX).abs() < open);
        Some(self.value <= REGRET_MAX).filter(|_| !hidden)
    }

    /// Is it small enough? Nothing is said if that lies within what is open.
    pub fn target(regret: Option<Regret>, case: String) -> Target {
        let target = Target::at_most(case, "regret", REGRET_MAX, regret.map(|regret| regret.value));
        let Some(regret) = regret else { return target };
        let open = regret.open.filter(|open| *open > 0.0).map(|open| format!(" ± {open:.3}"));
        Target { found: target.found + &open.unwrap_or_default(), met: regret.is_small(), ..target }
    }

    pub fn in_words(self) -> String {
        let open = self.open.filter(|open| *open > 0.0).map(|open| format!(" ± {}", percent(Some(open))));
        percent(Some(self.value)) + &open.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::AUTO;
    use super::super::judge::samples::outcome;
    use super::*;

    fn of(rates: &[f64], noise: Option<f64>) -> Outcome {
        let throughput = Estimate::of(rates);
        let measured = throughput.map(|estimate| estimate.mean);
        Outcome { measured, throughput, noise, ..outcome("a", AUTO, 100.0, 100.0) }
    }

    fn one(rate: f64, noise: Option<f64>) -> Outcome {
        of(&[rate], noise)
    }

    /// Is it small enough, and is it known how sure that is?
    fn judged(chosen: &Outcome, fastest: &Outcome) -> (Option<bool>, bool) {
        let regret = Regret::of(chosen, fastest).expect("both were measured");
        (Regret::target(Some(regret), "it".to_owned()).met, regret.open.is_some())
    }

    #[test]
    fn regret_that_two_measurements_of_the_same_thing_hide_is_undecided() {
        let fastest = one(100.0, Some(0.03));
        let cases = [(99.5, None), (96.0, None), (94.0, Some(false)), (102.0, Some(true))];
        for (rate, met) in cases {
            assert_eq!(judged(&one(rate, Some(0.03)), &fastest), (met, true), "{rate}");
        }
        assert_eq!(judged(&fastest, &fastest), (Some(true), true), "the fastest one has none, whatever the noise");
        let of_one = judged(&one(97.0, None), &one(100.0, None));
        assert_eq!(of_one, (Some(false), false), "of one run nothing else is known");
        // Runs that scatter by a tenth leave 3 % open, and runs that do not leave nothing.
        let (calm, wild) = (of(&[97.0; 3], None), of(&[87.0, 97.0, 107.0], None));
        let fastest = of(&[100.0; 3], None);
        assert_eq!((judged(&calm, &fastest), judged(&wild, &fastest)), ((Some(false), true), (None, true)));
        let target = Regret::target(Regret::of(&one(96.0, Some(0.03)), &one(100.0, None)), "it".to_owned());
        assert_eq!((&*target.found, target.met), ("0.040 ± 0.030", None));
    }

    /// Rounds that differ by half, in each of which one is 4 to 6 % slower than the other: that is known well, however far the
    /// same thing lies apart in different rounds.
    #[test]
    fn what_slows_a_whole_round_is_left_out() {
        let in_rounds = |rounds: &[Option<f64>]| {
            let counted: Vec<f64> = rounds.iter().copied().flatten().collect();
            Outcome { rounds: rounds.to_vec(), ..of(&counted, Some(0.5)) }
        };
        let fastest = in_rounds(&[Some(100.0), Some(50.0), Some(80.0), Some(120.0)]);
        let slower = in_rounds(&[Some(95.0), Some(48.0), Some(75.2), Some(114.0)]);
        let regret = Regret::of(&slower, &fastest).expect("both were measured");
        assert!((regret.value - 0.05).abs() < 1e-3, "{regret:?}");
        assert!(regret.open.is_some_and(|open| open > 0.01 && open < 0.015), "{regret:?}");
        assert_eq!(judged(&slower, &fastest), (Some(false), true));
        // A round that one of them lacks does not count; two rounds are too few, and then noise hides it.
        let gaps = in_rounds(&[Some(95.0), None, Some(75.2), Some(114.0)]);
        assert_eq!(judged(&gaps, &fastest), (Some(false), true));
        let few = in_rounds(&[Some(95.0), None, Some(75.2), None]);
        assert_eq!(judged(&few, &fastest), (None, true));
    }
}
