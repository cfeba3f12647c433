//! Runs the built program as a user would.
// Every test file is a program of its own and uses some of this.
#![allow(dead_code)]

pub mod folder;
#[path = "../../../comm/tests/support/left_over.rs"]
pub mod left_over;
pub mod policies;
pub mod terminal;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What a run of the program left.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Outcome {
    /// The exit status, or 128 + the signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails the test with everything that the program said.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Outcome {
        assert_eq!(self.code(), code, "{self:#?}");
        self
    }

    /// Every fragment stands on standard error.
    #[track_caller]
    pub fn expect_stderr(self, fragments: &[&str]) -> Outcome {
        for fragment in fragments {
            assert!(self.stderr.contains(fragment), "no `{fragment}` in standard error: {self:#?}");
        }
        self
    }
}

/// The program with these arguments, in an environment without ranks.
pub fn paceline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments);
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NO_COLOR"] {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if ["PACELINE_", "SLURM_", "OMPI_", "PMI"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// A run that has not ended yet. Dropping it ends it.
pub struct Running {
    child: Child,
    stdout: Collected,
    stderr: Collected,
    started: Instant,
}

/// What has come out of a pipe so far, and the thread that reads it.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// Starts a command and collects what it writes.
pub fn start(command: Command) -> Running {
    start_into(command, Stdio::piped())
}

/// Starts a command with another standard output, and collects what it writes to standard error.
pub fn start_into(mut command: Command, stdout: Stdio) -> Running {
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(command);
    let stdout = match child.stdout.take() {
        Some(pipe) => Collected::from(pipe),
        None => Collected::from(std::io::empty()),
    };
    let stderr = Collected::from(child.stderr.take().expect("it is a pipe"));
    Running { child, stdout, stderr, started: Instant::now() }
}

/// Runs a command to its end, which must come within the limit.
#[track_caller]
pub fn run(command: Command, limit: Duration) -> Outcome {
    start(command).end_within(limit)
}

impl Running {
    /// The process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output until now.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.so_far()
    }

    /// What it has written to standard error until now.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.so_far()
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program is still there");
    }

    /// Waits for the end.
    #[track_caller]
    pub fn end_within(mut self, limit: Duration) -> Outcome {
        let ended = until(limit, || self.child.try_wait().expect("it is our child").is_some());
        let elapsed = self.started.elapsed();
        if !ended {
            let _ = self.child.kill();
        }
        let status = self.child.wait().expect("it is our child");
        let (stdout, stderr) = (self.stdout.take_all(), self.stderr.take_all());
        let outcome = Outcome { status, stdout, stderr, elapsed };
        assert!(ended, "still running after {limit:?}: {outcome:#?}");
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the condition holds; false if it does not in time.
pub fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// What never takes as long if it comes at all, however busy the machine is: for what is waited for, and ends the wait.
pub const SOON: Duration = Duration::from_secs(40);

/// Nothing of what processes held is left, once the kernel has cleared up.
#[track_caller]
pub fn expect_nothing_left(held: &left_over::Held, what: &str) {
    until(SOON, || held.left_over().is_empty());
    assert_eq!(held.left_over(), Vec::<String>::new(), "{what}: left behind");
}

/// Is there a process with this id that has not ended?
pub fn is_alive(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state stands behind the name, which is in parentheses.
    !matches!(status.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X') | None)
}

/// The direct children of a process, in the order of their ids.
pub fn children_of(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

impl Collected {
    fn from(mut pipe: impl Read + Send + 'static) -> Collected {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut piece) {
                shared.lock().expect("no reader panics").extend_from_slice(&piece[..count]);
            }
        });
        Collected { bytes, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no reader panics")).into_owned()
    }

    fn take_all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no reader panics");
        }
        self.so_far()
    }
}
