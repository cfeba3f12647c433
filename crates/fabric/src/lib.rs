//! Links between ranks: shared memory, TCP, memory, and emulated networks over them; how ranks find each other (rendezvous); and what a link costs.
#![deny(missing_docs)]

mod control;
pub mod emulation;
pub mod environment;
mod error;
mod interfaces;
mod link;
mod memory;
pub mod rendezvous;
pub mod security;
pub mod shm;
mod system;
mod tcp;
#[cfg(test)]
mod tests;
mod text;

pub use control::VERSION as CONTROL_VERSION;
pub use error::LinkError;
pub use interfaces::{Interface, interfaces};
pub use link::{Descriptor, Link, NO_TICKET, Piece, Sink, Target, Transport};
pub use memory::{MemoryLink, memory_pair};
pub use system::{is_out_of_descriptors, next_step_after};
pub use tcp::{
    AcceptorError, CongestionControl, CongestionControlName, TcpAcceptor, TcpConnectError, TcpConnectOptions,
    TcpConnected, TcpLink, TcpOptions, connect_tcp,
};
pub use text::Advised;
