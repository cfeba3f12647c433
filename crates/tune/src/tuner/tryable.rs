//! What may be tried of a situation's arms, and what is believed of them.

use crate::action::Situation;
use crate::guard::Guard;
use crate::learner::{Belief, Learner, on};

/// The same for calls in a row, between which nothing is observed.
pub(super) struct Tryable {
    pub(super) admitted: Vec<usize>,
    pub(super) worth_a_look: Vec<usize>,
    /// By arm.
    pub(super) believed: Vec<Belief>,
    /// By arm, in seconds.
    pub(super) means_s: Vec<f64>,
    /// Seconds that calls of the row which are tried beside what stands may lose.
    pub(super) promised_s: f64,
}

impl Tryable {
    pub(super) fn of(guard: &Guard, learner: &dyn Learner, situation: &Situation) -> Tryable {
        let switches = guard.admitted(situation);
        let believed = learner.beliefs(situation, &switches);
        let admitted = on(&switches);
        let worth_a_look = learner.worth_a_look(situation, &admitted, &believed);
        let means_s = believed.iter().map(|belief| belief.mean.exp()).collect();
        Tryable { admitted, worth_a_look, believed, means_s, promised_s: 0.0 }
    }
}
