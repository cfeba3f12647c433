//! Worlds whose ranks are processes: a test runs its own program again, once for each rank. The ranks form a world, wait
//! until all have, and do their part. On this host, or on several ([`Ranks::spawn`]).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_comm::{Communicator, Config, ShmOptions, StallReport, TransportChoice, Watch};
use rustix::process::{Pid, Signal, kill_process};

use super::left_over::Held;
use super::meeting::free_port;

/// In a rank's environment: what it is to do.
const PART: &str = "PACELINE_TEST_PART";
/// And what carries its links.
const TRANSPORT: &str = "PACELINE_TEST_TRANSPORT";

/// What a rank says when its world has formed.
const FORMED: &str = "the world has formed";

/// The part of this process, if it is a rank of a test.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// This process as a rank of its world, once all others have come so far. Stalls are reported on standard error.
pub fn connect() -> Communicator {
    let config = Config::from_environment().expect("the test has set the environment");
    let transport = std::env::var(TRANSPORT).expect("the test has set the environment");
    let report = |stall: &StallReport| eprintln!("{stall}");
    let config = Config {
        transport: transport.parse().expect("a transport"),
        // Without single copies and without measurements at first: rings fill as a test has them filled.
        shm: ShmOptions { single_copy: false, ..config.shm },
        probe: false,
        watch: Watch { on_stall: Some(Arc::new(report)), ..config.watch },
        ..config
    };
    let communicator = Communicator::connect(config).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{FORMED}");
    std::io::stdin().lines().next();
    communicator
}

/// Waits until the test releases this rank.
pub fn wait_for_release() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// What makes a process a rank of a test, besides its place in the world.
pub fn environment(part: &str, transport: TransportChoice) -> [(&'static str, String); 2] {
    [(PART, part.to_owned()), (TRANSPORT, transport.to_string())]
}

/// The ranks of a world. Dropping them ends them.
pub struct Ranks {
    ranks: Vec<Rank>,
    held: Held,
}

struct Rank {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// What a world of processes is to be.
pub struct World<'a> {
    /// The name of the test that starts it.
    pub test: &'a str,
    /// What the ranks are to do.
    pub part: &'a str,
    /// What carries the links of each rank.
    pub transports: &'a [TransportChoice],
    /// Further variables for all.
    pub environment: BTreeMap<&'a str, String>,
}

impl Ranks {
    /// Starts a world and waits until it has formed.
    pub fn start(world: &World<'_>) -> Ranks {
        let address = format!("127.0.0.1:{}", free_port());
        let size = world.transports.len();
        let command = |(rank, transport): (usize, &TransportChoice)| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            let foreign =
                |name: &str| ["PACELINE_", "SLURM_", "OMPI_", "PMI"].iter().any(|start| name.starts_with(start));
            for (name, _) in std::env::vars_os().filter(|(name, _)| foreign(&name.to_string_lossy())) {
                command.env_remove(name);
            }
            command
                .args([world.test, "--exact", "--nocapture"])
                .envs(environment(world.part, *transport))
                .env("PACELINE_RANK", rank.to_string())
                .env("PACELINE_WORLD_SIZE", size.to_string())
                .env("PACELINE_LOCAL_RANK", rank.to_string())
                .env("PACELINE_LOCAL_SIZE", size.to_string())
                .env("PACELINE_RENDEZVOUS", &address)
                .env("PACELINE_JOB", &address)
                .env("PACELINE_TIMEOUT", "120")
                .envs(&world.environment);
            command
        };
        let commands = world.transports.iter().enumerate().map(command).collect();
        Ranks::spawn(commands, &[std::process::id()], world.transports.contains(&TransportChoice::Shm))
    }

    /// Starts these commands, each a rank of a test or a program that waits for one, and waits until their world has
    /// formed. `witnesses` are the processes that see their hosts ([`Held::seen_by`]), `memory` tells whether they share any.
    pub fn spawn(commands: Vec<Command>, witnesses: &[u32], memory: bool) -> Ranks {
        let mut ranks = Ranks { ranks: commands.into_iter().map(Rank::start).collect(), held: Held::default() };
        for rank in 0..ranks.ranks.len() {
            ranks.wait_until(rank, Duration::from_secs(150), FORMED);
        }
        let started = ranks.ranks.iter().map(|rank| rank.child.id());
        let processes: Vec<u32> = started.flat_map(|pid| [vec![pid], children_of(pid)].concat()).collect();
        ranks.held = Held::seen_by(witnesses, &processes);
        assert!(ranks.held.is_something(memory), "no sockets or memory files are found while the ranks run");
        for rank in &mut ranks.ranks {
            // One that has ended in the meantime has said why.
            let _ = writeln!(rank.child.stdin.as_mut().expect("a pipe"), "go");
        }
        ranks
    }

    /// What a rank has said until now.
    pub fn said(&self, rank: usize) -> String {
        self.ranks[rank].said.lock().expect("no reader panics").clone()
    }

    /// Waits until a rank has said it.
    #[track_caller]
    pub fn wait_until(&self, rank: usize, limit: Duration, words: &str) {
        let started = Instant::now();
        while !self.said(rank).contains(words) {
            let over = started.elapsed() > limit || self.ranks[rank].silent();
            let said = self.said(rank);
            assert!(!over || said.contains(words), "rank {rank} does not say `{words}`, but: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a rank a signal.
    pub fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.ranks[rank].child), signal).expect("it is our child");
    }

    /// Lets a rank go that waits for it.
    pub fn release(&mut self, rank: usize) {
        drop(self.ranks[rank].child.stdin.take());
    }

    /// Waits for the end of all. Those that must end well have; nothing of any is left. What each has said.
    #[track_caller]
    pub fn end_within(mut self, limit: Duration, well: &[usize]) -> Vec<String> {
        let started = Instant::now();
        for rank in 0..self.ranks.len() {
            let child = &mut self.ranks[rank].child;
            let ended = loop {
                match child.try_wait().expect("it is our child") {
                    Some(status) => break Some(status),
                    None if started.elapsed() > limit => break None,
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            let good = ended.is_some_and(|status| status.success() || !well.contains(&rank));
            assert!(good, "rank {rank} after {:?}: {ended:?}, {}", started.elapsed(), self.said(rank));
        }
        for rank in &mut self.ranks {
            if let Some(reader) = rank.reader.take() {
                reader.join().expect("no reader panics");
            }
        }
        let ended = Instant::now();
        // The kernel may take a moment to clear up.
        while !self.held.left_over().is_empty() && ended.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.held.left_over(), Vec::<String>::new(), "left behind");
        (0..self.ranks.len()).map(|rank| self.said(rank)).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let said = Arc::new(Mutex::new(String::new()));
        let (stderr, into) = (child.stderr.take().expect("a pipe"), said.clone());
        let reader = Some(std::thread::spawn(move || collect(stderr, &into)));
        Rank { child, said, reader }
    }

    /// Will it say nothing more?
    fn silent(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn collect(stderr: ChildStderr, into: &Mutex<String>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = stderr.read_until(b'\n', &mut line) {
        into.lock().expect("no test panics under it").push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
}
