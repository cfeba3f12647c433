//! `paceline tune`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn nccls_tables_are_printed_as_nccl_prints_them() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tune-{}.json", std::process::id()));
    let arguments = ["tune", "--nccl-table", "2.30.7", "--nvls", "--graph", "NVLS=16:20:40", "--bytes", "1KiB,1GiB"];
    let json = path.to_string_lossy();
    let outcome = run(paceline(&[&arguments[..], &["--json", &json]].concat()), LIMIT).expect_code(0);
    for words in [
        "    AllReduce |    15.2/  38.7 |    31.5/ 114.5 |    64.4/ 147.2 |    15.0/  80.6 |    40.6/ 168.2 |    56.0/ 182.9 |",
        "    25.0/ 291.4 |",
        "1KiB  Ring LL               1 channels of 96 threads",
        "1GiB  NVLS Simple          16 channels of 640 threads",
    ] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {}", outcome.stdout);
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    fs::remove_file(&path).expect("our own file");
    assert_eq!(report["entries"].as_array().map(Vec::len), Some(5 * 7 * 3));
    assert_eq!(report["choices"][1]["algorithm"], "NVLS");
}

#[test]
fn communicators_that_cannot_be_are_wrong_usage() {
    for (arguments, words) in [
        (&["--nccl-table", "2.31"][..], "2.19 to 2.30 are"),
        (&["--nccl-table", "2.30", "--hosts", "3"], "hosts = 3"),
        (&["--nccl-table", "2.30", "--graph", "Star=1:2:3"], "`Star` is no algorithm"),
        (&["--nccl-table", "2.30", "--graph", "Ring=1"], "give ALGORITHM=CHANNELS:INTRA:INTER"),
        (&["--nccl-table", "2.30", "--intra-link", "USB"], "`USB` is no link type"),
        (&["--nccl-table", "2.30", "--compute-capability", "many"], "give a compute capability"),
        (&["--nccl-table", "2.30", "--channels", "0"], "channels = 0"),
        (&[], "--nccl-table"),
    ] {
        run(paceline(&[&["tune"], arguments].concat()), LIMIT).expect_code(2).expect_stderr(&[words]);
    }
}
