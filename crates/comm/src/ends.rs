//! Tells a thread that operations have ended.

use std::sync::Arc;
use std::thread::Thread;

use crate::Communicator;
use crate::world::World;

/// While it lives, a thread is unparked at ends: see [`Communicator::wake_at_ends`].
#[must_use = "dropping it ends it"]
pub struct WakeAtEnds {
    world: Arc<World>,
    number: u64,
}

impl Communicator {
    /// Unparks `thread` ([`Thread::unpark`]) whenever operations of this rank have ended, of whichever communicator:
    /// for a thread that has several in the background and does something as soon as any of them is done. It learns
    /// which by [`crate::Pending::is_done`]. An end costs a system call if the thread is parked. Asked for several times,
    /// it lasts until the last of what was given is dropped.
    pub fn wake_at_ends(&self, thread: Thread) -> WakeAtEnds {
        let number = self.world.context.listen(thread);
        WakeAtEnds { world: self.world.clone(), number }
    }
}

impl Drop for WakeAtEnds {
    fn drop(&mut self) {
        self.world.context.listen_no_more(self.number);
    }
}
