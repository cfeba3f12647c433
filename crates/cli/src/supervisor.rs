//! Runs a command as N ranks here and leaves nothing behind.
//!
//! One thread starts the ranks, waits for them and for signals, and ends them; other threads only pass lines on.

mod output;
mod process;
mod progress;
mod signals;

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
pub use output::{Form, Lines, Piece, Stream};
use process::in_words;
pub use process::{Ending, Meeting, RankProcess, Seat, adopt_orphans, children, end_descendants};
pub use progress::Progress;
pub use signals::Signals;

/// After the last rank has ended: how long its pipes may be quiet while a process that it left behind holds them.
pub const LAST_LINES_QUIET: Duration = Duration::from_millis(500);
/// How long our reader may take for the last lines; after Ctrl-C no longer than `LAST_LINES_QUIET`.
pub const LAST_LINES: Duration = Duration::from_secs(30);

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
    let form = if job.output == (Output::Lines { tag: true }) { Form::Tagged } else { Form::Plain };
    let mut lines = Lines::new(form);
    adopt_orphans();
    let not_ours = children();
    let meeting = Meeting::arrange()
        .map_err(|error| Failure::failed("cannot listen on 127.0.0.1 for the ranks to meet").cause(error))?;
    let seat = |rank| Seat { rank, world_size: job.ranks, local_rank: rank, local_size: job.ranks };
    let mut progress = Progress::default();
    // The ranks are dropped, and so ended, before what they have left behind.
    let outcome = start(job, (0..job.ranks).map(seat), &meeting, &mut lines)
        .and_then(|mut ranks| watch(&mut ranks, &mut signals, &mut progress));
    end_descendants(&not_ours);
    lines.finish(LAST_LINES_QUIET, if progress.is_interrupted() { LAST_LINES_QUIET } else { LAST_LINES });
    outcome.map(|()| progress.exit_code())
}

/// Starts a rank for each seat.
///
/// # Errors
/// One could not be started; those before it have been ended.
pub fn start(
    job: &Job,
    seats: impl Iterator<Item = Seat>,
    meeting: &Meeting,
    lines: &mut Lines,
) -> Result<Vec<RankProcess>, Failure> {
    let mut ranks = Vec::with_capacity(job.ranks);
    for seat in seats {
        let rank = seat.rank;
        let started = RankProcess::start(seat, job, meeting).and_then(|mut process| {
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
    /// For ranks on this host.
    pub fn arrange() -> io::Result<Meeting> {
        Meeting::at(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)
    }

    /// For ranks on other hosts, too; they know this host by another address than ours.
    pub fn arrange_for_others() -> io::Result<Meeting> {
        Meeting::at(listen_everywhere()?)
    }

    fn at(listener: TcpListener) -> io::Result<Meeting> {
        let address = listener.local_addr()?.to_string();
        let job = job_name(&address);
        Ok(Meeting { listener: Some(listener), address, job })
    }
}

/// On all addresses: nobody knows yet at which one the others will call.
pub fn listen_everywhere() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
}

/// A name that no other job has.
pub fn job_name(address: &str) -> String {
    // The standard library seeds every `RandomState` from the system's random numbers.
    format!("{:016x}", RandomState::new().hash_one(address))
}

/// Waits until every rank has ended, and sees to it that they do once one has failed or we are told to stop.
fn watch(ranks: &mut [RankProcess], signals: &mut Signals, progress: &mut Progress) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::failed("cannot watch the ranks; they have been ended").cause(error);
    loop {
        for process in &mut *ranks {
            if let Some(ending) = process.collect().map_err(cannot)?.filter(|ending| !ending.is_success()) {
                let what = format!("rank {} (pid {}) {ending}", process.seat.rank, process.pid());
                progress.failed(&what, ending.advice());
            }
        }
        if ranks.iter().all(|process| process.ending.is_some()) {
            return Ok(());
        }
        if let Some(signal) = signals.next() {
            progress.interrupt(signal);
        }
        while let Some(signal) = progress.due(|| left(ranks)) {
            ranks.iter().for_each(|process| process.signal(signal));
        }
        progress.check(|| left(ranks))?;
        wait(ranks, Some(signals.as_fd()), progress.next_deadline()).map_err(cannot)?;
    }
}

/// The ranks that have not ended.
pub fn left(ranks: &[RankProcess]) -> String {
    let left = ranks.iter().filter(|process| process.ending.is_none());
    let names: Vec<_> = left.map(|process| format!("rank {} (pid {})", process.seat.rank, process.pid())).collect();
    names.join(", ")
}

/// Sleeps until a rank ends, there is something to read from `other`, or the deadline is reached.
pub fn wait(ranks: &[RankProcess], other: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> io::Result<()> {
    let mut sources: Vec<PollFd<'_>> = ranks
        .iter()
        .filter(|process| process.ending.is_none())
        .map(|process| PollFd::new(&process.pidfd, PollFlags::IN))
        .chain(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)))
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
