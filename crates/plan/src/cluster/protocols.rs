//! What a cluster costs over a protocol that a strategy names.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Cluster, InterferenceConstants, LinkConstants, OperationConstants, ServerConstants};

/// What is otherwise over a protocol that a strategy names. The cluster's own tables are what the runtime takes by itself
/// (`protocol=auto`): shared memory within a host, TCP between hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocols {
    /// Over shared memory alone, which hosts do not share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<ProtocolConstants>,
    /// Over TCP, also within a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<ProtocolConstants>,
}

/// Tables that stand instead of the cluster's own ones of the same names, each as a whole. None: the cluster's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProtocolConstants {
    /// [`Cluster::within`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<LinkConstants>,
    /// [`Cluster::across`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub across: Option<LinkConstants>,
    /// [`Cluster::operation`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationConstants>,
    /// [`Cluster::server`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerConstants>,
    /// [`Cluster::interference`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interference: Option<InterferenceConstants>,
}

/// In front of the names of their tables and constants.
pub(super) const PREFIX: &str = "protocols.";

impl Protocols {
    /// Shared memory, as a strategy names it.
    pub const MEMORY: &str = "shm";
    /// TCP, as a strategy names it.
    pub const TCP: &str = "tcp";

    /// Those of which something is known, by their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &ProtocolConstants)> {
        let all = [(Protocols::MEMORY, &self.shm), (Protocols::TCP, &self.tcp)];
        all.into_iter().filter_map(|(name, own)| Some((name, own.as_ref()?)))
    }

    /// The same, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut ProtocolConstants)> {
        let all = [(Protocols::MEMORY, &mut self.shm), (Protocols::TCP, &mut self.tcp)];
        all.into_iter().filter_map(|(name, own)| Some((name, own.as_mut()?)))
    }

    /// What is known of the protocol of a name.
    pub fn get(&self, name: &str) -> Option<&ProtocolConstants> {
        self.iter().find(|(known, _)| *known == name).map(|(_, own)| own)
    }

    /// Where that stands, whether anything is known or not. None: there is no such protocol, or it is `auto`.
    pub fn place(&mut self, name: &str) -> Option<&mut Option<ProtocolConstants>> {
        match name {
            Protocols::MEMORY => Some(&mut self.shm),
            Protocols::TCP => Some(&mut self.tcp),
            _ => None,
        }
    }

    /// Is nothing known of any?
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Forgets those of which nothing is left.
    pub(super) fn tidy(&mut self) {
        for own in [&mut self.shm, &mut self.tcp] {
            *own = own.take().filter(|own| *own != ProtocolConstants::default());
        }
    }
}

impl Cluster {
    /// The cluster as a strategy finds it that names a protocol: with that protocol's tables instead of its own, where it has
    /// such; else as it is.
    pub fn over(&self, protocol: &str) -> Cow<'_, Cluster> {
        let Some(own) = self.protocols.get(protocol) else { return Cow::Borrowed(self) };
        Cow::Owned(Cluster {
            within: own.within.as_ref().unwrap_or(&self.within).clone(),
            across: own.across.as_ref().unwrap_or(&self.across).clone(),
            operation: own.operation.unwrap_or(self.operation),
            server: own.server.unwrap_or(self.server),
            interference: own.interference.unwrap_or(self.interference),
            protocols: Protocols::default(),
            ..self.clone()
        })
    }

    /// The links of a table: of `within`, or of `protocols.tcp.within`.
    pub(super) fn links_of(&self, table: &str) -> Option<&LinkConstants> {
        match (of_protocol(table), table) {
            (Some((protocol, "within")), _) => self.protocols.get(protocol)?.within.as_ref(),
            (Some((protocol, "across")), _) => self.protocols.get(protocol)?.across.as_ref(),
            (None, "within") => Some(&self.within),
            (None, "across") => Some(&self.across),
            _ => None,
        }
    }

    /// The servers of a table: of `server`, or of `protocols.tcp.server`.
    pub(super) fn servers_of(&self, table: &str) -> Option<&ServerConstants> {
        match (of_protocol(table), table) {
            (Some((protocol, "server")), _) => self.protocols.get(protocol)?.server.as_ref(),
            (None, "server") => Some(&self.server),
            _ => None,
        }
    }
}

/// The protocol of a table or constant of one, and the name without it: `tcp` and `within.alpha_s`. None: the cluster's own.
pub(super) fn of_protocol(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PREFIX)?.split_once('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constant, NetworkModel};

    #[test]
    fn a_protocol_has_its_own_tables_and_the_clusters_others() {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
        cluster.operation.start_s = Constant::exact(1e-3);
        assert!(matches!(cluster.over("tcp"), Cow::Borrowed(_)), "nothing is known of it");
        let within = LinkConstants { alpha_s: Constant::exact(1e-4), ..cluster.within.clone() };
        let own = ProtocolConstants { within: Some(within.clone()), ..ProtocolConstants::default() };
        cluster.protocols.tcp = Some(own);
        let over = cluster.over("tcp").into_owned();
        assert_eq!((&over.within, &over.across, &over.operation), (&within, &cluster.across, &cluster.operation));
        assert!(over.protocols.is_empty() && *over.over("tcp") == over);
        assert!(matches!(cluster.over("auto"), Cow::Borrowed(_)) && matches!(cluster.over("shm"), Cow::Borrowed(_)));
        let own = cluster.protocols.place("tcp").and_then(Option::as_mut).expect("it is known");
        own.operation = Some(OperationConstants::default());
        assert_eq!(cluster.over("tcp").start_s(4), 0.0);
        assert_eq!(cluster.protocols.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["tcp"]);
        assert!(cluster.protocols.place("auto").is_none() && cluster.protocols.get("shm").is_none());
    }

    /// Whatever carries them.
    #[test]
    fn constants_are_scaled_over_every_protocol() {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
        let across = LinkConstants { alpha_s: Constant::exact(1e-3), ..cluster.across.clone() };
        cluster.protocols.tcp = Some(ProtocolConstants { across: Some(across), ..ProtocolConstants::default() });
        let before = cluster.clone();
        cluster.scale(&["across.alpha_s", "server.beta_s_per_byte"], 0.5);
        let halved = Constant::exact(before.across.alpha_s.value / 2.0);
        assert_eq!((cluster.across.alpha_s, cluster.over("tcp").across.alpha_s), (halved, Constant::exact(5e-4)));
        assert_eq!(cluster.within, before.within);
        // Nothing else has changed.
        cluster.scale(&["across.alpha_s"], 2.0);
        assert_eq!(cluster, before);
    }
}
