use std::fmt;

use paceline_plan::{CollectiveKind, Rank};

use crate::program::{Slot, StepId};

/// A program that is wrong: where and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rank.
    pub rank: Rank,
    /// Its step; None if what is missing belongs to none.
    pub step: Option<StepId>,
    /// Other steps that have to do with it: the other side of a hazard, the rest of a cycle, where a wrong value was
    /// made.
    pub related: Vec<(Rank, StepId)>,
    /// The steps that a wrong value has gone through, the first of them first.
    pub path: Vec<(Rank, StepId)>,
    /// Wrong only if input and output are one memory.
    pub in_place: bool,
    /// Why.
    pub reason: Reason,
}

/// Why a program is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The collective does not exist in a world of this size, or with this root.
    #[error("{kind} does not exist for {world} ranks and root {root}")]
    World {
        /// The collective.
        kind: CollectiveKind,
        /// How many ranks the program has.
        world: usize,
        /// The root it names.
        root: Rank,
    },
    /// More memory than any tile needs: a damaged program.
    #[error("has {0} cells of memory, which is too many")]
    Cells(u64),
    /// A slot reaches beyond its space, is empty, or takes some parts of several blocks.
    #[error("there is no {0}")]
    Range(Slot),
    /// The input is the caller's.
    #[error("writes the input ({0})")]
    WritesInput(Slot),
    /// It waits for a step that does not exist.
    #[error("waits for step {0}, which does not exist")]
    After(StepId),
    /// The peer does not exist, or is the rank itself.
    #[error("rank {0} is no peer")]
    Peer(Rank),
    /// Slots that must have the same parts of as many blocks.
    #[error("{0} and {1} do not have the same shape")]
    Shape(Slot, Slot),
    /// The step would read what it has already overwritten.
    #[error("overwrites a part of {read} while it reads it, through {write}")]
    Overlap {
        /// What is read.
        read: Slot,
        /// What is written.
        write: Slot,
    },
    /// A message with a sender only, or a receiver only.
    #[error("message {message} from rank {from} to rank {to} has no {lacks}")]
    Unmatched {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The message.
        message: u32,
        /// "sender" or "receiver".
        lacks: &'static str,
    },
    /// A message that is sent or received twice.
    #[error("message {message} from rank {from} to rank {to} has a second {side}")]
    Twofold {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The message.
        message: u32,
        /// "sender" or "receiver".
        side: &'static str,
    },
    /// A ring of waits.
    #[error("waits, in the end, for itself")]
    Cycle,
    /// Two steps touch one cell, one of them writes, and nothing says which comes first.
    #[error("races with step {other} for {cell}")]
    Hazard {
        /// The other step of the same rank.
        other: StepId,
        /// The cell.
        cell: Slot,
    },
    /// It reads what nobody has written.
    #[error("reads {0}, which is undefined")]
    Undefined(Slot),
    /// It reads a piece of what a kernel wrote as a whole.
    #[error("reads a piece ({0}) of what a kernel wrote as a whole")]
    Torn(Slot),
    /// The operands are not about the same elements.
    #[error("combines part {} of block {} with part {} of block {}", left.1, left.0, right.1, right.0)]
    Mixed {
        /// Block and part of the left operand.
        left: (u32, u32),
        /// Block and part of the right operand.
        right: (u32, u32),
    },
    /// A contribution would count twice.
    #[error("counts the contribution of rank {0} twice")]
    Twice(Rank),
    /// It combines what an earlier step declared final.
    #[error("combines a value that is already final")]
    AfterLast,
    /// It declares a result final that is not complete.
    #[error("declares a value final that lacks rank {0}")]
    LastTooEarly(Rank),
    /// A reduction that nobody declared final, so that an average is never divided.
    #[error("completes {0}, but is not marked as the last")]
    NotLast(Slot),
    /// The rank does not end with what the collective promises.
    #[error("{cell} {what}")]
    Result {
        /// The cell of the output.
        cell: Slot,
        /// What it should hold, and what it does.
        what: String,
    },
    /// Two ranks combined in different orders, so that their results may differ in the last bits.
    #[error("{cell} is not the same expression as on rank {other}")]
    Disagree {
        /// The cell of the output.
        cell: Slot,
        /// The other rank.
        other: Rank,
    },
    /// A rank may leave a barrier before another has come.
    #[error("may leave before rank {0} has come")]
    Barrier(Rank),
}

impl Refusal {
    /// A refusal of a step.
    pub(super) fn at(rank: Rank, step: StepId, reason: Reason) -> Self {
        Refusal::of(rank, Some(step), reason)
    }

    /// A refusal of a rank, and of a step of it if one is to blame.
    pub(super) fn of(rank: Rank, step: Option<StepId>, reason: Reason) -> Self {
        Refusal { rank, step, related: Vec::new(), path: Vec::new(), in_place: false, reason }
    }

    /// The steps named: this one and the related ones, without the path.
    pub fn steps(&self) -> impl Iterator<Item = (Rank, StepId)> {
        self.step.map(|step| (self.rank, step)).into_iter().chain(self.related.iter().copied())
    }
}

/// How many steps of a list an error message names.
const SHOWN: usize = 8;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        write!(f, ": {}", self.reason)?;
        if self.in_place {
            write!(f, " (in place)")?;
        }
        for (word, steps) in [("see", &self.related), ("it came through", &self.path)] {
            for (index, (rank, step)) in steps.iter().take(SHOWN).enumerate() {
                let before = if index == 0 { format!("; {word}") } else { ",".to_owned() };
                write!(f, "{before} rank {rank} step {step}")?;
            }
            if steps.len() > SHOWN {
                write!(f, " and {} more", steps.len() - SHOWN)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
