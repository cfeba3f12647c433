//! Threads of one rank that wait at once: whoever can go on is woken. The link hides
//! its descriptors, so that nothing but the other threads can wake a sleeper.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use paceline_collective::Topology;
use paceline_collective::registry::find;
use paceline_engine::frame::{Header, Signature};
use paceline_engine::{Config, Engine, Geometry, RankSchedule};
use paceline_fabric::{Link, LinkError, MemoryLink, Piece, Sink, Transport, memory_pair};
use paceline_plan::{CollectiveKind, OperationKey};

use super::*;
use crate::memory::{Memories, Span};

/// How long a sleeper sleeps that nobody wakes, and what one that is woken never needs, however busy the machine is.
const UNWOKEN: Duration = Duration::from_secs(30);
const AWAKE: Duration = Duration::from_secs(15);

/// How often what a test looks at happens.
const ROUNDS: u64 = 3;

/// How many bytes all messages have.
const BYTES: usize = 8;

/// What a test sees of a link, and does to it.
#[derive(Default)]
struct Knobs {
    /// How often a sleeper has asked for the descriptors.
    asked: AtomicUsize,
    /// Shows them.
    awake: AtomicBool,
    /// Claims that something moves, always.
    restless: AtomicBool,
    /// Panics when it is looked at.
    broken: AtomicBool,
    /// Claims that there are bytes that it could not send.
    full: AtomicBool,
    /// When it was last asked to send, counted over all that share the count.
    flushed: AtomicUsize,
    flushes: Arc<AtomicUsize>,
    /// How often it was looked at.
    looked: AtomicUsize,
}

struct Hidden {
    link: MemoryLink,
    knobs: Arc<Knobs>,
}

impl Link for Hidden {
    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn has_room(&self) -> bool {
        self.link.has_room()
    }

    fn is_flushed(&self) -> bool {
        self.link.is_flushed() && !self.knobs.full.load(Ordering::Relaxed)
    }

    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.link.enqueue(header, payload, ticket) };
    }

    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        self.knobs.flushed.store(self.knobs.flushes.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.link.flush(sent)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        assert!(!self.knobs.broken.load(Ordering::Relaxed), "a bug");
        self.knobs.looked.fetch_add(1, Ordering::Relaxed);
        Ok(self.link.receive(sink)? || self.knobs.restless.load(Ordering::Relaxed))
    }

    fn descriptors(&self, into: &mut Vec<Descriptor>) {
        self.knobs.asked.fetch_add(1, Ordering::Relaxed);
        if self.knobs.awake.load(Ordering::Relaxed) {
            self.link.descriptors(into);
        }
    }

    fn prepare_sleep(&mut self, asleep: bool) {
        self.link.prepare_sleep(asleep);
    }

    fn abandon(&mut self) {
        self.link.abandon();
    }

    fn close(&mut self) {
        self.link.close();
    }

    fn settled(&mut self) -> bool {
        self.link.settled()
    }
}

/// Rank 0 behind a hidden link, and rank 1.
struct Pair {
    zero: Arc<Context>,
    one: Arc<Context>,
    knobs: Arc<Knobs>,
}

fn pair() -> Pair {
    pair_that_sleeps_for(UNWOKEN)
}

fn pair_that_sleeps_for(sleep_max: Duration) -> Pair {
    let context = |rank: usize, link: Box<dyn Link>| {
        let links = if rank == 0 { vec![None, Some(link)] } else { vec![Some(link), None] };
        // No nudges and no signs of life: they would wake sleepers, too.
        let never = Duration::from_secs(1000);
        let engine = Engine::new(Config { nudge: never, heartbeat: Duration::ZERO, ..Config::new(rank, 2) });
        let core = Core::new(engine, links, Memories::default(), rank);
        let patience = Patience { spins: 0, yields: 0, place: None };
        let context = Context::new(core, patience, Box::new(|_| ())).expect("an eventfd");
        Arc::new(Context { sleep_max, ..context })
    };
    let (link, other) = memory_pair();
    let knobs = Arc::new(Knobs::default());
    let zero = context(0, Box::new(Hidden { link, knobs: knobs.clone() }));
    Pair { zero, one: context(1, Box::new(other)), knobs }
}

impl Pair {
    /// Starts the end at a rank of a message from rank 1 to rank 0 with this number.
    fn message(&self, rank: usize, operation: u64, background: bool) -> Ticket {
        let (request, memory) = request(rank, operation, background);
        [&self.zero, &self.one][rank].post(request, memory).expect("nothing has failed")
    }

    /// A thread that receives a message with this number at rank 0, in one call.
    fn call(&self, operation: u64) -> JoinHandle<Instant> {
        let context = self.zero.clone();
        thread::spawn(move || {
            let (request, memory) = request(0, operation, false);
            context.run(request, memory).expect("nothing has failed");
            Instant::now()
        })
    }

    /// A thread of rank 0 that waits for a message with this number, and sleeps.
    fn sleeper(&self, operation: u64) -> JoinHandle<Instant> {
        let ticket = self.message(0, operation, false);
        let asked = self.knobs.asked.load(Ordering::Relaxed);
        let context = self.zero.clone();
        let thread = thread::spawn(move || {
            context.wait(&ticket, None);
            Instant::now()
        });
        until(|| self.knobs.asked.load(Ordering::Relaxed) > asked);
        thread
    }

    /// Rank 0 looks at its links once.
    fn look(&self) {
        self.zero.drive(Patience { spins: 0, yields: 0, place: None }, Some(Instant::now()), &|_| false);
    }
}

/// The end at a rank of a message from rank 1 to rank 0 with this number. The memory is leaked: it outlives everything.
fn request(rank: usize, operation: u64, background: bool) -> (Request, OperationMemory) {
    let algorithm = find(CollectiveKind::SendReceive, "point-to-point").expect("it is in the registry");
    let schedule = RankSchedule::new(&algorithm.rank_program(1 - rank, &Topology::flat(2), 0), 1);
    let request = Request {
        key: OperationKey { operation, ..OperationKey::default() },
        signature: Signature { elements: BYTES as u64, tile_elements: BYTES as u32, ..Signature::default() },
        schedule: Arc::new(schedule),
        geometry: Geometry::uniform(1, BYTES, BYTES),
        group: [1, 0].into(),
        priority: 1,
        deadline: Duration::from_secs(1000),
        window: 1,
        shared_memory: false,
        input_lengths: None,
        tuning: Default::default(),
    };
    let memory = OperationMemory {
        input: Span::of_mut(Box::leak(Box::new([0u8; BYTES]))),
        output: Span::of_mut(Box::leak(Box::new([0u8; BYTES]))),
        background,
        ..OperationMemory::none()
    };
    (request, memory)
}

/// Waits without waking anybody.
fn until(done: impl Fn() -> bool) -> Instant {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < 2 * UNWOKEN, "in vain");
        thread::sleep(Duration::from_micros(200));
    }
    Instant::now()
}

/// The longest of a few measurements.
fn longest(measure: impl Fn(u64) -> Duration) -> Duration {
    (0..ROUNDS).map(measure).max().expect("there are rounds")
}

#[test]
fn a_driver_is_woken_when_another_thread_has_ended_its_operation() {
    let pair = pair();
    let took = longest(|operation| {
        let sleeper = pair.sleeper(operation);
        pair.message(1, operation, false);
        let start = Instant::now();
        pair.look();
        sleeper.join().expect("it only waits") - start
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn a_driver_looks_again_when_another_thread_goes_to_sleep_after_a_change() {
    let pair = pair();
    let took = longest(|round| {
        let first = pair.sleeper(2 * round);
        let asked = pair.knobs.asked.load(Ordering::Relaxed);
        let start = Instant::now();
        let ticket = pair.message(0, 2 * round + 1, false);
        let context = pair.zero.clone();
        let second = thread::spawn(move || context.wait(&ticket, None));
        let took = until(|| pair.knobs.asked.load(Ordering::Relaxed) > asked) - start;
        for operation in [2 * round, 2 * round + 1] {
            pair.message(1, operation, false);
        }
        pair.look();
        first.join().and_then(|_| second.join()).expect("they only wait");
        took
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn a_call_wakes_the_driver_whose_operation_it_has_ended() {
    let pair = pair();
    let took = longest(|round| {
        let (others, own) = (2 * round, 2 * round + 1);
        let sleeper = pair.sleeper(others);
        pair.message(1, others, false);
        pair.message(1, own, false);
        let ended = pair.call(own).join().expect("it only receives");
        sleeper.join().expect("it only waits").saturating_duration_since(ended)
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn a_driver_looks_again_when_a_call_goes_to_sleep() {
    let pair = pair();
    let took = longest(|round| {
        let (others, own) = (2 * round, 2 * round + 1);
        let sleeper = pair.sleeper(others);
        let (asked, start) = (pair.knobs.asked.load(Ordering::Relaxed), Instant::now());
        let call = pair.call(own);
        let took = until(|| pair.knobs.asked.load(Ordering::Relaxed) > asked) - start;
        for operation in [others, own] {
            pair.message(1, operation, false);
        }
        pair.look();
        sleeper.join().and_then(|_| call.join()).expect("they only wait");
        took
    });
    assert!(took < AWAKE, "{took:?}");
}

/// It may have to wait until a socket can be written, which it did not know when it fell asleep.
#[test]
fn a_driver_looks_again_when_a_call_leaves_bytes_unsent() {
    let pair = pair();
    let took = longest(|round| {
        let (others, own) = (2 * round, 2 * round + 1);
        pair.message(1, own, false);
        let sleeper = pair.sleeper(others);
        pair.knobs.full.store(true, Ordering::Relaxed);
        let asked = pair.knobs.asked.load(Ordering::Relaxed);
        let ended = pair.call(own).join().expect("it only receives");
        let told = until(|| pair.knobs.asked.load(Ordering::Relaxed) > asked);
        pair.knobs.full.store(false, Ordering::Relaxed);
        pair.message(1, others, false);
        pair.look();
        sleeper.join().expect("it only waits");
        told - ended
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn threads_that_wait_without_a_change_let_each_other_sleep() {
    let pair = pair();
    let first = pair.sleeper(0);
    let ticket = pair.message(0, 1, false);
    let context = pair.zero.clone();
    let second = thread::spawn(move || context.wait(&ticket, None));
    thread::sleep(Duration::from_millis(20));
    let asked = pair.knobs.asked.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(400));
    let asked = pair.knobs.asked.load(Ordering::Relaxed) - asked;
    pair.zero.with(|core| core.fail(Failure::Cancelled { reason: "enough".into() }));
    first.join().map(|_| ()).and_then(|()| second.join().map(|_| ())).expect("they only wait");
    assert!(asked < 20, "they woke each other {asked} times");
}

/// With two threads of a rank each message would else wake both.
#[test]
fn a_driver_that_is_woken_and_goes_on_leaves_others_asleep() {
    const RINGS: usize = 20;
    let pair = pair();
    let first = pair.sleeper(0);
    let count = |what: &AtomicUsize| what.load(Ordering::Relaxed);
    let looks = || {
        let before = count(&pair.knobs.looked);
        for _ in 0..RINGS {
            let asked = count(&pair.knobs.asked);
            pair.zero.ring();
            until(|| count(&pair.knobs.asked) > asked);
        }
        thread::sleep(Duration::from_millis(20));
        count(&pair.knobs.looked) - before
    };
    let alone = looks();
    let ticket = pair.message(0, 1, false);
    let context = pair.zero.clone();
    let second = thread::spawn(move || context.wait(&ticket, None));
    until(|| pair.zero.lock().waiters > 0);
    let with_another = looks();
    pair.zero.with(|core| core.fail(Failure::Cancelled { reason: "enough".into() }));
    first.join().map(|_| ()).and_then(|()| second.join().map(|_| ())).expect("they only wait");
    assert!(alone >= RINGS && with_another < alone + RINGS / 2, "{alone} looks alone, {with_another} with another");
}

#[test]
fn a_driver_whose_time_is_over_hands_over_to_another() {
    let pair = pair();
    let took = longest(|round| {
        let asked = || pair.knobs.asked.load(Ordering::Relaxed);
        let (ticket, before, context) = (pair.message(0, 2 * round, false), asked(), pair.zero.clone());
        let first = thread::spawn(move || context.wait(&ticket, Some(Instant::now() + Duration::from_millis(300))));
        until(|| asked() > before);
        let (ticket, context) = (pair.message(0, 2 * round + 1, false), pair.zero.clone());
        let second = thread::spawn(move || context.wait(&ticket, None));
        until(|| pair.zero.lock().waiters > 0);
        let before = asked();
        assert!(!first.join().expect("it only waits"), "its message was not sent");
        let start = Instant::now();
        let took = until(|| asked() > before) - start;
        for operation in [2 * round, 2 * round + 1] {
            pair.message(1, operation, false);
        }
        pair.look();
        assert!(second.join().expect("it only waits"));
        took
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn the_progress_thread_takes_over_from_a_caller_who_leaves() {
    let pair = pair();
    pair.knobs.awake.store(true, Ordering::Relaxed);
    let context = pair.zero.clone();
    let progress = thread::spawn(move || context.run_in_background());
    let took = longest(|round| {
        // Once around: from here on the progress thread rests for as long as it does.
        let (first, second, third) = (3 * round, 3 * round + 1, 3 * round + 2);
        let ticket = pair.message(0, first, true);
        pair.message(1, first, false);
        until(|| ticket.ended());
        let caller = pair.sleeper(second);
        let ticket = pair.message(0, third, true);
        pair.message(1, second, false);
        caller.join().expect("it only waits");
        let start = Instant::now();
        pair.message(1, third, false);
        until(|| ticket.ended()) - start
    });
    pair.zero.stop();
    progress.join().expect("it only drives");
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn a_failure_wakes_everybody() {
    let took = longest(|_| {
        let pair = pair();
        let driver = pair.sleeper(0);
        let waiter = pair.message(0, 1, false);
        let context = pair.zero.clone();
        let waiter = thread::spawn(move || {
            context.wait(&waiter, None);
            Instant::now()
        });
        until(|| pair.zero.guarded.lock().expect("no panic").waiters > 0);
        let start = Instant::now();
        pair.zero.with(|core| core.fail(Failure::Cancelled { reason: "enough".into() }));
        let (driver, waiter) = (driver.join().expect("it only waits"), waiter.join().expect("it only waits"));
        driver.max(waiter) - start
    });
    assert!(took < AWAKE, "{took:?}");
}

#[test]
fn a_panic_of_the_progress_thread_is_the_end_of_what_is_pending() {
    let pair = pair_that_sleeps_for(SLEEP_MAX);
    pair.knobs.broken.store(true, Ordering::Relaxed);
    let context = pair.zero.clone();
    let progress = thread::spawn(move || context.run_in_background());
    assert!(progress.join().is_err());
    let failure = pair.zero.with(|core| core.engine.failure().cloned());
    assert_eq!(failure, Some(Failure::Cancelled { reason: "the progress thread panicked".into() }));
}

#[test]
fn a_wait_ends_in_time_though_something_always_moves() {
    let pair = pair();
    pair.knobs.restless.store(true, Ordering::Relaxed);
    let ticket = pair.message(0, 0, false);
    let (context, (done, ended)) = (pair.zero.clone(), mpsc::channel());
    thread::spawn(move || done.send(context.wait(&ticket, Some(Instant::now() + Duration::from_millis(20)))));
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(false));
}

/// A shard that woke the worker beside it first would lose the processor before it has told the others.
#[test]
fn who_shares_a_process_is_told_last() {
    let flushes = Arc::new(AtomicUsize::new(0));
    let knobs = [(); 3].map(|()| Arc::new(Knobs { flushes: flushes.clone(), ..Knobs::default() }));
    let (mut links, mut others): (Vec<Option<Box<dyn Link>>>, _) = (vec![None], Vec::new());
    for knobs in &knobs {
        knobs.full.store(true, Ordering::Relaxed);
        let (link, other) = memory_pair();
        links.push(Some(Box::new(Hidden { link, knobs: knobs.clone() })));
        others.push(other);
    }
    let mut core = Core::new(Engine::new(Config::new(0, 4)), links, Memories::default(), 0);
    core.tell_last(&[0, 2]);
    core.progress();
    let order = knobs.map(|knobs| knobs.flushed.load(Ordering::Relaxed));
    assert!(order[0] < order[2] && order[2] < order[1] && order[0] > 0, "{order:?}");
}
