//! The types that the other crates share: what an operation is called ([`OperationKey`]), what it moves
//! ([`DataType`], [`Reduction`], [`CollectiveKind`]), what links cost ([`LinkCosts`], and of networks with a name
//! [`NetworkModel`]), what machines cost ([`Cluster`]), what a worker computes ([`Profile`]), and in which pieces the
//! gradients of a model travel ([`Plan`]).
//!
//! ```
//! use paceline_plan::{DataType, LinkCost};
//!
//! let link = LinkCost { alpha: 20e-6, overhead: 2e-6, beta: 0.8e-9, gamma: 0.1e-9 };
//! assert_eq!(DataType::F32.size(), 4);
//! // One mebibyte in one message, in seconds.
//! assert!((link.message(1 << 20) - 0.000_858_9).abs() < 1e-6);
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bucket;
mod built_in;
mod check;
mod cluster;
mod data_type;
mod derived;
mod emulation;
mod fingerprint;
mod key;
mod link_cost;
mod memory_need;
mod names;
mod network;
mod placement;
mod profile;
mod scale;
mod shape;

pub use bucket::{Bucket, OperationNumber, Partition, Plan, TensorId};
pub use built_in::{BUILT_IN_PROFILES, built_in_profile};
pub use check::PlanError;
pub use cluster::{
    BUILT_IN_CLUSTERS, Cluster, ClusterError, ClusterSet, ComputationConstants, Constant, Distribution,
    InterferenceConstants, LinkConstants, MeasuredRange, OVERTAKING_BYTES, OperationConstants, ProtocolConstants,
    Protocols, ServerConstants, UnlikeWorkers,
};
pub use data_type::{CollectiveKind, DataType, Protocol, Reduction};
pub use derived::{Throughput, Updating};
pub use emulation::{Emulation, EmulationError, Hosts};
pub use fingerprint::Fnv1a;
pub use key::OperationKey;
pub use link_cost::{LinkCost, LinkCosts};
pub use memory_need::MemoryNeed;
pub use names::UnknownName;
pub use network::{LinkClass, NetworkModel, PCIE_3_X16};
pub use profile::{Profile, ProfileError, ProfileTensor, Step};
pub use scale::{ScaleError, scaled_profile, throughput_of};
pub use shape::{Shape, ShapeError, Switches};

/// The number of a worker within a group, from 0.
pub type Rank = usize;
