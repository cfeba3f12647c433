//! Workers of a job on one host compute at the same time, and share its caches and its memory: what one of them takes is measured while as
//! many others compute as there will be.

use std::env;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// The flag with which the others are started: they compute until nobody holds their input any more.
pub const KEEP_BUSY: &str = "--keep-busy";

/// What one of them says when it begins.
const BEGINS: &str = "computing";

/// The others need no longer to load a model.
const PATIENCE: Duration = Duration::from_secs(120);

/// Other workers, which compute as long as this is there.
pub struct Others(Vec<Child>);

impl Others {
    /// Starts so many with the arguments of this process, and waits until all of them compute.
    ///
    /// # Errors
    /// One cannot be started, ends, or takes too long.
    pub fn start(count: usize) -> Result<Others, Failure> {
        let mut others = Others(Vec::new());
        let program =
            || env::current_exe().map_err(|error| Failure::failed("cannot find our own program").cause(error));
        let (sender, begun) = channel();
        for number in 1..=count {
            let mut command = Command::new(program()?);
            command.args(env::args_os().skip(1)).arg(KEEP_BUSY).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(|error| {
                Failure::failed(format!("cannot start worker {number} beside this one")).cause(error)
            })?;
            let output = child.stdout.take();
            others.0.push(child);
            let sender = sender.clone();
            thread::spawn(move || {
                let mut line = String::new();
                let read = output.map(|output| BufReader::new(output).read_line(&mut line));
                // Nobody may be left to hear it.
                _ = sender.send((number, matches!(read, Some(Ok(_))) && line.trim_end() == BEGINS));
            });
        }
        for _ in 0..count {
            match begun.recv_timeout(PATIENCE) {
                Ok((_, true)) => {}
                Ok((number, false)) => {
                    return Err(Failure::failed(format!("worker {number} beside this one ended before it computed"))
                        .help("what it says stands above; with fewer --workers there is more memory for each"));
                }
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(Failure::failed(format!("the other workers do not compute after {seconds} s"))
                        .help("measure with fewer --workers, or on a machine that is less busy"));
                }
            }
        }
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself; either way it is gone afterwards.
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// One of the others says that it computes from here on, and ends when whoever has started it does. Beside it there are no more.
pub fn keep_busy() -> Others {
    thread::spawn(|| {
        _ = stdin().read_to_end(&mut Vec::new());
        exit(0);
    });
    // Whoever does not hear it has ended.
    _ = writeln!(stdout(), "{BEGINS}").and_then(|()| stdout().flush());
    Others(Vec::new())
}
