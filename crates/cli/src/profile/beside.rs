//! Workers of a job on one host compute at the same time, and share its caches and its memory: what one of them takes is measured while as
//! many others compute as there will be, who note what it takes them.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{ChildStdin, Stdio, exit};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::starts::{Started, ourselves};
use crate::failure::Failure;

/// The option with which the others are started, each with its number: they compute until nobody holds their input any more.
const KEEP_BUSY: &str = "--keep-busy";

/// What one of them says when it begins to compute.
const COMPUTES: &str = "computing";
/// What it is told when it is to note what its iterations take.
const NOTE: &str = "note";

/// The others need no longer to load a model.
const PATIENCE: Duration = Duration::from_secs(120);
/// They need no longer to say what they have noted, and to end.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);

/// Other workers, which compute as long as this is there.
pub struct Others(Vec<Other>);

struct Other {
    /// Ends with this, in whatever way that comes.
    _child: Started,
    /// None once it has been told to end.
    input: Option<ChildStdin>,
    /// Line by line.
    said: Receiver<String>,
}

impl Others {
    /// Starts so many with the arguments of this process, and waits until all of them compute.
    ///
    /// # Errors
    /// One cannot be started, ends, or takes too long.
    pub fn start(count: usize) -> Result<Others, Failure> {
        // Those that have been started end with this, whatever becomes of the rest.
        let mut others = Others(Vec::new());
        for number in 1..=count {
            others.0.push(Other::start(number)?);
        }
        let until = Instant::now() + PATIENCE;
        others.0.iter().zip(1..).try_for_each(|(other, number)| other.computes(number, until))?;
        Ok(others)
    }

    /// From now on they note what their iterations take.
    pub fn note(&mut self) {
        for input in self.0.iter_mut().filter_map(|other| other.input.as_mut()) {
            // One that has ended says nothing in the end.
            _ = writeln!(input, "{NOTE}").and_then(|()| input.flush());
        }
    }

    /// Ends them: what iterations took since they noted it, by worker.
    ///
    /// # Errors
    /// One has ended by itself, or does not say it.
    pub fn end(mut self) -> Result<Vec<Vec<f64>>, Failure> {
        self.0.iter_mut().for_each(|other| other.input = None);
        let said = |(other, number): (&Other, usize)| {
            let until = Instant::now() + PATIENCE_AT_END;
            other.says(until).find_map(|line| serde_json::from_str(&line).ok()).ok_or_else(|| {
                Failure::failed(format!("worker {number} beside this one does not say what its iterations took")).help(
                    "if it says why it ended, that stands above; with fewer --workers there is more memory for each",
                )
            })
        };
        self.0.iter().zip(1..).map(said).collect()
    }
}

impl Other {
    fn start(number: usize) -> Result<Other, Failure> {
        let child = ourselves(&format!("{KEEP_BUSY}={number}"))?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child
            .map_err(|error| Failure::failed(format!("cannot start worker {number} beside this one")).cause(error))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, said) = channel();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok);
            // Nobody may be left to hear it.
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(Other { _child: Started(child), input, said })
    }

    /// What it says until then, line by line. A model may say something, too.
    fn says(&self, until: Instant) -> impl Iterator<Item = String> {
        std::iter::from_fn(move || self.said.recv_timeout(until.saturating_duration_since(Instant::now())).ok())
    }

    /// Waits until it does.
    fn computes(&self, number: usize, until: Instant) -> Result<(), Failure> {
        if self.says(until).any(|line| line == COMPUTES) {
            return Ok(());
        }
        if Instant::now() < until {
            return Err(Failure::failed(format!("worker {number} beside this one ended before it computed"))
                .help("what it says stands above; with fewer --workers there is more memory for each"));
        }
        let seconds = PATIENCE.as_secs();
        Err(Failure::failed(format!("the other workers do not compute after {seconds} s"))
            .help("measure with fewer --workers, or on a machine that is less busy"))
    }
}

/// One of the others says that it computes from here on. When whoever has started it hangs up, it says what iterations took since it was
/// told to note it, and ends. Gives what hears of each iteration.
pub fn keep_busy() -> impl FnMut(&[f64]) + Send {
    let noted = Arc::new(Mutex::new(Vec::<f64>::new()));
    let told = noted.clone();
    thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            if line == NOTE {
                noted.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
        }
        let noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever does not hear it has ended. Numbers: nothing in them can fail.
        _ = writeln!(stdout(), "{}", serde_json::to_string(&*noted).unwrap_or_default());
        exit(0);
    });
    _ = writeln!(stdout(), "{COMPUTES}").and_then(|()| stdout().flush());
    move |seconds: &[f64]| told.lock().unwrap_or_else(PoisonError::into_inner).extend(seconds.last())
}
