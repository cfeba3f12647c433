//! Profiles of the study's models on one RTX 2080 Ti: Shi et al., "Communication-efficient distributed deep learning: a
//! comprehensive survey" (arXiv 2005.13247), whose single-GPU throughputs give the time of an iteration.
//!
//! What an iteration consists of, and what of it is the optimiser's: as of any other throughput ([`Throughput`]).
//!
//! [`Throughput`]: crate::Throughput

use crate::derived::{DEVICE, Updating, steps};
use crate::scale::{GIVEN_UNCERTAINTY, device_memory_bytes};
use crate::{MemoryNeed, Profile, ProfileTensor};

/// The names of the built-in profiles.
pub const BUILT_IN_PROFILES: [&str; 3] = ["resnet50@rtx2080ti", "bert-base@rtx2080ti", "bert-large@rtx2080ti"];

/// The training images of ImageNet-1k (ILSVRC 2012), for which ResNet-50 was made. What BERT is trained on differs from user
/// to user.
const IMAGENET_SAMPLES: usize = 1_281_167;

/// Parameter and gradient, and momentum's velocity or AdamW's two moments; four bytes each.
const SGD_BYTES_PER_PARAMETER: u64 = 12;
const ADAMW_BYTES_PER_PARAMETER: u64 = 16;

/// A built-in profile by its name, with or without the device: `resnet50@rtx2080ti`, `bert-base`. None if there is no
/// such profile.
pub fn built_in_profile(name: &str) -> Option<Profile> {
    let model = match name.split_once('@') {
        Some((model, DEVICE)) => model,
        None => name,
        Some(_) => return None,
    };
    match model {
        "resnet50" => {
            let tensors = table(include_str!("../../../data/resnet50_tensors.csv"));
            let forward = (0..tensors.len()).collect();
            let memory = memory(&tensors, SGD_BYTES_PER_PARAMETER, convolutions_bytes(&tensors));
            let profile = profile(model, 64, 253.1, Updating::MomentumSgd, tensors, forward);
            Some(Profile { epoch_samples: Some(IMAGENET_SAMPLES), memory, ..profile })
        }
        "bert-base" => Some(bert(model, 64, 212.8, include_str!("../../../data/bert_base_tensors.csv"))),
        "bert-large" => Some(bert(model, 8, 49.0, include_str!("../../../data/bert_large_tensors.csv"))),
        _ => None,
    }
}

/// The embedding of tokens is used twice: to look tokens up, which is no arithmetic, and as the last layer of the head that
/// predicts them, between that head's normalisation and its bias.
fn bert(model: &str, batch: usize, samples_per_s: f64, csv: &str) -> Profile {
    let tensors = table(csv);
    let position = |name: &str| tensors.iter().position(|tensor| tensor.name == name).unwrap_or(0);
    let (bias, embedding) = (position("cls.predictions.bias"), position("bert.embeddings.word_embeddings.weight"));
    let follows = position("cls.seq_relationship.weight");
    let mut forward: Vec<usize> = (0..bias).chain(bias + 1..follows).collect();
    forward.extend([embedding, bias]);
    forward.extend(follows..tensors.len());
    let memory = memory(&tensors, ADAMW_BYTES_PER_PARAMETER, transformer_bytes(&tensors[embedding], &tensors));
    Profile { memory, ..profile(model, batch, samples_per_s, Updating::AdamW, tensors, forward) }
}

/// Counted, and not measured: without the program, temporary tensors, and what allocators keep, for which a part of the device's
/// memory is set aside.
fn memory(tensors: &[ProfileTensor], bytes_per_parameter: u64, bytes_per_sample: u64) -> Option<MemoryNeed> {
    let parameters: u64 = tensors.iter().map(|tensor| tensor.elements as u64).sum();
    let available_bytes = device_memory_bytes(DEVICE);
    Some(MemoryNeed { fixed_bytes: parameters * bytes_per_parameter, bytes_per_sample, available_bytes })
}

/// What is kept of a sample for backward by convolutions whose normalisation follows: their outputs, which the normalisation
/// needs, and as many numbers after it, which the next one does; the activation works in place. (ResNet-50's outputs are the
/// 11.1 million activations of Radosavovic et al., "Designing network design spaces", CVPR 2020.)
fn convolutions_bytes(tensors: &[ProfileTensor]) -> u64 {
    let output = |pair: &[ProfileTensor]| {
        let places = pair[0].forward_macs_per_sample / pair[0].elements as u64;
        places * pair[1].elements as u64
    };
    2 * 4 * tensors.windows(2).map(output).sum::<u64>()
}

/// The same of layers of a transformer of h numbers, a heads and s tokens: 66·s·h + 9·a·s² bytes each, which is
/// s·h·(34 + 5·a·s/h) of Korthikanti et al. ("Reducing activation recomputation in large transformer models", MLSys 2023, §4.1)
/// where what has two bytes there has four, and masks have one; and twice what the head says of each token.
fn transformer_bytes(embedding: &ProfileTensor, tensors: &[ProfileTensor]) -> u64 {
    let queries: Vec<&ProfileTensor> =
        tensors.iter().filter(|tensor| tensor.name.ends_with("attention.self.query.weight")).collect();
    let layers = queries.iter().map(|query| {
        let (width, tokens) = (query.elements.isqrt() as u64, query.forward_macs_per_sample / query.elements as u64);
        66 * tokens * width + 9 * (width / HEAD_WIDTH) * tokens * tokens
    });
    let width = queries.first().map_or(1, |query| query.elements.isqrt() as u64);
    layers.sum::<u64>() + 2 * 4 * embedding.forward_macs_per_sample / width
}

/// Of a head of attention: Devlin et al., "BERT" (2019), 12 heads of 768 numbers, 16 of 1024.
const HEAD_WIDTH: u64 = 64;

/// Name, elements and multiply-accumulates from the lines of a table: `index,name,numel,bytes_fp32,fwd_macs_per_sample`.
fn table(csv: &str) -> Vec<ProfileTensor> {
    let row = |line: &str| {
        let mut columns = line.split(',').skip(1);
        let name = columns.next()?.to_owned();
        let elements = columns.next()?.parse().ok()?;
        let forward_macs_per_sample = columns.nth(1)?.parse().ok()?;
        Some(ProfileTensor { name, elements, forward_macs_per_sample })
    };
    csv.lines().skip(1).filter_map(row).collect()
}

/// `forward` names the tensors in the order of execution.
fn profile(
    model: &str,
    local_batch: usize,
    samples_per_s: f64,
    updating: Updating,
    tensors: Vec<ProfileTensor>,
    forward: Vec<usize>,
) -> Profile {
    let update_s = updating.seconds(tensors.iter().map(|tensor| tensor.elements).sum());
    let [forward, backward] = steps(&tensors, &forward, (local_batch as f64 / samples_per_s - update_s) / 3.0);
    let source = format!(
        "derived: {samples_per_s} samples/s on one GPU (arXiv 2005.13247), forward : backward = 1 : 2, tensors by \
         multiply-accumulates"
    );
    Profile {
        schema: Profile::SCHEMA,
        model: model.into(),
        device: DEVICE.into(),
        source,
        local_batch,
        tensors,
        forward,
        backward,
        update_s,
        // A throughput that was published without one, of a device of this name somewhere else.
        uncertainty: Some(GIVEN_UNCERTAINTY),
        // Whoever knows the layers counts it.
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
        spread: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_takes_what_the_study_measured() {
        let cells = [("resnet50", 64, 253.1, 161), ("bert-base", 64, 212.8, 206), ("bert-large", 8, 49.0, 398)];
        for ((model, batch, samples_per_s, tensors), name) in cells.into_iter().zip(BUILT_IN_PROFILES) {
            let profile = built_in_profile(name).unwrap();
            assert_eq!(profile.check(), Ok(()), "{name}");
            assert_eq!((&*profile.model, profile.local_batch, profile.tensors.len()), (model, batch, tensors));
            assert_eq!(built_in_profile(model).as_ref(), Some(&profile));
            let iteration_s = profile.forward_s() + profile.backward_s() + profile.update_s;
            assert!((batch as f64 / iteration_s / samples_per_s - 1.0).abs() < 1e-9, "{name}: {iteration_s}");
            assert!((profile.backward_s() / profile.forward_s() - 2.0).abs() < 1e-9);
        }
        assert!(["resnet50@v100", "resnet", "", "@rtx2080ti"].iter().all(|name| built_in_profile(name).is_none()));
    }

    /// Parameters, gradients and optimiser, and what is kept of a sample: as much as the literature counts. The study's batches
    /// fit in the 11 GB of its device.
    #[test]
    fn memory_is_counted() {
        let need = |name| built_in_profile(name).unwrap().memory.unwrap();
        let resnet = need("resnet50");
        assert_eq!(resnet.fixed_bytes, 12 * 25_557_032);
        assert!((resnet.bytes_per_sample as f64 / (8.0 * 11.1e6) - 1.0).abs() < 0.01, "{resnet:?}");
        let bert = need("bert-base");
        assert_eq!(bert.fixed_bytes, 16 * built_in_profile("bert-base").unwrap().parameters() as u64);
        // 12 layers of 768 numbers and 12 heads, 64 tokens; a vocabulary of 30,528.
        assert_eq!(bert.bytes_per_sample, 12 * (66 * 64 * 768 + 9 * 12 * 64 * 64) + 8 * 64 * 30_528);
        for (name, batch) in [("resnet50", 64), ("bert-base", 64), ("bert-large", 8)] {
            assert!(need(name).largest_local_batch() >= Some(batch), "{name}: {:?}", need(name));
        }
    }

    /// Why AdamW takes the time that it takes.
    #[test]
    fn both_berts_compute_at_one_rate() {
        let rate = |name| {
            let profile = built_in_profile(name).unwrap();
            let macs: u64 = profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum();
            2.0 * macs as f64 * profile.local_batch as f64 / profile.forward_s()
        };
        let (base, large) = (rate("bert-base"), rate("bert-large"));
        assert!((base / large - 1.0).abs() < 0.01 && (base / 9.47e12 - 1.0).abs() < 0.01, "{base}, {large}");
    }

    #[test]
    fn a_tied_embedding_is_needed_first_and_final_last() {
        for name in ["bert-base", "bert-large"] {
            let profile = built_in_profile(name).unwrap();
            assert_eq!((profile.use_order()[0], *profile.ready_order().last().unwrap()), (0, 0), "{name}");
            // It is the decoder's weight, too: near the end of forward, and there its arithmetic is.
            let decoder = profile.forward.iter().rposition(|step| step.tensor == 0).unwrap();
            assert_eq!(profile.tensors[profile.forward[decoder + 1].tensor].name, "cls.predictions.bias");
            assert_eq!(
                profile.tensors[profile.forward[decoder - 1].tensor].name,
                "cls.predictions.transform.LayerNorm.bias"
            );
            assert!(profile.forward[decoder].seconds > 0.0 && profile.forward[0].seconds == 0.0);
            assert_eq!(profile.forward.len(), profile.tensors.len() + 1);
        }
    }
}
