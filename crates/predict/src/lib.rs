//! How long training takes on a cluster, whether one has it or not.
//!
//! - [`predict`]: a [`Job`], that is a cluster, a model's profile, a strategy and a number of workers, gives a [`Prediction`]:
//!   the time of an iteration with its interval, throughput, what bounds it, and a timeline.
//! - [`iteration`]: the simulator of iterations below it, for those who have other operations, classes of workers or
//!   compression; [`graph`]: tasks on resources, and transfers over links, in any order.
//! - [`topology`]: the hosts of a cluster and the links between them: flat, tree, fat-tree, 2-D torus, BCube.
//! - [`flows`]: what each of many messages under way gets of the links that they share (max-min fair).
//! - [`programs`]: a collective's program, executed in virtual time on such a network.
//! - [`search`]: the best strategy for a job, and why it is the best.
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
//! The gradients of a hundred billion parameters, two bytes each, are 200 GB. Two workers that add them up send each byte
//! once, so over a network that is all there is to it:
//!
//! ```
//! use paceline_plan::{Cluster, LinkClass, NetworkModel, Profile, ProfileTensor, Step, built_in_profile};
//! use paceline_predict::{Job, predict};
//! use paceline_strategy::Registry;
//!
//! let step = |seconds| vec![Step { tensor: 0, seconds }];
//! let profile = Profile {
//!     // As many bytes as 50 billion numbers of four.
//!     tensors: vec![ProfileTensor { name: "all".into(), elements: 50_000_000_000, forward_macs_per_sample: 0 }],
//!     forward: step(1.0),
//!     backward: step(2.0),
//!     update_s: 0.0,
//!     memory: None,
//!     ..built_in_profile("resnet50").expect("it is built in")
//! };
//! let strategy = Registry::built_in().parse("schedule=none,arch=a2a:ring")?;
//! for (bytes_per_s, expected) in [(1e9 / 8.0, 1600.0), (100e9 / 8.0, 16.0), (900e9, 0.22)] {
//!     let class = LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte: 1.0 / bytes_per_s };
//!     let cluster = Cluster::of_network(NetworkModel { within: class, across: class }, 2, 1);
//!     let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 2, local_batch: None };
//!     let seconds = predict(&job)?.communication_s;
//!     println!("{seconds:.2} s");
//!     assert!((seconds - expected).abs() < 0.005);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It prints
//!
//! ```text
//! 1600.00 s
//! 16.00 s
//! 0.22 s
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod agenda;
mod communication;
pub mod fit;
pub mod flows;
pub mod graph;
mod interval;
pub mod iteration;
mod job;
mod prediction;
pub mod programs;
#[cfg(test)]
mod random;
pub mod search;
pub mod study;
pub mod topology;

pub use communication::serving_hosts;
pub use job::{ByMessage, Job, PredictError};
pub use prediction::{
    Bottleneck, EMULATED_MESSAGES_MAX, Prediction, estimate, estimate_plan, played_emulated, predict,
    predict_by_message, predict_emulated, predict_plan, predict_scheduled, protocol_doubt, published_intensity,
};
