//! Every constant of a cluster under its name in the file: for checks, for the text, and for those who vary or fit them.

use super::protocols::{PREFIX, of_protocol};
use super::{
    Cluster, Constant, InterferenceConstants, LinkConstants, OperationConstants, ProtocolConstants, ServerConstants,
};
use crate::LinkCosts;

/// What a constant may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Not negative.
    Amount,
    /// From 0 to 1.
    Share,
    /// Any number.
    Difference,
}

/// A constant with its name, and what it may be.
type Named<'a> = (String, Sort, &'a mut Constant);

/// The prefix of the constants that a model's name follows.
pub(super) const OVERHEADS: &str = "computation.overhead_s.";

/// About switches, and hosts that are in each other's way: of neither is there one within a host.
const OF_HOSTS: [&str; 3] = ["contention", "jitter_s", "hop_s"];

impl Cluster {
    /// Every constant with its name, such as `across.beta_s_per_byte`, `computation.overhead_s.resnet50` or
    /// `protocols.tcp.within.alpha_s`, in the order of the file.
    pub fn constants(&self) -> Vec<(String, Constant)> {
        let mut copy = self.clone();
        copy.all().into_iter().map(|(name, _, constant)| (name, *constant)).collect()
    }

    /// The constant of a name that [`Cluster::constants`] has.
    pub fn constant_mut(&mut self, name: &str) -> Option<&mut Constant> {
        self.all().into_iter().find(|(known, ..)| known == name).map(|(.., constant)| constant)
    }

    /// Takes the constants of these names so many times, and those of the same names over each protocol. What has no such name, or is
    /// not there, stays. What ranks have agreed on goes along.
    pub fn scale(&mut self, names: &[&str], factor: f64) {
        if let Some(agreed) = &mut self.agreed {
            let LinkCosts { within, across, contention, contention_within, .. } = agreed;
            for (name, value) in [
                ("within.alpha_s", &mut within.alpha),
                ("within.overhead_s", &mut within.overhead),
                ("within.beta_s_per_byte", &mut within.beta),
                ("within.incast_s_per_byte", contention_within),
                ("across.alpha_s", &mut across.alpha),
                ("across.overhead_s", &mut across.overhead),
                ("across.beta_s_per_byte", &mut across.beta),
                ("across.incast_s_per_byte", contention),
            ] {
                *value *= if names.contains(&name) { factor } else { 1.0 };
            }
        }
        for (name, _, constant) in self.all() {
            let own = of_protocol(&name).map_or(&*name, |(_, own)| own);
            if names.contains(&own) {
                *constant = constant.times(factor);
            }
        }
    }

    /// With what each may be.
    pub(super) fn all(&mut self) -> Vec<Named<'_>> {
        use Sort::{Amount, Difference};
        let Cluster {
            within, across, combine_s_per_byte, operation, server, interference, computation, protocols, ..
        } = self;
        let mut all = vec![("combine_s_per_byte".to_owned(), Amount, combine_s_per_byte)];
        all.extend(of_links("within", within));
        all.extend(of_links("across", across));
        all.extend(of_operations("operation", operation));
        all.extend(of_servers("server", server));
        all.extend(of_interference("interference", interference));
        all.push(("computation.spread".to_owned(), Amount, &mut computation.spread));
        let overheads = computation.overhead_s.iter_mut();
        all.extend(overheads.map(|(model, constant)| (format!("{OVERHEADS}{model}"), Difference, constant)));
        for (protocol, own) in protocols.iter_mut() {
            all.extend(over_protocol(protocol, own));
        }
        all
    }
}

/// Those of the tables that a protocol has.
fn over_protocol<'a>(protocol: &str, own: &'a mut ProtocolConstants) -> Vec<Named<'a>> {
    let ProtocolConstants { within, across, operation, server, interference } = own;
    let table = |name: &str| format!("{PREFIX}{protocol}.{name}");
    let mut all = Vec::new();
    all.extend(within.iter_mut().flat_map(|link| of_links(&table("within"), link)));
    all.extend(across.iter_mut().flat_map(|link| of_links(&table("across"), link)));
    all.extend(operation.iter_mut().flat_map(|operation| of_operations(&table("operation"), operation)));
    all.extend(server.iter_mut().flat_map(|server| of_servers(&table("server"), server)));
    all.extend(interference.iter_mut().flat_map(|costs| of_interference(&table("interference"), costs)));
    all
}

fn of_links<'a>(table: &str, link: &'a mut LinkConstants) -> Vec<Named<'a>> {
    let LinkConstants { alpha_s, overhead_s, beta_s_per_byte, contention, jitter_s, hop_s, incast_s_per_byte, .. } =
        link;
    let fields = [
        ("alpha_s", alpha_s),
        ("overhead_s", overhead_s),
        ("beta_s_per_byte", beta_s_per_byte),
        ("contention", contention),
        ("jitter_s", jitter_s),
        ("hop_s", hop_s),
        ("incast_s_per_byte", incast_s_per_byte),
    ];
    let fields = fields.into_iter().filter(|(name, _)| table.ends_with("across") || !OF_HOSTS.contains(name));
    fields.map(|(name, constant)| (format!("{table}.{name}"), Sort::Amount, constant)).collect()
}

fn of_operations<'a>(table: &str, operation: &'a mut OperationConstants) -> Vec<Named<'a>> {
    let OperationConstants { start_s, start_per_doubling_s, overtaking_s, overtaking_small_s } = operation;
    let fields = [("start_s", start_s), ("start_per_doubling_s", start_per_doubling_s), ("overtaking_s", overtaking_s)];
    let small = overtaking_small_s.iter_mut().map(|small| ("overtaking_small_s", small));
    fields
        .into_iter()
        .chain(small)
        .map(|(name, constant)| (format!("{table}.{name}"), Sort::Amount, constant))
        .collect()
}

fn of_servers<'a>(table: &str, server: &'a mut ServerConstants) -> Vec<Named<'a>> {
    use Sort::{Amount, Share};
    let fields = [
        ("partition_s", Amount, &mut server.partition_s),
        ("local_partition_s", Amount, &mut server.local_partition_s),
        ("copy_s_per_byte", Amount, &mut server.copy_s_per_byte),
        ("duplex_loss", Share, &mut server.duplex_loss),
        ("combine_s_per_byte", Amount, &mut server.combine_s_per_byte),
    ];
    let beta = server.beta_s_per_byte.iter_mut().map(|beta| ("beta_s_per_byte", Amount, beta));
    let share = server.dedicated_share.iter_mut().map(|share| ("dedicated_share", Share, share));
    let connection = server.connection_s_per_byte.iter_mut().map(|beta| ("connection_s_per_byte", Amount, beta));
    fields
        .into_iter()
        .chain(beta)
        .chain(share)
        .chain(connection)
        .map(|(name, sort, constant)| (format!("{table}.{name}"), sort, constant))
        .collect()
}

fn of_interference<'a>(table: &str, interference: &'a mut InterferenceConstants) -> Vec<Named<'a>> {
    let InterferenceConstants { computation, communication } = interference;
    let fields = [("computation", computation), ("communication", communication)];
    fields.into_iter().map(|(name, constant)| (format!("{table}.{name}"), Sort::Amount, constant)).collect()
}
