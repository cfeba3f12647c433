//! Clusters that differ in their network only, in one file: what a study ran on.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use serde::de::IgnoredAny;

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
const ALL: &str = "*";

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
        networks.values().try_for_each(Cluster::check)?;
        Ok(ClusterSet { networks })
    }

    /// The cluster with this network, in any case.
    pub fn of(&self, network: &str) -> Option<&Cluster> {
        let named = self.networks.iter().find(|(name, _)| name.eq_ignore_ascii_case(network));
        named.map(|(_, cluster)| cluster).or_else(|| self.networks.get(ALL))
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
    use super::super::UnlikeWorkers;
    use super::*;

    #[test]
    fn one_cluster_is_that_of_every_network() {
        let cluster = Cluster::named("study-10gbe").unwrap();
        let set = ClusterSet::from_toml(&cluster.to_toml()).unwrap();
        assert_eq!(set.of("anything"), Some(&cluster));
        assert_eq!(set.to_toml(), cluster.to_toml());
    }

    #[test]
    fn lists_stay_with_their_cluster() {
        let mut cluster = Cluster::named("study-10gbe").unwrap();
        cluster.unlike = vec![UnlikeWorkers { ranks: vec![1, 2], slower: 1.5 }];
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
}
