//! Executes programs as events on links. Pure: it opens no socket, reads no clock and touches no byte of the data. The
//! driver (`paceline-comm` with real links, the tests with a virtual world) does that and tells the engine.
//!
//! One [`Engine`] serves one rank. The driver posts operations ([`Engine::post`]) and then turns a crank:
//!
//! - what arrives: [`Engine::begin`] says where a frame's bytes go, [`Engine::end`] that they are there;
//! - what leaves: [`Engine::control`] and [`Engine::transmit`] give the next frame for a peer, most urgent first, and
//!   [`Engine::transmitted`] takes back the ticket when the memory is free again;
//! - what is computed: [`Engine::work`] gives the next copy or combination, [`Engine::worked`] reports it done;
//! - what is finished: [`Engine::completed`].
//!
//! # Who may send what, when
//!
//! A receive that may not start yet takes nothing in. So a sender needs a *grant* for a message, with two exceptions
//! that save a round trip: small messages go *eagerly*, against a credit per link that bounds what the receiver must
//! pool ([`Config::eager_link_bytes`]); and on links with single copy a *reference* of a few bytes goes instead of the
//! data, which stays with its sender until the receiver is ready. A receiver that sees nothing of an eager message for
//! [`Config::nudge`] grants it: so that operations started in different orders cannot starve each other of credit.
//!
//! **Invariant:** whatever the peers do, the pool of a link holds at most [`Config::eager_link_bytes`].
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod arrival;
mod credit;
mod deadlines;
mod engine;
mod failure;
pub mod frame;
mod geometry;
mod interface;
mod local_work;
mod operation;
mod outgoing;
mod peer;
mod pool;
mod schedule;
mod sending;
#[cfg(test)]
mod tests;
mod work;

pub use engine::Engine;
pub use failure::{Failure, Waiting};
pub use geometry::{Blocks, Geometry};
pub use interface::{Completion, Config, LinkTraits, OpId, Placement, Request, Time, Transmit};
pub use schedule::RankSchedule;
pub use work::{Job, PoolBuffer, Region, Source, Token, Work};
