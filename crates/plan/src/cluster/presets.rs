//! Clusters by name: those that were measured by others, and those made of links that one can buy.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Cluster, ClusterError, ComputationConstants, Constant, InterferenceConstants, LinkConstants, OperationConstants,
    Protocols, ServerConstants,
};

/// The names of the clusters that are built in, besides those made of links.
pub const BUILT_IN_CLUSTERS: [&str; 4] = ["study-10gbe", "study-100gbe", "study-100gbib", "4xv100-nvlink"];

const CLUSTERS: [&str; 4] = [
    include_str!("../../../../data/clusters/study-10gbe.toml"),
    include_str!("../../../../data/clusters/study-100gbe.toml"),
    include_str!("../../../../data/clusters/study-100gbib.toml"),
    include_str!("../../../../data/clusters/4xv100-nvlink.toml"),
];

const LINKS: &str = include_str!("../../../../data/clusters/links.toml");

/// Hosts and workers on each, of clusters made of links, unless they are named.
const HOSTS: usize = 64;
const WORKERS_PER_HOST: usize = 8;

/// `data/clusters/links.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Presets {
    /// Says of the rest where it comes from.
    source: String,
    operation: OperationConstants,
    server: ServerConstants,
    interference: InterferenceConstants,
    computation: ComputationConstants,
    link: BTreeMap<String, Preset>,
}

/// Links that one can buy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    place: Place,
    /// What the standard or the maker says of one direction of a port.
    nominal_bytes_per_s: f64,
    /// The share of it that carries payload.
    payload_share: Constant,
    alpha_s: Constant,
    #[serde(default)]
    overhead_s: Constant,
    source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Within,
    Across,
}

impl Cluster {
    /// The cluster of a name, in any case: one of [`BUILT_IN_CLUSTERS`]; or links across hosts and within them, such as
    /// `25gbe+pcie4`, or only one of the two, which makes one worker on each host, or one host. `:HOSTSxWORKERS` behind it
    /// says how many hosts there are, and workers on each: `25gbe+pcie4:8x4`.
    ///
    /// # Errors
    /// [`ClusterError::Unknown`]; of senseless numbers, [`ClusterError::Field`].
    pub fn named(name: &str) -> Result<Cluster, ClusterError> {
        let lower = name.trim().to_lowercase();
        let (base, size) = lower.split_once(':').map_or((&*lower, None), |(base, size)| (base, Some(size)));
        let cluster = match BUILT_IN_CLUSTERS.iter().position(|known| *known == base) {
            Some(index) => Cluster::from_toml(CLUSTERS[index])?,
            None => of_links(base).ok_or_else(|| unknown(name))?,
        };
        if let Some(size) = size {
            let (hosts, workers_per_host) = hosts_and_workers(size).ok_or_else(|| unknown(name))?;
            return cluster.sized(hosts, workers_per_host);
        }
        cluster.check()?;
        Ok(cluster)
    }

    /// The same cluster with other hosts, servers' ones in proportion, and other workers on each. Its constants stay those that were
    /// measured on the hosts that it had.
    pub(super) fn sized(&self, hosts: usize, workers_per_host: usize) -> Result<Cluster, ClusterError> {
        let name = format!("{}:{hosts}x{workers_per_host}", self.name);
        let measured = self.measured.map(|range| range.of_size(self));
        let mut cluster = Cluster { name, workers_per_host, measured, ..self.clone() };
        cluster.set_hosts(hosts);
        cluster.check()?;
        Ok(cluster)
    }

    /// The same cluster with other links: those of this name, in any case, within its hosts or between them.
    ///
    /// # Errors
    /// [`ClusterError::UnknownLink`].
    pub fn with_link(&self, name: &str) -> Result<Cluster, ClusterError> {
        let lower = name.trim().to_lowercase();
        let Presets { server, mut link, .. } = presets();
        let preset = link.remove(&lower).ok_or_else(|| ClusterError::UnknownLink {
            name: name.to_owned(),
            links: Cluster::link_names().join(", "),
        })?;
        let mut cluster = self.clone();
        cluster.name = format!("{} with {lower}", self.name);
        cluster.source = format!("{}; {lower}: {}", self.source, preset.source);
        cluster.set_link(&preset);
        if preset.place == Place::Across {
            // What was fitted to the old links, or measured on them, says nothing of these.
            let of_protocols = cluster.protocols.iter_mut().filter_map(|(_, own)| own.server.as_mut());
            for own in of_protocols.chain([&mut cluster.server]) {
                (own.duplex_loss, own.connection_s_per_byte) = (server.duplex_loss, None);
                own.dedicated_share = own.dedicated_share.or(server.dedicated_share);
            }
            let of_protocols = cluster.protocols.iter_mut().filter_map(|(_, own)| own.operation.as_mut());
            for operation in of_protocols.chain([&mut cluster.operation]) {
                operation.overtaking_s = Constant::ZERO;
                operation.overtaking_small_s = None;
            }
        }
        cluster.check()?;
        Ok(cluster)
    }

    /// The names of the links that are built in.
    pub fn link_names() -> Vec<String> {
        presets().link.into_keys().collect()
    }

    /// Whatever the protocol.
    fn set_link(&mut self, preset: &Preset) {
        self.agreed = None;
        let protocols = self.protocols.iter_mut().map(|(_, own)| own);
        match preset.place {
            Place::Within => {
                self.within = preset.constants();
                protocols.for_each(|own| own.within = None);
            }
            Place::Across => {
                self.across = preset.constants();
                // A server's connections are those of the new links.
                self.server.beta_s_per_byte = None;
                for own in protocols {
                    own.across = None;
                    if let Some(server) = &mut own.server {
                        server.beta_s_per_byte = None;
                    }
                }
            }
        }
        self.protocols.tidy();
    }
}

/// `8x4`: eight hosts with four workers each.
pub(super) fn hosts_and_workers(text: &str) -> Option<(usize, usize)> {
    let (hosts, workers) = text.split_once('x')?;
    Some((hosts.parse().ok()?, workers.parse().ok()?))
}

/// `25gbe+pcie4`, `25gbe`, `pcie4`: at most one of each place.
fn of_links(text: &str) -> Option<Cluster> {
    let Presets { source, operation, server, interference, computation, mut link } = presets();
    let named = text.split('+').map(|name| Some((name.trim(), link.remove(name.trim())?)));
    let named: Vec<(&str, Preset)> = named.collect::<Option<_>>()?;
    let count = |place: Place| named.iter().filter(|(_, preset)| preset.place == place).count();
    let (within, across) = (count(Place::Within), count(Place::Across));
    if within > 1 || across > 1 {
        return None;
    }
    let sources = named.iter().map(|(name, preset)| format!("{name}: {}", preset.source));
    let mut cluster = Cluster {
        schema: Cluster::SCHEMA,
        name: text.to_owned(),
        source: sources.chain([source]).collect::<Vec<_>>().join("; "),
        hosts: if across == 1 { HOSTS } else { 1 },
        workers_per_host: if within == 1 { WORKERS_PER_HOST } else { 1 },
        server_hosts: 0,
        topology: super::flat(),
        within: LinkConstants::default(),
        across: LinkConstants::default(),
        combine_s_per_byte: Constant::ZERO,
        operation,
        server,
        interference,
        computation,
        protocols: Protocols::default(),
        unlike: Vec::new(),
        measured: None,
        agreed: None,
        device: None,
        price_per_host_hour: None,
    };
    named.iter().for_each(|(_, preset)| cluster.set_link(preset));
    Some(cluster)
}

/// The links, as this crate has them.
fn presets() -> Presets {
    toml::from_str(LINKS).expect("it is part of this program, and a test reads it")
}

fn unknown(name: &str) -> ClusterError {
    ClusterError::Unknown {
        name: name.to_owned(),
        clusters: BUILT_IN_CLUSTERS.join(", "),
        links: Cluster::link_names().join(", "),
    }
}

impl Preset {
    fn constants(&self) -> LinkConstants {
        let beta = |share: f64| 1.0 / (self.nominal_bytes_per_s * share);
        let Constant { value, low, high } = self.payload_share;
        LinkConstants {
            alpha_s: self.alpha_s,
            overhead_s: self.overhead_s,
            beta_s_per_byte: Constant::between(beta(value), beta(high), beta(low)),
            ..LinkConstants::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ProtocolConstants;
    use super::*;

    #[test]
    fn every_preset_carries_less_than_its_nominal_rate() {
        let presets = presets();
        let ethernet = ["1gbe", "10gbe", "25gbe", "100gbe", "roce", "hdr"];
        let within = ["pcie3", "pcie4", "pcie5", "nvlink2", "nvlink3", "nvlink4", "nvswitch"];
        for name in ethernet.into_iter().chain(within) {
            assert!(presets.link.contains_key(name), "no {name} in {:?}", presets.link.keys());
        }
        for (name, preset) in &presets.link {
            let Constant { value, low, high } = preset.payload_share;
            assert!(0.0 < low && low < value && value < high && high <= 1.0, "{name}: {low}, {value}, {high}");
            assert!(preset.nominal_bytes_per_s >= 1e8 && !preset.source.is_empty(), "{name}");
            let beta = preset.constants().beta_s_per_byte;
            assert!((beta.value * preset.nominal_bytes_per_s * value - 1.0).abs() < 1e-12, "{name}");
            Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn links_combine_to_clusters() {
        let cluster = Cluster::named("25GbE+PCIe4:8x4").unwrap();
        assert_eq!((cluster.hosts, cluster.workers_per_host, &*cluster.name), (8, 4, "25gbe+pcie4:8x4"));
        let [across, within] = ["25gbe", "pcie4"].map(|name| Cluster::named(name).unwrap());
        assert_eq!((&cluster.across, &cluster.within), (&across.across, &within.within));
        assert_eq!((across.workers_per_host, within.hosts), (1, 1));
        assert_eq!(Cluster::named("pcie4+25gbe:8x4").unwrap().within, within.within);
        assert!(cluster.source.contains("25gbe: ") && cluster.source.contains("pcie4: "), "{}", cluster.source);
        let scaled = Cluster::named("study-10gbe:16x4").unwrap();
        assert_eq!((scaled.hosts, scaled.name.as_str()), (16, "study-10gbe:16x4"));
        assert_eq!(scaled.server_hosts, 16, "as many as have workers, as in the file");
        let faster = scaled.with_link("100GbE").unwrap();
        assert!(faster.across.beta_s_per_byte.value < scaled.across.beta_s_per_byte.value);
        assert_eq!((&faster.within, faster.server.beta_s_per_byte), (&scaled.within, None));
        // What the old links lost is not what the new ones lose.
        assert_eq!(faster.server.duplex_loss, presets().server.duplex_loss);
        assert_ne!(faster.server.duplex_loss, scaled.server.duplex_loss);
        let measured = Constant::exact(1e-3);
        let mut overtaken = scaled.clone();
        (overtaken.operation.overtaking_s, overtaken.operation.overtaking_small_s) = (measured, Some(measured));
        let [network, inside] = ["100gbe", "nvlink3"].map(|name| overtaken.with_link(name).unwrap().operation);
        assert_eq!((network.overtaking_s, network.overtaking_small_s), (Constant::ZERO, None));
        assert_eq!(inside, overtaken.operation);
    }

    /// The old ones over a protocol are gone as well.
    #[test]
    fn new_links_are_those_of_every_protocol() {
        let mut cluster = Cluster::named("25gbe+pcie4:8x4").unwrap();
        let own = ProtocolConstants {
            within: Some(cluster.within.clone()),
            across: Some(cluster.across.clone()),
            ..ProtocolConstants::default()
        };
        cluster.protocols.tcp = Some(own.clone());
        let faster = cluster.with_link("100GbE").unwrap();
        assert_eq!(faster.protocols.tcp, Some(ProtocolConstants { across: None, ..own }));
        assert_eq!(faster.over("tcp").across, faster.across);
        // Nothing is left that would tell it apart.
        assert!(faster.with_link("nvlink4").unwrap().protocols.is_empty());
        let server = ServerConstants { beta_s_per_byte: Some(Constant::exact(1e-9)), ..ServerConstants::default() };
        let operation = OperationConstants { overtaking_s: Constant::exact(1e-3), ..OperationConstants::default() };
        let (server, operation) = (Some(server), Some(operation));
        cluster.protocols.tcp = Some(ProtocolConstants { server, operation, ..ProtocolConstants::default() });
        let changed = cluster.with_link("100gbe").unwrap();
        let own = changed.protocols.get("tcp").unwrap();
        assert_eq!(own.operation, Some(OperationConstants::default()));
        assert_eq!(own.server.map(|server| server.beta_s_per_byte), Some(None));
    }

    #[test]
    fn what_has_no_name_is_refused_with_those_that_there_are() {
        for name in ["", "+", "study", "25gbe+", "25gbe+10gbe", "pcie3+pcie4", "25gbe:8", "25gbe:x", "25gbe+pcie4+hdr"]
        {
            let error = Cluster::named(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{name}` is no cluster that is built in")), "{error}");
            assert!(error.contains("study-10gbe") && error.contains("nvlink4"), "{error}");
        }
        let error = Cluster::named("25gbe+pcie4:0x4").unwrap_err().to_string();
        assert!(error.contains("hosts is 0"), "{error}");
        // A cluster is no link.
        for name in ["token-ring", "study-100gbe", "25gbe+pcie4"] {
            let error = Cluster::named("25gbe").unwrap().with_link(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("no link has the name `{name}`; links are 100gbe, 10gbe, ")), "{error}");
        }
    }
}
