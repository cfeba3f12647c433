//! A graph in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::{Numbers, Task, TaskGraph, Work};
use crate::flows::{FlowNetwork, RouteId, SIMULTANEOUS};

/// A graph under way.
pub(super) struct Run<'a> {
    graph: &'a TaskGraph,
    kinds: Vec<Kind>,
    then: Vec<Vec<usize>>,
    missing: Vec<usize>,
    /// By resource.
    busy: Vec<bool>,
    waiting: Vec<BinaryHeap<Reverse<Waiting>>>,
    last_on: Vec<Option<usize>>,
    /// Resources that may be able to take up a task.
    touched: Vec<usize>,
    flows: FlowNetwork,
    /// The task of each flow under way.
    carried: Vec<usize>,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    times: Times,
    /// What each waited for last: a task before it, or the one before on its resource.
    let_begin: Vec<Option<usize>>,
}

/// By task, once it has begun: when it did, and when those who wait for it may.
type Times = Vec<Option<(f64, f64)>>;

/// By urgency, then by how long they have waited, then by number.
type Waiting = (u32, Time, usize);

/// What a task does, with numbers for names.
#[derive(Clone, Copy)]
enum Kind {
    OnResource { resource: usize, seconds: f64 },
    Transfer { route: RouteId, bytes: f64 },
}

/// Of one moment, the first named is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A resource has done its task.
    Free(usize),
    /// Those who wait for a task may begin.
    Done(usize),
    /// The latency of a transfer is over.
    SetsOut(usize),
}

#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Run<'a> {
    pub fn new(graph: &'a TaskGraph, numbers: &Numbers) -> Run<'a> {
        let tasks = graph.tasks.len();
        let mut then = vec![Vec::new(); tasks];
        for (task, before) in numbers.before.iter().enumerate() {
            before.iter().for_each(|&before| then[before].push(task));
        }
        let mut flows = FlowNetwork::new(graph.links.iter().map(|link| link.bytes_per_s));
        let mut names: HashMap<&str, usize> = HashMap::new();
        let kinds = graph.tasks.iter().zip(&numbers.routes).map(|(task, route)| match &task.work {
            Work::OnResource { resource, seconds } => {
                let next = names.len();
                Kind::OnResource { resource: *names.entry(resource).or_insert(next), seconds: *seconds }
            }
            Work::Transfer { bytes, .. } => Kind::Transfer { route: flows.add_route(route), bytes: *bytes },
        });
        let kinds: Vec<Kind> = kinds.collect();
        let resources = names.len();
        Run {
            graph,
            kinds,
            then,
            missing: numbers.before.iter().map(Vec::len).collect(),
            busy: vec![false; resources],
            waiting: (0..resources).map(|_| BinaryHeap::new()).collect(),
            last_on: vec![None; resources],
            touched: Vec::new(),
            flows,
            carried: Vec::new(),
            events: BinaryHeap::new(),
            times: vec![None; tasks],
            let_begin: vec![None; tasks],
        }
    }

    /// When each task began and was done, if it could, and what let it begin.
    pub fn run(mut self) -> (Times, Vec<Option<usize>>) {
        for task in (0..self.missing.len()).filter(|&task| self.missing[task] == 0).collect::<Vec<_>>() {
            self.is_ready(task, 0.0);
        }
        self.begin_touched(0.0);
        let mut completed = Vec::new();
        while let Some(now) = self.next_moment() {
            self.flows.take_completed(now, &mut completed);
            for flow in completed.drain(..) {
                self.is_carried(self.carried[flow.index()], now);
            }
            // Ends of transfers differ by rounding; without links, times are as exact as those of the graph.
            let until = if self.graph.links.is_empty() { now } else { now + now * SIMULTANEOUS };
            // Everything that happens now, before anything begins: the most urgent is chosen of all.
            while let Some(&Reverse((at, event))) = self.events.peek()
                && at.0 <= until
            {
                self.events.pop();
                self.happened(event, now);
            }
            self.begin_touched(now);
        }
        (self.times, self.let_begin)
    }

    fn next_moment(&mut self) -> Option<f64> {
        let event = self.events.peek().map(|Reverse((time, _))| time.0);
        match (self.flows.next_completion(), event) {
            (Some(flow), Some(event)) => Some(flow.min(event)),
            (one, other) => one.or(other),
        }
    }

    fn happened(&mut self, event: Event, now: f64) {
        match event {
            Event::Free(resource) => {
                self.busy[resource] = false;
                self.touched.push(resource);
            }
            Event::Done(task) => {
                for next in std::mem::take(&mut self.then[task]) {
                    self.missing[next] -= 1;
                    if self.missing[next] == 0 {
                        self.let_begin[next] = Some(task);
                        self.is_ready(next, now);
                    }
                }
            }
            Event::SetsOut(task) => self.set_out(task, now),
        }
    }

    /// All that a task waits for is done: it queues for its resource, or is on its way.
    fn is_ready(&mut self, task: usize, now: f64) {
        let Task { priority, latency_s, .. } = self.graph.tasks[task];
        match self.kinds[task] {
            Kind::OnResource { resource, .. } => {
                self.waiting[resource].push(Reverse((priority, Time(now), task)));
                self.touched.push(resource);
            }
            Kind::Transfer { .. } => {
                self.times[task] = Some((now, now));
                self.events.push(Reverse((Time(now + latency_s), Event::SetsOut(task))));
            }
        }
    }

    /// The bytes of a transfer move, if there are any.
    fn set_out(&mut self, task: usize, now: f64) {
        let Kind::Transfer { route, bytes } = self.kinds[task] else { return };
        if bytes == 0.0 {
            self.is_carried(task, now);
            return;
        }
        let flow = self.flows.add(route, bytes, now);
        if self.carried.len() <= flow.index() {
            self.carried.resize(flow.index() + 1, task);
        }
        self.carried[flow.index()] = task;
    }

    /// The bytes of a transfer are through.
    fn is_carried(&mut self, task: usize, now: f64) {
        self.times[task] = self.times[task].map(|(start_s, _)| (start_s, now));
        self.events.push(Reverse((Time(now), Event::Done(task))));
    }

    fn begin_touched(&mut self, now: f64) {
        while let Some(resource) = self.touched.pop() {
            self.begin(resource, now);
        }
    }

    /// A resource takes up a task, if it is free and there is one.
    fn begin(&mut self, resource: usize, now: f64) {
        if self.busy[resource] {
            return;
        }
        let Some(Reverse((_, ready, task))) = self.waiting[resource].pop() else { return };
        let Kind::OnResource { seconds, .. } = self.kinds[task] else { return };
        let latency_s = self.graph.tasks[task].latency_s;
        self.busy[resource] = true;
        if ready.0 < now {
            self.let_begin[task] = self.last_on[resource];
        }
        self.last_on[resource] = Some(task);
        self.times[task] = Some((now, now + seconds + latency_s));
        self.events.push(Reverse((Time(now + seconds), Event::Free(resource))));
        self.events.push(Reverse((Time(now + seconds + latency_s), Event::Done(task))));
    }
}
