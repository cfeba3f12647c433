//! The plug-in itself.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::transmute;
use std::path::PathBuf;
use std::process::Command;

use crate::library::{Library, Linked, Opened};
use crate::nccl::{Question, Tuner};
use crate::releases::{RELEASES, Release};
use crate::{alone, check, speed};

const POLICY: &str = r#"
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

pub fn activate(library: &dyn Library, version: u64) -> bool {
    let symbol = library.symbol("paceline_nccl_policy_activate");
    assert!(!symbol.is_null());
    // SAFETY: the plug-in's function of this name.
    let activate = unsafe { transmute::<*const c_void, Activate>(symbol) };
    activate(version) == 0
}

pub fn install(library: &dyn Library) {
    prepare(library, POLICY).expect("a policy");
    assert!(activate(library, 5));
}

pub fn release(of: &str) -> &'static Release {
    RELEASES.iter().find(|release| release.nccl == of).expect("a release")
}

#[test]
fn every_release_finds_its_version_and_nothing_wrong() {
    let _alone = alone();
    let opened = Opened::plugin();
    for library in [&Linked as &dyn Library, &opened] {
        install(library);
        let expected = [None, Some(1), Some(2), Some(3), Some(3), Some(4), Some(4), Some(4), Some(5), Some(5), Some(6)];
        let expected = expected.into_iter().chain([Some(6), Some(7)]);
        for (release, version) in RELEASES.iter().zip(expected) {
            let seen = check::tuner(library, release, 3000, 0x5eed + u64::from(version.unwrap_or(0)));
            let seen = seen.unwrap_or_else(|wrong| panic!("NCCL {}: {wrong}", release.nccl));
            assert_eq!(seen.as_ref().map(|seen| seen.version), version, "NCCL {}", release.nccl);
            let Some(seen) = seen else { continue };
            // Version 7 is for a release that is not in this process, so nothing is decided.
            assert_eq!(seen.decisions > 50, seen.version < 7, "NCCL {}: {seen:?}", release.nccl);
            assert_eq!(seen.chunks > 3, seen.version == 6, "NCCL {}: {seen:?}", release.nccl);
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

/// 10^6 calls without an allocation, with PACELINE_LONG_TESTS 10^7. A busy machine makes decisions slow, so 60 ns at most are
/// asked of the best of five, and of optimised code only.
#[test]
fn a_decision_allocates_nothing_and_is_cheap() {
    const MEDIAN_NS_MAX: f64 = 60.0;
    let _alone = alone();
    install(&Linked);
    let calls = if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 10_000_000 } else { 1_000_000 };
    let rounds = [calls, 100_000, 100_000, 100_000, 100_000];
    let costs = rounds.map(|calls| speed::measure(&Linked, release("2.30"), calls));
    for cost in &costs {
        assert!(cost.decided && cost.allocations == 0, "{cost:?}");
    }
    let median_ns = costs.iter().map(|cost| cost.median_ns).fold(f64::INFINITY, f64::min);
    println!("a decision takes {:.1} ns, at best {median_ns:.1} ns", costs[0].median_ns);
    assert!(cfg!(debug_assertions) || median_ns <= MEDIAN_NS_MAX, "a decision takes {median_ns:.1} ns");
}

#[test]
fn the_library_can_be_closed_and_opened_again() {
    let _alone = alone();
    for _ in 0..20 {
        let opened = Opened::plugin();
        let symbol = opened.symbol("paceline_nccl_policy_version");
        assert!(!symbol.is_null());
        // SAFETY: the plug-in's function of this name.
        let version = unsafe { transmute::<*const c_void, extern "C" fn() -> u64>(symbol) };
        // Nothing of it holds the library: what is opened again begins anew. (musl keeps libraries.)
        assert!(cfg!(target_env = "musl") || version() == 0);
        install(&opened);
        let seen = check::tuner(&opened, release("2.29"), 100, 9).expect("nothing wrong").expect("a tuner");
        assert!(seen.decisions > 0);
    }
}

#[test]
fn a_policy_that_is_wrong_changes_nothing() {
    let _alone = alone();
    install(&Linked);
    let wrong = prepare(&Linked, "schema = 9\nversion = 6").expect_err("another schema");
    assert!(wrong.contains("schema 9"), "{wrong}");
    assert!(!activate(&Linked, 6), "it was not kept");
    let seen = check::tuner(&Linked, release("2.28"), 500, 3).expect("nothing wrong").expect("a tuner");
    assert!(seen.decisions > 0, "the policy before it still decides");
}

/// Prints what NCCL's log gets, then whether a call was decided; for the test below, in a process of its own.
#[test]
fn child() {
    if std::env::var_os("PACELINE_HARNESS_CHILD").is_none() {
        return;
    }
    unsafe extern "C" fn log(
        level: c_int,
        _: c_ulong,
        _: *const c_char,
        _: c_int,
        format: *const c_char,
        text: *const c_char,
    ) {
        // SAFETY: the plug-in gives two texts.
        let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
        assert_eq!(format, c"%s");
        println!("log {level}: {}", text.to_string_lossy());
    }
    let opened = Opened::plugin();
    let tuner = Tuner::find(&opened, release("2.30")).expect("a tuner");
    let context = tuner.init(16, 2, Some(log)).expect("a communicator");
    let (mut costs, mut bound) = ([9.0_f32; 21], 0);
    let question = Question { function: 4, bytes: 1024, operations: 1, can_register: 0 };
    assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), (7, 3), &mut bound), 0);
    let untouched = costs == [9.0; 21] && bound == 0;
    println!("{}", if untouched { "untouched" } else { "decided" });
    assert_eq!(tuner.end(context), 0);
}

fn run_child(name: &str, file: Option<&[u8]>, switch: Option<&str>) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    if let Some(content) = file {
        std::fs::write(&path, content).expect("a file");
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "plugin::child", "--nocapture"]).env("PACELINE_HARNESS_CHILD", "1");
    command.env("PACELINE_TUNE_FILE", &path).env_remove("PACELINE_TUNE");
    command.envs(switch.map(|switch| ("PACELINE_TUNE", switch)));
    let output = command.output().expect("a child");
    let _ = std::fs::remove_file(&path);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {out}{error}");
    out.into_owned()
}

#[test]
fn files_decide_and_broken_ones_leave_nccl_alone() {
    let good = run_child("good.toml", Some(POLICY.as_bytes()), None);
    assert!(good.contains("decided") && good.contains("log 3: Paceline") && good.contains("version 5"), "{good}");
    let csv = b"function,algorithm,protocol\nAllReduce,Ring,LL\n";
    assert!(run_child("good.csv", Some(csv), None).contains("decided"));
    let off = run_child("off.toml", Some(POLICY.as_bytes()), Some("off"));
    assert!(off.contains("untouched") && off.contains("PACELINE_TUNE=off"), "{off}");
    for (name, content, words) in [
        ("missing.toml", None, "No such file"),
        ("schema.toml", Some(POLICY.replace("schema = 1", "schema = 7").into_bytes()), "schema 7"),
        ("half.toml", Some(POLICY.as_bytes()[..POLICY.len() / 2].to_vec()), "Paceline: PACELINE_TUNE_FILE="),
        ("channels.toml", Some(POLICY.replace("channels = 8", "channels = 99").into_bytes()), "channels = 99"),
        ("algorithm.toml", Some(POLICY.replace("NVLS", "Star").into_bytes()), "`Star` is no algorithm"),
        ("bytes.toml", Some(vec![0xff, 0, 0x80]), "UTF-8"),
        ("empty.toml", Some(Vec::new()), "missing field"),
    ] {
        let said = run_child(name, content.as_deref(), None);
        assert!(said.contains("untouched"), "{name}: {said}");
        assert!(said.contains("log 2: Paceline") && said.contains(words), "{name} has no `{words}`: {said}");
    }
}
