//! The launcher's side: opens the connections, assigns the ranks, and watches them to their end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::connection::is_here;
use super::{Assignment, Connection, Ended, Event, Hello, Reach};
use crate::failure::Failure;
use crate::hosts::Host;
use crate::supervisor::{Progress, Signals, job_name};

/// How long all agents together may take to be there.
const START: Duration = Duration::from_secs(30);
/// How often we look for signals.
const TICK: Duration = Duration::from_millis(50);
/// How long connections may take to close once all ranks have ended.
const CLOSING: Duration = Duration::from_secs(2);

/// What to run where.
pub struct RemoteJob {
    /// Not empty; rank 0 is on the first one.
    pub hosts: Vec<Host>,
    /// How to reach them.
    pub reach: Reach,
    /// At which address the others reach the first host, if the user says it.
    pub address: Option<String>,
    /// Where the ranks work, on every host.
    pub directory: PathBuf,
    /// Environment of the ranks, the secret among it.
    pub environment: Vec<(String, String)>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Put `[rank]` in front of every line.
    pub tag: bool,
}

/// Runs the job to its end; exit status as for ranks of one host.
///
/// # Errors
/// A host cannot be reached, has another version, or cannot start its ranks. Those that were started have been ended.
pub fn run(job: &RemoteJob) -> Result<ExitCode, Failure> {
    let mut signals = Signals::catch().map_err(|error| Failure::failed("cannot catch signals").cause(error))?;
    let names: Vec<&str> = job.hosts.iter().map(|host| host.name.as_str()).collect();
    let mut agents = Agents::open(&names, &job.reach, job.tag)?;
    let Some(hellos) = agents.greet(Instant::now() + START, &mut signals)? else { return Ok(ExitCode::from(130)) };
    let meeting_point = meeting_point(job, &hellos[0])?;
    let (name, world_size) = (job_name(&meeting_point), job.hosts.iter().map(|host| host.slots).sum());
    let mut first_rank = 0;
    for (host, connection) in job.hosts.iter().zip(&mut agents.connections) {
        connection.assign(&Assignment {
            command: job.command.clone(),
            directory: job.directory.clone(),
            environment: job.environment.clone(),
            first_rank,
            local_size: host.slots,
            world_size,
            meeting_point: meeting_point.clone(),
            job: name.clone(),
        });
        first_rank += host.slots;
    }
    watch(job, &mut agents, signals)
}

/// Agents, and what they bring.
pub struct Agents {
    connections: Vec<Connection>,
    events: Receiver<(usize, Event)>,
}

impl Agents {
    /// Starts to reach for all hosts at once.
    ///
    /// # Errors
    /// ssh cannot be run.
    pub fn open(names: &[&str], reach: &Reach, tagged: bool) -> Result<Agents, Failure> {
        let (send, events) = channel();
        let open = |(index, name): (usize, &&str)| Connection::open(index, name, reach, tagged, send.clone());
        let connections = names.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(Agents { connections, events })
    }

    /// Waits until all agents are there, and are of our version. None if a signal told us to stop.
    ///
    /// # Errors
    /// Names the first host that does not come, and why.
    pub fn greet(&mut self, deadline: Instant, signals: &mut Signals) -> Result<Option<Vec<Hello>>, Failure> {
        let mut hellos = BTreeMap::new();
        while hellos.len() < self.connections.len() {
            if signals.next().is_some() {
                return Ok(None);
            }
            match self.events.recv_timeout(TICK) {
                Ok((index, Event::Hello(hello))) => {
                    self.check_version(index, &hello)?;
                    hellos.insert(index, hello);
                }
                Ok((index, _)) => return Err(self.unreachable(index)),
                Err(_) if Instant::now() >= deadline => {
                    let missing = self.connections.iter().enumerate().filter(|(index, _)| !hellos.contains_key(index));
                    let missing: Vec<_> = missing.map(|(_, connection)| connection.name()).collect();
                    return Err(Failure::failed(format!("no answer within {START:?} from {}", missing.join(", ")))
                        .help("`ssh HOST true` must return at once, without a question"));
                }
                Err(_) => {}
            }
        }
        Ok(Some(hellos.into_values().collect()))
    }

    fn check_version(&self, index: usize, hello: &Hello) -> Result<(), Failure> {
        let ours = env!("CARGO_PKG_VERSION");
        if hello.version == ours {
            return Ok(());
        }
        let what = format!("{} has paceline {}, this host {ours}", self.connections[index].name(), hello.version);
        Err(Failure::failed(what).help("install one version everywhere, or say where it is with --paceline"))
    }

    fn unreachable(&mut self, index: usize) -> Failure {
        let how = self.connections[index].how_it_ended();
        let name = self.connections[index].name();
        let help = match how.as_str() {
            "ssh failed" => {
                format!("its own message stands above; `ssh {name} true` must work from here without a password")
            }
            _ => "install paceline there at the same path or in PATH, or say where it is with --paceline".to_owned(),
        };
        Failure::failed(format!("cannot start ranks on {name}: {how}")).help(help)
    }
}

/// Where rank 0 listens: on the first host, at the address that the others are most likely to reach.
fn meeting_point(job: &RemoteJob, first: &Hello) -> Result<String, Failure> {
    let only_here = job.hosts.iter().all(|host| is_here(&host.name));
    let host = match (&job.address, first.address) {
        (Some(address), _) => address.clone(),
        (None, _) if only_here => "127.0.0.1".to_owned(),
        // At which ssh has reached it.
        (None, Some(address)) if !address.is_loopback() || job.hosts.len() == 1 => address.to_string(),
        // ssh over loopback reaches this host: see below; so do hosts that need no ssh.
        (None, _) => match own_address(&job.hosts) {
            Some(address) => address.to_string(),
            None => {
                let what = format!("the other hosts cannot reach {} by that name", job.hosts[0].name);
                return Err(Failure::failed(what).help("give its address with --address"));
            }
        },
    };
    // An IPv6 address needs brackets before the port.
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    Ok(format!("{host}:{}", first.port))
}

/// Our address on the way to the first other host: what that one can answer to.
fn own_address(hosts: &[Host]) -> Option<IpAddr> {
    let names =
        hosts.iter().map(|host| host.name.rsplit('@').next().unwrap_or(&host.name)).filter(|name| !is_here(name));
    names
        .filter_map(|name| {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
            // Nothing is sent: this only asks for the route.
            socket.connect((name, 9)).ok()?;
            socket.local_addr().ok()
        })
        .map(|address| address.ip())
        .next()
}

/// Waits until every rank has ended, and sees to it that they do once one has failed or we are told to stop.
fn watch(job: &RemoteJob, agents: &mut Agents, mut signals: Signals) -> Result<ExitCode, Failure> {
    let mut ranks = Ranks::of(&job.hosts);
    let mut progress = Progress::default();
    let mut all_ended_at = None;
    while ranks.open > 0 {
        if ranks.running.iter().all(BTreeSet::is_empty) {
            let since = *all_ended_at.get_or_insert_with(Instant::now);
            if since.elapsed() > CLOSING {
                break;
            }
        }
        if let Some(signal) = signals.next() {
            progress.interrupt(signal);
        }
        while let Some(signal) = progress.due(|| ranks.left()) {
            agents.connections.iter_mut().for_each(|connection| connection.signal(signal));
        }
        progress.check(|| ranks.left())?;
        let soon = Instant::now() + TICK;
        let deadline = progress.next_deadline().map_or(soon, |deadline| deadline.min(soon));
        match agents.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((index, event)) => ranks.note(index, event, &mut agents.connections[index], &mut progress),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(progress.exit_code())
}

/// Who still runs, host by host.
struct Ranks {
    running: Vec<BTreeSet<usize>>,
    /// Connections that are not closed.
    open: usize,
}

impl Ranks {
    fn of(hosts: &[Host]) -> Ranks {
        let mut first = 0;
        let running = hosts.iter().map(|host| {
            first += host.slots;
            (first - host.slots..first).collect()
        });
        Ranks { running: running.collect(), open: hosts.len() }
    }

    fn left(&self) -> String {
        let names: Vec<_> = self.running.iter().flatten().map(|rank| format!("rank {rank}")).collect();
        names.join(", ")
    }

    fn note(&mut self, index: usize, event: Event, connection: &mut Connection, progress: &mut Progress) {
        let host = connection.name().to_owned();
        match event {
            Event::Hello(_) | Event::Answer(_) => {}
            Event::Ended(Ended { rank, pid, ending }) => {
                if self.running[index].remove(&rank) && !ending.is_success() {
                    progress.failed(&format!("rank {rank} on {host} (pid {pid}) {ending}"), ending.advice());
                }
            }
            Event::Refused(what) => {
                self.running[index].clear();
                progress.failed(&format!("{host}: {what}"), "the other hosts' ranks are ended");
            }
            Event::Closed => {
                self.open -= 1;
                let lost = std::mem::take(&mut self.running[index]);
                if !lost.is_empty() {
                    let names: Vec<_> = lost.iter().map(usize::to_string).collect();
                    let how = connection.how_it_ended();
                    let what = format!("lost {host} with rank {}: {how}", names.join(", "));
                    progress.failed(&what, "is the host up, and its network? its agent ends the ranks there");
                }
            }
        }
    }
}
