//! Training iterations in virtual time, message by message: every worker computes by itself, asks a dispatcher of its own, and the
//! programs of all operations under way share the links of one network.
//!
//! What [`super::simulate`] says with a time for each operation comes out here from what its messages do: how those of operations
//! that follow each other get into each other's way, what urgent ones find on the links, for whom a late worker's neighbours wait.
//! The cost grows with the workers and their messages, so it is for small worlds, and to hold the other one to.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_collective::verify::Refusal;
use paceline_plan::{OperationNumber, TensorId};

use super::length::Iterations;
use super::script::{Next, Progress};
use super::{Lane, Length, Outcome, Span, Training};
use crate::agenda::Agenda;
use crate::flows::SIMULTANEOUS;
use crate::programs::{Machine, News, Operation, Turn, UnderWay};

/// How the operations of a plan travel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a> {
    /// Ranks are the workers, and then the servers, who begin whatever a worker has begun.
    pub machine: &'a Machine<'a>,
    /// By the plan's numbers.
    pub operations: &'a [Operation<'a>],
    /// The class of each worker.
    pub class_of: &'a [usize],
    /// Seconds per byte that servers fold, on processors of their own.
    pub server_gamma: f64,
    /// Seconds before an operation begins on a worker, one after the other.
    pub start_s: f64,
    pub starts: Starts,
}

/// What operations wait for that take time to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    /// The worker's port, which is occupied meanwhile.
    OnPort,
    /// Nothing but each other.
    Beside,
    /// That the one in front has ended on this worker, whatever else travels.
    OneByOne,
}

/// What is more urgent overtakes a message between two frames of so many bytes, as in the engine.
const FRAME_BYTES: f64 = (256 << 10) as f64;

/// Where workers wait for each other, one by one and in different orders, they give up after so many seconds in which nothing moves, as
/// they do in the runtime.
pub(crate) const PATIENCE_S: f64 = 0.02;

/// Simulates training. The iterations are those of the first worker of the first class; their messages, of all workers and servers,
/// are counted in the last one. Of the training, what its operations go through is not asked, nor how they interfere.
///
/// # Errors
/// The programs do not end.
///
/// # Panics
/// As [`super::simulate`]; if there are other classes than those of the workers, or operations than those of the plan.
pub(crate) fn simulate_by_message(
    training: &Training<'_>,
    messages: &Messages<'_>,
    length: Length,
) -> Result<(Outcome, usize), Refusal> {
    assert_eq!(messages.operations.len(), training.plan.operations(), "the operations of another plan");
    Run::new(training, messages, length).run()
}

/// Training under way.
struct Run<'a> {
    training: &'a Training<'a>,
    messages: &'a Messages<'a>,
    length: Length,
    under_way: UnderWay<'a>,
    /// The operations in the dispatchers' order.
    by_place: Vec<OperationNumber>,
    workers: Vec<Worker>,
    /// The worker whose iterations count.
    watched: usize,
    agenda: Agenda<Due>,
    now: f64,
    spans: Vec<Span>,
    /// Messages that had left when the last iteration began, and when the one before did.
    left: [usize; 2],
    done: bool,
}

struct Worker {
    class: usize,
    progress: Progress,
    computes: Option<Computing>,
    /// Times the mean: how slow it is in this iteration.
    pace: f64,
    /// When its iterations began.
    began: Vec<f64>,
    /// Operations that it may begin, and the one that is about to.
    waiting: BinaryHeap<Reverse<Turn>>,
    starting: Option<Turn>,
    /// Operations that it has begun, and that have not ended.
    open: usize,
    /// By place: when it began each.
    began_at: Vec<f64>,
}

/// What happens by itself.
#[derive(Clone, Copy)]
enum Due {
    /// A worker is through with what it computes.
    Computed(usize),
    /// With a start.
    Started(usize),
}

#[derive(Clone, Copy)]
struct Computing {
    began: f64,
    lane: Lane,
    tensor: Option<TensorId>,
}

impl<'a> Run<'a> {
    fn new(training: &'a Training<'a>, messages: &'a Messages<'a>, length: Length) -> Run<'a> {
        let of_class: Vec<Progress> = training.classes.iter().map(|class| Progress::new(training, class)).collect();
        let count = training.plan.operations();
        let mut by_place = vec![0; count];
        (0..count).for_each(|operation| by_place[of_class[0].dispatcher.place(operation)] = operation);
        let operations: Vec<Operation<'a>> = by_place.iter().map(|&number| messages.operations[number]).collect();
        let mut under_way = UnderWay::new(&operations, messages.machine).in_frames(FRAME_BYTES);
        let count_workers = messages.class_of.len();
        (count_workers..messages.machine.network.world())
            .for_each(|server| under_way.has_processor(server, messages.server_gamma));
        let workers = messages.class_of.iter().map(|&class| Worker {
            class,
            progress: of_class[class].clone(),
            computes: None,
            pace: 1.0,
            began: Vec::new(),
            waiting: BinaryHeap::new(),
            starting: None,
            open: 0,
            began_at: vec![0.0; count],
        });
        Run {
            training,
            messages,
            length,
            under_way,
            by_place,
            workers: workers.collect(),
            watched: messages.class_of.iter().position(|&class| class == 0).unwrap_or(0),
            agenda: Agenda::default(),
            now: 0.0,
            spans: Vec::new(),
            left: [0; 2],
            done: false,
        }
    }

    fn run(mut self) -> Result<(Outcome, usize), Refusal> {
        (0..self.workers.len()).for_each(|worker| self.proceed(worker));
        let mut news = Vec::new();
        self.listen(&mut news);
        while !self.done {
            let Some(now) = self.next_moment() else {
                if !self.give_up_waiting() {
                    self.under_way.check_ended()?;
                    unreachable!("a dispatcher gives whatever is complete when nothing is under way");
                }
                continue;
            };
            self.now = now;
            self.under_way.advance(now);
            self.listen(&mut news);
            // What workers are through with comes last: it finds everything that has arrived.
            while let Some((_, due)) = self.agenda.pop_until(now + now * SIMULTANEOUS) {
                match due {
                    Due::Computed(worker) => self.computed(worker),
                    Due::Started(worker) => self.started(worker),
                }
            }
            self.listen(&mut news);
        }
        let spans = std::mem::take(&mut self.spans);
        let outcome = self.iterations().outcome(self.length, spans);
        Ok((outcome, self.left[0] - self.left[1]))
    }

    /// Nothing moves: whoever waits for an operation of its own to end starts the next one all the same. Does anybody?
    fn give_up_waiting(&mut self) -> bool {
        self.now += PATIENCE_S;
        let mut any = false;
        for worker in 0..self.workers.len() {
            any |= self.start_one(worker);
        }
        any
    }

    fn next_moment(&mut self) -> Option<f64> {
        let computed = self.agenda.peek().map(|(time, _)| time.max(self.now));
        match (self.under_way.next_moment(), computed) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Takes up what has come of programs, until nothing more does.
    fn listen(&mut self, news: &mut Vec<News>) {
        loop {
            self.under_way.take_news(news);
            if news.is_empty() {
                return;
            }
            for what in news.drain(..) {
                match what {
                    News::Ended { turn, rank } if rank < self.workers.len() => self.ended(rank, turn),
                    News::Ended { .. } => {}
                    News::Free { rank } => self.started(rank),
                }
            }
        }
    }

    // ---- what a worker computes

    /// Goes on with the script of a worker until it takes time.
    fn proceed(&mut self, worker: usize) {
        while !self.done {
            let of = &mut self.workers[worker];
            let Some(next) = of.progress.go_on() else { return };
            match next {
                Next::Start => self.start(worker),
                Next::Compute { seconds, lane, tensor } => {
                    of.computes = Some(Computing { began: self.now, lane, tensor });
                    self.agenda.push(self.now + seconds * of.pace, Due::Computed(worker));
                    return;
                }
                Next::Dispatch => self.dispatch(worker),
            }
        }
    }

    fn start(&mut self, worker: usize) {
        let of = &mut self.workers[worker];
        of.began.push(self.now);
        if let Length::Drawn { seed, .. } = self.length {
            // Every worker has draws of its own.
            let seed = seed.wrapping_add((worker as u64).wrapping_mul(0xa24b_aed4_963e_e407));
            of.pace = self.training.classes[of.class].spread.drawn_slowest(1, seed, of.began.len() as u64);
        }
        if worker == self.watched {
            self.left = [self.under_way.messages(), self.left[0]];
            // Nobody asks what was over before the last iteration.
            if let [.., last, _] = self.workers[worker].began[..] {
                self.spans.retain(|span| span.end_s > last);
            }
            self.done = self.iterations().are_enough(self.length);
        }
    }

    fn iterations(&self) -> Iterations<'_> {
        Iterations {
            began: &self.workers[self.watched].began,
            overlap: self.training.plan.forward_overlap,
            symmetric: false,
        }
    }

    fn computed(&mut self, worker: usize) {
        if let Some(Computing { began, lane, tensor }) = self.workers[worker].computes.take() {
            self.span(worker, lane, began, tensor, None);
        }
        self.proceed(worker);
    }

    // ---- the way of an operation

    /// Begins what the dispatcher of a worker gives, or lets it wait for its start.
    fn dispatch(&mut self, worker: usize) {
        let count = self.by_place.len() as Turn;
        let in_turn = self.messages.starts == Starts::OneByOne || self.messages.start_s > 0.0;
        let of = &mut self.workers[worker];
        let Progress { dispatcher, passes, .. } = &mut of.progress;
        while let Some(operation) = dispatcher.next() {
            let turn = (*passes - 1) * count + dispatcher.place(operation) as Turn;
            of.waiting.push(Reverse(turn));
        }
        if in_turn {
            return self.start_next(worker);
        }
        while let Some(Reverse(turn)) = self.workers[worker].waiting.pop() {
            self.begin(worker, turn);
        }
    }

    /// Starts the most urgent operation that waits for that, if it may.
    fn start_next(&mut self, worker: usize) {
        if self.messages.starts != Starts::OneByOne || self.workers[worker].open == 0 {
            self.start_one(worker);
        }
    }

    /// The same, whatever else is open, if none is about to begin. Was there one?
    fn start_one(&mut self, worker: usize) -> bool {
        let of = &mut self.workers[worker];
        if of.starting.is_some() {
            return false;
        }
        let Some(Reverse(turn)) = of.waiting.pop() else { return false };
        of.starting = Some(turn);
        of.began_at[turn as usize % self.by_place.len()] = self.now;
        let seconds = self.messages.start_s;
        match self.messages.starts {
            Starts::OnPort => self.under_way.occupy(worker, seconds),
            Starts::Beside | Starts::OneByOne => self.agenda.push(self.now + seconds, Due::Started(worker)),
        }
        true
    }

    /// The operation that was about to begin does.
    fn started(&mut self, worker: usize) {
        let Some(turn) = self.workers[worker].starting.take() else { return };
        let place = turn as usize % self.by_place.len();
        let (began, operation) = (self.workers[worker].began_at[place], self.by_place[place]);
        self.span(worker, Lane::Line, began, None, Some(operation));
        self.begin(worker, turn);
        self.start_next(worker);
    }

    fn begin(&mut self, worker: usize, turn: Turn) {
        let is_first = !self.under_way.is_open(turn);
        let of = &mut self.workers[worker];
        of.open += 1;
        of.began_at[turn as usize % self.by_place.len()] = self.now;
        self.under_way.begin(turn, worker);
        if is_first {
            let ranks = self.workers.len()..self.messages.machine.network.world();
            ranks.for_each(|server| self.under_way.begin(turn, server));
        }
    }

    /// A worker has the result of an operation.
    fn ended(&mut self, worker: usize, turn: Turn) {
        let place = turn as usize % self.by_place.len();
        let operation = self.by_place[place];
        self.span(worker, Lane::Links, self.workers[worker].began_at[place], None, Some(operation));
        let of = &mut self.workers[worker];
        of.open -= 1;
        let wakes = of.progress.finished(operation);
        self.dispatch(worker);
        if wakes {
            self.proceed(worker);
        }
    }

    /// What a worker has done until now, if that is wanted.
    fn span(
        &mut self,
        worker: usize,
        lane: Lane,
        start_s: f64,
        tensor: Option<TensorId>,
        operation: Option<OperationNumber>,
    ) {
        if self.training.timeline && worker == self.watched && self.now > start_s {
            self.spans.push(Span { class: 0, lane, start_s, end_s: self.now, tensor, operation });
        }
    }
}

#[cfg(test)]
mod tests;
