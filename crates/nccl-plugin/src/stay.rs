//! Keeps this library in the process.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Once;

/// From now on nobody closes this library for good: the policy in it is the one that all ranks have, and a copy that is
/// opened anew would know nothing of it, on this rank alone.
pub fn stay() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(library) = library_of((stay as fn()) as *const c_void) {
            let how = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            // SAFETY: the name is the loader's own, and only what is loaded already is opened, so no code runs. It is not
            // closed again, on purpose. A program that has this code in itself cannot be opened so, and stays anyway.
            unsafe { libc::dlopen(library.dli_fname, how) };
        }
    });
}

/// What the loader knows of the library, or program, with this address in it: its name is there, and stays as long as it does.
pub fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the loader compares the address with what it has loaded, and fills the place in.
    if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was filled in, as the result says.
    let found = unsafe { found.assume_init() };
    (!found.dli_fname.is_null()).then_some(found)
}
