//! Carries out the engine's local work.

use paceline_collective::kernels::{Elementwise, copy_streaming};
use paceline_collective::{Combine, KernelId};
use paceline_engine::{Job, Region, Source};
use paceline_fabric::{Link, LinkError};

use crate::helpers::{Helpers, Piece};
use crate::memory::{Memories, Span};

/// A remote operand is copied here piece by piece before it is combined: small enough to stay in the second-level cache.
const STAGING_BYTES: usize = 128 << 10;

/// Waking a thread and waiting for it costs some 10 µs; less than this, which takes about as long, is not worth it.
const THREAD_BYTES_MIN: usize = 128 << 10;

/// Carries out one job.
pub(crate) fn execute(
    job: &Job,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
    staging: &mut Vec<u8>,
) -> Result<Option<usize>, Trouble> {
    let done = match job {
        Job::Copy { from, into, unread } => copy(from, into, *unread, memories, links),
        Job::Combine { left, right, into, combine: Combine::Reduction, last } => {
            let operation = memories.operation(into.op.index);
            let work = Combination { elementwise: operation.combining(*last), threads: operation.reducing_threads };
            combine(&work, left, right, into, memories, links, staging)
        }
        Job::Combine { left, right, into, combine: Combine::Kernel(kernel), .. } => {
            return apply(*kernel, &[left, right], into, memories, links).map(Some);
        }
        Job::Map { from, into, kernel } => return apply(*kernel, &[from], into, memories, links).map(Some),
    };
    done.map(|()| None).map_err(|(peer, error)| Trouble::Link(peer, error))
}

/// Why a job was not done.
pub(crate) enum Trouble {
    /// The link to a peer is at fault.
    Link(usize, LinkError),
    /// A kernel of the caller's is.
    Kernel(String),
}

/// Calls a kernel; the bytes that it has written.
fn apply(
    kernel: KernelId,
    operands: &[&Source],
    into: &Region,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
) -> Result<usize, Trouble> {
    let mut far = [Vec::new(), Vec::new()];
    let mut slices: [&[u8]; 2] = [&[], &[]];
    let target = memories.address(into);
    for ((operand, far), slice) in operands.iter().zip(&mut far).zip(&mut slices) {
        let bytes = length(operand);
        let near = address(operand, memories, links);
        if bytes == 0 {
            continue;
        }
        // Where the result takes the place of an operand, the kernel sees a copy of it.
        let apart = |start: *const u8| {
            start as usize >= target as usize + into.bytes || start as usize + bytes <= target as usize
        };
        *slice = match near {
            // SAFETY: `bytes` from an address that was checked for as many; nobody writes there now (see `Programs`).
            Some(start) if apart(start) => unsafe { std::slice::from_raw_parts(start, bytes) },
            Some(start) => {
                // SAFETY: as above.
                far.extend_from_slice(unsafe { std::slice::from_raw_parts(start, bytes) });
                far
            }
            None => {
                far.resize(bytes, 0);
                // SAFETY: the vector is ours and `bytes` long.
                unsafe { take(operand, 0, far.as_mut_ptr(), bytes, links) }
                    .map_err(|(peer, error)| Trouble::Link(peer, error))?;
                far
            }
        };
    }
    let room: &mut [u8] = match into.bytes {
        0 => &mut [],
        // SAFETY: as many bytes of the operation's own memory, which no operand overlaps now and the engine gives nobody
        // else.
        bytes => unsafe { std::slice::from_raw_parts_mut(target, bytes) },
    };
    let kernels = memories.operation(into.op.index).kernels.as_deref();
    let call = || match operands.len() {
        1 => kernels.and_then(|kernels| kernels.mapping(kernel)).map(|map| map(slices[0], room)),
        _ => kernels.and_then(|kernels| kernels.combining(kernel)).map(|merge| merge(slices[0], slices[1], room)),
    };
    let refused = |what: String| Trouble::Kernel(format!("kernel {} {what}", kernel.0));
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
        .map_err(|_| refused("panicked; see what it printed".into()))?
        .ok_or_else(|| refused("is not there".into()))?;
    if written > into.bytes {
        return Err(refused(format!("says that it has written {written} bytes where {} have room", into.bytes)));
    }
    for operand in operands {
        still_valid(operand, links).map_err(|(peer, error)| Trouble::Link(peer, error))?;
    }
    Ok(written)
}

fn length(source: &Source) -> usize {
    match source {
        Source::Region(region) => region.bytes,
        Source::Pool { bytes, .. } | Source::Reference { bytes, .. } => *bytes,
    }
}

fn copy(
    from: &Source,
    into: &Region,
    unread: bool,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
) -> Result<(), (usize, LinkError)> {
    if into.bytes == 0 {
        return Ok(());
    }
    let target = memories.address(into);
    if let Some(source) = address(from, memories, links) {
        let distance = source.addr().abs_diff(target.addr());
        if unread && distance >= into.bytes && memories.is_beyond_caches(into.op.index) {
            // SAFETY: both lie in memory of at least `into.bytes` (checked when the addresses were made), and so far
            // apart that they do not overlap. The peer leaves the one alone until it is told, and the engine gives
            // nobody else the other.
            unsafe { copy_streaming(source, target, into.bytes) };
        } else if distance > 0 {
            // SAFETY: both lie in memory of at least `into.bytes` (checked when the addresses were made). Where input
            // and output are one memory they may overlap, hence `copy`.
            unsafe { std::ptr::copy(source, target, into.bytes) };
        }
        return still_valid(from, links);
    }
    // SAFETY: the target is the operation's own memory, and the engine gives nobody else the region.
    unsafe { take(from, 0, target, into.bytes, links) }?;
    still_valid(from, links)
}

/// How operands are combined.
struct Combination {
    elementwise: Elementwise,
    threads: usize,
}

impl Combination {
    /// Combines in so many threads as the caller admits and the length is worth. The bits are those of one thread:
    /// elements do not depend on each other.
    ///
    /// # Safety
    /// As [`Elementwise::combine_raw`].
    unsafe fn run(&self, helpers: &mut Helpers, left: *const u8, right: *const u8, into: *mut u8, bytes: usize) {
        let threads = self.threads.min(bytes / THREAD_BYTES_MIN).max(1);
        if threads == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.elementwise.combine_raw(left, right, into, bytes) };
        }
        // A multiple of any element's size and of a cache line.
        let share = bytes.div_ceil(threads).next_multiple_of(64);
        let piece = move |index: usize| {
            let (start, end) = ((index * share).min(bytes), ((index + 1) * share).min(bytes));
            let part = |of: *mut u8| {
                // SAFETY: `start` is within the ranges that the caller vouches for.
                Span { start: unsafe { of.add(start) }, bytes: end - start }
            };
            let (left, right) = (part(left.cast_mut()), part(right.cast_mut()));
            Piece { elementwise: self.elementwise, left, right, into: part(into) }
        };
        // SAFETY: the caller's promise, of parts that do not overlap.
        unsafe { helpers.combine((0..threads).map(piece)) };
    }
}

fn combine(
    work: &Combination,
    left: &Source,
    right: &Source,
    into: &Region,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
    staging: &mut Vec<u8>,
) -> Result<(), (usize, LinkError)> {
    if into.bytes == 0 {
        return Ok(());
    }
    let target = memories.address(into);
    match (address(left, memories, links), address(right, memories, links)) {
        (Some(left), Some(right)) => {
            // SAFETY: three regions of `into.bytes`, checked when the addresses were made; that nothing else writes to
            // them now, and that the result is an operand or apart from both, `verify` has proved (see `Programs`).
            unsafe { work.run(&mut memories.helpers, left, right, target, into.bytes) };
        }
        (near_left, near_right) => {
            staging.resize(STAGING_BYTES, 0);
            let mut done = 0;
            while done < into.bytes {
                let bytes = STAGING_BYTES.min(into.bytes - done);
                let far = if near_left.is_none() { left } else { right };
                // SAFETY: staging is ours and `bytes` long.
                unsafe { take(far, done, staging.as_mut_ptr(), bytes, links) }?;
                let operand = |near: Option<*const u8>| match near {
                    // SAFETY: the operand is `into.bytes` long and `done` is less.
                    Some(start) => unsafe { start.add(done) },
                    None => staging.as_ptr(),
                };
                // SAFETY: as above; staging is apart from everything.
                unsafe {
                    work.elementwise.combine_raw(operand(near_left), operand(near_right), target.add(done), bytes);
                };
                done += bytes;
            }
        }
    }
    still_valid(left, links)?;
    still_valid(right, links)
}

/// The address of an operand that this process can read.
fn address(source: &Source, memories: &Memories, links: &[Option<Box<dyn Link>>]) -> Option<*const u8> {
    match source {
        Source::Region(region) => Some(memories.address(region).cast_const()),
        Source::Pool { buffer, offset, bytes } => Some(memories.pool(*buffer, *offset, *bytes).as_ptr()),
        Source::Reference { peer, reference, offset, bytes } => {
            let start = links[*peer].as_ref()?.mapped(*reference, offset + bytes)?;
            // SAFETY: the link vouches for `offset + bytes` from the start.
            Some(unsafe { start.add(*offset) })
        }
    }
}

/// Copies a remote operand.
///
/// # Safety
/// `into` is writable for `bytes` and nobody else's.
unsafe fn take(
    source: &Source,
    skip: usize,
    into: *mut u8,
    bytes: usize,
    links: &[Option<Box<dyn Link>>],
) -> Result<(), (usize, LinkError)> {
    let Source::Reference { peer, reference, offset, .. } = source else { return Ok(()) };
    let link = links[*peer].as_ref().ok_or((*peer, LinkError::Closed))?;
    // SAFETY: the caller's promise.
    unsafe { link.take(*reference, offset + skip, into, bytes) }.map_err(|error| (*peer, error))
}

/// What was read from a peer counts only if the peer had not withdrawn it before the reading was done.
fn still_valid(source: &Source, links: &[Option<Box<dyn Link>>]) -> Result<(), (usize, LinkError)> {
    match source {
        Source::Reference { peer, .. } if links[*peer].as_ref().is_none_or(|link| link.withdrawn()) => {
            Err((*peer, LinkError::Closed))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{DataType, Reduction};

    use super::*;

    #[test]
    fn what_no_cache_would_keep_is_copied_all_the_same() {
        use paceline_collective::Space;
        use paceline_engine::OpId;

        use crate::memory::OperationMemory;

        let input: Vec<u32> = (0..10_000).collect();
        for local_ranks in [0, usize::MAX] {
            let mut output = vec![0u32; input.len()];
            let mut memories = Memories::default();
            memories.local_ranks = local_ranks;
            let spans = OperationMemory {
                input: Span::of(&input),
                output: Span::of_mut(&mut output),
                ..OperationMemory::none()
            };
            memories.insert(0, spans);
            assert_eq!(memories.is_beyond_caches(0), local_ranks > 0);
            let region = |space| Region { op: OpId::default(), space, offset: 12, bytes: 39_000 };
            let job =
                Job::Copy { from: Source::Region(region(Space::Input)), into: region(Space::Output), unread: true };
            assert!(matches!(execute(&job, &mut memories, &[], &mut Vec::new()), Ok(None)));
            assert_eq!(output[3..9753], input[3..9753]);
            assert!(output[..3].iter().chain(&output[9753..]).all(|&element| element == 0));
        }
    }

    #[test]
    fn memory_that_is_input_and_output_counts_once() {
        use paceline_collective::kernels::last_level_cache_bytes;

        use crate::memory::OperationMemory;

        // Never touched, so only its length counts.
        let half = Span { start: std::ptr::without_provenance_mut(1 << 20), bytes: last_level_cache_bytes() / 2 + 1 };
        let behind = Span { start: half.start.wrapping_add(half.bytes), ..half };
        let mut memories = Memories::default();
        memories.local_ranks = 1;
        for (output, beyond) in [(half, false), (behind, true)] {
            memories.insert(0, OperationMemory { input: half, output, ..OperationMemory::none() });
            assert_eq!(memories.is_beyond_caches(0), beyond, "{output:?}");
        }
    }

    #[test]
    fn many_threads_give_the_bits_of_one() {
        let elementwise = Elementwise { data_type: DataType::F32, reduction: Reduction::Average, divisor: 3 };
        let mut helpers = Helpers::default();
        for elements in [0, 1, 40_000, 131_072, 300_001] {
            let value = |index: usize, seed: usize| ((index * seed) % 10_007) as f32 * 0.37;
            let operands = [7919, 104_729].map(|seed| (0..elements).map(|i| value(i, seed)).collect::<Vec<f32>>());
            let mut run = |threads| {
                let mut into = vec![0f32; elements];
                let [left, right] = operands.each_ref().map(|operand| operand.as_ptr().cast::<u8>());
                // SAFETY: three ranges of as many bytes, apart from each other.
                unsafe {
                    let work = Combination { elementwise, threads };
                    work.run(&mut helpers, left, right, into.as_mut_ptr().cast(), 4 * elements);
                }
                into.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            let right = run(1);
            assert!([2, 3, 7].into_iter().all(|threads| run(threads) == right), "{elements} elements");
        }
    }
}
