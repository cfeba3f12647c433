//! The newest interfaces. Version 7 decides only in the releases that it is known of: an NCCL that is none says which it is.

use std::ffi::{CString, c_int, c_void};
use std::io::Write;
use std::mem::transmute;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::library::{Library, Linked, Opened};
use crate::nccl::{Log, Question, Tuner};
use crate::plugin::{CALLS, CHUNKS_MIN, DECISIONS_MIN, install, release};
use crate::{alone, check};

/// Calls that each of them is tried with: a million where PACELINE_LONG_TESTS is set.
fn calls() -> usize {
    if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 100 * CALLS } else { CALLS }
}

/// The release that version 7 is known of, as `ncclGetVersion` says.
pub const VERSION_7: c_int = 23_206;

/// [`NoNccl`] before it is compiled.
const NO_NCCL: &str = r#"
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
static RELEASE: AtomicI32 = AtomicI32::new(0);
#[unsafe(no_mangle)]
pub extern "C" fn set_release(release: i32) { RELEASE.store(release, Relaxed); }
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(release: *mut i32) -> i32 {
    // SAFETY: the caller's place.
    unsafe { *release = RELEASE.load(Relaxed) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn nccl_log(_: i32, _: u64, _: *const u8, _: i32, _: *const u8, _: *const u8) {}
"#;

/// A library with a log and a version. Like PyTorch's NCCL it is not open to everybody.
pub struct NoNccl(Opened);

impl NoNccl {
    /// One that says it is this release.
    pub fn of(release: c_int) -> NoNccl {
        let nccl = NoNccl(compiled());
        nccl.set_release(release);
        nccl
    }

    /// It says another one from now on.
    pub fn set_release(&self, release: c_int) {
        // SAFETY: the function of this name, as written above.
        let set_release = unsafe { transmute::<*const c_void, extern "C" fn(c_int)>(self.0.symbol("set_release")) };
        set_release(release);
    }

    /// Its log, which is there as long as it is.
    pub fn log(&self) -> Log {
        // SAFETY: the function of this name, as written above.
        unsafe { transmute::<*const c_void, Log>(self.0.symbol("nccl_log")) }
    }
}

fn compiled() -> Opened {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libno-nccl-{}.so", std::process::id()));
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compile = Command::new(compiler);
    compile.args(["--edition", "2024", "--crate-name", "no_nccl", "--crate-type", "cdylib", "-o"]).arg(&path).arg("-");
    // The library that counts allocations (`preloaded.rs`) is for this program only.
    compile.env_remove("LD_PRELOAD");
    let mut compiling = compile.stdin(Stdio::piped()).spawn().expect("rustc, which has compiled this test");
    compiling.stdin.take().expect("a pipe").write_all(NO_NCCL.as_bytes()).expect("a compiler that reads");
    assert!(compiling.wait().expect("its end").success(), "{} was not compiled", path.display());
    let opened = Opened::path(CString::new(path.as_os_str().as_encoded_bytes()).expect("a path"));
    std::fs::remove_file(&path).expect("our own file");
    opened
}

#[test]
fn version_7_decides_where_it_is_known_and_nowhere_else() {
    let _alone = alone();
    let nccl = NoNccl::of(0);
    let log = nccl.log();
    let opened = Opened::plugin();
    for (name, library) in [("linked copy", &Linked as &dyn Library), ("library", &opened)] {
        install(library);
        let tuner = Tuner::find(library, release("2.32.6")).expect("a tuner");
        assert_eq!(tuner.version, 7);
        for (of, decides) in
            [(0, false), (23_105, false), (23_205, false), (VERSION_7, true), (23_207, false), (23_300, false)]
        {
            nccl.set_release(of);
            let context = tuner.init(16, 2, Some(log)).expect("a communicator");
            assert_eq!(!context.is_null(), decides, "{of}");
            let (mut costs, mut bound) = ([9.0_f32; 21], 0);
            let question = Question { function: 4, bytes: 1024, operations: 1, can_register: 0 };
            assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), (7, 3), &mut bound), 0);
            assert_eq!((costs[0] == 0.0, bound == 4), (decides, decides), "{of}");
            assert_eq!(tuner.end(context), 0);
        }
        nccl.set_release(VERSION_7);
        let seen = check::tuner_of(library, release("2.32.6"), calls(), 7, Some(log));
        let seen = seen.expect("nothing wrong").expect("a tuner");
        println!(
            r#"evidence: {{"what":"stand-in","nccl":"2.32.6","library":"{name}","tuner":7,"calls":{},"decisions":{},"chunks":{}}}"#,
            calls(),
            seen.decisions,
            seen.chunks
        );
        let share = calls() / CALLS;
        assert!(seen.decisions >= share * DECISIONS_MIN && seen.chunks >= share * CHUNKS_MIN, "{seen:?}");
    }
}

/// Other calls than those that every release is tried with.
#[test]
fn version_6_holds_for_many_calls() {
    let _alone = alone();
    let opened = Opened::plugin();
    let share = calls() / CALLS;
    for library in [&Linked as &dyn Library, &opened] {
        install(library);
        let seen = check::tuner(library, release("2.30"), calls(), 0x6a11);
        let seen = seen.expect("nothing wrong").expect("a tuner");
        assert_eq!(seen.version, 6);
        assert!(seen.decisions >= share * DECISIONS_MIN && seen.chunks >= share * CHUNKS_MIN, "{seen:?}");
    }
}
