use std::cmp::Ordering;

use paceline_plan::{OperationNumber, TensorId};

use super::Lane;

/// What happens, and when.
pub(super) struct Event {
    pub time: f64,
    /// Counts them: what was scheduled first happens first.
    pub number: u64,
    pub kind: Kind,
}

/// What.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A line is through with what it carries.
    Carried { line: usize, work: u64 },
    /// An operation is through with a stage, or has arrived.
    Moved { operation: OperationNumber },
    /// A server's processor is through.
    Worked { server: usize },
    /// A class is through with what it computes.
    Computed { class: usize, work: u64 },
}

/// Work that slows down and speeds up.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Its number; another one after each change.
    pub number: u64,
    /// Seconds left at full speed, at this time.
    pub left_s: f64,
    pub since: f64,
    /// Seconds for each of them.
    pub factor: f64,
    pub began: f64,
    pub lane: Lane,
    pub tensor: Option<TensorId>,
}

impl Work {
    /// Goes on at another speed, if it is another.
    pub fn change(&mut self, factor: f64, now: f64) -> bool {
        if factor == self.factor {
            return false;
        }
        self.left_s = self.left_at(now);
        (self.since, self.factor) = (now, factor);
        true
    }

    /// Seconds left at full speed.
    pub fn left_at(&self, now: f64) -> f64 {
        (self.left_s - (now - self.since) / self.factor).max(0.0)
    }
}

impl Kind {
    /// Of what happens at the same time, what workers are through with comes last: it finds everything that has arrived.
    fn place(&self) -> u8 {
        u8::from(matches!(self, Kind::Computed { .. }))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = self.time.total_cmp(&other.time);
        by_time.then(self.kind.place().cmp(&other.kind.place())).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
