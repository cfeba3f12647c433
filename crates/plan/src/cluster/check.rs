//! Does a cluster make sense?

use std::collections::BTreeSet;

use super::names::Sort;
use super::protocols::PREFIX;
use super::set::ALL;
use super::{
    Cluster, Constant, LinkConstants, MeasuredRange, OperationConstants, ProtocolConstants, Protocols, UnlikeWorkers,
};
use crate::{Shape, ShapeError};

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// Another version of the form.
    #[error("the cluster has schema {0}; this version of Paceline reads schema {expected}", expected = Cluster::SCHEMA)]
    Schema(u32),
    /// It is no TOML, or it has a field that no cluster has, or lacks one, or one is of another type.
    #[error("line {line} of the cluster, `{text}`: {reason}")]
    Text {
        /// Counted from 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A field contradicts the others, or makes no sense by itself.
    #[error("the cluster is inconsistent: {field} {problem}")]
    Field {
        /// Where, such as `across.alpha_s`.
        field: String,
        /// What is wrong there.
        problem: String,
    },
    /// One of several networks is meant, and none that there is was named.
    #[error("{}", which_network(.choice, .networks))]
    Network {
        /// What was given; empty: nothing.
        choice: String,
        /// Those that there are.
        networks: Vec<String>,
    },
    /// No links have this name.
    #[error("no link has the name `{name}`; links are {links}")]
    UnknownLink {
        /// What was given.
        name: String,
        /// The links that there are.
        links: String,
    },
    /// No cluster and no links have this name.
    #[error(
        "`{name}` is no cluster that is built in: give {clusters}, or links within and between hosts, as in 25gbe+pcie4:8x4; links are {links}"
    )]
    Unknown {
        /// What was given.
        name: String,
        /// The clusters that there are.
        clusters: String,
        /// The links that there are.
        links: String,
    },
}

impl ClusterError {
    /// The same of the cluster of one of several networks.
    pub(super) fn in_network(self, network: &str) -> ClusterError {
        let (field, problem) = match self {
            ClusterError::Field { field, problem } => (field, problem),
            ClusterError::Schema(schema) => {
                let read = Cluster::SCHEMA;
                ("schema".to_owned(), format!("is {schema}; this version of Paceline reads {read}"))
            }
            other => return other,
        };
        ClusterError::Field { field: format!("networks.{network}.{field}"), problem }
    }
}

fn which_network(choice: &str, networks: &[String]) -> String {
    let known = networks.join(", ");
    match (choice, networks) {
        (_, []) => "it has no network".to_owned(),
        ("", [first, ..]) => format!("it has the networks {known}: give one of them, as in FILE:{first}"),
        (choice, [only]) if only == ALL => {
            format!("it is one cluster, whatever the network, and `{choice}` is no size such as 8x4")
        }
        (choice, _) => format!("it has no network `{choice}`, but {known}: give FILE:NETWORK, or FILE:NETWORK:8x4"),
    }
}

/// More than this of anything is a slip of the pen: seconds, seconds per byte, shares.
const CONSTANT_MAX: f64 = 1e6;
const HOSTS_MAX: usize = 1 << 20;
const WORKERS_PER_HOST_MAX: usize = 1 << 16;
const WORKERS_MAX: usize = 1 << 26;
/// More draws than this take longer than their mean is worth.
const DRAWS_MAX: usize = 1000;
/// Workers that differ by more than this, either way, are a slip of the pen.
const SLOWER_MAX: f64 = 1000.0;
/// Messages that take so many times as long as alpha and beta say, beyond the intervals of these, are a slip of the pen: seconds for
/// milliseconds, say. The study's points are up to 8 times off lines that were fitted to throughputs.
const POINT_OFF_MAX: f64 = 10.0;

impl Cluster {
    /// Does it fit together? What predictions need: no number is negative that must not be, none is beyond all reason, links
    /// that there are move bytes in some time, and the topology has room for the hosts.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), ClusterError> {
        if self.schema != Cluster::SCHEMA {
            return Err(ClusterError::Schema(self.schema));
        }
        self.check_size()?;
        self.check_topology()?;
        for (name, sort, constant) in self.clone().all() {
            check_constant(&name, sort, constant)?;
        }
        self.check_within("within", &self.within)?;
        self.check_across("across", &self.across)?;
        for (name, own) in self.protocols.iter() {
            self.check_protocol(name, own)?;
        }
        if self.computation.draws > DRAWS_MAX {
            let problem = format!("is {}; at most {DRAWS_MAX} iterations are drawn", self.computation.draws);
            return wrong("computation.draws", problem);
        }
        self.check_unlike()?;
        if let Some(range) = &self.measured {
            check_range(range)?;
        }
        if self.device.as_ref().is_some_and(|device| device.trim().is_empty()) {
            return wrong("device", "is empty; leave it out where nobody knows what computed");
        }
        match self.price_per_host_hour {
            Some(price) if !(price.is_finite() && price >= 0.0) => {
                wrong("price_per_host_hour", format!("is {price}; it is an amount of money"))
            }
            _ => Ok(()),
        }
    }

    /// [`Cluster::check`] of a cluster as it stands in its file, where what is said twice must be the same: how long messages
    /// take, and how many workers there are. (One that is made of it, with other links or fewer hosts, keeps what was measured.)
    pub(super) fn check_file(&self) -> Result<(), ClusterError> {
        self.check()?;
        for (class, link) in [("within", &self.within), ("across", &self.across)] {
            check_points(class, link, &self.operation)?;
        }
        for (name, own) in self.protocols.iter() {
            let operation = own.operation.as_ref().unwrap_or(&self.operation);
            for (class, link) in [("within", &own.within), ("across", &own.across)] {
                let class = format!("{PREFIX}{name}.{class}");
                link.as_ref().map_or(Ok(()), |link| check_points(&class, link, operation))?;
            }
        }
        self.check_measured_workers()
    }

    /// Were there as many workers as constants were measured with: on the hosts that the range names, or else on the cluster's?
    fn check_measured_workers(&self) -> Result<(), ClusterError> {
        let Some(range) = self.measured.map(|range| range.of_size(self)) else { return Ok(()) };
        let most = |range: Option<[usize; 2]>| range.map_or(usize::MAX, |[_, most]| most);
        let room = most(range.hosts).saturating_mul(most(range.workers_per_host));
        let [fewest, workers] = range.workers;
        if workers <= room {
            return Ok(());
        }
        let problem = format!(
            "is from {fewest} to {workers}, and the hosts have room for {room}: mend the number, or say on which hosts \
             it was, as measured.hosts and measured.workers_per_host"
        );
        wrong("measured.workers", problem)
    }

    /// `class`: its table in the file.
    fn check_within(&self, class: &str, link: &LinkConstants) -> Result<(), ClusterError> {
        check_link(class, link, self.workers_per_host > 1)?;
        if link.hop_s != Constant::ZERO {
            let problem = "is given, and it is about switches, of which there is none within a host";
            return wrong(format!("{class}.hop_s"), problem);
        }
        for (name, constant) in [("contention", link.contention), ("jitter_s", link.jitter_s)] {
            if constant != Constant::ZERO {
                let problem =
                    "is given, and it is about hosts that are in each other's way: give it of the links across";
                return wrong(format!("{class}.{name}"), problem);
            }
        }
        Ok(())
    }

    fn check_across(&self, class: &str, link: &LinkConstants) -> Result<(), ClusterError> {
        check_link(class, link, self.hosts + self.server_hosts > 1)?;
        if link.fetched {
            return wrong(format!("{class}.fetched"), "is true: nobody reads the memory of another host by itself");
        }
        Ok(())
    }

    fn check_protocol(&self, name: &str, own: &ProtocolConstants) -> Result<(), ClusterError> {
        let table = format!("{PREFIX}{name}");
        if *own == ProtocolConstants::default() {
            let problem = format!("says nothing: give what is otherwise over it, as in [{table}.within]");
            return wrong(table, problem);
        }
        if let Some(link) = &own.within {
            self.check_within(&format!("{table}.within"), link)?;
        }
        match &own.across {
            Some(_) if name == Protocols::MEMORY => {
                wrong(format!("{table}.across"), "is given, and hosts share no memory")
            }
            Some(link) => self.check_across(&format!("{table}.across"), link),
            None => Ok(()),
        }
    }

    fn check_size(&self) -> Result<(), ClusterError> {
        if self.name.trim().is_empty() {
            return wrong("name", "is empty");
        }
        if !(1..=HOSTS_MAX).contains(&self.hosts) {
            return wrong("hosts", format!("is {}; there are from 1 to {HOSTS_MAX}", self.hosts));
        }
        if !(1..=WORKERS_PER_HOST_MAX).contains(&self.workers_per_host) {
            let problem = format!("is {}; there are from 1 to {WORKERS_PER_HOST_MAX}", self.workers_per_host);
            return wrong("workers_per_host", problem);
        }
        if self.hosts * self.workers_per_host > WORKERS_MAX {
            return wrong("hosts", format!("times workers_per_host is more than {WORKERS_MAX} workers"));
        }
        if self.server_hosts > HOSTS_MAX {
            return wrong("server_hosts", format!("is {}; there are at most {HOSTS_MAX}", self.server_hosts));
        }
        Ok(())
    }

    fn check_unlike(&self) -> Result<(), ClusterError> {
        let mut known = BTreeSet::new();
        for (index, UnlikeWorkers { ranks, slower }) in self.unlike.iter().enumerate() {
            let wrong = |field: &str, problem: String| wrong(format!("workers[{index}].{field}"), problem);
            if !(1.0 / SLOWER_MAX..=SLOWER_MAX).contains(slower) {
                return wrong(
                    "slower",
                    format!("is {slower}; a second takes from {} to {SLOWER_MAX} s", 1.0 / SLOWER_MAX),
                );
            }
            if ranks.is_empty() {
                return wrong("ranks", "is empty: name those that it is about".to_owned());
            }
            for &rank in ranks {
                if rank >= self.workers() {
                    return wrong("ranks", format!("has {rank}, and the last worker is {}", self.workers() - 1));
                }
                if !known.insert(rank) {
                    return wrong("ranks", format!("has {rank}, which was named before"));
                }
            }
        }
        Ok(())
    }

    fn check_topology(&self) -> Result<(), ClusterError> {
        let shape: Result<Shape, ShapeError> = self.topology.parse();
        match shape.and_then(|shape| shape.check(self.hosts)) {
            Ok(()) => Ok(()),
            Err(ShapeError::Hosts { shape, places, hosts }) => {
                wrong("topology", format!("{shape} has room for {places} hosts, exactly, and hosts is {hosts}"))
            }
            Err(error) => wrong("topology", error.to_string()),
        }
    }
}

fn check_constant(name: &str, sort: Sort, constant: &Constant) -> Result<(), ClusterError> {
    let Constant { value, low, high } = *constant;
    if [value, low, high].iter().any(|number| !number.is_finite() || number.abs() > CONSTANT_MAX) {
        return wrong(name, format!("is {value}, from {low} to {high}: no number that one can count with"));
    }
    if low > value || value > high {
        return wrong(name, format!("is {value}, and its interval is from {low} to {high}"));
    }
    match sort {
        Sort::Amount if low < 0.0 => wrong(name, format!("is {value}, from {low}; it is not negative")),
        Sort::Share if low < 0.0 || high > 1.0 => {
            wrong(name, format!("is {value}, from {low} to {high}; it is a share from 0 to 1"))
        }
        _ => Ok(()),
    }
}

/// `used`: are there two places between which it carries something?
fn check_link(class: &str, link: &LinkConstants, used: bool) -> Result<(), ClusterError> {
    let (alpha, overhead) = (link.alpha_s.value, link.overhead_s.value);
    if overhead > alpha {
        let problem = format!("is {overhead}, longer than {class}.alpha_s, {alpha}, of which it is a part");
        return wrong(format!("{class}.overhead_s"), problem);
    }
    let counted = link.counted_overhead_s;
    if !(0.0..=CONSTANT_MAX).contains(&counted) {
        return wrong(format!("{class}.counted_overhead_s"), format!("is {counted}; it is not negative, and a number"));
    }
    if used && link.beta_s_per_byte.low <= 0.0 {
        let problem = "is missing or 0, and there are links of this class: it is the time for a byte";
        return wrong(format!("{class}.beta_s_per_byte"), problem);
    }
    let mut last = None;
    for (index, (bytes, seconds)) in link.points.iter().enumerate() {
        let field = format!("{class}.points[{index}]");
        check_constant(&field, Sort::Amount, seconds)?;
        if last.is_some_and(|last| last >= bytes) {
            return wrong(field, "has no more bytes than the one before");
        }
        last = Some(bytes);
    }
    Ok(())
}

/// Do messages take about as long as alpha and beta say? As far as their intervals reach, and so many times more: a probe widens
/// these for each of its points, so that none contradicts them. What is 0 and may be more is as much as its interval says, as no
/// multiple of it is. A cluster that knows no alpha has it in the start of operations.
fn check_points(class: &str, link: &LinkConstants, operation: &OperationConstants) -> Result<(), ClusterError> {
    let (alpha, beta) = (link.alpha_s, link.beta_s_per_byte);
    let known = || [alpha, beta].into_iter().filter(|constant| constant.value > 0.0);
    let shortest = known().map(|Constant { value, low, .. }| low / value).fold(1.0, f64::min);
    let longest = known().map(|Constant { value, high, .. }| high / value).fold(1.0, f64::max);
    let of_nothing = |constant: Constant| if constant.value > 0.0 { 0.0 } else { constant.high };
    for (index, (bytes, Constant { value, .. })) in link.points.iter().enumerate() {
        let line_s = alpha.value + beta.value * *bytes as f64;
        let longest_s = line_s * longest + of_nothing(alpha) + of_nothing(beta) * *bytes as f64;
        let least_s = line_s * shortest / POINT_OFF_MAX;
        let most_s = (longest_s + operation.start_s.value) * POINT_OFF_MAX;
        if longest_s > 0.0 && !(least_s..=most_s).contains(value) {
            let problem = format!(
                "is {value} s for {bytes} bytes, and {class}.alpha_s and {class}.beta_s_per_byte say {line_s:.2e} s: \
                 mend what is wrong"
            );
            return wrong(format!("{class}.points[{index}]"), problem);
        }
    }
    Ok(())
}

fn check_range(range: &MeasuredRange) -> Result<(), ClusterError> {
    for (name, [least, most]) in range.counts() {
        let is_none = name == "shards" && [least, most] == MeasuredRange::NO_SHARDS;
        if least > most || least == 0 && !is_none {
            return wrong(format!("measured.{name}"), format!("is from {least} to {most}"));
        }
    }
    let [smallest, largest] = range.bytes;
    if smallest > largest {
        return wrong("measured.bytes", format!("is from {smallest} to {largest}"));
    }
    Ok(())
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> Result<(), ClusterError> {
    Err(ClusterError::Field { field: field.into(), problem: problem.into() })
}
