//! A cluster of what was found. Pure, but for what it asks of the machine.

use paceline_comm::{Communicator, TransportChoice};
use paceline_plan::{
    Cluster, ClusterError, Constant, LinkClass, LinkConstants, MeasuredRange, NetworkModel, ProtocolConstants,
};
use serde::Serialize;

use super::estimate::{constant, rounded};
use super::measure::{CONSTANT, Found, GROWING};
use crate::date::{date, now};
use crate::emulation::Emulated;
use crate::failure::Failure;
use crate::json_file::command_line;
use crate::machine::Machine;
use crate::shell;
use crate::workers::transport_name;

/// The shards of what is timed of a parameter server: one rank serves all.
const ONE_SERVER: [usize; 2] = [1, 1];

/// What was probed.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Its constants are medians over the rounds. Dilation is out of them. The intervals of alpha and beta have in them how far
    /// their line is off the points.
    pub cluster: Cluster,
    /// By protocol, class and bytes, rising.
    pub points: Vec<Point>,
}

/// Messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Over which protocol; None: what the runtime takes by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
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
    /// What computed beside the communication: on an emulated network, too, which stands for other links, and not for other processors.
    device: Option<String>,
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
            device: Some(machine.processor),
        }
    }
}

impl Origin {
    /// What was timed: this world, with operations of so many bytes; and of a larger one, how long an operation takes to start
    /// among its first ranks.
    fn timed(&self, bytes: [u64; 2]) -> MeasuredRange {
        let (workers, hosts, fullest) = (self.workers, self.hosts, self.workers_per_host.max(1));
        let [fewest, on_hosts] =
            if workers >= GROWING { [CONSTANT, CONSTANT.div_ceil(fullest).min(hosts)] } else { [workers, hosts] };
        MeasuredRange {
            workers: [fewest, workers],
            bytes,
            hosts: Some([on_hosts, hosts]),
            workers_per_host: Some([fewest.min(fullest), fullest]),
            shards: Some(ONE_SERVER),
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
            measured: Some(origin.timed(found.bytes.map(|bytes| bytes as u64))),
            device: origin.device.clone(),
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
                let line_off = line / message_s.value.max(1e-12) - 1.0;
                points.push(Point { protocol: None, class, bytes, message_s, line_off });
                link.points.push((bytes as u64, message_s));
            }
            if *link != LinkConstants::default() {
                widen(link);
                mend(link);
            }
        }
        cluster.within.fetched = found.fetched && origin.workers_per_host > 1;
        // Hosts of one worker have no links, but their bytes cross the memory all the same: what interferes is counted by it.
        if origin.workers_per_host == 1 {
            cluster.within = LinkConstants { points: Vec::new(), ..cluster.across.clone() };
            cluster.within.incast_s_per_byte = Constant::ZERO;
        }
        cluster.check().map_err(senseless)?;
        Ok(Probed { cluster, points })
    }

    /// Adds what a world of its own has found over a protocol: all that depends on what carries the bytes.
    ///
    /// # Errors
    /// There is no such protocol; the whole makes no cluster.
    pub fn add(&mut self, protocol: TransportChoice, found: Probed) -> Result<(), Failure> {
        let Probed { cluster: over, points } = found;
        let Some(place) = self.cluster.protocols.place(protocol.name()) else {
            return Err(Failure::usage(format!("{protocol} is no protocol of its own")));
        };
        let there = |link: LinkConstants| Some(link).filter(|link| *link != LinkConstants::default());
        *place = Some(ProtocolConstants {
            within: there(over.within),
            across: there(over.across),
            operation: Some(over.operation),
            server: Some(over.server),
            interference: Some(over.interference),
        });
        // What is claimed holds over each of them.
        if let (Some(own), Some(other)) = (&mut self.cluster.measured, over.measured) {
            own.bytes = [own.bytes[0].max(other.bytes[0]), own.bytes[1].min(other.bytes[1])];
        }
        self.points.extend(points.into_iter().map(|point| Point { protocol: Some(protocol.name()), ..point }));
        self.cluster.check().map_err(senseless)
    }
}

fn senseless(error: ClusterError) -> Failure {
    Failure::failed("what was measured makes no cluster")
        .cause(error)
        .help("measure again when the machine is quiet, with more --rounds")
}

/// Widens the intervals of alpha and beta by what their line is off the points, which no median over the rounds knows of: each
/// point the interval of the one that makes most of it.
fn widen(link: &mut LinkConstants) {
    let (alpha, beta) = (link.alpha_s.value, link.beta_s_per_byte.value);
    for (bytes, message_s) in &link.points {
        let of_bytes = beta * *bytes as f64;
        let constant = if alpha >= of_bytes { &mut link.alpha_s } else { &mut link.beta_s_per_byte };
        let seen = constant.value * message_s.value / (alpha + of_bytes);
        if seen.is_finite() {
            let Constant { value, low, high } = *constant;
            *constant = rounded(Constant::between(value, low.min(seen), high.max(seen)));
        }
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
    use std::collections::BTreeMap;

    use paceline_plan::built_in_profile;
    use paceline_predict::{Job, predict};
    use paceline_strategy::Registry;

    use super::*;

    fn origin(hosts: usize, workers_per_host: usize, dilation: f64) -> Origin {
        let workers = hosts * workers_per_host;
        Origin {
            name: "here".into(),
            source: "a test".into(),
            hosts,
            workers_per_host,
            workers,
            dilation,
            device: None,
        }
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
        found.constants.insert("operation.start_s", vec![3e-4; 9]);
        found.messages.insert((class, 100), (0..9).map(|step| 1.1e-3 + 1e-5 * f64::from(step)).collect());
        found.messages.insert((class, 200_000), vec![3.3e-3; 9]);
        found
    }

    #[test]
    fn a_cluster_is_made_of_medians_without_the_dilation() {
        let Probed { cluster, points } = Probed::new(&found("within"), &origin(1, 4, 10.0)).expect("it makes sense");
        let alpha = cluster.within.alpha_s;
        // The shorter message, of which alpha is most, takes 1.14e-4 s, and by the line 1.041e-4.
        let expected = Constant::between(1.04e-4, 1.01e-4, 1.1389e-4);
        for (found, expected) in [(alpha.value, expected.value), (alpha.low, expected.low), (alpha.high, expected.high)]
        {
            assert!((found / expected - 1.0).abs() < 1e-9, "{alpha:?}");
        }
        // The longer one 3.3e-4 s, and by the line 3.12e-4.
        let Constant { low, high, .. } = cluster.within.beta_s_per_byte;
        assert!((low / 1.01e-9 - 1.0).abs() < 1e-9 && (high / 1.1e-9 - 1.0).abs() < 1e-4, "{low} {high}");
        assert_eq!(cluster.within.overhead_s.value, alpha.value, "it is longer than alpha");
        assert!(cluster.within.fetched);
        assert_eq!(cluster.interference.computation, Constant::exact(0.5), "a share knows no dilation");
        assert_eq!(cluster.operation.start_s, Constant::exact(3e-5));
        assert_eq!((cluster.across.clone(), cluster.workers()), (LinkConstants::default(), 4));
        assert_eq!(points.iter().map(|point| point.bytes).collect::<Vec<_>>(), [100, 200_000]);
        assert_eq!(cluster.within.points, [(100, points[0].message_s), (200_000, Constant::exact(3.3e-4))]);
        assert!((points[1].line_off - (3.12e-4 / 3.3e-4 - 1.0)).abs() < 1e-3, "{points:?}");
        assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster));
    }

    /// How far messages are off the line of alpha and beta is in the interval of what is predicted by them.
    #[test]
    fn a_prediction_is_as_uncertain_as_the_line_is_off() {
        let profile = built_in_profile("resnet50").expect("it is built in");
        let strategy = Registry::built_in().parse("schedule=none,arch=a2a:ring").expect("a strategy");
        let line_s = 1.04e-3 + 1.04e-8 * f64::from(1 << 22);
        let around_s = |message_s: f64| {
            let mut found = found("across");
            found.messages = BTreeMap::from([(("across", 1 << 22), vec![message_s; 9])]);
            let cluster = Probed::new(&found, &origin(4, 1, 1.0)).expect("it makes sense").cluster;
            let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
            let found = predict(&job).expect("a prediction");
            [found.iteration_s - found.low_s, found.high_s - found.iteration_s]
        };
        let (on_it, above, below) = (around_s(line_s), around_s(1.3 * line_s), around_s(0.7 * line_s));
        assert!(above[1] > 3.0 * on_it[1] && (above[0] / on_it[0] - 1.0).abs() < 1e-6, "{on_it:?} {above:?}");
        assert!(below[0] > 3.0 * on_it[0] && (below[1] / on_it[1] - 1.0).abs() < 1e-6, "{on_it:?} {below:?}");
    }

    /// Between two ranks and as many as there are, nothing was timed but, of eight and more, four.
    #[test]
    fn only_worlds_that_were_timed_are_claimed() {
        let of = |hosts, workers_per_host| {
            let range = origin(hosts, workers_per_host, 1.0).timed([4, 1 << 20]);
            (range.workers, range.hosts.expect("it is known"), range.workers_per_host.expect("it is known"))
        };
        assert_eq!(of(1, 4), ([4, 4], [1, 1], [4, 4]));
        assert_eq!(of(3, 2), ([6, 6], [3, 3], [2, 2]));
        assert_eq!(of(4, 2), ([4, 8], [2, 4], [2, 2]));
        assert_eq!(of(1, 16), ([4, 16], [1, 1], [4, 16]));
    }

    /// All but one shard is told by formulas alone.
    #[test]
    fn several_shards_leave_what_was_timed() {
        let Probed { cluster, .. } = Probed::new(&found("within"), &origin(1, 4, 1.0)).expect("it makes sense");
        assert_eq!(cluster.left_by_shards(4, 1), None);
        let told = cluster.left_by_shards(4, 2).expect("it leaves the range");
        assert!(told.contains("2 shards"), "{told}");
    }

    #[test]
    fn hosts_of_one_worker_interfere_by_their_network() {
        let Probed { cluster, .. } = Probed::new(&found("across"), &origin(3, 1, 1.0)).expect("it makes sense");
        assert_eq!(cluster.within.beta_s_per_byte, cluster.across.beta_s_per_byte);
        assert!(!cluster.within.fetched, "nobody does");
        assert!(cluster.within.points.is_empty() && cluster.across.points.len() == 2);
    }

    /// The rest is the first world's.
    #[test]
    fn another_protocol_is_what_its_world_has_found() {
        let mut over = found("within");
        over.constants.insert("within.beta_s_per_byte", vec![3e-8; 9]);
        over.constants.insert("operation.start_s", vec![1e-4; 9]);
        (over.fetched, over.bytes) = (false, [4, 1 << 18]);
        let of = |found: &Found| Probed::new(found, &origin(1, 4, 1.0)).expect("it makes sense");
        let (mut both, alone) = (of(&found("within")), of(&over));
        let first = both.cluster.clone();
        both.add(TransportChoice::Tcp, alone.clone()).expect("it makes sense");
        let cluster = &both.cluster;
        assert_eq!((&cluster.within, &cluster.operation), (&first.within, &first.operation));
        let tcp = cluster.over("tcp").into_owned();
        assert_eq!((&tcp.within, &tcp.operation), (&alone.cluster.within, &alone.cluster.operation));
        assert!(cluster.within.fetched && !tcp.within.fetched);
        assert_eq!(cluster.protocols.get("tcp").and_then(|own| own.across.clone()), None, "all are on one host");
        // What was timed over one of them alone is not claimed.
        assert_eq!(cluster.measured.map(|range| range.bytes), Some([4, 1 << 18]));
        let names: Vec<Option<&str>> = both.points.iter().map(|point| point.protocol).collect();
        assert_eq!(names, [None, None, Some("tcp"), Some("tcp")]);
        assert_eq!(Cluster::from_toml(&cluster.to_toml()).as_ref(), Ok(cluster));
        let failure = both.add(TransportChoice::Auto, alone).expect_err("it is none");
        assert!(failure.in_one_line().contains("auto is no protocol of its own"), "{}", failure.in_one_line());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut found = found("across");
        found.constants.insert("across.alpha_s", vec![f64::NAN; 9]);
        let failure = Probed::new(&found, &origin(3, 2, 1.0)).expect_err("an alpha that is no number");
        assert!(failure.in_one_line().contains("across.alpha_s"), "{}", failure.in_one_line());
    }
}
