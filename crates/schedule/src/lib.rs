//! In which pieces and which order gradients travel: the tensors of a model and the schedule of a strategy give a
//! [`Plan`](paceline_plan::Plan) of buckets and partitions; a [`Dispatcher`] says online which of them starts next.
//! `docs/scheduling.md` describes the schedules; a crate can add its own as a [`Scheduler`].
//!
//! ```
//! use paceline_schedule::{Workload, plan};
//! use paceline_strategy::Registry;
//!
//! // The elements of conv.weight, fc.weight and fc.bias.
//! let sizes = [200, 4_000, 10];
//! let strategy = Registry::built_in().parse("schedule=fusion:8KiB")?;
//! let plan = plan(&strategy, &Workload::of_sizes(&sizes))?;
//! // Backward comes to the last layer first; 8 KiB are 2,048 elements of f32.
//! assert_eq!(plan.buckets[0].tensors, [2, 1]);
//! assert_eq!(plan.buckets[1].tensors, [0]);
//! assert_eq!(plan.elements(), 4_210);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod automatic;
mod dispatcher;
mod error;
pub mod formula;
mod fusion;
mod mg_wfbp;
mod partition;
mod planner;
mod prefix_sums;
mod priority;
mod scheduler;
mod steady_state;
mod workload;

pub use automatic::{Candidate, candidates};
pub use dispatcher::Dispatcher;
pub use error::ScheduleError;
pub use fusion::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, fuse};
pub use planner::{lay_out, plan};
pub use priority::urgency;
pub use scheduler::{Schedule, Scheduler, Schedulers};
pub use steady_state::steady_state_s;
pub use workload::{CommunicationTime, Forward, Workload};

/// Gradients travel as f32.
pub const ELEMENT_BYTES: u64 = 4;
