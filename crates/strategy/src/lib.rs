//! The grammar of a training strategy: a choice in each aspect of the taxonomy, on one line.
//!
//! ```
//! use paceline_strategy::Registry;
//!
//! let registry = Registry::built_in();
//! let strategy = registry.parse("wfbp-a2a,arch=a2a:ring,protocol=tcp").unwrap();
//! assert_eq!(strategy.to_string(), "sync=bsp,compress=none,schedule=wfbp,arch=a2a:ring,protocol=tcp");
//! assert!(strategy.sentence(&registry).starts_with("It exploits bulk-synchronous SGD with uncompressed gradients"));
//!
//! let text = "schedule=wbfp";
//! let error = registry.parse(text).unwrap_err();
//! assert_eq!(&text[error.span.clone()], "wbfp");
//! assert!(error.to_string().contains("did you mean `wfbp`?"));
//! ```
//!
//! # Syntax
//!
//! ```text
//! strategy = [ first ] { "," aspect "=" chain }       aspects stand in any order; an omitted one takes its default
//! first    = preset | call                            of a schedule that needs an argument, such as fusion:25MiB
//! chain    = call { "*" call }                        a hybrid; only of compressors
//! call     = name { ":" argument }                    bytes take B, KiB, MiB, GiB; times ns, us, ms, s
//! ```
//!
//! Arguments stand in order. One that is a name may stand earlier: those before it keep their defaults, so `ps:2:apply` is
//! `ps:2:4000KiB:colocated:apply`.
//!
//! The grammar knows no method: names, their arguments and what goes together stand in a [`Registry`], to which an
//! outside crate adds its own. A strategy prints with every aspect and every argument, and what it prints parses to
//! the same strategy.
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod arch;
mod built_in;
mod error;
mod kind;
mod method;
mod nearest;
mod parse;
mod registry;
mod rules;
mod strategy;

pub use arch::Servers;
pub use error::{Problem, StrategyError};
pub use kind::{Kind, Value};
pub use method::{Method, Parameter, Presence};
pub use nearest::nearest;
pub use registry::{Preset, Registry, Rule, Senseless};
pub use strategy::{Aspect, Call, Strategy};
