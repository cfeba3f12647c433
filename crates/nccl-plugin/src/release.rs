//! Which release of NCCL has loaded this library. Tuners of version 7 need to know, and are not told.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;

use crate::abi::{Logger, NcclResult};

/// As `ncclGetVersion` counts: 10000 · major + 100 · minor + patch. None if it cannot be found.
///
/// NCCL's log is a function of NCCL's own library, so its address leads there, whether or not programs see its symbols
/// (PyTorch's do not), and also where another NCCL is in the process.
pub fn of(logger: Logger) -> Option<c_int> {
    let log = logger.map(|logger| logger as *const c_void);
    log.and_then(in_library_of).or_else(|| in_library(libc::RTLD_DEFAULT))
}

/// The release that the library has with this address in it.
fn in_library_of(address: *const c_void) -> Option<c_int> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the loader compares the address with what it has loaded, and fills the place in.
    if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was filled in, as the result says.
    let found = unsafe { found.assume_init() };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name is the loader's own; only what is loaded already is opened, so no code runs.
    let library = unsafe { libc::dlopen(found.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let release = in_library(library);
    // SAFETY: it was opened here, once; NCCL itself keeps it loaded.
    unsafe { libc::dlclose(library) };
    release
}

/// What `ncclGetVersion` says there.
fn in_library(library: *mut c_void) -> Option<c_int> {
    // SAFETY: an open library, or the mark for all that the process has loaded for everybody; the name is a text.
    let function = unsafe { libc::dlsym(library, c"ncclGetVersion".as_ptr()) };
    if function.is_null() {
        return None;
    }
    // SAFETY: NCCL's function of this name has taken a place for a number since 2.4.
    let get_version = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> NcclResult>(function) };
    let mut release = 0;
    // SAFETY: as above.
    let result = unsafe { get_version(ptr::from_mut(&mut release)) };
    (result == 0).then_some(release)
}
