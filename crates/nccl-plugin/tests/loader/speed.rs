//! What a decision costs.

use std::ffi::c_int;
use std::hint::black_box;
use std::time::Instant;

use crate::counting::allocations;
use crate::library::Library;
use crate::nccl::{Context, Direct, Log, Question, Tuner};
use crate::releases::Release;

/// What was seen of so many calls.
#[derive(Debug)]
pub struct Cost {
    pub allocations: u64,
    /// Of a call, by batches.
    pub median_ns: f64,
    /// One batch in a thousand takes longer.
    pub slow_ns: f64,
    /// Of a small all-reduce.
    pub decided: bool,
}

/// A release that asks, and where the answers stand.
struct Asking<'a> {
    tuner: &'a Tuner,
    context: Context,
    shape: (usize, usize),
    fresh: Vec<f32>,
    costs: Vec<f32>,
    direct: Direct,
    channels: c_int,
}

/// What versions 1 and 2 are given to write to.
const UNTOUCHED: Direct = Direct { algorithm: -1, protocol: -1, channels: 0 };

impl<'a> Asking<'a> {
    fn new(tuner: &'a Tuner, context: Context, release: &Release) -> Asking<'a> {
        let shape = (release.algorithms, 3);
        // One more, for plug-ins that write behind the table.
        let fresh = vec![5.0_f32; shape.0 * shape.1 + 1];
        Asking { tuner, context, shape, costs: fresh.clone(), fresh, direct: UNTOUCHED, channels: 0 }
    }

    /// As NCCL would ask about an all-reduce of so many bytes, for which everything is there.
    fn all_reduce(&mut self, bytes: usize) -> c_int {
        let question = black_box(Question { function: 4, bytes, operations: 1, can_register: 0 });
        if self.tuner.version <= 2 {
            self.direct = UNTOUCHED;
            return self.tuner.ask_direct(self.context, &question, &mut self.direct);
        }
        self.costs.copy_from_slice(&self.fresh);
        self.tuner.ask(self.context, &question, self.costs.as_mut_ptr(), self.shape, &mut self.channels)
    }

    fn is_decided(&self) -> bool {
        self.direct != UNTOUCHED || self.costs.contains(&0.0)
    }
}

/// Asks again and again about all-reduces of many sizes, as NCCL would. Times are those of batches, since a clock takes as long
/// as a call: a slow call shows as a slow batch. By the log version 7 finds out which release asks.
pub fn measure(library: &dyn Library, release: &Release, calls: usize, log: Option<Log>) -> Cost {
    const BATCH: usize = 100;
    let tuner = Tuner::find(library, release).expect("a tuner");
    let context = tuner.init(16, 2, log).expect("a communicator");
    let mut asking = Asking::new(&tuner, context, release);
    let mut times_ns = Vec::with_capacity(calls.div_ceil(BATCH));
    let mut sum = 0;
    let before = allocations();
    for batch in 0..calls.div_ceil(BATCH) {
        let began = Instant::now();
        for call in 0..BATCH {
            sum |= asking.all_reduce(1 << ((batch + call) % 31));
        }
        times_ns.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    let allocations = allocations() - before;
    sum |= asking.all_reduce(1024);
    assert_eq!(sum, 0);
    let decided = asking.is_decided();
    assert_eq!(tuner.end(context), 0);
    times_ns.sort_by(f64::total_cmp);
    let of = |share: f64| times_ns[((times_ns.len() - 1) as f64 * share) as usize];
    Cost { allocations, median_ns: of(0.5), slow_ns: of(0.999), decided }
}

/// Allocations, as `counted` counts them, of calls of all functions and of many sizes, and of questions about chunks, where the release
/// asks for them.
pub fn allocations_of(
    library: &dyn Library,
    release: &Release,
    calls: usize,
    log: Log,
    counted: impl Fn() -> u64,
) -> u64 {
    let tuner = Tuner::find(library, release).expect("a tuner");
    let context = tuner.init(16, 2, Some(log)).expect("a communicator");
    // Without a context nothing is looked up. (Version 1 has none.)
    assert!(tuner.version == 1 || !context.is_null(), "NCCL {}", release.nccl);
    let mut costs = [5.0_f32; 21];
    let before = counted();
    for call in 0..calls {
        costs.fill(if call % 3 == 0 { -1.0 } else { 5.0 });
        let (function, bytes, mut channels) = ((call % 6) as c_int, 1_usize << (call % 31), 0);
        let question = Question { function, bytes, operations: 1 + (call % 2) as c_int, can_register: 0 };
        if tuner.version <= 2 {
            let mut answer = UNTOUCHED;
            assert_eq!(tuner.ask_direct(context, &question, &mut answer), 0);
        } else {
            let shape = (release.algorithms, 3);
            assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), shape, &mut channels), 0);
        }
        if tuner.version >= 6 {
            let mut chunk = 131_072;
            let way = (function, bytes, (call % 7) as c_int, (call % 3) as c_int);
            assert_eq!(tuner.chunk(context, way, &mut chunk), Some(0));
        }
    }
    let allocated = counted() - before;
    assert_eq!(tuner.end(context), 0);
    allocated
}
