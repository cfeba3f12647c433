//! The plug-in itself.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

use crate::library::{Library, Linked, Opened};
use crate::nccl::{Question, Tuner};
use crate::releases::{RELEASES, Release};
use crate::{alone, check};

pub const POLICY: &str = r#"
schema = 1
version = 5
nccl_channels = 16
[[call]]
function = "AllReduce"
below_bytes = 65536
algorithm = "Tree"
protocol = "LL"
channels = 4
[[call]]
function = "AllReduce"
min_bytes = 65536
below_bytes = 4194304
algorithm = "Ring"
protocol = "Simple"
[[call]]
function = "AllReduce"
min_bytes = 4194304
ranks = 16
hosts = 2
algorithm = "NVLS"
protocol = "Simple"
channels = 16
nccl_channels = 16
[[call]]
function = "AllGather"
algorithm = "PAT"
protocol = "Simple"
[[call]]
function = "ReduceScatter"
pipelined = false
algorithm = "Ring"
protocol = "LL128"
[[call]]
function = "Broadcast"
channels = 8
[[chunk]]
function = "AllReduce"
algorithm = "Ring"
protocol = "Simple"
divide_by = 2
[[chunk]]
function = "AllReduce"
algorithm = "Tree"
protocol = "LL"
divide_by = 8
"#;

/// The functions of its rules, and log2 of the bytes that each is about: from the first on, below the second.
pub const RULED: [(c_int, u32, u32); 6] = [(4, 0, 16), (4, 16, 22), (4, 22, 40), (2, 0, 40), (3, 0, 40), (0, 0, 40)];

/// The algorithms and protocols whose chunks it cuts, of all-reduces.
pub const CUT: [(c_int, c_int); 2] = [(1, 2), (0, 0)];

/// Calls that a release is tried with, and how many of them, and of their chunks, this policy decides about at least.
pub const CALLS: usize = 10_000;
pub const DECISIONS_MIN: usize = 1000;
pub const CHUNKS_MIN: usize = 4000;

type Prepare = unsafe extern "C" fn(*const c_char, usize, *mut c_char, usize) -> c_int;
type Activate = extern "C" fn(u64) -> c_int;

pub fn prepare(library: &dyn Library, text: &str) -> Result<(), String> {
    let symbol = library.symbol("paceline_nccl_policy_prepare");
    assert!(!symbol.is_null());
    let mut message = [0 as c_char; 200];
    // SAFETY: the plug-in's function of this name; text and room are as long as is said.
    let result = unsafe {
        let prepare = transmute::<*const c_void, Prepare>(symbol);
        prepare(text.as_ptr().cast(), text.len(), message.as_mut_ptr(), message.len())
    };
    // SAFETY: it is terminated: the plug-in's promise, and there were zeros before.
    let message = unsafe { CStr::from_ptr(message.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(message.to_string_lossy().into_owned()) }
}

/// A function of the plug-in without arguments that returns a number.
pub fn number(library: &dyn Library, name: &str) -> u64 {
    let symbol = library.symbol(name);
    assert!(!symbol.is_null(), "{name}");
    // SAFETY: the plug-in's functions of these names are such.
    unsafe { transmute::<*const c_void, extern "C" fn() -> u64>(symbol)() }
}

/// Activates what is prepared, if it has this fingerprint.
pub fn activate(library: &dyn Library, fingerprint: u64) -> bool {
    let symbol = library.symbol("paceline_nccl_policy_activate");
    assert!(!symbol.is_null());
    // SAFETY: the plug-in's function of this name.
    let activate = unsafe { transmute::<*const c_void, Activate>(symbol) };
    activate(fingerprint) == 0
}

pub fn install(library: &dyn Library) {
    prepare(library, POLICY).expect("a policy");
    assert!(activate(library, number(library, "paceline_nccl_prepared_fingerprint")));
}

pub fn clear(library: &dyn Library) {
    let symbol = library.symbol("paceline_nccl_policy_clear");
    assert!(!symbol.is_null());
    // SAFETY: the plug-in's function of this name.
    unsafe { transmute::<*const c_void, extern "C" fn()>(symbol)() }
}

pub fn release(of: &str) -> &'static Release {
    RELEASES.iter().find(|release| release.nccl == of).expect("a release")
}

#[test]
fn every_release_finds_its_version_and_nothing_wrong() {
    let _alone = alone();
    let opened = Opened::plugin();
    for (name, library) in [("linked copy", &Linked as &dyn Library), ("library", &opened)] {
        install(library);
        let expected = [None, Some(1), Some(2), Some(3), Some(3), Some(4), Some(4), Some(4), Some(5), Some(5), Some(6)];
        let expected = expected.into_iter().chain([Some(6), Some(7)]);
        for (release, version) in RELEASES.iter().zip(expected) {
            let seen = check::tuner(library, release, CALLS, 0x5eed + u64::from(version.unwrap_or(0)));
            let seen = seen.unwrap_or_else(|wrong| panic!("NCCL {}: {wrong}", release.nccl));
            assert_eq!(seen.as_ref().map(|seen| seen.version), version, "NCCL {}", release.nccl);
            let Some(seen) = seen else { continue };
            println!(
                r#"evidence: {{"what":"release","nccl":"{}","library":"{name}","tuner":{},"calls":{CALLS},"decisions":{},"chunks":{}}}"#,
                release.nccl, seen.version, seen.decisions, seen.chunks
            );
            // Version 7 is for a release that is not in this process, so nothing is decided; chunks are from version 6 on.
            let (decisions, chunks) = match seen.version {
                7 => (0..=0, 0..=0),
                6 => (DECISIONS_MIN..=CALLS, CHUNKS_MIN..=CALLS),
                _ => (DECISIONS_MIN..=CALLS, 0..=0),
            };
            assert!(decisions.contains(&seen.decisions), "NCCL {}: {seen:?}", release.nccl);
            assert!(chunks.contains(&seen.chunks), "NCCL {}: {seen:?}", release.nccl);
        }
    }
}

#[test]
fn every_release_finds_the_profiler_that_it_can() {
    let _alone = alone();
    let opened = Opened::plugin();
    let found = |release: &Release| {
        let there = |version: &&u32| !opened.symbol(&format!("ncclProfiler_v{version}")).is_null();
        release.profilers.iter().find(there).copied()
    };
    let found: Vec<Option<u32>> = RELEASES.iter().map(found).collect();
    let (none, four, five, six) = (None, Some(4), Some(5), Some(6));
    assert_eq!(found, [none, none, none, none, none, none, none, four, five, six, six, six, six]);
}

#[test]
fn choices_go_where_the_policy_says() {
    let _alone = alone();
    install(&Linked);
    let tuner = Tuner::find(&Linked, release("2.30")).expect("a tuner");
    let context = tuner.init(16, 2, None).expect("a communicator");
    for (function, bytes, place, channels) in [
        (4, 1024, Some(0), 4),
        (4, 1 << 20, Some(5), 0),
        (4, 1 << 30, Some(14), 16),
        (2, 7, Some(20), 0),
        (0, 7, None, 8),
    ] {
        let (mut costs, mut bound) = ([9.0_f32; 21], 0);
        let question = Question { function, bytes, operations: 1, can_register: 0 };
        assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), (7, 3), &mut bound), 0);
        assert_eq!((costs.iter().position(|cost| *cost == 0.0), bound), (place, channels), "{question:?}");
    }
    assert_eq!(tuner.end(context), 0);
}

#[test]
fn a_policy_that_is_wrong_changes_nothing() {
    let _alone = alone();
    install(&Linked);
    let wrong = prepare(&Linked, "schema = 9\nversion = 6").expect_err("another schema");
    assert!(wrong.contains("schema 9"), "{wrong}");
    assert_eq!(number(&Linked, "paceline_nccl_prepared_fingerprint"), 0, "it was not kept");
    assert!(!activate(&Linked, 0));
    let seen = check::tuner(&Linked, release("2.28"), 500, 3).expect("nothing wrong").expect("a tuner");
    assert!(seen.decisions > 0, "the policy before it still decides");
}
