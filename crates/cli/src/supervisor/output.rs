//! What the ranks write, line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A longer line is passed on in pieces: a rank that never ends its line must not fill our memory.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Where lines go.
#[derive(Clone, Copy)]
enum Stream {
    Output,
    Error,
}

/// Passes the lines of all ranks on, none of them broken up by another.
pub struct Lines {
    tag: bool,
    pipes: usize,
    finished: (Sender<()>, Receiver<()>),
    progress: Arc<Progress>,
}

/// What the threads that pass lines on have done.
#[derive(Default)]
struct Progress {
    /// Lines that were read. Never behind `written`.
    read: AtomicU64,
    /// Lines that our reader has taken.
    written: AtomicU64,
}

impl Lines {
    /// With `tag`, every line starts with `[rank]`.
    pub fn new(tag: bool) -> Lines {
        Lines { tag, pipes: 0, finished: channel(), progress: Arc::default() }
    }

    /// Starts to pass on what comes out of a rank's pipes.
    pub fn follow(&mut self, rank: usize, output: Option<OwnedFd>, error: Option<OwnedFd>) -> io::Result<()> {
        let tag = if self.tag { format!("[{rank}] ") } else { String::new() };
        for (pipe, stream) in [(output, Stream::Output), (error, Stream::Error)] {
            let Some(pipe) = pipe else { continue };
            let (tag, finished, progress) = (tag.clone(), self.finished.0.clone(), Arc::clone(&self.progress));
            thread::Builder::new().name(format!("output of rank {rank}")).spawn(move || {
                // If our reader is gone, dropping the pipe tells the rank so.
                let _ = pass_on(File::from(pipe), stream, &tag, &progress);
                let _ = finished.send(());
            })?;
            self.pipes += 1;
        }
        Ok(())
    }

    /// Waits until everything has been passed on, however slow our own reader is, but no longer than `limit`. A process
    /// that left its rank's process group may hold a pipe open: nobody waits for pipes that have been quiet for `quiet`.
    pub fn finish(self, quiet: Duration, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut pipes = self.pipes;
        let mut seen = self.progress.written.load(Ordering::Acquire);
        while pipes > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.finished.1.recv_timeout(left.min(quiet)).is_ok() {
                pipes -= 1;
                continue;
            }
            let written = self.progress.written.load(Ordering::Acquire);
            let idle = written == seen && self.progress.read.load(Ordering::Acquire) == written;
            if idle || left <= quiet {
                return;
            }
            seen = written;
        }
    }
}

fn pass_on(pipe: File, stream: Stream, tag: &str, progress: &Progress) -> io::Result<()> {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    let mut at_start = true;
    loop {
        line.clear();
        if at_start {
            line.extend_from_slice(tag.as_bytes());
        }
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        at_start = line.ends_with(b"\n");
        // Tagged lines are ended for a rank that has not done so, lest the next rank's tag stands in mid-line.
        if !at_start && !tag.is_empty() && reader.fill_buf()?.is_empty() {
            line.push(b'\n');
        }
        progress.read.fetch_add(1, Ordering::AcqRel);
        let written = match stream {
            Stream::Output => write_all(&mut io::stdout().lock(), &line),
            Stream::Error => write_all(&mut io::stderr().lock(), &line),
        };
        progress.written.fetch_add(1, Ordering::AcqRel);
        written?;
    }
}

fn write_all(stream: &mut dyn Write, line: &[u8]) -> io::Result<()> {
    stream.write_all(line)?;
    stream.flush()
}
