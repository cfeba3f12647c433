//! What a trace says of a GPU's memory.

use paceline_plan::MemoryNeed;

use super::events::Trace;
use super::iteration::Iteration;

/// What a worker takes, and what of it for each sample: the least that is allocated between the ends of the first and the last
/// iteration is there whatever is computed, and what is beyond it at most is the samples'. (The gradients among it, which are made anew in
/// each iteration, are not; while most of them are there, little else is.) None: recorded without profile_memory, or of a
/// single iteration, in which the optimiser may have made its state; or so many parameters are not all there as f32, so that this
/// is not what the profile's worker takes.
pub(super) fn memory_need(
    trace: &Trace,
    all: &[Iteration<'_>],
    local_batch: usize,
    parameters: usize,
) -> Option<MemoryNeed> {
    let [first, .., last] = all else { return None };
    let counted = first.update_us.1..=last.update_us.1;
    let within = trace.allocated.iter().filter(|allocated| counted.contains(&allocated.at_us));
    // A process may hold something on another GPU, too.
    let device = within.clone().max_by_key(|allocated| allocated.bytes)?.device;
    let bytes = within.filter(|allocated| allocated.device == device).map(|allocated| allocated.bytes);
    let least = bytes.clone().min().filter(|bytes| *bytes >= MemoryNeed::of_parameters(parameters))?;
    let most = bytes.max()?;
    Some(MemoryNeed {
        fixed_bytes: least,
        bytes_per_sample: (most - least).div_ceil(local_batch.max(1) as u64),
        available_bytes: trace.device_bytes.get(&device).copied().filter(|bytes| *bytes > 0),
    })
}
