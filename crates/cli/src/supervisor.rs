//! Runs a command as N ranks here and leaves nothing behind.
//!
//! One thread starts the ranks, waits for them and for signals, and ends them; other threads only pass lines on.

mod output;
mod process;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::failure::Failure;
use output::Lines;
use process::{Ending, KILLED_GRACE, Meeting, RankProcess, in_words};

/// How long survivors of a failed rank may take to end by themselves. They notice within 2 s and print what they know.
const SURVIVORS_GRACE: Duration = Duration::from_millis(2500);
/// How long ranks may take to obey a termination signal after a failure.
const TERMINATION_GRACE: Duration = Duration::from_millis(1000);
/// After Ctrl-C everything must be gone within 2 s: when the ranks are told to terminate, and when they are killed.
const INTERRUPT_TERMINATE: Duration = Duration::from_millis(700);
const INTERRUPT_KILL: Duration = Duration::from_millis(1000);
/// After the last rank has ended: how long its pipes may be quiet while a process that it left behind holds them.
const LAST_LINES_QUIET: Duration = Duration::from_millis(500);
/// How long our reader may take for the last lines; after Ctrl-C no longer than `LAST_LINES_QUIET`.
const LAST_LINES: Duration = Duration::from_secs(30);

/// What to run.
pub struct Job {
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
    /// How many ranks; at least one.
    pub ranks: usize,
    /// Environment that the ranks get besides ours and their place in the job.
    pub environment: Vec<(String, String)>,
    /// Where their output goes.
    pub output: Output,
}

/// Where the output of the ranks goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Line by line to ours, each with the rank in front if `tag` is set.
    Lines {
        /// Put `[rank]` in front.
        tag: bool,
    },
    /// Rank 0 has our terminal (progress bars work), the others write line by line.
    FirstRankDirect,
}

/// Runs the job to its end. Status 0: every rank ended with 0. Status 1: one did not; which one and how stands on
/// standard error, the others were ended. 128 + n: signal n ended the launcher's work.
///
/// # Errors
/// The ranks could not be started or watched.
pub fn run(job: &Job) -> Result<ExitCode, Failure> {
    let mut signals = Signals::catch().map_err(|error| Failure::failed("cannot catch signals").cause(error))?;
    let mut lines = Lines::new(job.output == Output::Lines { tag: true });
    process::adopt_orphans();
    let not_ours = process::children();
    let mut progress = Progress::default();
    // The ranks are dropped, and so ended, before what they have left behind.
    let outcome = start(job, &mut lines).and_then(|mut ranks| watch(&mut ranks, &mut signals, &mut progress));
    process::end_descendants(&not_ours);
    lines.finish(LAST_LINES_QUIET, if progress.interrupted.is_some() { LAST_LINES_QUIET } else { LAST_LINES });
    outcome.map(|()| progress.exit_code())
}

fn start(job: &Job, lines: &mut Lines) -> Result<Vec<RankProcess>, Failure> {
    let meeting = Meeting::arrange()
        .map_err(|error| Failure::failed("cannot listen on 127.0.0.1 for the ranks to meet").cause(error))?;
    let mut ranks = Vec::with_capacity(job.ranks);
    for rank in 0..job.ranks {
        let started = RankProcess::start(rank, job, &meeting).and_then(|mut process| {
            let (output, error) = process.take_pipes();
            lines.follow(rank, output, error)?;
            Ok(process)
        });
        match started {
            Ok(process) => ranks.push(process),
            Err(error) => {
                let what = format!("cannot start rank {rank} as `{}`", in_words(&job.command));
                let next = match error.kind() {
                    io::ErrorKind::NotFound => "no such program: give a path, or a name that is found in PATH",
                    io::ErrorKind::PermissionDenied => "make the file executable",
                    _ => "`ulimit -u` and `ulimit -n` limit processes and open files",
                };
                return Err(Failure::failed(what).cause(error).help(next));
            }
        }
    }
    Ok(ranks)
}

impl Meeting {
    fn arrange() -> io::Result<Meeting> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?.to_string();
        // The standard library seeds every `RandomState` from the system's random numbers.
        let job = format!("{:016x}", RandomState::new().hash_one(&address));
        Ok(Meeting { listener, address, job })
    }
}

/// Waits until every rank has ended, and sees to it that they do once one has failed or we are told to stop.
fn watch(ranks: &mut [RankProcess], signals: &mut Signals, progress: &mut Progress) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::failed("cannot watch the ranks; they have been ended").cause(error);
    loop {
        for process in &mut *ranks {
            if let Some(ending) = process.collect().map_err(cannot)? {
                progress.ended(process, ending);
            }
        }
        if ranks.iter().all(|process| process.ending.is_some()) {
            return Ok(());
        }
        if let Some(signal) = signals.next() {
            progress.interrupt(signal);
        }
        while let Some(signal) = progress.escalation.due(Instant::now()) {
            progress.send(ranks, signal);
        }
        if progress.give_up.is_some_and(|deadline| deadline <= Instant::now()) {
            let what = format!("killed, but still there: {}", left(ranks));
            return Err(Failure::failed(what).help("the kernel holds it: look for a file system or device that hangs"));
        }
        let deadline = [progress.escalation.next_deadline(), progress.give_up].into_iter().flatten().min();
        wait(ranks, signals, deadline).map_err(cannot)?;
    }
}

/// The ranks that have not ended.
fn left(ranks: &[RankProcess]) -> String {
    let left = ranks.iter().filter(|process| process.ending.is_none());
    let names: Vec<_> = left.map(|process| format!("rank {} (pid {})", process.rank, process.pid())).collect();
    names.join(", ")
}

/// How far a job has come.
#[derive(Default)]
struct Progress {
    failed: bool,
    interrupted: Option<Signal>,
    /// We have signalled the ranks: how they end says nothing about them any more.
    signalled: bool,
    escalation: Escalation,
    /// Whoever has not ended by then does not obey the last signal.
    give_up: Option<Instant>,
}

impl Progress {
    fn ended(&mut self, process: &RankProcess, ending: Ending) {
        if ending.is_success() || self.signalled {
            return;
        }
        let what = format!("rank {} (pid {}) {ending}", process.rank, process.pid());
        if self.failed {
            eprintln!("paceline: {what}");
        } else {
            self.failed = true;
            Failure::failed(what).help(ending.advice()).report();
            self.escalation = Escalation::after_failure(Instant::now());
        }
    }

    /// The first signal is passed on, the second one means it.
    fn interrupt(&mut self, signal: Signal) {
        let now = Instant::now();
        self.escalation = match self.interrupted.replace(signal) {
            None => Escalation::after_interrupt(now, signal),
            Some(_) => Escalation { stages: [(now, Signal::KILL)].into() },
        };
    }

    fn send(&mut self, ranks: &[RankProcess], signal: Signal) {
        if self.interrupted.is_none() && !self.signalled {
            eprintln!("paceline: still running {SURVIVORS_GRACE:?} later, terminated: {}", left(ranks));
        }
        self.signalled = true;
        if signal == Signal::KILL {
            self.give_up = Some(Instant::now() + KILLED_GRACE);
        }
        for process in ranks {
            process.signal(signal);
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self.interrupted {
            Some(signal) => ExitCode::from(128 + signal.as_raw() as u8),
            None if self.failed => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// Sleeps until a rank ends, a signal arrives or the deadline is reached.
fn wait(ranks: &[RankProcess], signals: &Signals, deadline: Option<Instant>) -> io::Result<()> {
    let mut sources: Vec<PollFd<'_>> = ranks
        .iter()
        .filter(|process| process.ending.is_none())
        .map(|process| PollFd::new(&process.pidfd, PollFlags::IN))
        .chain([PollFd::from_borrowed_fd(signals.delivery.get_read().as_fd(), PollFlags::IN)])
        .collect();
    let limit = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    match poll(&mut sources, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Which signals are sent to the ranks, and when.
#[derive(Default)]
struct Escalation {
    stages: VecDeque<(Instant, Signal)>,
}

impl Escalation {
    fn after_failure(now: Instant) -> Escalation {
        let terminate = now + SURVIVORS_GRACE;
        Escalation { stages: [(terminate, Signal::TERM), (terminate + TERMINATION_GRACE, Signal::KILL)].into() }
    }

    fn after_interrupt(now: Instant, signal: Signal) -> Escalation {
        let (terminate, kill) = (now + INTERRUPT_TERMINATE, now + INTERRUPT_KILL);
        Escalation { stages: [(now, signal), (terminate, Signal::TERM), (kill, Signal::KILL)].into() }
    }

    fn due(&mut self, now: Instant) -> Option<Signal> {
        self.stages.pop_front_if(|stage| stage.0 <= now).map(|stage| stage.1)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.stages.front().map(|stage| stage.0)
    }
}

/// The signals that ask the launcher to stop.
struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    fn catch() -> io::Result<Signals> {
        // Whoever started us may ignore it, and then the kernel would collect the ranks before we know how they ended.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let (read, write) = UnixStream::pair()?;
        let mut wanted = vec![SIGINT, SIGTERM];
        if !hangup_is_ignored() {
            wanted.push(SIGHUP);
        }
        Ok(Signals { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, &wanted)? })
    }

    fn next(&mut self) -> Option<Signal> {
        self.delivery.pending().next().and_then(Signal::from_named_raw)
    }
}

/// Was the launcher started by `nohup`, which means it to survive the terminal?
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}
