//! Contestants that stay: their ranks are started once, and sleep in a read of a named pipe while others are measured. So
//! contestants can take turns size by size without paying for a start each time.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::calls::{CALLS_MAX, CALLS_MIN, PROBE_CALLS, WARM_UP_SHARE};
use super::command::{self, Error, Measured};

/// Ranks that wait for commands.
pub struct Resident {
    name: String,
    child: Child,
    /// One pipe per rank.
    commands: Vec<File>,
    answers: Receiver<String>,
    complaints: PathBuf,
    /// What rank 0 said when all were ready.
    pub greeting: Value,
}

/// Importing torch on a busy machine takes long.
const START_MAX: Duration = Duration::from_secs(120);
/// The slowest cell takes some ten seconds.
const ANSWER_MAX: Duration = Duration::from_secs(180);
const END_MAX: Duration = Duration::from_secs(10);

impl Resident {
    /// Starts the ranks. The command gets the folder of the pipes and the numbers of calls as its last arguments.
    pub fn start(name: &str, mut command: Command, ranks: usize, folder: &Path) -> Result<Resident, Error> {
        let failed = |what: &dyn std::fmt::Display| Error::from(format!("{name}: {what}"));
        // A meeting file that is left over would make the ranks meet those of the last run.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let mut commands = Vec::new();
        for rank in 0..ranks {
            let pipe = folder.join(rank.to_string());
            command::output(Command::new("mkfifo").arg(&pipe))?;
            // Opened for both directions it does not wait for the other end.
            let opened = OpenOptions::new().read(true).write(true).open(&pipe);
            commands.push(opened.map_err(|error| failed(&error))?);
        }
        let complaints = folder.join("stderr");
        let stderr = File::create(&complaints).map_err(|error| failed(&error))?;
        command.arg(folder);
        command.args([PROBE_CALLS, CALLS_MIN, CALLS_MAX, WARM_UP_SHARE].map(|number| number.to_string()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (sender, answers) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Ends with the child's output.
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.filter(|line| line.starts_with('{')).try_for_each(|line| sender.send(line))
            });
        }
        let name = name.to_owned();
        let mut resident = Resident { name, child, commands, answers, complaints, greeting: Value::Null };
        let greeting = resident.answer(START_MAX)?;
        resident.greeting = serde_json::from_str(&greeting).map_err(|error| resident.failure(&error.to_string()))?;
        Ok(resident)
    }

    /// Measures one size.
    pub fn measure(&mut self, collective: &str, bytes: usize, seconds: f64) -> Result<Measured, Error> {
        let line = format!("{collective} {bytes} {seconds}\n");
        for pipe in &mut self.commands {
            pipe.write_all(line.as_bytes()).map_err(|error| format!("{}: {error}", self.name))?;
        }
        let answer = self.answer(ANSWER_MAX)?;
        let measured = serde_json::from_str(&answer).map_err(|error| self.failure(&format!("{answer}: {error}")))?;
        command::check(measured, bytes).map_err(|error| self.failure(&error.to_string()))
    }

    /// What the ranks wrote to standard error until now.
    pub fn complaints(&self) -> String {
        fs::read_to_string(&self.complaints).unwrap_or_default()
    }

    fn answer(&self, limit: Duration) -> Result<String, Error> {
        self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.failure(&format!("no answer within {limit:?}")),
            RecvTimeoutError::Disconnected => self.failure("its ranks have ended"),
        })
    }

    fn failure(&self, what: &str) -> Error {
        let complaints = self.complaints();
        let last = complaints.lines().rev().take(10).collect::<Vec<_>>();
        let last: Vec<_> = last.into_iter().rev().collect();
        format!("{}: {what}\n{}", self.name, last.join("\n")).into()
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // The ranks see the end of their commands, and go.
        self.commands.clear();
        let deadline = Instant::now() + END_MAX;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(name: &str, script: &str) -> Result<Resident, Error> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        let folder = std::env::temp_dir().join(format!("paceline-resident-{}-{name}", std::process::id()));
        let resident = Resident::start(name, shell, 1, &folder);
        let _ = fs::remove_dir_all(&folder);
        resident
    }

    #[test]
    fn commands_are_answered_and_wrong_answers_refused() {
        let script = r#"exec 3<"$1/0"; echo '{"calls":'$2'}'; while read -r what bytes rest <&3; do
            wrong=0; [ $what = broken ] && wrong=5
            echo "noise"; echo '{"bytes":'$bytes',"iterations":3,"p50_us":1.5,"wrong":'$wrong'}'; done"#;
        let mut resident = start("answers", script).expect("it starts");
        assert_eq!(resident.greeting["calls"], PROBE_CALLS);
        assert_eq!(resident.measure("all-reduce", 64, 0.1).expect("it answers").bytes, 64);
        let error = resident.measure("broken", 64, 0.1).expect_err("it has wrong elements");
        assert!(error.to_string().starts_with("answers: 5 elements of 64 bytes were wrong"), "{error}");
    }

    #[test]
    fn ranks_that_end_are_reported_with_their_last_words() {
        let error = start("ends", "echo no such network >&2; exit 1").map(|_| ()).expect_err("it ends");
        assert!(error.to_string().contains("ends: its ranks have ended"), "{error}");
    }
}
