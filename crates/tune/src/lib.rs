//! The per-call tuner: which algorithm, protocol and channels a collective takes.
//!
//! - [`nccl`]: NCCL's own cost model, by version: the tables that it prints, the times that it compares, and what it
//!   chooses.
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod nccl;
