//! Collectives as data: a [`Program`] says, rank by rank, what is sent, received, combined and copied, slot by slot.
//! The engine executes it, the simulator times it, the verifier proves it.
#![deny(missing_docs)]

pub mod cost;
pub mod kernels;
pub mod registry;
pub mod select;
pub mod verify;

mod algorithm;
mod all_gather;
mod all_reduce;
mod all_to_all;
mod arithmetic;
mod barrier;
mod binomial;
mod broadcast;
mod builder;
mod doubling;
mod gather;
mod program;
mod rank_order;
mod reduce;
mod reduce_scatter;
mod scatter;
mod send_receive;

pub use algorithm::{Algorithm, TileSeconds, tiles};
pub use builder::{Place, RankBuilder};
pub use program::{
    Action, Combine, Fold, KernelId, Message, Order, Program, RankProgram, Slot, Space, Step, StepId, blocks,
};
pub use verify::{Capacity, Proof, Refusal, verify};
