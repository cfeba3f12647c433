//! The rival of the study, PyTorch's DDP with a replayed computation, in the smallest world that there is: two ranks over
//! loopback. With the Python of `PACELINE_TORCH=/path/to/python3`, which must have PyTorch.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xtask::needs;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/compare/ddp.py");
const RANKS: usize = 2;
/// What no start of Python takes, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(180);

/// Tensors of these sizes; the first one is tied, used in the beginning and in the end.
const ELEMENTS: [u64; 3] = [1_000, 300_000, 5];
const ORDER: [usize; 4] = [0, 1, 2, 0];
const FORWARD_S: f64 = 0.002;
const UPDATE_S: f64 = 0.001;
/// Forward, and backward twice as long.
const COMPUTE_S: f64 = 3.0 * FORWARD_S * ORDER.len() as f64;

fn profile() -> Value {
    let step = |tensor: usize, seconds: f64| json!({"tensor": tensor, "seconds": seconds});
    let tensors: Vec<Value> = ELEMENTS.iter().map(|elements| json!({"name": "t", "elements": elements})).collect();
    json!({
        "tensors": tensors,
        "forward": ORDER.map(|tensor| step(tensor, FORWARD_S)),
        "backward": ORDER.iter().rev().map(|&tensor| step(tensor, 2.0 * FORWARD_S)).collect::<Vec<_>>(),
        "update_s": UPDATE_S,
    })
}

/// Ranks that end with the test, whatever it says.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// What rank 0 answers if both ranks of this program read these lines.
fn answers(python: &OsStr, program: &[&str], meeting: &Path, lines: &str) -> Vec<Value> {
    let mut ranks = Ranks(Vec::new());
    for rank in 0..RANKS {
        let mut command = Command::new(python);
        command.args(program).arg(format!("file://{}", meeting.display()));
        command.env("PACELINE_RANK", rank.to_string()).env("PACELINE_WORLD_SIZE", RANKS.to_string());
        command.env("GLOO_SOCKET_IFNAME", "lo").env("DDP", SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        // A few words, which fit into the pipe, and then the end of the file.
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
        ranks.0.push(child);
    }
    let until = Instant::now() + LIMIT;
    while !ranks.0.iter_mut().all(|rank| rank.try_wait().expect("it is our child").is_some()) {
        assert!(Instant::now() < until, "DDP has not ended after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    for rank in &mut ranks.0 {
        rank.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    }
    let said: Vec<&str> = said.lines().filter(|line| line.starts_with('{')).collect();
    // How a rank ends says nothing: with all answers given, torch's threads may still abort while Python goes away.
    assert_eq!(said.len(), 1 + lines.lines().count(), "a rank failed, and has said why: {said:?}");
    said.into_iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A folder for the test, removed with everything in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn two_ranks_of_ddp_say_what_the_study_reads_and_check_every_gradient() {
    let Some(python) = needs::torch() else { return };
    let folder = Folder(std::env::temp_dir().join(format!("paceline-ddp-{}", std::process::id())));
    fs::create_dir_all(&folder.0).expect("a folder for the test");
    let path = folder.0.join("profile.json");
    fs::write(&path, profile().to_string()).expect("written");
    let lines = format!("{path} 1 3\n{path} 2 4\n", path = path.display());
    let said = answers(&python, &[SCRIPT], &folder.0.join("meeting"), &lines);
    assert!(said[0]["ready"] == true && said[0]["version"].is_string(), "{said:?}");
    for (answer, iterations) in said[1..].iter().zip([3, 4]) {
        let times: Vec<f64> =
            answer["iteration_s"].as_array().expect("times").iter().filter_map(Value::as_f64).collect();
        assert_eq!(times.len(), iterations, "{answer}");
        assert!(times.iter().all(|&seconds| (COMPUTE_S + UPDATE_S..10.0).contains(&seconds)), "{answer}");
        for field in ["exposed_communication_s", "processor_s"] {
            assert!(answer[field].as_f64().is_some_and(|seconds| (0.0..10.0).contains(&seconds)), "{field}: {answer}");
        }
        let buckets: Vec<u64> =
            answer["bucket_bytes"].as_array().expect("bytes").iter().filter_map(Value::as_u64).collect();
        assert_eq!(buckets.iter().sum::<u64>(), 4 * ELEMENTS.iter().sum::<u64>(), "{answer}");
        assert_eq!(answer["wrong"], 0, "{answer}");
    }
    // The check finds what is wrong: rank 1 sends what rank 0 does, and every element shows it, on both, both times.
    let forged = "import os; exec(open(os.environ['DDP']).read().replace('* (RANK + 1)', '* 1'))";
    let lines = format!("{} 1 2\n", path.display());
    let said = answers(&python, &["-c", forged], &folder.0.join("forged"), &lines);
    assert_eq!(said[1]["wrong"], 2 * 2 * ELEMENTS.iter().sum::<u64>(), "{said:?}");
}
