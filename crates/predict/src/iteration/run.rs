//! One training, event by event.

mod disturbance;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use paceline_plan::{OperationNumber, TensorId};

use super::event::{Event, Kind, Work};
use super::length::Iterations;
use super::line::Line;
use super::links::{Delivered, Links};
use super::operations::Stage;
use super::script::{Next, Progress};
use super::server::Server;
use super::{Lane, Length, Line as LineKind, Outcome, Part, Span, Training};

/// Training under way.
pub(super) struct Run<'a> {
    training: &'a Training<'a>,
    now: f64,
    workers: Vec<Workers>,
    lines: Vec<Line>,
    links: Links,
    /// The operations in the dispatchers' order.
    by_place: Vec<OperationNumber>,
    servers: Vec<Server>,
    underway: Vec<Underway>,
    events: BinaryHeap<Reverse<Event>>,
    /// Events so far.
    events_count: u64,
    spans: Vec<Span>,
    length: Length,
    done: bool,
}

/// The workers of a class.
struct Workers {
    progress: Progress,
    work: Option<Work>,
    /// Times the mean: how slow the slowest is in this iteration.
    pace: f64,
    /// When its iterations began.
    began: Vec<f64>,
}

/// Where an operation is.
#[derive(Clone, Copy)]
struct Underway {
    /// Classes that are not through with it on their side: that have not started it, or not moved it over their bus.
    missing: usize,
    /// The next of its stages.
    stage: usize,
    /// Has it overtaken another one?
    overtakes: bool,
}

impl Underway {
    /// That nobody of so many classes has started.
    fn of(classes: usize) -> Underway {
        Underway { missing: classes, stage: 0, overtakes: false }
    }
}

impl<'a> Run<'a> {
    pub fn new(training: &'a Training<'a>) -> Run<'a> {
        let operations = training.operations;
        let classes = training.classes.len();
        let workers = training.classes.iter().map(|class| Workers {
            progress: Progress::new(training, class),
            work: None,
            pace: 1.0,
            began: Vec::new(),
        });
        let workers: Vec<Workers> = workers.collect();
        let mut by_place = vec![0; operations.count()];
        let dispatcher = &workers[0].progress.dispatcher;
        (0..operations.count()).for_each(|operation| by_place[dispatcher.place(operation)] = operation);
        let mut served = vec![Vec::new(); operations.servers()];
        for (operation, (bucket, _)) in training.plan.partitions().enumerate() {
            if let Some(server) = operations.server_of(operation) {
                served[server].push((operation, training.plan.buckets[bucket].priority));
            }
        }
        let lines = if operations.line() == LineKind::Channel { 1 } else { classes };
        Run {
            training,
            now: 0.0,
            workers,
            lines: (0..lines).map(|_| Line::new(operations.count())).collect(),
            links: Links::new(operations.links(), operations.count()),
            by_place,
            servers: served.into_iter().map(|served| Server::new(operations.mode(), served)).collect(),
            underway: vec![Underway::of(classes); operations.count()],
            events: BinaryHeap::new(),
            events_count: 0,
            spans: Vec::new(),
            length: Length::Steady,
            done: false,
        }
    }

    pub fn run(mut self, length: Length) -> Outcome {
        self.length = length;
        (0..self.workers.len()).for_each(|class| self.proceed(class));
        while !self.done {
            let next_s = self.events.peek().map_or(f64::INFINITY, |Reverse(event)| event.time);
            match self.links.next_end() {
                Some((link, end)) if end <= next_s => {
                    self.now = end;
                    self.delivered(link);
                }
                _ => {
                    let Reverse(event) = self.events.pop().expect("something moves as long as iterations are missing");
                    self.now = event.time;
                    self.happens(event.kind);
                }
            }
        }
        self.outcome()
    }

    fn happens(&mut self, kind: Kind) {
        match kind {
            Kind::Carried { line, work } if self.lines[line].last == work => self.carried(line),
            Kind::Moved { operation } => self.moved(operation),
            Kind::Worked { server } => {
                if let Some(operation) = self.servers[server].worked() {
                    self.moved(operation);
                }
                self.serve(server);
            }
            Kind::Computed { class, work } if self.workers[class].work.is_some_and(|now| now.number == work) => {
                self.computed(class);
            }
            // Its speed has changed since.
            Kind::Carried { .. } | Kind::Computed { .. } => {}
        }
    }

    // ---- what a class computes

    /// Goes on with the script of a class until it takes time.
    fn proceed(&mut self, class: usize) {
        while !self.done {
            let Some(next) = self.workers[class].progress.go_on() else { return };
            match next {
                Next::Start => self.start(class),
                Next::Compute { seconds, lane, tensor } => return self.compute(class, seconds, lane, tensor),
                Next::Dispatch => self.dispatch(class),
            }
        }
    }

    fn start(&mut self, class: usize) {
        let workers = &mut self.workers[class];
        workers.began.push(self.now);
        if let Length::Drawn { seed, .. } = self.length {
            let of = &self.training.classes[class];
            workers.pace = of.spread.drawn_slowest_of(class, of.workers, seed, workers.began.len());
        }
        self.done |= class == 0 && self.iterations().are_enough(self.length);
    }

    /// Those of the first class.
    fn iterations(&self) -> Iterations<'_> {
        Iterations {
            began: &self.workers[0].began,
            overlap: self.training.plan.forward_overlap,
            symmetric: self.workers.len() == 1,
        }
    }

    fn compute(&mut self, class: usize, seconds: f64, lane: Lane, tensor: Option<TensorId>) {
        let left_s = seconds * self.workers[class].pace;
        let factor = self.slowed(class);
        let work = Work { number: 0, left_s, since: self.now, factor, began: self.now, lane, tensor };
        self.workers[class].work = Some(work);
        self.time_work(class);
        self.computation_changed(class);
    }

    fn computed(&mut self, class: usize) {
        if let Some(work) = self.workers[class].work.take() {
            self.span(class, work.lane, work.began, self.now, work.tensor, None);
        }
        self.proceed(class);
        if self.workers[class].work.is_none() {
            self.computation_changed(class);
        }
    }

    /// Says when a class will be through.
    fn time_work(&mut self, class: usize) {
        let number = self.events_count + 1;
        if let Some(work) = &mut self.workers[class].work {
            work.number = number;
            let end = work.since + work.left_s * work.factor;
            self.at(end, Kind::Computed { class, work: number });
        }
    }

    // ---- what a line carries

    fn line_of(&self, class: usize) -> usize {
        if self.lines.len() == 1 { 0 } else { class }
    }

    /// An operation gets on a line, behind what is more urgent of what waits there. What it finds under way and is less urgent
    /// makes way.
    fn get_on(&mut self, line: usize, operation: OperationNumber) {
        let (place, now) = (self.place(operation), self.now);
        let operations = self.training.operations;
        let of = &mut self.lines[line];
        of.wait(place, operations.operation(operation).line_s);
        // What is through makes room by itself, at this time.
        let makes_way =
            |carried: usize, work: &Work| !operations.is_in_order() && carried > place && work.left_at(now) > 0.0;
        match of.carries.take_if(|(carried, work)| makes_way(*carried, work)) {
            Some((overtaken, work)) => {
                of.wait(overtaken, work.left_at(now));
                // On a bus nothing waits for what is on a wire, nor behind what has sent nothing.
                self.underway[operation].overtakes |= operations.line() == LineKind::Channel && now > work.began;
                self.span(line, Lane::Line, work.began, now, None, Some(self.by_place[overtaken]));
                self.carry_next(line);
            }
            None if of.carries.is_some() => {}
            None => {
                self.carry_next(line);
                self.line_changed(line);
            }
        }
    }

    fn carry_next(&mut self, line: usize) {
        let Some((place, left_s)) = self.lines[line].take_next() else { return };
        let factor = self.hindered(line);
        let work = Work { number: 0, left_s, since: self.now, factor, began: self.now, lane: Lane::Line, tensor: None };
        self.lines[line].carries = Some((place, work));
        self.time_line(line);
    }

    fn time_line(&mut self, line: usize) {
        let number = self.events_count + 1;
        if let Some((_, work)) = &self.lines[line].carries {
            let end = work.since + work.left_s * work.factor;
            self.lines[line].last = number;
            self.at(end, Kind::Carried { line, work: number });
        }
    }

    fn carried(&mut self, line: usize) {
        let Some((place, work)) = self.lines[line].carries.take() else { return };
        let operation = self.by_place[place];
        self.span(line, Lane::Line, work.began, self.now, None, Some(operation));
        match self.training.operations.line() {
            LineKind::Channel => self.moved(operation),
            LineKind::Buses => self.is_through(operation),
        }
        if self.lines[line].carries.is_none() {
            self.carry_next(line);
        }
        self.line_changed(line);
    }

    // ---- the way of an operation

    /// Starts what the dispatcher of a class gives.
    fn dispatch(&mut self, class: usize) {
        let uses_line = self.training.operations.uses_line();
        while let Some(operation) = self.workers[class].progress.dispatcher.next() {
            match self.training.operations.line() {
                LineKind::Buses if uses_line => self.get_on(class, operation),
                _ => self.is_through(operation),
            }
        }
    }

    /// A class has done its part of an operation.
    fn is_through(&mut self, operation: OperationNumber) {
        self.underway[operation].missing -= 1;
        if self.underway[operation].missing > 0 {
            return;
        }
        match self.training.operations.line() {
            LineKind::Channel => self.get_on(0, operation),
            // Not at once: whoever calls is not done yet.
            LineKind::Buses => self.at(self.now, Kind::Moved { operation }),
        }
    }

    /// The place of an operation in the dispatchers' order.
    fn place(&self, operation: OperationNumber) -> usize {
        self.workers[0].progress.dispatcher.place(operation)
    }

    /// An operation enters its next stage, or has arrived.
    fn moved(&mut self, operation: OperationNumber) {
        let operations = self.training.operations;
        let content = operations.operation(operation);
        let stage = self.underway[operation].stage;
        self.underway[operation].stage += 1;
        match content.stages.len().cmp(&stage) {
            Ordering::Greater => match operations.stage(content.stages.start + stage) {
                Stage::Links { parts, in_order } => {
                    self.get_on_links(operation, operations.parts(parts), *in_order);
                }
                &Stage::Server { server, .. } => {
                    self.servers[server].arrived(operation);
                    self.serve(server);
                }
            },
            Ordering::Equal => {
                let overtaking_s = if self.underway[operation].overtakes { content.overtaking_s } else { 0.0 };
                match content.latency_s + overtaking_s {
                    0.0 => self.arrived(operation),
                    later_s => self.at(self.now + later_s, Kind::Moved { operation }),
                }
            }
            Ordering::Less => self.arrived(operation),
        }
    }

    fn get_on_links(&mut self, operation: OperationNumber, parts: &[Part], in_order: bool) {
        let place = self.place(operation);
        let busy = || parts.iter().filter(|part| part.busy_s > 0.0);
        for part in busy() {
            let overtakes = self.links.get_on((part.link, in_order), place, part.busy_s, self.now);
            self.underway[operation].overtakes |= overtakes;
        }
        if busy().next().is_none() {
            self.at(self.now, Kind::Moved { operation });
        }
        self.links_changed();
    }

    /// A link is through with what it carries.
    fn delivered(&mut self, link: usize) {
        let Delivered { place, began_s, by_all } = self.links.end(link);
        self.links_changed();
        if by_all {
            let operation = self.by_place[place];
            self.span(0, Lane::Links, began_s, self.now, None, Some(operation));
            self.moved(operation);
        }
    }

    /// A server takes up what it has to do, if it is idle.
    fn serve(&mut self, server: usize) {
        let Some(operation) = self.servers[server].next() else { return };
        let operations = self.training.operations;
        let stages = operations.operation(operation).stages.clone();
        let busy_s = stages.map(|stage| operations.stage(stage)).find_map(|stage| match stage {
            Stage::Server { busy_s, .. } => Some(*busy_s),
            Stage::Links { .. } => None,
        });
        let end = self.now + busy_s.unwrap_or(0.0);
        self.span(0, Lane::Server, self.now, end, None, Some(operation));
        self.at(end, Kind::Worked { server });
    }

    /// All workers have the result.
    fn arrived(&mut self, operation: OperationNumber) {
        self.underway[operation] = Underway::of(self.workers.len());
        if let Some(server) = self.training.operations.server_of(operation) {
            self.servers[server].ended(operation);
            self.serve(server);
        }
        for class in 0..self.workers.len() {
            let wakes = self.workers[class].progress.finished(operation);
            self.dispatch(class);
            if wakes {
                self.proceed(class);
            }
        }
    }

    fn at(&mut self, time: f64, kind: Kind) {
        self.events_count += 1;
        self.events.push(Reverse(Event { time, number: self.events_count, kind }));
    }

    fn span(
        &mut self,
        class: usize,
        lane: Lane,
        start_s: f64,
        end_s: f64,
        tensor: Option<TensorId>,
        operation: Option<OperationNumber>,
    ) {
        if self.training.timeline && end_s > start_s {
            self.spans.push(Span { class, lane, start_s, end_s, tensor, operation });
        }
    }

    fn outcome(mut self) -> Outcome {
        let spans = std::mem::take(&mut self.spans);
        self.iterations().outcome(self.length, spans)
    }
}
