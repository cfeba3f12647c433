//! How much others are in the way: what calls take now, over what the same calls take when nobody is.
//!
//! Whoever learns finds it out, of times on which all ranks have agreed. It is a number of the learner's shared regression; contexts stay
//! what they are, as whoever has to choose otherwise in a slower network finds out by himself, sooner.

use std::collections::{BTreeMap, VecDeque};

use crate::action::{Action, Choice};
use crate::state::{Congestion, Context};
use crate::statistics::median;

/// So many of the last calls say what calls take now, by their median: it takes a burst of six to change it.
const LAST: usize = 11;

/// How many times as long as at its best something takes from which on there is light congestion, and heavy. The best median of
/// many is some 10 % below the usual one where calls vary by a tenth.
const LIGHT: f64 = 1.3;
const HEAVY: f64 = 2.0;

/// It is over when calls take so much less than what it began with.
const OVER: f64 = 0.9;

/// The best is forgotten by so much with each call: what has become of the network for good is no congestion after a thousand
/// calls.
const FORGOTTEN: f64 = 1.0005;

/// What calls take, choice by choice.
#[derive(Clone, Debug)]
pub struct Observed {
    calls: BTreeMap<(Context, Option<Action>), Watched>,
    level: Congestion,
}

/// The calls of one choice in a context.
#[derive(Clone, Debug, Default)]
struct Watched {
    last: VecDeque<f64>,
    best_s: Option<f64>,
}

impl Default for Observed {
    fn default() -> Observed {
        Observed { calls: BTreeMap::new(), level: Congestion::None }
    }
}

impl Observed {
    /// How much others are in the way now.
    pub fn level(&self) -> Congestion {
        self.level
    }

    /// Calls have been made, each with the time on which all ranks agree; what is no time says nothing. `stands`: what a context takes
    /// where nothing is tried; only that and the default are called often enough to be compared with themselves.
    pub fn observe(
        &mut self,
        made: impl IntoIterator<Item = (Context, Choice, f64)>,
        stands: impl Fn(&Context) -> Choice,
    ) -> Congestion {
        let mut now = BTreeMap::new();
        for (context, choice, seconds) in made {
            let action = match choice {
                _ if !(seconds.is_finite() && seconds > 0.0) => continue,
                Choice::Default => None,
                Choice::Play(_) if stands(&context) != choice => continue,
                Choice::Play(action) => Some(action),
            };
            let watched = self.calls.entry((context, action)).or_default();
            if let Some(times) = watched.add(seconds) {
                now.insert((context, action), times);
            }
        }
        let all: Vec<f64> = now.into_values().collect();
        if let Some(times) = median(&all) {
            self.level = level(times, self.level);
        }
        self.level
    }
}

impl Watched {
    /// A call: how many times as long as at their best such calls take now, if that is known.
    fn add(&mut self, seconds: f64) -> Option<f64> {
        self.last.push_back(seconds);
        if self.last.len() > LAST {
            self.last.pop_front();
        }
        if self.last.len() < LAST {
            return None;
        }
        let now_s = median(&self.last.iter().copied().collect::<Vec<_>>())?;
        let best_s = self.best_s.map_or(now_s, |best_s| (best_s * FORGOTTEN).min(now_s));
        self.best_s = Some(best_s);
        Some(now_s / best_s)
    }
}

/// The level of calls that take so many times as long as at their best, where it was `before`.
fn level(times: f64, before: Congestion) -> Congestion {
    let from = |level: Congestion, from: f64| if before >= level { OVER * from } else { from };
    if times >= from(Congestion::Heavy, HEAVY) {
        Congestion::Heavy
    } else if times >= from(Congestion::Light, LIGHT) {
        Congestion::Light
    } else {
        Congestion::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::action;
    use crate::random::Random;
    use crate::state::State;
    use crate::state::tests::CALL;

    fn made(size_log2: u8, choice: Choice, seconds: f64) -> (Context, Choice, f64) {
        (State { bytes: 1 << size_log2, ..CALL }.context(), choice, seconds)
    }

    fn play() -> Choice {
        Choice::Play(action(1, 1, 17))
    }

    /// Windows of 16 calls of two sizes, which take `times` as long as usual, with noise of a tenth; the levels after them.
    fn levels(observed: &mut Observed, random: &mut Random, windows: usize, times: f64) -> Vec<Congestion> {
        let window = |_| {
            let noise = &mut || (0.1 * random.normal()).exp();
            let mut call = |size, seconds: f64| made(size, Choice::Default, times * seconds * noise());
            let calls: Vec<_> = (0..8).flat_map(|_| [call(12, 1e-4), call(22, 1e-2)]).collect();
            observed.observe(calls, |_| Choice::Default)
        };
        (0..windows).map(window).collect()
    }

    #[test]
    fn others_are_noticed_and_forgotten_and_noise_is_nobody() {
        let (mut observed, mut random) = (Observed::default(), Random::new(5, 5));
        let quiet = levels(&mut observed, &mut random, 400, 1.0);
        assert!(quiet.iter().all(|level| *level == Congestion::None), "noise was taken for others");
        for (times, level) in [(1.7, Congestion::Light), (3.0, Congestion::Heavy), (1.0, Congestion::None)] {
            let seen = levels(&mut observed, &mut random, 6, times);
            assert_eq!(seen[3..], [level; 3], "{times} times as long: {seen:?}");
        }
        // What stays is the network.
        assert_eq!(levels(&mut observed, &mut random, 400, 3.0).last(), Some(&Congestion::None));
    }

    /// A choice is compared with itself: one that takes twice as long as the default is no congestion.
    #[test]
    fn what_is_chosen_is_no_congestion() {
        let mut observed = Observed::default();
        for window in 0..40 {
            let choice = if window < 20 { Choice::Default } else { play() };
            let seconds = if window < 20 { 1e-3 } else { 2e-3 };
            let calls = [made(20, choice, seconds); 8];
            assert_eq!(observed.observe(calls, |_| play()), Congestion::None, "{window}");
            // What is tried is not even looked at; nor is what is no time.
            observed.observe([made(20, play(), 9.0); 8], |_| Choice::Default);
            observed.observe([f64::NAN, f64::INFINITY, 0.0].map(|it| made(20, Choice::Default, it)), |_| play());
        }
        assert_eq!(observed.level(), Congestion::None);
    }

    #[test]
    fn levels_do_not_flicker() {
        use Congestion::{Heavy, Light, None};
        for (times, before, after) in [
            (1.25, None, None),
            (1.25, Light, Light),
            (1.1, Light, None),
            (1.9, Light, Light),
            (1.9, Heavy, Heavy),
            (1.25, Heavy, Light),
        ] {
            assert_eq!(level(times, before), after, "{times} after {before:?}");
        }
        assert_eq!((level(2.0, None), level(f64::NAN, Heavy)), (Heavy, None));
    }
}
