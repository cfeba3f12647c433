//! `paceline simulate`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use paceline_plan::ClusterSet;
use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);
/// Part of data/study_calibration.csv: two models, two networks; and a row without a throughput.
const STUDY: &str = "tests/data/study.csv";

/// All of the study's cells, with what is predicted of them.
const CELLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/runs/2026-11-27-study-cells");

/// What a prediction of 32 workers is meant to take, and how many times that without optimisation: as in the predictor's `scale.rs`.
const PREDICTED_US: f64 = 1e3;
const SLACK: f64 = if cfg!(debug_assertions) { 10.0 } else { 1.0 };

fn read(path: &PathBuf) -> Value {
    let value = serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON");
    fs::remove_file(path).expect("our own file");
    value
}

#[test]
fn one_cell_is_predicted_with_its_timeline() {
    let (json, trace) = (scratch_file("cell.json"), scratch_file("trace.json"));
    let (json_path, trace_path) = (json.to_string_lossy(), trace.to_string_lossy());
    let cell = ["simulate", "--cluster", "study-10gbe", "--model", "resnet50@rtx2080ti", "--strategy", "mg-wfbp"];
    let files = ["--workers", "32", "--json", &json_path, "--trace", &trace_path];
    let outcome = run(paceline(&[&cell[..], &files].concat()), LIMIT).expect_code(0);
    let head = "resnet50@rtx2080ti on 32 workers of study-10gbe";
    for words in [head, "samples/s", "limited by", "exposed", "C2C", "GB per worker"] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    let report = read(&json);
    let number = |field: &str| report["prediction"][field].as_f64().unwrap_or_else(|| panic!("{field}: {report}"));
    let (low, iteration, high) = (number("low_s"), number("iteration_s"), number("high_s"));
    assert!(low < iteration && iteration < high && high < 2.0 * low, "{low} {iteration} {high}");
    assert!((number("samples_per_s") - 2048.0 / iteration).abs() < 1e-6);
    assert!(number("speedup") > 25.0 && number("speedup") < 32.0);
    // 64 samples of 89 MB, and twelve bytes for each parameter.
    assert!((5.5e9..6.5e9).contains(&number("memory_bytes")), "{}", number("memory_bytes"));
    let elapsed_us = report["elapsed_us"].as_f64().expect("a time");
    assert!(elapsed_us > 0.0 && elapsed_us <= SLACK * PREDICTED_US, "{elapsed_us} us");
    // What is on the timeline lies within the iteration, and so it does in the trace.
    let spans = report["timeline"].as_array().expect("a list");
    assert!(spans.iter().any(|span| span["lane"] == "channel") && spans.len() > 50, "{}", spans.len());
    assert!(spans.iter().all(|span| span["end_s"].as_f64().expect("a time") <= iteration + 1e-9));
    let events = read(&trace);
    let drawn = events["traceEvents"].as_array().expect("a list").iter().filter(|event| event["ph"] == "X");
    assert_eq!(drawn.count(), spans.len());
}

/// What a search has taken is not in the time of one prediction, and stands beside it.
#[test]
fn the_search_for_what_is_left_open_has_a_time_of_its_own() {
    let json = scratch_file("searched.json");
    let file = json.to_string_lossy();
    let said = |strategy: &str| -> (String, Value) {
        let cell = ["simulate", "--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8"];
        let more = ["--strategy", strategy, "--json", &file];
        (run(paceline(&[&cell[..], &more].concat()), LIMIT).expect_code(0).stdout, read(&json)["searched_us"].clone())
    };
    let line =
        |told: &str, name: &str| told.lines().find(|line| line.trim_start().starts_with(name)).map(str::to_owned);
    let (told, searched_us) = said("auto");
    let shown = line(&told, "searched in").expect("it is said");
    let ms = searched_us.as_f64().expect("a time") / 1e3;
    assert_eq!(shown, format!("  searched in     {ms:.0} ms, for what the strategy leaves open"));
    assert!(line(&told, "predicted in").is_none_or(|line| line.ends_with(" us, without the search")), "{told}");
    let (told, searched_us) = said("mg-wfbp");
    assert!(searched_us.is_null() && !told.contains("search"), "{told}");
    assert!(line(&told, "predicted in").is_some_and(|line| line.ends_with(" us")), "{told}");
}

/// A batch that no such device can hold is predicted, and said to be one.
#[test]
fn a_batch_that_does_not_fit_in_memory_says_so() {
    let json = scratch_file("large.json");
    let cell = ["simulate", "--cluster", "study-10gbe", "--model", "resnet50@rtx2080ti", "--workers", "8"];
    let said = |batch: &str| {
        let more = ["--local-batch", batch, "--json", &json.to_string_lossy()];
        let outcome = run(paceline(&[&cell[..], &more].concat()), LIMIT).expect_code(0);
        (outcome.stdout, read(&json)["prediction"]["extrapolated"].to_string())
    };
    let doubt = "a local batch of 4096 does not fit in the memory of the device";
    let ((large, in_json), (fits, _)) = (said("4096"), said("64"));
    let line = large.lines().find(|line| line.contains(doubt)).expect("it is said");
    assert!(line.trim_start().starts_with("extrapolated") && in_json.contains(doubt), "{line} {in_json}");
    assert!(!fits.contains("extrapolated"), "{fits}");
}

/// Of links that one can buy, and of a cluster that a person has written, it is told once where the constants come from, if workers
/// communicate at all.
#[test]
fn a_cluster_that_nobody_has_measured_says_so() {
    let (toml, csv, json) = (scratch_file("own.toml"), scratch_file("own.csv"), scratch_file("own.json"));
    let [toml_path, csv_path, json_path] = [&toml, &csv, &json].map(|path| path.to_string_lossy().into_owned());
    let cluster = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 8\nworkers_per_host = 1\n\
                   [across]\nalpha_s = 5e-5\nbeta_s_per_byte = 8e-10\n";
    fs::write(&toml, cluster).expect("a file");
    let said = |cluster: &str, workers: &str| {
        let cell = ["simulate", "--cluster", cluster, "--model", "resnet50", "--workers", workers];
        let outcome = run(paceline(&[&cell[..], &["--json", &json_path]].concat()), LIMIT).expect_code(0);
        (outcome.stdout, read(&json)["prediction"]["extrapolated"].clone())
    };
    let by_hand = "nothing of mine was measured, as far as it says; its constants come from: by hand";
    let (told, in_json) = said(&toml_path, "8");
    assert!(told.contains(&format!("extrapolated    {by_hand}\n")), "{told}");
    assert_eq!(in_json, serde_json::json!([by_hand]));
    let (told, _) = said("25gbe+pcie4:8x4", "8");
    let links = "nothing of 25gbe+pcie4:8x4 was measured, as far as it says; its constants come from: 25gbe: ";
    assert_eq!(told.matches(links).count(), 1, "{told}");
    for (cluster, workers) in [(&*toml_path, "1"), ("study-10gbe", "8")] {
        assert_eq!(said(cluster, workers).1, serde_json::json!([]), "{cluster}");
    }
    let rows = "bert-base,64,any,BSP-A2A,8\nbert-base,64,any,BSP-A2A,4";
    fs::write(&csv, format!("model,local_batch,network,method,workers\n{rows}\n")).expect("a file");
    let outcome = run(paceline(&["simulate", "--study", &csv_path, "--cluster", &toml_path]), LIMIT).expect_code(0);
    let told = format!("extrapolated, lines 2, 3 of the study: {by_hand}\n");
    assert!(outcome.stdout.contains(&told), "{outcome:#?}");
    fs::remove_file(toml).and_then(|()| fs::remove_file(csv)).expect("our own files");
}

#[test]
fn every_row_of_a_study_is_predicted() {
    let json = scratch_file("study.json");
    let outcome = run(paceline(&["simulate", "--study", STUDY, "--json", &json.to_string_lossy()]), LIMIT);
    let outcome = outcome.expect_code(0);
    assert!(outcome.stdout.contains("median error") && outcome.stdout.contains("BSP-A2A"), "{outcome:#?}");
    let report = read(&json);
    let rows = report["rows"].as_array().expect("a list");
    let text = fs::read_to_string(STUDY).expect("the study");
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (columns, lines) = (lines.next().expect("a heading"), lines.collect::<Vec<_>>());
    assert_eq!(rows.len(), lines.len());
    for (row, cells) in rows.iter().zip(&lines) {
        for (column, cell) in columns.iter().zip(cells) {
            let is_it = match cell.parse::<f64>() {
                Ok(number) => row[column].as_f64() == Some(number),
                Err(_) => row[column] == **cell,
            };
            assert!(is_it, "{column} is not `{cell}` in {row}");
        }
    }
    let first = &rows[0];
    assert_eq!((&first["model"], &first["workers"]), (&Value::from("ResNet-50"), &Value::from(4)));
    let off = first["predicted_samples_per_s"].as_f64().expect("a number") / 925.02 - 1.0;
    assert!(off.abs() < 0.05 && (first["error"].as_f64().expect("a number") - off).abs() < 1e-9, "{first}");
    let errors = report["errors"].as_array().expect("a list");
    let of_all = errors.last().expect("of all");
    let within = rows.iter().filter(|row| {
        let [low, high] = ["low_samples_per_s", "high_samples_per_s"].map(|name| row[name].as_f64().expect(name));
        row["samples_per_s"].as_f64().is_some_and(|measured| low <= measured && measured <= high)
    });
    assert_eq!((&of_all["method"], of_all["within"].as_u64()), (&Value::from("all"), Some(within.count() as u64)));
    // Two models and two networks with three numbers of workers each; two methods of each were measured.
    let regrets = report["choices"].as_array().expect("a list").iter().map(|choice| choice["regret"].as_f64());
    let regrets: Vec<f64> = regrets.collect::<Option<_>>().expect("numbers");
    assert!(regrets.len() == 12 && regrets.iter().all(|regret| (0.0..1.0).contains(regret)), "{regrets:?}");
    let mean = report["mean_regret"].as_f64().expect("a number");
    assert!((mean - regrets.iter().sum::<f64>() / 12.0).abs() < 1e-12 && mean <= 0.02, "{mean}: {regrets:?}");
}

/// The study's cells as they are kept are what is predicted of them.
#[test]
fn the_cells_that_are_kept_are_predicted() {
    let (study, page) = (format!("{CELLS}/cells.csv"), format!("{CELLS}/README.md"));
    let (json, page) = (scratch_file("cells.json"), fs::read_to_string(page).expect("the page"));
    run(paceline(&["simulate", "--study", &study, "--json", &json.to_string_lossy()]), LIMIT).expect_code(0);
    let report = read(&json);
    let rows = report["rows"].as_array().expect("a list");
    let text = |row: &Value, name: &str| row[name].as_str().expect(name).to_owned();
    for row in rows {
        let table = page.split("\n## ").find(|part| part.starts_with(&text(row, "model"))).expect("a table");
        let columns = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let lines: Vec<Vec<String>> = table.lines().filter(|line| line.starts_with('|')).map(columns).collect();
        let place = lines[0].iter().position(|name| *name == text(row, "method")).expect("a column");
        let where_ = format!("{}, {}", text(row, "network"), row["workers"]);
        let line = lines.iter().find(|line| line[1] == where_ || line[1] == format!("{where_} in one host"));
        let kept: f64 = line.expect("a line")[place].trim_end_matches(" \\*").parse().expect("a number");
        let predicted = row["predicted_samples_per_s"].as_f64().expect("a number");
        // Four digits are kept, or one behind the point.
        assert!((predicted / kept - 1.0).abs() < 6e-4 || (predicted - kept).abs() < 0.051, "{kept} is kept of {row}");
    }
    assert_eq!(rows.len(), 252);
}

/// Columns of a table stay what they are, whatever predictions are called.
#[test]
fn no_column_of_a_study_is_overwritten() {
    let (csv, json) = (scratch_file("columns.csv"), scratch_file("columns.json"));
    let head = "model,local_batch,network,method,workers,samples_per_s,error,extrapolated,predicted_error";
    fs::write(&csv, format!("{head}\nResNet-50,64,10GbE,BSP-A2A,8,1282.28,high,nowhere,0.5\n")).expect("a file");
    let arguments = ["simulate", "--study", &csv.to_string_lossy(), "--json", &json.to_string_lossy()];
    run(paceline(&arguments), LIMIT).expect_code(0);
    let report = read(&json);
    let row = &report["rows"][0];
    let own = [&row["error"], &row["extrapolated"], &row["predicted_error"]];
    assert_eq!(own, [&Value::from("high"), &Value::from("nowhere"), &Value::from(0.5)], "{row}");
    let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"));
    let off = number("predicted_samples_per_s") / number("samples_per_s") - 1.0;
    assert!((number("predicted_predicted_error") - off).abs() < 1e-9, "{row}");
    assert!(row["predicted_extrapolated"].is_array() && row["low_samples_per_s"].is_f64(), "{row}");
    fs::remove_file(csv).expect("our own file");
}

/// Nothing, where the method that is predicted to be the best was measured to be that; else what it is slower than the best.
#[test]
fn a_study_says_what_choosing_by_the_predictions_costs() {
    let (csv, json) = (scratch_file("choices.csv"), scratch_file("choices.json"));
    let (csv_path, json_path) = (csv.to_string_lossy(), json.to_string_lossy());
    let head = "model,local_batch,network,method,workers,samples_per_s,std_samples_per_s,single_gpu_samples_per_s,note";
    // The last one is alone, so that nothing is to be chosen there.
    let cells = [("BSP-A2A", 8), ("WFBP-A2A", 8), ("BSP-A2A", 16), ("WFBP-A2A", 16), ("BSP-A2A", 32)];
    let predicted = |measured: &[Option<f64>]| -> (Value, String) {
        let rows = cells.iter().zip(measured).map(|((method, workers), rate)| {
            let rate = rate.map_or_else(String::new, |rate| rate.to_string());
            format!("ResNet-50,64,10GbE,{method},{workers},{rate},,253.1,\n")
        });
        fs::write(&csv, format!("{head}\n{}", rows.collect::<String>())).expect("a file");
        let arguments = ["simulate", "--study", &csv_path, "--json", &json_path];
        let outcome = run(paceline(&arguments), LIMIT).expect_code(0);
        (read(&json), outcome.stdout)
    };
    let (report, said) = predicted(&[None; 5]);
    assert_eq!((&report["choices"], &report["mean_regret"]), (&serde_json::json!([]), &Value::Null));
    assert!(!said.contains("regret"), "{said}");
    let rates = report["rows"].as_array().expect("a list").iter().map(|row| row["predicted_samples_per_s"].as_f64());
    let mut measured: Vec<Option<f64>> = rates.collect();
    // With 8 workers as predicted; with 16 what is predicted to be the best has three quarters of the other's.
    let (best, other) = if measured[2] >= measured[3] { (2, 3) } else { (3, 2) };
    (measured[best], measured[other]) = (Some(750.0), Some(1000.0));
    let (report, said) = predicted(&measured);
    let choices = report["choices"].as_array().expect("a list");
    assert_eq!(choices.len(), 2, "{choices:?}");
    let (right, wrong) = (&choices[0], &choices[1]);
    assert_eq!((&right["workers"], &right["predicted_best"]), (&Value::from(8), &right["measured_best"]));
    assert_eq!((&wrong["model"], &wrong["network"]), (&Value::from("ResNet-50"), &Value::from("10GbE")));
    let methods = (&Value::from(cells[best].0), &Value::from(cells[other].0));
    assert_eq!((&wrong["predicted_best"], &wrong["measured_best"]), methods);
    let regrets = [&right["regret"], &wrong["regret"], &report["mean_regret"]].map(Value::as_f64);
    assert_eq!(regrets, [Some(0.0), Some(0.25), Some(0.125)]);
    assert!(said.ends_with("\nmean regret 12.5 % of 2 groups\n"), "{said}");
    fs::remove_file(&csv).expect("our own file");
}

/// A row of another batch than the profile's is scaled, unless it says what one worker alone does with that batch.
#[test]
fn a_row_of_another_batch_says_so() {
    let (path, json) = (scratch_file("batch.csv"), scratch_file("batch.json"));
    let head = "model,local_batch,network,method,workers,single_gpu_samples_per_s";
    fs::write(&path, format!("{head}\nbert-base,32,10GbE,BSP-A2A,8,\nbert-base,32,10GbE,BSP-A2A,8,200\n"))
        .expect("a file");
    let arguments = ["simulate", "--study", &path.to_string_lossy(), "--json", &json.to_string_lossy()];
    let outcome = run(paceline(&arguments), LIMIT).expect_code(0);
    let told = "extrapolated, line 2 of the study: computation is scaled from a batch of 64";
    assert!(outcome.stdout.contains(told), "{outcome:#?}");
    let report = read(&json);
    let doubts = |row: usize| &report["rows"][row]["extrapolated"];
    assert_eq!(*doubts(0), serde_json::json!(["computation is scaled from a batch of 64"]));
    assert_eq!(*doubts(1), serde_json::json!([]));
    fs::remove_file(path).expect("our own file");
}

/// Of a cluster with one set of constants: it costs the same over each, which is said; `auto` names none.
#[test]
fn a_protocol_that_is_named_changes_nothing_and_says_so() {
    let cell = ["simulate", "--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8", "--strategy"];
    let said = |strategy: &str| run(paceline(&[&cell[..], &[strategy]].concat()), LIMIT).expect_code(0).stdout;
    let doubt = |protocol| format!("protocol={protocol}: this cluster's links do not tell protocols apart");
    for protocol in ["tcp", "shm"] {
        let said = said(&format!("wfbp-a2a,protocol={protocol}"));
        assert!(said.contains(&doubt(protocol)), "{said}");
    }
    assert!(!said("wfbp-a2a").contains("protocols apart"));
    // Of `plan`, too, which has none to choose.
    let plan = ["plan", "--cluster", "study-10gbe", "--model", "resnet50", "--workers", "4", "--strategy"];
    let planned = run(paceline(&[&plan[..], &["auto,protocol=tcp"]].concat()), LIMIT).expect_code(0);
    assert!(planned.stdout.contains(&format!("- Extrapolated: {}", doubt("tcp"))), "{planned:#?}");
}

/// A cluster that tells protocols apart: each strategy costs what its own does, and `auto` searches them.
#[test]
fn a_protocol_costs_what_the_cluster_says() {
    let (path, json) = (scratch_file("protocols.toml"), scratch_file("protocols.json"));
    let (file, json_path) = (path.to_string_lossy(), json.to_string_lossy());
    let text = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 1\nworkers_per_host = 4\n\
                [within]\nalpha_s = 1e-5\nbeta_s_per_byte = 4e-10\n\
                [protocols.tcp.within]\nalpha_s = 1e-5\nbeta_s_per_byte = 2e-10\n";
    fs::write(&path, text).expect("a file");
    let of = |strategy: &str| {
        let cell = ["simulate", "--cluster", &file, "--model", "bert-large", "--strategy", strategy];
        run(paceline(&[&cell[..], &["--json", &json_path]].concat()), LIMIT).expect_code(0);
        let report = read(&json);
        let seconds = report["prediction"]["iteration_s"].as_f64().expect("a time");
        let said = report["prediction"]["extrapolated"].to_string();
        (report["strategy"].as_str().expect("a strategy").to_owned(), seconds, said)
    };
    let [(_, auto_s, _), (_, tcp_s, tcp), (_, shm_s, shm)] =
        ["bsp-a2a", "bsp-a2a,protocol=tcp", "bsp-a2a,protocol=shm"].map(of);
    assert!(tcp_s < 0.8 * auto_s && !tcp.contains("protocol="), "{tcp_s} {auto_s} {tcp}");
    assert!(shm_s == auto_s && shm.contains("protocol=shm: this cluster tells auto and tcp apart"), "{shm}");
    let (strategy, found_s, said) = of("auto");
    assert!(strategy.ends_with(",protocol=tcp") && !said.contains("protocol="), "{strategy} {said}");
    assert!(found_s <= tcp_s * (1.0 + 1e-6), "{found_s} {tcp_s}");
    // What cannot be is named with its place.
    fs::write(&path, text.replace("tcp.within", "tpc.within")).expect("a file");
    let wrong = ["simulate", "--cluster", &file, "--model", "bert-large"];
    let says = "unknown field `tpc`, expected `shm` or `tcp`";
    run(paceline(&wrong), LIMIT).expect_code(2).expect_stderr(&[&*file, says]);
    fs::remove_file(&path).expect("our own file");
}

#[test]
fn names_of_a_study_may_be_in_any_case_and_unknown_ones_are_refused() {
    let path = scratch_file("case.csv");
    let file = path.to_string_lossy();
    fs::write(&path, "MODEL,Local_Batch,network,Method,WORKERS\nbert-BASE,64,10gbe,wfbp-PS,16\n").expect("a file");
    let outcome = run(paceline(&["simulate", "--study", &file]), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("bert-BASE") && !outcome.stdout.contains("median"), "{outcome:#?}");
    assert!(!outcome.stdout.contains("extrapolated"), "{outcome:#?}");
    // More workers than anybody has measured, which is told once for all such rows.
    let rows = "bert-base,64,10GbE,BSP-A2A,64\nbert-base,64,10GbE,BSP-A2A,32\nresnet-50,64,10GbE,BSP-A2A,64";
    fs::write(&path, format!("model,local_batch,network,method,workers\n{rows}\n")).expect("a file");
    let outcome = run(paceline(&["simulate", "--study", &file]), LIMIT).expect_code(0);
    let told = "extrapolated, lines 2, 4 of the study: 64 workers, and constants were measured with 4 to 32";
    assert!(outcome.stdout.contains(told), "{outcome:#?}");
    for (row, words) in [
        ("vgg,64,10GbE,BSP-PS,8", "no profile of vgg"),
        ("bert-base,64,11GbE,BSP-PS,8", "line 2 of the study: there is no network 11GbE"),
        ("bert-base,64,10GbE,osp,8", "line 2 of the study: `osp` is no method"),
        ("bert-base,64,10GbE,BSP-PS,none", "column `workers`: `none`"),
    ] {
        fs::write(&path, format!("model,local_batch,network,method,workers\n{row}\n")).expect("a file");
        run(paceline(&["simulate", "--study", &file]), LIMIT).expect_code(2).expect_stderr(&[&file, words]);
    }
    fs::remove_file(path).expect("our own file");
}

/// More of them than a host of the cluster has, too; that no host was measured with so many is told.
#[test]
fn workers_that_a_note_puts_on_one_host_are_predicted_there() {
    let (csv, json) = (scratch_file("hosts.csv"), scratch_file("hosts.json"));
    let [csv_path, json_path] = [&csv, &json].map(|path| path.to_string_lossy().into_owned());
    let rows = "bert-base,64,10GbE,BSP-A2A,8,\nbert-base,64,10GbE,BSP-A2A,8,single_node";
    fs::write(&csv, format!("model,local_batch,network,method,workers,note\n{rows}\n")).expect("a file");
    run(paceline(&["simulate", "--study", &csv_path, "--json", &json_path]), LIMIT).expect_code(0);
    let report = read(&json);
    let cell = |row: usize, name: &str| report["rows"][row][name].clone();
    let rate = |row| cell(row, "predicted_samples_per_s").as_f64().expect("a number");
    assert!(rate(1) > 1.5 * rate(0), "{report:#}");
    let doubts = |row| cell(row, "extrapolated").as_array().map_or(0, Vec::len);
    assert_eq!((doubts(0), doubts(1)), (0, 1), "{report:#}");
    fs::remove_file(csv).expect("our own file");
}

/// `fit`, and then `simulate --study` with what it has written: that counts, and not the clusters that are built in.
#[test]
fn a_study_is_predicted_on_clusters_that_were_fitted() {
    let (toml, json, csv) = (scratch_file("fitted.toml"), scratch_file("fitted.json"), scratch_file("fitted.csv"));
    let [toml_path, json_path, csv_path] = [&toml, &json, &csv].map(|path| path.to_string_lossy().into_owned());
    run(paceline(&["fit", "--study", STUDY, "-o", &toml_path, "--no-leave-out"]), LIMIT).expect_code(0);
    let rates = || -> (Vec<(String, f64)>, f64) {
        let arguments = ["simulate", "--study", STUDY, "--cluster", &toml_path, "--json", &json_path];
        run(paceline(&arguments), LIMIT).expect_code(0);
        let report = read(&json);
        let rows = report["rows"].as_array().expect("a list").iter();
        let rate = |row: &Value| {
            let network = row["network"].as_str().expect("a name").to_owned();
            (network, row["predicted_samples_per_s"].as_f64().expect("a number"))
        };
        let errors = report["errors"].as_array().expect("a list");
        (rows.map(rate).collect(), errors.last().expect("of all")["median_error"].as_f64().expect("a share"))
    };
    let (fitted, error) = rates();
    assert!(error <= 0.03, "{error}");
    // The same file with a slower network.
    let mut set = ClusterSet::from_toml(&fs::read_to_string(&toml).expect("the file")).expect("clusters");
    let slow = set.networks.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case("10GbE")).expect("it was fitted").1;
    slow.across.beta_s_per_byte = slow.across.beta_s_per_byte.times(2.0);
    fs::write(&toml, set.to_toml()).expect("written");
    let (slower, _) = rates();
    for ((network, before), (_, after)) in fitted.iter().zip(&slower) {
        assert!(if network == "10GbE" { after <= before } else { after == before }, "{network}: {before}, {after}");
    }
    assert!(fitted.iter().zip(&slower).any(|(before, after)| after.1 < 0.8 * before.1), "{fitted:?} {slower:?}");
    fs::write(&csv, "model,local_batch,network,method,workers\nbert-base,64,40GbE,BSP-PS,8\n").expect("a file");
    let says = "line 2 of the study: --cluster has no network 40GbE; it has";
    let unknown = ["simulate", "--study", &csv_path, "--cluster", &toml_path];
    run(paceline(&unknown), LIMIT).expect_code(2).expect_stderr(&[&csv_path, says]);
    fs::remove_file(toml).and_then(|()| fs::remove_file(csv)).expect("our own files");
}

/// Of a cluster and of a profile that a person has written: the file, the field, and the reason.
#[test]
fn files_that_make_no_sense_are_refused() {
    let cluster = r#"schema = 1
name = "mine"
source = "by hand"
hosts = 4
workers_per_host = 2
topology = "torus:2x2"
[within]
alpha_s = 1e-6
beta_s_per_byte = 1e-10
[across]
alpha_s = 5e-5
beta_s_per_byte = 8e-10
"#;
    let profile = r#"{"schema": 1, "model": "mine", "device": "none", "source": "by hand", "local_batch": 4,
        "tensors": [{"name": "w", "elements": 20000}],
        "forward": [{"tensor": 0, "seconds": 0.001}], "backward": [{"tensor": 0, "seconds": 0.002}], "update_s": 0}"#;
    let (toml, json) = (scratch_file("mine.toml"), scratch_file("mine.json"));
    let (toml_path, json_path) = (toml.to_string_lossy().into_owned(), json.to_string_lossy().into_owned());
    let told = |command: &str, workers: &str| {
        let files = [command, "--cluster", &toml_path, "--model", &json_path, "--workers", workers];
        run(paceline(&files), LIMIT)
    };
    fs::write(&toml, cluster).and_then(|()| fs::write(&json, profile)).expect("files");
    told("simulate", "8").expect_code(0);
    for command in ["simulate", "plan"] {
        let places = "topology torus:2x2 has 4 hosts, exactly, and 4 workers take 2";
        told(command, "4").expect_code(2).expect_stderr(&[&toml_path, places]);
        for (from, to, words) in [
            ("alpha_s = 5e-5", "alpha_s = -5e-5", "across.alpha_s is -0.00005"),
            ("[across]", "[between]", "line 10 of the cluster, `[between]`: unknown field `between`"),
            ("beta_s_per_byte = 8e-10", "", "missing field `beta_s_per_byte`"),
            ("torus:2x2", "torus:3x3", "topology torus:3x3 has room for 9 hosts, exactly, and hosts is 4"),
            ("torus:2x2", "ring", "topology `ring` is no topology"),
            (
                "8e-10\n",
                "8e-10\n[[workers]]\nranks = [8]\nslower = 2\n",
                "workers[0].ranks has 8, and the last worker is 7",
            ),
            ("8e-10\n", "8e-10\n[computation]\ndistribution = \"gauss\"\n", "unknown variant `gauss`"),
        ] {
            fs::write(&toml, cluster.replacen(from, to, 1)).expect("a file");
            told(command, "8").expect_code(2).expect_stderr(&[&toml_path, words]);
        }
        fs::write(&toml, cluster).expect("a file");
        for (from, to, words) in [
            ("0.002", "-0.002", "backward[0].seconds is -0.002"),
            (", \"elements\": 20000", "", "missing field `elements`"),
            ("\"elements\": 20000", "\"elements\": 0", "tensors[0].elements is 0"),
            ("0.002", "0.002}, {\"tensor\": 1, \"seconds\": 0", "backward[1].tensor is 1, and there are 1 tensors"),
        ] {
            fs::write(&json, profile.replacen(from, to, 1)).expect("a file");
            told(command, "8").expect_code(2).expect_stderr(&[&json_path, words]);
        }
        fs::write(&json, profile).expect("a file");
    }
    fs::remove_file(toml).and_then(|()| fs::remove_file(json)).expect("our own files");
}

#[test]
fn slow_workers_and_stragglers_of_a_file_count() {
    let (toml, json) = (scratch_file("slow.toml"), scratch_file("slow.json"));
    let (toml_path, json_path) = (toml.to_string_lossy().into_owned(), json.to_string_lossy().into_owned());
    let iteration_s = |text: &str| {
        fs::write(&toml, text).expect("a file");
        let cell = ["simulate", "--cluster", &toml_path, "--model", "resnet50@rtx2080ti", "--strategy", "bsp-a2a"];
        run(paceline(&[&cell[..], &["--workers", "2", "--json", &json_path]].concat()), LIMIT).expect_code(0);
        read(&json)["prediction"]["iteration_s"].as_f64().expect("seconds")
    };
    let alike = "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 2\nworkers_per_host = 1\n\
                 [across]\nalpha_s = 5e-5\nbeta_s_per_byte = 1e-10\n";
    let (alike_s, slow) = (iteration_s(alike), "[[workers]]\nranks = [1]\nslower = 2.0\n");
    let slow_s = iteration_s(&format!("{alike}{slow}"));
    // Computing takes nearly all of it.
    assert!((1.8..2.0).contains(&(slow_s / alike_s)), "{slow_s} {alike_s}");
    let stragglers = "[computation]\nspread = 0.2\ndistribution = \"exponential\"\ndraws = 200\n";
    let late_s = iteration_s(&format!("{alike}{stragglers}"));
    // The later of two: 1.5 times the mean delay of one.
    assert!((1.2..1.4).contains(&(late_s / alike_s)), "{late_s} {alike_s}");
    fs::remove_file(&toml).expect("our own file");
}

#[test]
fn what_does_not_fit_together_is_wrong_usage() {
    let model = ["--model", "resnet50"];
    for (arguments, words) in [
        (&["simulate"][..], "--cluster"),
        (&["simulate", "--cluster", "study-11gbe"][..], "is no cluster"),
        (&["simulate", "--cluster", "study-10gbe", "--strategy", "wfpb"][..], "wfpb"),
        (&["simulate", "--cluster", "study-10gbe", "--workers", "0"][..], "at least one"),
    ] {
        let arguments = if arguments.len() > 1 { [arguments, &model[..]].concat() } else { arguments.to_vec() };
        run(paceline(&arguments), LIMIT).expect_code(2).expect_stderr(&[words]);
    }
}
