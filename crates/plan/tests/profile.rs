//! Profiles: what they answer, what is refused, and that their file is documented.

use std::collections::BTreeSet;

use paceline_plan::{BUILT_IN_PROFILES, MemoryNeed, Profile, ProfileTensor, Step, built_in_profile};

/// An embedding that is also the last layer (tensor 0), and a layer between (tensors 1 and 2).
fn tied() -> Profile {
    let tensor =
        |name: &str, elements, macs| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: macs };
    let steps = |steps: &[(usize, f64)]| steps.iter().map(|&(tensor, seconds)| Step { tensor, seconds }).collect();
    Profile {
        schema: Profile::SCHEMA,
        model: "tied".into(),
        device: "paper".into(),
        source: "made up".into(),
        local_batch: 4,
        tensors: vec![tensor("embedding", 50, 50), tensor("layer.weight", 20, 20), tensor("layer.bias", 5, 0)],
        forward: steps(&[(0, 0.25), (2, 0.0), (1, 0.5), (0, 1.0)]),
        backward: steps(&[(0, 2.0), (2, 0.125), (1, 1.0), (0, 0.5)]),
        update_s: 0.25,
        uncertainty: Some(0.125),
        memory: Some(MemoryNeed { fixed_bytes: 1000, bytes_per_sample: 10, available_bytes: Some(2000) }),
        epoch_samples: Some(1000),
        recorded_batch: None,
        spread: Some(0.25),
    }
}

fn json(profile: &Profile) -> String {
    serde_json::to_string(profile).unwrap()
}

#[test]
fn a_tensor_is_needed_at_its_first_step_and_final_after_its_last() {
    let profile = tied();
    profile.check().unwrap();
    assert_eq!(profile.sizes(), [50, 20, 5]);
    assert_eq!(profile.ready_order(), [2, 1, 0]);
    assert_eq!(profile.ready_s(), [3.625, 3.125, 2.125]);
    assert_eq!(profile.use_order(), [0, 2, 1]);
    assert_eq!((profile.forward_s(), profile.backward_s(), profile.iteration_s()), (1.75, 3.625, 5.625));
    // Two operations for a multiply-accumulate, and three passes as long as forward.
    assert_eq!((profile.parameters(), profile.flops_per_sample()), (75, Some(420.0)));
    assert_eq!(profile.intensity(), Some(3.0 * 70.0 / 75.0));
}

#[test]
fn another_batch_scales_what_is_computed_per_sample() {
    let twice = tied().for_batch(8);
    twice.check().unwrap();
    assert_eq!((twice.local_batch, twice.update_s), (8, 0.25));
    assert_eq!((twice.forward_s(), twice.backward_s()), (3.5, 7.25));
    assert!(twice.source.starts_with("made up; "), "{}", twice.source);
    assert_eq!(tied().for_batch(4), tied());
}

/// Also after several steps; and whoever comes back to it has what was recorded.
#[test]
fn the_batch_that_was_recorded_is_remembered() {
    let twice = tied().for_batch(8);
    assert_eq!((tied().scaled_from(), twice.scaled_from()), (None, Some(4)));
    assert_eq!(twice.for_batch(16).scaled_from(), Some(4));
    assert_eq!(twice.for_batch(8).scaled_from(), Some(4));
    assert_eq!(twice.for_batch(16).for_batch(4).scaled_from(), None);
    let fourfold = tied().for_batch(16);
    assert_eq!(fourfold.spread, Some(0.125), "as often interrupted in each second");
    assert_eq!(serde_json::from_str::<Profile>(&json(&fourfold)).unwrap(), fourfold);
}

#[test]
fn a_profile_that_takes_no_time_is_known() {
    assert_eq!(tied().check_pace(), Ok(()));
    let mut still = tied();
    still.forward.iter_mut().chain(&mut still.backward).for_each(|step| step.seconds = 0.0);
    assert_eq!(still.check_pace(), Ok(()), "the optimiser takes some");
    for update_s in [0.0, 1e-310] {
        let still = Profile { update_s, ..still.clone() };
        assert_eq!(still.check(), Ok(()));
        let error = still.check_pace().unwrap_err().to_string();
        assert_eq!(error, "the profile is inconsistent: forward takes no time, and neither does anything else");
    }
}

/// Nothing else need be in memory, and nobody need know how much there is of it.
#[test]
fn a_worker_may_have_its_parameters_alone() {
    for available_bytes in [None, Some(1)] {
        let memory = Some(MemoryNeed { fixed_bytes: 300, bytes_per_sample: 0, available_bytes });
        assert_eq!(Profile { memory, ..tied() }.check(), Ok(()));
    }
    for name in BUILT_IN_PROFILES {
        let profile = built_in_profile(name).unwrap();
        let least = MemoryNeed::of_parameters(profile.parameters());
        assert!(profile.memory.is_some_and(|need| need.fixed_bytes >= 3 * least), "{name}");
    }
}

/// Of an iteration that may take no time at all nothing can be predicted.
#[test]
fn an_uncertainty_is_a_share_below_one() {
    let with = |share| Profile { uncertainty: Some(share), ..tied() };
    for share in [0.0, 0.1, Profile::UNCERTAINTY_MAX] {
        assert_eq!(with(share).check_pace(), Ok(()), "{share}");
    }
    for share in [1.0, 10.0] {
        let error = with(share).check_pace().unwrap_err().to_string();
        let says = format!("the profile is inconsistent: uncertainty is {share}; it is a share of the time below 1");
        assert!(error.starts_with(&says), "{error}");
    }
}

#[test]
fn a_profile_survives_its_file() {
    assert_eq!(serde_json::from_str::<Profile>(&json(&tied())).unwrap(), tied());
    // What may be left out, is.
    let short = Profile { uncertainty: None, spread: None, memory: None, epoch_samples: None, ..tied() };
    let absent = ["uncertainty", "spread", "memory", "epoch_samples", "recorded_batch"]
        .iter()
        .all(|field| !json(&short).contains(field));
    assert!(absent, "{}", json(&short));
    assert_eq!(serde_json::from_str::<Profile>(&json(&short)).unwrap(), short);
}

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    type Change = fn(&mut Profile);
    let cases: [(Change, &str); 29] = [
        (|profile| profile.schema = 2, "schema 2; this version of Paceline reads schema 1"),
        (|profile| profile.local_batch = 0, "local_batch is 0"),
        (|profile| profile.tensors.clear(), "tensors is empty"),
        (|profile| profile.tensors[1].elements = 0, "tensors[1].elements is 0"),
        (|profile| profile.tensors[2].name = "embedding".into(), "two of the name `embedding`"),
        (|profile| profile.forward[1].tensor = 3, "forward[1].tensor is 3, and there are 3 tensors"),
        (|profile| profile.backward[3].seconds = -1.0, "backward[3].seconds is -1.0; give seconds, from 0 to 10⁹"),
        (|profile| profile.backward[0].seconds = f64::NAN, "backward[0].seconds is NaN; give"),
        (|profile| profile.forward[0].seconds = f64::INFINITY, "forward[0].seconds is inf; give"),
        (|profile| profile.forward.retain(|step| step.tensor != 1), "forward has no step for tensor 1"),
        (|profile| profile.backward.retain(|step| step.tensor != 2), "backward has no step for tensor 2"),
        (|profile| profile.backward.clear(), "backward has no step for tensor 0"),
        (|profile| profile.update_s = -0.5, "update_s is -0.5; give"),
        (|profile| profile.update_s = 1e300, "update_s is 1e300; give"),
        (|profile| profile.local_batch = usize::MAX, "local_batch is 18446744073709551615, more"),
        (|profile| profile.tensors[1].elements = usize::MAX, "tensors[1].elements makes the model larger"),
        (|profile| profile.tensors[2].forward_macs_per_sample = u64::MAX, "tensors[2].forward_macs_per_sample is more"),
        (|profile| profile.uncertainty = Some(-0.1), "uncertainty is -0.1; it is a share"),
        (|profile| profile.uncertainty = Some(f64::NAN), "uncertainty is NaN"),
        (|profile| profile.uncertainty = Some(f64::INFINITY), "uncertainty is inf"),
        (|profile| profile.spread = Some(-0.1), "spread is -0.1; it is a share of the time from 0 to 2"),
        (|profile| profile.spread = Some(2.5), "spread is 2.5;"),
        (|profile| profile.spread = Some(f64::NAN), "spread is NaN"),
        (|profile| profile.memory.as_mut().unwrap().fixed_bytes = 0, "memory.fixed_bytes is 0"),
        (
            |profile| profile.memory.as_mut().unwrap().fixed_bytes = 299,
            "memory.fixed_bytes is 299; a worker has at least its 75 parameters, 300 bytes",
        ),
        (|profile| profile.memory.as_mut().unwrap().available_bytes = Some(0), "memory.available_bytes is 0; leave"),
        (|profile| profile.epoch_samples = Some(0), "epoch_samples is 0"),
        (|profile| profile.recorded_batch = Some(0), "recorded_batch is 0; it is a local batch"),
        (|profile| profile.recorded_batch = Some(usize::MAX), "recorded_batch is 18446744073709551615; it is"),
    ];
    for (change, says) in cases {
        let mut profile = tied();
        change(&mut profile);
        let error = profile.check().expect_err(says).to_string();
        assert!(error.contains(says), "`{error}` does not say `{says}`");
    }
    for (text, says) in [
        ("{\"schema\": 1}", "missing field `model`"),
        (&json(&tied()).replace("update_s", "updates"), "unknown field `updates`"),
        (&json(&tied()).replace("fixed_bytes", "bytes"), "unknown field `bytes`"),
    ] {
        let error = serde_json::from_str::<Profile>(text).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// docs/json.md has a row for every field of a profile, and its example is one.
#[test]
fn every_field_is_documented() {
    let page = include_str!("../../../docs/json.md");
    let chapter = page.split("\n# Profiles\n").nth(1).expect("a chapter about profiles");
    let documented: BTreeSet<String> =
        chapter.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
    let value: serde_json::Value = serde_json::from_str(&json(&tied().for_batch(8))).unwrap();
    let fields = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
    };
    let mut written = fields(&value);
    written.extend(fields(&value["tensors"][0]));
    written.extend(fields(&value["forward"][0]));
    written.extend(fields(&value["memory"]));
    assert_eq!(documented, written);
    let example: Vec<&str> = chapter.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    serde_json::from_str::<Profile>(&example.join("\n")).unwrap().check().unwrap();
}
