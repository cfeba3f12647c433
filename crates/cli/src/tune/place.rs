//! Where `paceline tune --simulate` learns: on a cluster with our communicator, or with NCCL.

use paceline_plan::Cluster;
use paceline_tune::environment::{CostModel, NcclModel, OwnModel};
use paceline_tune::nccl::Version;
use paceline_tune::{Policy, Tuner, nccl_policy, policy_file};

use super::nccl_table::{NcclArguments, WORLD, usage};
use crate::clusters::load_cluster;
use crate::failure::Failure;

/// What stands before a release of NCCL, in the place of a cluster's name.
const NCCL: &str = "nccl:";

/// Who makes the calls, and where.
pub enum Place {
    /// Our communicator.
    Own(Box<Cluster>),
    /// NCCL.
    Nccl(Box<NcclModel>),
}

impl Place {
    /// Does a name mean NCCL?
    pub fn is_nccl(name: &str) -> bool {
        name.starts_with(NCCL)
    }

    /// A cluster by name or from a file; `nccl:VERSION` with the communicator that the arguments describe.
    ///
    /// # Errors
    /// Wrong usage: there is no such cluster, release or communicator.
    pub fn named(name: &str, nccl: &NcclArguments) -> Result<Place, Failure> {
        let Some(version) = name.strip_prefix(NCCL) else { return Ok(Place::Own(Box::new(load_cluster(name)?))) };
        let model = version
            .parse::<Version>()
            .and_then(|version| NcclModel::new(version, nccl.communicator(WORLD)))
            .map_err(usage)?;
        Ok(Place::Nccl(Box::new(model)))
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match self {
            Place::Own(cluster) => cluster.name.clone(),
            Place::Nccl(model) => model.name(),
        }
    }

    /// Why what is learned there may not hold anywhere, in words. NCCL's model has constants of its own.
    pub fn doubt(&self) -> Option<String> {
        match self {
            Place::Own(cluster) => cluster.measurement_doubt(),
            Place::Nccl(_) => None,
        }
    }

    /// Hosts, and workers on each.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Place::Own(cluster) => (cluster.hosts, cluster.workers_per_host),
            Place::Nccl(model) => {
                let whole = model.communicator();
                (whole.hosts as usize, whole.ranks_per_host() as usize)
            }
        }
    }

    /// What is believed of calls there.
    pub fn model(&self) -> Box<dyn CostModel> {
        match self {
            Place::Own(cluster) => Box::new(OwnModel::of(cluster)),
            Place::Nccl(model) => model.clone(),
        }
    }

    /// What was decided, as whoever makes the calls reads it.
    pub fn written(&self, policy: &Policy, tuner: &Tuner) -> String {
        match self {
            Place::Own(_) => policy_file::write(policy),
            Place::Nccl(model) => nccl_policy::write(policy, tuner.courses().map(|(context, _)| context), model),
        }
    }
}
