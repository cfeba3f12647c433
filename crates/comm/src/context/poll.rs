//! How the driver sleeps, and is woken.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use paceline_fabric::Descriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Context;

impl Context {
    /// One system call on everything that can wake this rank.
    pub(super) fn poll(&self, descriptors: &[Descriptor], timeout: Duration) {
        /// More links than this are watched through an allocated list.
        const INLINE: usize = 64;
        // SAFETY: the descriptors belong to links, which are kept open as long as the core.
        let watch = |fd: RawFd, flags| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, flags);
        let wake = watch(self.wake.as_raw_fd(), PollFlags::IN);
        let links = descriptors.iter().map(|descriptor| {
            let write = if descriptor.write { PollFlags::OUT } else { PollFlags::empty() };
            watch(descriptor.fd, PollFlags::IN | write)
        });
        let time = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // An interrupted or refused poll is a short sleep: the caller looks at everything again.
        let rung = if descriptors.len() < INLINE {
            let mut list = [const { None }; INLINE];
            let mut count = 0;
            for fd in [wake].into_iter().chain(links) {
                list[count] = Some(fd);
                count += 1;
            }
            let mut list = list.map(|fd| fd.unwrap_or_else(|| watch(self.wake.as_raw_fd(), PollFlags::IN)));
            is_rung(&mut list[..count], &time)
        } else {
            let mut list: Vec<PollFd<'_>> = [wake].into_iter().chain(links).collect();
            is_rung(&mut list, &time)
        };
        if rung {
            let _ = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
        }
    }

    /// Wakes the driver, now or from its next sleep.
    pub(super) fn ring(&self) {
        // Fails only when the counter is full, and then the driver wakes anyway.
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
    }
}

/// Sleeps until something happens on any of them, or the time is over. Did it happen on the first?
fn is_rung(list: &mut [PollFd<'_>], time: &Timespec) -> bool {
    poll(list, Some(time)).is_ok() && !list[0].revents().is_empty()
}
