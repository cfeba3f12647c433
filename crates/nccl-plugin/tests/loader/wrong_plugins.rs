//! Tuners that are wrong on purpose, each in one way.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::slice;
use std::time::{Duration, Instant};

use crate::library::Given;
use crate::nccl::Context;

/// Function, bytes, table, its shape, whether buffers can be registered, channels; what to return.
pub type Decide = fn(Asked<'_>) -> c_int;

/// A call, for those who decide about it.
pub struct Asked<'a> {
    pub costs: &'a mut [f32],
    pub protocols: usize,
    pub can_register: bool,
    pub channels: &'a mut c_int,
}

thread_local! {
    static DECIDE: Cell<Decide> = const { Cell::new(nothing) };
    static CHUNK: Cell<fn(usize) -> usize> = const { Cell::new(same) };
    static INIT: Cell<c_int> = const { Cell::new(0) };
    static DIRECT: Cell<(c_int, c_int)> = const { Cell::new((-1, -1)) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// As a structure of version 6; of version 2, the first four.
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
static BY_WORD: Structure = Structure([
    c"wrong".as_ptr().cast(),
    init_v2 as *const c_void,
    ask_v2 as *const c_void,
    end as *const c_void,
    std::ptr::null(),
]);

/// A plug-in of version 6 that decides so, on this thread.
pub fn deciding(decide: Decide) -> Given {
    DECIDE.set(decide);
    CHUNK.set(same);
    INIT.set(0);
    Given(vec![("ncclTunerPlugin_v6", (&raw const BY_COSTS).cast())])
}

/// One that takes such chunks.
pub fn cutting(cut: fn(usize) -> usize) -> Given {
    let given = deciding(nothing);
    CHUNK.set(cut);
    given
}

/// One whose init fails.
pub fn refusing(result: c_int) -> Given {
    let given = deciding(nothing);
    INIT.set(result);
    given
}

/// A plug-in of version 2 that answers so.
pub fn answering(algorithm: c_int, protocol: c_int) -> Given {
    DIRECT.set((algorithm, protocol));
    INIT.set(0);
    Given(vec![("ncclTunerPlugin_v2", (&raw const BY_WORD).cast())])
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn init(
    context: *mut Context,
    _: u64,
    _: usize,
    _: usize,
    _: *const c_void,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the harness's place.
    unsafe { context.write(std::ptr::null_mut()) };
    INIT.get()
}

unsafe extern "C" fn init_v2(_: usize, _: usize, _: *const c_void, _: *mut Context) -> c_int {
    INIT.get()
}

unsafe extern "C" fn end(_: Context) -> c_int {
    0
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask(
    _: Context,
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
    // SAFETY: the harness's table, and its marks behind it.
    let costs = unsafe { slice::from_raw_parts_mut(costs.cast::<f32>(), length) };
    // SAFETY: the harness's place.
    let channels = unsafe { &mut *channels };
    DECIDE.get()(Asked { costs, protocols, can_register: can_register != 0, channels })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn ask_v2(
    _: Context,
    _: c_int,
    _: usize,
    _: c_int,
    _: c_int,
    _: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    _: *mut c_int,
) -> c_int {
    let (chosen, by) = DIRECT.get();
    // SAFETY: the harness's places.
    unsafe { (algorithm.write(chosen), protocol.write(by)) };
    0
}

unsafe extern "C" fn chunk(_: Context, _: c_int, _: usize, _: c_int, _: c_int, _: c_int, chunk: *mut usize) -> c_int {
    // SAFETY: the harness's place.
    unsafe { *chunk = CHUNK.get()(*chunk) };
    0
}

fn same(bytes: usize) -> usize {
    bytes
}

/// Nothing wrong.
pub fn nothing(_: Asked<'_>) -> c_int {
    0
}

pub fn fails(_: Asked<'_>) -> c_int {
    3
}

pub fn takes_what_is_not_to_be_had(asked: Asked<'_>) -> c_int {
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

pub fn allocates(asked: Asked<'_>) -> c_int {
    let copy = std::hint::black_box(asked.costs.to_vec());
    c_int::from(copy.is_empty())
}

pub fn takes_its_time(_: Asked<'_>) -> c_int {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(1) {}
    0
}
