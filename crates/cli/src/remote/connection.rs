//! One host's agent, seen from the launcher.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Answer, Assignment, Ended, Errand, Hello, Message};
use crate::failure::Failure;
use crate::shell::quoted;
use crate::supervisor::{Piece, Stream};

/// What ssh is told besides what the user says, whose words win: nobody is there to type a password, and a host that
/// falls silent is noticed within 15 s.
const SSH_OPTIONS: [&str; 6] =
    ["-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=3", "-T", "--"];

/// How agents are started.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The ssh command and its options.
    pub ssh: Vec<String>,
    /// The program on the other hosts; `paceline` there, where it is not at this path.
    pub program: PathBuf,
}

/// What an agent, or its end, brings.
pub enum Event {
    /// It is there.
    Hello(Hello),
    /// A rank has ended.
    Ended(Ended),
    /// It has done an errand.
    Answer(Answer),
    /// It could not start its ranks, and says why.
    Refused(String),
    /// Nothing more will come.
    Closed,
}

/// A connection. Dropping it ends what is at its other end.
pub struct Connection {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Connection {
    /// Starts an agent on a host. What it brings goes to `events`, with `index`; `tagged`: lines carry the rank.
    ///
    /// # Errors
    /// ssh itself cannot be started.
    pub fn open(
        index: usize,
        name: &str,
        reach: &Reach,
        tagged: bool,
        events: Sender<(usize, Event)>,
    ) -> Result<Connection, Failure> {
        let mut command = reach.command(name)?;
        // A signal from the terminal is for us: ssh must live to pass it on.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            Failure::failed(format!("cannot run {:?} to reach {name}", command.get_program()))
                .cause(error)
                .help("install an ssh client, or name another one with --ssh")
        })?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        thread::spawn(move || {
            if let Some(stdout) = stdout {
                // What cannot be read or written any more is over.
                let _ = listen(BufReader::new(stdout), index, tagged, &events);
            }
            let _ = events.send((index, Event::Closed));
        });
        Ok(Connection { name: name.to_owned(), child, stdin })
    }

    /// What the host file calls the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells the agent what to run. Nothing of it stands on a command line.
    pub(super) fn assign(&mut self, assignment: &Assignment) {
        let text = serde_json::to_string(assignment).unwrap_or_default();
        self.send(&text);
    }

    /// Sends the agent on an errand; its answer is an [`Event::Answer`].
    pub fn ask(&mut self, errand: &Errand) {
        let text = serde_json::to_string(errand).unwrap_or_default();
        self.send(&text);
    }

    /// Has the agent send all its ranks this signal.
    pub fn signal(&mut self, signal: Signal) {
        self.send(&format!("signal {}", signal.as_raw()));
    }

    /// If the agent is gone we hear it from [`Event::Closed`].
    fn send(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdin.flush());
        }
    }

    /// Lets the agent end its ranks.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// How ssh ended, in words, once it has closed.
    pub fn how_it_ended(&mut self) -> String {
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.code() == Some(255) => return "ssh failed".to_owned(),
                Ok(Some(status)) if status.code() == Some(127) => return "there is no paceline program".to_owned(),
                Ok(Some(status)) => return format!("the connection ended with {status}"),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return "the connection was closed".to_owned(),
            }
        }
    }
}

/// Whatever happens, ssh does not stay.
impl Drop for Connection {
    fn drop(&mut self) {
        self.hang_up();
        let deadline = Instant::now() + Duration::from_secs(1);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Reach {
    fn command(&self, host: &str) -> Result<Command, Failure> {
        if is_here(host) {
            let program = std::env::current_exe()
                .map_err(|error| Failure::failed("cannot find our own program to start the ranks").cause(error))?;
            let mut command = Command::new(program);
            command.arg("agent");
            return Ok(command);
        }
        let (ssh, options) = self.ssh.split_first().ok_or_else(|| Failure::usage("--ssh names no program"))?;
        let mut command = Command::new(ssh);
        command.args(options).args(SSH_OPTIONS).arg(host).arg(remote_line(&self.program));
        Ok(command)
    }
}

/// Is this host meant? Then no ssh is needed.
pub fn is_here(host: &str) -> bool {
    host == "localhost" || host.as_bytes() == rustix::system::uname().nodename().to_bytes()
}

/// A command line for whatever shell the user has there.
fn remote_line(program: &Path) -> String {
    let script = r#"if [ -x "$0" ]; then exec "$0" agent; else exec paceline agent; fi"#;
    format!("exec sh -c {} {}", quoted(script), quoted(&program.to_string_lossy()))
}

fn listen(mut out: impl BufRead, index: usize, tagged: bool, events: &Sender<(usize, Event)>) -> io::Result<()> {
    let mut line = Vec::new();
    // Whose line is not finished yet, by rank and stream.
    let mut open: Vec<(usize, bool)> = Vec::new();
    while out.read_until(b'\n', &mut line)? > 0 {
        if let Some(message) = Message::from_line(&line) {
            let event = match message {
                Message::Hello(hello) => Event::Hello(hello),
                Message::Ended(ended) => Event::Ended(ended),
                Message::Answer(answer) => Event::Answer(answer),
                Message::Refused { what } => Event::Refused(what),
            };
            // A launcher that has failed does not listen any more.
            let _ = events.send((index, event));
        } else if let Some(piece) = Piece::from_line(&line) {
            let key = (piece.rank, piece.is_error);
            let goes_on = open.contains(&key);
            open.retain(|other| *other != key);
            if !piece.is_last {
                open.push(key);
            }
            let tag = if tagged && !goes_on { format!("[{}] ", piece.rank) } else { String::new() };
            piece.write(&tag)?;
        } else {
            Stream::Error.write_all(&line)?;
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn remote_command_lines_survive_any_path() {
        let folder = std::env::temp_dir().join(format!("it's $HOME \"here\" {}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let program = folder.join("pace line");
        fs::write(&program, "#!/bin/sh\necho got \"$@\"\n").expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
        let said = Command::new("sh").args(["-c", &remote_line(&program)]).output().expect("there is a shell");
        fs::remove_dir_all(&folder).expect("our own folder");
        assert_eq!(String::from_utf8_lossy(&said.stdout), "got agent\n", "{said:?}");
    }
}
