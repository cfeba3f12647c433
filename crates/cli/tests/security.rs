//! Secrets and encryption with real processes: who gets in, who does not, and that nobody sees the secret.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use meeting::free_port;
use support::folder::scratch_file;
use support::{Outcome, Running, children_of, paceline, run, start, until};

const LIMIT: Duration = Duration::from_secs(30);

/// A small all-reduce over TCP, every element of which is checked.
const PERF: [&str; 9] =
    ["perf", "all-reduce", "--transport", "tcp", "--max", "256KiB", "--iterations", "3", "--warmup"];

fn perf(more: &[&str]) -> Command {
    paceline(&[&PERF[..], &["1"], more].concat())
}

#[test]
fn ranks_of_one_command_share_a_new_secret() {
    let script = "echo $PACELINE_SECRET";
    let secrets = || {
        let outcome = run(paceline(&["launch", "--workers", "2", "--", "sh", "-c", script]), LIMIT).expect_code(0);
        outcome.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, second) = (secrets(), secrets());
    assert_eq!(first.len(), 2);
    assert!(first[0] == first[1] && first[0].len() == 64 && second[0] != first[0], "{first:?} {second:?}");
}

#[test]
fn a_secret_that_was_given_is_passed_on_and_never_seen() {
    let secret = "a secret that nobody guesses";
    let mut command = paceline(&["launch", "--workers", "2", "--", "sh", "-c", "echo $PACELINE_SECRET; sleep 60"]);
    command.env("PACELINE_SECRET", secret);
    let running = start(command);
    assert!(until(LIMIT, || running.stdout_so_far().lines().count() == 2));
    assert_eq!(running.stdout_so_far(), format!("{secret}\n{secret}\n"));
    let mut processes = children_of(running.pid());
    processes.push(running.pid());
    for process in processes {
        let words = fs::read(format!("/proc/{process}/cmdline")).expect("it runs");
        assert!(!String::from_utf8_lossy(&words).contains(secret));
    }
    assert_eq!(running.stderr_so_far(), "");
}

#[test]
fn everything_works_encrypted_and_in_the_clear() {
    for more in [&["--encrypt"][..], &[], &["--insecure"]] {
        let outcome = run(perf(more), LIMIT).expect_code(0);
        assert!(outcome.stdout.lines().count() > 3, "{outcome:#?}");
    }
}

/// How long ranks wait that do not find each other, in seconds: long enough for both to start on a busy machine.
const TIMEOUT_S: &str = "5";

/// A rank that somebody starts by hand.
fn rank(rank: u32, port: u16, secret: Option<&str>, encrypt: bool) -> Running {
    let mut command = perf(&[]);
    let place = [("RANK", rank.to_string()), ("WORLD_SIZE", "2".into()), ("RENDEZVOUS", format!("127.0.0.1:{port}"))];
    for (name, value) in place {
        command.env(format!("PACELINE_{name}"), value);
    }
    command.env("PACELINE_TIMEOUT", TIMEOUT_S);
    if let Some(secret) = secret {
        command.env("PACELINE_SECRET", secret);
    }
    if encrypt {
        command.env("PACELINE_ENCRYPT", "1");
    }
    start(command)
}

/// Two ranks of different minds, both ended.
fn meet(zero: (Option<&str>, bool), one: (Option<&str>, bool)) -> (Outcome, Outcome) {
    let port = free_port();
    let zero = rank(0, port, zero.0, zero.1);
    let one = rank(1, port, one.0, one.1);
    let one = one.end_within(LIMIT);
    (zero.end_within(LIMIT), one)
}

#[test]
fn ranks_that_do_not_share_a_secret_say_so() {
    let (ours, theirs) = (Some("0123456789abcdef"), Some("0123456789abcdeF"));
    let (zero, one) = meet((ours, true), (ours, true));
    zero.expect_code(0);
    one.expect_code(0);
    for (zero, one, at_zero, at_one) in [
        (
            (ours, false),
            (theirs, false),
            "its handshake does not fit: it has another secret",
            "it refuses our handshake",
        ),
        (
            (ours, false),
            (None, false),
            "it has no shared secret and this rank has one",
            "it has a shared secret and this rank has none",
        ),
        (
            (None, false),
            (ours, false),
            "it has a shared secret and this rank has none",
            "it has no shared secret and this rank has one",
        ),
        ((ours, true), (ours, false), "this rank encrypts and it does not", "it encrypts and this rank does not"),
    ] {
        let (zero, one) = meet(zero, one);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        zero.expect_code(1).expect_stderr(&[
            &format!("rank 0 on {host}: rank 1 never came within {TIMEOUT_S} s"),
            "turned away 127.0.0.1:",
            at_zero,
            "PACELINE_",
        ]);
        one.expect_code(1).expect_stderr(&[&format!("rank 1 on {host}: rank 0 at 127.0.0.1:"), at_one, "PACELINE_"]);
    }
}

#[test]
fn secrets_that_others_can_read_are_refused_before_anything_runs() {
    let path = scratch_file("secret");
    fs::write(&path, "0123456789abcdef0123456789abcdef\n").expect("a file");
    let with_file = || {
        let mut command = paceline(&["launch", "--workers", "2", "--", "echo", "it runs"]);
        command.env("PACELINE_SECRET_FILE", &path);
        run(command, LIMIT)
    };
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    assert_eq!(with_file().expect_code(0).stdout, "it runs\nit runs\n");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("it is ours");
    let outcome = with_file().expect_code(2).expect_stderr(&[&format!("chmod 600 {}", path.display())]);
    assert_eq!(outcome.stdout, "");
    let mut both = perf(&[]);
    both.env("PACELINE_SECRET_FILE", &path).env("PACELINE_SECRET", "0123456789abcdef");
    run(both, LIMIT).expect_code(2).expect_stderr(&["PACELINE_SECRET and PACELINE_SECRET_FILE are both set"]);
    fs::remove_file(path).expect("our own file");
}

#[test]
fn encryption_without_a_secret_is_refused() {
    let mut command = perf(&["--encrypt"]);
    let place = [("RANK", "0"), ("WORLD_SIZE", "2"), ("RENDEZVOUS", "127.0.0.1:1")];
    command.envs(place.map(|(name, value)| (format!("PACELINE_{name}"), value)));
    run(command, LIMIT).expect_code(1).expect_stderr(&["--encrypt (PACELINE_ENCRYPT=1) needs a shared secret"]);
}
