//! Profiles by name and from files.

use std::fs;

use paceline_train::load_profile;

/// As `tools/profile_torch.py mlp --out FILE` wrote it.
const MEASURED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/profile_torch.json");

#[test]
fn what_pytorch_measured_is_read() {
    let profile = load_profile(MEASURED).unwrap();
    assert_eq!((&*profile.model, profile.local_batch, profile.tensors.len()), ("mlp", 8, 7));
    // The embedding is also the last layer.
    assert_eq!((profile.use_order()[0], *profile.ready_order().last().unwrap()), (0, 0));
    assert!(profile.forward_s() > 0.0 && profile.backward_s() > 0.0 && profile.update_s > 0.0);
    // Of each of 16 tokens: two linear layers of 64 and 256, and the embedding of 100 as the last layer.
    assert_eq!(profile.forward_macs_per_sample(), Some(16 * (2 * 64 * 256 + 64 * 100)));
    assert_eq!(profile.tensors[0].forward_macs_per_sample, 16 * 64 * 100);
    assert_eq!(load_profile("bert-base@rtx2080ti").unwrap().tensors.len(), 206);
}

#[test]
fn a_profile_is_scaled_to_a_gpu_that_one_does_not_have() {
    let given = load_profile("resnet50@v100=405").unwrap();
    assert!((64.0 / given.iteration_s() / 405.0 - 1.0).abs() < 1e-9 && given.device == "v100", "{}", given.source);
    assert_eq!(load_profile("resnet50@rtx2080ti@v100=405").unwrap(), given);
    assert!(load_profile("bert-large@a100-sxm4").unwrap().uncertainty.is_some());
    // A file, too; and nothing is known of its device but what is given.
    let scaled = load_profile(&format!("{MEASURED}@h100=100000:25%")).unwrap();
    assert!((8.0 / scaled.iteration_s() / 1e5 - 1.0).abs() < 1e-9 && scaled.uncertainty == Some(0.25));
    for (name, says) in [
        (format!("{MEASURED}@v100"), "no throughput of mlp is built in"),
        ("resnet50@v100=quick".into(), "`v100=quick` names no device to scale to"),
        ("resnet5@v100".into(), "there is no profile `resnet5`"),
        ("resnet50@v100=1e-300".into(), "resnet50@v100=1e-300: the profile is inconsistent: forward"),
        ("./a@b/none.json".into(), "there is no profile `./a@b/none.json`"),
    ] {
        let error = load_profile(&name).unwrap_err().to_string();
        assert!(error.contains(says), "`{error}` does not say `{says}`");
    }
}

/// The lines of a profile, all times 0.
fn without_time(profile: &str) -> String {
    let line = |line: &str| {
        let time = ["\"seconds\": ", "\"update_s\": "].into_iter().find_map(|key| Some((line.split_once(key)?.0, key)));
        time.map_or(line.to_owned(), |(before, key)| format!("{before}{key}0"))
    };
    profile.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_wrong_with_a_profile_is_said() {
    let good = fs::read_to_string(MEASURED).unwrap();
    let path = std::env::temp_dir().join(format!("paceline-profile-{}.json", std::process::id()));
    let name = path.display().to_string();
    let cases = [
        (good.replace("\"tensor\": 6", "\"tensor\": 7"), "forward[6].tensor is 7, and there are 7 tensors"),
        (
            good.replacen("\"seconds\": 0.0", "\"seconds\": -1.0", 1),
            "forward[2].seconds is -1.0; give seconds, from 0 to 10⁹",
        ),
        (good.replacen("\"seconds\": 0.0", "\"seconds\": 1e999", 1), "number out of range"),
        (without_time(&good), "forward takes no time, and neither does anything else"),
        (good.replacen("\"schema\": 1", "\"schema\": 9", 1), "schema 9"),
        (good.replacen("\"elements\": 6400", "\"elements\": 0", 1), "tensors[0].elements is 0"),
        (good.replacen("\"update_s\"", "\"updates\"", 1), "unknown field `updates`"),
        (good.replacen("\"local_batch\": 8,", "", 1), "missing field `local_batch`"),
        (good[..good.len() / 2].to_owned(), "EOF"),
        (String::new(), "EOF"),
        ("[]".into(), "is no profile"),
    ];
    for (text, message) in cases {
        fs::write(&path, text).unwrap();
        let error = load_profile(&name).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains(message), "`{error}` does not say `{message}`");
    }
    let _ = fs::remove_file(&path);
    let error = load_profile("resnet5").unwrap_err().to_string();
    assert!(error.contains("`resnet5`") && error.contains("resnet50@rtx2080ti"), "{error}");
    assert!(
        load_profile(&std::env::temp_dir().display().to_string()).unwrap_err().to_string().contains("cannot be read")
    );
}
