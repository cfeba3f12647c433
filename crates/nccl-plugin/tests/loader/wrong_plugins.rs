//! Tuners that are wrong on purpose, each in one way.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::slice;
use std::time::{Duration, Instant};

use crate::check::GRAINS;
use crate::library::Given;
use crate::nccl::Context;

/// Function, bytes, table, its shape, whether buffers can be registered, channels; what to return.
pub type Decide = fn(Asked<'_>) -> c_int;

/// A call, for those who decide about it.
pub struct Asked<'a> {
    /// Which communicator of this process asks.
    pub context: usize,
    /// Where NCCL's table begins.
    pub table: *mut f32,
    pub costs: &'a mut [f32],
    pub protocols: usize,
    pub can_register: bool,
    pub channels: &'a mut c_int,
}

/// A chunk of its own, given NCCL's and the protocol.
pub type Cut = fn(usize, c_int) -> usize;

thread_local! {
    static DECIDE: Cell<Decide> = const { Cell::new(nothing) };
    static CHUNK: Cell<Cut> = const { Cell::new(same) };
    static DIRECT: Cell<Answer> = const { Cell::new(NO_ANSWER) };
    static RESULTS: Cell<Results> = const { Cell::new(NO_ERRORS) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static CONTEXTS: Cell<usize> = const { Cell::new(0) };
    /// Of each communicator, by the last digit of its number.
    static CALLS_OF_EACH: Cell<[u64; 10]> = const { Cell::new([0; 10]) };
}

/// What version 1 or 2 writes: algorithm, protocol, channels.
pub type Answer = (c_int, c_int, c_int);
const NO_ANSWER: Answer = (-1, -1, 0);

/// What functions return, and what else is wrong with them.
#[derive(Clone, Copy)]
pub struct Results {
    pub init: c_int,
    pub ask: c_int,
    pub chunk: c_int,
    pub end: c_int,
    /// `init` writes to the constants.
    pub edits_constants: bool,
    /// The second of two ranks gets another answer.
    pub differs: bool,
}

pub const NO_ERRORS: Results = Results { init: 0, ask: 0, chunk: 0, end: 0, edits_constants: false, differs: false };

/// As a structure of version 6; of older versions, the first four.
#[repr(C)]
struct Structure([*const c_void; 5]);

// SAFETY: addresses of functions, never written.
unsafe impl Sync for Structure {}

static BY_COSTS: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init as *const c_void,
    ask as *const c_void,
    end as *const c_void,
    chunk as *const c_void,
]);
static BY_COSTS_V4: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init_v2 as *const c_void,
    ask as *const c_void,
    end as *const c_void,
    std::ptr::null(),
]);
static BY_COSTS_V3: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init_v2 as *const c_void,
    ask_v3 as *const c_void,
    end as *const c_void,
    std::ptr::null(),
]);
static DIRECT_V2: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init_v2 as *const c_void,
    ask_v2 as *const c_void,
    end as *const c_void,
    std::ptr::null(),
]);
static DIRECT_V1: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init_v1 as *const c_void,
    ask_v1 as *const c_void,
    end_v1 as *const c_void,
    std::ptr::null(),
]);

/// A plug-in of version 6 that decides so, on this thread.
pub fn deciding(decide: Decide) -> Given {
    deciding_in("ncclTunerPlugin_v6", decide)
}

/// The same of another version, from 3 on.
pub fn deciding_in(symbol: &'static str, decide: Decide) -> Given {
    DECIDE.set(decide);
    CHUNK.set(same);
    RESULTS.set(NO_ERRORS);
    let structure = match symbol {
        "ncclTunerPlugin_v3" => &raw const BY_COSTS_V3,
        "ncclTunerPlugin_v4" => &raw const BY_COSTS_V4,
        _ => &raw const BY_COSTS,
    };
    Given(vec![(symbol, structure.cast())])
}

/// One that takes such chunks.
pub fn cutting(cut: Cut) -> Given {
    let given = deciding(nothing);
    CHUNK.set(cut);
    given
}

/// One whose functions return so.
pub fn returning(results: Results) -> Given {
    let given = deciding(nothing);
    RESULTS.set(results);
    given
}

/// A plug-in of version 2, or 1, that answers so.
pub fn answering(answer: Answer, results: Results) -> Given {
    DIRECT.set(answer);
    RESULTS.set(results);
    let (v1, v2) = ((&raw const DIRECT_V1).cast(), (&raw const DIRECT_V2).cast());
    Given(vec![("ncclTunerPlugin_v1", v1), ("ncclTunerPlugin_v2", v2)])
}

/// Whether this call is the second of two, where these shall differ.
fn is_other() -> bool {
    CALLS.set(CALLS.get() + 1);
    RESULTS.get().differs && CALLS.get().is_multiple_of(2)
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn init(
    context: *mut Context,
    _: u64,
    _: usize,
    _: usize,
    _: *const c_void,
    _: *mut c_void,
    constants: *mut f64,
) -> c_int {
    // SAFETY: the harness's place.
    unsafe { context.write(std::ptr::without_provenance_mut(1 + CONTEXTS.replace(CONTEXTS.get() + 1))) };
    if RESULTS.get().edits_constants {
        // SAFETY: the harness's constants, of which there are more.
        unsafe { constants.add(3).write(0.5) };
    }
    RESULTS.get().init
}

unsafe extern "C" fn init_v1(_: usize, _: usize, _: *const c_void) -> c_int {
    RESULTS.get().init
}

unsafe extern "C" fn init_v2(_: usize, _: usize, _: *const c_void, _: *mut Context) -> c_int {
    RESULTS.get().init
}

unsafe extern "C" fn end(_: Context) -> c_int {
    RESULTS.get().end
}

unsafe extern "C" fn end_v1() -> c_int {
    RESULTS.get().end
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask(
    context: Context,
    _: c_int,
    _: usize,
    _: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    can_register: c_int,
    channels: *mut c_int,
) -> c_int {
    let protocols = protocols as usize;
    // One entry more than there are, for those who write there: the harness marks what lies behind the table.
    let length = algorithms as usize * protocols + 1;
    let table = costs.cast::<f32>();
    // SAFETY: the harness's table, and its marks behind it.
    let costs = unsafe { slice::from_raw_parts_mut(table, length) };
    // SAFETY: the harness's place.
    let channels = unsafe { &mut *channels };
    DECIDE.get()(Asked { context: context.addr(), table, costs, protocols, can_register: can_register != 0, channels })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask_v3(
    context: Context,
    function: c_int,
    bytes: usize,
    operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: the same arguments, but for one that version 3 does not have.
    unsafe { ask(context, function, bytes, operations, costs, algorithms, protocols, 0, channels) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask_v1(
    _: c_int,
    _: usize,
    _: c_int,
    _: c_int,
    _: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> c_int {
    let (chosen, by, bound) = DIRECT.get();
    // SAFETY: the harness's places.
    unsafe {
        algorithm.write(chosen);
        protocol.write(if is_other() { 2 } else { by });
        channels.write(bound);
    }
    RESULTS.get().ask
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask_v2(
    _: Context,
    function: c_int,
    bytes: usize,
    collnet: c_int,
    nvls: c_int,
    operations: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: the same arguments, but for the context.
    unsafe { ask_v1(function, bytes, collnet, nvls, operations, algorithm, protocol, channels) }
}

unsafe extern "C" fn chunk(
    _: Context,
    _: c_int,
    _: usize,
    _: c_int,
    protocol: c_int,
    _: c_int,
    chunk: *mut usize,
) -> c_int {
    // SAFETY: the harness's place.
    unsafe { *chunk = if is_other() { *chunk / 2 } else { CHUNK.get()(*chunk, protocol) } };
    RESULTS.get().chunk
}

fn same(bytes: usize, _: c_int) -> usize {
    bytes
}

fn grain(protocol: c_int) -> usize {
    GRAINS[protocol as usize]
}

/// A part of NCCL's in whole grains.
fn part(bytes: usize, by: usize, grain: usize) -> usize {
    bytes / by / grain * grain
}

/// Nothing wrong: a quarter, where that is four grains at least.
pub fn quarters(bytes: usize, protocol: c_int) -> usize {
    let quarter = part(bytes, 4, grain(protocol));
    if quarter >= 4 * grain(protocol) { quarter } else { bytes }
}

pub fn takes_nothing(_: usize, _: c_int) -> usize {
    0
}

/// Less than a grain of whatever protocol.
pub fn takes_a_crumb(_: usize, _: c_int) -> usize {
    8
}

pub fn takes_no_whole_grains(bytes: usize, _: c_int) -> usize {
    bytes / 2 + 1
}

/// Whole grains, of whatever protocol.
pub fn takes_more(bytes: usize, _: c_int) -> usize {
    bytes + 7680
}

pub fn takes_twice_as_much(bytes: usize, _: c_int) -> usize {
    bytes * 2
}

/// What is right for LL, and too finely cut for others.
pub fn takes_all_for_ll(bytes: usize, _: c_int) -> usize {
    quarters(bytes, 0)
}

/// What is right for Simple.
pub fn takes_all_for_simple(bytes: usize, _: c_int) -> usize {
    quarters(bytes, 2)
}

pub fn takes_one_grain(_: usize, protocol: c_int) -> usize {
    grain(protocol)
}

/// A quarter in whole grains, however few these are.
pub fn takes_few_grains(bytes: usize, protocol: c_int) -> usize {
    let quarter = part(bytes, 4, grain(protocol));
    if quarter == 0 { bytes } else { quarter }
}

/// Whole grains, and many of them, and yet no part that there is.
pub fn takes_a_third(bytes: usize, protocol: c_int) -> usize {
    let third = part(bytes, 3, grain(protocol));
    if third >= 4 * grain(protocol) { third } else { bytes }
}

/// Nothing wrong.
pub fn nothing(_: Asked<'_>) -> c_int {
    0
}

pub fn fails(_: Asked<'_>) -> c_int {
    3
}

pub fn takes_what_is_unavailable(asked: Asked<'_>) -> c_int {
    if asked.costs[4] == -1.0 {
        asked.costs[4] = 0.0;
    }
    0
}

pub fn forbids_with_a_negative(asked: Asked<'_>) -> c_int {
    asked.costs.iter_mut().take(6).filter(|cost| **cost > 0.0).for_each(|cost| *cost = -1.0);
    0
}

pub fn forbids_with_no_number(asked: Asked<'_>) -> c_int {
    asked.costs.iter_mut().take(6).filter(|cost| **cost > 0.0).for_each(|cost| *cost = f32::NAN);
    0
}

pub fn wants_two(asked: Asked<'_>) -> c_int {
    asked.costs.iter_mut().take(18).filter(|cost| **cost > 0.0).take(2).for_each(|cost| *cost = 0.0);
    0
}

pub fn writes_behind_the_table(asked: Asked<'_>) -> c_int {
    if let Some(cost) = asked.costs.last_mut() {
        *cost = 0.0;
    }
    0
}

pub fn writes_before_the_table(asked: Asked<'_>) -> c_int {
    // SAFETY: the harness marks what lies before the table.
    unsafe { asked.table.sub(1).write(0.0) };
    0
}

/// A cost that is one, and not NCCL's.
pub fn makes_costs_up(asked: Asked<'_>) -> c_int {
    asked.costs.iter_mut().take(6).filter(|cost| **cost > 0.0).for_each(|cost| *cost = 1.0e6);
    0
}

/// Channels for an algorithm that is not there.
pub fn bounds_what_it_does_not_choose(asked: Asked<'_>) -> c_int {
    *asked.channels = 4;
    0
}

/// Ring with Simple, in rows of three, whatever the table is.
pub fn has_rows_of_three(asked: Asked<'_>) -> c_int {
    if asked.costs[5] > 0.0 {
        asked.costs[5] = 0.0;
    }
    0
}

/// Nothing wrong: Ring with Simple, in rows as they are, where NCCL did not put it behind all else.
pub fn prefers_a_ring(asked: Asked<'_>) -> c_int {
    if asked.costs[asked.protocols + 2] < 1024.0 { insists_on_a_ring(asked) } else { 0 }
}

/// Ring with Simple, whatever it costs.
pub fn insists_on_a_ring(asked: Asked<'_>) -> c_int {
    let place = asked.protocols + 2;
    if asked.costs[place] > 0.0 {
        asked.costs[place] = 0.0;
    }
    0
}

pub fn wants_all_channels(asked: Asked<'_>) -> c_int {
    *asked.channels = 200;
    0
}

pub fn wants_fewer_than_no_channels(asked: Asked<'_>) -> c_int {
    *asked.channels = -1;
    0
}

/// What this rank alone knows decides.
pub fn looks_at_registration(asked: Asked<'_>) -> c_int {
    *asked.channels = if asked.can_register { 4 } else { 8 };
    0
}

/// How often this rank was asked decides.
pub fn counts_calls(asked: Asked<'_>) -> c_int {
    CALLS.set(CALLS.get() + 1);
    *asked.channels = 1 + (CALLS.get() % 2) as c_int;
    0
}

/// The same of its communicator: NCCL asks some ranks oftener than others.
pub fn counts_calls_of_each(asked: Asked<'_>) -> c_int {
    let mut calls = CALLS_OF_EACH.get();
    let own = &mut calls[asked.context % 10];
    *own += 1;
    *asked.channels = 1 + (*own % 2) as c_int;
    CALLS_OF_EACH.set(calls);
    0
}

pub fn allocates(asked: Asked<'_>) -> c_int {
    let copy = std::hint::black_box(asked.costs.to_vec());
    c_int::from(copy.is_empty())
}

pub fn takes_its_time(_: Asked<'_>) -> c_int {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(1) {}
    0
}
