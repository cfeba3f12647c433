//! `paceline launch` with real processes: what the ranks get, what is reported, and that nothing is left behind.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use support::folder::scratch_file;
use support::{Outcome, SOON, is_alive, paceline, run, start, until};

/// Ranks that are not ended sleep for longer.
const LIMIT: Duration = Duration::from_secs(50);

/// Runs a shell script as ranks.
fn launch(workers: &str, options: &[&str], script: &str) -> Outcome {
    let arguments = [&["launch", "--workers", workers], options, &["--", "sh", "-c", script]].concat();
    run(paceline(&arguments), LIMIT)
}

#[test]
fn every_rank_knows_its_place_and_rank_zero_has_the_socket() {
    let script = "echo $PACELINE_RANK/$PACELINE_WORLD_SIZE/$PACELINE_LOCAL_RANK $PACELINE_JOB $PACELINE_RENDEZVOUS; \
                  if [ $PACELINE_RANK = 0 ]; then readlink /proc/self/fd/$PACELINE_RENDEZVOUS_FD; \
                  else echo none$PACELINE_RENDEZVOUS_FD; fi";
    let outcome = launch("3", &[], script).expect_code(0);
    let lines: BTreeSet<&str> = outcome.stdout.lines().collect();
    let (mut places, mut jobs) = (BTreeSet::new(), BTreeSet::new());
    for line in &lines {
        if let Some((place, job)) = line.split_once(' ') {
            places.insert(place);
            jobs.insert(job);
        }
    }
    assert_eq!(places, BTreeSet::from(["0/3/0", "1/3/1", "2/3/2"]), "{outcome:#?}");
    assert_eq!(jobs.len(), 1, "all ranks share job and address: {outcome:#?}");
    assert!(jobs.iter().all(|job| job.contains(" 127.0.0.1:")), "{outcome:#?}");
    assert!(lines.iter().any(|line| line.starts_with("socket:")), "{outcome:#?}");
    assert_eq!(outcome.stdout.lines().filter(|line| *line == "none").count(), 2, "{outcome:#?}");
}

#[test]
fn lines_stay_whole_and_carry_the_rank_if_asked() {
    let script = "for i in 1 2 3; do printf \"a$PACELINE_RANK\"; sleep 0.02; echo b; done; printf end";
    let outcome = launch("4", &["--tag"], script).expect_code(0);
    for rank in 0..4 {
        let own: Vec<_> = outcome.stdout.lines().filter(|line| line.starts_with(&format!("[{rank}] "))).collect();
        let line = format!("[{rank}] a{rank}b");
        assert_eq!(own, [line.as_str(), &line, &line, &format!("[{rank}] end")], "{outcome:#?}");
    }
    assert_eq!(outcome.stdout.lines().count(), 16, "{outcome:#?}");
    let untagged = launch("2", &[], "printf 'out\\n'; printf 'err\\n' >&2").expect_code(0);
    assert_eq!((untagged.stdout.as_str(), untagged.stderr.as_str()), ("out\nout\n", "err\nerr\n"));
}

#[test]
fn a_failing_rank_is_named_and_the_launcher_fails() {
    let outcome = launch("3", &[], "[ $PACELINE_RANK != 1 ] || exit 7").expect_code(1);
    assert!(outcome.stderr.contains("rank 1 (pid "), "{outcome:#?}");
    outcome.expect_stderr(&["ended with exit status 7"]);
}

#[test]
fn survivors_of_a_killed_rank_get_time_for_their_last_words() {
    // The others have begun before the one dies: what they need after that is not what it takes to start them.
    let begun = scratch_file("begun");
    let script = "[ $PACELINE_RANK = 2 ] || echo >>FILE; \
                  while [ $(wc -l 2>/dev/null <FILE || echo 0) -lt 2 ]; do sleep 0.01; done; \
                  [ $PACELINE_RANK != 2 ] || kill -9 $$; sleep 0.3; echo survivor $PACELINE_RANK >&2; exit 1";
    let outcome = launch("3", &[], &script.replace("FILE", &begun.to_string_lossy())).expect_code(1);
    fs::remove_file(begun).expect("our own file");
    let outcome = outcome.expect_stderr(&["error: rank 2 (pid ", "was killed by SIGKILL", "survivor 0", "survivor 1"]);
    assert!(!outcome.stderr.contains("terminated"), "they had the time: {outcome:#?}");
}

#[test]
fn survivors_that_hang_are_ended() {
    let script = "echo $$; [ $PACELINE_RANK != 0 ] || exit 3; trap '' TERM; while :; do sleep 1; done";
    let outcome = launch("2", &[], script).expect_code(1);
    let outcome = outcome.expect_stderr(&["rank 0 (pid ", "ended with exit status 3", "terminated: rank 1"]);
    assert_gone(&outcome);
}

#[test]
fn an_interrupt_leaves_nothing() {
    // A shell that ignores every polite signal, a process in the background, and one in a session of its own.
    let script = "trap '' INT TERM HUP; sleep 60 & echo $!; setsid sleep 61 & echo $!; echo $$; wait; sleep 60";
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let pids = scratch_file(&format!("pids{code}"));
        let script = format!("({script}) | while read pid; do echo $pid >>{}; done", pids.display());
        let running = start(paceline(&["launch", "--workers", "3", "--", "sh", "-c", &script]));
        let read = || fs::read_to_string(&pids).unwrap_or_default();
        assert!(until(LIMIT, || read().lines().count() == 9), "ranks did not start: {}", read());
        running.signal(signal);
        running.end_within(LIMIT).expect_code(code);
        let left: Vec<_> = pids_in(&read()).into_iter().filter(|pid| is_alive(*pid)).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        fs::remove_file(pids).expect("our own file");
    }
}

#[test]
fn ranks_that_obey_an_interrupt_are_not_reported() {
    let running = start(paceline(&["launch", "--workers", "2", "--", "sleep", "60"]));
    assert!(until(LIMIT, || support::children_of(running.pid()).len() == 2));
    running.signal(Signal::INT);
    let outcome = running.end_within(LIMIT).expect_code(130);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let running = start(paceline(&["launch", "--workers", "3", "--", "sleep", "60"]));
    assert!(until(LIMIT, || support::children_of(running.pid()).len() == 3));
    let ranks = support::children_of(running.pid());
    assert!(ranks.iter().all(|pid| is_alive(*pid)));
    running.signal(Signal::KILL);
    assert!(until(SOON, || !ranks.iter().any(|pid| is_alive(*pid))), "{ranks:?} live on");
}

#[test]
fn what_ranks_left_behind_is_ended_with_them() {
    let outcome = launch("2", &[], "setsid sleep 60 >/dev/null 2>&1 & echo $!; sleep 0.2").expect_code(0);
    assert_gone(&outcome);
}

/// A program that becomes the launcher by `exec` may have children already.
#[test]
fn children_that_are_not_ours_are_spared() {
    let script = "sleep 60 >/dev/null 2>&1 & echo $!; exec \"$0\" launch --workers 2 -- true";
    let outcome = run(shell(script), LIMIT).expect_code(0);
    let pids = pids_in(&outcome.stdout);
    assert_eq!(pids.len(), 1, "{outcome:#?}");
    let spared = is_alive(pids[0]);
    let _ = rustix::process::kill_process(Pid::from_raw(pids[0] as i32).expect("a process id"), Signal::KILL);
    assert!(spared, "it was killed: {outcome:#?}");
}

/// Rank 0 leaves a process behind and removes the program, so that no later rank can be started.
#[test]
fn a_rank_that_cannot_be_started_ends_the_others_and_what_they_left() {
    let (program, pids) = (scratch_file("vanishes.sh"), scratch_file("vanishes.pids"));
    let script = format!(
        "#!/bin/sh\n[ $PACELINE_RANK = 0 ] || exec sleep 60\nsetsid sleep 60 >/dev/null 2>&1 &\n\
         echo $! >{}\necho last words\nrm \"$0\"\nsleep 60\n",
        pids.display()
    );
    fs::write(&program, script).expect("a scratch file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
    let outcome = run(paceline(&["launch", "--workers", "2000", "--", &program.to_string_lossy()]), LIMIT);
    let outcome = outcome.expect_code(1);
    let left = pids_in(&fs::read_to_string(&pids).expect("rank 0 has written it"));
    fs::remove_file(pids).expect("our own file");
    assert_eq!(left.len(), 1, "{outcome:#?}");
    assert!(!is_alive(left[0]), "left behind: {outcome:#?}");
    assert_eq!(outcome.stdout, "last words\n", "{outcome:#?}");
}

/// Whoever starts us may ignore the signal: the kernel then collects the ranks itself and tells nobody how they ended.
#[test]
fn an_ignored_child_signal_does_not_hide_how_ranks_end() {
    let mut command = paceline(&["launch", "--workers", "2", "--", "sh", "-c", "exit $PACELINE_RANK"]);
    let ignore = || {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ignore) };
    run(command, LIMIT).expect_code(1).expect_stderr(&["rank 1 (pid ", "ended with exit status 1"]);
}

/// More than the pipes hold, to someone who looks away for a while.
#[test]
fn a_slow_reader_gets_the_last_lines() {
    let mut command = paceline(&["launch", "--workers", "1", "--", "seq", "20000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    thread::sleep(Duration::from_millis(1500));
    let mut text = String::new();
    child.stdout.take().expect("it is a pipe").read_to_string(&mut text).expect("text");
    assert_eq!(text.lines().count(), 20_000, "the last line is {:?}", text.lines().last());
    assert!(child.wait().expect("it is our child").success());
}

/// The launcher by way of a shell, to which it is `$0`.
fn shell(script: &str) -> Command {
    let mut command = paceline(&[]);
    let program = command.get_program().to_owned();
    let environment: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    command = Command::new("sh");
    command.arg("-c").arg(script).arg(program);
    for name in environment {
        command.env_remove(name);
    }
    command
}

#[test]
fn wrong_usage_and_missing_programs_are_told_apart() {
    launch("0", &[], "true").expect_code(2).expect_stderr(&["--workers", "there must be at least one"]);
    launch("two", &[], "true").expect_code(2).expect_stderr(&["whole number"]);
    run(paceline(&["launch", "--workers", "2"]), LIMIT).expect_code(2);
    run(paceline(&["launch", "--workers", "2", "--", "/no/such/program"]), LIMIT).expect_code(1).expect_stderr(&[
        "cannot start rank 0 as `/no/such/program`",
        "No such file",
        "help:",
    ]);
}

/// Every process whose id stands on a line of standard output has ended.
#[track_caller]
fn assert_gone(outcome: &Outcome) {
    let pids = pids_in(&outcome.stdout);
    assert_eq!(pids.len(), 2, "{outcome:#?}");
    assert!(until(SOON, || !pids.iter().any(|pid| is_alive(*pid))), "left behind: {outcome:#?}");
}

fn pids_in(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.parse().ok()).collect()
}
