//! `paceline train` with real processes: what it prints, writes and refuses.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use support::policies::policy_for;
use support::{Outcome, paceline, run};

const LIMIT: Duration = Duration::from_secs(120);

fn train(arguments: &[&str]) -> Outcome {
    run(paceline(&[&["train"], arguments].concat()), LIMIT)
}

/// A new empty directory.
fn scratch_directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("train-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a scratch directory");
    path
}

fn report(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON")
}

#[test]
fn every_transport_and_world_trains_to_the_same_parameters() {
    let directory = scratch_directory("same");
    let (mut losses, mut parameters) = (Vec::new(), Vec::new());
    for (workers, transport) in [("1", "auto"), ("2", "shm"), ("3", "tcp")] {
        let (json, dump) = (directory.join(format!("{workers}.json")), directory.join(workers));
        let mut options = vec!["--model", "mlp", "--iterations", "12", "--global-batch", "48", "--seed", "7"];
        let (json_text, dump_text) = (json.to_string_lossy(), dump.to_string_lossy());
        options.extend(["--workers", workers, "--transport", transport, "--json", &json_text]);
        options.extend(["--dump-parameters", &dump_text]);
        let outcome = train(&options).expect_code(0);
        assert!(outcome.stdout.contains("epoch 1: loss "), "{outcome:#?}");
        assert!(outcome.stdout.contains(" % of the time in communication"), "{outcome:#?}");
        assert!(!outcome.stdout.contains('\r') && !outcome.stderr.contains('\r'), "no bar in a pipe: {outcome:#?}");

        let report = report(&json);
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report:#}"));
        assert_eq!(report["schema"], 1);
        assert_eq!(report["world_size"].to_string(), workers);
        assert!(report["strategy"].as_str().is_some_and(|text| text.ends_with(&format!("protocol={transport}"))));
        assert!(number("test_accuracy") > 0.0 && number("samples_per_s") > 0.0);
        assert!(number("exposed_communication_s") >= 0.0);
        assert_eq!(report["epochs"].as_array().map(Vec::len), Some(1), "{report:#}");
        losses.push(number("final_loss"));

        let mut dumps: BTreeSet<Vec<u8>> = (0..workers.parse().expect("a number"))
            .map(|rank: usize| fs::read(dump.join(format!("rank-{rank}.safetensors"))).expect("a dump"))
            .collect();
        assert_eq!(dumps.len(), 1, "all ranks hold the same bits");
        parameters.extend(dumps.pop_first().map(|dump| tensors(&dump)));
    }
    let near = |loss: &f64| (loss / losses[0] - 1.0).abs() < 1e-4;
    assert!(losses.iter().all(near), "the world size changed the result: {losses:?}");
    for (name, alone) in &parameters[0] {
        let scale = alone.iter().fold(0f32, |scale, value| scale.max(value.abs()));
        for others in &parameters[1..] {
            let worst = alone.iter().zip(&others[name]).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst <= 1e-5 * scale, "{name} is off by {worst}, its largest value is {scale}");
        }
    }
    fs::remove_dir_all(directory).expect("our own directory");
}

/// Servers that apply give what workers would have computed, bit for bit.
#[test]
fn the_optimiser_may_run_on_servers() {
    let directory = scratch_directory("apply");
    let mut dumps = BTreeSet::new();
    for mode in ["aggregate", "apply"] {
        let (json, dump) = (directory.join(format!("{mode}.json")), directory.join(mode));
        let (json_text, dump_text) = (json.to_string_lossy(), dump.to_string_lossy());
        let strategy = format!("bytescheduler-ps,arch=ps:2:64KiB:{mode}");
        let mut options = vec!["--model", "mlp", "--workers", "2", "--iterations", "8", "--optimizer", "adamw"];
        options.extend(["--lr-schedule", "cosine:2", "--strategy", &strategy]);
        options.extend(["--json", &json_text, "--dump-parameters", &dump_text]);
        train(&options).expect_code(0);
        let report = report(&json);
        assert_eq!((&report["optimizer"], &report["lr_schedule"]), (&"adamw".into(), &"cosine:2".into()));
        // The last of eight updates: five sixths of the wave are over.
        let rate = report["epochs"][0]["learning_rate"].as_f64().expect("a number");
        assert!((rate - 1e-3 * 0.066_987_3).abs() < 1e-9, "{rate}");
        dumps.extend((0..2).map(|rank| fs::read(dump.join(format!("rank-{rank}.safetensors"))).expect("a dump")));
    }
    assert_eq!(dumps.len(), 1, "all workers hold the same bits in both modes");
    fs::remove_dir_all(directory).expect("our own directory");
}

/// Standard output says what was chosen, and why, when it is chosen, and at the end whether it came true: after the eight iterations that
/// are measured twenty are compared.
#[test]
fn auto_says_what_it_has_chosen_and_whether_it_came_true() {
    let options = ["--model", "mlp", "--workers", "2", "--iterations", "40", "--strategy", "auto"];
    let outcome = train(&options).expect_code(0);
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| line.starts_with("auto: ")).collect();
    let [chosen, became] = lines[..] else { panic!("one decision, and what became of it: {outcome:#?}") };
    let (what, why) = chosen.split_once(", predicted ").expect("what is predicted of it");
    assert!(what.starts_with("auto: from iteration 8 on runs sync=bsp,"), "{chosen}");
    let (_, why) = why.split_once(" ms an iteration; ").expect("reasons");
    assert!(why.starts_with("the best of ") && why.contains(" predicted plans, limited by "), "{chosen}");
    let (when, measured) = became.split_once(" ms, measured ").expect("what was measured");
    assert!(when.starts_with("auto: from iteration 8 on, predicted "), "{became}");
    assert!(measured.ends_with(" ms: it came true") || measured.ends_with(" ms: it did not come true"), "{became}");
}

/// The tensors of a dump: safetensors of f32.
fn tensors(dump: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let (length, rest) = dump.split_first_chunk().expect("the header's length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("JSON");
    let values = |place: &Value| {
        let offset = |index: usize| place["data_offsets"][index].as_u64().expect("an offset") as usize;
        let bytes = data[offset(0)..offset(1)].chunks_exact(4);
        bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    header.iter().map(|(name, place)| (name.clone(), values(place))).collect()
}

/// A batch per worker that wraps when it is multiplied by the workers, and images that are in two places.
#[test]
fn options_that_nobody_means_do_not_panic() {
    let batch = (1_u64 << 62).to_string();
    let outcome = train(&["--workers", "4", "--batch", &batch, "--model", "mlp", "--iterations", "1"]).expect_code(0);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    let outcome = train(&["--data", "sample", "--data-dir", "/somewhere"]).expect_code(2);
    outcome.expect_stderr(&["--data", "--data-dir"]);
}

#[test]
fn the_full_data_set_is_trained_on_or_asked_for() {
    let outcome = train(&["--workers", "1", "--data", "fashion-mnist", "--model", "mlp", "--iterations", "1"]);
    if Path::new("/usr/share/datasets/fashion-mnist").is_dir() {
        outcome.expect_code(0);
    } else {
        outcome.expect_code(1).expect_stderr(&["`apt-get install dataset-fashion-mnist`"]);
    }
}

#[test]
fn wrong_usage_is_told_once_and_before_anything_starts() {
    let cases: [(&[&str], &[&str]); 18] = [
        (&["--workers", "0"], &["--workers", "there must be at least one"]),
        (&["--strategy", "wfpb-a2a"], &["wfpb-a2a", "did you mean `wfbp-a2a`?", "^^^^^^^^"]),
        (&["--strategy", "compress=topk:0.01"], &["topk", "not built yet"]),
        (&["--batch", "8", "--global-batch", "16"], &["--batch", "--global-batch"]),
        (&["--lr=-1"], &["learning rate"]),
        (&["--model", "resnet5"], &["unknown model `resnet5`; did you mean `resnet50`?"]),
        (&["--optimizer", "adam"], &["unknown optimiser `adam`", "did you mean `adamw`?"]),
        (&["--optimizer", "adamw", "--momentum", "0.5"], &["--momentum is none of --optimizer adamw"]),
        (&["--betas", "0.9,0.99"], &["--betas is none of --optimizer sgd"]),
        (&["--optimizer", "adamw", "--betas", "0.9"], &["two numbers, such as 0.9,0.999"]),
        (&["--lr-schedule", "cosin:5"], &["unknown learning-rate schedule `cosin`", "did you mean `cosine`?"]),
        (&["--lr-schedule", "step:5"], &["is written step:EVERY:FACTOR[:WARMUP], and has 1 arguments here"]),
        (
            &["--clip-norm", "1", "--strategy", "bytescheduler-a2a"],
            &["--clip-norm needs all gradients before the first"],
        ),
        (&["--clip-norm", "1", "--strategy", "wfbp-ps,arch=ps:apply"], &["a server that has the optimiser"]),
        (&["--data", "imagenet"], &["imagenet", "images:DIR"]),
        (&["--transport", "tcp", "--strategy", "protocol=shm"], &["--transport tcp contradicts protocol=shm"]),
        (&["--tcp-streams", "2"], &["--tcp-streams 2: shared memory carries", "add --transport tcp"]),
        (&["--transport", "tcp", "--tcp-streams", "65"], &["--tcp-streams", "1..=64"]),
    ];
    for (arguments, fragments) in cases {
        let outcome = train(arguments).expect_code(2).expect_stderr(fragments);
        assert_eq!(outcome.stdout, "", "{arguments:?}");
        assert_eq!(outcome.stderr.matches("error:").count(), 1, "{outcome:#?}");
    }
}

#[test]
fn workers_may_have_several_tcp_connections() {
    let directory = scratch_directory("streams");
    let json = directory.join("run.json");
    let job = ["--workers", "2", "--model", "mlp", "--iterations", "8", "--transport", "tcp", "--tcp-streams", "3"];
    for more in [&[][..], &["--tune"], &["--strategy", "wfbp-ps"]] {
        let outcome = train(&[&job[..], more, &["--json", &json.to_string_lossy()]].concat()).expect_code(0);
        assert_eq!(report(&json)["tcp_streams"], 3, "{more:?}: {outcome:#?}");
    }
    fs::remove_dir_all(directory).expect("our own directory");
}

/// A thousand workers of BERT-Large need 1.3 TB for parameters alone.
#[test]
fn what_does_not_fit_in_memory_is_refused_before_it_starts() {
    let arguments = ["--workers", "1000", "--model", "bert-large", "--batch", "8", "--iterations", "1"];
    let outcome = train(&arguments).expect_code(1);
    let outcome = outcome.expect_stderr(&["bert-large would not fit in memory", "1000 workers", "fewer workers"]);
    assert_eq!(outcome.stderr.matches("error:").count(), 1, "{outcome:#?}");
}

/// Nobody has checked it for ranks of another launcher: the first of a host does, for all of them.
#[test]
fn ranks_that_do_not_fit_in_memory_together_are_refused() {
    let words = ["launch", "--workers", "2", "--", env!("CARGO_BIN_EXE_paceline"), "train", "--model", "bert-large"];
    let outcome = run(paceline(&[&words[..], &["--batch", "1000000", "--iterations", "1"]].concat()), LIMIT);
    let outcome = outcome.expect_code(1).expect_stderr(&["bert-large would not fit in memory: 2 workers take about"]);
    assert!(outcome.elapsed < LIMIT / 2, "the others do not wait: {outcome:#?}");
}

#[test]
fn missing_and_truncated_data_is_named_once() {
    let directory = scratch_directory("data");
    let path = directory.to_string_lossy().into_owned();
    let outcome = train(&["--data-dir", &path, "--iterations", "1"]).expect_code(1);
    let outcome = outcome.expect_stderr(&["train-images-idx3-ubyte.gz", "No such file"]);
    assert_eq!(outcome.stderr.matches("error:").count(), 1, "{outcome:#?}");

    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/fashion-mnist");
    for entry in fs::read_dir(&sample).expect("the sample") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), directory.join(entry.file_name())).expect("a copy");
    }
    let file = directory.join("train-images-idx3-ubyte.gz");
    let bytes = fs::read(&file).expect("images");
    let mut shorter = fs::File::create(&file).expect("a file");
    shorter.write_all(&bytes[..bytes.len() / 2]).expect("half of it");
    drop(shorter);
    let outcome = train(&["--data-dir", &path, "--iterations", "1"]).expect_code(1);
    let outcome = outcome.expect_stderr(&["train-images-idx3-ubyte.gz"]);
    assert_eq!(outcome.stderr.matches("error:").count(), 1, "{outcome:#?}");
    fs::remove_dir_all(directory).expect("our own directory");
}

/// The whole promise of the README: with PACELINE_LONG_TESTS=1 to its end, else the first epoch only.
#[test]
fn the_readme_command_learns() {
    let long = std::env::var_os("PACELINE_LONG_TESTS").is_some();
    let directory = scratch_directory("readme");
    let json = directory.join("train.json");
    let json_text = json.to_string_lossy();
    let mut options = vec!["--workers", "4", "--json", &json_text];
    if !long {
        options.extend(["--iterations", "40"]);
    }
    let mut command = paceline(&[&["train"], &options[..]].concat());
    command.env_remove("RAYON_NUM_THREADS");
    let outcome = run(command, Duration::from_secs(600)).expect_code(0);
    assert!(outcome.elapsed < Duration::from_secs(120), "the README says two minutes, it took {:?}", outcome.elapsed);
    let accuracy = report(&json)["test_accuracy"].as_f64().expect("a number");
    let wanted = if long { 0.8 } else { 0.5 };
    assert!(accuracy > wanted, "test accuracy {accuracy} after {options:?}");
    fs::remove_dir_all(directory).expect("our own directory");
}

#[test]
fn telemetry_has_a_line_for_each_bucket_of_each_update() {
    let directory = scratch_directory("telemetry");
    let file = directory.join("calls");
    let file = file.to_string_lossy();
    let options = ["--model", "mlp", "--workers", "2", "--iterations", "300", "--batch", "2", "--telemetry", &file];
    train(&options).expect_code(0);
    for path in [file.to_string(), format!("{file}.rank1")] {
        let text = fs::read_to_string(&path).expect("a file of each rank");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let gradients: Vec<&Value> = lines.iter().filter(|line| line["origin"] == "layer").collect();
        let buckets: BTreeSet<u64> = gradients.iter().filter_map(|line| line["tag"].as_u64()).collect();
        assert!(buckets.len() > 1, "{text}");
        assert_eq!(gradients.len(), 300 * buckets.len());
        assert!(gradients.iter().all(|call| call["collective"] == "all-reduce" && call["failed"] == false));
    }
    fs::remove_dir_all(directory).expect("our own directory");
}

#[test]
fn telemetry_that_cannot_be_written_is_found_out_before_training() {
    let outcome = train(&["--workers", "1", "--telemetry", "/no/such/directory/calls"]).expect_code(1);
    let outcome = outcome.expect_stderr(&["cannot write /no/such/directory/calls"]);
    assert!(!outcome.stdout.contains("epoch"), "{outcome:#?}");
}

/// The report of a tuned training, and the next one begins with what the first has learned.
#[test]
fn a_tuned_training_says_what_was_decided_and_keeps_it() {
    let directory = scratch_directory("tuned");
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (json, database) = (directory.join("tuned.json"), directory.join("learned.db"));
    let (json_text, database_text, policy) = (path("tuned.json"), path("learned.db"), path("policy.toml"));
    let mut options =
        vec!["--model", "mlp", "--workers", "2", "--iterations", "60", "--strategy", "wfbp-a2a", "--tune"];
    options.extend(["--tune-database", &database_text, "--json", &json_text, "--policy-out", &policy]);
    for begins_with_something in [false, true] {
        let outcome = train(&options).expect_code(0);
        for told in ["\ntuning: ", "\n  all-reduce from ", "\n  regret: "] {
            assert!(outcome.stdout.contains(told), "{told}: {outcome:#?}");
        }
        assert_eq!(outcome.stdout.contains("earlier jobs have learned"), begins_with_something, "{outcome:#?}");
        let tuning = &report(&json)["tuning"];
        let rules = paceline_tune::policy_file::read(&fs::read_to_string(&policy).expect("written")).expect("a policy");
        assert_eq!(rules.entries().count() > 0, tuning["standing"] == "tuned", "{tuning:#}");
        outcome.expect_stderr(&["paceline: ", "policy.toml has "]);
        assert_eq!(tuning["remembered"].as_u64().is_some_and(|count| count > 0), begins_with_something, "{tuning:#}");
        assert!(tuning["tuned_iterations"].as_u64().is_some_and(|count| count > 40), "{tuning:#}");
        let contexts = tuning["contexts"].as_array().expect("a list");
        assert!(
            !contexts.is_empty() && contexts.iter().all(|context| context["context"]["collective"] == "all-reduce")
        );
        assert!(tuning.get("lessons").is_none(), "they are in the database: {tuning:#}");
    }
    let connection = rusqlite::Connection::open(&database).expect("a database");
    let clusters: i64 = connection
        .query_row("SELECT count(DISTINCT cluster) FROM experience", [], |row| row.get(0))
        .expect("there is something");
    assert_eq!(clusters, 1, "both were on the same cluster");
    fs::remove_dir_all(directory).expect("our own directory");
}

/// Two workers: whatever their links were measured to cost, and whichever algorithm that makes the cheapest, a sum of two has the
/// same bits.
#[test]
fn the_switch_leaves_everything_as_it_was() {
    let directory = scratch_directory("switched-off");
    let mut seen = BTreeSet::new();
    for (name, tune, switch) in [("without", false, None), ("off", true, Some("off"))] {
        let (json, dump, plan) = (directory.join("json"), directory.join(name), directory.join("plan"));
        let (json_text, dump_text, plan_text) =
            (json.to_string_lossy(), dump.to_string_lossy(), plan.to_string_lossy());
        let mut options = vec!["train", "--model", "mlp", "--workers", "2", "--iterations", "30", "--json", &json_text];
        options.extend(["--dump-parameters", &dump_text, "--dump-plan", &plan_text]);
        options.extend(tune.then_some("--tune"));
        let mut command = paceline(&options);
        if let Some(switch) = switch {
            command.env("PACELINE_TUNE", switch);
        }
        let outcome = run(command, LIMIT).expect_code(0);
        assert!(!outcome.stdout.contains("tuning"), "{outcome:#?}");
        assert_eq!(outcome.stderr.contains("PACELINE_TUNE=off in the environment"), tune, "{outcome:#?}");
        assert!(report(&json).get("tuning").is_none());
        assert!(!fs::read_to_string(&plan).expect("a plan").contains("changes"));
        seen.insert(fs::read(dump.join("rank-0.safetensors")).expect("a dump"));
    }
    assert_eq!(seen.len(), 1, "the parameters are not those of a training without --tune");
    fs::remove_dir_all(directory).expect("our own directory");
}

/// The plan is chosen from what was measured, and calls are tuned meanwhile and under that plan: however gradients
/// travel, the parameters have the same bits. Two workers, as above.
#[test]
fn calls_are_tuned_while_the_plan_is_chosen() {
    let directory = scratch_directory("auto-tuned");
    let mut seen = BTreeSet::new();
    for (name, more) in [("without", &[][..]), ("with", &["--tune"])] {
        let (json, dump) = (directory.join(format!("{name}.json")), directory.join(name));
        let (json_text, dump_text) = (json.to_string_lossy(), dump.to_string_lossy());
        let job = ["--model", "mlp", "--workers", "2", "--iterations", "60", "--strategy", "auto,arch=a2a"];
        let files = ["--json", &json_text, "--dump-parameters", &dump_text];
        let outcome = train(&[&job[..], &files, more].concat()).expect_code(0);
        let is_told = |words: &str| outcome.stdout.lines().any(|line| line.starts_with(words));
        assert!(is_told("auto: from iteration "), "{outcome:#?}");
        assert_eq!(is_told("tuning: "), !more.is_empty(), "{outcome:#?}");
        let report = report(&json);
        // Or after a further five iterations, if these still get faster.
        assert!([8, 13].contains(&report["decisions"][0]["iteration"].as_u64().expect("a number")), "{report:#}");
        if !more.is_empty() {
            let tuning = &report["tuning"];
            assert!(tuning["tuned_iterations"].as_u64().is_some_and(|count| count > 0), "{tuning:#}");
            let contexts = tuning["contexts"].as_array().expect("a list");
            let is_all_reduce = |it: &Value| it["context"]["collective"] == "all-reduce";
            assert!(!contexts.is_empty() && contexts.iter().all(is_all_reduce), "{tuning:#}");
        }
        seen.extend([0, 1].map(|rank| fs::read(dump.join(format!("rank-{rank}.safetensors"))).expect("a dump")));
    }
    assert_eq!(seen.len(), 1, "all ranks hold the same bits, with --tune and without");
    fs::remove_dir_all(directory).expect("our own directory");
}

/// A job does not fail for what it could have begun with.
#[test]
fn a_broken_database_is_told_and_training_goes_on() {
    let directory = scratch_directory("broken-database");
    let database = directory.join("learned.db");
    fs::write(&database, "this is no database, and long enough to look like one".repeat(100)).expect("written");
    let before = fs::read(&database).expect("read");
    let options = ["--model", "mlp", "--workers", "2", "--iterations", "20", "--tune", "--tune-database"];
    let outcome = train(&[&options[..], &[&database.to_string_lossy()]].concat()).expect_code(0);
    assert!(outcome.stdout.contains("\ntuning: "), "{outcome:#?}");
    outcome.expect_stderr(&["tuning begins with nothing, and keeps nothing: ", "learned.db"]);
    assert_eq!(fs::read(&database).expect("still there"), before);
    fs::remove_dir_all(directory).expect("our own directory");
}

/// A policy is followed from the first iteration on; a broken one is told, and everything is as without it. Two workers: their sums
/// have no order.
#[test]
fn a_policy_is_followed_or_told_why_not() {
    let directory = scratch_directory("policy");
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (json, policy) = (path("tuned.json"), path("policy.toml"));
    let job = ["--model", "mlp", "--workers", "2", "--iterations", "8", "--strategy", "wfbp-a2a"];
    let trained = |more: &[&str]| train(&[&job[..], more].concat()).expect_code(0);
    trained(&["--tune", "--json", &json]);
    let text = policy_for(&report(Path::new(&json))["tuning"]["contexts"], "direct");
    let with = |text: &str, name: &str| {
        fs::write(&policy, text).expect("written");
        let (plan, dump) = (path(name), path(&format!("{name}-dump")));
        let outcome = trained(&["--policy", &policy, "--dump-plan", &plan, "--dump-parameters", &dump]);
        let changes = report(Path::new(&plan))["stages"][0]["changes"].clone();
        (outcome, changes, fs::read(Path::new(&dump).join("rank-0.safetensors")).expect("a dump"))
    };
    let (outcome, changes, followed) = with(&text, "followed");
    assert!(outcome.stdout.contains("the policy says how"), "{outcome:#?}");
    let all_reduces = changes[0]["all_reduces"].as_array().expect("all-reduces");
    assert!(changes[0]["iteration"] == 0 && changes.as_array().is_some_and(|all| all.len() == 1), "{changes:#}");
    assert!(!all_reduces.is_empty() && all_reduces.iter().all(|it| it["chunk_bytes"] == 8192), "{changes:#}");
    let mut seen = BTreeSet::from([followed]);
    for (old, new, why) in [
        ("schema = 1", "schema = 2", "the policy has schema 2"),
        ("channels = 1", "channels = 200", "rule 1 of the policy: channels is 200"),
        ("[[rule]]", "[[rules]]", "the policy cannot be read: "),
    ] {
        let (outcome, changes, dump) = with(&text.replacen(old, new, 1), "broken");
        assert!(changes.as_array().is_none_or(Vec::is_empty), "{changes:#}");
        seen.insert(dump);
        outcome.expect_stderr(&["paceline: rank 0 (host ", why, "calls are made as without a policy"]);
    }
    assert_eq!(seen.len(), 1, "other parameters");
    fs::remove_file(&policy).expect("our own file");
    trained(&["--policy", &policy]).expect_stderr(&["cannot read the policy: "]);
    let mut command = paceline(&[&["train"], &job[..], &["--policy", &policy]].concat());
    command.env("PACELINE_TUNE", "off");
    run(command, LIMIT).expect_code(0).expect_stderr(&["PACELINE_TUNE=off in the environment: --policy does nothing"]);
    let refused = |arguments: &[&str]| drop(train(&[&["--policy", &policy], arguments].concat()).expect_code(2));
    refused(&["--tune"]);
    refused(&["--strategy", "wfbp-ps"]);
    fs::remove_dir_all(directory).expect("our own directory");
}

/// Programs of files may be chosen like algorithms, if they are for these ranks.
#[test]
fn a_tuned_training_may_choose_programs_of_files() {
    let directory = scratch_directory("programs");
    let export = |collective: &str, ranks: &str| {
        let path = directory.join(format!("{collective}-{ranks}.xml")).to_string_lossy().into_owned();
        let words = ["program", "export", collective, "--algorithm", "ring", "--ranks", ranks, "-o", &path];
        run(paceline(&words), LIMIT).expect_code(0);
        path
    };
    let [two, three, gather] = [("all-reduce", "2"), ("all-reduce", "3"), ("all-gather", "2")]
        .map(|(collective, ranks)| export(collective, ranks));
    let job = ["--model", "mlp", "--workers", "2", "--iterations", "40"];
    let outcome = train(&[&job[..], &["--tune", "--program", &two]].concat()).expect_code(0);
    assert!(outcome.stdout.contains("\ntuning: "), "{outcome:#?}");
    let refused =
        |more: &[&str], why: &str| drop(train(&[&job[..], more].concat()).expect_code(2).expect_stderr(&[why]));
    refused(&["--tune", "--program", &three], "the program is of all-reduce for 3 ranks");
    refused(&["--tune", "--program", &gather], "the program is of all-gather for 2 ranks");
    refused(&["--program", &two], "--tune");
    refused(&["--tune", "--program", &two, "--dump-plan", "plan.json"], "--dump-plan");
    fs::remove_dir_all(directory).expect("our own directory");
}

#[test]
fn tuning_that_makes_no_sense_is_refused_with_the_reason() {
    let directory = scratch_directory("senseless-tuning");
    let plan = directory.join("plan.json");
    let plan = plan.to_string_lossy();
    train(&["--model", "mlp", "--workers", "2", "--iterations", "2", "--dump-plan", &plan]).expect_code(0);
    let refused = |arguments: &[&str], why: &str| drop(train(arguments).expect_code(2).expect_stderr(&[why]));
    refused(&["--tune", "--plan", &plan], "--plan carries out again");
    refused(&["--tune", "--strategy", "wfbp-ps"], "gradients go to servers and back");
    refused(&["--tune", "--tune-fusion", "--strategy", "wfbp-a2a"], "schedule=wfbp has none");
    refused(&["--tune-fusion", "--strategy", "ddp"], "required arguments were not provided");
    refused(&["--tune-database", "learned.db"], "--tune");
    let mut command = paceline(&["train", "--tune", "--workers", "2", "--model", "mlp", "--iterations", "2"]);
    command.env("PACELINE_TUNE", "of");
    run(command, LIMIT).expect_code(2).expect_stderr(&["PACELINE_TUNE=of is neither `on` nor `off`"]);
    fs::remove_dir_all(directory).expect("our own directory");
}
