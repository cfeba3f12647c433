//! Where symbols come from: a shared library, this program, or a list.

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::ptr;

use nccl_tuner_paceline as linked;

/// Something that symbols can be looked up in.
pub trait Library {
    /// The address of a symbol, or null.
    fn symbol(&self, name: &str) -> *const c_void;
}

/// The shared library, opened as NCCL opens it, and closed when dropped.
pub struct Opened(*mut c_void);

impl Opened {
    /// Opens the plug-in that cargo built beside this program.
    pub fn plugin() -> Opened {
        Opened::path(plugin_name())
    }

    /// Opens a library of ours.
    pub fn path(path: CString) -> Opened {
        // SAFETY: opening runs no code but the loader's: ours have no constructors of their own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be opened: {}", loader_error());
        Opened(handle)
    }
}

fn loader_error() -> String {
    // SAFETY: the loader's own text, or null.
    let text = unsafe { libc::dlerror() };
    // SAFETY: it is terminated, and stays until the loader's next failure on this thread.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

/// Cargo builds the library before its tests, and puts it beside them.
pub fn plugin_path() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folders = program.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("libnccl_tuner_paceline.so"));
    let found = files.find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no libnccl_tuner_paceline.so beside {}", program.display()))
}

/// [`plugin_path`] for the loader.
pub fn plugin_name() -> CString {
    CString::new(plugin_path().into_os_string().into_encoded_bytes()).expect("a path")
}

/// Whether a library is in this process, opened or kept.
pub fn is_loaded(path: CString) -> bool {
    // SAFETY: only what is loaded is opened, so no code runs.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    // SAFETY: it was opened here, once.
    !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
}

impl Library for Opened {
    fn symbol(&self, name: &str) -> *const c_void {
        let name = CString::new(name).expect("a name");
        // SAFETY: the library is open.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and nobody uses its symbols any more.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0, "{}", loader_error());
    }
}

/// The same code in this program, whose allocations are counted.
pub struct Linked;

impl Library for Linked {
    fn symbol(&self, name: &str) -> *const c_void {
        match name {
            "ncclTunerPlugin_v1" => (&raw const linked::ncclTunerPlugin_v1).cast(),
            "ncclTunerPlugin_v2" => (&raw const linked::ncclTunerPlugin_v2).cast(),
            "ncclTunerPlugin_v3" => (&raw const linked::ncclTunerPlugin_v3).cast(),
            "ncclTunerPlugin_v4" => (&raw const linked::ncclTunerPlugin_v4).cast(),
            "ncclTunerPlugin_v5" => (&raw const linked::ncclTunerPlugin_v5).cast(),
            "ncclTunerPlugin_v6" => (&raw const linked::ncclTunerPlugin_v6).cast(),
            "ncclTunerPlugin_v7" => (&raw const linked::ncclTunerPlugin_v7).cast(),
            "paceline_nccl_policy_prepare" => linked::c_api::paceline_nccl_policy_prepare as *const c_void,
            "paceline_nccl_policy_clear" => linked::c_api::paceline_nccl_policy_clear as *const c_void,
            "paceline_nccl_prepared_fingerprint" => linked::c_api::paceline_nccl_prepared_fingerprint as *const c_void,
            "paceline_nccl_costs" => linked::c_api::paceline_nccl_costs as *const c_void,
            "paceline_nccl_policy_activate" => linked::c_api::paceline_nccl_policy_activate as *const c_void,
            _ => ptr::null(),
        }
    }
}

/// A list of symbols.
pub struct Given(pub Vec<(&'static str, *const c_void)>);

impl Library for Given {
    fn symbol(&self, name: &str) -> *const c_void {
        self.0.iter().find(|(known, _)| *known == name).map_or(ptr::null(), |(_, address)| *address)
    }
}
