//! How a sleeping rank is woken by peers that write to memory.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, Timespec, epoll};

/// One descriptor on which a rank sleeps for all its shared-memory links at once. It becomes readable when a peer has
/// put something into a ring while the rank was asleep, and when a peer's process has ended.
///
/// The links wait on it and drain it themselves ([`crate::Link::descriptors`], [`crate::Link::prepare_sleep`]). One
/// thread at a time may sleep on a doorbell: another would take its rings.
#[derive(Debug)]
pub struct Doorbell {
    /// Peers write to it.
    bell: OwnedFd,
    /// Watches the bell and the sockets of all peers.
    watch: OwnedFd,
    /// Is somebody about to sleep, who must drain it afterwards?
    dozing: AtomicBool,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Never used twice: a late event cannot be taken for another peer's.
    next: u64,
    hung_up: BTreeMap<u64, Arc<AtomicBool>>,
}

/// The token of the bell itself.
const BELL: u64 = 0;

impl Doorbell {
    /// A doorbell that nobody has rung.
    pub fn new() -> io::Result<Doorbell> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered: each ring is reported once, and nobody needs to read the counter.
        let ring = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&watch, &bell, epoll::EventData::new_u64(BELL), ring)?;
        let dozing = AtomicBool::new(false);
        Ok(Doorbell { bell, watch, dozing, peers: Mutex::new(Peers { next: BELL + 1, hung_up: BTreeMap::new() }) })
    }

    /// Readable when somebody has rung or hung up since the last [`Doorbell::drain`]. Do not read from it.
    pub fn fd(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// A link has announced a sleep.
    pub(super) fn doze(&self) {
        self.dozing.store(true, Ordering::Relaxed);
    }

    /// The sleep is over. The first of the links to say so drains the doorbell, before any of them is polled again.
    pub(super) fn wake(&self) {
        if self.dozing.swap(false, Ordering::Relaxed) {
            // It cannot fail: the descriptor is an epoll of ours and the buffer is on the stack.
            let _ = self.drain();
        }
    }

    /// Makes it unreadable again and tells the links whose peers have hung up. Poll the links after it: what happens
    /// after this call makes the doorbell readable anew. One system call. True if anything had happened.
    fn drain(&self) -> io::Result<bool> {
        let mut happened = false;
        loop {
            let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 16];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (events, _) = match epoll::wait(&self.watch, &mut events, Some(&now)) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            for event in &*events {
                happened = true;
                let token = event.data.u64();
                if token != BELL
                    && let Some(hung_up) = self.peers().hung_up.get(&token)
                {
                    hung_up.store(true, Ordering::Release);
                }
            }
            if events.len() < 16 {
                return Ok(happened);
            }
        }
    }

    /// Watches a peer's socket, over which nothing more is expected: whatever happens on it is the end. `hung_up` is
    /// set by [`Doorbell::drain`] once, and the doorbell is readable until then.
    pub(super) fn watch(self: &Arc<Doorbell>, socket: BorrowedFd<'_>, hung_up: Arc<AtomicBool>) -> io::Result<Watched> {
        let mut peers = self.peers();
        let token = peers.next;
        peers.next += 1;
        peers.hung_up.insert(token, hung_up);
        drop(peers);
        let watched = Watched { doorbell: Arc::clone(self), token };
        let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        epoll::add(&self.watch, socket, epoll::EventData::new_u64(token), events)?;
        Ok(watched)
    }

    /// What peers ring.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket being watched: closing the socket ends the watch, dropping this forgets the flag.
pub(super) struct Watched {
    doorbell: Arc<Doorbell>,
    token: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.doorbell.peers().hung_up.remove(&self.token);
    }
}

/// Rings a peer's bell.
pub(super) fn ring(bell: BorrowedFd<'_>) {
    // It fails only if the counter is about to overflow, which means that it has been rung, or if the descriptor is no
    // bell, which is the peer's own loss.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(doorbell: &Doorbell) -> bool {
        let mut fds = [PollFd::new(&doorbell.watch, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
    }

    #[test]
    fn every_ring_is_reported_once() {
        let doorbell = Doorbell::new().expect("a doorbell");
        assert!(!readable(&doorbell));
        for _ in 0..3 {
            ring(doorbell.bell());
            ring(doorbell.bell());
            assert!(readable(&doorbell));
            assert!(doorbell.drain().expect("drain"));
            assert!(!readable(&doorbell));
            assert!(!doorbell.drain().expect("drain"));
        }
    }

    #[test]
    fn a_hang_up_is_reported_once_and_to_its_link_only() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let doorbell = Arc::new(Doorbell::new().expect("a doorbell"));
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair");
        let ((mine, theirs), (other, _open)) = (pair(), pair());
        let flags = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let _watched = [
            doorbell.watch(mine.as_fd(), Arc::clone(&flags[0])).expect("watch"),
            doorbell.watch(other.as_fd(), Arc::clone(&flags[1])).expect("watch"),
        ];
        assert!(!readable(&doorbell));
        drop(theirs);
        assert!(readable(&doorbell));
        assert!(doorbell.drain().expect("drain"));
        assert!(!readable(&doorbell));
        assert_eq!(flags.map(|flag| flag.load(Ordering::Acquire)), [true, false]);
    }
}
