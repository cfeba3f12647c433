//! How an assignment goes on for more iterations while it is being carried out: worker 0 sends each shard a word.

use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Communicator, Pending};

/// No other messages go between workers and shards.
const TAG: u32 = 0;

/// Up to where the iterations go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// The end of the iterations.
    pub end: u64,
    /// Is this not the last word?
    pub more: bool,
}

impl Extension {
    /// Worker 0 says it to a shard, without waiting.
    pub fn send(self, group: &Communicator) -> Result<(), CommError> {
        let mut word = group.alloc(2)?;
        word.copy_from_slice(&[self.end as i64, i64::from(self.more)]);
        // It goes its way when the handle is gone; should it fail, so does everything else.
        drop(group.start_send(word, group.world_size() - 1, TAG, &CallOptions::default())?);
        Ok(())
    }
}

/// The next word of worker 0, for which a shard waits while it does other things.
pub(crate) struct Expected(Pending<i64>);

impl Expected {
    /// Begins to wait.
    pub fn new(group: &Communicator, timeout: Duration) -> Result<Expected, CommError> {
        let options = CallOptions { timeout: Some(timeout), ..CallOptions::default() };
        Ok(Expected(group.start_receive(group.alloc(2)?, 0, TAG, &options)?))
    }

    /// Has it come?
    pub fn is_here(&self) -> bool {
        self.0.is_done()
    }

    /// The word. A negative end is none.
    pub fn take(self) -> Result<Extension, CommError> {
        let word = self.0.wait()?;
        Ok(Extension { end: word[0].try_into().unwrap_or(0), more: word[1] != 0 })
    }
}
