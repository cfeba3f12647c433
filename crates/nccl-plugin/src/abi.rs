//! The structures through which NCCL and a plug-in know each other, written from the facts of NCCL's documentation and
//! sources (`src/include/plugin/`, and `src/include/nccl_tuner.h` of 2.19 for version 1).
//!
//! Each is exported as data: a name, then functions in this order.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// `ncclResult_t`.
pub type NcclResult = c_int;
/// `ncclSuccess`: the only answer that this plug-in gives. NCCL's header says that it falls back on others; its code fails
/// the collective.
pub const SUCCESS: NcclResult = 0;

/// NCCL's log: level, subsystems, file, line, format, arguments. Null where NCCL has none.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

/// For versions 1 and 2: where NCCL wants algorithm, protocol and channels: function, bytes, whether the network adds up,
/// whether NVLink's switches do, operations, then where to write. NCCL up to 2.21 takes what stands there unchecked.
macro_rules! direct {
    ($($context:ty)?) => {
        unsafe extern "C" fn(
            $($context,)? c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int,
        ) -> NcclResult
    };
}

/// Version 1: NCCL 2.19 and 2.20. There is one tuner for all communicators.
#[repr(C)]
pub struct TunerV1 {
    /// For the log.
    pub name: *const c_char,
    /// Ranks, hosts, log.
    pub init: unsafe extern "C" fn(usize, usize, Logger) -> NcclResult,
    /// What a call takes.
    pub get_coll_info: direct!(),
    /// The end.
    pub destroy: unsafe extern "C" fn() -> NcclResult,
}

/// Ranks, hosts, log, where to put the context.
pub type Init = unsafe extern "C" fn(usize, usize, Logger, *mut *mut c_void) -> NcclResult;
/// The end of a communicator.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> NcclResult;

/// Version 2: NCCL 2.21.
#[repr(C)]
pub struct TunerV2 {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: Init,
    /// What a call takes.
    pub get_coll_info: direct!(*mut c_void),
    /// A communicator ends.
    pub destroy: Finalize,
}

/// Context, function, bytes, operations, table of costs, its algorithms and protocols, channels. The table is declared as a
/// pointer to pointers, and is one piece of memory: row after row.
pub type GetCollInfoV3 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> NcclResult;

/// Version 3: NCCL 2.22 and 2.23.
#[repr(C)]
pub struct TunerV3 {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: Init,
    /// What a call takes.
    pub get_coll_info: GetCollInfoV3,
    /// A communicator ends.
    pub destroy: Finalize,
}

/// As [`GetCollInfoV3`], with whether buffers can be registered before the channels.
pub type GetCollInfoV4 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> NcclResult;

/// Version 4: NCCL 2.24 to 2.27.
#[repr(C)]
pub struct TunerV4 {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: Init,
    /// What a call takes.
    pub get_coll_info: GetCollInfoV4,
    /// A communicator ends.
    pub destroy: Finalize,
}

/// Where to put the context, the communicator's number, ranks, hosts, log, NVLink domains, the model's constants. The last
/// two are not looked at: 2.31 overwrites what is changed there.
pub type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, Logger, *mut c_void, *mut c_void) -> NcclResult;

/// Version 5: NCCL 2.28 and 2.29.
#[repr(C)]
pub struct TunerV5 {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: InitV5,
    /// What a call takes.
    pub get_coll_info: GetCollInfoV4,
    /// A communicator ends.
    pub finalize: Finalize,
}

/// Context, function, bytes (of a channel; all of the call with CollNet, and with NVLS between hosts), algorithm, protocol, channels,
/// chunk in bytes, which may be changed.
pub type GetChunkSize = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> NcclResult;

/// Versions 6 (NCCL 2.30 to 2.32) and 7 (2.32.6; only what lies behind the last argument of `init` differs).
#[repr(C)]
pub struct TunerV6 {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: InitV5,
    /// What a call takes.
    pub get_coll_info: GetCollInfoV4,
    /// A communicator ends.
    pub finalize: Finalize,
    /// In which pieces.
    pub get_chunk_size: GetChunkSize,
}

/// Where to put the context, where NCCL reads which events are wanted, the communicator's name (may be null) and number,
/// hosts, ranks, rank, log.
pub type ProfilerInitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> NcclResult;

/// The same, the communicator's number in second place.
pub type ProfilerInitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> NcclResult;

/// Context, where to put the event's handle, what it is.
pub type StartEvent = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> NcclResult;
/// Handle, state, what belongs to it.
pub type RecordEventState = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> NcclResult;

/// A profiler; `I` is how it begins.
#[repr(C)]
pub struct Profiler<I> {
    /// For the log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: I,
    /// Something begins.
    pub start_event: StartEvent,
    /// It has ended, or with collectives: it has been enqueued.
    pub stop_event: Finalize,
    /// It has come so far.
    pub record_event_state: RecordEventState,
    /// A communicator ends.
    pub finalize: Finalize,
}

/// Declares that threads may share a structure.
macro_rules! shared {
    ($($type:ty),+) => { $(
        // SAFETY: it is never written, and its name is text that lives as long as the library.
        unsafe impl Sync for $type {}
    )+ };
}
shared!(TunerV1, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6, Profiler<ProfilerInitV4>, Profiler<ProfilerInitV5>);
