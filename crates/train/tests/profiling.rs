//! Real models are profiled.

mod support;

use std::time::Instant;

use paceline_plan::Profile;
use paceline_train::{
    Data, DataSource, Length, MeasuredProfile, ModelName, OptimizerSettings, ProfileOptions, load_profile,
    profile_model,
};
use support::Directory;

fn options(local_batch: usize) -> ProfileOptions {
    ProfileOptions { local_batch, warm_up: 2, length: Length::Iterations(8), ..ProfileOptions::default() }
}

fn measured(model: ModelName, options: &ProfileOptions) -> MeasuredProfile {
    let data = Data::load(&DataSource::Sample, model.form()).unwrap();
    let mut backend = model.build(&data.training, 1).unwrap();
    let mut told = Vec::new();
    let measured =
        profile_model(model.name(), backend.as_mut(), &data.training, options, &mut |seconds| told.push(seconds.len()));
    let measured = measured.unwrap();
    assert_eq!(told, (0..=measured.seconds.len()).collect::<Vec<_>>());
    measured
}

fn name(profile: &Profile, tensor: usize) -> &str {
    &profile.tensors[tensor].name
}

#[test]
fn a_perceptron_comes_to_its_layers_forwards_and_then_backwards() {
    let MeasuredProfile { profile, seconds } = measured(ModelName::Mlp, &options(16));
    assert_eq!((seconds.len(), profile.local_batch, &*profile.model, profile.parameters()), (8, 16, "mlp", 101_770));
    assert_eq!(profile.check(), Ok(()));
    let names = |order: Vec<usize>| order.into_iter().map(|tensor| name(&profile, tensor)).collect::<Vec<_>>();
    let forwards = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
    assert_eq!(names(profile.use_order()), forwards);
    // Not only the order: no gradient is final before those of the layers behind it.
    assert_eq!(names(profile.ready_order()).into_iter().rev().collect::<Vec<_>>(), forwards);
    let ready_s = profile.ready_s();
    assert!(ready_s.is_sorted_by(|one, other| one > other), "{ready_s:?}");
    assert!(profile.forward_s() > 0.0 && profile.update_s > 0.0 && profile.backward_s() >= ready_s[0], "{profile:?}");
    // 784 · 128 of 101,632.
    assert_eq!(profile.tensors[0].forward_macs_per_sample, 100_352);
    assert_eq!(profile.intensity(), Some(3.0 * 101_632.0 / 101_770.0));
    assert!(
        profile.source.contains("mean of 8 iterations after 2") && profile.source.contains("sgd"),
        "{}",
        profile.source
    );
}

/// What is in the profile is what passes by while it is measured, but for drawing samples and the like.
#[test]
fn its_times_are_those_of_the_iterations() {
    let shares = || {
        let began = Instant::now();
        let MeasuredProfile { profile, .. } = measured(ModelName::TransformerLm, &options(4));
        let of_elapsed = 10.0 * profile.iteration_s() / began.elapsed().as_secs_f64();
        (of_elapsed, profile.backward_s() / profile.forward_s())
    };
    // Two passes of matrices in backward for one in forward. What warms up is slower.
    let fits = |&(of_elapsed, ratio): &(f64, f64)| (0.4..1.1).contains(&of_elapsed) && (1.0..4.0).contains(&ratio);
    let mut tries = Vec::new();
    while tries.len() < 5 && !tries.last().is_some_and(fits) {
        tries.push(shares());
    }
    assert!(tries.last().is_some_and(fits), "share of the time that has passed, backward over forward: {tries:?}");
}

#[test]
fn a_tied_embedding_is_needed_first_and_last_and_final_last() {
    let adamw = ProfileOptions { optimizer: "adamw".parse::<OptimizerSettings>().unwrap(), ..options(2) };
    let MeasuredProfile { profile, .. } = measured(ModelName::TransformerLm, &adamw);
    assert_eq!(profile.forward.len(), profile.tensors.len() + 1);
    let (first, last) = (profile.forward[0], *profile.forward.last().unwrap());
    assert_eq!((name(&profile, first.tensor), name(&profile, last.tensor)), ("wte.weight", "wte.weight"));
    // 256 symbols of 128: more than any normalisation.
    assert!(last.seconds > 0.0, "{last:?}");
    let order = profile.ready_order();
    assert_eq!(name(&profile, *order.last().unwrap()), "wte.weight");
    assert_eq!(name(&profile, order[0]), "ln_f.bias");
    assert!(profile.source.contains("adamw"), "{}", profile.source);
    // The file is read again as it was written.
    let directory = Directory::new();
    let path = directory.path().join("profile.json");
    std::fs::write(&path, serde_json::to_string_pretty(&profile).unwrap()).unwrap();
    assert_eq!(load_profile(&path.display().to_string()).unwrap(), profile);
}
