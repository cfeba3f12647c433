//! Shared memory where the file system for it (`/dev/shm`) is full, as in a container that has little of it. Rings and
//! arenas lie in memory files, which need none.

mod support;

use std::process::Command;
use std::time::Duration;

use support::{paceline, run};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(60);

/// Mounts a page of file system there, fills it, sees that nothing more fits, and becomes its arguments.
const IN_A_FULL_FILE_SYSTEM: &str = r#"mount -t tmpfs -o size=4k tmpfs /dev/shm || exit 90
head -c 8192 /dev/zero >/dev/shm/filler 2>/dev/null
if { echo more >/dev/shm/more; } 2>/dev/null; then exit 91; fi
exec "$0" "$@""#;

/// The command in such a place; None where this user cannot make one.
fn in_a_full_file_system(command: &Command) -> Option<Command> {
    let mut full = needs::own_mounts()?;
    full.args(["sh", "-c", IN_A_FULL_FILE_SYSTEM]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => full.env(name, value),
            None => full.env_remove(name),
        };
    }
    Some(full)
}

/// Each element is checked, and most sizes are larger than all of that file system.
#[test]
fn ranks_share_memory_although_its_file_system_is_full() {
    let sizes = ["--max", "1MiB", "--iterations", "3", "--warmup", "1"];
    for more in [&["--transport", "auto"][..], &["--transport", "shm", "--alloc"]] {
        let perf = paceline(&[&["perf", "all-reduce", "--ranks", "2"], &sizes[..], more].concat());
        let Some(full) = in_a_full_file_system(&perf) else { return };
        let outcome = run(full, LIMIT).expect_code(0);
        assert!(outcome.stdout.contains("2 ranks, transport shm"), "{outcome:#?}");
        assert_eq!(outcome.stderr, "", "something was missing");
    }
}
