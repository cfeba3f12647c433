//! What the ranks write, line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
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
}

impl Lines {
    /// With `tag`, every line starts with `[rank]`.
    pub fn new(tag: bool) -> Lines {
        Lines { tag, pipes: 0, finished: channel() }
    }

    /// Starts to pass on what comes out of a rank's pipes.
    pub fn follow(&mut self, rank: usize, output: Option<OwnedFd>, error: Option<OwnedFd>) -> io::Result<()> {
        let tag = if self.tag { format!("[{rank}] ") } else { String::new() };
        for (pipe, stream) in [(output, Stream::Output), (error, Stream::Error)] {
            let Some(pipe) = pipe else { continue };
            let (tag, finished) = (tag.clone(), self.finished.0.clone());
            thread::Builder::new().name(format!("output of rank {rank}")).spawn(move || {
                // If our reader is gone, dropping the pipe tells the rank so.
                let _ = pass_on(File::from(pipe), stream, &tag);
                let _ = finished.send(());
            })?;
            self.pipes += 1;
        }
        Ok(())
    }

    /// Waits until everything has been passed on. A process that left its rank's process group may hold a pipe open;
    /// nobody waits for that one longer than `limit`.
    pub fn finish(self, limit: Duration) {
        let deadline = Instant::now() + limit;
        for _ in 0..self.pipes {
            if self.finished.1.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

fn pass_on(pipe: File, stream: Stream, tag: &str) -> io::Result<()> {
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
        match stream {
            Stream::Output => write_all(&mut io::stdout().lock(), &line)?,
            Stream::Error => write_all(&mut io::stderr().lock(), &line)?,
        }
    }
}

fn write_all(stream: &mut dyn Write, line: &[u8]) -> io::Result<()> {
    stream.write_all(line)?;
    stream.flush()
}
