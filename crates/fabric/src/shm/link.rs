//! A link through shared memory.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use paceline_engine::frame::Header;

use super::arena::Arena;
use super::doorbell::{self, Doorbell, Watched};
use super::inbox::Inbox;
use super::mapping::Mapping;
use super::outbox::Outbox;
use super::process_memory;
use super::ring::{Consumer, Producer};
use super::segment::{Segment, Side, WAKE_FOR_DATA, WAKE_FOR_ROOM};
use crate::{Descriptor, Link, LinkError, Piece, Sink, Transport};

/// In the first word of a reference: the second is an offset in the sender's arena.
const IN_ARENA: u64 = 1;
/// In the first word of a reference: the second is an address in the sender's process.
const IN_PROCESS: u64 = 2;

/// After so many receives in a row that found nothing the socket is looked at: a system call for every few thousand
/// polls. A rank that sleeps hears of a hang-up at once, from its doorbell.
const POLLS_PER_LOOK: u32 = 4096;

/// What two ranks have agreed on when they have found that they share memory.
pub(super) struct Established {
    pub(super) segment: Arc<Segment>,
    /// 0 for the lower rank, 1 for the higher.
    pub(super) side: usize,
    /// Stays open and silent: the kernel closes it when the peer ends.
    pub(super) socket: OwnedFd,
    pub(super) hung_up: Arc<AtomicBool>,
    pub(super) doorbell: Arc<Doorbell>,
    /// Ends the watch when the link is dropped.
    pub(super) _watched: Watched,
    pub(super) peer_pid: i32,
    pub(super) peer_bell: OwnedFd,
    /// What a lower peer gives to all.
    pub(super) attachment: Option<OwnedFd>,
    /// The peer's arena, if it could be mapped.
    pub(super) peer_arena: Option<Mapping>,
    pub(super) arena: Arc<Arena>,
    /// Has the peer mapped ours?
    pub(super) peer_maps_arena: bool,
    /// Can the peer read memory of this process? If not, why.
    pub(super) peer_reads: Result<(), String>,
    /// None if one of the two sides has switched references off.
    pub(super) reference_above: Option<usize>,
}

/// A link to a rank of the same host: two rings in shared memory for frames, references for long messages.
///
/// All links of a host sleep on its one doorbell: [`Link::descriptors`] adds it once.
pub struct ShmLink {
    outbox: Outbox,
    inbox: Inbox,
    with: Established,
    /// `has_room` has answered no since the ring last had room: when it has some again, this side wants to know.
    refused: Cell<bool>,
    asleep: Cell<bool>,
    idle_polls: u32,
    closed: bool,
}

// SAFETY: the addresses that a link holds (pieces to send, where an arriving frame goes) are valid whichever thread uses
// them, by the contracts of `Link::enqueue` and `Target::Memory`; everything else is owned or atomic.
unsafe impl Send for ShmLink {}

impl ShmLink {
    pub(super) fn new(with: Established) -> ShmLink {
        ShmLink {
            outbox: Outbox::new(Producer::new(Arc::clone(&with.segment), with.side)),
            inbox: Inbox::new(Consumer::new(Arc::clone(&with.segment), with.side)),
            with,
            refused: Cell::new(false),
            asleep: Cell::new(false),
            idle_polls: 0,
            closed: false,
        }
    }

    /// Can the peer copy straight from any memory of this process (`process_vm_readv`)? If not, why, in a sentence for
    /// the user. References to [`Arena`] memory may work all the same.
    pub fn single_copy(&self) -> Result<(), &str> {
        match &self.with.peer_reads {
            Ok(()) => Ok(()),
            Err(reason) => Err(reason),
        }
    }

    /// The file that a peer of a lower rank attached ([`super::ShmHost::attach`]); once.
    pub fn take_attachment(&mut self) -> Option<OwnedFd> {
        self.with.attachment.take()
    }

    /// The peer's process.
    pub fn peer_process(&self) -> u32 {
        self.with.peer_pid.unsigned_abs()
    }

    fn mine(&self) -> &Side {
        self.with.segment.side(self.with.side)
    }

    fn theirs(&self) -> &Side {
        self.with.segment.side(1 - self.with.side)
    }

    /// Wants to be woken when room opens, also if the sleep has been announced already.
    fn want_room(&self) {
        self.refused.set(true);
        if self.asleep.get() {
            self.mine().fall_asleep(WAKE_FOR_DATA | WAKE_FOR_ROOM);
        }
    }

    fn take_in(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let (theirs, bell) = (self.with.segment.side(1 - self.with.side), &self.with.peer_bell);
        self.inbox.receive(sink, &mut || {
            if theirs.must_be_woken(WAKE_FOR_ROOM) {
                doorbell::ring(bell.as_fd());
            }
        })
    }

    fn look_at_socket(&self) {
        use rustix::net::RecvFlags;
        let mut byte = [0];
        match rustix::net::recv(&self.with.socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // The end, an error, or a message where none is expected.
            _ => self.with.hung_up.store(true, Ordering::Release),
        }
    }
}

impl Link for ShmLink {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn has_room(&self) -> bool {
        if self.outbox.has_room() {
            return true;
        }
        self.want_room();
        // The peer may have made room before it could see that it is wanted.
        self.outbox.has_room()
    }

    fn is_flushed(&self) -> bool {
        self.outbox.is_flushed() && !self.refused.get()
    }

    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        // SAFETY: the caller's contract is the same.
        unsafe { self.outbox.push(header, payload, ticket) };
    }

    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        if self.closed || self.with.hung_up.load(Ordering::Acquire) {
            // Nobody will read it. `receive` reports the end, after all that had arrived before.
            self.outbox.forget(sent);
            return Ok(false);
        }
        let (theirs, bell) = (self.with.segment.side(1 - self.with.side), &self.with.peer_bell);
        let mut moved = self.outbox.flush(sent, &mut || {
            if theirs.must_be_woken(WAKE_FOR_DATA) {
                doorbell::ring(bell.as_fd());
            }
        })?;
        if self.outbox.is_blocked() {
            self.want_room();
            // The peer may have made room before it could see that it is wanted: then, too, this must be called again.
            moved |= self.asleep.get() && self.outbox.can_move();
        } else if self.refused.get() && self.outbox.has_room() {
            // Somebody was told that there was no room: that has changed.
            self.refused.set(false);
            moved = true;
        }
        Ok(moved)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if self.closed {
            return Err(LinkError::Closed);
        }
        if self.take_in(sink)? {
            self.idle_polls = 0;
            return Ok(true);
        }
        self.outbox.fetch_ahead();
        self.idle_polls += 1;
        if self.idle_polls >= POLLS_PER_LOOK {
            self.idle_polls = 0;
            self.look_at_socket();
        }
        if !self.with.hung_up.load(Ordering::Acquire) {
            return Ok(false);
        }
        // What was written before the hang-up is visible now. A frame that is not all there never will be.
        if self.take_in(sink)? { Ok(true) } else { Err(LinkError::Closed) }
    }

    fn reference_above(&self) -> Option<usize> {
        self.with.reference_above
    }

    fn refer(&self, piece: Piece) -> Option<[u64; 2]> {
        self.with.reference_above?;
        if self.with.peer_maps_arena
            && let Some(offset) = self.with.arena.offset_of(piece.start, piece.bytes)
        {
            return Some([IN_ARENA, offset as u64]);
        }
        self.with.peer_reads.as_ref().ok().map(|()| [IN_PROCESS, piece.start.addr() as u64])
    }

    fn mapped(&self, reference: [u64; 2], bytes: usize) -> Option<*const u8> {
        let arena = self.with.peer_arena.as_ref()?;
        let offset = usize::try_from(reference[1]).ok()?;
        let inside = reference[0] == IN_ARENA && offset.checked_add(bytes)? <= arena.bytes();
        inside.then(|| arena.start().wrapping_add(offset).cast_const())
    }

    unsafe fn take(&self, reference: [u64; 2], offset: usize, into: *mut u8, bytes: usize) -> Result<(), LinkError> {
        let start = reference[1].checked_add(offset as u64).ok_or_else(|| no_such_memory(reference))?;
        if reference[0] != IN_PROCESS {
            let from = self.mapped([reference[0], start], bytes).ok_or_else(|| no_such_memory(reference))?;
            // SAFETY: `mapped` has checked that the bytes lie in the peer's arena, which is mapped as long as this
            // link; the caller vouches for `into`.
            unsafe { std::ptr::copy_nonoverlapping(from, into, bytes) };
            return Ok(());
        }
        // A process that got the number of a dead peer would be read in its stead; but the numbers come round slowly,
        // and the hang-up is noticed long before.
        // SAFETY: the caller vouches for `into`.
        unsafe { process_memory::read(self.with.peer_pid, start, into, bytes) }.map_err(|source| {
            match source.raw_os_error() {
                Some(libc::ESRCH) => LinkError::Closed,
                Some(libc::EFAULT) if self.withdrawn() => LinkError::Closed,
                Some(libc::EFAULT) => no_such_memory(reference),
                _ => LinkError::Io { doing: "copying from the memory of a process of this host", source },
            }
        })
    }

    fn withdrawn(&self) -> bool {
        // What was read before is ordered before the flag: if any of it was written after the withdrawal, the flag is
        // seen.
        fence(Ordering::SeqCst);
        self.theirs().withdrawn.0.load(Ordering::Relaxed) != 0
    }

    fn descriptors(&self, into: &mut Vec<Descriptor>) {
        let bell = Descriptor { fd: self.with.doorbell.fd(), write: false };
        if !into.contains(&bell) {
            into.push(bell);
        }
    }

    fn any_memory(&self) -> bool {
        self.with.reference_above.is_some() && self.with.peer_reads.is_ok()
    }

    fn peer_maps(&self) -> bool {
        self.with.reference_above.is_some() && self.with.peer_maps_arena
    }

    fn prepare_sleep(&mut self, asleep: bool) {
        self.asleep.set(asleep);
        if !asleep {
            self.mine().wake_up();
            self.with.doorbell.wake();
            return;
        }
        self.with.doorbell.doze();
        if self.refused.get() {
            self.mine().fall_asleep(WAKE_FOR_DATA | WAKE_FOR_ROOM);
        } else {
            self.mine().fall_asleep(WAKE_FOR_DATA);
        }
    }

    fn abandon(&mut self) {
        self.outbox.abandon();
        // Before anything that the owner writes to the memory from now on.
        self.mine().withdrawn.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn close(&mut self) {
        if !self.closed {
            // What finds no room is lost, as on a socket.
            let _ = self.flush(&mut |_| ());
            self.closed = true;
            self.abandon();
            let _ = rustix::net::shutdown(&self.with.socket, rustix::net::Shutdown::Both);
        }
    }

    /// What was flushed lies in the ring, which the peer has mapped: it outlives this process.
    fn settled(&mut self) -> bool {
        !self.outbox.is_blocked()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for ShmLink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ShmLink")
            .field("peer_process", &self.peer_process())
            .field("single_copy", &self.single_copy())
            .finish_non_exhaustive()
    }
}

#[cold]
fn no_such_memory(reference: [u64; 2]) -> LinkError {
    LinkError::Protocol { what: format!("has referred to memory that it does not have ({reference:x?})") }
}
