//! How long communication takes on a cluster, whether one has it or not.
//!
//! - [`topology`]: the hosts of a cluster and the links between them: flat, tree, fat-tree, 2-D torus, BCube.
//! - [`flows`]: what each of many messages under way gets of the links that they share (max-min fair).
//! - [`programs`]: a collective's program, executed in virtual time on such a network.
//! - [`study`]: tables of throughputs that somebody measured, and what their rows ran.
//! - [`fit`]: the constants of clusters that explain such a table.
//!
//! ```
//! use paceline_collective::cost::Load;
//! use paceline_collective::{Topology, registry};
//! use paceline_plan::{CollectiveKind, Hosts, NetworkModel};
//! use paceline_predict::programs::{Machine, PreparedProgram, simulate};
//! use paceline_predict::topology::{Network, Speeds};
//!
//! // Eight ranks, each on a host of its own, over 10 Gbit/s Ethernet: under one switch, and under switches of four hosts
//! // with a quarter of their bandwidth upwards. Half of the bytes of halving and doubling cross from one to the other.
//! let ranks = Topology::regular(8, 1);
//! let algorithm = registry::find(CollectiveKind::AllReduce, "halving-doubling")?;
//! let program = PreparedProgram::of_algorithm(algorithm, &ranks, 0)?;
//! let load = Load { bytes: 100_000_000, tile_bytes: 100_000_000, window: 1 };
//! let hosts = Hosts::regular(8, 1);
//! let seconds = |shape: &str| -> Result<f64, Box<dyn std::error::Error>> {
//!     let network = Network::new(shape.parse()?, &hosts, &Speeds::of(NetworkModel::TEN_GBE))?;
//!     Ok(simulate(&program, &load, &Machine::new(&network))?.seconds)
//! };
//! let (flat, tree) = (seconds("flat")?, seconds("tree:4:4")?);
//! println!("{:.0} ms and {:.0} ms", 1e3 * flat, 1e3 * tree);
//! assert!((flat - 0.155).abs() < 0.001 && (tree - 0.419).abs() < 0.001);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It prints
//!
//! ```text
//! 155 ms and 419 ms
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod fit;
pub mod flows;
pub mod programs;
#[cfg(test)]
mod random;
pub mod study;
pub mod topology;
