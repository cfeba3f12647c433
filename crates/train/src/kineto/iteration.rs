//! Cuts a trace into iterations.

use super::TraceError;
use super::events::{Event, Kind, Trace};

/// What an iteration consists of. Times are the CPU's, in µs.
#[derive(Clone, Debug)]
pub(super) struct Iteration<'a> {
    /// Operations before backward, on the thread that calls the optimiser; in order of their starts, and of two that start
    /// together the longer one first.
    pub(super) forward: Vec<&'a Event>,
    /// Backward begins.
    pub(super) backward_us: f64,
    /// In the order in which they become final; at least one.
    pub(super) gradients: Vec<Gradient<'a>>,
    /// The optimiser begins and ends.
    pub(super) update_us: (f64, f64),
}

/// A parameter's gradient has been accumulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gradient<'a> {
    /// Of the parameter; none if shapes were not recorded. Empty: a scalar.
    pub(super) shape: Option<&'a [usize]>,
    pub(super) done_us: f64,
}

/// Once for each parameter, when its gradient is final.
pub(super) const ACCUMULATES: &str = "torch::autograd::AccumulateGrad";
const BACKWARD: &str = "autograd::engine::evaluate_function: ";

/// The iterations of a trace that have forward, backward and the optimiser, in their order.
///
/// # Errors
/// There is none; the reason.
pub(super) fn iterations(trace: &Trace) -> Result<Vec<Iteration<'_>>, TraceError> {
    let marks = Marks::new(&trace.events);
    if marks.operations.is_empty() {
        return Err(TraceError::NoOperations);
    }
    if marks.updates.is_empty() {
        return Err(TraceError::NoOptimizer);
    }
    let mut iterations: Vec<Iteration<'_>> = Vec::new();
    let mut before_us = f64::NEG_INFINITY;
    for update in &marks.updates {
        match marks.iteration(before_us, update) {
            Some(iteration) => iterations.push(iteration),
            // A second optimiser of the same iteration, or one within another.
            None => iterations
                .last_mut()
                .into_iter()
                .for_each(|last| last.update_us.1 = last.update_us.1.max(update.end_us)),
        }
        before_us = before_us.max(update.end_us);
    }
    if iterations.is_empty() { Err(TraceError::NoGradients) } else { Ok(iterations) }
}

/// Where things happen, each in the order of its starts.
struct Marks<'a> {
    operations: Vec<&'a Event>,
    /// Visits of the graph's nodes.
    backward: Vec<&'a Event>,
    gradients: Vec<&'a Event>,
    updates: Vec<&'a Event>,
}

impl<'a> Marks<'a> {
    fn new(events: &'a [Event]) -> Marks<'a> {
        let mut marks =
            Marks { operations: Vec::new(), backward: Vec::new(), gradients: Vec::new(), updates: Vec::new() };
        for event in events {
            match &event.kind {
                Kind::Update => marks.updates.push(event),
                Kind::Operation { .. } if event.name == ACCUMULATES => marks.gradients.push(event),
                Kind::Operation { .. } if event.name.starts_with(BACKWARD) => marks.backward.push(event),
                Kind::Operation { .. } => marks.operations.push(event),
                _ => {}
            }
        }
        let all = [&mut marks.operations, &mut marks.backward, &mut marks.gradients, &mut marks.updates];
        for events in all {
            events.sort_by(|one, other| {
                one.start_us.total_cmp(&other.start_us).then(other.end_us.total_cmp(&one.end_us))
            });
        }
        marks
    }

    /// What lies between the end of the update before and this one; None if there are no gradients.
    fn iteration(&self, before_us: f64, update: &'a Event) -> Option<Iteration<'a>> {
        let gradients = between(&self.gradients, before_us, update.start_us);
        let first = gradients.first()?;
        let visit = between(&self.backward, before_us, update.start_us).first();
        let backward_us = visit.map_or(first.start_us, |visit| visit.start_us.min(first.start_us));
        let operations = between(&self.operations, before_us, backward_us);
        let forward = operations.iter().filter(|operation| operation.thread == update.thread).copied().collect();
        let mut gradients: Vec<Gradient<'a>> = gradients.iter().map(|&event| Gradient::of(event)).collect();
        gradients.sort_by(|one, other| one.done_us.total_cmp(&other.done_us));
        Some(Iteration { forward, backward_us, gradients, update_us: (update.start_us, update.end_us) })
    }
}

/// Those that start between the two.
fn between<'s, 'a>(events: &'s [&'a Event], from_us: f64, to_us: f64) -> &'s [&'a Event] {
    let start = events.partition_point(|event| event.start_us < from_us);
    let end = events.partition_point(|event| event.start_us < to_us);
    events.get(start..end).unwrap_or_default()
}

impl<'a> Gradient<'a> {
    /// Of the event of its accumulation, whose first argument it is. (A shape that is empty although shapes were recorded is
    /// that of a scalar; the argument itself is there.)
    fn of(event: &'a Event) -> Gradient<'a> {
        let shape = match &event.kind {
            Kind::Operation { shapes, .. } => shapes.first().map(Vec::as_slice),
            _ => None,
        };
        Gradient { shape, done_us: event.end_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, name: &str, start_us: f64) -> Event {
        Event { kind, name: name.into(), thread: 0, start_us, end_us: start_us + 1.0 }
    }

    fn operation(name: &str, start_us: f64) -> Event {
        event(Kind::Operation { shapes: vec![vec![2]], numbers: Vec::new() }, name, start_us)
    }

    fn trace(events: Vec<Event>) -> Trace {
        Trace {
            events,
            allocated: Vec::new(),
            half_types: Default::default(),
            device: None,
            device_bytes: Default::default(),
        }
    }

    fn one(start_us: f64) -> Vec<Event> {
        vec![
            operation("aten::linear", start_us),
            operation("aten::mean", start_us + 2.0),
            operation("autograd::engine::evaluate_function: MeanBackward0", start_us + 4.0),
            operation(ACCUMULATES, start_us + 8.0),
            operation(ACCUMULATES, start_us + 6.0),
            event(Kind::Update, "Optimizer.step#SGD.step", start_us + 10.0),
        ]
    }

    #[test]
    fn an_iteration_ends_with_its_optimiser() {
        // Backward of the first one was not recorded, the third has two optimisers.
        let mut events = vec![event(Kind::Update, "Optimizer.step#SGD.step", 0.0)];
        events.extend(one(20.0));
        events.extend(one(40.0));
        events.push(event(Kind::Update, "Optimizer.step#Adam.step", 52.0));
        // One that calls another: the outer one is what counts.
        events.push(Event { end_us: 30.5, ..event(Kind::Update, "Optimizer.step#Adam.step", 30.25) });
        // On another thread, and after the last update.
        events.push(Event { thread: 1, ..operation("aten::copy_", 41.0) });
        events.extend(one(60.0).into_iter().take(4));
        events.reverse();
        let trace = trace(events);
        let found = iterations(&trace).unwrap();
        assert_eq!(found.len(), 2);
        let names = |iteration: &Iteration<'_>| iteration.forward.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&found[0]), names(&found[1])),
            (names(&found[1]), vec!["aten::linear".into(), "aten::mean".into()])
        );
        assert_eq!((found[0].backward_us, found[0].update_us), (24.0, (30.0, 31.0)));
        assert_eq!(found[1].update_us, (50.0, 53.0));
        let done: Vec<f64> = found[0].gradients.iter().map(|gradient| gradient.done_us).collect();
        assert_eq!((done, found[0].gradients[0].shape), (vec![27.0, 29.0], Some(&[2][..])));
    }

    #[test]
    fn what_is_missing_is_said() {
        let refused = |events: Vec<Event>| iterations(&trace(events)).unwrap_err();
        assert!(matches!(refused(Vec::new()), TraceError::NoOperations));
        assert!(matches!(refused(one(0.0).into_iter().take(5).collect()), TraceError::NoOptimizer));
        let without = one(0.0).into_iter().filter(|event| event.name != ACCUMULATES).collect();
        assert!(matches!(refused(without), TraceError::NoGradients));
    }
}
