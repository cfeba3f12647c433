use std::cmp::Ordering;
use std::collections::BinaryHeap;

use paceline_plan::OperationNumber;

use super::event::Work;

/// A channel or a bus: carries the most urgent of what is on it.
#[derive(Default)]
pub(super) struct Line {
    pub waiting: BinaryHeap<OnLine>,
    pub carries: Option<(OnLine, Work)>,
    /// The last work's number: what was said of others before is void.
    pub last: u64,
}

/// What a line has left of an operation.
#[derive(Clone, Copy)]
pub(super) struct OnLine {
    /// In the dispatchers' order.
    pub place: usize,
    pub operation: OperationNumber,
    /// Seconds at full speed.
    pub left_s: f64,
}

impl Ord for OnLine {
    /// The greatest goes first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.place.cmp(&self.place)
    }
}

impl PartialOrd for OnLine {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OnLine {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OnLine {}
