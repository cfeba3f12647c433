//! When work is done.

use std::collections::HashMap;

use super::events::{Event, Kind};

/// Translates a moment of the CPU's program into one of the computation, as if the program waited for its GPU there: when all
/// work is done that was launched until then, and not before then. A GPU works off in order what is launched (kernels of
/// communication, which have a stream of their own, are left out). Where the CPU computes, both moments are the same.
pub(super) struct Clock {
    /// When something was launched, and when it and all before it is done, in µs; in the order of the launches.
    done: Vec<(f64, f64)>,
}

impl Clock {
    pub(super) fn new(events: &[Event]) -> Clock {
        let mut ends: HashMap<u64, f64> = HashMap::new();
        for event in events {
            if let Kind::Kernel { correlation } = event.kind {
                let end = ends.entry(correlation).or_insert(event.end_us);
                *end = end.max(event.end_us);
            }
        }
        let launched = |event: &Event| match event.kind {
            Kind::Launch { correlation } => Some((event.start_us, *ends.get(&correlation)?)),
            _ => None,
        };
        let mut done: Vec<(f64, f64)> = events.iter().filter_map(launched).collect();
        done.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut latest = f64::NEG_INFINITY;
        for (_, end) in &mut done {
            latest = latest.max(*end);
            *end = latest;
        }
        Clock { done }
    }

    /// Does a GPU compute?
    pub(super) fn is_of_gpu(&self) -> bool {
        !self.done.is_empty()
    }

    /// In µs; never falls when `cpu_us` rises.
    pub(super) fn at(&self, cpu_us: f64) -> f64 {
        let launched = self.done.partition_point(|(launch, _)| *launch <= cpu_us);
        launched.checked_sub(1).map_or(cpu_us, |last| cpu_us.max(self.done[last].1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, start_us: f64, end_us: f64) -> Event {
        Event { kind, name: String::new(), thread: 0, start_us, end_us }
    }

    #[test]
    fn a_cpu_is_its_own_clock() {
        let clock = Clock::new(&[]);
        assert!((clock.at(3.0), clock.is_of_gpu()) == (3.0, false));
    }

    #[test]
    fn a_gpu_is_done_when_all_before_is() {
        let events = [
            event(Kind::Kernel { correlation: 1 }, 10.0, 50.0),
            event(Kind::Launch { correlation: 2 }, 3.0, 4.0),
            event(Kind::Launch { correlation: 1 }, 1.0, 2.0),
            // Done before the one that was launched before it, on another stream.
            event(Kind::Kernel { correlation: 2 }, 12.0, 20.0),
            event(Kind::Launch { correlation: 3 }, 5.0, 6.0),
            event(Kind::Kernel { correlation: 3 }, 60.0, 70.0),
            event(Kind::Kernel { correlation: 3 }, 61.0, 75.0),
            // Launches that no kernel follows, and kernels that nobody launched.
            event(Kind::Launch { correlation: 4 }, 7.0, 8.0),
            event(Kind::Kernel { correlation: 5 }, 100.0, 200.0),
        ];
        let clock = Clock::new(&events);
        // Before the first launch, and when the GPU has been idle for long, the program's own time counts.
        let times = [0.0, 1.0, 2.9, 3.0, 5.0, 80.0].map(|cpu_us| clock.at(cpu_us));
        assert_eq!(times, [0.0, 50.0, 50.0, 50.0, 75.0, 80.0]);
        assert!(clock.is_of_gpu());
    }
}
