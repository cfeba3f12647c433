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
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// How lines are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Plain,
    /// With `[rank]` in front.
    Tagged,
    /// To a launcher on another host: [`Piece`]s, all on standard output.
    Pieces,
}

/// A line of a rank, or the beginning or middle of a long one, on its way from an agent to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Whose.
    pub rank: usize,
    /// From standard error, not from standard output.
    pub is_error: bool,
    /// The line ends here.
    pub is_last: bool,
    /// Without the line's end.
    pub text: &'a [u8],
}

impl<'a> Piece<'a> {
    /// As one line.
    fn to_line(self) -> Vec<u8> {
        let kind = match (self.is_error, self.is_last) {
            (false, true) => 'O',
            (false, false) => 'o',
            (true, true) => 'E',
            (true, false) => 'e',
        };
        [format!("{kind}{} ", self.rank).as_bytes(), self.text, b"\n"].concat()
    }

    /// From one line, with or without its end. None if it is something else.
    pub fn from_line(line: &'a [u8]) -> Option<Piece<'a>> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let space = line.iter().position(|byte| *byte == b' ')?;
        let (is_error, is_last) = match line[0] {
            b'O' => (false, true),
            b'o' => (false, false),
            b'E' => (true, true),
            b'e' => (true, false),
            _ => return None,
        };
        let rank = std::str::from_utf8(&line[1..space]).ok()?.parse().ok()?;
        Some(Piece { rank, is_error, is_last, text: &line[space + 1..] })
    }

    /// Writes it where it belongs; `tag` goes in front of it.
    pub fn write(self, tag: &str) -> io::Result<()> {
        let end: &[u8] = if self.is_last { b"\n" } else { b"" };
        let stream = if self.is_error { Stream::Error } else { Stream::Output };
        stream.write_all(&[tag.as_bytes(), self.text, end].concat())
    }
}

/// Passes the lines of all ranks on, none of them broken up by another.
pub struct Lines {
    form: Form,
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

impl Progress {
    fn write(&self, stream: Stream, line: &[u8]) -> io::Result<()> {
        self.read.fetch_add(1, Ordering::AcqRel);
        let written = stream.write_all(line);
        self.written.fetch_add(1, Ordering::AcqRel);
        written
    }
}

impl Lines {
    /// Passes lines on in this form.
    pub fn new(form: Form) -> Lines {
        Lines { form, pipes: 0, finished: channel(), progress: Arc::default() }
    }

    /// Starts to pass on what comes out of a rank's pipes.
    pub fn follow(&mut self, rank: usize, output: Option<OwnedFd>, error: Option<OwnedFd>) -> io::Result<()> {
        for (pipe, stream) in [(output, Stream::Output), (error, Stream::Error)] {
            let Some(pipe) = pipe else { continue };
            let (form, finished, progress) = (self.form, self.finished.0.clone(), Arc::clone(&self.progress));
            thread::Builder::new().name(format!("output of rank {rank}")).spawn(move || {
                // If our reader is gone, dropping the pipe tells the rank so.
                let _ = match form {
                    Form::Plain => pass_on(File::from(pipe), stream, "", &progress),
                    Form::Tagged => pass_on(File::from(pipe), stream, &format!("[{rank}] "), &progress),
                    Form::Pieces => pass_on_pieces(File::from(pipe), stream, rank, &progress),
                };
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
        progress.write(stream, &line)?;
    }
}

fn pass_on_pieces(pipe: File, stream: Stream, rank: usize, progress: &Progress) -> io::Result<()> {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let ends_here = line.ends_with(b"\n") || reader.fill_buf()?.is_empty();
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let piece = Piece { rank, is_error: matches!(stream, Stream::Error), is_last: ends_here, text };
        progress.write(Stream::Output, &piece.to_line())?;
    }
}

impl Stream {
    /// Writes in one piece.
    pub fn write_all(self, line: &[u8]) -> io::Result<()> {
        let write = |stream: &mut dyn Write| {
            stream.write_all(line)?;
            stream.flush()
        };
        match self {
            Stream::Output => write(&mut io::stdout().lock()),
            Stream::Error => write(&mut io::stderr().lock()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_survive_the_way_and_noise_is_none() {
        for (is_error, is_last) in [(false, false), (false, true), (true, false), (true, true)] {
            for text in [&b""[..], b"O1 x", b"\xff \x00", b" y "] {
                let piece = Piece { rank: 12, is_error, is_last, text };
                assert_eq!(Piece::from_line(&piece.to_line()), Some(piece));
            }
        }
        for noise in [&b""[..], b"O", b"Welcome to this host", b"O1", b"Ox y", b"O-1 y"] {
            assert_eq!(Piece::from_line(noise), None, "{noise:?}");
        }
    }
}
