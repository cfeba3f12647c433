//! `paceline profile`: measured, scaled, and from a trace.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use paceline_plan::Profile;
use rustix::process::{Pid, Signal, kill_process};
use support::folder::{Folder, scratch_file};
use support::{Outcome, SOON, children_of, is_alive, paceline, run, start, until};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(60);
/// Of a model with 110 million parameters, in a program that is not optimised.
const BERT_LIMIT: Duration = Duration::from_secs(300);
/// To load PyTorch for the first time takes half a minute.
const TORCH_LIMIT: Duration = Duration::from_secs(180);

/// Runs `profile` with these arguments and `-o FILE`; what it says, and the profile.
fn profile(test: &str, arguments: &[&str]) -> (Outcome, Profile) {
    profile_within(LIMIT, test, arguments)
}

fn profile_within(limit: Duration, test: &str, arguments: &[&str]) -> (Outcome, Profile) {
    let path = scratch_file(&format!("{test}.json"));
    let file = path.to_string_lossy();
    let outcome = run(paceline(&[&["profile"], arguments, &["-o", &file]].concat()), limit).expect_code(0);
    let text = fs::read_to_string(&path).expect("the profile");
    fs::remove_file(path).expect("our own file");
    (outcome, serde_json::from_str(&text).expect("a profile"))
}

#[test]
fn a_model_is_measured() {
    let arguments =
        ["--model", "mlp", "--local-batch", "8", "--iterations", "6", "--optimizer", "adamw", "--threads", "1"];
    let (outcome, profile) = profile("measured", &arguments);
    assert_eq!((profile.check(), &*profile.model, profile.local_batch), (Ok(()), "mlp", 8));
    assert_eq!(profile.ready_order(), [3, 2, 1, 0]);
    for part in ["mean of 30 iterations after 5 in each of 5 starts", "threads 1", "adamw"] {
        assert!(profile.source.contains(part), "{}", profile.source);
    }
    assert!(profile.uncertainty.is_some() && profile.spread.is_some(), "{profile:?}");
    let memory = profile.memory.expect("it is estimated");
    assert!(memory.largest_local_batch().is_some_and(|samples| samples > 8), "{memory:?}");
    assert!(memory.fixed_bytes > 5 * 4 * 101_770 && memory.bytes_per_sample > 4 * 784, "{memory:?}");
    for part in ["4 tensors, 101770 parameters, local batch 8", "FLOP per sample", "samples fit in", "fc1.weight"] {
        assert!(outcome.stdout.contains(part), "no `{part}`: {outcome:#?}");
    }
}

#[test]
fn a_model_is_started_as_often_as_told() {
    let arguments = ["--model", "mlp", "--local-batch", "8", "--iterations", "6", "--threads", "1", "--starts"];
    for (starts, says) in
        [("1", "mean of 6 iterations after 5, threads 1"), ("2", "of 12 iterations after 5 in each of 2 starts")]
    {
        let (_, profile) = profile("started", &[&arguments[..], &[starts]].concat());
        assert!(profile.source.contains(says), "{}", profile.source);
    }
}

/// As one of two workers of this host, with half of its cores.
#[test]
fn a_worker_is_measured_beside_others() {
    let arguments = ["--model", "mlp", "--local-batch", "8", "--iterations", "6", "--workers", "2", "--threads", "1"];
    let (_, profile) = profile("beside", &arguments);
    assert_eq!((profile.check(), &*profile.model), (Ok(()), "mlp"));
    let said = "in each of 5 starts, threads 1, sgd, as one of 2 workers that computed on this host";
    assert!(profile.source.ends_with(said) && profile.spread.is_some(), "{profile:?}");
    // Of what is no model there is nothing to compute beside.
    let outcome = run(paceline(&["profile", "--model", "resnet50@v100", "--workers", "2"]), LIMIT).expect_code(2);
    assert!(outcome.stderr.contains("--workers says how to measure"), "{outcome:#?}");
}

/// Whoever measures is gone, and so are those that computed beside it.
#[test]
fn nobody_computes_on_for_one_that_was_killed() {
    let beside = ["profile", "--model", "mlp", "--workers", "2", "--threads", "1", "--iterations"];
    // The other worker of the first start; the second start, and its other worker.
    for (iterations, generations) in [("1000000", 1), ("2000", 2)] {
        let measuring = start(paceline(&[&beside[..], &[iterations]].concat()));
        let mut started = Vec::new();
        let all_there = until(LIMIT, || {
            let children = children_of(measuring.pid());
            let grandchildren = children.iter().flat_map(|&child| children_of(child));
            started = if generations == 1 { children } else { grandchildren.chain(children.clone()).collect() };
            started.len() == generations
        });
        assert!(all_there, "nobody computes beside it: {started:?}");
        measuring.signal(Signal::KILL);
        assert!(until(SOON, || !started.iter().any(|&one| is_alive(one))), "{started:?} compute on");
    }
}

#[test]
fn a_worker_or_a_start_that_is_killed_is_named() {
    for (more, says) in [
        (["--workers", "2"], "worker 1 beside this one"),
        (["--starts", "2"], "start 2 of the model ended before it was measured"),
    ] {
        let arguments = ["profile", "--model", "mlp", "--iterations", "2000", "--threads", "1"];
        let measuring = start(paceline(&[&arguments[..], &more].concat()));
        let mut others = Vec::new();
        let is_there = until(LIMIT, || {
            others = children_of(measuring.pid());
            !others.is_empty()
        });
        assert!(is_there, "nobody but the first: {more:?}");
        kill_process(Pid::from_raw(others[0] as i32).expect("a process"), Signal::KILL).expect("it has just begun");
        measuring.end_within(LIMIT).expect_code(1).expect_stderr(&[says]);
    }
}

/// In the smallest batch: the study's tensors, ready in the order of the profile that is built in. (But for the pooler's, which is beside
/// the head of the tokens: either may come first.)
#[test]
fn bert_base_is_measured() {
    if std::env::var_os("PACELINE_LONG_TESTS").is_none() {
        eprintln!("skipped: PACELINE_LONG_TESTS is not set");
        return;
    }
    let arguments = ["--model", "bert-base", "--local-batch", "1", "--warmup", "1", "--iterations", "2"];
    let (outcome, profile) = profile_within(BERT_LIMIT, "bert-base", &arguments);
    let built_in = paceline_plan::built_in_profile("bert-base").expect("it is built in");
    assert_eq!((profile.check(), &*profile.model, profile.local_batch), (Ok(()), "bert-base", 1));
    assert!(outcome.stdout.contains("206 tensors, 110111042 parameters, local batch 1"), "{outcome:#?}");
    assert_eq!(profile.tensors, built_in.tensors);
    let times = [profile.forward_s(), profile.backward_s(), profile.update_s];
    assert!(times.iter().all(|&seconds| seconds > 0.0), "{times:?}");
    let order = |profile: &Profile| -> Vec<String> {
        let names = profile.ready_order().into_iter().map(|tensor| profile.tensors[tensor].name.clone());
        names.filter(|name| !name.starts_with("bert.pooler.")).collect()
    };
    assert_eq!(order(&profile), order(&built_in));
    assert_eq!(order(&profile).last().map(String::as_str), Some("bert.embeddings.word_embeddings.weight"));
    // The gradient, and what momentum keeps, are as large as the parameters.
    let memory = profile.memory.expect("it is estimated");
    assert!(memory.fixed_bytes >= 3 * 4 * 110_111_042, "{memory:?}");
}

#[test]
fn a_profile_is_scaled_to_a_gpu() {
    let (outcome, profile) = profile("scaled", &["--model", "resnet50@v100=405:5%"]);
    assert_eq!((&*profile.device, profile.uncertainty), ("v100", Some(0.05)));
    assert!((64.0 / profile.iteration_s() / 405.0 - 1.0).abs() < 1e-9);
    assert!(outcome.stdout.contains("405.0 samples/s ± 5.0 %"), "{outcome:#?}");
    assert!(!outcome.stdout.contains("extrapolated"), "{outcome:#?}");
    let (outcome, smaller) = self::profile("smaller", &["--model", "resnet50@v100=405", "--local-batch", "32"]);
    assert!(outcome.stdout.contains("extrapolated from a local batch of 64"), "{outcome:#?}");
    assert!(smaller.local_batch == 32 && (smaller.forward_s() * 2.0 - profile.forward_s()).abs() < 1e-9);
    assert_eq!((profile.scaled_from(), smaller.scaled_from()), (None, Some(64)));
}

/// On a GPU that is not built in, too, it is known which batches fit.
#[test]
fn a_gpus_memory_is_given_behind_its_throughput() {
    let (outcome, profile) = profile("memory", &["--model", "bert-large@h100=300,memory=80GiB"]);
    let need = profile.memory.expect("it is counted of the built-in profile");
    assert_eq!(need.available_bytes, Some((80_u64 << 30) / 100 * 80));
    let largest = need.largest_local_batch().expect("it is known");
    assert!(outcome.stdout.contains(&format!("; {largest} samples fit in 68.7 GB")), "{outcome:#?}");
    let plan = ["plan", "--cluster", "study-10gbe", "--workers", "8", "--strategy", "ddp,arch=a2a", "--model"];
    let planned = |model: &str| run(paceline(&[&plan[..], &[model, "--local-batch", "auto"]].concat()), LIMIT);
    planned("bert-large@h100=300,memory=80GiB").expect_code(0);
    planned("bert-large@h100=300").expect_code(2).expect_stderr(&["does not say which that is"]);
}

/// And the samples per second, and what else is given.
const LISTED: [&str; 5] = ["--tensors", RESNET50, "--local-batch", "8", "--samples-per-s"];
const RESNET50: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/resnet50_tensors.csv");

/// By the rules of the profiles that are built in: the study's list and throughput give the study's profile.
#[test]
fn a_list_of_tensors_and_a_throughput_make_a_profile() {
    let given = ["--tensors", RESNET50, "--samples-per-s", "253.1:5%", "--local-batch", "64"];
    let (outcome, listed) = profile("listed", &[&given[..], &["--model", "resnet50@rtx2080ti"]].concat());
    let built_in = paceline_plan::built_in_profile("resnet50").expect("it is built in");
    assert_eq!((listed.check().and_then(|()| listed.check_pace()), listed.uncertainty), (Ok(()), Some(0.05)));
    assert_eq!((&*listed.model, &*listed.device), ("resnet50", "rtx2080ti"));
    assert_eq!(listed.tensors, built_in.tensors);
    let near = |left: f64, right: f64| (left / right - 1.0).abs() < 1e-9;
    assert!(near(listed.forward_s(), built_in.forward_s()) && near(listed.backward_s(), built_in.backward_s()));
    assert!(near(listed.update_s, built_in.update_s) && listed.memory.is_none(), "{}", listed.source);
    assert_eq!((listed.ready_order(), listed.use_order()), (built_in.ready_order(), built_in.use_order()));
    assert!(outcome.stdout.contains("253.1 samples/s ± 5.0 %"), "{outcome:#?}");
    // Named after the file, on a GPU that nobody knows, and with the other optimiser.
    let (_, unnamed) = profile("unnamed-list", &[&given[..], &["--optimizer", "adamw"]].concat());
    assert_eq!((&*unnamed.model, &*unnamed.device), ("resnet50", "gpu"));
    assert!(near(unnamed.iteration_s(), listed.iteration_s()) && unnamed.update_s > 1.5 * listed.update_s);
}

/// A file of another batch than was recorded says so to whoever reads it.
#[test]
fn a_file_of_another_batch_is_extrapolated_wherever_it_goes() {
    let path = scratch_file("scaled-batch.json");
    let file = path.to_string_lossy().into_owned();
    let scale = ["profile", "--model", "resnet50@rtx2080ti", "--local-batch", "32", "-o", &file];
    run(paceline(&scale), LIMIT).expect_code(0);
    let again = run(paceline(&["profile", "--model", &file]), LIMIT).expect_code(0);
    assert!(again.stdout.contains("extrapolated from a local batch of 64"), "{again:#?}");
    let simulate = ["simulate", "--cluster", "study-10gbe", "--model", &file, "--workers", "8"];
    let simulated = run(paceline(&simulate), LIMIT).expect_code(0);
    assert!(simulated.stdout.contains("computation is scaled from a batch of 64"), "{simulated:#?}");
    // Back at what was recorded nothing is.
    let back = run(paceline(&[&simulate[..], &["--local-batch", "64"]].concat()), LIMIT).expect_code(0);
    assert!(!back.stdout.contains("extrapolated"), "{back:#?}");
    fs::remove_file(&path).expect("our own file");
}

/// A file that a person has written is checked and summed up.
#[test]
fn a_file_is_summed_up_or_refused_by_field() {
    let path = scratch_file("written.json");
    let file = path.to_string_lossy().into_owned();
    let good = r#"{"schema": 1, "model": "mine", "device": "h100", "source": "by hand", "local_batch": 4,
        "tensors": [{"name": "w", "elements": 20, "forward_macs_per_sample": 20}, {"name": "b", "elements": 4}],
        "forward": [{"tensor": 0, "seconds": 0.001}, {"tensor": 1, "seconds": 0}],
        "backward": [{"tensor": 1, "seconds": 0.002}, {"tensor": 0, "seconds": 0.0005}], "update_s": 0.0005,
        "memory": {"fixed_bytes": 1000, "bytes_per_sample": 10, "available_bytes": 2005}}"#;
    fs::write(&path, good).expect("a scratch file");
    let outcome = run(paceline(&["profile", "--model", &file]), LIMIT).expect_code(0);
    for part in
        ["mine on h100: 2 tensors, 24 parameters", "1000 samples/s", "120 FLOP per sample", "100 samples fit in"]
    {
        assert!(outcome.stdout.contains(part), "no `{part}`: {outcome:#?}");
    }
    for (from, to, says) in [
        ("0.002", "-0.002", "the profile is inconsistent: backward[0].seconds is -0.002; give seconds"),
        ("\"elements\": 4", "\"elements\": 0", "the profile is inconsistent: tensors[1].elements is 0"),
        (", \"elements\": 4", "", "is no profile: tensors[1]: missing field `elements` at line 2"),
        ("\"b\"", "\"w\"", "the profile is inconsistent: tensors has two of the name `w`"),
        ("{\"tensor\": 1, \"seconds\": 0.002}, ", "", "the profile is inconsistent: backward has no step for tensor 1"),
        ("\"tensor\": 1, \"seconds\": 0}", "\"tensor\": 2, \"seconds\": 0}", "forward[1].tensor is 2"),
        ("\"fixed_bytes\": 1000", "\"fixed_bytes\": 0", "memory.fixed_bytes is 0"),
        ("\"fixed_bytes\": 1000", "\"fixed_bytes\": 95", "is 95; a worker has at least its 24 parameters, 96 bytes"),
        ("\"available_bytes\": 2005", "\"available_bytes\": 0", "memory.available_bytes is 0; leave it out"),
        ("\"memory\"", "\"uncertainty\": 10, \"memory\"", "uncertainty is 10; it is a share of the time below 1"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good, "{from}");
        fs::write(&path, bad).expect("a scratch file");
        run(paceline(&["profile", "--model", &file]), LIMIT).expect_code(2).expect_stderr(&[&file, says]);
    }
    fs::remove_file(path).expect("our own file");
}

#[test]
fn a_trace_is_read() {
    let path = scratch_file("line.pt.trace.json");
    // Two iterations of a linear layer of 3 × 5 without bias; 15 us of 100 are the optimiser's.
    let event = |cat: &str, name: &str, ts: usize, dur: usize, dims: &str| {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":1,"ts":{ts},"dur":{dur},"args":{{"Input Dims":{dims}}}}}"#
        )
    };
    let iteration = |began: usize| {
        [
            event("cpu_op", "aten::linear", began, 20, "[[8,5],[3,5],[]]"),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", began + 30, 20, "[]"),
            event("cpu_op", "torch::autograd::AccumulateGrad", began + 55, 5, "[[3,5]]"),
            event("user_annotation", "Optimizer.step#SGD.step", began + 70, 15, "[]"),
        ]
    };
    let events = [iteration(0), iteration(100)].concat().join(",");
    fs::write(&path, format!("{{\"traceEvents\":[{events}]}}")).expect("a scratch file");
    let (_, unnamed) = profile("unnamed", &["--from-trace", &path.to_string_lossy()]);
    assert_eq!(unnamed.model, format!("profile-{}-line", std::process::id()));
    let (outcome, profile) = profile("trace", &["--from-trace", &path.to_string_lossy(), "--model", "line"]);
    fs::remove_file(path).expect("our own file");
    assert_eq!((profile.check(), &*profile.model, &*profile.device, profile.local_batch), (Ok(()), "line", "cpu", 8));
    assert!((profile.iteration_s() * 1e6 - 75.0).abs() < 1e-6, "{profile:?}");
    assert!(outcome.stdout.contains("25.0 us of it none of these"), "{outcome:#?}");
    assert!(!outcome.stderr.contains("gradients"), "{outcome:#?}");
}

/// A profile has no type, and predictions count four bytes for each element: what would mislead them is not written.
#[test]
fn gradients_of_two_bytes_in_a_trace_are_refused() {
    let (path, written) = (scratch_file("half.json"), scratch_file("half-profile.json"));
    let event = |name: &str, ts: usize, args: &str| {
        format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":1,"ts":{ts},"dur":5,"args":{{"Input Dims":{args}}}}}"#
        )
    };
    let events = [
        event("aten::linear", 0, r#"[[8,5],[3,5],[]],"Input type":["c10::Half","c10::Half",""]"#),
        event("torch::autograd::AccumulateGrad", 55, r#"[[3,5]],"Input type":["c10::Half"]"#),
        event("Optimizer.step#SGD.step", 70, "[]"),
    ];
    fs::write(&path, format!("{{\"traceEvents\":[{}]}}", events.join(","))).expect("a scratch file");
    let [trace, output] = [&path, &written].map(|path| path.to_string_lossy().into_owned());
    let refused = run(paceline(&["profile", "--from-trace", &trace, "-o", &output]), LIMIT).expect_code(2);
    fs::remove_file(path).expect("our own file");
    let says = ["half.json: gradients are c10::Half, of 2 bytes an element", "in float32, with torch.autocast"];
    refused.expect_stderr(&says).expect_stderr(&["halve `elements`"]);
    assert!(!written.exists());
}

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools");
const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/profile_torch.py");

/// With the Python of `PACELINE_TORCH=/path/to/python3`, which must have PyTorch.
#[test]
fn a_pytorch_model_is_measured_and_replayed() {
    let Some(python) = needs::torch() else { return };
    let folder = Folder::new("torch");
    let path = |name: &str| folder.path(name);
    let file = path("mlp.json");
    let mut clocks = Command::new(&python);
    // Nothing is written beside the tool.
    clocks.args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/profile_torch_clocks.py"), TOOLS]);
    run(clocks, TORCH_LIMIT).expect_code(0);
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.arg(TOOL).args(arguments).current_dir(&folder.0);
        run(command, TORCH_LIMIT)
    };
    tool(&["mpl"]).expect_code(1).expect_stderr(&["MODEL is `mlp` or package.module:factory, not `mpl`"]);
    tool(&["torch.nn:Identity"]).expect_code(1).expect_stderr(&["--input says what one sample looks like"]);
    tool(&["mlp", "--batch", "many"]).expect_code(2).expect_stderr(&["--batch: invalid int value: 'many'"]);
    assert!(!folder.0.join("mlp.json").exists());
    let quick = ["mlp", "--batch", "4", "--warm-up", "1", "--iterations", "3"];
    tool(&[&quick[..], &["--out", "named.json"]].concat()).expect_code(0);
    assert!(folder.0.join("named.json").exists() && !folder.0.join("mlp.json").exists());
    // MODEL.json, if nobody says where.
    assert_eq!(tool(&quick).expect_code(0).stdout.trim(), "mlp.json");
    let profile: Profile = serde_json::from_str(&fs::read_to_string(&file).expect("the profile")).expect("a profile");
    assert_eq!((profile.check(), &*profile.model, profile.local_batch, profile.tensors.len()), (Ok(()), "mlp", 4, 7));
    assert!(profile.uncertainty.is_some_and(|share| share > 0.0), "{:?}", profile.uncertainty);
    let memory = profile.memory.expect("it says what a worker takes");
    let parameters: u64 = profile.tensors.iter().map(|tensor| 4 * tensor.elements as u64).sum();
    // At 16 places the 256 numbers behind ReLU, and the 64 behind the embedding, the second layer and the normalisation.
    let kept = 16 * (256 + 3 * 64) * 4;
    assert!(memory.fixed_bytes > 3 * parameters && memory.bytes_per_sample >= kept, "{memory:?}");
    assert!(memory.bytes_per_sample < 1 << 20 && memory.largest_local_batch() > Some(100), "{memory:?}");
    own_model_is_measured(&folder, tool);
    // Slowed until a sleep that ends late is short beside it.
    let dilation = (0.2 / profile.iteration_s()).ceil().max(1.0).to_string();
    let (compute, database, report) = (format!("replay:{file}"), path("runs.db"), path("report.html"));
    let mut arguments = vec!["bench", "--compute", &compute, "--emulate", "10GbE", "--dilate", &dilation];
    arguments.extend(["--methods", "wfbp-a2a"]);
    arguments.extend(["--workers", "2", "--warmup", "1", "--iterations", "2", "--runs", "1"]);
    arguments.extend(["--database", &database, "--report", &report]);
    let outcome = run(paceline(&arguments), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("mlp, local batch 4") && outcome.stdout.contains("replayed: "), "{outcome:#?}");
}

/// What a factory in a module of one's own makes.
fn own_model_is_measured(folder: &Folder, tool: impl Fn(&[&str]) -> Outcome) {
    let package = folder.0.join("own");
    fs::create_dir_all(&package).expect("a folder in our own");
    let linear = "from torch.nn import Linear, Sequential, Tanh\n\n\ndef two_layers():\n    return \
                  Sequential(Linear(12, 8), Tanh(), Linear(8, 2))\n\n\ndef half():\n    return \
                  two_layers().bfloat16()\n";
    fs::write(package.join("models.py"), linear).expect("a file in our own folder");
    let quick = ["--input", "12", "--batch", "4", "--warm-up", "1", "--iterations", "3", "--out", "own.json"];
    tool(&[&["own.models:two_layers"], &quick[..]].concat()).expect_code(0);
    let profile: Profile = serde_json::from_str(&folder.read("own.json")).expect("a profile");
    assert_eq!((profile.check(), &*profile.model, profile.local_batch), (Ok(()), "own.models:two_layers", 4));
    let tensors: Vec<_> =
        profile.tensors.iter().map(|one| (&*one.name, one.elements, one.forward_macs_per_sample)).collect();
    assert_eq!(tensors, [("0.weight", 96, 96), ("0.bias", 8, 0), ("2.weight", 16, 16), ("2.bias", 2, 0)]);
    // A profile has no type: predictions would count twice the bytes.
    let half = tool(&["own.models:half", "--input", "12", "--out", "half.json"]).expect_code(1);
    half.expect_stderr(&["gradients of 0.weight and 3 more are torch.bfloat16", "convert the model to float32"]);
    assert!(!folder.0.join("half.json").exists());
}

/// Isolated from installed packages, any Python is one without PyTorch.
#[test]
fn a_python_without_pytorch_is_told_so() {
    let mut command = Command::new("python3");
    command.args(["-S", "-c", "import json"]).stderr(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: python3 is not installed");
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-S", TOOL, "mlp", "--out", "/nowhere/mlp.json"]);
    run(command, LIMIT).expect_code(1).expect_stderr(&["this Python has no PyTorch", "No module named 'torch'"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, code, says) in [
        (&[][..], 2, "--model <NAME>"),
        (&["--model", "mpl"], 2, "did you mean `mlp`"),
        (&["--model", "resnet50@h100"], 2, "PROFILE@h100=SAMPLES_PER_S"),
        (&["--model", "resnet50@v100", "--threads", "2"], 2, "--threads says how to measure"),
        (&["--model", "resnet50@v100", "--starts", "2"], 2, "--starts says how to measure"),
        (&["--model", "cnn@v100=900"], 2, "paceline profile --model cnn -o cnn.json"),
        (&["--model", "none.json"], 2, "there is no profile `none.json`"),
        (
            &["--model", "resnet50@v100", "--local-batch", "100000000000"],
            2,
            "resnet50@v100 at 100000000000 samples: the profile is inconsistent: local_batch is 100000000000, more",
        ),
        (&["--model", "./Cargo.toml"], 2, "./Cargo.toml is no profile"),
        (&["--model", "mlp", "--local-batch", "7000"], 2, "the data holds 6000"),
        (&["--model", "mlp", "--tensors", "x.csv"], 2, "--from-trace"),
        (&["--samples-per-s", "100", "--local-batch", "8"], 2, "--tensors <FILE.csv>"),
        (&["--samples-per-s", "100", "--tensors", RESNET50], 2, "--local-batch <N>"),
        (&["--samples-per-s", "quick"], 2, "give samples per second above 0"),
        (&["--samples-per-s", "100:100%"], 2, "give samples per second above 0"),
        (&[&LISTED[..], &["100", "--from-trace", "x.json"]].concat(), 2, "cannot be used with"),
        (&[&LISTED[..], &["100", "--iterations", "5"]].concat(), 2, "cannot be used with"),
        (&[&LISTED[..], &["100", "--model", "mine@h100=100"]].concat(), 2, "--model mine@h100=100 names no model"),
        (
            &[&LISTED[..], &["1e9", "--model", "mine@v100"]].concat(),
            2,
            "resnet50_tensors.csv: the profile is inconsistent: samples_per_s is 1000000000: 8 samples take",
        ),
        (&["--model", "resnet50@v100", "--tensors", RESNET50], 2, "not how long an iteration takes"),
        (&["--model", "resnet50@h100=5,memory=much"], 2, "`h100=5,memory=much` names no device to scale to"),
        (&["--from-trace", "/no/such/file"], 2, "cannot read the trace /no/such/file"),
        (&["--from-trace", "Cargo.toml"], 2, "Cargo.toml: this is no trace of PyTorch's profiler"),
    ] {
        run(paceline(&[&["profile"], arguments].concat()), LIMIT).expect_code(code).expect_stderr(&[says]);
    }
}
