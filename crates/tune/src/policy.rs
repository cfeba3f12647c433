//! What has been decided, for all contexts at once: it never changes, it is replaced.

use paceline_plan::Fnv1a;

use crate::action::Choice;
use crate::state::{Context, ContextKey};

/// The choices of a context, call by call: they repeat after the last. One for what is decided, several while something is
/// tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    choices: [Choice; Schedule::LENGTH_MAX],
    length: u8,
}

/// A version of all choices, the same on every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Counts from 1; 0 is the policy that nobody made, which leaves everything alone.
    version: u64,
    /// By key, rising.
    entries: Vec<(ContextKey, Context, Schedule)>,
}

impl Schedule {
    /// A schedule has at most so many choices.
    pub const LENGTH_MAX: usize = 16;

    /// Always this.
    pub fn always(choice: Choice) -> Schedule {
        let mut choices = [Choice::Default; Schedule::LENGTH_MAX];
        choices[0] = choice;
        Schedule { choices, length: 1 }
    }

    /// These, in turn: the first [`Schedule::LENGTH_MAX`] of them. None of none.
    pub fn of(turns: &[Choice]) -> Option<Schedule> {
        let length = turns.len().min(Schedule::LENGTH_MAX);
        let mut choices = [Choice::Default; Schedule::LENGTH_MAX];
        choices[..length].copy_from_slice(&turns[..length]);
        (length > 0).then_some(Schedule { choices, length: length as u8 })
    }

    /// That of a call.
    pub fn at(&self, call: u64) -> Choice {
        self.choices[(call % u64::from(self.length)) as usize]
    }

    /// All of them, once.
    pub fn turns(&self) -> &[Choice] {
        &self.choices[..usize::from(self.length)]
    }
}

impl Policy {
    /// Of these contexts. Of one that occurs several times, the last counts.
    pub fn new(version: u64, entries: impl IntoIterator<Item = (Context, Schedule)>) -> Policy {
        let mut entries: Vec<_> =
            entries.into_iter().map(|(context, schedule)| (context.key(), context, schedule)).collect();
        entries.reverse();
        entries.sort_by_key(|(key, ..)| *key);
        entries.dedup_by_key(|(key, ..)| *key);
        Policy { version, entries }
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What to do with a call. `call` is a number that all ranks agree on: the operation's number, or the iteration's; how
    /// often this rank has asked is no such number. O(log entries), no lock, no allocation.
    pub fn choice(&self, context: ContextKey, call: u64) -> Choice {
        match self.entries.binary_search_by_key(&context, |(key, ..)| *key) {
            Ok(place) => self.entries[place].2.at(call),
            Err(_) => Choice::Default,
        }
    }

    /// The contexts and their schedules, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&Context, &Schedule)> {
        self.entries.iter().map(|(_, context, schedule)| (context, schedule))
    }

    /// The fingerprint of everything in it.
    pub fn fingerprint(&self) -> u64 {
        let mut fingerprint = Fnv1a::default();
        fingerprint.number(self.version);
        for (key, _, schedule) in &self.entries {
            fingerprint.number(key.0).number(u64::from(schedule.length));
            for choice in schedule.turns() {
                match choice {
                    Choice::Default => fingerprint.number(u64::MAX),
                    Choice::Play(action) => fingerprint.number(action.packed()),
                };
            }
        }
        fingerprint.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::action;
    use crate::state::State;
    use crate::state::tests::CALL;

    #[test]
    fn what_no_policy_knows_is_left_alone() {
        let (here, there) = (CALL.context(), State { ranks: 9, ..CALL }.context());
        let play = Choice::Play(action(1, 2, 17));
        let policy = Policy::new(3, [(here, Schedule::always(play))]);
        assert_eq!((policy.choice(here.key(), 0), policy.choice(there.key(), 0)), (play, Choice::Default));
        assert_eq!(Policy::default().choice(here.key(), 5), Choice::Default);
    }

    #[test]
    fn schedules_take_turns_by_the_number_of_the_call() {
        let turns = [Choice::Default, Choice::Play(action(1, 2, 17)), Choice::Play(action(0, 1, 16))];
        let schedule = Schedule::of(&turns).expect("three");
        for call in 0..100 {
            assert_eq!(schedule.at(call), turns[call as usize % 3]);
        }
        assert_eq!(Schedule::of(&[]), None);
        assert_eq!(Schedule::of(&[Choice::Default; 40]).expect("some").turns().len(), Schedule::LENGTH_MAX);
    }

    #[test]
    fn fingerprints_differ_where_policies_do() {
        let with = |version, choice| Policy::new(version, [(CALL.context(), Schedule::always(choice))]).fingerprint();
        let all = [
            with(1, Choice::Default),
            with(2, Choice::Default),
            with(1, Choice::Play(action(1, 2, 17))),
            with(1, Choice::Play(action(1, 4, 17))),
            Policy::new(1, []).fingerprint(),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(!all[..number].contains(one), "{number}");
        }
        assert_eq!(with(1, Choice::Default), all[0]);
    }
}
