//! Where a context stands, for people.

use crate::action::Choice;
use crate::trial::Gain;

/// Why a context stays with the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing looked better by 3 %.
    NothingBetter,
    /// The best looked better, and a trial found no significant gain.
    NoSignificantGain,
    /// What had been chosen is no longer better.
    Reverted,
    /// There is nothing to choose from.
    NoChoice,
}

/// Where a context stands, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Not decided yet.
    Learning,
    /// This, with this gain.
    Chosen(Choice, Gain),
    /// The default.
    Settled(Reason),
}

impl Reason {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Reason::NothingBetter => "nothing looked better by 3 %",
            Reason::NoSignificantGain => "no significant gain",
            Reason::Reverted => "reverted: the default is better again",
            Reason::NoChoice => "there is nothing to choose from",
        }
    }
}
