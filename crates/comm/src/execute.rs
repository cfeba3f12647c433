//! Carries out the engine's local work.

use paceline_collective::Combine;
use paceline_collective::kernels::Elementwise;
use paceline_engine::{Job, Region, Source};
use paceline_fabric::{Link, LinkError};

use crate::memory::Memories;

/// A remote operand is copied here piece by piece before it is combined: small enough to stay in the second-level cache.
const STAGING_BYTES: usize = 128 << 10;

/// Carries out one job.
pub(crate) fn execute(
    job: &Job,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
    staging: &mut Vec<u8>,
) -> Result<(), (usize, LinkError)> {
    match job {
        Job::Copy { from, into } => copy(from, into, memories, links),
        Job::Combine { left, right, into, combine: Combine::Reduction, last } => {
            let elementwise = memories.operation(into.op.index).combining(*last);
            combine(&elementwise, left, right, into, memories, links, staging)
        }
        Job::Combine { .. } | Job::Map { .. } => {
            unreachable!("the communicator posts no program with kernels, and verifies those that it is given")
        }
    }
}

fn copy(
    from: &Source,
    into: &Region,
    memories: &mut Memories,
    links: &[Option<Box<dyn Link>>],
) -> Result<(), (usize, LinkError)> {
    if into.bytes == 0 {
        return Ok(());
    }
    let target = memories.address(into);
    if let Some(source) = address(from, memories, links) {
        if !std::ptr::eq(source, target) {
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

fn combine(
    elementwise: &Elementwise,
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
            unsafe { elementwise.combine_raw(left, right, target, into.bytes) };
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
                unsafe { elementwise.combine_raw(operand(near_left), operand(near_right), target.add(done), bytes) };
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
