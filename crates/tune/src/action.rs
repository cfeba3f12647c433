//! What can be chosen for a call.

use paceline_plan::named_enum;
use serde::{Deserialize, Serialize};

use crate::main_effects::{Entrant, Traits};
use crate::state::{Context, State};

named_enum! {
    /// How messages travel: what they cost to begin against what they cost per byte.
    WireProtocol, "protocol":
    /// Begins at once, and costs most per byte: NCCL's LL; inline on our communicator.
    LowLatency = 0 "ll",
    /// Between the two: NCCL's LL128; eager on our communicator.
    Middle = 1 "ll128",
    /// Begins latest, and costs least per byte: NCCL's Simple; rendezvous on our communicator.
    Simple = 2 "simple",
}

/// The choices between which nothing lies: they are tried one by one, and the numbers of an [`Action`] are searched below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Family {
    /// The algorithm, by the number that the library has for it: the place in Paceline's registry, or NCCL's number. From
    /// [`Family::PROGRAMS`] on, programs that were read from files.
    pub algorithm: u8,
    /// The protocol.
    pub protocol: WireProtocol,
}

impl Family {
    /// The first number of programs from MSCCL's files, and the like; below are those of the library.
    pub const PROGRAMS: u8 = 128;
}

/// All knobs of a call. A number of 0 keeps what the library does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Action {
    /// Algorithm and protocol.
    pub family: Family,
    /// NCCL's channels; lanes on our communicator.
    #[serde(default)]
    pub channels: u8,
    /// Threads that reduce. NCCL lets no tuner set it.
    #[serde(default)]
    pub threads: u8,
    /// log2 of the bytes of a chunk. Of NCCL's chunks, which a tuner can only cut, log2 of the pieces.
    #[serde(default)]
    pub chunk_log2: u8,
}

/// What a policy says of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// Touch nothing: the library does as it does without a tuner.
    #[default]
    Default,
    /// These knobs.
    Play(Action),
}

/// An action that exists for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arm {
    /// The action.
    pub action: Action,
    /// Seconds that the cost model expects of it.
    pub modelled_s: f64,
}

/// A call, and what can be done.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The call.
    pub state: State,
    /// What choices distinguish of it.
    pub context: Context,
    /// What can be done, in an order that is the same on every rank.
    pub arms: Vec<Arm>,
    /// Which of them is what the library does by itself.
    pub default: usize,
    /// Of each arm, the number of its family in `families`.
    pub family_of: Vec<usize>,
    /// The families that occur.
    pub families: Vec<Family>,
}

impl Situation {
    /// Of these arms. None if there are none, or if `default` is none of them.
    pub fn new(state: State, arms: Vec<Arm>, default: usize) -> Option<Situation> {
        if default >= arms.len() || arms.iter().any(|arm| !(arm.modelled_s.is_finite() && arm.modelled_s > 0.0)) {
            return None;
        }
        let mut families: Vec<Family> = arms.iter().map(|arm| arm.action.family).collect();
        families.sort_unstable();
        families.dedup();
        let family_of = arms.iter().map(|arm| families.partition_point(|family| *family < arm.action.family)).collect();
        Some(Situation { state, context: state.context(), arms, default, family_of, families })
    }

    /// The least that is modelled.
    pub fn cheapest_s(&self) -> f64 {
        self.arms.iter().map(|arm| arm.modelled_s).fold(f64::INFINITY, f64::min)
    }

    /// The arms that are modelled to take at most so many times as long as the best, what is modelled to take least first.
    pub fn arms_within(&self, times: f64) -> Vec<usize> {
        let limit_s = times * self.cheapest_s();
        let mut arms: Vec<usize> = (0..self.arms.len()).filter(|&arm| self.arms[arm].modelled_s <= limit_s).collect();
        arms.sort_by(|&one, &other| self.arms[one].modelled_s.total_cmp(&self.arms[other].modelled_s));
        arms
    }

    /// An arm as a contestant among the others.
    pub fn entrant(&self, arm: usize) -> Entrant {
        let Arm { action, modelled_s } = self.arms[arm];
        Entrant { traits: action.traits(), modelled_s }
    }

    /// As a policy says it: the default arm is left alone, not repeated, so that the library may change its mind.
    pub fn choice(&self, arm: usize) -> Choice {
        match self.arms.get(arm) {
            Some(it) if arm != self.default => Choice::Play(it.action),
            _ => Choice::Default,
        }
    }

    /// The arm of a choice; the default for an action that does not exist here.
    pub fn arm_of(&self, choice: Choice) -> usize {
        match choice {
            Choice::Default => self.default,
            Choice::Play(action) => self.arms.iter().position(|arm| arm.action == action).unwrap_or(self.default),
        }
    }
}

impl Action {
    /// Is the other one a single step away: twice or half of one number, and all else the same?
    pub fn is_beside(&self, other: &Action) -> bool {
        let doubled = |one: u8, two: u8| {
            let (one, two) = (u16::from(one.min(two)), u16::from(one.max(two)));
            one > 0 && two == 2 * one
        };
        let steps = [
            (self.channels == other.channels, doubled(self.channels, other.channels)),
            (self.threads == other.threads, doubled(self.threads, other.threads)),
            (self.chunk_log2 == other.chunk_log2, self.chunk_log2.abs_diff(other.chunk_log2) == 1),
        ];
        self.family == other.family
            && steps.iter().filter(|(same, _)| !same).count() == 1
            && steps.iter().any(|(same, beside)| !same && *beside)
    }

    /// In 64 bits, for fingerprints and records.
    pub fn packed(&self) -> u64 {
        self.traits().iter().fold(0, |packed, &number| packed << 8 | u64::from(number))
    }

    /// Number by number: algorithm, protocol, channels, threads and chunk.
    pub fn traits(&self) -> Traits {
        [self.family.algorithm, self.family.protocol as u8, self.channels, self.threads, self.chunk_log2]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::state::tests::CALL;

    pub(crate) fn action(algorithm: u8, channels: u8, chunk_log2: u8) -> Action {
        let family = Family { algorithm, protocol: WireProtocol::Simple };
        Action { family, channels, threads: 1, chunk_log2 }
    }

    /// Two algorithms on a grid of channels and chunks; the model takes the first for the better by a fifth.
    pub(crate) fn situation() -> Situation {
        let mut arms = Vec::new();
        for algorithm in 0..2 {
            for channels in [1, 2, 4] {
                for chunk_log2 in 16..19 {
                    let modelled_s = 1e-3 * (1.0 + 0.2 * f64::from(algorithm));
                    arms.push(Arm { action: action(algorithm, channels, chunk_log2), modelled_s });
                }
            }
        }
        Situation::new(CALL, arms, 4).expect("arms")
    }

    #[test]
    fn beside_is_one_step_of_one_number() {
        let here = action(0, 2, 17);
        assert!(here.is_beside(&action(0, 4, 17)) && here.is_beside(&action(0, 1, 17)));
        assert!(here.is_beside(&action(0, 2, 16)) && here.is_beside(&action(0, 2, 18)));
        for far in [here, action(0, 4, 18), action(1, 4, 17), action(0, 8, 17), action(0, 2, 19), action(0, 0, 17)] {
            assert!(!here.is_beside(&far), "{far:?}");
        }
    }

    #[test]
    fn the_default_is_left_alone() {
        let situation = situation();
        assert_eq!(situation.choice(4), Choice::Default);
        assert_eq!(situation.choice(0), Choice::Play(situation.arms[0].action));
        assert_eq!(situation.arm_of(Choice::Default), 4);
        assert_eq!(situation.arm_of(situation.choice(11)), 11);
        assert_eq!(situation.arm_of(Choice::Play(action(9, 1, 16))), 4);
        assert_eq!((situation.families.len(), situation.family_of[8], situation.family_of[9]), (2, 0, 1));
        assert_eq!(situation.arms_within(1.1), (0..9).collect::<Vec<_>>());
        assert_eq!(situation.arms_within(f64::INFINITY).len(), 18);
        assert_eq!(situation.entrant(11).traits, [1, 2, 1, 1, 18]);
        assert!(Situation::new(CALL, Vec::new(), 0).is_none());
    }
}
