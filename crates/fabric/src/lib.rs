//! Links between ranks: shared memory, TCP, memory; how ranks find each other (rendezvous); and what a link costs.
#![deny(missing_docs)]

mod error;
mod link;

pub use error::LinkError;
pub use link::{Descriptor, Link, Piece, Sink, Target, Transport};
