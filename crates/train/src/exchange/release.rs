//! The thread that releases credit: operations that end let others start while the trainer computes.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_comm::Communicator;

use super::operations::Operations;

/// No sleep is longer.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How long nothing may end before a start-up waits no longer, at least. A false alarm costs a little order.
const PATIENCE: Duration = Duration::from_millis(20);

/// Dropping it ends the thread.
pub(super) struct ReleaseThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReleaseThread {
    /// `slowed`: how many times slower than real the links are.
    pub(super) fn start(operations: Arc<Operations>, communicator: Communicator, slowed: f64) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, patience) = (stop.clone(), PATIENCE.mul_f64(slowed));
        let thread = thread::Builder::new().name("paceline-credit".into()).spawn(move || {
            // A start-up time is a few times as long as the slack that a sleep has by default.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let _wake = communicator.wake_at_ends(thread::current());
            operations.lock().thread = Some(thread::current());
            while !stopped.load(Ordering::Acquire) {
                let until = operations.release(patience);
                let sleep = until.map_or(SLEEP_MAX, |until| until.saturating_duration_since(Instant::now()));
                thread::park_timeout(sleep.min(SLEEP_MAX));
            }
        })?;
        Ok(ReleaseThread { stop, thread: Some(thread) })
    }
}

impl Drop for ReleaseThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
    }
}
