//! The launcher's part: asks the hosts' agents, compares them, and says which NICs should carry the links.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paceline_fabric::CONTROL_VERSION;
use serde::Serialize;

use super::Finding;
use super::network::{Examination, PATH_MAX, Path};
use super::trial;
use crate::failure::Failure;
use crate::hosts::Host;
use crate::remote::{Answer, Connection, Errand, Event, Hello, Reach};

/// How long all agents together may take to be there.
const START: Duration = Duration::from_secs(30);
/// How long they may take to look at their hosts.
const LOOKING: Duration = Duration::from_secs(10);
/// How long an answer may take on its way.
const ANSWERING: Duration = Duration::from_secs(5);
/// So many addresses of the first host are tried.
const ADDRESSES_MAX: usize = 8;
/// Another path is worth a word if it carries so many times as much: one second of TCP varies by less.
const FASTER: f64 = 1.25;
/// A NIC that carries less than this share of what it states is called out.
const SHARE_OF_STATED: f64 = 0.5;
/// A path that carries less than this share of what its other direction carries is called out.
const SHARE_OF_OTHER_DIRECTION: f64 = 0.5;
/// One connection may not fill a NIC that is faster, so no more is expected of it.
const EXPECTED_MBIT_MAX: u64 = 10_000;

/// A path in the file of results.
#[derive(Clone, Debug, Serialize)]
pub struct PathReport {
    /// Where it begins, by its name in the host file.
    host: String,
    /// The NIC there.
    interface: Option<String>,
    /// Where it ends, on the first host.
    address: IpAddr,
    /// The NIC there.
    first_host_interface: String,
    /// What the slower NIC of the two states.
    stated_mbit_per_s: Option<u64>,
    /// What arrived.
    measured_mbit_per_s: Option<f64>,
    /// What arrived the other way, of the path that links take.
    measured_back_mbit_per_s: Option<f64>,
    /// Would links take it?
    used: bool,
}

/// Looks at all hosts. Those that cannot be reached, or have another version, are findings.
///
/// # Errors
/// ssh itself cannot be run.
pub fn run(hosts: &[Host], reach: &Reach, interface: Option<&str>) -> Result<(Vec<Finding>, Vec<PathReport>), Failure> {
    let mut fleet = Fleet::open(hosts, reach)?;
    fleet.greet();
    fleet.examine(interface);
    fleet.meet();
    let paths = fleet.measure(interface);
    Ok((fleet.findings, paths))
}

/// Agents, and what is known of them.
struct Fleet<'a> {
    hosts: &'a [Host],
    connections: Vec<Connection>,
    events: Receiver<(usize, Event)>,
    hellos: Vec<Option<Hello>>,
    examinations: Vec<Option<Examination>>,
    /// Those that are asked nothing any more.
    lost: Vec<bool>,
    findings: Vec<Finding>,
}

impl Fleet<'_> {
    fn open<'a>(hosts: &'a [Host], reach: &Reach) -> Result<Fleet<'a>, Failure> {
        let (send, events) = channel();
        let open = |(index, host): (usize, &Host)| Connection::open(index, &host.name, reach, false, send.clone());
        Ok(Fleet {
            connections: hosts.iter().enumerate().map(open).collect::<Result<_, _>>()?,
            hosts,
            events,
            hellos: vec![None; hosts.len()],
            examinations: vec![None; hosts.len()],
            lost: vec![false; hosts.len()],
            findings: Vec::new(),
        })
    }

    fn find(&mut self, index: usize, finding: Finding) {
        self.findings.push(Finding { host: Some(self.hosts[index].name.clone()), ..finding });
    }

    fn lose(&mut self, index: usize, finding: Finding) {
        self.lost[index] = true;
        self.find(index, finding);
    }

    /// Waits until no host that is not lost is left in `waiting`; those that stay silent are lost.
    fn gather(&mut self, mut waiting: Vec<usize>, limit: Duration, mut take: impl FnMut(&mut Self, usize, Event)) {
        let deadline = Instant::now() + limit;
        while !waiting.is_empty() {
            let Ok((index, event)) = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            else {
                for index in waiting {
                    let found = format!("{} has not answered within {limit:?}", self.hosts[index].name);
                    let fix = format!("`ssh {} true` must return at once, without a question", self.hosts[index].name);
                    self.lose(index, Finding::broken("agent", found, fix));
                }
                return;
            };
            match event {
                Event::Closed if !self.lost[index] => {
                    let finding = self.unreachable(index);
                    self.lose(index, finding);
                }
                Event::Closed => {}
                event => take(self, index, event),
            }
            waiting.retain(|other| *other != index);
        }
    }

    fn unreachable(&mut self, index: usize) -> Finding {
        let (name, how) = (&self.hosts[index].name, self.connections[index].how_it_ended());
        let fix = match &*how {
            "ssh failed" => {
                format!("its own message stands above; `ssh {name} true` must work from here without a password")
            }
            _ => "install paceline there at the same path or in PATH, or say where it is with --paceline".to_owned(),
        };
        Finding::broken("agent", format!("cannot ask {name}: {how}"), fix)
    }

    fn there(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|index| !self.lost[*index]).collect()
    }

    fn greet(&mut self) {
        self.gather(self.there(), START, |fleet, index, event| {
            if let Event::Hello(hello) = event {
                fleet.hellos[index] = Some(hello);
            }
        });
        for index in self.there() {
            let Some(hello) = self.hellos[index].clone() else { continue };
            match version(&self.hosts[index].name, &hello) {
                finding if finding.fix.is_none() => self.find(index, finding),
                finding => self.lose(index, finding),
            }
        }
    }

    fn examine(&mut self, interface: Option<&str>) {
        for index in self.there() {
            let ranks = self.hosts[index].slots;
            self.connections[index].ask(&Errand::Examine { ranks, interface: interface.map(str::to_owned) });
        }
        self.gather(self.there(), LOOKING, |fleet, index, event| {
            if let Event::Answer(Answer::Examined(examination)) = event {
                examination.findings.iter().for_each(|finding| fleet.find(index, finding.clone()));
                fleet.examinations[index] = Some(examination);
            }
        });
    }

    /// On all hosts at once, the ranks of each among themselves: what shared memory and limits make of their links shows
    /// only where ranks run. It is over before paths are measured, which it would disturb.
    fn meet(&mut self) {
        for index in self.there() {
            self.connections[index].ask(&Errand::Meet { ranks: self.hosts[index].slots });
        }
        self.gather(self.there(), trial::LIMIT + ANSWERING, |fleet, index, event| {
            if let Event::Answer(Answer::Met(findings)) = event {
                findings.into_iter().for_each(|finding| fleet.find(index, finding));
            }
        });
    }

    /// From one host after another to the first: at once they would share its NIC.
    fn measure(&mut self, interface: Option<&str>) -> Vec<PathReport> {
        let mut reports = Vec::new();
        let (Some(first), Some(hello), false) = (self.examinations[0].clone(), self.hellos[0].clone(), self.lost[0])
        else {
            return reports;
        };
        let token = token();
        self.connections[0].ask(&Errand::Receive { token });
        for index in self.there().into_iter().filter(|index| *index > 0) {
            let is_same = self.examinations[index].as_ref().is_some_and(|other| other.network == first.network);
            let nics = first.nics.iter().take(ADDRESSES_MAX);
            let candidates: Vec<(IpAddr, String, Option<u64>)> = match is_same {
                true => vec![(Ipv4Addr::LOCALHOST.into(), "lo".to_owned(), None)],
                false => nics.map(|nic| (nic.address, nic.name.clone(), nic.speed)).collect(),
            };
            let addresses = candidates.iter().map(|nic| SocketAddr::new(nic.0, hello.port)).collect();
            self.connections[index].ask(&Errand::Measure { addresses, token });
            let mut measured = None;
            self.gather(vec![index], PATH_MAX * (candidates.len() as u32 + 1), |_, _, event| {
                if let Event::Answer(Answer::Measured(paths)) = event {
                    measured = Some(paths);
                }
            });
            let Some(paths) = measured else { continue };
            let name = &self.hosts[index].name;
            let mut of_host: Vec<PathReport> = judge_used(name, &candidates, &paths, interface.filter(|_| !is_same));
            if let Some(used) = of_host.iter().position(|path| path.used) {
                let nic = paths[used].nic.as_ref().map(|nic| nic.address);
                let back = if is_same { Some(Ipv4Addr::LOCALHOST.into()) } else { nic };
                of_host[used].measured_back_mbit_per_s = back.and_then(|address| self.measure_back(index, address));
            }
            let why: Vec<String> = paths
                .iter()
                .filter_map(|path| Some(format!("{}: {}", path.address, path.rate.as_ref().err()?)))
                .collect();
            for finding in judge(&self.hosts[0].name, is_same, &of_host, &why) {
                self.find(index, finding);
            }
            reports.extend(of_host);
        }
        reports
    }

    /// From the first host to another: a cable or a firewall may be good for one direction only.
    fn measure_back(&mut self, index: usize, address: IpAddr) -> Option<f64> {
        let (token, port) = (token(), self.hellos[index].as_ref()?.port);
        self.connections[index].ask(&Errand::Receive { token });
        self.connections[0].ask(&Errand::Measure { addresses: vec![SocketAddr::new(address, port)], token });
        let mut rate = None;
        self.gather(vec![0], PATH_MAX * 2, |_, _, event| {
            if let Event::Answer(Answer::Measured(paths)) = event {
                rate = paths.first().and_then(|path| path.rate.as_ref().ok().map(|rate| rate / 1e6));
            }
        });
        rate
    }
}

/// Ranks of different versions refuse each other.
fn version(name: &str, hello: &Hello) -> Finding {
    const SUBJECT: &str = "version";
    const FIX: &str = "install one version everywhere, or say where it is with --paceline";
    let ours = env!("CARGO_PKG_VERSION");
    match hello.protocol {
        _ if hello.version != ours => {
            Finding::broken(SUBJECT, format!("{name} has paceline {}, this host {ours}", hello.version), FIX)
        }
        Some(CONTROL_VERSION) => {
            let (kernel, host) = (&hello.kernel, &hello.host);
            Finding::good(
                SUBJECT,
                format!("paceline {ours}, protocol {CONTROL_VERSION}, on {host} with Linux {kernel}"),
            )
        }
        protocol => {
            let theirs = protocol.map_or("an older one".to_owned(), |protocol| protocol.to_string());
            let found =
                format!("{name} has paceline {ours} with protocol {theirs}, this host with protocol {CONTROL_VERSION}");
            Finding::broken(SUBJECT, found, FIX)
        }
    }
}

/// Links take the first address that answers, or those of the interface that the user names.
fn judge_used(
    host: &str,
    candidates: &[(IpAddr, String, Option<u64>)],
    paths: &[Path],
    chosen: Option<&str>,
) -> Vec<PathReport> {
    let mut is_found = false;
    let report = |((address, there, speed), path): (&(IpAddr, String, Option<u64>), &Path)| {
        let is_allowed = chosen.is_none_or(|chosen| chosen == there || chosen.parse() == Ok(*address));
        let used = !is_found && is_allowed && path.rate.is_ok();
        is_found |= used;
        let speeds = [*speed, path.nic.as_ref().and_then(|nic| nic.speed)];
        PathReport {
            host: host.to_owned(),
            interface: path.nic.as_ref().map(|nic| nic.name.clone()),
            address: *address,
            first_host_interface: there.clone(),
            stated_mbit_per_s: speeds.into_iter().flatten().min(),
            measured_mbit_per_s: path.rate.as_ref().ok().map(|rate| rate / 1e6),
            measured_back_mbit_per_s: None,
            used,
        }
    };
    candidates.iter().zip(paths).map(report).collect()
}

/// What findings about the choice of a path are called.
const PATH: &str = "path";

/// What the paths of one host to the first one say.
fn judge(first: &str, is_same: bool, paths: &[PathReport], why: &[String]) -> Vec<Finding> {
    let Some(used) = paths.iter().find(|path| path.used) else {
        let found = format!(
            "links cannot reach {first}: {}",
            if why.is_empty() { "no address".into() } else { why.join("; ") }
        );
        let fix = "PACELINE_INTERFACE names the network that all hosts share; let firewalls pass TCP between them";
        return vec![Finding::broken(PATH, found, fix)];
    };
    if is_same {
        let found = format!("on the machine of {first}: loopback carries {:.0} Mbit/s", used.rate());
        return vec![Finding::good(PATH, found)];
    }
    let way = format!("links to {first} take {} to {} ({})", used.nic(), used.address, used.first_host_interface);
    let best = paths.iter().max_by(|one, other| one.rate().total_cmp(&other.rate())).unwrap_or(used);
    let choice = if best.rate() > FASTER * used.rate() {
        slower_than(best, used, &way, first)
    } else {
        Finding::good(PATH, format!("{way}, the fastest of {}: {:.0} Mbit/s", paths.len(), used.rate()))
    };
    [Some(choice), uneven(used, &way), against_stated(used, first)].into_iter().flatten().collect()
}

/// Another path carries more than the one that links take.
fn slower_than(best: &PathReport, used: &PathReport, way: &str, first: &str) -> Finding {
    let other = best.nic();
    let found = format!(
        "{way} with {:.0} Mbit/s; {other} to {} ({}) carries {:.0} Mbit/s, {:.1} times as much",
        used.rate(),
        best.address,
        best.first_host_interface,
        best.rate(),
        best.rate() / used.rate()
    );
    let fix = if other == best.first_host_interface {
        format!("PACELINE_INTERFACE={other} paceline launch --hostfile …")
    } else {
        format!(
            "unset PACELINE_INTERFACE here, and set it to {other} in the environment that ssh gives on {}, and to {} on \
             {first}",
            best.host, best.first_host_interface
        )
    };
    Finding::slow(PATH, found, fix)
}

/// Does one direction carry much less than the other?
fn uneven(used: &PathReport, way: &str) -> Option<Finding> {
    let (rate, back) = (used.rate(), used.measured_back_mbit_per_s.unwrap_or(0.0));
    (rate.min(back) < SHARE_OF_OTHER_DIRECTION * rate.max(back)).then(|| {
        let found = format!("{way} with {rate:.0} Mbit/s, and {back:.0} Mbit/s the other way");
        let fix = "look at cable, duplex and firewall of both; ranks send as much one way as the other";
        Finding::slow("direction", found, fix)
    })
}

/// Is the path as fast as its NICs state?
fn against_stated(used: &PathReport, first: &str) -> Option<Finding> {
    let (stated, here) = (used.stated_mbit_per_s?, used.nic());
    let found = format!("{here} carries {:.0} Mbit/s to {first}, the NICs state {stated} Mbit/s", used.rate());
    if used.rate() >= SHARE_OF_STATED * stated.min(EXPECTED_MBIT_MAX) as f64 {
        return Some(Finding::good("rate", found));
    }
    let fix = format!("look at cable, switch port and `ethtool {here}`; something else may use the network now");
    Some(Finding::slow("rate", found, fix))
}

impl PathReport {
    /// Mbit/s to the first host; 0 if nothing came through.
    fn rate(&self) -> f64 {
        self.measured_mbit_per_s.unwrap_or(0.0)
    }

    fn nic(&self) -> &str {
        self.interface.as_deref().unwrap_or("an unknown NIC")
    }
}

/// Nobody else can know it.
fn token() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let half = || RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let mut token = [0; 16];
    token[..8].copy_from_slice(&half());
    token[8..].copy_from_slice(&half());
    token
}
