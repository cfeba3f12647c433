//! Every constant of a cluster under its name in the file: for checks, for the text, and for those who vary or fit them.

use super::{Cluster, Constant, LinkConstants};

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

/// The prefix of the constants that a model's name follows.
pub(super) const OVERHEADS: &str = "computation.overhead_s.";

/// About switches, and hosts that are in each other's way: of neither is there one within a host.
const OF_HOSTS: [&str; 3] = ["contention", "jitter_s", "hop_s"];

impl Cluster {
    /// Every constant with its name, such as `across.beta_s_per_byte` or `computation.overhead_s.resnet50`, in the order of
    /// the file.
    pub fn constants(&self) -> Vec<(String, Constant)> {
        let mut copy = self.clone();
        copy.all().into_iter().map(|(name, _, constant)| (name, *constant)).collect()
    }

    /// The constant of a name that [`Cluster::constants`] has.
    pub fn constant_mut(&mut self, name: &str) -> Option<&mut Constant> {
        self.all().into_iter().find(|(known, ..)| known == name).map(|(.., constant)| constant)
    }

    /// With what each may be.
    pub(super) fn all(&mut self) -> Vec<(String, Sort, &mut Constant)> {
        use Sort::{Amount, Difference, Share};
        let Cluster { within, across, combine_s_per_byte, operation, server, interference, computation, .. } = self;
        let mut all = vec![("combine_s_per_byte".to_owned(), Amount, combine_s_per_byte)];
        for (class, link) in [("within", within), ("across", across)] {
            let LinkConstants {
                alpha_s,
                overhead_s,
                beta_s_per_byte,
                contention,
                jitter_s,
                hop_s,
                incast_s_per_byte,
                ..
            } = link;
            let fields = [
                ("alpha_s", alpha_s),
                ("overhead_s", overhead_s),
                ("beta_s_per_byte", beta_s_per_byte),
                ("contention", contention),
                ("jitter_s", jitter_s),
                ("hop_s", hop_s),
                ("incast_s_per_byte", incast_s_per_byte),
            ];
            let fields = fields.into_iter().filter(|(name, _)| class == "across" || !OF_HOSTS.contains(name));
            all.extend(fields.map(|(name, constant)| (format!("{class}.{name}"), Amount, constant)));
        }
        let fields = [
            ("operation.start_s", Amount, &mut operation.start_s),
            ("operation.start_per_doubling_s", Amount, &mut operation.start_per_doubling_s),
            ("operation.overtaking_s", Amount, &mut operation.overtaking_s),
        ];
        all.extend(fields.map(|(name, sort, constant)| (name.to_owned(), sort, constant)));
        if let Some(small) = &mut operation.overtaking_small_s {
            all.push(("operation.overtaking_small_s".to_owned(), Amount, small));
        }
        let fields = [
            ("server.partition_s", Amount, &mut server.partition_s),
            ("server.local_partition_s", Amount, &mut server.local_partition_s),
            ("server.copy_s_per_byte", Amount, &mut server.copy_s_per_byte),
            ("server.duplex_loss", Share, &mut server.duplex_loss),
            ("server.combine_s_per_byte", Amount, &mut server.combine_s_per_byte),
        ];
        all.extend(fields.map(|(name, sort, constant)| (name.to_owned(), sort, constant)));
        if let Some(beta) = &mut server.beta_s_per_byte {
            all.push(("server.beta_s_per_byte".to_owned(), Amount, beta));
        }
        let fields = [
            ("interference.computation", Amount, &mut interference.computation),
            ("interference.communication", Amount, &mut interference.communication),
            ("computation.spread", Amount, &mut computation.spread),
        ];
        all.extend(fields.map(|(name, sort, constant)| (name.to_owned(), sort, constant)));
        let overheads = computation.overhead_s.iter_mut();
        all.extend(overheads.map(|(model, constant)| (format!("{OVERHEADS}{model}"), Difference, constant)));
        all
    }
}
