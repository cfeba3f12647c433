//! Clusters that differ in their network only, in one file: what a study ran on.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::presets::hosts_and_workers;
use super::text::in_line;
use super::{Cluster, ClusterError};

/// A cluster for each of several networks; or one, whatever the network.
///
/// ```
/// use paceline_plan::{Cluster, ClusterSet};
///
/// let networks = ["10GbE", "100GbE"].map(|name| (name.to_owned(), Cluster::named(name).expect("it is built in")));
/// let set = ClusterSet { networks: networks.into() };
/// let read = ClusterSet::from_toml(&set.to_toml())?;
/// assert_eq!(read, set);
/// assert!(read.of("100gbe").is_some() && read.of("25GbE").is_none());
/// # Ok::<(), paceline_plan::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSet {
    /// By the name of the network, such as `10GbE`; `*` stands for all.
    pub networks: BTreeMap<String, Cluster>,
}

/// The network of a cluster that is whatever the network.
pub(super) const ALL: &str = "*";

const HEAD: &str = "\
# Clusters that differ in their network. Times are in seconds, { value, low, high } is a value and its 95 % interval; what is
# missing is 0. docs/clusters.md says what each field means.
";

impl ClusterSet {
    /// Reads tables `networks.NAME`, each a cluster; or a single cluster, as [`Cluster::from_toml`] does.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<ClusterSet, ClusterError> {
        #[derive(Deserialize)]
        struct Kind {
            networks: Option<IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Form {
            networks: BTreeMap<String, Cluster>,
        }
        if !matches!(toml::from_str(text), Ok(Kind { networks: Some(_) })) {
            let networks = BTreeMap::from([(ALL.to_owned(), Cluster::from_toml(text)?)]);
            return Ok(ClusterSet { networks });
        }
        let Form { networks } = toml::from_str(text).map_err(|error| in_line(text, error.span(), error.message()))?;
        for (name, cluster) in &networks {
            cluster.check_file().map_err(|error| error.in_network(name))?;
        }
        Ok(ClusterSet { networks })
    }

    /// The cluster with this network, in any case.
    pub fn of(&self, network: &str) -> Option<&Cluster> {
        let named = self.networks.iter().find(|(name, _)| name.eq_ignore_ascii_case(network));
        named.map(|(_, cluster)| cluster).or_else(|| self.networks.get(ALL))
    }

    /// The one cluster that is meant by what stands behind the name of a file: nothing, where there is only one network;
    /// `NETWORK`, in any case; `HOSTSxWORKERS`, as behind the name of a cluster that is built in; or both, `NETWORK:HOSTSxWORKERS`.
    ///
    /// # Errors
    /// [`ClusterError::Network`]; of a size that the cluster does not bear, [`ClusterError::Field`].
    pub fn choose(&self, choice: &str) -> Result<Cluster, ClusterError> {
        if let Some(cluster) = self.one(choice) {
            return Ok(cluster.clone());
        }
        // A network may be called like a size: what is a name as a whole is no size.
        let (network, size) = choice.rsplit_once(':').unwrap_or(("", choice));
        match (self.one(network), hosts_and_workers(size)) {
            (Some(cluster), Some((hosts, workers_per_host))) => cluster.sized(hosts, workers_per_host),
            _ => {
                let networks = self.networks.keys().cloned().collect();
                Err(ClusterError::Network { choice: choice.to_owned(), networks })
            }
        }
    }

    /// That of a name; of none, the only one.
    fn one(&self, network: &str) -> Option<&Cluster> {
        let mut all = self.networks.iter();
        let found = match network {
            "" if all.len() == 1 => all.next(),
            _ => all.find(|(name, _)| name.eq_ignore_ascii_case(network)),
        };
        found.map(|(_, cluster)| cluster)
    }

    /// The text that [`ClusterSet::from_toml`] reads as the same set.
    pub fn to_toml(&self) -> String {
        if let (1, Some(only)) = (self.networks.len(), self.networks.get(ALL)) {
            return only.to_toml();
        }
        let mut text = HEAD.to_owned();
        for (name, cluster) in &self.networks {
            // A key in quotation marks, as TOML has it.
            let name: String =
                name.chars().filter(|letter| !letter.is_control() && !"\"\\".contains(*letter)).collect();
            // Writing to a text does not fail.
            let _ = writeln!(text, "\n[networks.\"{name}\"]");
            for line in cluster.to_toml().lines().filter(|line| !line.starts_with('#')) {
                let of_list = line.strip_prefix("[[").map(|table| format!("[[networks.\"{name}\".{table}"));
                let of_table = || line.strip_prefix('[').map(|table| format!("[networks.\"{name}\".{table}"));
                let _ = writeln!(text, "{}", of_list.or_else(of_table).as_deref().unwrap_or(line));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProtocolConstants, UnlikeWorkers};
    use super::*;

    #[test]
    fn one_cluster_is_that_of_every_network() {
        let cluster = Cluster::named("study-10gbe").unwrap();
        let set = ClusterSet::from_toml(&cluster.to_toml()).unwrap();
        assert_eq!(set.of("anything"), Some(&cluster));
        assert_eq!(set.to_toml(), cluster.to_toml());
    }

    #[test]
    fn lists_and_protocols_stay_with_their_cluster() {
        let mut cluster = Cluster::named("study-10gbe").unwrap();
        cluster.unlike = vec![UnlikeWorkers { ranks: vec![1, 2], slower: 1.5 }];
        let within = Some(cluster.within.clone());
        cluster.protocols.tcp = Some(ProtocolConstants { within, ..ProtocolConstants::default() });
        let networks = ["10GbE", "100GbE"].map(|name| (name.to_owned(), cluster.clone()));
        let set = ClusterSet { networks: networks.into() };
        assert_eq!(ClusterSet::from_toml(&set.to_toml()), Ok(set));
    }

    #[test]
    fn every_cluster_of_a_set_is_checked() {
        let names = ["study-10gbe", "study-100gbe", "study-100gbib"];
        let networks = names.map(|name| (name.to_owned(), Cluster::named(name).unwrap()));
        let text = ClusterSet { networks: networks.into() }.to_toml();
        assert_eq!(ClusterSet::from_toml(&text).unwrap().networks.len(), 3);
        let error = ClusterSet::from_toml(&text.replace("hosts = 8\n", "hosts = 0\n")).unwrap_err().to_string();
        assert!(error.contains("hosts is 0"), "{error}");
        let error = ClusterSet::from_toml(&text.replace("\ntopology =", "\nmisspelt =")).unwrap_err().to_string();
        assert!(error.contains("misspelt"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_network() {
        let names = ["study-10gbe", "study-100gbe"];
        let networks = names.map(|name| (name.to_owned(), Cluster::named(name).unwrap()));
        let refused = |change: fn(&mut Cluster)| {
            let mut set = ClusterSet { networks: networks.clone().into() };
            change(set.networks.get_mut("study-10gbe").expect("it is there"));
            ClusterSet::from_toml(&set.to_toml()).expect_err("it is wrong").to_string()
        };
        let error = refused(|cluster| cluster.hosts = 0);
        assert!(error.contains("networks.study-10gbe.hosts is 0"), "{error}");
        let error = refused(|cluster| cluster.schema = 2);
        assert!(error.contains("networks.study-10gbe.schema is 2; this version of Paceline reads 1"), "{error}");
    }

    #[test]
    fn one_of_several_is_chosen_by_its_name_and_perhaps_a_size() {
        let networks = ["10GbE", "100GbE"].map(|name| (name.to_owned(), Cluster::named(name).unwrap()));
        let of = |networks: &[(String, Cluster)]| ClusterSet { networks: networks.iter().cloned().collect() };
        let (both, only) = (of(&networks), of(&networks[..1]));
        assert_eq!(both.choose("100gbe").as_ref(), Ok(&networks[1].1));
        assert_eq!((only.choose("").as_ref(), only.choose("10GbE")), (Ok(&networks[0].1), only.choose("")));
        let sized = both.choose("10gbe:16x1").unwrap();
        assert_eq!((sized.hosts, sized.workers_per_host, &*sized.name), (16, 1, "10gbe:16x1"));
        assert_eq!(only.choose("16x1"), Ok(sized));
        let any = of(&[(ALL.to_owned(), networks[0].1.clone())]);
        assert_eq!(any.choose("3x1").map(|cluster| cluster.hosts), Ok(3));
        // What is called like a size is a network, and a network may have a colon.
        let odd = of(&[("2x1".to_owned(), networks[0].1.clone()), ("a:b".to_owned(), networks[1].1.clone())]);
        assert_eq!(odd.choose("2x1").as_ref(), Ok(&networks[0].1));
        assert_eq!((odd.choose("A:B").as_ref(), odd.choose("a:b:2x1").unwrap().hosts), (Ok(&networks[1].1), 2));
        for (set, choice, says) in [
            (&both, "", "it has the networks 100GbE, 10GbE: give one of them, as in FILE:100GbE"),
            (&both, "11GbE", "it has no network `11GbE`, but 100GbE, 10GbE"),
            (&both, "16x4", "it has no network `16x4`, but 100GbE"),
            (&only, "10GbE:16", "it has no network `10GbE:16`, but 10GbE"),
            (&any, "10GbE", "it is one cluster, whatever the network, and `10GbE` is no size"),
            (&both, "10GbE:0x4", "hosts is 0"),
            (&of(&[]), "", "it has no network"),
        ] {
            let error = set.choose(choice).unwrap_err().to_string();
            assert!(error.contains(says), "{choice}: {error}");
        }
    }
}
