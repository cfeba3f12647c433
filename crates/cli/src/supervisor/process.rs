//! One rank as a child process.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, waitid,
};
use serde::{Deserialize, Serialize};

use super::{Job, Output};

/// What every rank of one job is told alike.
pub struct Meeting {
    /// Where rank 0 listens, on its host. Rank 0 inherits the socket, so nobody can take the port in between.
    pub listener: Option<TcpListener>,
    /// `host:port` of that socket, as the other ranks reach it.
    pub address: String,
    /// Tells this job from every other.
    pub job: String,
}

/// Where a rank stands in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Counts from 0.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Counts the ranks of this host from 0.
    pub local_rank: usize,
    /// How many ranks this host has.
    pub local_size: usize,
}

/// A rank that was started here.
pub struct RankProcess {
    /// Its place.
    pub seat: Seat,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
    /// Set once the process has ended and was collected.
    pub ending: Option<Ending>,
    child: Child,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It returned this status.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl RankProcess {
    /// Starts a rank in a process group of its own.
    ///
    /// The rank is killed if the launcher dies, however it dies. This is tied to the calling *thread*: it must live as
    /// long as the launcher does.
    pub fn start(seat: Seat, job: &Job, meeting: &Meeting) -> io::Result<RankProcess> {
        let listener = meeting.listener.as_ref().filter(|_| seat.rank == 0);
        let mut command = Command::new(&job.command[0]);
        command
            .args(&job.command[1..])
            .env("PACELINE_RANK", seat.rank.to_string())
            .env("PACELINE_WORLD_SIZE", seat.world_size.to_string())
            .env("PACELINE_LOCAL_RANK", seat.local_rank.to_string())
            .env("PACELINE_LOCAL_SIZE", seat.local_size.to_string())
            .env("PACELINE_RENDEZVOUS", &meeting.address)
            .env("PACELINE_JOB", &meeting.job)
            .env_remove("PACELINE_RENDEZVOUS_FD")
            .envs(job.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0);
        let has_terminal = job.output == Output::FirstRankDirect && seat.rank == 0;
        if !has_terminal {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if let Some(listener) = listener {
            command.env("PACELINE_RENDEZVOUS_FD", listener.as_raw_fd().to_string());
        }
        tie_to_launcher(&mut command, listener, has_terminal);
        let child = command.spawn()?;
        match pidfd_open(pid_of(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(RankProcess { seat, pidfd, ending: None, child }),
            Err(error) => {
                // Nobody could watch it.
                end(pid_of(&child));
                Err(error.into())
            }
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pipes from its standard output and standard error, if they are pipes; once.
    pub fn take_pipes(&mut self) -> (Option<OwnedFd>, Option<OwnedFd>) {
        (self.child.stdout.take().map(OwnedFd::from), self.child.stderr.take().map(OwnedFd::from))
    }

    /// Sends a signal to the rank and to whatever it has started in its process group.
    pub fn signal(&self, signal: Signal) {
        if self.ending.is_none() {
            // A group that is gone already needs no signal.
            let _ = kill_process_group(pid_of(&self.child), signal);
        }
    }

    /// If the rank has ended: ends what is left of its process group and collects it.
    pub fn collect(&mut self) -> io::Result<Option<Ending>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?.is_none() {
            return Ok(None);
        }
        // Before the process is collected, while its id cannot belong to another group.
        self.signal(Signal::KILL);
        let ending = Ending::from(self.child.wait()?);
        self.ending = Some(ending);
        Ok(Some(ending))
    }
}

/// No rank outlives the launcher, whatever happens next.
impl Drop for RankProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if self.ending.is_none() {
            end(pid_of(&self.child));
        }
    }
}

impl Ending {
    /// Did it do what it was asked to?
    pub fn is_success(self) -> bool {
        self == Ending::Exit(0)
    }

    /// Where to look for the reason.
    pub fn advice(self) -> &'static str {
        match self {
            Ending::Exit(_) => "its own message stands above",
            Ending::Signal(signal) if signal == Signal::KILL.as_raw() => {
                "nothing in Paceline sends this: look for the out-of-memory killer in the kernel's log (`dmesg`), \
                 for a container's memory limit, or for someone's `kill -9`"
            }
            Ending::Signal(_) => "`ulimit -c unlimited` keeps a core file of the next crash",
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Ending {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Exit(code),
            (None, signal) => Ending::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ending::Exit(code) => write!(f, "ended with exit status {code}"),
            Ending::Signal(signal) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// Whatever the ranks start becomes our child when its parent dies, so that [`end_descendants`] finds it.
pub fn adopt_orphans() {
    // Without it (no kernel refuses) orphans would go to init, as they do everywhere else.
    let _ = set_child_subreaper(Some(getpid()));
}

/// How long a killed process may take to end. It ends as soon as it has a processor, unless it hangs in a driver or in a file
/// system that is gone.
pub const KILLED_GRACE: Duration = Duration::from_secs(5);

/// Ends and collects what the ranks started and left behind, in whatever process group or session it went. `spared` are
/// children that were not started by us, but by the program that became us by exec.
pub fn end_descendants(spared: &[Pid]) {
    let mut spared = spared.to_vec();
    // Killing one layer hands us the next.
    while let Some(child) = children().into_iter().find(|child| !spared.contains(child)) {
        if !end(child) {
            spared.push(child);
        }
    }
}

/// Kills a child and collects it. False if it does not end.
fn end(child: Pid) -> bool {
    let _ = kill_process(child, Signal::KILL);
    let deadline = Instant::now() + KILLED_GRACE;
    // An error says that there is no such child.
    while let Ok(None) = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The children of this process.
pub fn children() -> Vec<Pid> {
    let (pid, mut children) = (getpid(), Vec::new());
    // The children of our only thread that starts any.
    if let Ok(list) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        children.extend(list.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
    }
    children
}

/// The words of a command line, for a message.
pub fn in_words(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Arranges that the child dies with this thread, that it inherits `socket`, and that it may write to our terminal
/// although its process group is not the one in front (`stty tostop` would stop it).
fn tie_to_launcher(command: &mut Command, socket: Option<&TcpListener>, has_terminal: bool) {
    let launcher = getpid();
    let socket = socket.map(AsRawFd::as_raw_fd);
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the line above.
        if getppid() != Some(launcher) {
            return Err(Errno::SRCH.into());
        }
        if let Some(socket) = socket {
            // SAFETY: the listener outlives `spawn`, and the child has a copy of every descriptor.
            let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
            rustix::io::fcntl_setfd(socket, FdFlags::empty())?;
        }
        if has_terminal {
            // SAFETY: no handler is installed, so no code of ours can run at the wrong time.
            unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec `prepare` makes four system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
}
