//! What tests need and not every machine has: a lab's programs, an sshd. Without it a test says so and passes. In CI, which
//! installs it, a test that never ran must not look like one that holds: there it fails.

use std::env;
use std::path::PathBuf;

use crate::lab::{Lab, LabError, LabOptions};

/// A lab; or None, with the reason on standard error, where there can be none.
///
/// # Panics
/// It could not be set up; or one of its programs is missing where it [must be there](program).
pub fn lab(options: &LabOptions) -> Option<Lab> {
    match Lab::build(options) {
        Ok(lab) => return Some(lab),
        Err(error @ LabError::Missing { .. }) => skip(&error.to_string()),
        // Nothing that could be installed: this user is not root, or the kernel does not let root do it, as in a container.
        Err(LabError::NotPermitted(reason)) => eprintln!("skipped: {reason}"),
        Err(error) => panic!("{error}"),
    }
    None
}

/// The first program of these that is there, each a path or a name to look for in `PATH`; or None, with a line on standard
/// error.
///
/// # Panics
/// None is there, although `PACELINE_LONG_TESTS` is set and we are root.
pub fn program(names: &[&str], package: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    // (Joined to a folder, a whole path remains what it is.)
    let places = names.iter().flat_map(|name| env::split_paths(&folders).map(move |folder| folder.join(name)));
    let found = places.into_iter().find(|place| place.is_file());
    if found.is_none() {
        skip(&format!("`{}` is missing: install {package}", names.join("` or `")));
    }
    found
}

/// The test passes without what it needs, unless that must be there.
fn skip(missing: &str) {
    assert!(!must_be_there(), "{missing}. With PACELINE_LONG_TESTS root's tests fail without it; .ci/run installs it");
    eprintln!("skipped: {missing}");
}

fn must_be_there() -> bool {
    env::var_os("PACELINE_LONG_TESTS").is_some() && rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_a_reason_to_skip_or_to_fail() {
        assert!(program(&["no-such-program", "sh"], "dash").is_some());
        assert_eq!(program(&["/bin/sh"], "dash"), Some("/bin/sh".into()));
        let skipped = std::panic::catch_unwind(|| program(&["no-such-program"], "nothing"));
        assert_eq!(skipped.is_err(), must_be_there());
        assert!(skipped.is_err() || skipped.is_ok_and(|found| found.is_none()));
    }
}
