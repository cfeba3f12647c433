//! What is remembered of each call, if the caller wants it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline_engine::{Completion, Tuning};
use paceline_plan::{CollectiveKind, DataType, OperationKey, Protocol};

use crate::{Communicator, Origin};

/// One call on one rank. Times count from when this rank connected; see [`Communicator::record_calls`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The operation's name, the same on all ranks; `key.communicator` says which communicator.
    pub key: OperationKey,
    /// What it did.
    pub collective: CollectiveKind,
    /// The type of its elements.
    pub data_type: DataType,
    /// The bytes of this rank's larger side.
    pub bytes: usize,
    /// The algorithm that ran; `program` for one of the caller's.
    pub algorithm: &'static str,
    /// How messages travelled, as the caller chose.
    pub protocol: Protocol,
    /// The bytes of a block in one tile.
    pub chunk_bytes: usize,
    /// The lanes that the caller admitted; 0 is all.
    pub lanes: u16,
    /// The threads that the caller admitted to a combination.
    pub reducing_threads: u16,
    /// When the call was made.
    pub start: Duration,
    /// When it ended here.
    pub end: Duration,
    /// When the last data from a peer arrived; None if none was needed.
    pub last_arrival: Option<Duration>,
    /// Did it fail?
    pub failed: bool,
    /// [`crate::CallOptions::tag`].
    pub tag: u64,
    /// [`crate::CallOptions::origin`].
    pub origin: Origin,
}

/// Calls that have ended, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The calls.
    pub calls: Vec<Record>,
    /// Calls that were forgotten because nobody took them in time: they are older than all in `calls`.
    pub dropped: u64,
}

impl Communicator {
    /// Remembers the calls that start from now on, of all communicators of this rank, once they have ended: at most
    /// `capacity` of them, of more the latest. 0 stops it, and forgets. Without this, a call pays nothing; with it, some
    /// readings of the clock, and the memory for `capacity` records of about 150 bytes.
    pub fn record_calls(&self, capacity: usize) {
        self.world.context.with(|core| {
            core.records.resize(capacity);
            self.world.recording.store(core.describes_calls(), Ordering::Relaxed);
        });
    }

    /// Takes the calls that have ended since the last time.
    pub fn take_records(&self) -> Records {
        self.world.context.with(|core| core.records.take())
    }

    /// Are calls remembered?
    pub fn is_recording(&self) -> bool {
        self.world.context.with(|core| core.records.wanted())
    }

    /// The latest calls that have ended, oldest first: at most `count`. They stay for whoever takes them.
    pub fn latest_records(&self, count: usize) -> Vec<Record> {
        self.world.context.with(|core| core.records.latest(count))
    }
}

/// The records of a rank: a ring of bounded length.
#[derive(Default)]
pub(crate) struct Ring {
    calls: VecDeque<Record>,
    capacity: usize,
    dropped: u64,
}

/// What is known of a call before it starts.
#[derive(Clone, Copy)]
pub(crate) struct Described {
    pub key: OperationKey,
    pub collective: CollectiveKind,
    pub data_type: DataType,
    pub bytes: usize,
    pub algorithm: &'static str,
    pub chunk_bytes: usize,
    pub tuning: Tuning,
    pub tag: u64,
    pub origin: Origin,
    /// Set when it is posted.
    pub start: Duration,
}

impl Ring {
    pub fn wanted(&self) -> bool {
        self.capacity > 0
    }

    fn resize(&mut self, capacity: usize) {
        *self = Ring { calls: VecDeque::with_capacity(capacity), capacity, dropped: 0 };
    }

    fn take(&mut self) -> Records {
        Records { calls: self.calls.drain(..).collect(), dropped: std::mem::take(&mut self.dropped) }
    }

    fn latest(&self, count: usize) -> Vec<Record> {
        self.calls.range(self.calls.len().saturating_sub(count)..).cloned().collect()
    }

    pub fn add(&mut self, call: &Described, completion: &Completion, end: Duration) {
        if !self.wanted() {
            return;
        }
        if self.calls.len() == self.capacity {
            self.calls.pop_front();
            self.dropped += 1;
        }
        self.calls.push_back(Record {
            key: call.key,
            collective: call.collective,
            data_type: call.data_type,
            bytes: call.bytes,
            algorithm: call.algorithm,
            protocol: call.tuning.protocol,
            chunk_bytes: call.chunk_bytes,
            lanes: call.tuning.lanes,
            reducing_threads: call.tuning.reducing_threads,
            start: call.start,
            end,
            last_arrival: completion.last_arrival,
            failed: completion.outcome.is_err(),
            tag: call.tag,
            origin: call.origin,
        });
    }
}
