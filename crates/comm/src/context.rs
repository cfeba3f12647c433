//! Who turns the crank, and who sleeps.
//!
//! A caller that waits drives the core itself: it takes the lock, moves what can move, lets go, and tries again, for a
//! short while spinning, then yielding, then asleep on the descriptors of all links at once. One thread per rank, the
//! progress thread, does the same for operations that nobody waits for. At most one thread sleeps on the descriptors
//! (the *driver*); others wait until it tells them that operations have ended. It is woken when another thread has ended
//! the operation that it waits for, or has moved something and so changed what there is to wait for.

mod poll;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use paceline_engine::{Failure, Request, Stall};
use paceline_fabric::Descriptor;
use rustix::event::{EventfdFlags, eventfd};

use crate::alarm::Alarm;
use crate::core::Core;
use crate::memory::OperationMemory;
use crate::outcome::Ticket;
use crate::own_processor::{Place, give_way};

/// No sleep is longer: whatever goes wrong with a wake-up costs no more than this. The progress thread leaves idle links
/// alone for as long: it looks for lost peers this often, and gives signs of life.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A thread that is busy or spinning looks at the clock after so many rounds of the crank: reading it costs as much as a
/// look at a link.
const ROUNDS_PER_LOOK_AT_CLOCK: u32 = 32;

/// So many rounds in which something moved, enough for a small call, may follow each other under one lock. In those of a
/// long one much is copied and combined, and other callers want to see whether theirs has ended.
const ROUNDS_HELD: u32 = 4;

/// How often a waiting thread gives the processor away for those who want the lock for a moment.
const COURTESY: u32 = 64;

/// How a waiting thread behaves before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Looks at the links with a pause instruction in between.
    pub spins: u32,
    /// Looks after that with the processor given away in between.
    pub yields: u32,
    /// Whoever shares a processor moves to its own; None: stays where it is.
    pub place: Option<Place>,
}

/// What the communicators of a rank share.
pub(crate) struct Context {
    guarded: Mutex<Guarded>,
    /// Threads that want the lock for a moment. The lock is not fair: whoever turns the crank takes it again before they
    /// are awake, and has to let them.
    passing: AtomicUsize,
    /// Operations have ended, or a driver is wanted: for callers that wait.
    changed: Condvar,
    /// There is work in the background: for the progress thread, which nothing else may wake.
    wanted: Condvar,
    /// Wakes the driver.
    wake: OwnedFd,
    /// Wakes the driver when time lets something happen on a link, more precisely than the timeout of a poll, which the
    /// kernel rounds up by 50 us and more. None if no link is like that.
    alarm: Option<Alarm>,
    stop: AtomicBool,
    patience: Patience,
    /// [`SLEEP_MAX`]; far more where a test is to see who is woken and who only wakes.
    sleep_max: Duration,
    report: Box<Report>,
}

/// Takes the report of an operation that does not move.
type Report = dyn Fn(&Stall) + Send + Sync;

struct Guarded {
    core: Core,
    /// A thread sleeps on the descriptors.
    driver: bool,
    /// The operation whose end the driver waits for, until it has been woken for it.
    awaited: Option<Ticket>,
    /// Counts what may have changed the descriptors to wait for, or the next deadline; and the count that the driver
    /// knows.
    changes: u64,
    changes_known: u64,
    /// The progress thread waits for `wanted`.
    resting: bool,
    /// Callers that wait for `changed`.
    waiters: usize,
    /// Threads that are unparked when operations have ended, numbered: one may be here several times.
    listeners: Vec<(u64, Thread)>,
    listeners_before: u64,
    descriptors: Vec<Descriptor>,
}

impl Context {
    /// A context for a core. `patience` is that of callers; `report` is called by the progress thread, without the lock.
    pub fn new(core: Core, patience: Patience, report: Box<Report>) -> std::io::Result<Context> {
        let alarm = if core.keeps_time() { Some(Alarm::new()?) } else { None };
        Ok(Context {
            guarded: Mutex::new(Guarded {
                core,
                driver: false,
                awaited: None,
                changes: 0,
                changes_known: 0,
                resting: false,
                waiters: 0,
                listeners: Vec::new(),
                listeners_before: 0,
                descriptors: Vec::new(),
            }),
            passing: AtomicUsize::new(0),
            changed: Condvar::new(),
            wanted: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            alarm,
            stop: AtomicBool::new(false),
            patience,
            sleep_max: SLEEP_MAX,
            report,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Guarded> {
        // A panic under the lock is a bug that the panicking thread reports; the others see a failed core or go on.
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, for a moment and before any thread that waits for an operation.
    fn lock_in_passing(&self) -> MutexGuard<'_, Guarded> {
        if let Ok(guarded) = self.guarded.try_lock() {
            return guarded;
        }
        self.passing.fetch_add(1, Ordering::Relaxed);
        let guarded = self.lock();
        self.passing.fetch_sub(1, Ordering::Relaxed);
        guarded
    }

    /// Does something with the core.
    pub fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut guarded = self.lock_in_passing();
        let before = guarded.core.ended;
        let result = act(&mut guarded.core);
        self.announce(before, &mut guarded);
        result
    }

    /// From now on `thread` is unparked when operations have ended. The number ends it.
    pub fn listen(&self, thread: Thread) -> u64 {
        let mut guarded = self.lock_in_passing();
        guarded.listeners_before += 1;
        let number = guarded.listeners_before;
        guarded.listeners.push((number, thread));
        number
    }

    /// Ends what [`Context::listen`] has begun.
    pub fn listen_no_more(&self, number: u64) {
        self.lock_in_passing().listeners.retain(|(listener, _)| *listener != number);
    }

    /// Starts an operation and sends what can be sent at once.
    pub fn post(&self, request: Request, memory: OperationMemory) -> Result<Ticket, Failure> {
        let background = memory.background;
        let mut guarded = self.lock_in_passing();
        let before = guarded.core.ended;
        let ticket = guarded.core.post(request, memory)?;
        self.announce(before, &mut guarded);
        guarded.changes += 1;
        if background && !ticket.ended() {
            self.tell_driver(&mut guarded);
            // The driver may be a caller, who leaves when its own operation has ended.
            if guarded.resting {
                self.wanted.notify_one();
            }
        }
        Ok(ticket)
    }

    /// Starts an operation and waits until it has ended: [`Context::post`] and [`Context::wait`] under one lock, as long
    /// as nobody else wants it.
    pub fn run(&self, request: Request, memory: OperationMemory) -> Result<Ticket, Failure> {
        let mut guarded = self.lock_in_passing();
        let before = guarded.core.ended;
        let ticket = guarded.core.post(request, memory)?;
        self.announce(before, &mut guarded);
        guarded.changes += 1;
        self.drive_for(Some(guarded), Some(&ticket), self.patience, None, &|_| ticket.ended());
        Ok(ticket)
    }

    /// Starts several operations that callers wait for, under one lock, and sends what can be sent at once.
    pub fn post_all(&self, requests: Vec<(Request, OperationMemory)>) -> Vec<Result<Ticket, Failure>> {
        let mut guarded = self.lock_in_passing();
        let before = guarded.core.ended;
        let tickets = requests.into_iter().map(|(request, memory)| guarded.core.post(request, memory)).collect();
        self.announce(before, &mut guarded);
        guarded.changes += 1;
        tickets
    }

    /// Waits until the operation has ended or `until` has passed. True if it has ended.
    pub fn wait(&self, ticket: &Ticket, until: Option<Instant>) -> bool {
        self.drive_for(None, Some(ticket), self.patience, until, &|_| ticket.ended())
    }

    /// Drives until `done`, or `until` has passed. The result of `done`.
    pub fn drive(&self, patience: Patience, until: Option<Instant>, done: &dyn Fn(&Core) -> bool) -> bool {
        self.drive_for(None, None, patience, until, done)
    }

    /// Drives, and leaves to the progress thread what time has still to bring.
    fn drive_for<'a>(
        &'a self,
        held: Option<MutexGuard<'a, Guarded>>,
        awaited: Option<&Ticket>,
        patience: Patience,
        until: Option<Instant>,
        done: &dyn Fn(&Core) -> bool,
    ) -> bool {
        let is_done = self.drive_until(held, awaited, patience, until, done);
        if self.alarm.is_some() {
            let mut guarded = self.lock_in_passing();
            self.tell_driver(&mut guarded);
            if guarded.resting && !guarded.core.is_quiet() {
                self.wanted.notify_one();
            }
        }
        is_done
    }

    /// `held`: the lock, if this thread has it already.
    fn drive_until<'a>(
        &'a self,
        mut held: Option<MutexGuard<'a, Guarded>>,
        awaited: Option<&Ticket>,
        patience: Patience,
        until: Option<Instant>,
        done: &dyn Fn(&Core) -> bool,
    ) -> bool {
        let (mut idle, mut round) = (0, 0_u32);
        loop {
            round = round.wrapping_add(1);
            let look = round.is_multiple_of(ROUNDS_PER_LOOK_AT_CLOCK);
            let mut guarded = match held.take() {
                Some(guarded) => guarded,
                // Perhaps another thread has done all that there was to do.
                None if awaited.is_some_and(Ticket::ended) => return true,
                None => self.lock_to_drive(),
            };
            if done(&guarded.core) {
                return self.leave(&mut guarded, true);
            }
            // Records say when things arrived.
            if look || idle > patience.spins || guarded.core.records.wanted() {
                guarded.core.tick();
            }
            let moved = self.progress(&mut guarded);
            if moved {
                idle = 0;
                if !look {
                    held = if round <= ROUNDS_HELD { self.unless_wanted(guarded) } else { None };
                    continue;
                }
            }
            if done(&guarded.core) {
                return self.leave(&mut guarded, true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return self.leave(&mut guarded, false);
            }
            if moved {
                continue;
            }
            idle += 1;
            if idle <= patience.spins {
                // Letting go of the lock and taking it again costs as much as a look at a link.
                held = if look { None } else { self.unless_wanted(guarded) };
                std::hint::spin_loop();
            } else if idle <= patience.spins + patience.yields {
                drop(guarded);
                match patience.place {
                    Some(place) => give_way(place),
                    None => std::thread::yield_now(),
                }
            } else if guarded.driver {
                let timeout = bounded(self.sleep_max, until);
                self.tell_driver(&mut guarded);
                guarded.waiters += 1;
                let (mut guarded, _) =
                    self.changed.wait_timeout(guarded, timeout).unwrap_or_else(PoisonError::into_inner);
                guarded.waiters -= 1;
            } else {
                self.sleep(guarded, awaited, until, done);
            }
        }
    }

    /// The lock, after those who want it for a moment.
    fn lock_to_drive(&self) -> MutexGuard<'_, Guarded> {
        for _ in 0..COURTESY {
            if self.passing.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        match self.guarded.try_lock() {
            Ok(guarded) => guarded,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                self.lock()
            }
        }
    }

    /// Keeps the lock for another round, unless somebody wants it for a moment. (Others who drive get it at the latest
    /// when this thread looks at the clock.)
    fn unless_wanted<'a>(&self, guarded: MutexGuard<'a, Guarded>) -> Option<MutexGuard<'a, Guarded>> {
        (self.passing.load(Ordering::Relaxed) == 0).then_some(guarded)
    }

    fn progress(&self, guarded: &mut Guarded) -> bool {
        let before = guarded.core.ended;
        let moved = guarded.core.progress();
        guarded.changes += u64::from(moved);
        self.announce(before, guarded);
        moved
    }

    /// Tells callers that operations have ended since there were `before` of them.
    fn announce(&self, before: u64, guarded: &mut Guarded) {
        if guarded.core.ended == before {
            return;
        }
        if guarded.waiters > 0 {
            self.changed.notify_all();
        }
        guarded.listeners.iter().for_each(|(_, thread)| thread.unpark());
        if guarded.awaited.take_if(|awaited| awaited.ended()).is_some() {
            self.ring();
        }
    }

    /// Lets a driver that sleeps look again at what there is to wait for: a socket may have to become writable now.
    fn tell_driver(&self, guarded: &mut Guarded) {
        if guarded.driver && guarded.changes != guarded.changes_known {
            guarded.changes_known = guarded.changes;
            self.ring();
        }
    }

    /// A thread does not drive any more: another one has to, if any waits; and what it leaves unsent has to be sent by the driver, who
    /// perhaps sleeps until something arrives. Returns whether the thread is `done`.
    fn leave(&self, guarded: &mut Guarded, done: bool) -> bool {
        self.hand_over(guarded);
        if guarded.driver && guarded.core.links.iter().flatten().any(|link| !link.is_flushed()) {
            self.tell_driver(guarded);
        }
        done
    }

    /// If nobody drives, those who wait see who does.
    fn hand_over(&self, guarded: &Guarded) {
        if guarded.waiters > 0 && !guarded.driver {
            self.changed.notify_all();
        }
    }

    /// Sleeps as the driver until something happens on a link, or the next deadline. Others who wait are left asleep if this
    /// thread goes on driving: with two threads of a rank, each message would else wake both.
    fn sleep<'a>(
        &'a self,
        mut guarded: MutexGuard<'a, Guarded>,
        awaited: Option<&Ticket>,
        until: Option<Instant>,
        done: &dyn Fn(&Core) -> bool,
    ) {
        guarded.core.prepare_sleep(true);
        // Whatever a peer did before it could see the announcement is visible now.
        if !self.progress(&mut guarded) && !done(&guarded.core) {
            let mut timeout = bounded(self.sleep_max, until);
            if let Some(next) = guarded.core.engine.next_deadline() {
                timeout = timeout.min(next.saturating_sub(guarded.core.now()));
            }
            let mut descriptors = std::mem::take(&mut guarded.descriptors);
            guarded.core.descriptors(&mut descriptors);
            if let Some(alarm) = &self.alarm {
                alarm.set(guarded.core.next_event());
                descriptors.push(Descriptor { fd: alarm.fd(), write: false });
            }
            guarded.driver = true;
            guarded.awaited = awaited.cloned();
            guarded.changes_known = guarded.changes;
            let since = guarded.core.tracer.as_ref().map(|tracer| tracer.now());
            drop(guarded);
            self.poll(&descriptors, timeout);
            guarded = self.lock();
            if let (Some(tracer), Some(since)) = (&mut guarded.core.tracer, since) {
                tracer.slept(since);
            }
            guarded.descriptors = descriptors;
            guarded.driver = false;
            guarded.awaited = None;
        }
        guarded.core.prepare_sleep(false);
        // Whoever finds that leaves without the lock; who leaves for another reason hands over then.
        if awaited.is_some_and(Ticket::ended) {
            self.hand_over(&guarded);
        }
    }

    /// What the progress thread does until [`Context::stop`].
    pub fn run_in_background(&self) {
        let _guard = FailOnPanic(self);
        let patience = Patience { spins: 0, yields: self.patience.yields.min(4), place: None };
        while !self.stop.load(Ordering::Acquire) {
            let mut guarded = self.lock();
            let stalls = std::mem::take(&mut guarded.core.stalls);
            if !stalls.is_empty() {
                drop(guarded);
                stalls.iter().for_each(&self.report);
                continue;
            }
            if guarded.core.is_quiet() {
                let mut guarded = guarded;
                guarded.resting = true;
                let (mut guarded, _) =
                    self.wanted.wait_timeout(guarded, self.sleep_max).unwrap_or_else(PoisonError::into_inner);
                guarded.resting = false;
                if guarded.core.is_quiet() && !guarded.driver {
                    guarded.core.tick();
                    self.progress(&mut guarded);
                }
                continue;
            }
            drop(guarded);
            let stop = &self.stop;
            self.drive(patience, None, &|core| {
                core.is_quiet() || !core.stalls.is_empty() || stop.load(Ordering::Acquire)
            });
        }
    }

    /// Ends the progress thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wanted.notify_one();
        self.ring();
    }
}

/// A panic of the progress thread is a bug, which it reports; nobody waits for what it will not do any more.
struct FailOnPanic<'a>(&'a Context);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the progress thread panicked".to_owned();
            self.0.with(|core| core.fail(Failure::Cancelled { reason }));
        }
    }
}

fn bounded(most: Duration, until: Option<Instant>) -> Duration {
    until.map_or(most, |until| most.min(until.saturating_duration_since(Instant::now())))
}

#[cfg(test)]
mod tests;
