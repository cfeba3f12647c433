//! What a decision costs.

use std::ffi::c_int;
use std::hint::black_box;
use std::time::Instant;

use crate::counting::allocations;
use crate::library::Library;
use crate::nccl::{Question, Tuner};
use crate::releases::Release;

/// What was seen of so many calls.
#[derive(Debug)]
pub struct Cost {
    pub allocations: u64,
    pub median_ns: f64,
    /// Of the last call.
    pub decided: bool,
}

/// Asks again and again about all-reduces of many sizes, as NCCL would, in batches whose times are compared.
pub fn measure(library: &dyn Library, release: &Release, calls: usize) -> Cost {
    const BATCH: usize = 1000;
    let tuner = Tuner::find(library, release).expect("a tuner");
    let context = tuner.init(16, 2, None).expect("a communicator");
    let shape = (release.algorithms, 3);
    // One more, for plug-ins that write behind the table.
    let fresh = vec![5.0_f32; shape.0 * shape.1 + 1];
    let mut costs = fresh.clone();
    let mut times_ns = Vec::with_capacity(calls.div_ceil(BATCH));
    let (mut channels, mut sum): (c_int, c_int) = (0, 0);
    let before = allocations();
    for batch in 0..calls.div_ceil(BATCH) {
        let began = Instant::now();
        for call in 0..BATCH {
            costs.copy_from_slice(&fresh);
            let bytes = 1 << ((batch + call) % 31);
            let question = Question { function: 4, bytes, operations: 1, can_register: 0 };
            sum |= tuner.ask(context, black_box(&question), costs.as_mut_ptr(), shape, &mut channels);
        }
        times_ns.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    let allocations = allocations() - before;
    assert_eq!(sum, 0);
    let decided = costs.contains(&0.0);
    assert_eq!(tuner.end(context), 0);
    times_ns.sort_by(f64::total_cmp);
    Cost { allocations, median_ns: times_ns[times_ns.len() / 2], decided }
}
