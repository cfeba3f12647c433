use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that ask the launcher to stop.
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

/// Becomes readable when one has come.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

impl Signals {
    /// From now on they are caught.
    pub fn catch() -> io::Result<Signals> {
        // Whoever started us may ignore it, and then the kernel would collect the ranks before we know how they ended.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let (read, write) = UnixStream::pair()?;
        let mut wanted = vec![SIGINT, SIGTERM];
        if !hangup_is_ignored() {
            wanted.push(SIGHUP);
        }
        Ok(Signals { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, &wanted)? })
    }

    /// One that has come since, if any.
    pub fn next(&mut self) -> Option<Signal> {
        self.delivery.pending().next().and_then(Signal::from_named_raw)
    }
}

/// Was the launcher started by `nohup`, which means it to survive the terminal?
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}
