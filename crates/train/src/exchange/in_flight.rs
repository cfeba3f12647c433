//! The operations that travel, in the order in which they were started, and what has gone past them.

use std::time::Instant;

use paceline_plan::OperationNumber;

/// Operations that travel and have not been seen to end.
#[derive(Default)]
pub(super) struct InFlight(Vec<Travelling>);

struct Travelling {
    operation: OperationNumber,
    elements: usize,
    began: Instant,
    /// Elements of operations that were started later and have ended.
    passed: usize,
    overtaken: bool,
    ended: bool,
}

/// What has become of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Ended {
        operation: OperationNumber,
        began: Instant,
        /// Others went past it, so it has not travelled all that time.
        overtaken: bool,
    },
    /// As much as it carries itself was started later and has ended: links serve what is more urgent, or another rank has not
    /// started it. Told once.
    Overtaken(OperationNumber),
}

impl InFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn start(&mut self, operation: OperationNumber, elements: usize, began: Instant) {
        self.0.push(Travelling { operation, elements, began, passed: 0, overtaken: false, ended: false });
    }

    /// Forgets an operation that has ended, whatever it has gone past. Was it there?
    pub(super) fn remove(&mut self, operation: OperationNumber) -> bool {
        let Some(place) = self.0.iter().position(|one| one.operation == operation) else { return false };
        self.0.swap_remove(place);
        true
    }

    /// Tells what is new, and forgets what has ended.
    pub(super) fn look(&mut self, has_ended: impl Fn(OperationNumber) -> bool, mut tell: impl FnMut(News)) {
        let mut passing = 0;
        for one in self.0.iter_mut().rev() {
            let Travelling { operation, began, .. } = *one;
            if has_ended(operation) {
                one.ended = true;
                tell(News::Ended { operation, began, overtaken: one.overtaken });
                passing += one.elements;
                continue;
            }
            one.passed += passing;
            if !one.overtaken && one.passed > 0 && one.passed >= one.elements {
                one.overtaken = true;
                tell(News::Overtaken(operation));
            }
        }
        self.0.retain(|one| !one.ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(in_flight: &mut InFlight, ended: &[OperationNumber]) -> Vec<News> {
        let mut news = Vec::new();
        in_flight.look(|operation| ended.contains(&operation), |one| news.push(one));
        news
    }

    #[test]
    fn what_as_much_has_gone_past_is_overtaken_once() {
        let (mut in_flight, began) = (InFlight::default(), Instant::now());
        for (operation, elements) in [(7, 100), (3, 60), (5, 50), (4, 10)] {
            in_flight.start(operation, elements, began);
        }
        let ended = |operation, overtaken| News::Ended { operation, began, overtaken };
        assert_eq!(look(&mut in_flight, &[]), []);
        // 50 of later ones have ended, which is less than either carries.
        assert_eq!(look(&mut in_flight, &[5]), [ended(5, false)]);
        // 60, as much as operation 3 carries.
        assert_eq!(look(&mut in_flight, &[4]), [ended(4, false), News::Overtaken(3)]);
        in_flight.start(9, 40, began);
        // Operation 3 is told no more, and none has gone past one that was started after it.
        assert_eq!(look(&mut in_flight, &[9]), [ended(9, false), News::Overtaken(7)]);
        in_flight.start(2, 1, began);
        assert_eq!(look(&mut in_flight, &[3]), [ended(3, true)]);
        assert_eq!(look(&mut in_flight, &[2, 7]), [ended(2, false), ended(7, true)]);
        assert!(in_flight.is_empty() && look(&mut in_flight, &[]).is_empty());
    }

    #[test]
    fn what_was_started_before_goes_past_nothing() {
        let (mut in_flight, began) = (InFlight::default(), Instant::now());
        [0, 1, 2].into_iter().for_each(|operation| in_flight.start(operation, 5, began));
        for operation in 0..3 {
            let ended = News::Ended { operation, began, overtaken: false };
            assert_eq!(look(&mut in_flight, &[operation]), [ended]);
        }
        in_flight.start(3, 0, began);
        assert_eq!(look(&mut in_flight, &[]), [], "nothing has gone past it");
        assert!(in_flight.remove(3) && !in_flight.remove(3) && in_flight.is_empty());
    }
}
