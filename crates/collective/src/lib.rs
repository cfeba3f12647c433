//! Collectives as data: a [`Program`] says, rank by rank, what is sent, received, combined and copied, slot by slot.
//! The engine executes it, the simulator times it, the verifier proves it.
#![deny(missing_docs)]

mod algorithm;
mod program;

pub use algorithm::Algorithm;
pub use program::{
    Action, Combine, Fold, KernelId, Message, Order, Program, RankProgram, Slot, Space, Step, StepId, blocks,
};
