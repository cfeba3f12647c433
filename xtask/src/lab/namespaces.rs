//! Namespaces that live as long as a process of ours that reads a pipe of ours.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use super::{LabError, processors};

/// How long namespaces may take to be there, or to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the first process of the namespaces does: it says which process it is for us, makes `/proc` and `/sys` those of
/// its namespaces, gives them memory files and a name of their own, and then waits for the end of its standard input.
const FIRST_PROCESS: &str = r#"set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
mount -t sysfs sysfs /sys
if [ -d /dev/shm ]; then mount -t tmpfs tmpfs /dev/shm; fi
echo "$0" >/proc/sys/kernel/hostname
echo "$pid"
exec cat >/dev/null 2>&1"#;

/// Network, host name, processes, IPC and mounts apart from everybody else's.
pub(super) struct Namespaces {
    /// The first process, as we number it.
    pid: u32,
    /// Its end is the end of the namespaces.
    lifeline: Option<ChildStdin>,
    unshare: Child,
}

impl Namespaces {
    /// New ones with this host name.
    pub(super) fn make(host_name: &str) -> Result<Namespaces, LabError> {
        let io = |source| LabError::Io { doing: format!("making the namespaces of {host_name}"), source };
        let mut unshare = Command::new("unshare")
            .args(["--net", "--uts", "--ipc", "--pid", "--mount", "--kill-child", "--"])
            .args(["sh", "-c", FIRST_PROCESS, host_name])
            // A signal from the terminal is for us, not for them.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io)?;
        let (lifeline, stdout) = (unshare.stdin.take(), unshare.stdout.take());
        let (say, heard) = channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            // Nobody listens if it took too long.
            let _ = say.send(read.map(|_| line));
        });
        let pid = heard.recv_timeout(PATIENCE).ok().flatten().and_then(|line| line.trim().parse().ok());
        let mut namespaces = Namespaces { pid: pid.unwrap_or_default(), lifeline, unshare };
        if pid.is_none() {
            return Err(LabError::NotPermitted(format!("the namespaces of {host_name}: {}", namespaces.last_words())));
        }
        Ok(namespaces)
    }

    /// Their first process, as we number it.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// A program in all of them, in our working directory, on these processors; none: on all.
    pub(super) fn command(&self, program: OsString, processors: &[usize]) -> Command {
        let mut command = match processors {
            [] => Command::new("nsenter"),
            _ => {
                let mut bound = Command::new("taskset");
                bound.args(["-c", &processors::list(processors), "nsenter"]);
                bound
            }
        };
        self.target(&mut command, &["--net", "--uts", "--ipc", "--pid", "--mount"]);
        // Whoever enters a mount namespace stands at its root.
        let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
        command.args(["sh", "-c", r#"cd "$0" && exec "$@""#]).arg(here).arg(program);
        command
    }

    /// A program that sets their network up, and numbers processes as we do.
    pub(super) fn network_command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        self.target(&mut command, &["--net"]);
        command.arg(program);
        command
    }

    fn target(&self, nsenter: &mut Command, which: &[&str]) {
        nsenter.args(["--target", &self.pid.to_string()]).args(which).arg("--");
    }

    /// What `unshare` and the first process had to say; they end.
    fn last_words(&mut self) -> String {
        let _ = self.unshare.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.unshare.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        if said.is_empty() { "the kernel did not make them in time".into() } else { said.trim().replace('\n', "; ") }
    }
}

/// The kernel ends every process of the namespaces once the first one has ended.
impl Drop for Namespaces {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.unshare.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = self.unshare.kill();
                let _ = self.unshare.wait();
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
