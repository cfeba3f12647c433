//! Another network, more workers, a larger batch: what a question becomes.

use std::fmt;
use std::str::FromStr;

use paceline_plan::{Cluster, ClusterError};

/// One thing that is otherwise: `network=25GbE`, `workers=64`, `local-batch=128`.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Links by a name that [`Cluster::with_link`] knows: between hosts, or within them.
    Network(String),
    /// Links between hosts that carry so many times as many bytes.
    Faster(f64),
    /// So many workers; on as many hosts as it takes.
    Workers(usize),
    /// So many samples per worker and iteration.
    LocalBatch(usize),
}

/// Why there is no such change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// It cannot be read.
    #[error(
        "`{text}` is no change: give network=NAME, network=FACTORx, workers=N or local-batch=N, as in network=25GbE,workers=64"
    )]
    Text {
        /// What was given.
        text: String,
    },
    /// The cluster that it makes cannot be.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Change, ChangeError> {
        let wrong = || ChangeError::Text { text: text.to_owned() };
        let (what, value) = text.split_once('=').ok_or_else(wrong)?;
        let (what, value) = (what.trim(), value.trim());
        let count = || value.parse().ok().filter(|&count: &usize| count > 0).ok_or_else(wrong);
        match what {
            "network" => match value.strip_suffix('x').and_then(|factor| factor.parse::<f64>().ok()) {
                Some(factor) if factor.is_finite() && factor > 0.0 => Ok(Change::Faster(factor)),
                Some(_) => Err(wrong()),
                None if value.is_empty() => Err(wrong()),
                None => Ok(Change::Network(value.to_owned())),
            },
            "workers" => count().map(Change::Workers),
            "local-batch" => count().map(Change::LocalBatch),
            _ => Err(wrong()),
        }
    }
}

/// A cluster, its workers and their batch after changes. Where workers are more than the cluster has room for, it gets hosts
/// like those that it has, and hosts that serve in proportion. What was fitted to the old network (its contention, its late
/// streams) goes with it.
///
/// # Errors
/// A network has no such name; the topology has no room for the hosts.
pub fn apply_changes(
    cluster: &Cluster,
    workers: usize,
    local_batch: Option<usize>,
    changes: &[Change],
) -> Result<(Cluster, usize, Option<usize>), ChangeError> {
    let (mut cluster, mut workers, mut local_batch) = (cluster.clone(), workers, local_batch);
    for change in changes {
        match change {
            Change::Network(name) => {
                let other = cluster.with_link(name)?;
                // Whoever is alone on a host has no links there. What the cluster says of them stands for its bus.
                if !(is_within(name) && joins_nobody(&cluster, cluster.workers_per_host)) {
                    cluster = other;
                }
            }
            Change::Faster(factor) => {
                quicken_between_hosts(&mut cluster, *factor);
                cluster.name = format!("{} with a network {factor} times as fast", cluster.name);
            }
            Change::Workers(count) => {
                workers = *count;
                let hosts = cluster.hosts_of(workers);
                if hosts > cluster.hosts {
                    cluster.set_hosts(hosts);
                }
            }
            Change::LocalBatch(samples) => local_batch = Some(*samples),
        }
    }
    cluster.check()?;
    Ok((cluster, workers, local_batch))
}

/// The changes that change nothing, in a sentence: links between hosts, where all workers are on one, and links within hosts, where
/// each has one. `changed`: the cluster and the workers after all of them.
pub fn without_effect(changed: &Cluster, workers: usize, changes: &[Change]) -> Option<String> {
    let one_host = changed.hosts_of(workers) == 1;
    let is_idle = |change: &&Change| match change {
        Change::Network(name) if is_within(name) => joins_nobody(changed, workers.min(changed.workers_per_host)),
        Change::Network(_) | Change::Faster(_) => one_host,
        Change::Workers(_) | Change::LocalBatch(_) => false,
    };
    let idle: Vec<String> = changes.iter().filter(is_idle).map(Change::to_string).collect();
    let why = match (one_host, workers) {
        (true, 1) => "One worker is on one host".to_owned(),
        (true, _) => format!("All {workers} workers are on one host"),
        (false, _) => "Each host has one worker".to_owned(),
    };
    (!idle.is_empty()).then(|| format!("{why}, so {} changes nothing", idle.join(",")))
}

/// Are there no links within hosts of so many workers? A worker alone has some to servers with ports of their own.
fn joins_nobody(cluster: &Cluster, workers_per_host: usize) -> bool {
    workers_per_host == 1 && !cluster.server.own_ports
}

/// Are links of this name, which there are, within hosts? A cluster of them alone is one host.
fn is_within(name: &str) -> bool {
    Cluster::named(name).is_ok_and(|link| link.hosts == 1)
}

/// What of the changes the constants of a cluster that was measured know nothing of, in words; empty where nothing was measured.
/// (Hosts and workers that it does not have are told where they are predicted.)
pub fn unmeasured(cluster: &Cluster, changes: &[Change]) -> Vec<String> {
    let of_links = |change: &&Change| matches!(change, Change::Network(_) | Change::Faster(_));
    let all = changes.iter().filter(of_links).filter(|_| cluster.measured.is_some());
    all.map(|change| format!("{change}: such links were not measured here")).collect()
}

/// As it is written.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Network(name) => write!(f, "network={name}"),
            Change::Faster(factor) => write!(f, "network={factor}x"),
            Change::Workers(count) => write!(f, "workers={count}"),
            Change::LocalBatch(samples) => write!(f, "local-batch={samples}"),
        }
    }
}

/// Links between hosts carry so many times as many bytes in a second, also of several at once.
fn quicken_between_hosts(cluster: &mut Cluster, factor: f64) {
    cluster.scale(&["across.beta_s_per_byte", "across.incast_s_per_byte", "server.beta_s_per_byte"], 1.0 / factor);
}

/// What messages and operations take to start, wherever they go.
const STARTS: [&str; 9] = [
    "within.alpha_s",
    "within.overhead_s",
    "across.alpha_s",
    "across.overhead_s",
    "across.hop_s",
    "operation.start_s",
    "operation.start_per_doubling_s",
    "server.partition_s",
    "server.local_partition_s",
];

/// Clusters on which one thing takes half as long, and what it is.
pub(super) fn faster(cluster: &Cluster, workers: usize) -> Vec<(String, Cluster)> {
    let mut all = Vec::new();
    let mut with = |change: &str, quicken: &dyn Fn(&mut Cluster)| {
        let mut other = cluster.clone();
        quicken(&mut other);
        all.push((change.to_owned(), other));
    };
    if cluster.hosts_of(workers) > 1 {
        with("twice the bandwidth between hosts", &|other| quicken_between_hosts(other, 2.0));
    }
    if cluster.workers_per_host > 1 {
        with("twice the bandwidth within hosts", &|other| other.scale(&["within.beta_s_per_byte"], 0.5));
    }
    with("half the time to start an operation or a message", &|other| other.scale(&STARTS, 0.5));
    all
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn changes_are_read_or_refused() {
        let read = |text: &str| text.parse::<Change>();
        assert_eq!(read("network=25GbE"), Ok(Change::Network("25GbE".into())));
        assert_eq!(read("network=2.5x"), Ok(Change::Faster(2.5)));
        assert_eq!(read(&Change::Faster(2.5).to_string()), Ok(Change::Faster(2.5)));
        assert_eq!(read(" workers = 64 "), Ok(Change::Workers(64)));
        assert_eq!(read("local-batch=8"), Ok(Change::LocalBatch(8)));
        for text in ["", "workers", "workers=0", "workers=-1", "workers=many", "speed=2", "network=", "network=-1x"] {
            assert_eq!(read(text), Err(ChangeError::Text { text: text.into() }));
        }
    }

    #[test]
    fn a_network_that_nobody_uses_is_told() {
        let cluster = Cluster::named("study-10gbe").unwrap();
        let told = |workers: usize, changes: &[Change]| {
            let (changed, workers, _) = apply_changes(&cluster, workers, None, changes).unwrap();
            without_effect(&changed, workers, changes)
        };
        let (network, faster) = (Change::Network("25GbE".into()), Change::Faster(2.0));
        let said = told(4, &[network.clone(), faster, Change::LocalBatch(8)]);
        assert_eq!(said.as_deref(), Some("All 4 workers are on one host, so network=25GbE,network=2x changes nothing"));
        // Where the workers are more than a host has, and where it is the host's own link.
        assert_eq!(told(4, &[network.clone(), Change::Workers(8)]), None);
        assert_eq!(told(8, &[network]), None);
        assert_eq!(told(4, &[Change::Network("pcie4".into())]), None);
    }

    /// Whoever is alone on a host has no links there, whatever these are.
    #[test]
    fn links_within_hosts_of_one_worker_are_told_and_change_nothing() {
        let after = |text: &str, workers: usize, changes: &[Change]| {
            let cluster = Cluster::named(text).unwrap();
            let (changed, workers, _) = apply_changes(&cluster, workers, None, changes).unwrap();
            (changed == cluster, without_effect(&changed, workers, changes))
        };
        let (within, across) = (Change::Network("NVLink4".into()), Change::Network("100gbe".into()));
        let said = Some("Each host has one worker, so network=NVLink4 changes nothing".to_owned());
        assert_eq!(after("25gbe+pcie4:8x1", 8, from_ref(&within)), (true, said.clone()));
        assert_eq!(after("25gbe:8x1", 8, from_ref(&within)), (true, said.clone()));
        assert_eq!(after("25gbe:8x1", 8, &[within.clone(), across.clone()]), (false, said));
        assert_eq!(after("25gbe:8x1", 8, &[across]), (false, None));
        assert_eq!(after("25gbe+pcie4:8x2", 8, from_ref(&within)), (false, None));
        let alone = after("25gbe+pcie4:8x2", 1, &[within]).1;
        assert_eq!(alone.as_deref(), Some("One worker is on one host, so network=NVLink4 changes nothing"));
        assert!(apply_changes(&Cluster::named("25gbe").unwrap(), 8, None, &[Change::Network("no".into())]).is_err());
    }

    #[test]
    fn links_that_nobody_has_measured_are_told() {
        let preset = Cluster::of_network(paceline_plan::NetworkModel::TEN_GBE, 8, 4);
        let range = paceline_plan::MeasuredRange { workers: [2, 32], bytes: [4, 1 << 26], ..Default::default() };
        let measured = Cluster { measured: Some(range), ..preset.clone() };
        let changes = [Change::Faster(2.0), Change::Workers(8)];
        assert_eq!(unmeasured(&measured, &changes), ["network=2x: such links were not measured here"]);
        assert_eq!(unmeasured(&preset, &changes), Vec::<String>::new());
    }

    #[test]
    fn more_workers_take_more_hosts_of_the_same_kind() {
        let cluster = Cluster::named("study-10gbe").unwrap();
        let (grown, workers, batch) = apply_changes(&cluster, 4, None, &[Change::Workers(64)]).unwrap();
        assert_eq!((workers, batch, grown.hosts, grown.workers_per_host), (64, None, 16, 4));
        assert_eq!(grown.server_hosts, 2 * cluster.server_hosts);
        assert_eq!(grown.across, cluster.across);
        // As of a cluster that is named with that size.
        assert_eq!(grown.server_hosts, Cluster::named("study-10gbe:16x4").unwrap().server_hosts);
        let (same, ..) = apply_changes(&cluster, 4, None, &[Change::Workers(32)]).unwrap();
        assert_eq!(same, cluster);
    }

    #[test]
    fn another_network_has_other_links_and_nothing_else() {
        let cluster = Cluster::named("study-10gbe").unwrap();
        let (faster, ..) = apply_changes(&cluster, 32, None, &[Change::Faster(2.0)]).unwrap();
        let halved = cluster.across.beta_s_per_byte.value / 2.0;
        assert_eq!((faster.across.beta_s_per_byte.value, &faster.within), (halved, &cluster.within));
        let (other, ..) = apply_changes(&cluster, 32, Some(8), &[Change::Network("25GbE".into())]).unwrap();
        assert!(other.across.beta_s_per_byte.value < cluster.across.beta_s_per_byte.value);
        // Over each protocol.
        let mut known = cluster.clone();
        let across = Some(cluster.across.clone());
        known.protocols.tcp = Some(paceline_plan::ProtocolConstants { across, ..Default::default() });
        let (faster, ..) = apply_changes(&known, 32, None, &[Change::Faster(2.0)]).unwrap();
        assert_eq!(faster.over("tcp").across.beta_s_per_byte.value, halved);
        assert!(apply_changes(&cluster, 32, None, &[Change::Network("25GbX".into())]).is_err());
    }
}
