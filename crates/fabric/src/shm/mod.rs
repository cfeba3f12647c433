//! Shared memory between the ranks of one host.
//!
//! Each pair of ranks shares a segment with two rings for frames; long messages go by reference: the receiver copies
//! them from the sender's address space (`process_vm_readv`), or reads them where they lie if they are in the sender's
//! [`Arena`], which its peers have mapped. Where the kernel refuses single copies, the rings carry everything that is
//! outside the arena.
//!
//! Nothing that a peer writes into shared memory is believed unchecked: indices, headers and references out of bounds end
//! the link with an error. Peers are trusted not to change a payload while it is being read, as they are trusted with the
//! numbers in it.
//!
//! All memory is in memfds and all names are abstract: a killed rank leaves nothing behind.
//!
//! Ranks find out that they share memory by doing so ([`ShmHost::connect`]): a Unix socket with a random abstract name
//! leads to the peer, which must run as the same user and know the job's secret; memory files and a doorbell cross it;
//! and each side reads through the memory what the other has written there. The socket stays open: when the kernel
//! closes it the peer is gone.

mod arena;
mod claims;
mod connect;
mod doorbell;
mod fetch;
mod free_list;
mod handshake;
mod inbox;
mod link;
pub(crate) mod mapping;
mod message;
mod outbox;
mod process_memory;
mod ring;
mod segment;
mod talk;
#[cfg(test)]
mod tests;

pub use arena::{Allocation, Arena, ArenaError};
pub use connect::{ShmHost, ShmOptions};
pub use link::ShmLink;
