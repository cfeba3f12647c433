//! A command line as ranks in the lab, watched to its end.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Fault, Harm, Lab, LabError, host_name};

/// How long the others may take to end by themselves once a rank has failed, or once they were asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long the last lines may take after the last rank has ended.
const LAST_LINES: Duration = Duration::from_millis(500);
/// How often we look.
const TICK: Duration = Duration::from_millis(10);

/// What to run, and what happens meanwhile.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
    /// At least one.
    pub ranks_per_host: usize,
    /// When everything is ended.
    pub timeout: Duration,
    /// What happens to links.
    pub faults: Vec<(Harm, Fault)>,
    /// Put `[rank]` in front of every line of output; otherwise the ranks have our output.
    pub tag: bool,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// By rank: how it ended by itself; None if we ended it.
    pub ranks: Vec<Option<ExitStatus>>,
    /// The time was over.
    pub timed_out: bool,
    /// This signal told us to stop.
    pub interrupted: Option<i32>,
}

impl JobEnd {
    /// Did every rank do what it was asked to?
    pub fn is_success(&self) -> bool {
        self.ranks.iter().all(|status| status.is_some_and(|status| status.success()))
    }
}

/// One line per rank that did not end with status 0.
impl fmt::Display for JobEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.ranks.iter().enumerate().filter(|(_, status)| !status.is_some_and(|status| status.success()));
        let ends = failed.map(|(rank, status)| match status {
            Some(status) => format!("rank {rank}: {status}"),
            None => format!("rank {rank}: ended by the lab"),
        });
        f.write_str(&ends.collect::<Vec<_>>().join("\n"))
    }
}

impl Lab {
    /// Runs a job to its end; nothing of it is left then. Says on standard error what happens to links and which rank
    /// fails first. SIGINT, SIGTERM and SIGHUP end the job.
    ///
    /// # Errors
    /// The ranks could not be started, or a link could not be hurt.
    pub fn run(&self, job: &Job) -> Result<JobEnd, LabError> {
        let io = |doing: &str| {
            let doing = doing.to_owned();
            move |source| LabError::Io { doing, source }
        };
        for (_, fault) in &job.faults {
            self.host(fault.host)?;
        }
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&asked), signal as usize)
                .map_err(io("catching signals"))?;
        }
        let mut running = Running { ranks: Vec::new(), lines: Vec::new() };
        for (rank, mut command) in self.ranks(job.ranks_per_host, &job.command).into_iter().enumerate() {
            command.stdin(Stdio::null()).process_group(0);
            if job.tag {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let mut child = command.spawn().map_err(io(&format!("starting rank {rank}")))?;
            running.lines.extend(pass_on(child.stdout.take(), rank, io::stdout));
            running.lines.extend(pass_on(child.stderr.take(), rank, io::stderr));
            running.ranks.push((child, None));
        }
        running.watch(self, job, &asked)
    }
}

/// The ranks with how they ended.
struct Running {
    ranks: Vec<(Child, Option<ExitStatus>)>,
    lines: Vec<JoinHandle<()>>,
}

impl Running {
    fn watch(mut self, lab: &Lab, job: &Job, asked: &AtomicUsize) -> Result<JobEnd, LabError> {
        let start = Instant::now();
        let mut faults = job.faults.clone();
        faults.sort_by_key(|(_, fault)| fault.after);
        let mut faults = faults.into_iter().peekable();
        let (mut end_at, mut timed_out, mut interrupted) = (start + job.timeout, false, None);
        let mut failed = false;
        while self.collect(job, &mut |message| {
            // The first failure is the reason; what follows from it has little time.
            if !failed && interrupted.is_none() {
                eprintln!("lab: {message}");
                end_at = end_at.min(Instant::now() + GRACE);
            }
            failed = true;
        })? {
            let now = Instant::now();
            while let Some((harm, fault)) = faults.next_if(|(_, fault)| now >= start + fault.after) {
                fault.happen(harm, lab)?;
                eprintln!("lab: {:.1} s: {harm:?} {}", start.elapsed().as_secs_f64(), host_name(fault.host));
            }
            let signal = asked.swap(0, Ordering::Relaxed) as i32;
            if signal != 0 {
                // Asked twice is meant.
                end_at = if interrupted.is_some() { now } else { end_at.min(now + GRACE) };
                interrupted = Some(signal);
                self.signal(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
            }
            if now >= end_at {
                timed_out = now >= start + job.timeout;
                break;
            }
            thread::sleep(TICK);
        }
        let ranks = self.ranks.iter().map(|(_, status)| *status).collect();
        Ok(JobEnd { ranks, timed_out, interrupted })
    }

    /// Looks who has ended; true if somebody has not.
    fn collect(&mut self, job: &Job, tell: &mut dyn FnMut(String)) -> Result<bool, LabError> {
        let mut some_run = false;
        for (rank, (child, status)) in self.ranks.iter_mut().enumerate() {
            if status.is_some() {
                continue;
            }
            *status = child
                .try_wait()
                .map_err(|source| LabError::Io { doing: format!("waiting for rank {rank}"), source })?;
            match status {
                None => some_run = true,
                Some(status) if status.success() => {}
                Some(status) => {
                    let how = match (status.code(), status.signal()) {
                        (Some(code), _) => format!("ended with exit status {code}"),
                        (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
                    };
                    tell(format!("rank {rank} on {} {how}", host_name(rank / job.ranks_per_host)));
                }
            }
        }
        Ok(some_run)
    }

    fn signal(&self, signal: Signal) {
        for (child, _) in self.ranks.iter().filter(|(_, status)| status.is_none()) {
            // A group that has just gone needs no signal.
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }
}

/// No rank outlives its job.
impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for (child, _) in &mut self.ranks {
            let _ = child.wait();
        }
        // What a rank has left behind may hold its pipes open: it ends with the lab.
        let deadline = Instant::now() + LAST_LINES;
        while self.lines.iter().any(|lines| !lines.is_finished()) && Instant::now() < deadline {
            thread::sleep(TICK);
        }
    }
}

/// Writes the lines of a rank with its number in front.
fn pass_on<W: Write>(
    pipe: Option<impl Read + Send + 'static>,
    rank: usize,
    out: impl Fn() -> W + Send + 'static,
) -> Option<JoinHandle<()>> {
    let mut reader = BufReader::new(pipe?);
    Some(thread::spawn(move || {
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            let text = format!("[{rank}] {}\n", String::from_utf8_lossy(&line).trim_end_matches('\n'));
            if out().write_all(text.as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    }))
}
