//! The tuner, version by version. Each entry turns what NCCL gives into slices and numbers, and lets `decide` write.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use paceline_tune::nccl::{Algorithm, Function, Protocol};

use crate::abi::{Logger, NcclResult, SUCCESS, TunerV1, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6};
use crate::log::{Level, log};
use crate::policy::{Call, Policy};
use crate::state::{self, Communicator};
use crate::{NAME, costs, decide, guarded, release};

/// No table of costs is larger.
const MAX_ALGORITHMS: usize = 64;
const MAX_PROTOCOLS: usize = 16;
/// What is known of version 7 is known of this release, as `ncclGetVersion` says: 2.32.6.
const VERSION_7: c_int = 23_206;

/// Version 1 has no contexts, and does not say of which communicator a call is. Ranks have different communicators, so
/// which of them a process has must not matter: this one has no ranks and hosts, and only rules for any hold.
static ONLY: Communicator = Communicator::unused();

/// For NCCL 2.19 and 2.20.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v1: TunerV1 =
    TunerV1 { name: NAME.as_ptr(), init: init_v1, get_coll_info: get_coll_info_v1, destroy: destroy_v1 };

/// For NCCL 2.21.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v2: TunerV2 =
    TunerV2 { name: NAME.as_ptr(), init, get_coll_info: get_coll_info_v2, destroy: finalize };

/// For NCCL 2.22 and 2.23.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v3: TunerV3 =
    TunerV3 { name: NAME.as_ptr(), init, get_coll_info: get_coll_info_v3, destroy: finalize };

/// For NCCL 2.24 to 2.27.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v4: TunerV4 =
    TunerV4 { name: NAME.as_ptr(), init, get_coll_info: get_coll_info_v4, destroy: finalize };

/// For NCCL 2.28 and 2.29.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v5: TunerV5 =
    TunerV5 { name: NAME.as_ptr(), init: init_v5, get_coll_info: get_coll_info_v4, finalize };

/// For NCCL 2.30 to 2.32.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v6: TunerV6 =
    TunerV6 { name: NAME.as_ptr(), init: init_v5, get_coll_info: get_coll_info_v4, finalize, get_chunk_size };

/// For NCCL 2.32.6. In other releases that ask for it nothing is decided.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclTunerPlugin_v7: TunerV6 =
    TunerV6 { name: NAME.as_ptr(), init: init_v7, get_coll_info: get_coll_info_v4, finalize, get_chunk_size };

unsafe extern "C" fn init_v1(_ranks: usize, _hosts: usize, logger: Logger) -> NcclResult {
    guarded(|| {
        state::begin(logger);
        ONLY.register();
    })
}

unsafe extern "C" fn destroy_v1() -> NcclResult {
    SUCCESS
}

unsafe extern "C" fn init(ranks: usize, hosts: usize, logger: Logger, context: *mut *mut c_void) -> NcclResult {
    guarded(|| {
        let on = state::begin(logger);
        // SAFETY: NCCL gives a place for the context, or null.
        unsafe { begin(on, ranks, hosts, context) }
    })
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    hosts: usize,
    logger: Logger,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL gives a place for the context, or null.
    unsafe { init(ranks, hosts, logger, context) }
}

unsafe extern "C" fn init_v7(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    hosts: usize,
    logger: Logger,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> NcclResult {
    static SAID: AtomicBool = AtomicBool::new(false);
    guarded(|| {
        let known = release::of(logger) == Some(VERSION_7);
        let on = state::begin(logger) && known;
        if !known && !SAID.swap(true, Relaxed) {
            log(
                logger,
                Level::Warn,
                "Paceline: tuners of version 7 are known of NCCL 2.32.6 only: NCCL's own choices stay",
            );
        }
        // SAFETY: NCCL gives a place for the context, or null.
        unsafe { begin(on, ranks, hosts, context) }
    })
}

/// # Safety
/// `context` is null or may be written to.
unsafe fn begin(on: bool, ranks: usize, hosts: usize, context: *mut *mut c_void) {
    if context.is_null() {
        return;
    }
    // Without a context nothing is decided.
    let kept = if on { Communicator::open(ranks, hosts).context() } else { std::ptr::null_mut() };
    // SAFETY: the caller's promise.
    unsafe { context.write(kept) };
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    guarded(|| {
        // SAFETY: NCCL gives back what `begin` put there.
        if let Some(communicator) = unsafe { Communicator::of_context(context) } {
            communicator.close();
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn get_coll_info_v1(
    function: c_int,
    bytes: usize,
    _collnet: c_int,
    _nvls: c_int,
    operations: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> NcclResult {
    let asked = Asked { communicator: Some(&ONLY), function, bytes, operations };
    // SAFETY: NCCL gives the addresses of three variables of its own, or null.
    unsafe { direct(&asked, algorithm, protocol, channels) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn get_coll_info_v2(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    _collnet: c_int,
    _nvls: c_int,
    operations: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> NcclResult {
    // SAFETY: NCCL gives back what `begin` put there.
    let communicator = unsafe { Communicator::of_context(context) };
    // SAFETY: NCCL gives the addresses of three variables of its own, or null.
    unsafe { direct(&Asked { communicator, function, bytes, operations }, algorithm, protocol, channels) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn get_coll_info_v3(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> NcclResult {
    // SAFETY: NCCL gives back what `begin` put there.
    let communicator = unsafe { Communicator::of_context(context) };
    let asked = Asked { communicator, function, bytes, operations };
    // SAFETY: NCCL gives a table of so many rows and columns and the address of a variable of its own, or null.
    unsafe { by_costs(&asked, costs, algorithms, protocols, channels) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn get_coll_info_v4(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    // Ranks may differ in this.
    _can_register: c_int,
    channels: *mut c_int,
) -> NcclResult {
    // SAFETY: the arguments are NCCL's, and mean the same in version 3.
    unsafe { get_coll_info_v3(context, function, bytes, operations, costs, algorithms, protocols, channels) }
}

unsafe extern "C" fn get_chunk_size(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    _channels: c_int,
    chunk_bytes: *mut usize,
) -> NcclResult {
    guarded(|| {
        let way = Algorithm::of_number(algorithm).zip(Protocol::of_number(protocol));
        // SAFETY: NCCL gives back what `begin` put there.
        let communicator = unsafe { Communicator::of_context(context) };
        // SAFETY: NCCL's variable, or null.
        let chunk = unsafe { chunk_bytes.as_mut() };
        let (Some((algorithm, protocol)), Some(communicator), Some(chunk)) = (way, communicator, chunk) else { return };
        let Some(function) = Function::of_number(function) else { return };
        communicator.look(|policy| {
            let divide_by = policy.chunk(function, algorithm, protocol, bytes);
            let smaller = divide_by.and_then(|divide_by| decide::chunk_bytes(*chunk, divide_by, protocol));
            smaller.inspect(|bytes| *chunk = *bytes).is_some()
        });
    })
}

/// What NCCL asks about.
struct Asked {
    communicator: Option<&'static Communicator>,
    function: c_int,
    bytes: usize,
    operations: c_int,
}

impl Asked {
    /// Whose call it is, and the call. None: nothing is decided about it.
    fn call(&self) -> Option<(&'static Communicator, Call)> {
        let (communicator, function) = (self.communicator?, Function::of_number(self.function)?);
        let (ranks, hosts) = communicator.world();
        Some((communicator, Call { function, bytes: self.bytes, ranks, hosts, pipelined: self.operations > 1 }))
    }

    /// Lets the policy decide, if it may: `write` gets it and the call.
    fn decide(&self, write: impl FnOnce(&Policy, &Call) -> bool) {
        if let Some((communicator, call)) = self.call() {
            communicator.decide(|policy| write(policy, &call));
        }
    }
}

/// # Safety
/// `costs` is null or a table of so many algorithms and protocols, row after row; `channels` is null or may be written to.
unsafe fn by_costs(
    asked: &Asked,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> NcclResult {
    guarded(|| {
        let count = |count: c_int, most| usize::try_from(count).ok().filter(|count| (1..=most).contains(count));
        let (Some(algorithms), Some(protocols)) = (count(algorithms, MAX_ALGORITHMS), count(protocols, MAX_PROTOCOLS))
        else {
            return;
        };
        // Declared as a pointer to pointers, and no such thing.
        let table = costs.cast::<f32>();
        if table.is_null() || !table.is_aligned() {
            return;
        }
        // SAFETY: the caller's promise; it is NCCL's own stack, which nobody else looks at meanwhile.
        let table = unsafe { slice::from_raw_parts_mut(table, algorithms * protocols) };
        let Some((communicator, call)) = asked.call() else { return };
        if communicator.is_first_of_kind(&call) {
            // Before anything is written: as NCCL has made it.
            costs::keep(&call, table, protocols);
        }
        // SAFETY: as above.
        let channels = unsafe { channels.as_mut() };
        communicator.decide(|policy| {
            let Some(choice) = policy.call(&call) else { return false };
            let stands = decide::prefer(table, protocols, &choice);
            if let (true, Some(channels), Some(bound)) = (stands, channels, choice.channels()) {
                *channels = c_int::from(bound);
            }
            stands
        });
    })
}

/// # Safety
/// The pointers are null or may be written to.
unsafe fn direct(asked: &Asked, algorithm: *mut c_int, protocol: *mut c_int, channels: *mut c_int) -> NcclResult {
    guarded(|| {
        // SAFETY: the caller's promise; they are three variables.
        let places = unsafe { (algorithm.as_mut(), protocol.as_mut(), channels.as_mut()) };
        let (Some(algorithm), Some(protocol), Some(channels)) = places else { return };
        asked.decide(|policy, call| {
            let Some(choice) = policy.call(call) else { return false };
            // Channels alone are not said: NCCL would apply them to NVLS and CollNet, too.
            let Some((chosen, by)) = decide::direct(call.function, &choice, policy.ll128_proved()) else {
                return false;
            };
            // Both or none.
            (*algorithm, *protocol) = (chosen.number() as c_int, by.number() as c_int);
            if let Some(bound) = choice.channels() {
                *channels = c_int::from(bound);
            }
            true
        });
    })
}
