//! Data-parallel training that makes communication cheap: hidden behind computation, made smaller, or skipped.
//!
//! This crate is what a Rust user depends on. [`run`] is the whole command line; with a [`Registry`] it takes models,
//! schedules and compressors of one's own, which `train`, `bench` and `explain` then treat like Paceline's.
//! `examples/own_model.rs`, `examples/own_schedule.rs` and `examples/own_compressor.rs` are such programs:
//!
//! ```text
//! cargo run --release -p paceline --example own_model -- train --model softmax --workers 2
//! cargo run --release -p paceline --example own_model -- bench --models softmax --workers 1,2
//! cargo run --release -p paceline --example own_schedule -- bench --models mlp --methods schedule=pieces:3,wfbp-a2a
//! cargo run --release -p paceline --example own_compressor -- train --model mlp --workers 2 --strategy compress=sign
//! ```
//!
//! Of the crates that lie below the command line, those that a program of one's own has to do with are modules here.
//!
//! ```
//! use paceline::Registry;
//! use paceline::strategy::Aspect;
//!
//! let registry = Registry::built_in();
//! let strategy = registry.grammar().parse("wfbp-a2a,arch=a2a:ring")?;
//! assert_eq!(strategy.methods(Aspect::Schedule)[0].name, "wfbp");
//! # Ok::<(), paceline::strategy::StrategyError>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub use paceline_cli::{BuildModel, OwnModel, Registry, run};
pub use paceline_collective as collective;
pub use paceline_comm as comm;
pub use paceline_compress as compress;
pub use paceline_plan as plan;
pub use paceline_predict as predict;
pub use paceline_schedule as schedule;
pub use paceline_strategy as strategy;
pub use paceline_train as train;
