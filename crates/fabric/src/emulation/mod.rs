//! Networks that are pretended: links that hand a message over when a slower network would have delivered it.
//!
//! The sender's side of each link is shaped. A message first takes its turn at the port of its sender's host, then at
//! that of its receiver's, each of which carries one message at a time and is free again after overhead + beta·b
//! seconds; it arrives alpha + beta·b seconds after it has begun to leave, if nothing was in its way. The bytes lie still
//! in the meantime and cross the link underneath when their time has come.
//!
//! When a port is free is a number in shared memory ([`Ports`]), which ranks advance by compare-and-exchange: it is kept
//! by nobody, and a rank that dies leaves it usable. What a message reserves begins when it could have begun to leave,
//! not when its sender was awake to see to it; so late wake-ups cost latency, but no bandwidth.
//!
//! Two kinds of frames differ. Those without data (grants, signs of life) take alpha and no port. That memory was taken
//! ([`Kind::Taken`](paceline_engine::frame::Kind)) is said at once: a real network would have freed it when the message
//! left.

mod link;
mod ports;
mod shaper;

pub use link::ShapedLink;
pub use ports::Ports;
