//! The calls of a context, round by round: what was decided for them and not seen yet, and what they have taken.

use std::collections::BTreeMap;

use paceline_tune::{Choice, Cost, Decision, Ledger, Situation, Tuner};

/// What calls were to take in so many rounds, and none of them took, is none of NCCL's choices.
pub(super) const UNHEARD_MAX: u32 = 3;

/// Calls of a context.
pub(super) struct Kind {
    pub(super) situation: Situation,
    /// What was decided for a round that was not seen yet.
    pub(super) pending: Option<Decision>,
    /// The rounds that have passed since.
    pub(super) waited: u32,
    /// By arm, the rounds in which it was said, and no call went that way.
    unheard: BTreeMap<usize, u32>,
    /// Rounds since the first one that had such calls, and how many of them had some.
    pub(super) rounds: u32,
    pub(super) called: u32,
    ledger: Ledger,
}

impl Kind {
    /// Before the first round.
    pub(super) fn new(situation: Situation) -> Kind {
        Kind {
            situation,
            pending: None,
            waited: 0,
            unheard: BTreeMap::new(),
            rounds: 0,
            called: 0,
            ledger: Ledger::default(),
        }
    }

    /// What was decided for the next round, if anything was. What is called in fewer than half of the rounds would be tried in policies
    /// that are for hardly any of its calls.
    pub(super) fn to_play(&self) -> Option<Choice> {
        self.pending.filter(|_| !self.is_seldom()).map(|decision| self.situation.choice(decision.arm))
    }

    pub(super) fn is_seldom(&self) -> bool {
        2 * self.called < self.rounds
    }

    /// What was decided will not be seen.
    pub(super) fn give_up(&mut self, tuner: &mut Tuner) {
        if let Some(decision) = self.pending.take() {
            tuner.observe(&self.situation, decision, f64::NAN);
        }
    }

    /// A policy has had calls take this arm in a round, and at least one of them did, or none. Is that one too many? Then it is out, as
    /// NCCL does not offer it.
    pub(super) fn is_given_up(&mut self, tuner: &mut Tuner, arm: usize, is_heard: bool) -> bool {
        let rounds = if is_heard { 0 } else { self.unheard.remove(&arm).unwrap_or(0) + 1 };
        if rounds < UNHEARD_MAX {
            self.unheard.insert(arm, rounds);
            return false;
        }
        tuner.veto(&self.situation, arm);
        if let Some(decision) = self.pending.take_if(|decision| decision.arm == arm) {
            tuner.observe(&self.situation, decision, f64::NAN);
        }
        true
    }

    /// In a round calls took this arm, and so many seconds each. If it is what was decided, that is seen; if something else was played
    /// (the policy was refused, or there was no rule for it), the decision waits.
    pub(super) fn observe(&mut self, tuner: &mut Tuner, arm: usize, seconds: &[f64]) {
        let (mean_s, longest_s) = (mean(seconds), seconds.iter().copied().fold(0.0, f64::max));
        self.ledger.look_at_longest(tuner, &self.situation, arm, [mean_s, longest_s]);
        // The first round of a context is one of the default's, which is what comes first anyway.
        let decision = self.pending.take().unwrap_or_else(|| tuner.decide(&self.situation));
        if decision.arm == arm {
            self.waited = 0;
            tuner.observe(&self.situation, decision, mean_s);
        } else {
            self.pending = Some(decision);
            tuner.observe_elsewhere(&self.situation, arm, mean_s);
        }
        let drifts = tuner.course(&self.situation.context).map_or(0, |course| course.drifts);
        self.ledger.count(drifts, arm, seconds.len() as u64, seconds.iter().sum());
    }

    /// What its calls have cost, if this choice is the best that is known.
    pub(super) fn cost(&self, best: Choice) -> Cost {
        self.ledger.cost(self.situation.arm_of(best))
    }
}

/// No number of none, which is no time.
pub(super) fn mean(seconds: &[f64]) -> f64 {
    seconds.iter().sum::<f64>() / seconds.len() as f64
}
