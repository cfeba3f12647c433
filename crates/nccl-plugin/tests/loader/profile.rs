//! The profiler, as NCCL 2.27 and later talk to it, and what it says to the program.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

use nccl_tuner_paceline::samples::Sample;

use crate::alone;
use crate::library::{Library, Opened};
use crate::nccl::Log;
use crate::plugin::install;

type ProfilerInit =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, *const c_void) -> c_int;
type StartEvent = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> c_int;
type EndEvent = unsafe extern "C" fn(*mut c_void) -> c_int;
type RecordState = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;

#[test]
fn a_profile_is_what_ran() {
    let _alone = alone();
    let opened = Opened::plugin();
    install(&opened);
    for name in ["ncclProfiler_v5", "ncclProfiler_v6"] {
        profiles(&opened, name);
    }
}

/// As NCCL 2.28 and later tell it: a collective on two channels.
fn profiles(opened: &Opened, name: &str) {
    println!("{name}");
    let symbol = opened.symbol(name).cast::<*const c_void>();
    assert!(!symbol.is_null());
    // SAFETY: a profiler is a name and five functions.
    let member = |place: usize| unsafe { symbol.add(place).read() };
    // SAFETY: these are the functions, in this order.
    let (init, start, stop, record, finalize) = unsafe {
        (
            transmute::<*const c_void, ProfilerInit>(member(1)),
            transmute::<*const c_void, StartEvent>(member(2)),
            transmute::<*const c_void, EndEvent>(member(3)),
            transmute::<*const c_void, RecordState>(member(4)),
            transmute::<*const c_void, EndEvent>(member(5)),
        )
    };
    let (mut context, mut mask) = (ptr::null_mut(), -1);
    // SAFETY: the plug-in's functions of these names, and places that outlive the calls (the mask until the recording is
    // switched off below, which is the last that is written there).
    unsafe {
        assert_eq!(init(&raw mut context, 77, &raw mut mask, ptr::null(), 2, 16, 3, ptr::null()), 0);
        assert_eq!(mask, 0, "nothing is recorded unless somebody wants it");
        let want = transmute::<*const c_void, extern "C" fn(c_int) -> c_int>(opened.symbol("paceline_nccl_record"));
        assert_eq!(want(1), 0);
        assert_eq!(mask, 2 | 64);

        let mut collective = [0_u64; 14];
        collective[0] = 2;
        collective[3] = 41;
        collective[4] = c"AllReduce".as_ptr() as u64;
        collective[7] = 1000;
        collective[9] = c"ncclFloat32".as_ptr() as u64;
        collective[10] = 2 | 17 << 8;
        collective[11] = c"NVLS_TREE".as_ptr() as u64;
        collective[12] = c"SIMPLE".as_ptr() as u64;
        let mut handle = ptr::null_mut();
        assert_eq!(start(context, &raw mut handle, collective.as_mut_ptr().cast()), 0);
        assert!(!handle.is_null());
        // It has been enqueued, and runs later.
        assert_eq!(stop(handle), 0);
        for (channel, begin, end) in [(0, 5000_u64, 9000_u64), (1, 5500, 9900)] {
            let mut event = [0_u64; 14];
            (event[0], event[1], event[3], event[4]) = (64, handle as u64, channel, begin);
            let mut of_channel = ptr::null_mut();
            assert_eq!(start(context, &raw mut of_channel, event.as_mut_ptr().cast()), 0);
            assert!(!of_channel.is_null());
            let mut end = [end; 2];
            assert_eq!(record(of_channel, 22, end.as_mut_ptr().cast()), 0);
            assert_eq!(stop(of_channel), 0);
        }
        // Kinds that are not known get no handle, and nothing gets no answer.
        let mut other = [4096_u64; 14];
        let mut none = handle;
        assert_eq!(start(context, &raw mut none, other.as_mut_ptr().cast()), 0);
        assert!(none.is_null());
        assert_eq!(start(context, ptr::null_mut(), ptr::null_mut()), 0);
        assert_eq!(record(ptr::null_mut(), 22, ptr::null_mut()), 0);

        type Fetch = unsafe extern "C" fn(*mut Sample, usize) -> usize;
        let fetch = transmute::<*const c_void, Fetch>(opened.symbol("paceline_nccl_samples"));
        let mut samples = [Sample::default(); 4];
        assert_eq!(fetch(samples.as_mut_ptr(), 4), 1);
        let expected = Sample {
            communicator: 77,
            instance: samples[0].instance,
            sequence: 41,
            bytes: 4000,
            longest_ns: 4400,
            span_ns: 4900,
            policy: 5,
            rank: 3,
            ranks: 16,
            hosts: 2,
            function: 4,
            algorithm: 5,
            protocol: 2,
            channels: 2,
            threads: 17 * 32,
        };
        assert_eq!(samples[0], expected);
        assert_eq!(fetch(samples.as_mut_ptr(), 4), 0);
        assert!(samples[0].instance > 0);
        assert_eq!(want(0), 0);
        assert_eq!(mask, 0);
        assert_eq!(finalize(context), 0);
        // NCCL may be gone, and its variable with it.
        assert_eq!(want(1), 1);
        assert_eq!(mask, 0);
        assert_eq!(want(0), 1);
    }
}

/// Which events a communicator is asked for when it begins, of which the program has said nothing. It ends at once.
pub fn wanted_at_first(library: &dyn Library, log: Log) -> c_int {
    let symbol = library.symbol("ncclProfiler_v6").cast::<*const c_void>();
    assert!(!symbol.is_null());
    let (mut context, mut mask) = (ptr::null_mut(), -1);
    // SAFETY: a profiler is a name and five functions, in this order; the places outlive the calls.
    unsafe {
        let init = transmute::<*const c_void, ProfilerInit>(symbol.add(1).read());
        let finalize = transmute::<*const c_void, EndEvent>(symbol.add(5).read());
        assert_eq!(init(&raw mut context, 79, &raw mut mask, ptr::null(), 2, 16, 3, log as *const c_void), 0);
        assert_eq!(finalize(context), 0);
    }
    mask
}

type ProfilerInitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, *const c_void) -> c_int;

/// NCCL 2.27 gives `init` its arguments in another order, and an event's kind in one byte, with whatever behind it. Its channels
/// are told by another thread.
#[test]
fn version_4_is_read_as_it_is() {
    let _alone = alone();
    let opened = Opened::plugin();
    let symbol = opened.symbol("ncclProfiler_v4").cast::<*const c_void>();
    assert!(!symbol.is_null());
    // SAFETY: a profiler is a name and five functions, in this order; the places outlive the calls.
    unsafe {
        let init = transmute::<*const c_void, ProfilerInitV4>(symbol.add(1).read());
        let start = transmute::<*const c_void, StartEvent>(symbol.add(2).read());
        let record = transmute::<*const c_void, RecordState>(symbol.add(4).read());
        let finalize = transmute::<*const c_void, EndEvent>(symbol.add(5).read());
        let want = transmute::<*const c_void, extern "C" fn(c_int) -> c_int>(opened.symbol("paceline_nccl_record"));
        let (mut context, mut mask) = (ptr::null_mut(), -1);
        assert_eq!(init(&raw mut context, &raw mut mask, ptr::null(), 78, 2, 16, 5, ptr::null()), 0);
        assert_eq!((want(1), mask), (0, 66));
        let mut collective = [0_u64; 14];
        collective[0] = 0xdead_beef_dead_be02;
        collective[4] = c"AllGather".as_ptr() as u64;
        collective[7] = 1000;
        collective[9] = c"ncclInt8".as_ptr() as u64;
        collective[10] = 1 | 4 << 8;
        // Neither algorithm nor protocol has a name.
        let mut handle = ptr::null_mut();
        assert_eq!(start(context, &raw mut handle, collective.as_mut_ptr().cast()), 0);
        let of_channel = (context as usize, handle as u64);
        std::thread::spawn(move || {
            let mut event = [0_u64; 14];
            (event[0], event[1], event[4]) = (0xffff_ff00 | 64, of_channel.1, 100);
            let mut channel = ptr::null_mut();
            assert_eq!(start(of_channel.0 as *mut c_void, &raw mut channel, event.as_mut_ptr().cast()), 0);
            assert_eq!(record(channel, 22, [350_u64].as_mut_ptr().cast()), 0);
        })
        .join()
        .expect("NCCL's other thread");
        let fetch = transmute::<*const c_void, unsafe extern "C" fn(*mut Sample, usize) -> usize>(
            opened.symbol("paceline_nccl_samples"),
        );
        let mut samples = [Sample::default(); 2];
        assert_eq!(fetch(samples.as_mut_ptr(), 2), 1);
        let Sample { communicator, bytes, longest_ns, rank, ranks, hosts, algorithm, protocol, .. } = samples[0];
        assert_eq!((communicator, rank, ranks, hosts), (78, 5, 16, 2));
        // What all sixteen gather.
        assert_eq!((bytes, longest_ns, algorithm, protocol), (16_000, 250, -1, -1));
        assert_eq!((want(0), finalize(context)), (0, 0));
    }
}
