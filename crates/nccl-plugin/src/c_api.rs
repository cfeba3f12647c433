//! For the program that trains, in the process that NCCL has loaded this library into: a policy that was just learned, and
//! what calls took. `include/paceline_nccl.h` declares it for C, `python/paceline_nccl.py` for Python; all three change together.
//!
//! All ranks change their policy together: each prepares it; an agreement of the program's own shows that all have the same
//! one ([`paceline_nccl_prepared_fingerprint`]); then, at the end of an iteration, with no call of NCCL's under way, each
//! activates it, and a second agreement shows that all have ([`paceline_nccl_policy_fingerprint`]). Both go over something
//! else than NCCL, which hangs where it is not so. No function waits for another rank.

use std::ffi::{c_char, c_int};
use std::slice;

use paceline_tune::nccl::Function;

use crate::policy::{Call, Policy};
use crate::samples::{self, Sample};
use crate::{costs, profiler, state};

/// It was done.
const DONE: c_int = 0;
/// It was refused.
const REFUSED: c_int = 1;

/// What these functions have as results. Raised when one of them, or [`Sample`], changes.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_interface() -> u32 {
    4
}

/// Checks a policy (TOML or CSV, UTF-8, not terminated) and keeps it for [`paceline_nccl_policy_activate`]. 0: done. 1: refused;
/// why stands in `message`, terminated, cut to `capacity` bytes. Either way a policy that was prepared before is forgotten, and
/// the one that decides goes on.
///
/// # Safety
/// `text` is null or has `length` bytes; `message` is null or has room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paceline_nccl_policy_prepare(
    text: *const c_char,
    length: usize,
    message: *mut c_char,
    capacity: usize,
) -> c_int {
    let mut outcome = Err("the policy was given up: please report this".to_owned());
    crate::guarded(|| {
        state::discard();
        let bytes: &[u8] = match text.is_null() {
            true => &[],
            // SAFETY: the caller's promise.
            false => unsafe { slice::from_raw_parts(text.cast::<u8>(), length) },
        };
        let policy = std::str::from_utf8(bytes).map_err(|error| error.to_string());
        let policy = policy.and_then(|text| Policy::from_text(text).map_err(|error| error.to_string()));
        outcome = policy.and_then(state::prepare);
    });
    let words = outcome.as_ref().err().map_or("", String::as_str);
    // SAFETY: the caller's promise.
    unsafe { put(words, message, capacity) };
    if outcome.is_ok() { DONE } else { REFUSED }
}

/// Lets the prepared policy decide from the next call on, if it has this fingerprint: the one that the ranks compared. 0: done.
/// 1: none with it is prepared, and nothing has changed.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_policy_activate(fingerprint: u64) -> c_int {
    let mut done = false;
    crate::guarded(|| done = state::activate(fingerprint));
    if done { DONE } else { REFUSED }
}

/// Forgets the prepared policy; the one that decides goes on.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_policy_discard() {
    crate::guarded(state::discard);
}

/// Leaves everything to NCCL from the next call on; on all ranks together, like any other change.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_policy_clear() {
    crate::guarded(state::clear);
}

/// The version of the policy that decides, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_policy_version() -> u64 {
    number(|| state::active().map(|(version, _)| version))
}

/// The fingerprint of the policy that decides, or 0. Equal on all ranks, or the job may hang.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_policy_fingerprint() -> u64 {
    number(|| state::active().map(|(_, fingerprint)| fingerprint))
}

/// The version of the prepared policy, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_prepared_version() -> u64 {
    number(|| state::prepared().map(|(version, _)| version))
}

/// The fingerprint of the prepared policy, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_prepared_fingerprint() -> u64 {
    number(|| state::prepared().map(|(_, fingerprint)| fingerprint))
}

/// How often NCCL has asked about a call, and how often it got an answer. Either place may be null.
///
/// # Safety
/// Each is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paceline_nccl_decisions(asked: *mut u64, answered: *mut u64) {
    let mut counts = (0, 0);
    crate::guarded(|| counts = state::decisions());
    for (place, count) in [(asked, counts.0), (answered, counts.1)] {
        if !place.is_null() {
            // SAFETY: the caller's promise.
            unsafe { place.write(count) };
        }
    }
}

/// Switches on (not 0) or off (0) the recording of what calls take. 0: done. 1: NCCL has no communicator with this library as
/// its profiler now; it holds from the next one on.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_record(wanted: c_int) -> c_int {
    let mut done = false;
    crate::guarded(|| done = profiler::want(wanted != 0));
    if done { DONE } else { REFUSED }
}

/// Fetches samples, the oldest first. Returns how many.
///
/// # Safety
/// `samples` is null or has room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paceline_nccl_samples(samples: *mut Sample, capacity: usize) -> usize {
    if samples.is_null() || capacity == 0 {
        return 0;
    }
    // Room for at most so many is looked at; nobody has more.
    let capacity = capacity.min(1 << 16);
    let mut count = 0;
    crate::guarded(|| {
        for place in 0..capacity {
            let mut sample = [Sample::default()];
            if samples::fetch(&mut sample) == 0 {
                break;
            }
            // SAFETY: the caller's promise; `place` is below the capacity. What lies there need not be a sample yet.
            unsafe { samples.add(place).write(sample[0]) };
            count = place + 1;
        }
    });
    count
}

/// What NCCL's own model says of calls of this kind (function, power of two of bytes, ranks, hosts): the table of costs, in
/// microseconds, that it has handed over with the first of them, algorithm after algorithm with a cost for each protocol; -1 stands where
/// NCCL does not offer it. Returns how many there are, and puts only those that there is room for into `costs_us`; `of_bytes` gets the bytes of that call and `protocols`
/// how many costs an algorithm has. 0: NCCL has handed over none, as up to 2.21.
///
/// # Safety
/// `costs_us` is null or has room for `capacity`; `of_bytes` and `protocols` are null or may be written to.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no slices and no pairs")]
pub unsafe extern "C" fn paceline_nccl_costs(
    function: c_int,
    bytes: u64,
    ranks: u32,
    hosts: u32,
    costs_us: *mut f32,
    capacity: usize,
    of_bytes: *mut u64,
    protocols: *mut u32,
) -> usize {
    let mut count = 0;
    crate::guarded(|| {
        let Some((function, bytes)) = Function::of_number(function).zip(usize::try_from(bytes).ok()) else { return };
        let call = Call { function, bytes, ranks: ranks as usize, hosts: hosts as usize, pipelined: false };
        let Some(table) = costs::of(&call) else { return };
        if !costs_us.is_null() {
            // SAFETY: the caller's promise; a table has room for all of its entries.
            unsafe { costs_us.copy_from_nonoverlapping(table.costs.as_ptr(), table.entries.min(capacity)) };
        }
        if !of_bytes.is_null() {
            // SAFETY: the caller's promise.
            unsafe { of_bytes.write(table.bytes) };
        }
        if !protocols.is_null() {
            // SAFETY: the caller's promise.
            unsafe { protocols.write(table.protocols as u32) };
        }
        count = table.entries;
    });
    count
}

/// How many collectives were recorded and became no sample: there was no room, or NCCL gave no times for all channels.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_nccl_samples_lost() -> u64 {
    number(|| Some(samples::lost()))
}

fn number(read: impl FnOnce() -> Option<u64>) -> u64 {
    let mut number = None;
    crate::guarded(|| number = read());
    number.unwrap_or(0)
}

/// Writes a terminated text, cut where there is no room.
///
/// # Safety
/// `place` is null or has room for `capacity` bytes.
unsafe fn put(text: &str, place: *mut c_char, capacity: usize) {
    if place.is_null() || capacity == 0 {
        return;
    }
    let room = capacity - 1;
    let cut = (0..=room.min(text.len())).rev().find(|length| text.is_char_boundary(*length));
    let length = cut.unwrap_or(0);
    // SAFETY: the caller's promise; length and terminator fit.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        place.add(length).write(0);
    }
}
