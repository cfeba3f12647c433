//! The profiler, versions 4 to 6: which algorithm really ran, with how many channels and threads, and what it took on the
//! GPU. It records only while somebody wants it: a call in so many is enough. In between NCCL asks for no events; while it
//! records, NCCL itself is slower for it (docs/nccl.md).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use paceline_tune::nccl::{Algorithm, Function, Protocol};

use crate::abi::{Logger, NcclResult, Profiler, ProfilerInitV4, ProfilerInitV5};
use crate::samples::{self, Collective, Sample};
use crate::stay::stay;
use crate::{NAME, guarded, state};

/// Kinds of events.
const COLLECTIVE: u64 = 1 << 1;
const KERNEL_CHANNEL: u64 = 1 << 6;
/// A channel's end, with its time.
const KERNEL_CHANNEL_STOP: c_int = 22;
/// An event of a channel: its number, above the collective's.
const CHANNEL_SHIFT: u32 = 48;

static RECORDING: Mutex<Recording> = Mutex::new(Recording { mask: None, communicators: 0, began: 0, wanted: None });

/// Whether events are recorded. It changes rarely, so under a lock: it is the same in all places.
struct Recording {
    /// Where NCCL reads which events are wanted: one place for all communicators, while there are any.
    mask: Option<Mask>,
    /// That have not ended.
    communicators: u64,
    /// That ever began.
    began: u64,
    /// What the program said last, or the environment, if it said nothing before the first communicator.
    wanted: Option<bool>,
}

struct Mask(*mut c_int);

// SAFETY: NCCL reads it from any thread, atomically, and so it is written here.
unsafe impl Send for Mask {}

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
    instance: u64,
    rank: i32,
    ranks: u32,
    hosts: u32,
    /// Whether it is counted among those that record.
    counted: bool,
}

/// Switches recording on or off, for all communicators, from their next group of calls on. Returns whether there are any.
pub fn want(wanted: bool) -> bool {
    // Who records wants to find the samples, and not to begin anew.
    stay();
    let mut recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    recording.wanted = Some(wanted);
    recording.tell();
    recording.mask.is_some()
}

impl Recording {
    fn tell(&self) {
        let Some(Mask(mask)) = self.mask else { return };
        let events = if self.wanted == Some(true) { (COLLECTIVE | KERNEL_CHANNEL) as c_int } else { 0 };
        // SAFETY: NCCL's own variable, which is there as long as a communicator is, and which NCCL reads atomically.
        unsafe { AtomicI32::from_ptr(mask) }.store(events, Relaxed);
    }

    fn begin(&mut self, mask: Mask) {
        self.communicators += 1;
        self.mask = Some(mask);
        // Once: whoever switched it off since then stays heard.
        self.wanted.get_or_insert_with(state::profiles);
        self.tell();
    }

    /// Without a communicator NCCL may go, and its variable with it.
    fn end(&mut self) {
        self.communicators = self.communicators.saturating_sub(1);
        if self.communicators == 0 {
            self.mask = None;
        }
    }
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
    // SAFETY: the arguments are NCCL's, and mean the same in version 5.
    unsafe { init_v5(context, communicator, mask, name, hosts, ranks, rank, logger) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    communicator: u64,
    mask: *mut c_int,
    _name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> NcclResult {
    guarded(|| {
        let on = state::begin(logger);
        if context.is_null() || mask.is_null() {
            return;
        }
        let mut recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
        recording.began += 1;
        let instance = recording.began;
        let (ranks, hosts) = (u32::try_from(ranks).unwrap_or(0), u32::try_from(hosts).unwrap_or(0));
        // Kept for ever: events of a communicator may come after its end.
        let kept: &'static Context =
            Box::leak(Box::new(Context { communicator, instance, rank, ranks, hosts, counted: on }));
        // SAFETY: NCCL gives a place for the context, which was seen not to be null.
        unsafe { context.write(ptr::from_ref(kept).cast_mut().cast()) };
        if on {
            recording.begin(Mask(mask));
        }
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    guarded(|| {
        // SAFETY: NCCL gives back what `init` put there, which is never freed, or null.
        if unsafe { context.cast::<Context>().as_ref() }.is_some_and(|context| context.counted) {
            RECORDING.lock().unwrap_or_else(PoisonError::into_inner).end();
        }
    })
}

unsafe extern "C" fn start_event_v4(context: *mut c_void, handle: *mut *mut c_void, event: *mut c_void) -> NcclResult {
    // SAFETY: the arguments are NCCL's; up to version 4 an event's kind is one byte, at its beginning.
    unsafe { start_event(context, handle, event, |event| u64::from(event.byte(0))) }
}

unsafe extern "C" fn start_event_v5(context: *mut c_void, handle: *mut *mut c_void, event: *mut c_void) -> NcclResult {
    // SAFETY: the arguments are NCCL's; from version 5 on an event's kind is eight bytes, at its beginning.
    unsafe { start_event(context, handle, event, |event| event.number(0)) }
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
            // SAFETY: NCCL's description of an event, for the time of this call. All kinds have the first 24 bytes; the rest is
            // read when the kind is known.
            let event = unsafe { Event::new(event.cast_const().cast()) };
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
    /// # Safety
    /// What NCCL gives to `startEvent`, and it is not kept; fields are read at offsets that all kinds have, or, after the kind
    /// was looked at, that this kind has.
    unsafe fn new(event: *const u8) -> Event {
        Event(event)
    }

    fn byte(self, offset: usize) -> u8 {
        // SAFETY: the promise of `new`; any byte is a number.
        unsafe { self.0.add(offset).read() }
    }

    fn number(self, offset: usize) -> u64 {
        // SAFETY: the promise of `new`; any eight bytes are a number.
        unsafe { self.0.add(offset).cast::<u64>().read_unaligned() }
    }

    /// A name of NCCL's, empty where there is none.
    fn name(&self, offset: usize) -> &[u8] {
        // SAFETY: the promise of `new`; any eight bytes are an address, valid or not.
        let text = unsafe { self.0.add(offset).cast::<*const c_char>().read_unaligned() };
        if text.is_null() {
            return &[];
        }
        // SAFETY: fields that are names hold null or terminated texts that outlive the call.
        unsafe { CStr::from_ptr(text) }.to_bytes()
    }

    fn begin(self, context: &Context) -> Option<u64> {
        let function = place_of(Function::ALL.iter().map(|function| function.name()), self.name(32));
        let sample = Sample {
            communicator: context.communicator,
            instance: context.instance,
            sequence: self.number(24),
            policy: state::version(),
            bytes: bytes(function, self.number(56), bytes_of(self.name(72))?, context.ranks),
            rank: context.rank,
            ranks: context.ranks,
            hosts: context.hosts,
            function,
            algorithm: place_of(Algorithm::ALL.iter().map(|algorithm| algorithm.name()), self.name(88)),
            protocol: place_of(Protocol::ALL.iter().map(|protocol| protocol.name()), self.name(96)),
            channels: u32::from(self.byte(80)),
            threads: 32 * u32::from(self.byte(81)),
            ..Sample::default()
        };
        samples::begin(sample).map(Collective::number)
    }

    /// The collective is the event above.
    fn begin_channel(self) -> Option<u64> {
        let (collective, channel) = (self.number(8), self.byte(24));
        if collective == 0 || collective >> CHANNEL_SHIFT != 0 || channel == u8::MAX {
            return None;
        }
        samples::begin_channel(Collective::of_number(collective), channel, self.number(32));
        Some(collective | u64::from(channel + 1) << CHANNEL_SHIFT)
    }
}

/// Bytes as a tuner is asked with them. Events count the elements of one rank; tuners are told what all ranks gather or scatter
/// (`ncclFuncMaxSendRecvCount`).
fn bytes(function: i32, elements: u64, size: u64, ranks: u32) -> u64 {
    let all = [Function::AllGather, Function::ReduceScatter].iter().any(|all| all.number() as i32 == function);
    elements.saturating_mul(size).saturating_mul(if all { u64::from(ranks) } else { 1 })
}

/// The place of a name, whatever its case and underscores; -1 if it is not there.
fn place_of(mut names: impl Iterator<Item = &'static str>, name: &[u8]) -> i32 {
    fn plain(text: &[u8]) -> impl Iterator<Item = u8> {
        text.iter().filter(|byte| **byte != b'_').map(u8::to_ascii_lowercase)
    }
    names.position(|known| plain(known.as_bytes()).eq(plain(name))).map_or(-1, |place| place as i32)
}

/// Bytes of an element, from names such as `ncclFloat16`, `ncclInt64`, `ncclFloat8e4m3`; none where it is not known.
fn bytes_of(name: &[u8]) -> Option<u64> {
    let from = name.iter().position(u8::is_ascii_digit)?;
    let digits = &name[from..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    match &digits[..end] {
        b"64" => Some(8),
        b"32" => Some(4),
        b"16" => Some(2),
        b"8" => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        let algorithm = |name: &[u8]| place_of(Algorithm::ALL.iter().map(|algorithm| algorithm.name()), name);
        assert_eq!((algorithm(b"TREE"), algorithm(b"COLLNET_DIRECT"), algorithm(b"NVLS_TREE")), (0, 2, 5));
        assert_eq!((algorithm(b""), algorithm(b"STAR")), (-1, -1));
        for (name, bytes) in [("ncclFloat32", 4), ("ncclBfloat16", 2), ("ncclUint64", 8), ("ncclFloat8e4m3", 1)] {
            assert_eq!(bytes_of(name.as_bytes()), Some(bytes), "{name}");
        }
        assert_eq!((bytes_of(b""), bytes_of(b"ncclFloat"), bytes_of(b"ncclInt128")), (None, None, None));
    }

    #[test]
    fn bytes_are_those_that_rules_are_about() {
        for (function, expected) in [(0, 4000), (1, 4000), (2, 64_000), (3, 64_000), (4, 4000), (-1, 4000)] {
            assert_eq!(bytes(function, 1000, 4, 16), expected, "{function}");
        }
        assert_eq!(bytes(2, u64::MAX, 8, 16), u64::MAX);
    }

    /// Both kinds of switching: the variable once, the program whenever it likes.
    #[test]
    fn what_was_said_last_holds_for_all_communicators() {
        let (mut first, mut second) = (-1, -1);
        let mut recording = Recording { mask: None, communicators: 0, began: 0, wanted: None };
        recording.begin(Mask(&raw mut first));
        assert_eq!((first, recording.wanted), (0, Some(false)), "nothing was said, so it is off");
        recording.wanted = Some(true);
        recording.begin(Mask(&raw mut second));
        assert_eq!(second, 66);
        recording.wanted = Some(false);
        recording.begin(Mask(&raw mut second));
        assert_eq!(second, 0, "a communicator that begins later does not switch it on again");
        (0..3).for_each(|_| recording.end());
        assert!(recording.mask.is_none(), "NCCL may be gone");
        recording.wanted = Some(true);
        recording.tell();
        assert_eq!(second, 0);
    }
}
