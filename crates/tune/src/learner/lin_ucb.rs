//! LinUCB: the arm that would be best if everything about it were as good as it may be (Li, Chu, Langford and Schapire,
//! "A contextual-bandit approach to personalized news article recommendation", WWW 2010), on logarithms of times.

use std::collections::BTreeMap;

use super::{Belief, Kind, Learner, Ridge, features, least};
use crate::action::Situation;
use crate::random::Random;
use crate::state::Context;

/// LinUCB with one regression for each family of arms of a collective, over all contexts.
#[derive(Clone, Debug)]
pub struct LinUcb {
    regressions: BTreeMap<Kind, Ridge>,
    /// How many deviations better than its mean an arm may be.
    optimism: f64,
    /// The deviation of a sample from the regression.
    scale: f64,
}

impl Default for LinUcb {
    fn default() -> LinUcb {
        LinUcb { regressions: BTreeMap::new(), optimism: 1.0, scale: 0.3 }
    }
}

impl Learner for LinUcb {
    fn name(&self) -> &'static str {
        "linucb"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], _: &mut Random) -> usize {
        let bound = |arm: usize| believed[arm].mean - self.optimism * believed[arm].deviation;
        least(arms.iter().copied(), bound).unwrap_or(situation.default)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let Situation { state, arms, .. } = situation;
        let residual = seconds.ln() - arms[arm].modelled_s.ln();
        let regression = self.regressions.entry((state.collective, arms[arm].action.family)).or_default();
        regression.add(&features(state, &arms[arm].action), residual.clamp(-2.0, 2.0));
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        let action = &situation.arms[arm].action;
        let at = features(&situation.state, action);
        let regression = self.regressions.get(&(situation.state.collective, action.family));
        let (mean, deviation) = regression.map_or((0.0, 1.0), |it| (it.mean(&at), it.deviation(&at).min(1.0)));
        Belief { mean: situation.arms[arm].modelled_s.ln() + mean, deviation: self.scale * deviation }
    }

    /// All contexts share one regression, which forgets by itself.
    fn changed(&mut self, _: &Context, _: f64) {}
}
