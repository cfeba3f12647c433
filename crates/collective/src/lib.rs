//! Collectives as data: a [`Program`] says, rank by rank, what is sent, received, combined and copied, slot by slot.
//! The engine executes it, the simulator times it, the verifier proves it.
//!
//! ```
//! use paceline_collective::cost::{Load, walk};
//! use paceline_collective::{Capacity, Topology, registry, select, verify};
//! use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};
//!
//! // A ring of eight ranks: every one of them is proved to end with the sum of all, whatever the timing.
//! let ranks = Topology::flat(8);
//! let ring = registry::find(CollectiveKind::AllReduce, "ring")?;
//! let program = ring.program(&ranks, 0);
//! let proof = verify(&program, Capacity::Rendezvous)?;
//! println!("{} messages in {} rounds", proof.messages, proof.rounds);
//! assert_eq!((proof.messages, proof.rounds), (112, 14));
//!
//! // One mebibyte, at 20 us a message and 1 GB/s: walking the program and the closed formula agree.
//! let costs = LinkCosts::uniform(LinkCost { alpha: 20e-6, overhead: 15e-6, beta: 1e-9, gamma: 0.1e-9 });
//! let cost = walk(&program, &Load { bytes: 1 << 20, tile_bytes: 1 << 20, window: 1 }, &ranks, &costs)?;
//! println!("{:.2} ms", 1e3 * cost.seconds);
//! assert!((cost.seconds - ring.seconds(&ranks, 1 << 20, 1 << 20, &costs)).abs() < 1e-9);
//!
//! // For a kilobyte, something else is faster.
//! let choice = select::cheapest(CollectiveKind::AllReduce, &ranks, 1 << 10, &costs, |_| true).expect("there are many");
//! assert_eq!(choice.algorithm.name(), "recursive-doubling");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It prints
//!
//! ```text
//! 112 messages in 14 rounds
//! 2.21 ms
//! ```
//!
//! To add an algorithm, state the steps of one rank in order with a [`RankBuilder`], implement [`FlatAlgorithm`]
//! (or [`Algorithm`], if it matters which ranks share a host), and list it
//! in [`registry`] and in `docs/algorithms.md`: the tests of this crate then verify it in every world, mutate it, and
//! compare its formulas with what its programs do.
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]

pub mod cost;
pub mod kernels;
pub mod msccl;
pub mod registry;
pub mod select;
pub mod short_tiles;
pub mod verify;

mod algorithm;
mod all_gather;
mod all_reduce;
mod all_to_all;
mod apart;
mod arithmetic;
mod barrier;
mod binomial;
mod broadcast;
mod builder;
mod columns;
mod doubling;
mod flat;
mod gather;
mod host_sums;
mod neighbours;
mod program;
mod push;
mod push_pull;
mod rank_order;
mod reduce;
mod reduce_scatter;
mod scatter;
mod send_receive;
mod topology;
mod waits;

pub use algorithm::{Algorithm, TileSeconds, WINDOW, tiles};
pub use all_reduce::{ReEncodingAllReduce, bcube_all_reduce, re_encoding_all_reduce, torus_all_reduce};
pub use builder::{Place, RankBuilder};
pub use flat::FlatAlgorithm;
pub use program::{
    Action, Combine, Fold, KernelId, Message, Order, Program, RankProgram, Slot, Space, Step, StepId, blocks,
};
pub use topology::Topology;
pub use verify::{Capacity, Proof, Refusal, verify};
