//! What went on in one iteration on one worker.

use serde::{Deserialize, Serialize};

/// What went on in one iteration on one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// `forward`, `backward`, `waiting` and `update` are the worker's own thread; `start-up` if operations have an
    /// artificial one; then the operations, by shard or all-to-all; then the frames, by link.
    pub lanes: Vec<Lane>,
}

/// What one part of a worker did. Spans of operations may overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// As in [`Timeline::lanes`].
    pub name: String,
    /// In the order of their starts.
    pub spans: Vec<Span>,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Since the start of the iteration, in seconds; negative for what began before.
    pub start_s: f64,
    /// Since the start of the iteration, in seconds.
    pub end_s: f64,
    /// A tensor, an operation, a frame.
    pub name: String,
    /// The tensor, where it is one.
    pub tensor: Option<usize>,
    /// The operation of the plan, where it belongs to one.
    pub operation: Option<usize>,
    /// Its bytes; 0 where it has none.
    pub bytes: u64,
}

impl Timeline {
    /// The lane of this name, if anything is in it.
    pub fn lane(&self, name: &str) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.name == name)
    }
}
