//! Links between ranks: shared memory, TCP, memory; how ranks find each other (rendezvous); and what a link costs.
#![deny(missing_docs)]

pub mod environment;
mod error;
mod link;
mod memory;
pub mod shm;
mod tcp;

pub use error::LinkError;
pub use link::{Descriptor, Link, Piece, Sink, Target, Transport};
pub use memory::{MemoryLink, memory_pair};
pub use tcp::{TcpLink, TcpOptions};
