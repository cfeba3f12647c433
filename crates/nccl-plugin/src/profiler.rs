//! The profiler, versions 4 to 6: which algorithm really ran, with how many channels and threads, and what it took on the
//! GPU. It records only while somebody wants it: a call in so many is enough, and costs nothing in between.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};

use paceline_tune::nccl::{Algorithm, Function, Protocol};

use crate::abi::{Logger, NcclResult, Profiler, ProfilerInitV4, ProfilerInitV5};
use crate::samples::{self, Collective, Sample};
use crate::{NAME, guarded, state};

/// Kinds of events.
const COLLECTIVE: u64 = 1 << 1;
const KERNEL_CHANNEL: u64 = 1 << 6;
/// A channel's end, with its time.
const KERNEL_CHANNEL_STOP: c_int = 22;
/// An event of a channel: its number, above the collective's.
const CHANNEL_SHIFT: u32 = 48;

/// Where NCCL reads which events are wanted: one place for all communicators.
static MASK: AtomicPtr<c_int> = AtomicPtr::new(ptr::null_mut());
static WANTED: AtomicBool = AtomicBool::new(false);

/// For NCCL 2.27.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v4: Profiler<ProfilerInitV4> = Profiler {
    name: NAME.as_ptr(),
    init: init_v4,
    start_event: start_event_v4,
    stop_event,
    record_event_state,
    finalize,
};

/// For NCCL 2.28.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v5: Profiler<ProfilerInitV5> = Profiler {
    name: NAME.as_ptr(),
    init: init_v5,
    start_event: start_event_v5,
    stop_event,
    record_event_state,
    finalize,
};

/// For NCCL 2.29 and later.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v6: Profiler<ProfilerInitV5> = Profiler {
    name: NAME.as_ptr(),
    init: init_v5,
    start_event: start_event_v5,
    stop_event,
    record_event_state,
    finalize,
};

/// What NCCL keeps for a communicator.
struct Context {
    communicator: u64,
    rank: i32,
}

/// Switches recording on or off, for all communicators, from their next group of calls on.
pub fn want(wanted: bool) {
    WANTED.store(wanted, Relaxed);
    set_mask();
}

fn set_mask() {
    let mask = MASK.load(Relaxed);
    if mask.is_null() {
        return;
    }
    let events = if WANTED.load(Relaxed) { (COLLECTIVE | KERNEL_CHANNEL) as c_int } else { 0 };
    // SAFETY: NCCL's own variable, which lives as long as NCCL does and which it reads atomically.
    unsafe { AtomicI32::from_ptr(mask) }.store(events, Relaxed);
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    communicator: u64,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> NcclResult {
    // SAFETY: as NCCL calls us, so we call on.
    unsafe { init_v5(context, communicator, mask, name, hosts, ranks, rank, logger) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    communicator: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> NcclResult {
    guarded(|| {
        let on = state::begin(logger);
        if context.is_null() || mask.is_null() {
            return;
        }
        // Kept for ever: events of a communicator may come after its end.
        let kept: &'static Context = Box::leak(Box::new(Context { communicator, rank }));
        // SAFETY: NCCL gives a place for the context.
        unsafe { context.write(ptr::from_ref(kept).cast_mut().cast()) };
        if on {
            MASK.store(mask, Relaxed);
            if state::profiles() {
                WANTED.store(true, Relaxed);
            }
            set_mask();
        }
    })
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> NcclResult {
    crate::abi::SUCCESS
}

unsafe extern "C" fn start_event_v4(context: *mut c_void, handle: *mut *mut c_void, event: *mut c_void) -> NcclResult {
    // SAFETY: as NCCL calls us, so we call on; up to version 4 an event's kind is one byte.
    unsafe { start_event(context, handle, event, |event| u64::from(event.read::<u8>(0))) }
}

unsafe extern "C" fn start_event_v5(context: *mut c_void, handle: *mut *mut c_void, event: *mut c_void) -> NcclResult {
    // SAFETY: as NCCL calls us, so we call on; from version 5 on it is eight.
    unsafe { start_event(context, handle, event, |event| event.read::<u64>(0)) }
}

/// # Safety
/// `handle` and `event` are null or NCCL's; `context` is null or what `init` put there.
unsafe fn start_event(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *mut c_void,
    kind: impl FnOnce(Event) -> u64,
) -> NcclResult {
    guarded(|| {
        if handle.is_null() {
            return;
        }
        let number = if event.is_null() {
            None
        } else {
            let event = Event(event.cast_const().cast());
            match kind(event) {
                // SAFETY: what `init` put there is never freed.
                COLLECTIVE => unsafe { context.cast::<Context>().as_ref() }.and_then(|context| event.begin(context)),
                KERNEL_CHANNEL => event.begin_channel(),
                _ => None,
            }
        };
        // SAFETY: NCCL's place. Without a handle it says nothing more about the event.
        unsafe { handle.write(ptr::without_provenance_mut(number.unwrap_or(0) as usize)) };
    })
}

unsafe extern "C" fn stop_event(_handle: *mut c_void) -> NcclResult {
    // A collective's stop means that it was enqueued; a channel's brings no time.
    crate::abi::SUCCESS
}

unsafe extern "C" fn record_event_state(handle: *mut c_void, state: c_int, arguments: *mut c_void) -> NcclResult {
    guarded(|| {
        let number = handle.addr() as u64;
        let channel = (number >> CHANNEL_SHIFT) as u8;
        if state != KERNEL_CHANNEL_STOP || channel == 0 || arguments.is_null() {
            return;
        }
        // SAFETY: with this state the arguments begin with the time.
        let end_ns = unsafe { arguments.cast::<u64>().read_unaligned() };
        samples::end_channel(Collective::of_number(number & ((1 << CHANNEL_SHIFT) - 1)), channel - 1, end_ns);
    })
}

/// NCCL's description of an event, of version 4, 5 or 6: these have the same fields in the same places, as far as they are
/// read here. It is there for the time of the call.
#[derive(Clone, Copy)]
struct Event(*const u8);

impl Event {
    /// The field at an offset.
    fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: `Event` is only made of what NCCL gives to `startEvent`, and read at offsets that all kinds of events have,
        // or, after their kind was looked at, that this kind has; the types are numbers and pointers, which any bytes are.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    fn text(self, offset: usize) -> &'static [u8] {
        let text: *const c_char = self.read(offset);
        if text.is_null() {
            return &[];
        }
        // SAFETY: NCCL's names are constants of its library.
        unsafe { CStr::from_ptr(text) }.to_bytes()
    }

    fn begin(self, context: &Context) -> Option<u64> {
        let channels = u32::from(self.read::<u8>(80));
        let sample = Sample {
            communicator: context.communicator,
            sequence: self.read(24),
            bytes: self.read::<u64>(56).saturating_mul(bytes_of(self.text(72))),
            rank: context.rank,
            function: number(Function::ALL.iter().map(|function| function.name()), self.text(32)),
            algorithm: number(Algorithm::ALL.iter().map(|algorithm| algorithm.name()), self.text(88)),
            protocol: number(Protocol::ALL.iter().map(|protocol| protocol.name()), self.text(96)),
            channels,
            threads: 32 * u32::from(self.read::<u8>(81)),
            ..Sample::default()
        };
        samples::begin(sample).map(Collective::number)
    }

    /// The collective is the event above.
    fn begin_channel(self) -> Option<u64> {
        let collective = self.read::<usize>(8) as u64;
        let channel: u8 = self.read(24);
        if collective == 0 || collective >> CHANNEL_SHIFT != 0 || channel == u8::MAX {
            return None;
        }
        samples::begin_channel(Collective::of_number(collective), channel, self.read(32));
        Some(collective | u64::from(channel + 1) << CHANNEL_SHIFT)
    }
}

/// The place of a name, whatever its case and underscores; -1 if it is not there.
fn number(names: impl Iterator<Item = &'static str>, name: &[u8]) -> i32 {
    let plain =
        |text: &[u8]| -> Vec<u8> { text.iter().filter(|byte| **byte != b'_').map(u8::to_ascii_lowercase).collect() };
    let wanted = plain(name);
    let mut numbered = (0..).zip(names);
    numbered.find(|(_, name)| plain(name.as_bytes()) == wanted).map_or(-1, |(number, _)| number)
}

/// Bytes of an element, from names such as `ncclFloat16`, `ncclInt64`, `ncclFloat8e4m3`.
fn bytes_of(name: &[u8]) -> u64 {
    let digits = name.iter().skip_while(|byte| !byte.is_ascii_digit()).take_while(|byte| byte.is_ascii_digit());
    match digits.copied().collect::<Vec<u8>>().as_slice() {
        b"64" => 8,
        b"32" => 4,
        b"16" => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        let algorithm = |name: &[u8]| number(Algorithm::ALL.iter().map(|algorithm| algorithm.name()), name);
        assert_eq!((algorithm(b"TREE"), algorithm(b"COLLNET_DIRECT"), algorithm(b"NVLS_TREE")), (0, 2, 5));
        assert_eq!((algorithm(b""), algorithm(b"STAR")), (-1, -1));
        for (name, bytes) in [("ncclFloat32", 4), ("ncclBfloat16", 2), ("ncclUint64", 8), ("ncclFloat8e4m3", 1)] {
            assert_eq!(bytes_of(name.as_bytes()), bytes, "{name}");
        }
        assert_eq!(bytes_of(b""), 1);
    }
}
