//! `paceline fit`.

mod support;

use std::fs;
use std::time::Duration;

use paceline_plan::{Cluster, ClusterSet};
use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);
/// Part of data/study_calibration.csv: two models, two networks; and a row without a throughput.
const STUDY: &str = "tests/data/study.csv";

#[test]
fn several_networks_go_into_one_file() {
    let (path, json) = (scratch_file("both.toml"), scratch_file("both.json"));
    let (file, json_path) = (path.to_string_lossy(), json.to_string_lossy());
    let outcome = run(paceline(&["fit", "--study", STUDY, "-o", &file, "--json", &json_path]), LIMIT).expect_code(0);
    for words in [
        "is not used: it has no throughput",
        "across.beta_s_per_byte",
        "throughputs",
        "predicted against measured: median error ",
        "without model resnet50, and predicting it: median error ",
        "without network 10GbE, and predicting it: median error ",
    ] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    let constants = report["constants"].as_array().expect("a list");
    assert!((5..=20).contains(&constants.len()), "{} constants", constants.len());
    for constant in constants {
        let number = |name: &str| constant[name].as_f64().unwrap_or_else(|| panic!("no {name}: {constant}"));
        assert!(number("low") <= number("value") && number("value") <= number("high"), "{constant}");
        let unit = constant["unit"].as_str().expect("a unit");
        assert!(["s", "s/byte", ""].contains(&unit) && constant["origin"].is_string(), "{constant}");
        assert!(outcome.stdout.contains(constant["constant"].as_str().expect("a name")), "{constant}: {outcome:#?}");
    }
    assert_eq!(report["left_out"].as_array().map(Vec::len), Some(4), "two models, two networks: {report:#}");
    let set = ClusterSet::from_toml(&fs::read_to_string(&path).expect("the file")).expect("clusters");
    let beta = |network: &str| set.of(network).expect("the network").across.beta_s_per_byte.value;
    assert!(beta("10gbe") > 3.0 * beta("100GbIB"), "{} and {}", beta("10GbE"), beta("100GbIB"));
    let cluster = set.of("10GbE").expect("the network");
    assert_eq!((cluster.hosts, cluster.workers_per_host), (4, 4));
    assert!(cluster.source.ends_with(STUDY), "{}", cluster.source);
    fs::remove_file(path).and_then(|()| fs::remove_file(json)).expect("our own files");
}

/// Constants of one network are no other's: where only they are there, they are taken, with links as fast as messages are there, and that is told.
#[test]
fn a_network_that_is_fitted_alone_keeps_its_name() {
    let (study, toml, json) = (scratch_file("alone.csv"), scratch_file("alone.toml"), scratch_file("alone.json"));
    let [study_path, toml_path, json_path] = [&study, &toml, &json].map(|path| path.to_string_lossy().into_owned());
    let text = fs::read_to_string(STUDY).expect("the study");
    let here = text.lines().filter(|line| !line.contains("100GbIB")).collect::<Vec<_>>().join("\n");
    fs::write(&study, here).expect("a scratch file");
    run(paceline(&["fit", "--study", &study_path, "-o", &toml_path, "--no-leave-out"]), LIMIT).expect_code(0);
    let set = ClusterSet::from_toml(&fs::read_to_string(&toml).expect("the file")).expect("clusters");
    assert_eq!(set.networks.keys().collect::<Vec<_>>(), ["10GbE"]);
    let told = "the network 100GbIB is not in --cluster: it is predicted with the constants of 10GbE, and with links";
    for (file, of_another) in [(STUDY, true), (&study_path, false)] {
        let outcome = run(paceline(&["simulate", "--study", file, "--cluster", &toml_path]), LIMIT).expect_code(0);
        assert_eq!(outcome.stdout.contains(told), of_another, "{outcome:#?}");
    }
    run(paceline(&["simulate", "--study", STUDY, "--cluster", &toml_path, "--json", &json_path]), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    let rows = report["rows"].as_array().expect("a list");
    let there = rows.iter().filter(|row| row["network"] == "100GbIB" && row["workers"].as_u64() > Some(4));
    let mut errors: Vec<f64> = there.filter_map(|row| Some(row["error"].as_f64()?.abs())).collect();
    errors.sort_by(f64::total_cmp);
    // By the constants of 10GbE alone they would be off by some times.
    assert!(errors.len() == 8 && errors[4] < 0.1 && errors[7] < 0.35, "{errors:?}");
    let cell = ["simulate", "--cluster", &toml_path, "--model", "bert-base", "--workers", "8"];
    run(paceline(&cell), LIMIT).expect_code(0);
    [study, toml, json].into_iter().for_each(|path| fs::remove_file(path).expect("our own files"));
}

#[test]
fn each_network_gets_a_file_where_that_is_asked_for() {
    let pattern = scratch_file("{network}.toml");
    let pattern = pattern.to_string_lossy();
    let arguments = ["fit", "--study", STUDY, "-o", &pattern, "--no-leave-out", "--workers-per-host", "2"];
    run(paceline(&arguments), LIMIT).expect_code(0);
    for network in ["10gbe", "100gbib"] {
        let path = pattern.replace("{network}", network);
        let cluster = Cluster::from_toml(&fs::read_to_string(&path).expect("the file")).expect("a cluster");
        assert!(cluster.name.ends_with(network), "{}", cluster.name);
        assert_eq!(cluster.workers_per_host, 2);
        fs::remove_file(path).expect("our own file");
    }
}

/// With the status of `simulate`, which reads the same files.
#[test]
fn what_cannot_be_fitted_is_refused() {
    let (study, profile) = (scratch_file("bad.csv"), scratch_file("bad.json"));
    let (file, profile_path) = (study.to_string_lossy(), profile.to_string_lossy());
    for (text, words) in [
        ("", "the study has no rows"),
        ("model,local_batch,network,method,workers\nVGG-16,64,10GbE,BSP-PS,8", "there is no profile of VGG-16"),
        (
            "model,local_batch,network,method,workers\nResNet-50,64,10GbE,BSP-PS,8",
            "no row of the study can be fitted to",
        ),
        ("model,network\nResNet-50,10GbE", "the study has no column `local_batch`"),
        (
            "model,local_batch,network,method,workers,samples_per_s\nResNet-50,64,10GbE,WFBP-A2A,8,1000\n\
             ResNet-50,64,10GbE,auto,8,1000",
            "line 3 of the study: arch=auto stands for no arch",
        ),
    ] {
        fs::write(&study, text).expect("a scratch file");
        let outcome = run(paceline(&["fit", "--study", &file, "-o", "/dev/null"]), LIMIT).expect_code(2);
        outcome.expect_stderr(&[&file, words]);
    }
    fs::remove_file(&study).expect("our own file");
    fs::write(&profile, "{}").expect("a scratch file");
    for command in [&["fit", "-o", "/dev/null"][..], &["simulate"]] {
        let refused = |files: &[&str], words: &[&str]| {
            run(paceline(&[command, files].concat()), LIMIT).expect_code(2).expect_stderr(words);
        };
        refused(&["--study", &file], &["cannot read the study", &file]);
        refused(&["--study", STUDY, "--profile", &profile_path], &[&*profile_path, "is no profile"]);
    }
    fs::remove_file(&profile).expect("our own file");
}
