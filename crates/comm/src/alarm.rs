//! A descriptor that can be read from a moment on.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Wakes who polls it. One thread at a time sets it and sleeps.
pub(crate) struct Alarm {
    timer: OwnedFd,
    set: AtomicBool,
}

impl Alarm {
    /// One that is not set.
    pub fn new() -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Alarm { timer, set: AtomicBool::new(false) })
    }

    pub fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Sets it to a moment, or to none. Whatever it was set to before is forgotten.
    pub fn set(&self, moment: Option<Instant>) {
        if !self.set.swap(moment.is_some(), Ordering::Relaxed) && moment.is_none() {
            return;
        }
        // Zero would mean never.
        let left = moment.map(|moment| moment.saturating_duration_since(Instant::now()).as_nanos().max(1));
        let left = left.map_or(0, |left| left.min(i64::MAX as u128) as i64);
        let it_value = Timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It cannot fail: the descriptor is a timer of ours, and the time is a time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn readable(alarm: &Alarm, within: Duration) -> bool {
        let time = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        poll(&mut [PollFd::new(&alarm.timer, PollFlags::IN)], Some(&time)).expect("poll") == 1
    }

    #[test]
    fn it_wakes_at_its_moment_and_only_then() {
        let (alarm, long) = (Alarm::new().expect("a timer"), Duration::from_secs(20));
        assert!(!readable(&alarm, Duration::ZERO));
        let moment = Instant::now() + Duration::from_millis(3);
        alarm.set(Some(moment));
        assert!(readable(&alarm, long) && Instant::now() >= moment);
        alarm.set(Some(Instant::now() + long));
        assert!(!readable(&alarm, Duration::from_millis(1)), "an earlier moment is forgotten");
        alarm.set(Some(moment));
        assert!(readable(&alarm, long), "a moment that has passed");
        alarm.set(None);
        assert!(!readable(&alarm, Duration::from_millis(1)));
    }
}
