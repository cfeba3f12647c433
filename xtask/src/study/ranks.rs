//! Processes that are one run: rank 0 is heard while it runs, whoever fails is quoted, and none outlives us.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::compare::Error;

/// How long the others may take to say why they end, once one has failed; and the last lines to arrive.
const GRACE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(10);
/// Of what a failed rank said, so many lines are quoted.
const LAST_LINES: usize = 6;

/// The ranks of a run.
pub struct Ranks {
    children: Children,
    /// Of rank 0.
    lines: Receiver<String>,
    complaints: Vec<PathBuf>,
}

impl Ranks {
    /// Starts them; `scratch` takes what they complain of. `in_groups`: each is to be ended with all that it has started. A launcher
    /// ends its ranks by itself, and is told by the terminal when to stop.
    ///
    /// # Errors
    /// One cannot be started, or `scratch` not be written to.
    pub fn start(commands: Vec<Command>, in_groups: bool, scratch: &Path) -> Result<Ranks, Error> {
        let (sender, lines) = mpsc::channel();
        let mut ranks = Ranks { children: Children(Vec::new()), lines, complaints: Vec::new() };
        for (rank, mut command) in commands.into_iter().enumerate() {
            let complaints = scratch.join(format!("rank{rank}.err"));
            let stderr = File::create(&complaints).map_err(|error| format!("{}: {error}", complaints.display()))?;
            let pipe = || if rank == 0 { Stdio::piped() } else { Stdio::null() };
            command.stdin(pipe()).stdout(pipe()).stderr(stderr);
            if in_groups {
                command.process_group(0);
            }
            ranks.complaints.push(complaints);
            ranks.children.0.push(command.spawn().map_err(|error| format!("rank {rank}: {error}"))?);
        }
        if let Some(stdout) = ranks.children.0.first_mut().and_then(|child| child.stdout.take()) {
            // Ends with the rank's output.
            thread::spawn(move || {
                let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.try_for_each(|line| sender.send(line))
            });
        }
        Ok(ranks)
    }

    /// Waits for all of them. `hear` gets each line of rank 0, and may answer on its standard input.
    ///
    /// # Errors
    /// A rank failed, with its last words; they are not done in time; or `hear` fails.
    pub fn end(
        mut self,
        limit: Duration,
        hear: &mut dyn FnMut(&str, &mut dyn Write) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut nobody = io::sink();
        let mut input = self.children.0.first_mut().and_then(|child| child.stdin.take());
        let mut heard = |line: String| match &mut input {
            Some(input) => hear(&line, input),
            None => hear(&line, &mut nobody),
        };
        let mut end = Instant::now() + limit;
        let mut culprit: Option<(usize, String)> = None;
        while Instant::now() < end {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => heard(line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
            }
            let mut some_run = false;
            for (rank, child) in self.children.0.iter_mut().enumerate() {
                match child.try_wait().map_err(|error| format!("rank {rank}: {error}"))? {
                    None => some_run = true,
                    Some(status) if !status.success() && culprit.is_none() => {
                        culprit = Some((rank, status.to_string()));
                        end = end.min(Instant::now() + GRACE);
                    }
                    Some(_) => {}
                }
            }
            if !some_run {
                break;
            }
        }
        let all_ended = self.children.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))));
        match culprit {
            Some((rank, status)) => {
                return Err(format!("rank {rank}: {status}: {}", last_lines(&self.complaints[rank])).into());
            }
            None if !all_ended => return Err(format!("not done after {:.0} s", limit.as_secs_f64()).into()),
            None => {}
        }
        while let Ok(line) = self.lines.recv_timeout(GRACE) {
            heard(line)?;
        }
        Ok(())
    }
}

/// Processes that are ended when nobody needs them any more.
pub struct Children(pub Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if matches!(child.try_wait(), Ok(None)) {
                // Whoever leads no group, or has just gone, needs only the other one.
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// Of what a failed rank said, the end.
pub fn last_lines(path: &Path) -> String {
    let said = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("xtask-ranks-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        path
    }

    #[test]
    fn who_fails_is_named_with_its_last_words_and_who_hangs_is_ended() {
        let scratch = scratch("failing");
        let end = |scripts: &[&str], limit: Duration| {
            let ranks = Ranks::start(scripts.iter().map(|script| shell(script)).collect(), true, &scratch);
            let ended = ranks.and_then(|ranks| ranks.end(limit, &mut |_, _| Ok(())));
            ended.map_err(|error| error.to_string())
        };
        assert_eq!(end(&["echo table", "true"], LONG), Ok(()));
        let failed = end(&["sleep 600", "echo why >&2; exit 3"], LONG).expect_err("rank 1 fails");
        assert!(failed.contains("rank 1") && failed.contains("why"), "{failed}");
        let late = end(&["sleep 600"], Duration::from_millis(50)).expect_err("it takes too long");
        assert!(late.contains("not done"), "{late}");
        fs::remove_dir_all(&scratch).expect("our own folder");
    }

    #[test]
    fn rank_0_is_heard_to_its_last_line_and_answered() {
        let scratch = scratch("heard");
        let mut said = Vec::new();
        let commands = vec![shell("echo ask; read answer; echo got $answer; echo end"), shell("echo nobody hears")];
        let ended = Ranks::start(commands, true, &scratch).and_then(|ranks| {
            ranks.end(LONG, &mut |line, answer| {
                said.push(line.to_owned());
                let answered = if line == "ask" { writeln!(answer, "that") } else { Ok(()) };
                answered.map_err(|error| error.to_string().into())
            })
        });
        fs::remove_dir_all(&scratch).expect("our own folder");
        assert!(ended.is_ok(), "{}", ended.expect_err("it failed"));
        assert_eq!(said, ["ask", "got that", "end"]);
    }
}
