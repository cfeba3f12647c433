//! The hidden command `paceline agent`: runs the ranks of one host for a launcher elsewhere.

use std::collections::VecDeque;
use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, read};
use rustix::process::Signal;

use super::{Answer, Assignment, Ended, Errand, Hello, Message, parse};
use crate::doctor;
use crate::failure::Failure;
use crate::supervisor::{
    Form, Job, LAST_LINES, LAST_LINES_QUIET, Lines, Meeting, Output, RankProcess, Seat, adopt_orphans, children,
    end_descendants, left, listen_everywhere, start, wait,
};

/// A longer line is not from a launcher.
const LINE_BYTES_MAX: usize = 4 << 20;

/// How long ranks may take to obey once the launcher is gone.
const ORPHANS_GRACE: Duration = Duration::from_millis(500);

/// Does what the launcher says until all ranks have ended.
///
/// # Errors
/// Only if nobody can be told: otherwise the launcher hears it.
pub fn run() -> Result<ExitCode, Failure> {
    let listener =
        listen_everywhere().map_err(|error| Failure::failed("cannot listen for the ranks to meet").cause(error))?;
    let cut_off = |error: io::Error| Failure::failed("cannot talk to the launcher").cause(error);
    let port = listener.local_addr().map_err(cut_off)?.port();
    say(&Message::Hello(hello(port))).map_err(cut_off)?;
    let mut launcher = Launcher::default();
    let assignment = loop {
        let Some(line) = launcher.line().map_err(cut_off)? else {
            return Ok(ExitCode::FAILURE);
        };
        if let Some(assignment) = parse::<Assignment>(&line) {
            break assignment;
        }
        // One that asks only who is here says no more.
        let Some(errand) = parse(&line) else { return Ok(ExitCode::SUCCESS) };
        if let Some(answer) = run_errand(errand, &listener).map_err(cut_off)? {
            say(&Message::Answer(answer)).map_err(cut_off)?;
        }
    };
    match serve(assignment, listener, &mut launcher) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(what) => {
            say(&Message::Refused { what }).map_err(cut_off)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run_errand(errand: Errand, listener: &TcpListener) -> io::Result<Option<Answer>> {
    Ok(match errand {
        Errand::Examine { ranks, interface } => Some(Answer::Examined(doctor::examine(ranks, interface.as_deref()))),
        Errand::Meet { ranks } => Some(Answer::Met(doctor::meet(ranks))),
        Errand::Receive { token } => {
            let listener = listener.try_clone()?;
            // It ends with the process.
            thread::spawn(move || doctor::receive(&listener, &token));
            None
        }
        Errand::Measure { addresses, token } => Some(Answer::Measured(doctor::measure(&addresses, &token))),
    })
}

fn hello(port: u16) -> Hello {
    let uname = rustix::system::uname();
    // "client port server port", ssh(1).
    let connection = env::var("SSH_CONNECTION").ok();
    Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: Some(paceline_fabric::CONTROL_VERSION),
        host: uname.nodename().to_string_lossy().into_owned(),
        port,
        address: connection.and_then(|connection| connection.split(' ').nth(2)?.parse().ok()),
        kernel: uname.release().to_string_lossy().into_owned(),
        cores: thread::available_parallelism().map_or(1, usize::from),
    }
}

fn say(message: &Message) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(message.to_line().as_bytes())?;
    out.flush()
}

/// Runs the ranks. The error is a sentence for the launcher.
fn serve(assignment: Assignment, listener: TcpListener, launcher: &mut Launcher) -> Result<(), String> {
    let Assignment { command, directory, environment, first_rank, local_size, world_size, meeting_point, job } =
        assignment;
    let failed = |what: &dyn Display| what.to_string();
    env::set_current_dir(&directory).map_err(|error| format!("working directory {}: {error}", directory.display()))?;
    let meeting = Meeting { listener: (first_rank == 0).then_some(listener), address: meeting_point, job };
    let command = command.into_iter().map(Into::into).collect();
    let job = Job { command, ranks: local_size, environment, output: Output::Lines { tag: false } };
    let seats =
        (0..local_size).map(|local_rank| Seat { rank: first_rank + local_rank, world_size, local_rank, local_size });
    adopt_orphans();
    let not_ours = children();
    let mut lines = Lines::new(Form::Pieces);
    let mut ranks = start(&job, seats, &meeting, &mut lines).map_err(|failure| failed(&failure.in_one_line()))?;
    let watched = watch(&mut ranks, launcher, lines);
    drop(ranks);
    end_descendants(&not_ours);
    watched.map_err(|error| failed(&error))
}

/// Passes signals on to the ranks, and reports to the launcher how each ends, after the last of its lines.
fn watch(ranks: &mut [RankProcess], launcher: &mut Launcher, lines: Lines) -> io::Result<()> {
    let mut ended = Vec::new();
    let mut orphaned: VecDeque<(Instant, Signal)> = VecDeque::new();
    loop {
        for process in &mut *ranks {
            if let Some(ending) = process.collect()? {
                let report = Ended { rank: process.seat.rank, pid: process.pid(), ending };
                // A failure is told at once: the others have little time from then on.
                if ending.is_success() { ended.push(report) } else { say(&Message::Ended(report))? }
            }
        }
        if left(ranks).is_empty() {
            break;
        }
        while let Some((_, signal)) = orphaned.pop_front_if(|stage| stage.0 <= Instant::now()) {
            ranks.iter().for_each(|process| process.signal(signal));
        }
        let deadline = orphaned.front().map(|stage| stage.0);
        if launcher.is_gone {
            wait(ranks, None, deadline)?;
            continue;
        }
        wait(ranks, Some(io::stdin().as_fd()), deadline)?;
        for signal in launcher.signals()? {
            ranks.iter().for_each(|process| process.signal(signal));
        }
        if launcher.is_gone {
            let now = Instant::now();
            orphaned = [(now, Signal::TERM), (now + ORPHANS_GRACE, Signal::KILL)].into();
        }
    }
    lines.finish(LAST_LINES_QUIET, if launcher.is_gone { LAST_LINES_QUIET } else { LAST_LINES });
    ended.iter().try_for_each(|report| say(&Message::Ended(*report)))
}

/// What comes on standard input.
#[derive(Default)]
struct Launcher {
    unread: Vec<u8>,
    is_gone: bool,
}

impl Launcher {
    /// Waits for one line. None if there is none.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.is_gone || self.unread.len() > LINE_BYTES_MAX {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// What has come since, if standard input is readable now.
    fn signals(&mut self) -> io::Result<Vec<Signal>> {
        self.wait_for_nothing()?;
        let lines = std::iter::from_fn(|| self.take_line());
        let signals = lines.filter_map(|line| {
            let number = std::str::from_utf8(&line).ok()?.strip_prefix("signal ")?.parse().ok()?;
            Signal::from_named_raw(number)
        });
        Ok(signals.collect())
    }

    /// Reads only if that does not block.
    fn wait_for_nothing(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdin = io::stdin();
        let mut sources = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut sources, Some(&now)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => self.read(),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what is there; blocks if there is nothing.
    fn read(&mut self) -> io::Result<()> {
        let mut piece = [0; 4096];
        match read(io::stdin(), &mut piece[..]) {
            Ok(0) => self.is_gone = true,
            Ok(count) => self.unread.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.unread.drain(..=end).collect();
        line.pop();
        Some(line)
    }
}
