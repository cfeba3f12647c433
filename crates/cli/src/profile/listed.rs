//! A profile of a list of tensors and what one GPU trains.

use std::path::Path;

use paceline_plan::{Throughput, Updating};
use paceline_train::{OptimizerSettings, read_tensor_list};

use super::{Made, ProfileArguments, Stated, name_of};
use crate::failure::Failure;

/// What computes if nobody has said.
const SOME_GPU: &str = "gpu";

impl ProfileArguments {
    /// By the same rules as the profiles that are built in.
    pub(super) fn listed(&self, list: &Path, stated: Stated) -> Result<Made, Failure> {
        let tensors = read_tensor_list(list).map_err(Failure::usage)?;
        let name = self.model.clone().unwrap_or_else(|| name_of(list, &[".csv", "_tensors"]));
        let (model, device) = name.rsplit_once('@').unwrap_or((&*name, SOME_GPU));
        if model.is_empty() || device.is_empty() || device.contains(['=', ',', ':']) {
            let help = "give NAME, or NAME@GPU; what the GPU trains stands behind --samples-per-s";
            return Err(Failure::usage(format!("--model {name} names no model")).help(help));
        }
        let updating = match self.optimizer.unwrap_or_default() {
            OptimizerSettings::Sgd(_) => Updating::MomentumSgd,
            OptimizerSettings::AdamW(_) => Updating::AdamW,
        };
        let throughput = Throughput {
            model: model.to_owned(),
            device: device.to_owned(),
            // clap sees to it that it is given.
            local_batch: self.local_batch.unwrap_or_default(),
            samples_per_s: stated.samples_per_s,
            uncertainty: stated.uncertainty,
            updating,
        };
        let profile = throughput.profile(tensors);
        profile.map(Made::from).map_err(|error| Failure::usage(format!("{}: {error}", list.display())))
    }
}
