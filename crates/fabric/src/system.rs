//! What to do about what the operating system refuses.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Are this process or this machine out of descriptors?
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::MFILE | Errno::NFILE))
}

/// What to do about an answer of the system, which says only what it lacks.
pub fn next_step_after(error: &io::Error) -> String {
    match errno(error) {
        Some(Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile).current.map_or("none".to_owned(), |limit| limit.to_string());
            format!("the limit on open files is {limit}: raise it with `ulimit -n`")
        }
        Some(Errno::NFILE) => "raise this machine's limit on open files with `sysctl fs.file-max`".into(),
        _ => "mend what the system complains of, then start the job again".into(),
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}
