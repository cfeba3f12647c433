//! A cluster of what was found. Pure, but for what it asks of the machine.

use paceline_comm::Communicator;
use paceline_plan::{Cluster, ClusterError, Constant, LinkClass, LinkConstants, MeasuredRange, NetworkModel};
use serde::Serialize;

use super::estimate::{constant, rounded};
use super::measure::Found;
use crate::date::{date, now};
use crate::emulation::Emulated;
use crate::failure::Failure;
use crate::json_file::command_line;
use crate::machine::Machine;
use crate::shell;
use crate::workers::transport_name;

/// What was probed.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Its constants are medians over the rounds. Dilation is out of them.
    pub cluster: Cluster,
    /// By class and bytes, rising.
    pub points: Vec<Point>,
}

/// Messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// `within` or `across`.
    pub class: &'static str,
    /// In a message.
    pub bytes: usize,
    /// From its start to its arrival.
    pub message_s: Constant,
    /// By which share the line of alpha and beta is off.
    pub line_off: f64,
}

/// Where the numbers come from.
#[derive(Clone, Debug)]
pub struct Origin {
    name: String,
    source: String,
    hosts: usize,
    workers_per_host: usize,
    workers: usize,
    dilation: f64,
}

impl Origin {
    /// This world, now.
    pub fn of(communicator: &Communicator, emulated: Option<&Emulated>, name: Option<&str>, rounds: usize) -> Origin {
        let (topology, workers) = (communicator.topology(), communicator.world_size());
        let hosts = topology.hosts();
        let machine = Machine::this();
        let on = match emulated {
            Some(Emulated { network, hosts, dilation }) => {
                format!("an emulated network {network}, hosts {hosts}, times divided by {dilation}")
            }
            None => format!("{} over {}", in_words(hosts), transport_name(communicator)),
        };
        let source = format!(
            "measured by `{}` on {}, {}: {workers} ranks on {on}, {rounds} rounds; {}, {} cores, {}, Linux {}",
            shell::command_line(&command_line()),
            communicator.host(0),
            date(now()),
            machine.processor,
            machine.cores,
            machine.system,
            machine.kernel
        );
        let default = emulated.map_or_else(|| communicator.host(0).to_owned(), |emulated| emulated.network.clone());
        Origin {
            name: name.map_or(default, str::to_owned),
            source,
            hosts,
            workers_per_host: topology.ranks_per_host_max(),
            workers,
            dilation: emulated.map_or(1.0, |emulated| emulated.dilation),
        }
    }
}

/// So many hosts.
pub fn in_words(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") }
}

impl Probed {
    /// Of the rounds.
    ///
    /// # Errors
    /// What was found makes no cluster.
    pub fn new(found: &Found, origin: &Origin) -> Result<Probed, Failure> {
        let nothing = LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte: 0.0 };
        let nothing = NetworkModel { within: nothing, across: nothing };
        let mut cluster = Cluster {
            name: origin.name.clone(),
            source: origin.source.clone(),
            measured: Some(MeasuredRange {
                workers: [2, origin.workers],
                bytes: found.bytes.map(|bytes| bytes as u64),
            }),
            ..Cluster::of_network(nothing, origin.hosts, origin.workers_per_host)
        };
        for (name, values) in &found.constants {
            let Some(place) = cluster.constant_mut(name) else { continue };
            let is_time = name.ends_with("_s") || name.ends_with("_s_per_byte");
            *place = rounded(constant(values).times(if is_time { 1.0 / origin.dilation } else { 1.0 }));
        }
        let mut points = Vec::new();
        for (class, link) in [("within", &mut cluster.within), ("across", &mut cluster.across)] {
            let of_class = found.messages.iter().filter(|((of, _), _)| *of == class);
            for (&(class, bytes), values) in of_class {
                let message_s = rounded(constant(values).times(1.0 / origin.dilation));
                let line = link.alpha_s.value + link.beta_s_per_byte.value * bytes as f64;
                points.push(Point { class, bytes, message_s, line_off: line / message_s.value.max(1e-12) - 1.0 });
                link.points.push((bytes as u64, message_s));
            }
            if *link != LinkConstants::default() {
                mend(link);
            }
        }
        cluster.within.fetched = found.fetched && origin.workers_per_host > 1;
        // Hosts of one worker have no links, but their bytes cross the memory all the same: what interferes is counted by it.
        if origin.workers_per_host == 1 {
            cluster.within = LinkConstants { points: Vec::new(), ..cluster.across.clone() };
            cluster.within.incast_s_per_byte = Constant::ZERO;
        }
        let senseless = |error: ClusterError| {
            Failure::failed("what was measured makes no cluster")
                .cause(error)
                .help("measure again when the machine is quiet, with more --rounds")
        };
        cluster.check().map_err(senseless)?;
        Ok(Probed { cluster, points })
    }
}

/// Medians of their own may contradict each other by a little: no overhead is longer than its alpha, and no byte takes no
/// time.
fn mend(link: &mut LinkConstants) {
    const BETA_MIN: f64 = 1e-15;
    link.beta_s_per_byte = link.beta_s_per_byte.at_least(BETA_MIN);
    let (alpha, Constant { value, low, high }) = (link.alpha_s.value, link.overhead_s);
    link.overhead_s = Constant::between(value.min(alpha), low.min(alpha), high.min(alpha));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(hosts: usize, workers_per_host: usize, dilation: f64) -> Origin {
        let workers = hosts * workers_per_host;
        Origin { name: "here".into(), source: "a test".into(), hosts, workers_per_host, workers, dilation }
    }

    fn found(class: &'static str) -> Found {
        let names = if class == "within" {
            ["within.alpha_s", "within.overhead_s", "within.beta_s_per_byte"]
        } else {
            ["across.alpha_s", "across.overhead_s", "across.beta_s_per_byte"]
        };
        let mut found = Found { bytes: [4, 1 << 20], fetched: true, ..Found::default() };
        for (name, value) in names.into_iter().zip([1e-3, 2e-3, 1e-8]) {
            found.constants.insert(name, (0..9).map(|step| value * (1.0 + f64::from(step) / 100.0)).collect());
        }
        found.constants.insert("interference.computation", vec![0.5; 9]);
        found.messages.insert((class, 100), (0..9).map(|step| 1.1e-3 + 1e-5 * f64::from(step)).collect());
        found.messages.insert((class, 100_000), vec![2.2e-3; 9]);
        found
    }

    #[test]
    fn a_cluster_is_made_of_medians_without_the_dilation() {
        let Probed { cluster, points } = Probed::new(&found("within"), &origin(1, 4, 10.0)).expect("it makes sense");
        let alpha = cluster.within.alpha_s;
        let expected = Constant::between(1.04e-4, 1.01e-4, 1.07e-4);
        for (found, expected) in [(alpha.value, expected.value), (alpha.low, expected.low), (alpha.high, expected.high)]
        {
            assert!((found / expected - 1.0).abs() < 1e-9, "{alpha:?}");
        }
        assert_eq!(cluster.within.overhead_s.value, alpha.value, "it is longer than alpha");
        assert!(cluster.within.fetched);
        assert_eq!(cluster.interference.computation, Constant::exact(0.5), "a share knows no dilation");
        assert_eq!((cluster.across.clone(), cluster.workers()), (LinkConstants::default(), 4));
        assert_eq!(points.iter().map(|point| point.bytes).collect::<Vec<_>>(), [100, 100_000]);
        assert_eq!(cluster.within.points, [(100, points[0].message_s), (100_000, Constant::exact(2.2e-4))]);
        assert!((points[1].line_off - (2.08e-4 / 2.2e-4 - 1.0)).abs() < 1e-3, "{points:?}");
        assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster));
    }

    #[test]
    fn hosts_of_one_worker_interfere_by_their_network() {
        let Probed { cluster, .. } = Probed::new(&found("across"), &origin(3, 1, 1.0)).expect("it makes sense");
        assert_eq!(cluster.within.beta_s_per_byte, cluster.across.beta_s_per_byte);
        assert!(!cluster.within.fetched, "nobody does");
        assert!(cluster.within.points.is_empty() && cluster.across.points.len() == 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut found = found("across");
        found.constants.insert("across.alpha_s", vec![f64::NAN; 9]);
        let failure = Probed::new(&found, &origin(3, 2, 1.0)).expect_err("an alpha that is no number");
        assert!(failure.in_one_line().contains("across.alpha_s"), "{}", failure.in_one_line());
    }
}
