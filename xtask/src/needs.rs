//! What tests need and not every machine has: a lab's programs, an sshd, namespaces, PyTorch. Without it a test says so
//! and passes. In CI, which installs it, a test that never ran must not look like one that holds: there
//! (`PACELINE_LONG_TESTS` is set, and we are root) it fails. Two things cannot be installed everywhere: what the kernel refuses even to root,
//! `PACELINE_NO_NAMESPACES` excuses, and PyTorch `PACELINE_NO_TORCH`.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::lab::{Lab, LabError, LabOptions};

/// Excuses root's tests from what the kernel refuses here, as in many a container: labs, and mounts of one's own.
const NO_NAMESPACES: &str = "PACELINE_NO_NAMESPACES";
/// Excuses them from PyTorch, which is large, and not built for every machine. `.ci/run` sets it where it could not
/// install it.
const NO_TORCH: &str = "PACELINE_NO_TORCH";

/// A lab; or None, with the reason on standard error, where there can be none.
///
/// # Panics
/// It could not be set up; or there can be none where it [must be there](program), and nothing excuses it.
pub fn lab(options: &LabOptions) -> Option<Lab> {
    match Lab::build(options) {
        Ok(lab) => return Some(lab),
        Err(error @ LabError::Missing { .. }) => skip(&error.to_string()),
        Err(LabError::NotPermitted(reason)) => skip_unless_excused(&reason, NO_NAMESPACES),
        Err(error) => panic!("{error}"),
    }
    None
}

/// What comes before a command to give it mounts of its own: what it mounts, nobody else sees. Or None, with the reason on
/// standard error, where it may have none.
///
/// # Panics
/// It may have none where it [must](program), and nothing excuses it.
pub fn own_mounts() -> Option<Command> {
    let program = program(&["unshare"], "util-linux")?;
    let unshare = || {
        let mut command = Command::new(&program);
        command.args(["--mount", "--"]);
        command
    };
    // Whoever may enter a namespace need not be let mount in it.
    let tried = unshare().args(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]).output();
    let reason = match tried {
        Ok(output) if output.status.success() => return Some(unshare()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    skip_unless_excused(&format!("no mounts of one's own: {reason}"), NO_NAMESPACES);
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

/// The Python of `PACELINE_TORCH`, which must have PyTorch; or None, with a line on standard error.
///
/// # Panics
/// The variable names none where it [must be there](program), and nothing excuses it.
pub fn torch() -> Option<OsString> {
    let python = env::var_os("PACELINE_TORCH").filter(|python| !python.is_empty());
    if python.is_none() {
        skip_unless_excused("PACELINE_TORCH names no Python with PyTorch", NO_TORCH);
    }
    python
}

/// As [`skip`], of what cannot be installed everywhere: there a variable of the environment excuses it.
fn skip_unless_excused(reason: &str, excuse: &str) {
    let excused = env::var_os(excuse).is_some();
    assert!(
        excused || !must_be_there(),
        "{reason}. With PACELINE_LONG_TESTS root's tests fail without it, unless {excuse} is set"
    );
    eprintln!("skipped: {reason}");
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

    #[test]
    fn what_cannot_be_installed_everywhere_is_a_reason_to_skip_or_to_fail() {
        for excuse in [NO_NAMESPACES, NO_TORCH] {
            let skipped = std::panic::catch_unwind(|| skip_unless_excused("not here", excuse));
            assert_eq!(skipped.is_err(), must_be_there() && env::var_os(excuse).is_none(), "{excuse}");
        }
        let found = std::panic::catch_unwind(torch);
        let named = env::var_os("PACELINE_TORCH").is_some_and(|python| !python.is_empty());
        let must_fail = !named && must_be_there() && env::var_os(NO_TORCH).is_none();
        assert_eq!((found.is_err(), found.is_ok_and(|python| python.is_some())), (must_fail, named));
    }
}
