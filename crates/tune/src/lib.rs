//! The tuner: which algorithm, protocol, lanes, threads and chunk each call of a collective takes, learned while the job runs.
//!
//! - [`State`], [`Context`]: what is known of a call, the same on all ranks; [`Action`], [`Situation`]: what can be done.
//! - [`Tuner`]: decides on the leading rank, and learns from the times. Below it: [`prior`], [`learner`], [`guard`], [`trial`],
//!   [`drift`]. [`whole`]: the time of the iteration decides about all calls together; [`together`]: a race of all their choices at
//!   once, before the job; [`main_effects`]: what is told by few calls of many
//!   choices. [`fusion`]: how many bytes a call fuses. [`congestion`]: how much others are in the way.
//! - [`Policy`]: what was decided; [`Swap`]: where it stands, read by one atomic load; [`Agreement`]: how all ranks change to another
//!   one. [`Ledger`]: what calls have taken.
//! - [`environment`], [`simulation`]: clusters that are not there; [`comparison`]: which learner ships; [`atlas`]: what was
//!   learned, for people.
//! - [`nccl`]: NCCL's own cost model, by version: the tables that it prints, the times that it compares, and what it chooses;
//!   [`nccl_policy`]: what was learned of its calls, for the plug-in.
//!
//! ```
//! use paceline_plan::Cluster;
//! use paceline_tune::environment::{Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
//! use paceline_tune::{Tuner, simulation};
//!
//! // Gradients of 16 KiB to 64 MiB over 10 Gbit/s Ethernet, on links that differ from their model.
//! let cluster = Cluster::named("study-10gbe:4x1")?;
//! let model = Box::new(OwnModel::of(&cluster));
//! let mut cluster = SimulatedCluster::new(model, Misfit::USUAL, Disturbances::usual(), 1);
//! let workload = Workload::named("data-parallel", 4, 1)?;
//! let mut tuner = Tuner::shipped(1);
//! let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 300, 1);
//! println!("never worse than {:.3} of the default", outcome.worst_prefix);
//! assert!(outcome.worst_prefix < 1.02);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness but what follows from seeds.
#![deny(missing_docs)]

pub mod atlas;
pub mod comparison;
pub mod congestion;
pub mod drift;
pub mod environment;
pub mod fusion;
pub mod guard;
pub mod learner;
pub mod main_effects;
pub mod nccl;
pub mod nccl_policy;
pub mod policy_file;
pub mod prior;
pub mod reward;
pub mod simulation;
pub mod statistics;
pub mod together;
pub mod trial;
pub mod whole;

mod action;
mod agreement;
mod ledger;
mod policy;
mod random;
mod state;
mod swap;
mod sync;
mod tuner;

pub use action::{Action, Arm, Choice, Family, Situation, WireProtocol};
pub use agreement::{Agreement, Received};
pub use ledger::{Cost, Ledger};
pub use policy::{Policy, Schedule};
pub use random::Random;
pub use state::{
    Congestion, Context, ContextKey, Parallelism, STATE_VERSION, SizeClass, State, TopologyClass, Transport,
};
pub use swap::{Full, Swap};
pub use tuner::{Course, Decision, Outcome, Reason, Standing, Tuner};
