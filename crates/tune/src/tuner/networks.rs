//! The networks that a context has seen, told apart by what the default takes, and what was best in each.

use crate::action::Choice;
use crate::trial::Gain;

/// So many are remembered.
const REMEMBERED: usize = 8;

/// Two are the same if the default's times differ by no more, as logarithms: those of five calls in noise do, and a change is more.
const ALIKE: f64 = 0.15;

/// Where the default takes no more than a third longer or a quarter less, what stood goes on to stand, in doubt.
pub(super) const STANDS_ON_WITHIN: f64 = 0.3;

/// Networks as they were once, in the order in which something was known of them last.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks(Vec<Network>);

#[derive(Clone, Copy, Debug)]
struct Network {
    /// What the default took, as a logarithm.
    level: f64,
    /// What looked best.
    best: Choice,
    /// What it gained, if a trial has shown it.
    gain: Option<Gain>,
}

impl Network {
    fn is_within(&self, apart: f64, level: f64) -> bool {
        (self.level - level).abs() <= apart
    }
}

impl Networks {
    /// In the one in which the default took as long as this; with its gain, if it has won a trial there.
    pub(super) fn best_at(&self, level: f64) -> Option<(Choice, Option<Gain>)> {
        let alike = self.0.iter().find(|network| network.is_within(ALIKE, level));
        alike.map(|network| (network.best, network.gain))
    }

    /// What has won a trial in the one that is nearest, if the default took nearly as long there.
    pub(super) fn best_near(&self, level: f64) -> Option<(Choice, Gain)> {
        let near = self.0.iter().filter(|network| network.is_within(STANDS_ON_WITHIN, level));
        let won = near.filter_map(|network| Some(((network.level - level).abs(), network.best, network.gain?)));
        won.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, best, gain)| (best, gain))
    }

    /// In the one of which something was known last.
    pub(super) fn last_best(&self) -> Option<Choice> {
        self.0.last().map(|network| network.best)
    }

    /// This is the best there from here on.
    pub(super) fn remember(&mut self, level: f64, best: Choice, gain: Option<Gain>) {
        self.forget(level);
        self.0.push(Network { level, best, gain });
        if self.0.len() > REMEMBERED {
            self.0.remove(0);
        }
    }

    /// What was best there is not any more.
    pub(super) fn forget(&mut self, level: f64) {
        if let Some(number) = self.0.iter().position(|network| network.is_within(ALIKE, level)) {
            self.0.remove(number);
        }
    }

    /// The default takes longer in all of them, by so much as a logarithm.
    pub(super) fn were_measured_elsewhere(&mut self, by: f64) {
        self.0.iter_mut().for_each(|network| network.level += by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;

    const GAIN: Gain = Gain { share: 0.1, margin: 0.01, probability: 1e-4 };

    #[test]
    fn a_network_is_known_again_by_what_the_default_takes() {
        let situation = situation();
        let [first, second, third] = [1, 2, 3].map(|arm| situation.choice(arm));
        let mut networks = Networks::default();
        networks.remember(0.0, first, Some(GAIN));
        networks.remember(1.6, second, None);
        assert_eq!(networks.best_at(0.1), Some((first, Some(GAIN))));
        assert_eq!(networks.best_at(1.5), Some((second, None)));
        assert_eq!([networks.best_at(0.2), networks.best_at(0.8)], [None; 2]);
        // Nearly as long: what has won there may stand, in doubt.
        assert_eq!(networks.best_near(0.2), Some((first, GAIN)));
        assert_eq!([networks.best_near(0.4), networks.best_near(1.4)], [None; 2], "far away, and not tried out");
        networks.remember(0.4, third, Some(GAIN));
        assert_eq!(
            [0.19, 0.21].map(|level| networks.best_near(level).map(|(best, _)| best)),
            [Some(first), Some(third)]
        );
        assert_eq!(networks.last_best(), Some(third));
        networks.forget(0.35);
        networks.were_measured_elsewhere(1.0);
        assert_eq!((networks.best_at(1.0), networks.last_best()), (Some((first, Some(GAIN))), Some(second)));
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let best = situation().choice(1);
        let mut networks = Networks::default();
        (0..=REMEMBERED).for_each(|number| networks.remember(number as f64, best, None));
        assert_eq!([networks.best_at(0.0).is_some(), networks.best_at(1.0).is_some()], [false, true]);
    }
}
