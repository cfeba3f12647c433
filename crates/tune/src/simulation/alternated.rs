//! Iterations with something and without it, by turns.

use serde::Serialize;

use crate::statistics::{median, median_margin};

/// How many times as long one side of pairs takes as the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairedRatio {
    /// The median of all pairs; no number of no pairs.
    pub median: f64,
    /// How far that may be off, to each side (about 95 %); infinite for fewer than four pairs.
    pub margin: f64,
}

/// Iterations with what a tuner has found and with the default, by turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Seconds of an iteration with the default: the median.
    pub default_s: f64,
    /// The same with what was found.
    pub tuned_s: f64,
    /// With what was found over the default, turn by turn.
    pub ratio: PairedRatio,
    /// The default over itself, every second of its turns over the one before: what noise alone looks like.
    pub control: PairedRatio,
}

impl PairedRatio {
    /// Of the first numbers over the second ones.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> PairedRatio {
        let logs: Vec<f64> = pairs.into_iter().map(|(one, other)| (one / other).ln()).collect();
        let ratio = median(&logs).map_or(f64::NAN, f64::exp);
        PairedRatio { median: ratio, margin: ratio * median_margin(&logs) }
    }

    /// Is it at most so much? None: its interval does not say.
    pub fn is_at_most(&self, most: f64) -> Option<bool> {
        match self.median {
            ratio if ratio + self.margin <= most => Some(true),
            ratio if ratio - self.margin > most => Some(false),
            _ => None,
        }
    }
}

impl Compared {
    /// Seconds of iterations, in the order of their turns: equally many of both sides.
    pub fn of(default_s: &[f64], tuned_s: &[f64]) -> Compared {
        let middle = |seconds: &[f64]| median(seconds).unwrap_or(f64::NAN);
        Compared {
            default_s: middle(default_s),
            tuned_s: middle(tuned_s),
            ratio: PairedRatio::of(tuned_s.iter().copied().zip(default_s.iter().copied())),
            control: PairedRatio::of(default_s.chunks_exact(2).map(|pair| (pair[1], pair[0]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn what_is_found_is_as_sure_as_its_pairs_are_many() {
        let of = |pairs: usize| {
            let mut random = Random::new(7, 0);
            let mut seconds =
                |usual_s: f64| -> Vec<f64> { (0..pairs).map(|_| usual_s * (0.02 * random.normal()).exp()).collect() };
            let (default_s, tuned_s) = (seconds(0.2), seconds(0.18));
            Compared::of(&default_s, &tuned_s)
        };
        let [few, many] = [12, 400].map(of);
        for Compared { default_s, tuned_s, ratio, .. } in [few, many] {
            assert!((default_s / 0.2 - 1.0).abs() < 0.03 && (tuned_s / 0.18 - 1.0).abs() < 0.03);
            assert!((ratio.median - 0.9).abs() < 3.0 * ratio.margin, "{ratio:?}");
        }
        assert!(many.ratio.margin < 0.5 * few.ratio.margin, "{few:?} {many:?}");
        assert!((many.control.median - 1.0).abs() < 3.0 * many.control.margin, "{many:?}");
        assert_eq!(many.ratio.is_at_most(0.95), Some(true));
        assert_eq!(many.ratio.is_at_most(0.85), Some(false));
        assert_eq!(many.ratio.is_at_most(many.ratio.median), None);
        assert_eq!(PairedRatio::of([(1.0, 1.0); 3]).is_at_most(2.0), None, "three pairs say nothing");
        assert!(PairedRatio::of([]).median.is_nan());
    }
}
