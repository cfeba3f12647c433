//! Learners: which arm of a situation is worth a try, and which is the best so far.
//!
//! All of them see the same: situations, and the times of the arms that were played. All times are logarithms, relative to
//! what the cost model expects, so that what was learned of one size says something about another.

mod coordinate_descent;
mod epsilon_greedy;
mod experience;
mod features;
mod knobs;
mod lin_ucb;
mod policy_network;
mod remembered;
mod ridge;
mod thompson;
mod ucb1;
mod usual;

use paceline_plan::CollectiveKind;

use crate::action::{Family, Situation};
use crate::random::Random;
use crate::state::Context;
pub use coordinate_descent::CoordinateDescent;
pub use epsilon_greedy::EpsilonGreedy;
pub use experience::{Anchor, Experience, Known, Lesson};
pub use features::{FEATURES, features};
pub use lin_ucb::LinUcb;
pub use policy_network::PolicyNetwork;
pub use remembered::Remembered;
pub use ridge::Ridge;
pub use thompson::Thompson;
pub use ucb1::Ucb1;

/// A family of a collective. The numbers of algorithms alone would not tell: NCCL has one for the rings of all collectives.
type Kind = (CollectiveKind, Family);

/// What a learner believes of an arm: a normal distribution of the logarithm of its mean seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// The mean.
    pub mean: f64,
    /// How far the mean may be off: its standard deviation. What a single call varies comes on top.
    pub deviation: f64,
}

impl From<Known> for Belief {
    fn from(known: Known) -> Belief {
        Belief { mean: known.mean, deviation: known.deviation }
    }
}

impl Belief {
    /// Of what is not to be played.
    pub const NEVER: Belief = Belief { mean: f64::INFINITY, deviation: 0.0 };
}

/// What is expected of the next call of an arm, as the logarithm of its seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The mean of such logarithms; that of a [`Belief`] is the logarithm of the mean, which is more where calls have tails.
    pub mean: f64,
    /// How far the mean may be off.
    pub deviation: f64,
    /// What calls vary besides; 0 if nobody knows.
    pub noise: f64,
}

/// A learner. Legal order: any; what was never observed is judged by the cost model.
/// It may be moved between threads: in a job it lives with what exchanges gradients.
pub trait Learner: Send {
    /// What it is called in tables.
    fn name(&self) -> &'static str;

    /// The arm to play next: one of those that are `admitted` (one switch for each arm, at least one of them on).
    fn choose(&mut self, situation: &Situation, admitted: &[bool], random: &mut Random) -> usize {
        let believed = self.beliefs(situation, admitted);
        let arms = self.worth_a_look(situation, &on(admitted), &believed);
        self.choose_of(situation, &arms, &believed, random)
    }

    /// Those of the admitted arms, ascending, among which the next one is chosen. `believed`: what [`Learner::beliefs`] says of them.
    /// Calls that are decided in a row need both only once.
    fn worth_a_look(&self, _situation: &Situation, admitted: &[usize], _believed: &[Belief]) -> Vec<usize> {
        admitted.to_vec()
    }

    /// [`Learner::choose`] for whoever knows [`Learner::worth_a_look`], as nothing was observed since: one of these arms.
    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], random: &mut Random) -> usize;

    /// An arm took so many seconds, which are positive.
    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64);

    /// What it believes of an arm.
    fn belief(&self, situation: &Situation, arm: usize) -> Belief;

    /// What it expects of the next call of an arm.
    fn expected(&self, situation: &Situation, arm: usize) -> Expected {
        let Belief { mean, deviation } = self.belief(situation, arm);
        Expected { mean, deviation, noise: 0.0 }
    }

    /// What it believes of the admitted arms; of others nothing that counts.
    fn beliefs(&self, situation: &Situation, admitted: &[bool]) -> Vec<Belief> {
        let belief = |arm: usize| if admitted[arm] { self.belief(situation, arm) } else { Belief::NEVER };
        (0..situation.arms.len()).map(belief).collect()
    }

    /// The best of the admitted arms, as far as it knows.
    fn best(&self, situation: &Situation, admitted: &[bool]) -> usize {
        let beliefs = self.beliefs(situation, admitted);
        lowest(admitted, |arm| beliefs[arm].mean).unwrap_or(situation.default)
    }

    /// What it has observed of the arms of a situation, for a later job, without what it has recalled. Nothing, for those who keep no
    /// samples.
    fn lessons(&self, _situation: &Situation) -> Vec<Lesson> {
        Vec::new()
    }

    /// What an earlier job knew of the arms of a situation. Returns of how many arms something is known now.
    fn recall(&mut self, _situation: &Situation, _lessons: &[Lesson]) -> usize {
        0
    }

    /// Nothing else was observed of a situation before some calls of its default, which takes longer by `off` than is modelled, as a
    /// logarithm. For the one that ships; the others believe a model as it is.
    fn anchor(&mut self, _situation: &Situation, _off: f64) {}

    /// The network has changed in a context: there, the default takes longer by `shift` than before, as a logarithm.
    fn changed(&mut self, context: &Context, shift: f64);

    /// Calls of an arm are not what they were, though the network is. Nothing, for those who forget by themselves.
    fn doubted(&mut self, _situation: &Situation, _arm: usize) {}
}

/// The learners that are compared, by name, with the parameters that they are compared with.
pub fn by_name(name: &str) -> Option<Box<dyn Learner>> {
    let learner: Box<dyn Learner> = match name {
        "thompson" => Box::new(Thompson::default()),
        "linucb" => Box::new(LinUcb::default()),
        "epsilon-greedy" => Box::new(EpsilonGreedy::default()),
        "ucb1" => Box::new(Ucb1::default()),
        "coordinate-descent" => Box::new(CoordinateDescent::default()),
        "policy-network" => Box::new(PolicyNetwork::default()),
        _ => return None,
    };
    Some(learner)
}

/// The names that [`by_name`] knows. The first one is what ships.
pub const LEARNERS: [&str; 6] =
    ["thompson", "linucb", "epsilon-greedy", "ucb1", "coordinate-descent", "policy-network"];

/// The numbers of the switches that are on.
pub(crate) fn on(switches: &[bool]) -> Vec<usize> {
    (0..switches.len()).filter(|&number| switches[number]).collect()
}

/// Switches of a situation's arms, of which these are on.
pub(crate) fn switches(situation: &Situation, on: &[usize]) -> Vec<bool> {
    let mut switches = vec![false; situation.arms.len()];
    on.iter().for_each(|&arm| switches[arm] = true);
    switches
}

/// The admitted arm with the least value; of equals the first.
pub(crate) fn lowest(admitted: &[bool], value: impl Fn(usize) -> f64) -> Option<usize> {
    least((0..admitted.len()).filter(|&arm| admitted[arm]), value)
}

/// The arm with the least value; of equals the first.
pub(crate) fn least(arms: impl IntoIterator<Item = usize>, mut value: impl FnMut(usize) -> f64) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for arm in arms {
        let value = value(arm);
        if best.is_none_or(|(_, least)| value < least) {
            best = Some((arm, value));
        }
    }
    best.map(|(arm, _)| arm)
}

#[cfg(test)]
mod tests;
