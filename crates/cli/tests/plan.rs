//! `paceline plan`: what it answers, writes and refuses.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{Outcome, paceline, run};

const LIMIT: Duration = Duration::from_secs(120);

fn plan(arguments: &[&str]) -> Outcome {
    run(paceline(&[&["plan"], arguments].concat()), LIMIT)
}

/// The answer as JSON, and what was printed.
fn answer(name: &str, arguments: &[&str]) -> (Value, String) {
    let path = scratch_file(&format!("{name}.json"));
    let outcome = plan(&[arguments, &["--json", &path.to_string_lossy()]].concat()).expect_code(0);
    let answer = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    fs::remove_file(path).expect("our own file");
    (answer, outcome.stdout)
}

/// BERT-Large on the study's four GPUs: most of the iteration is communication.
#[test]
fn the_best_strategy_its_reasons_and_its_price() {
    let (found, said) = answer(
        "bert",
        &["--cluster", "study-100gbib", "--model", "bert-large", "--workers", "4", "--price", "3.5", "--epoch", "1000"],
    );
    assert_eq!((&found["communication_bound"], &found["workers"]), (&Value::from(true), &Value::from(4)), "{found:#}");
    let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("no {name} in {found:#}"));
    let best = found["best"]["predicted_samples_per_s"].as_f64().expect("a number");
    assert!(best >= number("plain_samples_per_s"));
    // The workers' host for as long as an epoch takes, and that of a server that has one of its own.
    let dedicated = found["best"]["strategy"]
        .as_str()
        .is_some_and(|strategy| strategy.contains("ps:1:") && strategy.contains(":dedicated"));
    let hosts = if dedicated { 2.0 } else { 1.0 };
    assert!((number("epoch_price") / (hosts * 3.5 * number("epoch_s") / 3600.0) - 1.0).abs() < 1e-9);
    assert!((number("epoch_s") / (number("epoch_samples") / best) - 1.0).abs() < 1e-9);
    let rates = found["candidates"].as_array().expect("candidates").iter();
    let rates: Vec<f64> = rates.filter_map(|row| row["predicted_samples_per_s"].as_f64()).collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| *rate <= best * (1.0 + 1e-3)), "{rates:?}");
    for words in [
        "Even with the best lossless strategy",
        "It is limited by the links within hosts",
        "twice the bandwidth within hosts",
        "An epoch of",
    ] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    assert!(said.contains("torch.nn.parallel.DistributedDataParallel(model"), "{said}");
}

/// Eight GPUs on two hosts have half of the throughput of four on one: that is the answer, with what to ask next.
#[test]
fn fewer_workers_may_be_the_answer() {
    let base = ["--cluster", "study-10gbe", "--model", "bert-large", "--workers"];
    let (found, said) = answer("fewer", &[&base[..], &["8"]].concat());
    let verdict = (&found["verdict"], &found["use_workers"]);
    assert_eq!(verdict, (&Value::from("fewer-workers"), &Value::from(4)), "{found:#}");
    for words in ["\n- Use 4 workers: ", " samples/s, and all 8 reach ", "\n- --workers 4 says with which strategy\n"] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    let (next, said) = answer("next", &[&base[..], &["4"]].concat());
    let rate = |found: &Value| found["best"]["predicted_samples_per_s"].as_f64().expect("a rate");
    assert!(rate(&next) > rate(&found) && next["use_workers"].is_null(), "{next:#}");
    assert!(!said.contains("says with which strategy"), "{said}");
}

/// The answer stands beside what `auto` would take, where servers save too little; beside DDP; and beside the largest batch that fits,
/// where twice its own does not.
#[test]
fn what_else_one_could_do_is_told() {
    let all = ["--top", "99"];
    let asked = ["--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8"];
    let (found, said) = answer("else", &[&asked[..], &all].concat());
    let seconds = |row: &Value| row["iteration_s"].as_f64().expect("seconds");
    let has = |row: &Value, arch: &str| row["strategy"].as_str().is_some_and(|strategy| strategy.contains(arch));
    let rows = found["candidates"].as_array().expect("candidates");
    let all_to_all = rows.iter().find(|row| has(row, "arch=a2a")).expect("it is compared");
    let saved = 1.0 - seconds(&found["best"]) / seconds(all_to_all);
    assert!(has(&found["best"], "arch=ps") && saved <= 0.03, "another cluster is needed for this test: {found:#}");
    let told = said.lines().find(|line| line.starts_with("- While it trains, auto would take ")).expect("it is told");
    let strategy = all_to_all["strategy"].as_str().expect("a strategy");
    assert!(told.contains(strategy) && told.contains("servers must be predicted to save 3 %"), "{told}");
    assert_eq!(found["auto"]["strategy"], strategy);
    let rate = found["ddp"]["predicted_samples_per_s"].as_f64().expect("a rate");
    assert!(said.contains(&format!(" what comes closest with PyTorch's DDP ({rate:.1} samples/s)\n")), "{said}");
    assert!(said.contains(", the largest that fits in memory (128 does not), it would "), "{said}");
}

/// Eight hosts with workers and eight that only serve, which the cluster does not have.
#[test]
fn hosts_that_are_supposed_are_marked_and_paid_for() {
    let base = ["--cluster", "25gbe+pcie4:8x4", "--model", "bert-base", "--price", "3.5", "--epoch", "1000000"];
    let (found, said) = answer("supposed", &[&base[..], &["--strategy", "auto,arch=ps:8:1MiB:dedicated"]].concat());
    assert!(said.contains("servers on hosts of their own are for `paceline bench`"), "{said}");
    let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("no {name} in {found:#}"));
    assert!((number("epoch_price") / (16.0 * 3.5 * number("epoch_s") / 3600.0) - 1.0).abs() < 1e-9, "{found:#}");
    let doubt = "8 hosts that only serve are supposed, and the cluster has none";
    assert!(said.contains(&format!("- Extrapolated: {doubt}\n")), "{said}");
    assert_eq!(found["best"]["extrapolated"], Value::from(vec![doubt]), "{found:#}");
    // Nor has anybody measured these links, of which the answer says once what its constants are.
    let links = "nothing of 25gbe+pcie4:8x4 was measured, as far as it says; its constants come from: 25gbe: ";
    assert_eq!(said.matches(&format!("- Extrapolated: {links}")).count(), 1, "{said}");
    assert_eq!(said.matches(links).count(), 1, "{said}");
    // With 9 shards on 9 hosts it is not slower.
    let mut effects = found["effects"].as_array().expect("effects").iter();
    let shard = effects.find(|effect| effect["change"] == "9 shards instead of 8, on one host more,");
    assert!(shard.is_some_and(|effect| effect["gain"].as_f64().is_some_and(|gain| gain > -0.05)), "{found:#}");
}

#[test]
fn what_if_answers_for_another_cluster() {
    let rate = |name: &str, change: &[&str]| {
        let base = ["--cluster", "study-10gbe", "--model", "bert-base", "--workers", "8"];
        let (found, _) = answer(name, &[&base, change].concat());
        (found["best"]["predicted_samples_per_s"].as_f64().expect("a rate"), found["workers"].clone())
    };
    let (now, _) = rate("now", &[]);
    let (faster, _) = rate("faster", &["--what-if", "network=4x"]);
    let base = ["--cluster", "study-10gbe", "--model", "bert-base", "--workers", "8"];
    let (compared, said) = answer("compared", &[&base[..], &["--what-if", "network=25GbE"]].concat());
    let unchanged = compared["unchanged_samples_per_s"].as_f64().expect("a rate");
    assert!((unchanged / now - 1.0).abs() < 0.01, "{unchanged} instead of {now}");
    assert!(said.contains("Without what --what-if changes") && said.contains("study-10gbe with 25gbe"), "{said}");
    assert!(faster > 1.1 * now, "{faster} instead of {now}");
    let (more, workers) = rate("more", &["--what-if", "network=4x,workers=16"]);
    assert!(more > faster && workers == 16, "{more} on {workers}");
}

/// Workers and operations beyond what the cluster was measured with are marked wherever a number comes from them: also for PyTorch,
/// and of what `--what-if` changes.
#[test]
fn everything_that_is_extrapolated_says_so() {
    let path = scratch_file("measured.toml");
    let links = "alpha_s = 5e-5\nbeta_s_per_byte = 8e-10\n";
    let head = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 8\nworkers_per_host = 1\n";
    let with = |name: &str, bytes: u64, workers: &[&str]| {
        let measured = format!("[measured]\nworkers = [4, 8]\nbytes = [1, {bytes}]\n");
        fs::write(&path, format!("{head}[across]\n{links}{measured}")).expect("a file");
        answer(name, &[&["--cluster", &path.to_string_lossy(), "--model", "resnet50"], workers].concat())
    };
    let (found, said) = with("beyond", 1 << 20, &["--workers", "2", "--what-if", "workers=8"]);
    let doubt = "2 workers, and constants were measured with 4 to 8";
    let doubts = |value: &Value| value.as_array().expect("a list").clone();
    assert!(doubts(&found["unchanged_extrapolated"]).contains(&Value::from(doubt)), "{found:#}");
    let line = |words: &str| said.lines().find(|line| line.contains(words)).expect("it is said").to_owned();
    let unchanged = line("Without what --what-if changes");
    assert!(unchanged.contains("samples/s (extrapolated: ") && unchanged.contains(doubt), "{unchanged}");
    // A bucket of DDP's is 25 MiB.
    assert_eq!(doubts(&found["ddp"]["extrapolated"]).len(), 1, "{found:#}");
    let ddp = line("if its all-reduce is as fast as this one");
    assert!(ddp.contains(" (extrapolated: operations of ") && ddp.ends_with("measured with 1 to 1048576)"), "{ddp}");
    let (within, said) = with("within", 1 << 40, &["--workers", "8"]);
    assert!(doubts(&within["ddp"]["extrapolated"]).is_empty() && doubts(&within["unchanged_extrapolated"]).is_empty());
    assert!(said.lines().any(|line| line.ends_with("if its all-reduce is as fast as this one")), "{said}");
    fs::remove_file(&path).expect("our own file");
}

/// The profile of ResNet-50 knows ImageNet; and another network changes nothing for those who do not use it.
#[test]
fn an_epoch_is_that_of_the_model() {
    let base = ["--cluster", "study-10gbe", "--model", "resnet50", "--workers", "4"];
    let (found, said) = answer("epoch", &[&base[..], &["--what-if", "network=25GbE"]].concat());
    assert_eq!(found["epoch_samples"], 1_281_167);
    assert!(said.contains("An epoch of 1281167 samples takes"), "{said}");
    assert!(said.contains("All 4 workers are on one host, so network=25GbE changes nothing"), "{said}");
    assert!(!said.contains(":dedicated"), "servers elsewhere serve nobody: {said}");
}

#[test]
fn a_strategy_may_fix_what_is_not_to_be_chosen() {
    let base = ["--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8"];
    let (found, _) = answer("fixed", &[&base[..], &["--strategy", "ddp,arch=auto", "--local-batch", "32,64"]].concat());
    let rows = found["candidates"].as_array().expect("candidates");
    assert!(rows.iter().all(|row| row["strategy"].as_str().is_some_and(|text| text.contains("schedule=ddp"))));
    let batches: Vec<&Value> = rows.iter().map(|row| &row["local_batch"]).collect();
    assert!(batches.contains(&&Value::from(32)) && batches.contains(&&Value::from(64)), "{batches:?}");
}

/// The largest batch that the device of the profile has memory for is known, or it is refused to guess.
#[test]
fn batches_may_be_those_that_fit_in_memory() {
    let base = ["--cluster", "study-10gbe", "--workers", "8", "--strategy", "ddp,arch=a2a", "--local-batch", "auto"];
    let (found, _) = answer("batches", &[&base[..], &["--model", "resnet50"]].concat());
    let rows = found["candidates"].as_array().expect("candidates").iter();
    let mut batches: Vec<u64> = rows.filter_map(|row| row["local_batch"].as_u64()).collect();
    batches.sort_unstable();
    assert_eq!((&batches[..7], batches.len()), (&[1, 2, 4, 8, 16, 32, 64][..], 8), "{found:#}");
    assert!((65..128).contains(&batches[7]), "the most that fit: {batches:?}");
    let unknown = plan(&[&base[..], &["--model", "resnet50@h100=1000"]].concat());
    let words = ["the profile of resnet50 on h100 does not say which that is", "--local-batch 32,64"];
    unknown.expect_code(2).expect_stderr(&words);
}

/// What a prediction of `auto` is about is what `plan` finds.
#[test]
fn simulate_predicts_what_is_chosen() {
    let base = ["--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8"];
    let (found, _) = answer("chosen", &base);
    let arguments = [&["simulate", "--strategy", "auto"], &base[..]].concat();
    let said = run(paceline(&arguments), LIMIT).expect_code(0).stdout;
    let strategy = found["best"]["strategy"].as_str().expect("a strategy");
    assert!(said.contains(strategy), "no {strategy} in {said}");
}

#[test]
fn one_worker_has_nobody_to_communicate_with() {
    let (found, said) = answer("one", &["--cluster", "study-10gbe", "--model", "resnet50", "--workers", "1"]);
    assert_eq!((&found["verdict"], &found["communication_bound"]), (&Value::from("plain"), &Value::from(false)));
    assert!(said.contains("on 1 worker (1 host) of study-10gbe") && said.contains("None of it"), "{said}");
}

#[test]
fn bad_input_is_named() {
    let base = ["--cluster", "study-10gbe", "--model", "resnet50"];
    let refused = |arguments: &[&str], words: &[&str]| drop(plan(arguments).expect_code(2).expect_stderr(words));
    refused(&["--cluster", "no-such", "--model", "resnet50"], &["no-such", "built in"]);
    refused(&["--cluster", "study-10gbe", "--model", "no-such"], &["there is no profile `no-such`"]);
    refused(&[&base[..], &["--workers", "64"]].concat(), &["64 workers do not fit on study-10gbe", "workers=64"]);
    refused(&[&base[..], &["--what-if", "speed=2"]].concat(), &["`speed=2` is no change"]);
    let cluster = [&base[..], &["--what-if", "network=study-100gbe"]].concat();
    refused(&cluster, &["no link has the name `study-100gbe`; links are 100gbe, "]);
    refused(&[&base[..], &["--strategy", "wbfp"]].concat(), &["unknown preset `wbfp`; known: bsp-ps"]);
    refused(&[&base[..], &["--price=-1", "--workers", "4"]].concat(), &["is no price"]);
    let torus = scratch_file("torus.toml");
    let links = "alpha_s = 5e-5\nbeta_s_per_byte = 8e-10\n";
    let text = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 8\nworkers_per_host = 1\n";
    fs::write(&torus, format!("{text}topology = \"torus:4x2\"\n[across]\n{links}")).expect("a file");
    let file = torus.to_string_lossy();
    let changed = ["--cluster", &file, "--model", "resnet50", "--what-if", "workers=16"];
    refused(
        &changed,
        &[&*file, "after --what-if", "topology torus:4x2 has room for 8 hosts, exactly, and hosts is 16"],
    );
    fs::remove_file(&torus).expect("our own file");
}

/// What is found can be written, and predicted again as it is.
#[test]
fn the_plan_that_is_found_can_be_carried_out() {
    let base = ["--cluster", "study-10gbe", "--model", "bert-base", "--workers", "8"];
    let path = scratch_file("found.json");
    let file = path.to_string_lossy().into_owned();
    let (found, _) = answer("written", &[&base[..], &["-o", &file]].concat());
    let written: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    let stages = written["stages"].as_array().expect("stages");
    assert_eq!((stages.len(), &stages[0]["plan"]["strategy"]), (1, &found["best"]["strategy"]));
    let again = scratch_file("again.json");
    let json = again.to_string_lossy().into_owned();
    run(paceline(&[&["simulate", "--plan", &file, "--json", &json], &base[..]].concat()), LIMIT).expect_code(0);
    let predicted: Value = serde_json::from_str(&fs::read_to_string(&again).expect("the file")).expect("JSON");
    let seconds = |value: &Value| value.as_f64().expect("seconds");
    let (one, other) = (seconds(&found["best"]["iteration_s"]), seconds(&predicted["prediction"]["iteration_s"]));
    assert!((one / other - 1.0).abs() < 1e-9, "{one} {other}");
    // It is for this model and no other.
    let other = ["simulate", "--plan", &file, "--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8"];
    run(paceline(&other), LIMIT).expect_code(2).expect_stderr(&[&*file, "the plan is for 206 tensors, and 161 are"]);
    let broken = |change: &dyn Fn(&mut Value), says: &str| {
        let mut changed = written.clone();
        change(&mut changed["stages"][0]["plan"]);
        fs::write(&path, changed.to_string()).expect("written");
        let again = [&["simulate", "--plan", &file][..], &base[..]].concat();
        run(paceline(&again), LIMIT).expect_code(2).expect_stderr(&[&*file, says]);
    };
    // All of another size: what lies behind the first element is nobody's.
    let one_element = |plan: &mut Value| {
        let buckets = plan["buckets"].as_array_mut().expect("a list");
        for (at, bucket) in buckets.iter_mut().enumerate() {
            let elements = serde_json::json!({ "start": at, "end": at + 1 });
            let shard = bucket["partitions"][0]["shard"].clone();
            bucket["partitions"] = serde_json::json!([{ "elements": elements, "shard": shard }]);
            bucket["elements"] = elements;
        }
    };
    broken(&one_element, "the plan is for tensors of other sizes");
    broken(&|plan| plan["strategy"] = "no-such-preset".into(), "the plan's strategy `no-such-preset`: ");
    fs::remove_file(path).and_then(|()| fs::remove_file(again)).expect("our own files");
}

/// From a profile that was measured to iterations under the plan that was found.
#[test]
fn training_carries_out_the_plan_that_is_found() {
    let [profile, file, done] = ["of-mlp.json", "of-mlp-plan.json", "of-mlp-done.json"].map(scratch_file);
    let [profile_text, file_text, done_text] = [&profile, &file, &done].map(|path| path.to_string_lossy().into_owned());
    let measure = ["profile", "--model", "mlp", "--starts", "1", "--iterations", "5", "-o", &profile_text];
    run(paceline(&measure), LIMIT).expect_code(0);
    let asked = ["--cluster", "10gbe+pcie3:1x2", "--model", &profile_text, "--workers", "2", "-o", &file_text];
    let (found, said) = answer("of-mlp-answer", &[&asked[..], &["--strategy", "auto,arch=ps:2"]].concat());
    assert!(!said.contains("servers on hosts of their own are for"), "{said}");
    let strategy = found["best"]["strategy"].as_str().expect("a strategy");
    let train = ["train", "--model", "mlp", "--workers", "2", "--iterations", "3", "--strategy", strategy];
    let carried_out = ["--plan", &file_text, "--json", &done_text];
    run(paceline(&[&train[..], &carried_out].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&done).expect("the file")).expect("JSON");
    assert_eq!(report["strategy"], strategy);
    assert_eq!(report["plan_hash"], found["best"]["plan_hash"], "{strategy}");
    for path in [profile, file, done] {
        fs::remove_file(path).expect("our own file");
    }
}

/// What docs/planning.md shows is what this program answers. PACELINE_UPDATE_DOCS=1 writes it anew.
#[test]
fn the_page_shows_an_answer() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/planning.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (begin, end) = ("<!-- answer -->\n```text\n", "```\n<!-- end of answer -->");
    let (before, rest) = page.split_once(begin).expect("the answer begins");
    let (shown, after) = rest.split_once(end).expect("the answer ends");
    let command = before.lines().rev().find_map(|line| line.strip_prefix("    paceline ")).expect("a command");
    let said = run(paceline(&command.split(' ').collect::<Vec<_>>()), LIMIT).expect_code(0).stdout;
    if std::env::var_os("PACELINE_UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{begin}{said}{end}{after}")).expect("written");
        return;
    }
    assert_eq!(shown, said, "docs/planning.md is out of date: run this test with PACELINE_UPDATE_DOCS=1");
}

/// The faster of two protocols is named, and what the other one would bring is said. Where a cluster does not tell them apart,
/// nothing speaks of them.
#[test]
fn protocols_are_compared_where_a_cluster_tells_them_apart() {
    let path = scratch_file("protocols.toml");
    let head = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 1\nworkers_per_host = 4\n";
    let of = |name: &str, protocols: &str| {
        let links = "[within]\nalpha_s = 1e-5\nbeta_s_per_byte = 4e-10\n";
        fs::write(&path, format!("{head}{links}{protocols}")).expect("a file");
        answer(name, &["--cluster", &path.to_string_lossy(), "--model", "bert-large", "--top", "50"])
    };
    let over = |beta: &str| format!("[protocols.tcp.within]\nalpha_s = 1e-5\nbeta_s_per_byte = {beta}\n");
    let names = |found: &Value| -> Vec<String> {
        let candidates = found["candidates"].as_array().expect("candidates").iter();
        let name = |row: &Value| Some(row["strategy"].as_str()?.rsplit_once("protocol=")?.1.to_owned());
        candidates.filter_map(name).collect()
    };
    let (faster, said) = of("faster-tcp", &over("2e-10"));
    let best = faster["best"]["strategy"].as_str().expect("a strategy");
    assert!(best.ends_with(",protocol=tcp") && said.contains(best), "{said}");
    assert!(said.contains("- With protocol=auto instead of tcp it would reach at least"), "{said}");
    assert!(names(&faster).iter().any(|name| name == "auto"), "{said}");
    let rows = faster["left_out"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["protocol"].is_string()), "{rows:?}");
    let (slower, said) = of("slower-tcp", &over("8e-10"));
    assert!(slower["best"]["strategy"].as_str().is_some_and(|best| best.ends_with(",protocol=auto")), "{said}");
    let (plain, said) = of("no-protocols", "");
    assert!(!said.contains("instead of tcp") && names(&plain).iter().all(|name| name == "auto"), "{said}");
    let rows = plain["left_out"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row.get("protocol").is_none()), "{rows:?}");
    let samples = |found: &Value| found["best"]["predicted_samples_per_s"].as_f64().expect("a number");
    assert!((samples(&slower) / samples(&plain) - 1.0).abs() < 0.01, "{} {}", samples(&slower), samples(&plain));
    fs::remove_file(path).expect("our own file");
}

#[test]
fn lossy_methods_are_admitted_when_one_says_so() {
    let base = ["--cluster", "study-10gbe", "--model", "bert-large", "--workers", "32"];
    let (found, said) = answer("lossy", &[&base[..], &["--lossy"]].concat());
    assert_eq!(found["ddp"]["comm_hook"], "default_hooks.fp16_compress_hook", "{said}");
    // Nobody has said what an epoch of this model is.
    assert!(found["epoch_s"].is_null() && !said.contains("epoch"), "{said}");
}

/// A price needs something that it is the price of; and another batch is another computation than that of the profile.
#[test]
fn what_is_missing_for_an_answer_is_said() {
    let base = ["--cluster", "study-10gbe", "--model", "bert-base", "--workers", "8", "--strategy", "ddp"];
    let (found, said) = answer("priced", &[&base[..], &["--price", "3.5", "--local-batch", "32"]].concat());
    assert!(found["epoch_price"].is_null() && said.contains("--epoch does"), "{said}");
    assert!(said.contains("- Extrapolated: computation is scaled from a batch of 64"), "{said}");
    let doubt = serde_json::json!(["computation is scaled from a batch of 64"]);
    assert_eq!([&found["best"]["extrapolated"], &found["ddp"]["extrapolated"]], [&doubt; 2]);
    // What is reached without a change is of that batch, too, also where the change is another one.
    let change = ["--local-batch", "32", "--what-if", "local-batch=64"];
    let (found, said) = answer("unchanged", &[&base[..], &change].concat());
    assert_eq!(found["unchanged_extrapolated"], doubt, "{said}");
    assert_eq!(found["extrapolated"], serde_json::json!([]), "{said}");
}
