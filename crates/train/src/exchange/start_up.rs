//! An artificial start-up time per operation.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use paceline_plan::OperationNumber;

/// A time that passes before each operation is started, one operation after the other: what a coordinator between the
/// workers costs, which Paceline has not.
pub(super) struct StartUp {
    each: Duration,
    /// Is an operation's start-up over only when no other travels?
    alone: bool,
    /// Once it need not be.
    overlooked: bool,
    /// Operations, and when their start-up is over; in order.
    waiting: VecDeque<(OperationNumber, Instant)>,
    /// When the last start-up is over.
    free: Option<Instant>,
    /// While somebody wants to know.
    noted: Option<Vec<NotedStartUp>>,
}

/// An operation's start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedStartUp {
    pub(crate) operation: OperationNumber,
    pub(crate) began: Instant,
    pub(crate) over: Instant,
}

impl StartUp {
    pub(super) fn new(each: Duration, alone: bool) -> StartUp {
        StartUp { each, alone, overlooked: false, waiting: VecDeque::new(), free: None, noted: None }
    }

    /// May another operation begin its start-up, while others travel or not?
    pub(super) fn admits(&self, busy: bool) -> bool {
        !self.alone || (self.waiting.is_empty() && (!busy || self.overlooked))
    }

    /// What travels does not keep the next operation from its start-up.
    pub(super) fn overlook(&mut self) {
        self.overlooked = true;
    }

    /// An operation begins its start-up, or waits behind others for it.
    pub(super) fn begin(&mut self, operation: OperationNumber, now: Instant) {
        let began = self.free.map_or(now, |free| free.max(now));
        let over = began + self.each;
        self.free = Some(over);
        if let Some(noted) = &mut self.noted {
            noted.push(NotedStartUp { operation, began, over });
        }
        self.overlooked = false;
        self.waiting.push_back((operation, over));
    }

    /// Notes start-ups from here on, or no more. Those noted so far, in their order.
    pub(super) fn note(&mut self, note: bool) -> Vec<NotedStartUp> {
        mem::replace(&mut self.noted, note.then(Vec::new)).unwrap_or_default()
    }

    /// The next operation whose start-up is over.
    pub(super) fn over(&mut self, now: Instant) -> Option<OperationNumber> {
        self.waiting.pop_front_if(|(_, over)| *over <= now).map(|(operation, _)| operation)
    }

    /// When the next start-up is over.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, over)| *over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Duration = Duration::from_micros(200);

    #[test]
    fn start_ups_follow_each_other() {
        let mut start_up = StartUp::new(EACH, false);
        let begin = Instant::now();
        start_up.begin(5, begin - 9 * EACH);
        assert_eq!(start_up.over(begin), Some(5));
        assert!(start_up.note(true).is_empty(), "nobody wanted to know");
        start_up.begin(7, begin);
        start_up.begin(3, begin);
        let noted = |operation, began| NotedStartUp { operation, began, over: began + EACH };
        assert_eq!(start_up.note(false), [noted(7, begin), noted(3, begin + EACH)]);
        assert!(start_up.admits(true));
        assert_eq!(start_up.next(), Some(begin + EACH));
        assert_eq!(start_up.over(begin + EACH / 2), None);
        assert_eq!(start_up.over(begin + EACH), Some(7));
        assert_eq!(start_up.over(begin + EACH), None);
        assert_eq!((start_up.over(begin + 2 * EACH), start_up.next()), (Some(3), None));
        // After a pause the next one is not early.
        start_up.begin(4, begin + 9 * EACH);
        assert_eq!(start_up.next(), Some(begin + 10 * EACH));
    }

    #[test]
    fn alone_means_alone() {
        let mut start_up = StartUp::new(EACH, true);
        assert!(start_up.admits(false) && !start_up.admits(true));
        start_up.begin(0, Instant::now());
        assert!(!start_up.admits(false));
        // Except for one, where nothing moves any more.
        let mut start_up = StartUp::new(EACH, true);
        start_up.overlook();
        assert!(start_up.admits(true));
        start_up.begin(0, Instant::now());
        assert_eq!(start_up.over(Instant::now() + EACH), Some(0));
        assert!(!start_up.admits(true));
    }
}
