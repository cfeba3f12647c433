//! Which release of NCCL has loaded this library. Tuners of version 7 need to know, and are not told.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;

use crate::abi::{Logger, NcclResult};
use crate::stay::library_of;

/// As `ncclGetVersion` counts: 10000 · major + 100 · minor + patch. None if it cannot be found.
///
/// NCCL's log is a function of NCCL's own library, so its address leads there, whether or not programs see its symbols
/// (PyTorch's do not), and also where another NCCL is in the process. Where NCCL is a part of the program, the program's
/// symbols are looked at, and are believed only if they stand where the log does.
pub fn of(logger: Logger) -> Option<c_int> {
    let log = library_of(logger? as *const c_void)?;
    // SAFETY: the name is the loader's own; only what is loaded already is opened, so no code runs.
    let library = unsafe { libc::dlopen(log.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return in_library(libc::RTLD_DEFAULT, log.dli_fbase);
    }
    let release = in_library(library, log.dli_fbase);
    // SAFETY: it was opened here, once; NCCL itself keeps it loaded.
    unsafe { libc::dlclose(library) };
    release
}

/// What `ncclGetVersion` says there, if that is a function of what was loaded at `base`.
fn in_library(library: *mut c_void, base: *mut c_void) -> Option<c_int> {
    // SAFETY: an open library, or the mark for all that the process has loaded for everybody; the name is a text.
    let function = unsafe { libc::dlsym(library, c"ncclGetVersion".as_ptr()) };
    if function.is_null() || library_of(function)?.dli_fbase != base {
        return None;
    }
    // SAFETY: NCCL's function of this name has taken a place for a number since 2.4.
    let get_version = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> NcclResult>(function) };
    let mut release = 0;
    // SAFETY: as above.
    let result = unsafe { get_version(ptr::from_mut(&mut release)) };
    (result == 0).then_some(release)
}
