//! A worker is measured in several starts, as it takes some percent more or less in each ([`paceline_train::profile_of_starts`]).

use std::env;
use std::io::{Read, stdin};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use paceline_train::ProfiledStart;

use crate::failure::Failure;

/// The flag of a further start: it says on its output what it has measured, and ends early if nobody holds its input any more.
pub const ONE_START: &str = "--one-start";

/// So many, unless somebody says how many or they take too long.
pub const STARTS: usize = 5;
/// As long as all together may take, if there is more than one.
const TOGETHER: Duration = Duration::from_secs(60);
/// A further start takes no longer than so many times what the first one took, and so much.
const PATIENCE: u32 = 5;
const PATIENCE_MIN: Duration = Duration::from_secs(120);

/// Of what all may be measured the share that each further one may: the first is measured as long as one alone would be.
pub const SHARE: u32 = 5;

/// How many there are in all, if the first one took so long, and further ones take about so long. Two would hardly say how much starts
/// differ.
pub fn count(told: Option<usize>, first: Duration, further: Duration) -> usize {
    let in_time = 1 + (TOGETHER.saturating_sub(first).as_secs_f64() / further.as_secs_f64().max(1e-3)) as usize;
    told.unwrap_or(if in_time < 3 { 1 } else { in_time.min(STARTS) })
}

/// One more; `first`: how long the first one took.
///
/// # Errors
/// It cannot be started, fails, or takes too long.
pub fn another(number: usize, first: Duration) -> Result<ProfiledStart, Failure> {
    let child = ourselves(ONE_START)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.map_err(|error| Failure::failed(format!("cannot start {number} of this model")).cause(error))?;
    let mut started = Started(child);
    let output = started.0.stdout.take();
    let (sender, said) = channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = output.map(|mut output| output.read_to_string(&mut text));
        // Nobody may be left to hear it.
        _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(text));
    });
    let limit = (first * PATIENCE).max(PATIENCE_MIN);
    let Ok(text) = said.recv_timeout(limit) else {
        let seconds = limit.as_secs();
        return Err(Failure::failed(format!("start {number} of the model is not measured after {seconds} s"))
            .help("measure fewer --starts, or on a machine that is less busy"));
    };
    // A model may say something, too.
    text.and_then(|text| text.lines().rev().find_map(|line| serde_json::from_str(line).ok())).ok_or_else(|| {
        Failure::failed(format!("start {number} of the model ended before it was measured"))
            .help("what it says stands above; --starts 1 measures a single one")
    })
}

/// A further start ends if nobody waits for it any more.
pub fn end_with_whoever_waits() {
    thread::spawn(|| {
        _ = stdin().read_to_end(&mut Vec::new());
        exit(1);
    });
}

/// This program with the arguments of this process, and one more.
///
/// # Errors
/// It cannot be found.
pub fn ourselves(flag: &str) -> Result<Command, Failure> {
    let program = env::current_exe().map_err(|error| Failure::failed("cannot find our own program").cause(error))?;
    let mut command = Command::new(program);
    // A start has others of its own, who are no starts.
    command.args(env::args_os().skip(1).filter(|argument| argument != ONE_START)).arg(flag);
    Ok(command)
}

/// A process that is gone when this is.
pub struct Started(pub Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_start_as_take_a_minute_together() {
        let seconds = Duration::from_secs;
        let of = |first, further| count(None, seconds(first), seconds(further));
        assert_eq!([of(1, 1), of(32, 7), of(32, 10), of(32, 20), of(40, 40), of(600, 60)], [5, 5, 3, 1, 1, 1]);
        assert_eq!((of(0, 0), count(Some(2), seconds(600), seconds(600))), (STARTS, 2));
    }
}
