//! However many networks and models a study has, no more than twenty constants are sought.

use paceline_plan::{Profile, ProfileTensor, Step};
use paceline_predict::fit::{Fit, FitError, FitOptions, fit};
use paceline_predict::study::Study;

/// A model of two tensors that computes for 0.1 s.
fn profile(model: usize) -> Profile {
    let tensor = |name: &str| ProfileTensor { name: name.into(), elements: 5_000_000, forward_macs_per_sample: 0 };
    let steps = |seconds: f64, order: [usize; 2]| order.map(|tensor| Step { tensor, seconds }).to_vec();
    Profile {
        schema: Profile::SCHEMA,
        model: format!("model {model}"),
        device: "paper".into(),
        source: "made up".into(),
        local_batch: 8,
        tensors: vec![tensor("first"), tensor("last")],
        forward: steps(0.015, [0, 1]),
        backward: steps(0.03, [1, 0]),
        update_s: 0.01,
        ..Profile::default()
    }
}

/// Fits a study of so many models on so many networks: of each pair an all-reduce after backward and one beside it, on two
/// hosts. Some are a little faster than others.
fn fitted(models: usize, networks: usize) -> Result<Fit, FitError> {
    let profiles: Vec<Profile> = (0..models).map(profile).collect();
    let mut text = "model,local_batch,network,method,workers,samples_per_s\n".to_owned();
    for (model, network) in (0..models).flat_map(|model| (0..networks).map(move |network| (model, network))) {
        for (method, samples_per_s) in [("BSP-A2A", 360.0), ("WFBP-A2A", 460.0)] {
            let samples_per_s = samples_per_s + (model % 3) as f64 - (network % 3) as f64;
            text += &format!("model {model},8,network {network},{method},8,{samples_per_s}\n");
        }
    }
    let study = Study::parse(&text).expect("a study");
    assert_eq!((study.networks().len(), study.rows.len()), (networks, 2 * models * networks));
    fit(&study, &FitOptions { profiles: &profiles, ..FitOptions::default() })
}

/// How many constants, and how many of them have this beginning.
fn counted(fit: &Fit, name: &str) -> (usize, usize) {
    let named = fit.parameters.iter().filter(|parameter| parameter.name.starts_with(name));
    (fit.parameters.len(), named.count())
}

/// How many constants there are whatever the networks and models, with what servers lose on all networks together.
fn others() -> usize {
    let Err(FitError::Networks { constants, networks: 14 }) = fitted(1, 14) else { panic!("14 networks are too many") };
    constants - 14
}

/// Each network has the time for a byte between its hosts.
#[test]
fn with_too_many_networks_nothing_is_fitted() {
    let most = 20 - others();
    assert_eq!(counted(&fitted(1, most).expect("it is just possible"), "across.beta_s_per_byte"), (20, most));
    for networks in [most + 1, 14] {
        let (error, constants) = (fitted(1, networks).expect_err("too many"), others() + networks);
        assert_eq!(error, FitError::Networks { constants, networks });
        let says = format!("{constants} constants would be sought for {networks} networks, and at most 20 are: ");
        assert_eq!(error.to_string(), says + "fit them one by one");
    }
}

/// Each model has an overhead, as long as there is room for all of them.
#[test]
fn with_too_many_models_none_has_a_constant_of_its_own() {
    let most = 20 - others() - 1;
    let of_models = |models| counted(&fitted(models, 1).expect("one network is possible"), "computation.overhead_s.");
    assert_eq!(of_models(most), (20, most));
    for models in [most + 1, 12] {
        assert_eq!(of_models(models), (others() + 1, 0), "{models} models");
    }
}
