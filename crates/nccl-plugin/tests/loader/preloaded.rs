//! What the library itself allocates. It asks the C library for memory, as everybody in a process does: in a child, a library that is
//! loaded before all others counts who asks.

use std::ffi::{CStr, c_char, c_ulonglong, c_void};
use std::io::Write;
use std::mem::transmute;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::counting::allocations;
use crate::library::{Library, Opened};
use crate::newest::{NoNccl, VERSION_7};
use crate::plugin::{POLICY, activate, clear, number};
use crate::processes::{child, ended_well};
use crate::releases::RELEASES;
use crate::speed_of_plugin::allocates_nothing;

/// Counts what the running thread allocates. The names behind which the C library has its own are glibc's.
const COUNTING: &str = r#"
#include <errno.h>
#include <stddef.h>
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *before, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
static __thread unsigned long long count __attribute__((tls_model("initial-exec")));
unsigned long long counted_allocations(void) { return count; }
void *malloc(size_t bytes) { count++; return __libc_malloc(bytes); }
void *calloc(size_t number, size_t bytes) { count++; return __libc_calloc(number, bytes); }
void *realloc(void *before, size_t bytes) { count++; return __libc_realloc(before, bytes); }
void *memalign(size_t alignment, size_t bytes) { count++; return __libc_memalign(alignment, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { count++; return __libc_memalign(alignment, bytes); }
int posix_memalign(void **place, size_t alignment, size_t bytes) {
  count++;
  *place = __libc_memalign(alignment, bytes);
  return *place ? 0 : ENOMEM;
}
"#;

fn counting_library() -> PathBuf {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let compiler = ["cc", "gcc", "clang"].into_iter().find(there).expect("a C compiler, which rustc links with, too");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcounting-{}.so", std::process::id()));
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-O1", "-fno-builtin", "-fPIC", "-shared", "-o"]).arg(&path).args(["-x", "c", "-"]);
    let mut compiling = compile.stdin(Stdio::piped()).spawn().expect("a compiler");
    compiling.stdin.take().expect("a pipe").write_all(COUNTING.as_bytes()).expect("a compiler that reads");
    assert!(compiling.wait().expect("its end").success(), "{} was not compiled", path.display());
    path
}

#[test]
fn the_library_allocates_nothing_in_any_release_with_a_policy_or_without() {
    if cfg!(not(all(target_os = "linux", target_env = "gnu"))) {
        eprintln!("skipped: another C library has its own functions behind other names");
        return;
    }
    let path = counting_library();
    let mut command = child("allocating");
    command.env("LD_PRELOAD", &path);
    let said = ended_well("allocating", command);
    std::fs::remove_file(&path).expect("our own file");
    let shown: Vec<&str> = said.lines().filter_map(|line| line.split_once("evidence: ")).map(|(_, it)| it).collect();
    assert_eq!(shown.len(), 2 * RELEASES.iter().filter(|release| !release.tuners.is_empty()).count(), "{said}");
    shown.iter().for_each(|evidence| println!("evidence: {evidence}"));
}

/// In a child, in which a library counts.
pub fn allocates_nothing_inside() {
    // SAFETY: a look-up by a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"counted_allocations".as_ptr()) };
    assert!(!symbol.is_null(), "the library that counts is not loaded");
    // SAFETY: the function of this name, as written above.
    let of_all = unsafe { transmute::<*mut c_void, extern "C" fn() -> c_ulonglong>(symbol) };
    // What this program has asked for itself is none of the library's.
    let inside = || of_all() - allocations();
    let opened = Opened::plugin();
    type Prepare = unsafe extern "C" fn(*const c_char, usize, *mut c_char, usize) -> i32;
    let prepare = opened.symbol("paceline_nccl_policy_prepare");
    assert!(!prepare.is_null());
    let mut message = [0 as c_char; 200];
    let before = inside();
    // SAFETY: the plug-in's function of this name; text and room are as long as is said.
    let refused = unsafe {
        let prepare = transmute::<*const c_void, Prepare>(prepare);
        prepare(POLICY.as_ptr().cast(), POLICY.len(), message.as_mut_ptr(), message.len())
    };
    let allocated = inside() - before;
    // SAFETY: it is terminated: the plug-in's promise, and there were zeros before.
    let message = unsafe { CStr::from_ptr(message.as_ptr()) };
    assert_eq!(refused, 0, "{message:?}");
    assert!(allocated > 10, "a table is made, and {allocated} allocations were seen");
    assert!(activate(&opened, number(&opened, "paceline_nccl_prepared_fingerprint")));
    let nccl = NoNccl::of(VERSION_7);
    allocates_nothing("library", &opened, true, nccl.log(), inside);
    clear(&opened);
    allocates_nothing("library", &opened, false, nccl.log(), inside);
}
