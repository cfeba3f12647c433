//! The operations of an iteration: which wait for their turn, which travel, which have arrived.

use std::cmp::Ordering;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError};
use paceline_plan::{OperationNumber, Plan, TensorId};
use paceline_schedule::Dispatcher;

use super::carrier::{Call, Carrier, Landed, Travelling, Way};
use super::coder::Gathered;
use super::start_up::StartUp;
use crate::executed::{AllReduce, ChangedAllReduce};

/// No sleep is longer: whatever goes wrong with a wake-up costs no more than this.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// "Much longer than one operation takes" is so many times what the largest took when it took least: it may have waited for
/// a rank that was behind, and for one that had to lose patience first, so that what it took at most would grow with each such wait.
const PATIENCE_OPERATIONS: u32 = 4;

/// The operations of a plan, iteration after iteration. The trainer fills and reads their buffers; it, or the thread that
/// releases credit, starts them.
pub(super) struct Operations {
    state: Mutex<State>,
    /// An operation was started, or one has failed: for a trainer that waits for one that was not started.
    changed: Condvar,
}

/// What the trainer and the thread that releases credit share.
pub(super) struct State {
    carrier: Carrier,
    calls: Vec<Call>,
    dispatcher: Dispatcher,
    /// By operation.
    slots: Vec<Slot>,
    /// By operation, where servers have the parameters: a place for those that come back; with an operation under way.
    parameters: Vec<Option<Buffer<f32>>>,
    /// Operations that travel and have not been seen to end.
    in_flight: Vec<InFlight>,
    /// May operations have to wait for the end of others? Without credit and start-up times every one is started by the
    /// trainer, as soon as it is complete.
    pub(super) deferred: bool,
    /// When one of them has ended last, or the first was started, or was overlooked.
    last_end: Instant,
    /// The elements of the largest that has ended, and how long one as large has taken at least.
    largest: (usize, Duration),
    /// Iterations so far; makes the operations' ids.
    iterations: u64,
    start_up: Option<StartUp>,
    /// The thread that releases credit, if there must be one.
    pub(super) thread: Option<Thread>,
    failure: Option<CommError>,
    /// Starts and failures so far.
    changes: u64,
    /// How long starting operations and taking their results has taken, and how long deciding which.
    pub(super) in_communicator: Duration,
    pub(super) scheduling: Duration,
}

/// An operation that was started.
struct InFlight {
    operation: OperationNumber,
    elements: usize,
    began: Instant,
}

/// Where an operation's buffer is.
enum Slot {
    /// Gradients gather in it, or it waits for its turn.
    Here(Buffer<f32>),
    /// The trainer reads or writes it.
    Lent,
    Travelling(Arc<Travelling>),
    /// What all ranks have compressed has come; whoever waits decompresses it.
    Gathered(Gathered),
    /// It holds the sums of the last iteration.
    Arrived(Buffer<f32>),
    /// Its operation has failed.
    Lost,
}

/// What a buffer is lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To take in gradients of the next iteration.
    Gather,
    /// To read the sums of the last.
    Read,
}

impl Operations {
    pub(super) fn new(
        carrier: Carrier,
        plan: &Plan,
        chosen: &[AllReduce],
        start_up: Option<StartUp>,
    ) -> Result<Operations, CommError> {
        let arena = || carrier.peers().workers().alloc::<f32>(plan.elements());
        let (gradients, parameters) = (arena()?, carrier.applies().then(arena).transpose()?);
        let lengths: Vec<usize> = plan.partitions().map(|(_, partition)| partition.elements.len()).collect();
        let state = State {
            calls: carrier.calls(plan, chosen)?,
            carrier,
            dispatcher: Dispatcher::new(plan),
            slots: gradients.split(&lengths).into_iter().map(Slot::Arrived).collect(),
            parameters: parameters.map_or(Vec::new(), |all| all.split(&lengths).into_iter().map(Some).collect()),
            in_flight: Vec::new(),
            deferred: plan.credit_bytes.is_some() || start_up.is_some(),
            last_end: Instant::now(),
            largest: (0, Duration::ZERO),
            iterations: 0,
            start_up,
            thread: None,
            failure: None,
            changes: 0,
            in_communicator: Duration::ZERO,
            scheduling: Duration::ZERO,
        };
        Ok(Operations { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Nothing that could panic leaves the state half changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gradients of a new iteration come next; all operations of the last have been waited for.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.iterations += 1;
        state.dispatcher.begin();
    }

    /// All of a tensor's gradient is in its buffers: starts what may start with it. How long that was for the communicator to do.
    pub(super) fn ready(&self, tensor: TensorId) -> Result<Duration, CommError> {
        let mut state = self.lock();
        let before = state.in_communicator;
        state.dispatcher.ready(tensor);
        state.start_what_may()?;
        let started = state.in_communicator - before;
        if state.start_up.as_ref().is_some_and(|start_up| start_up.next().is_some())
            && let Some(thread) = &state.thread
        {
            thread.unpark();
        }
        Ok(started)
    }

    /// Lends part of an operation's buffer. The state is not locked meanwhile: credit is released all the same.
    pub(super) fn lend(
        &self,
        operation: OperationNumber,
        within: Range<usize>,
        purpose: Purpose,
        act: impl FnOnce(&mut [f32]),
    ) {
        let slot = mem::replace(&mut self.lock().slots[operation], Slot::Lent);
        let slot = match slot {
            Slot::Here(mut buffer) | Slot::Arrived(mut buffer) => {
                act(&mut buffer[within]);
                if purpose == Purpose::Gather { Slot::Here(buffer) } else { Slot::Arrived(buffer) }
            }
            // The failure that lost it ends the iteration.
            slot => slot,
        };
        self.lock().slots[operation] = slot;
    }

    /// Lends part of an operation's parameters: those that have come back from the server, or those that go there first.
    pub(super) fn lend_parameters(
        &self,
        operation: OperationNumber,
        within: Range<usize>,
        act: impl FnOnce(&mut [f32]),
    ) {
        // Not there: the failure that lost them ends the iteration.
        let Some(mut parameters) = self.lock().parameters[operation].take() else { return };
        act(&mut parameters[within]);
        self.lock().parameters[operation] = Some(parameters);
    }

    /// Gives worker 0's parameters to the servers, and to all workers, before the first iteration.
    pub(super) fn initialise(&self) -> Result<(), CommError> {
        let mut state = self.lock();
        let State { carrier, calls, parameters, .. } = &mut *state;
        let mut started = Vec::new();
        for (operation, call) in calls.iter().enumerate() {
            if let Some(parameters) = parameters[operation].take() {
                started.push((operation, carrier.initialise(call, operation as u64, parameters)?));
            }
        }
        drop(state);
        for (operation, pending) in started {
            let parameters = pending.map(|pending| pending.wait()).transpose()?;
            self.lock().parameters[operation] = parameters;
        }
        Ok(())
    }

    /// Waits until an operation has arrived: for how long.
    pub(super) fn wait(&self, operation: OperationNumber) -> Result<Duration, CommError> {
        let mut state = self.lock();
        let mut began = None;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            match &state.slots[operation] {
                Slot::Travelling(pending) if pending.is_done() => state.land(operation)?,
                Slot::Travelling(pending) => {
                    let pending = pending.clone();
                    drop(state);
                    began.get_or_insert_with(Instant::now);
                    // It ends by its deadline at the latest, and how shows when it lands.
                    let _ = pending.wait_timeout(SLEEP_MAX);
                    drop(pending);
                    state = self.lock();
                }
                Slot::Gathered(_) => {
                    let slot = mem::replace(&mut state.slots[operation], Slot::Lent);
                    drop(state);
                    // That takes its time: the state is not locked, and it counts as waiting.
                    began.get_or_insert_with(Instant::now);
                    let slot = match slot {
                        Slot::Gathered(gathered) => Slot::Arrived(gathered.sum()),
                        slot => slot,
                    };
                    state = self.lock();
                    state.slots[operation] = slot;
                }
                Slot::Here(_) => {
                    began.get_or_insert_with(Instant::now);
                    (state, _) = self.changed.wait_timeout(state, SLEEP_MAX).unwrap_or_else(PoisonError::into_inner);
                }
                Slot::Arrived(_) | Slot::Lent | Slot::Lost => break,
            }
        }
        Ok(began.map_or(Duration::ZERO, |began: Instant| began.elapsed()))
    }

    /// Releases the credit of operations that have ended and starts what may start then. Where start-ups wait until nothing
    /// travels, and nothing has ended for longer than `patience`, and much longer than one operation takes, the next one does
    /// not wait. Until when there is nothing to do, if nothing ends before.
    pub(super) fn release(&self, patience: Duration) -> Option<Instant> {
        let mut state = self.lock();
        let (began, before, in_communicator) = (Instant::now(), state.changes, state.in_communicator);
        state.report_ended();
        let patience = state.patience(patience);
        if state.waits() && began.saturating_duration_since(state.last_end) >= patience {
            state.overlook(began);
        }
        // Whoever waits next is told.
        let _ = state.start_what_may();
        if state.changes != before {
            self.changed.notify_all();
        }
        // The trainer's time is counted in `in_communicator`; this thread takes it from nobody.
        let started = mem::replace(&mut state.in_communicator, in_communicator) - in_communicator;
        state.scheduling += began.elapsed().saturating_sub(started);
        let impatient = state.waits().then(|| state.last_end + patience);
        let next = state.start_up.as_ref().and_then(StartUp::next);
        impatient.into_iter().chain(next).min()
    }

    /// Has it been started, and ended?
    #[cfg(test)]
    pub(super) fn has_ended(&self, operation: OperationNumber) -> bool {
        match &self.lock().slots[operation] {
            Slot::Travelling(pending) => pending.is_done(),
            slot => matches!(slot, Slot::Arrived(_)),
        }
    }

    #[cfg(test)]
    pub(super) fn is_travelling(&self, operation: OperationNumber) -> bool {
        matches!(self.lock().slots[operation], Slot::Travelling(_))
    }
}

impl State {
    /// By operation, how its all-reduce is done; empty where servers add up.
    pub(super) fn all_reduces(&self) -> Vec<AllReduce> {
        self.calls.iter().filter_map(Call::all_reduce).collect()
    }

    /// The iteration that began last, from 0.
    pub(super) fn iteration(&self) -> u64 {
        self.iterations.saturating_sub(1)
    }

    /// Iterations that have begun.
    pub(super) fn iterations(&self) -> u64 {
        self.iterations
    }

    /// By operation, how it is called.
    pub(super) fn options(&self) -> Vec<CallOptions> {
        self.calls.iter().map(|call| call.options().clone()).collect()
    }

    /// From the next iteration on, these operations are done otherwise; none of them is under way. Those whose all-reduce
    /// then is another.
    pub(super) fn set_ways(&mut self, ways: Vec<(OperationNumber, Way)>) -> Vec<ChangedAllReduce> {
        let set = |(operation, way): (OperationNumber, Way)| {
            let call = &mut self.calls[operation];
            let before = call.all_reduce();
            call.set(way);
            let AllReduce { algorithm, chunk_bytes } = call.all_reduce().filter(|now| before.as_ref() != Some(now))?;
            Some(ChangedAllReduce { operation, algorithm, chunk_bytes })
        };
        ways.into_iter().filter_map(set).collect()
    }

    /// The same for all-reduces of which only is known how they add up.
    pub(super) fn set_all_reduces(&mut self, changes: Vec<ChangedAllReduce>) -> Vec<ChangedAllReduce> {
        let ways = changes.into_iter().map(|ChangedAllReduce { operation, algorithm, chunk_bytes }| {
            let base = self.calls[operation].options().clone();
            (operation, CallOptions { algorithm: Some(algorithm), chunk_bytes: Some(chunk_bytes), ..base }.into())
        });
        let ways = ways.collect();
        self.set_ways(ways)
    }

    pub(super) fn start_up_mut(&mut self) -> Option<&mut StartUp> {
        self.start_up.as_mut()
    }

    pub(super) fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    /// Gives the memory back; there will be no more operations.
    pub(super) fn end(&mut self) -> Carrier {
        self.calls.clear();
        self.slots.clear();
        self.parameters.clear();
        self.carrier.clone()
    }

    /// Starts the operations whose turn it is.
    fn start_what_may(&mut self) -> Result<(), CommError> {
        loop {
            let now = Instant::now();
            while let Some(operation) = self.start_up.as_mut().and_then(|start_up| start_up.over(now)) {
                self.start(operation)?;
            }
            let busy = !self.in_flight.is_empty();
            if self.start_up.as_ref().is_some_and(|start_up| !start_up.admits(busy)) {
                return Ok(());
            }
            let Some(operation) = self.dispatcher.next() else { return Ok(()) };
            match &mut self.start_up {
                Some(start_up) => start_up.begin(operation, now),
                None => self.start(operation)?,
            }
        }
    }

    fn start(&mut self, operation: OperationNumber) -> Result<(), CommError> {
        let began = Instant::now();
        let Slot::Here(buffer) = mem::replace(&mut self.slots[operation], Slot::Lost) else {
            unreachable!("an operation is started once per iteration, and only while its buffer is here");
        };
        let elements = buffer.len();
        let id = (self.iterations - 1) * self.slots.len() as u64 + operation as u64;
        let parameters = self.parameters.get_mut(operation).and_then(Option::take);
        let started = self.carrier.start(&self.calls[operation], id, buffer, parameters);
        self.changes += 1;
        if self.in_flight.is_empty() {
            self.last_end = began;
        }
        match started {
            Ok(pending) => {
                self.slots[operation] = Slot::Travelling(Arc::new(pending));
                self.in_flight.push(InFlight { operation, elements, began });
                self.in_communicator += began.elapsed();
                Ok(())
            }
            Err(failure) => {
                self.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Tells the dispatcher which operations have ended.
    fn report_ended(&mut self) {
        let State { in_flight, slots, dispatcher, last_end, largest, .. } = self;
        in_flight.retain(|&InFlight { operation, elements, began }| {
            let ended = !matches!(&slots[operation], Slot::Travelling(pending) if !pending.is_done());
            if ended {
                dispatcher.finished(operation);
                *last_end = Instant::now();
                let took = began.elapsed();
                match elements.cmp(&largest.0) {
                    Ordering::Less => {}
                    Ordering::Equal => largest.1 = largest.1.min(took),
                    Ordering::Greater => *largest = (elements, took),
                }
            }
            !ended
        });
    }

    /// How long nothing ends before a start-up waits no longer; `least` at least.
    pub(super) fn patience(&self, least: Duration) -> Duration {
        least.max(PATIENCE_OPERATIONS * self.largest.1)
    }

    /// Is there a start-up that waits for operations to end?
    fn waits(&self) -> bool {
        let alone = self.start_up.as_ref().is_some_and(|start_up| !start_up.admits(true));
        alone && !self.in_flight.is_empty() && self.dispatcher.waits()
    }

    /// A rank is behind in backward, or two have started different operations, each of which travels alone.
    fn overlook(&mut self, now: Instant) {
        if let Some(start_up) = &mut self.start_up {
            start_up.overlook();
        }
        self.last_end = now;
    }

    /// Takes the result of an operation that has ended, and starts what may start then.
    fn land(&mut self, operation: OperationNumber) -> Result<(), CommError> {
        if self.deferred {
            self.report_ended();
        } else if let Some(place) = self.in_flight.iter().position(|other| other.operation == operation) {
            // Looking at all that are under way each time one lands costs the square of their number.
            self.in_flight.swap_remove(place);
            self.dispatcher.finished(operation);
        }
        self.start_what_may()?;
        let Slot::Travelling(pending) = mem::replace(&mut self.slots[operation], Slot::Lost) else { return Ok(()) };
        // Only the trainer holds others, and never while it lands one.
        let pending = Arc::into_inner(pending).expect("nobody else holds the operation");
        let began = Instant::now();
        let landed = pending.wait();
        self.in_communicator += began.elapsed();
        match landed {
            Ok(landed) => {
                self.slots[operation] = match landed {
                    Landed::Sum(gradient) => Slot::Arrived(gradient),
                    Landed::Update(gradient, parameters) => {
                        self.parameters[operation] = Some(parameters);
                        Slot::Arrived(gradient)
                    }
                    Landed::Gathered(gathered) => Slot::Gathered(gathered),
                };
                Ok(())
            }
            Err(failure) => {
                self.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }
}
