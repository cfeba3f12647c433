//! What a worker is to replay: a tensor list with times that stand in a given relation to what communication takes.

use std::path::{Path, PathBuf};

use paceline_cli::worlds::profile_fingerprint;
use paceline_plan::{Profile, ProfileTensor, Step};

use super::tensors::Model;
use crate::compare::Error;

/// A profile in a file, and what it was made for.
pub struct Workload {
    /// The computation.
    pub profile: Profile,
    /// Where it lies.
    pub path: PathBuf,
    /// Of the profile.
    pub fingerprint: String,
    /// What an all-reduce of all gradients takes at line rate, in seconds.
    pub line_s: f64,
}

/// Backward takes twice as long as forward: two products of matrices for each one of forward.
const BACKWARD_OVER_FORWARD: f64 = 2.0;
/// The optimiser, as a share of backward. It is slept through by everybody.
const UPDATE_SHARE: f64 = 0.01;
/// Of a frame on the wire so many bytes are payload: MTU 1500, TCP with time stamps.
const PAYLOAD: f64 = 1448.0 / 1514.0;

/// How long computation is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Computation {
    /// Backward takes so many times what an all-reduce of all gradients takes at line rate.
    Backward(f64),
    /// Forward and backward together do.
    Both(f64),
}

impl Workload {
    /// For `hosts` hosts whose NICs pass `bits_per_s`. Writes the profile into `folder`.
    pub fn make(
        model: Model,
        computation: Computation,
        hosts: usize,
        bits_per_s: f64,
        root: &Path,
        folder: &Path,
    ) -> Result<Workload, Error> {
        let tensors = model.tensors(root)?;
        let bytes = tensors.iter().map(|tensor| 4 * tensor.elements as u64).sum();
        let line_s = line_s(bytes, hosts, bits_per_s);
        let backward_s = match computation {
            Computation::Backward(times) => times * line_s,
            Computation::Both(times) => times * line_s * BACKWARD_OVER_FORWARD / (1.0 + BACKWARD_OVER_FORWARD),
        };
        let profile = profile(model.name(), tensors, backward_s);
        profile.check().map_err(|error| format!("{}: {error}", model.name()))?;
        let path = folder.join(format!("{}-{:.0}us.json", model.name(), backward_s * 1e6));
        let json = serde_json::to_string(&profile).map_err(|error| error.to_string())?;
        std::fs::write(&path, &json).map_err(|error| format!("{}: {error}", path.display()))?;
        let fingerprint = profile_fingerprint(&profile);
        Ok(Workload { profile, path, fingerprint, line_s })
    }

    /// Forward, backward and update.
    pub fn compute_s(&self) -> f64 {
        self.profile.forward_s() + self.profile.backward_s() + self.profile.update_s
    }
}

/// What moving 2(n-1)/n of the bytes out of and into every NIC takes.
pub fn line_s(bytes: u64, hosts: usize, bits_per_s: f64) -> f64 {
    let share = 2.0 * (hosts - 1) as f64 / hosts as f64;
    share * bytes as f64 * 8.0 / (bits_per_s * PAYLOAD)
}

/// Every tensor has a step as long as its multiply-accumulates; backward is the mirror image of forward. A tensor of
/// embeddings that is tied to the output stands at both ends: what it multiplies, it multiplies at the output.
fn profile(model: &str, tensors: Vec<ProfileTensor>, backward_s: f64) -> Profile {
    let total: u64 = tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum();
    let share = |tensor: usize| tensors[tensor].forward_macs_per_sample as f64 / total as f64;
    let tied = tensors.iter().position(|tensor| tensor.name.ends_with("word_embeddings.weight"));
    let mut order: Vec<(usize, f64)> =
        (0..tensors.len()).map(|tensor| (tensor, if tied == Some(tensor) { 0.0 } else { share(tensor) })).collect();
    order.extend(tied.map(|tensor| (tensor, share(tensor))));
    let step = |&(tensor, share): &(usize, f64), seconds: f64| Step { tensor, seconds: whole_ns(share * seconds) };
    Profile {
        schema: Profile::SCHEMA,
        model: model.to_owned(),
        device: "stretched".to_owned(),
        source: "shares by multiply-accumulates, forward : backward = 1 : 2".to_owned(),
        local_batch: 64,
        forward: order.iter().map(|entry| step(entry, backward_s / BACKWARD_OVER_FORWARD)).collect(),
        backward: order.iter().rev().map(|entry| step(entry, backward_s)).collect(),
        update_s: whole_ns(UPDATE_SHARE * backward_s),
        uncertainty: None,
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
        spread: None,
        tensors,
    }
}

/// Numbers with few digits are the same after they were written and read, whoever reads them.
fn whole_ns(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_as_long_as_asked_and_ends_with_the_tied_tensor() {
        let folder = std::env::temp_dir().join(format!("paceline-workload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let make = |model, computation| Workload::make(model, computation, 4, 1e9, &root, &folder).expect("it is made");
        let bert = make(Model::BertBase, Computation::Backward(1.0));
        let both = make(Model::ResNet50, Computation::Both(1.0));
        let read: Profile =
            serde_json::from_str(&std::fs::read_to_string(&bert.path).expect("a file")).expect("a profile");
        std::fs::remove_dir_all(&folder).expect("it is there");
        assert!((both.line_s - 1.5 * 102_228_128.0 * 8.0 / 1e9 * 1514.0 / 1448.0).abs() < 1e-9, "{}", both.line_s);
        let computed = both.profile.forward_s() + both.profile.backward_s();
        assert!((computed / both.line_s - 1.0).abs() < 1e-6);
        assert!((bert.profile.backward_s() / bert.line_s - 1.0).abs() < 1e-6);
        assert!((bert.profile.backward_s() / bert.profile.forward_s() - 2.0).abs() < 1e-6);
        let tied = bert.profile.ready_order().pop().expect("tensors");
        assert_eq!((tied, bert.profile.use_order()[0]), (0, 0));
        assert_eq!(read, bert.profile);
    }
}
