//! Operations in which nothing happens are reported, long before their deadline.

use std::fmt;
use std::time::Duration;

use paceline_plan::{CollectiveKind, OperationKey};

use crate::engine::Engine;
use crate::failure::Waiting;
use crate::interface::Time;
use crate::operation::Operation;

/// The distance between the reports of a stall doubles so many times.
const DOUBLINGS_MAX: u32 = 10;

/// An operation in which nothing has happened for a while. It is still pending, and may still go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Which.
    pub key: OperationKey,
    /// What it is.
    pub kind: Option<CollectiveKind>,
    /// For how long.
    pub still: Duration,
    /// For whom it waits: those who have not started it, and those who have and have not delivered.
    pub waiting: Vec<Waiting>,
}

/// What was reported of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallReports {
    /// The last progress before the stall that was reported.
    since: Time,
    /// How often it was reported, and when last.
    count: u32,
    at: Time,
}

impl Engine {
    /// The next report of an operation that does not move: one when it has stood still for [`crate::Config::stall`],
    /// the next after as long again, and each further one after twice the time of the one before. Of reports that nobody
    /// asks for the latest of each operation is kept.
    pub fn stalled(&mut self) -> Option<Stall> {
        self.stalls.pop_front()
    }

    /// When the operation is reported next, if nothing happens until then.
    pub(crate) fn stall_due(&self, op: &Operation) -> Time {
        if self.config.stall.is_zero() {
            return Time::MAX;
        }
        if op.stall.count == 0 || op.stall.since != op.last_progress {
            return op.last_progress.saturating_add(self.config.stall);
        }
        let apart = self.config.stall.saturating_mul(1 << (op.stall.count - 1).min(DOUBLINGS_MAX));
        op.stall.at.saturating_add(apart)
    }

    pub(crate) fn look_for_stall(&mut self, index: u32) {
        let op = &self.ops[index as usize];
        if self.now < self.stall_due(op) {
            return;
        }
        let last = op.last_progress;
        let count = if op.stall.since == last { op.stall.count.saturating_add(1) } else { 1 };
        let stall = Stall {
            key: op.key,
            kind: CollectiveKind::from_code(op.signature.collective),
            still: self.now - last,
            waiting: self.waiting(index),
        };
        self.ops[index as usize].stall = StallReports { since: last, count, at: self.now };
        self.stalls.retain(|earlier| earlier.key != stall.key);
        self.stalls.push_back(stall);
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map_or("an operation", CollectiveKind::name);
        write!(f, "{kind} ({}) has not moved for {:.1} s", self.key, self.still.as_secs_f64())?;
        for waiting in &self.waiting {
            let what = if waiting.started { "has started it and not delivered" } else { "has not started it" };
            write!(f, "; rank {} {what}", waiting.rank)?;
        }
        Ok(())
    }
}
