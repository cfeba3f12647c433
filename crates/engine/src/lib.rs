//! Executes programs as events on links. Pure: it opens no socket, reads no clock and touches no byte of the data. The
//! driver (`paceline-comm` with real links, the tests with a virtual world) does that and tells the engine.
//!
//! One [`Engine`] serves one rank. The driver posts operations ([`Engine::post`]) and then turns a crank:
//!
//! - what arrives: [`Engine::begin`] says where a frame's bytes go, [`Engine::end`] that they are there;
//! - what leaves: [`Engine::control`] and [`Engine::transmit`] give the next frame for a peer, most urgent first, and
//!   [`Engine::transmitted`] takes back the ticket when the memory is free again;
//! - what is computed: [`Engine::work`] gives the next copy or combination, [`Engine::worked`] reports it done;
//! - what is finished: [`Engine::completed`], after a look at [`Engine::failure`]: the engine also fails by itself, and
//!   then the links must let go of all memory before callers get theirs back;
//! - what time brings: [`Engine::tick`], for deadlines, for signs of life on idle links, and for operations that do not
//!   move ([`Engine::stalled`]).
//!
//! ```
//! use std::sync::Arc;
//!
//! use paceline_collective::Topology;
//! use paceline_collective::registry::find;
//! use paceline_engine::frame::Signature;
//! use paceline_engine::{Config, Engine, Geometry, Placement, RankSchedule, Request, Time, Tuning};
//! use paceline_plan::{CollectiveKind, OperationKey};
//!
//! // Rank 0 sends ten bytes to rank 1.
//! let algorithm = find(CollectiveKind::SendReceive, "point-to-point")?;
//! let mut engines = [0, 1].map(|rank| {
//!     let mut engine = Engine::new(Config::new(rank, 2));
//!     let request = Request {
//!         key: OperationKey { operation: 1, ..OperationKey::default() },
//!         signature: Signature { elements: 10, tile_elements: 10, ..Signature::default() },
//!         schedule: Arc::new(RankSchedule::new(&algorithm.rank_program(rank, &Topology::flat(2), 0), 1)),
//!         geometry: Geometry::uniform(1, 10, 10),
//!         group: [0, 1].into(),
//!         priority: 0,
//!         deadline: Time::from_secs(1),
//!         window: 1,
//!         shared_memory: false,
//!         input_lengths: None,
//!         tuning: Tuning::default(),
//!     };
//!     engine.post(request, Time::ZERO).expect("nothing has failed");
//!     engine
//! });
//!
//! let frame = engines[0].transmit(1).expect("small messages go at once");
//! // Here a link would carry `frame.payload` …
//! engines[0].transmitted(frame.ticket.expect("it went as bytes"));
//! let place = engines[1].begin(0, &frame.header)?;
//! assert!(matches!(place, Placement::Write(region) if region.bytes == 10));
//! // … and write it there.
//! engines[1].end(0, &frame.header)?;
//! for engine in &mut engines {
//!     assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who may send what, when
//!
//! A receive that may not start yet takes nothing in. So a sender needs a *grant* for a message, with two exceptions
//! that save a round trip: small messages go *eagerly*, against a credit per link that bounds what the receiver must
//! pool ([`Config::eager_link_bytes`]); and on links with single copy a *reference* of a few bytes goes instead of the
//! data, which stays with its sender until the receiver is ready. A receiver that sees nothing of an eager message for
//! [`Config::nudge`] grants it: so that operations started in different orders cannot starve each other of credit.
//!
//! A caller may say otherwise ([`Protocol`](paceline_plan::Protocol)): *inline*, nothing goes by reference; *eager*, no
//! message waits for a grant while there is credit; *rendezvous*, every message waits for its grant. Each rank follows
//! its own word. Where two ranks of an operation were told different things, a sender may wait for a grant that its
//! receiver does not think of, until the nudge: that costs time, never a result.
//!
//! **Invariant:** whatever the peers do, the pool of a link holds at most [`Config::eager_link_bytes`]; on top of that
//! come only operands of kernels that are being taken in, each no longer than its slot.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod arrival;
mod credit;
mod deadlines;
mod engine;
mod failure;
pub mod frame;
mod geometry;
mod hash;
mod heartbeat;
mod held;
mod interface;
mod last_words;
mod local_work;
mod operation;
mod outgoing;
mod peer;
mod pool;
mod schedule;
mod sending;
pub mod shard;
mod shortcut;
mod stall;
#[cfg(test)]
mod tests;
mod work;

pub use engine::Engine;
pub use failure::{Cause, Failure, Waiting};
pub use geometry::{Blocks, Geometry};
pub use held::Held;
pub use interface::{Completion, Config, LinkTraits, OpId, Placement, Request, Time, Transmit, Tuning};
pub use last_words::WORDS_BYTES_MAX;
pub use schedule::RankSchedule;
pub use stall::Stall;
pub use work::{Job, PoolBuffer, Region, Source, Token, Work};
