//! How all ranks change to a new policy at the same call.
//!
//! One rank, the leader, makes policies and sends them; they may come late, twice, out of order or not at all. At an
//! iteration boundary, where no call is under way, all ranks take part in a collective of the caller's: the minimum of their
//! [`Agreement::ballot`]s. Its result is the same everywhere, so [`Agreement::decide`] is, too: a version becomes active
//! when everybody has it, on all ranks or on none. Nobody waits for a policy, and nobody decides alone: whoever lacks one
//! keeps all others on the version before.
//!
//! (AutoCCL's ranks wait for their leader within the call; NCCL itself compares nothing. That is why the boundary of the
//! training loop is the place for it.)

use std::collections::BTreeMap;

use crate::policy::Policy;

/// What a rank knows of versions.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    active: u64,
    /// Versions that came and are not active yet; None where two came that contradict each other.
    waiting: BTreeMap<u64, Option<Policy>>,
    /// The last ballot: what was promised there stays, whatever comes before the decision.
    promised: u64,
}

/// What became of a policy that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It waits for the others.
    Kept,
    /// It, or a later one, is active already, or it was there before.
    Old,
    /// It is too far ahead of what is active, and was dropped; it will be sent again.
    TooFar,
    /// Another policy of this version was there before. Neither becomes active, unless all ranks have voted for the first one
    /// already.
    Contradiction,
}

impl Agreement {
    /// So many versions may wait: a leader that runs ahead costs no more memory.
    pub const WAITING_MAX: u64 = 64;

    /// From a version that all ranks have, such as a policy that all of them follow. A communicator that was split off begins with none, as
    /// any other does: its calls are others than its parent's, and have versions of their own.
    pub fn from(active: u64) -> Agreement {
        Agreement { active, waiting: BTreeMap::new(), promised: active }
    }

    /// The version under which calls are made.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// A policy has come.
    pub fn receive(&mut self, policy: Policy) -> Received {
        let version = policy.version();
        if version <= self.active {
            return Received::Old;
        }
        if version - self.active > Agreement::WAITING_MAX {
            return Received::TooFar;
        }
        match self.waiting.get(&version) {
            None => {
                self.waiting.insert(version, Some(policy));
                Received::Kept
            }
            Some(Some(known)) if known.fingerprint() == policy.fingerprint() => Received::Old,
            Some(_) => {
                // Without it, this rank votes for the version before, however often one of the two comes again.
                if version > self.promised {
                    self.waiting.insert(version, None);
                }
                Received::Contradiction
            }
        }
    }

    /// What this rank puts into the minimum: the last version up to which it has all.
    pub fn ballot(&mut self) -> u64 {
        let has = |version: &u64| matches!(self.waiting.get(version), Some(Some(_)));
        self.promised = (self.active + 1..).take_while(has).last().unwrap_or(self.active);
        self.promised
    }

    /// The minimum of all ballots. Returns the policy that is to be put up now, before the next call, if there is a new one.
    ///
    /// A minimum below the active version is none of a collective that this rank took part in; nothing changes then.
    pub fn decide(&mut self, lowest: u64) -> Option<Policy> {
        if lowest <= self.active {
            return None;
        }
        let policy = self.waiting.remove(&lowest)??;
        self.active = lowest;
        self.waiting.retain(|version, _| *version > lowest);
        Some(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Choice;
    use crate::policy::Schedule;
    use crate::state::tests::CALL;

    fn policy(version: u64) -> Policy {
        Policy::new(version, [])
    }

    fn other(version: u64) -> Policy {
        Policy::new(version, [(CALL.context(), Schedule::always(Choice::Default))])
    }

    #[test]
    fn what_was_voted_for_stays_until_it_is_decided() {
        let mut agreement = Agreement::default();
        agreement.receive(policy(1));
        assert_eq!(agreement.ballot(), 1);
        assert_eq!(agreement.receive(other(1)), Received::Contradiction);
        assert_eq!(agreement.decide(1), Some(policy(1)), "the others change now");
    }

    #[test]
    fn a_version_is_active_when_all_have_it() {
        let (mut here, mut there) = (Agreement::default(), Agreement::default());
        assert_eq!(here.receive(policy(1)), Received::Kept);
        let lowest = here.ballot().min(there.ballot());
        assert_eq!((lowest, here.decide(lowest), there.decide(lowest)), (0, None, None));
        there.receive(policy(1));
        there.receive(policy(2));
        let lowest = here.ballot().min(there.ballot());
        assert_eq!(lowest, 1);
        for agreement in [&mut here, &mut there] {
            assert_eq!(agreement.decide(lowest), Some(policy(1)));
            assert_eq!(agreement.active(), 1);
        }
        assert_eq!(there.ballot(), 2, "what came early is kept");
    }

    #[test]
    fn a_gap_holds_back_what_follows() {
        let mut agreement = Agreement::default();
        agreement.receive(policy(1));
        agreement.receive(policy(3));
        assert_eq!(agreement.ballot(), 1);
        agreement.receive(policy(2));
        assert_eq!(agreement.ballot(), 3);
        assert_eq!(agreement.decide(3), Some(policy(3)));
        assert_eq!(agreement.receive(policy(2)), Received::Old);
        assert_eq!(agreement.ballot(), 3);
    }

    #[test]
    fn two_policies_of_one_version_are_none() {
        let mut agreement = Agreement::default();
        agreement.receive(policy(1));
        assert_eq!(agreement.receive(policy(1)), Received::Old);
        assert_eq!(agreement.receive(other(1)), Received::Contradiction);
        assert_eq!(agreement.ballot(), 0);
        assert_eq!(agreement.receive(policy(1)), Received::Contradiction, "however often it comes");
        assert_eq!(agreement.ballot(), 0);
        assert_eq!(agreement.receive(policy(1 + Agreement::WAITING_MAX)), Received::TooFar);
    }
}
