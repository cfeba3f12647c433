//! Which clusters in a box are measured: groups of cells, each a call of `paceline bench`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use paceline_cli::worlds::RECORDED_ITERATIONS;
use paceline_cli::{Processors, shell_command_line};
use paceline_plan::{NetworkModel, PCIE_3_X16};

use super::cells::{self, Cell};
use crate::compare::Error;

/// One call of `paceline bench`: a model on a network, some methods.
#[derive(Clone, Debug)]
pub struct Group {
    /// How it is called.
    pub name: String,
    pub model: &'static str,
    pub network: &'static str,
    pub hosts: usize,
    pub workers_per_host: usize,
    /// Worker counts; they fill hosts in order.
    pub workers: Vec<usize>,
    /// Presets, or strategies in full.
    pub methods: Vec<&'static str>,
    pub warm_up: usize,
    pub iterations: usize,
    /// How often each cell is measured if nobody says it.
    pub runs: usize,
    /// Most of the gradients travel while nobody computes: links must be right then, too, and not only on average.
    pub bulk: bool,
}

/// GPUs in each host of the study.
pub const WORKERS_PER_HOST: usize = 4;
/// The first two iterations touch memory for the first time: with 32 workers on servers the second one took up to a quarter longer
/// than the third.
pub const WARM_UP: usize = 2;
/// About what a replaying process takes besides its gradients, in bytes.
const PROCESS_BYTES: f64 = 50e6;

/// Seconds of computation in an iteration of a model at the study's batch, and bytes of its gradients.
fn model(name: &str) -> Option<(f64, f64)> {
    MODELS.iter().find(|model| model.0 == name).map(|model| (model.1, model.2))
}

/// Seconds of computation in an iteration, bytes of gradients: what an estimate needs.
const MODELS: [(&str, f64, f64); 3] =
    [("resnet50", 64.0 / 253.1, 102.2e6), ("bert-base", 64.0 / 212.8, 437.9e6), ("bert-large", 8.0 / 49.0, 1345e6)];
/// About what starting a world takes and ending it, for each worker, in seconds.
const START_S: f64 = 0.4;

/// How many there are.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// All processors of this machine, each of which moves so many bytes per second.
pub fn processors_here(core_bytes_per_s: f64) -> Processors {
    Processors { cores: cores(), core_bytes_per_s }
}

impl Group {
    /// The largest number of workers.
    fn most(&self) -> usize {
        self.workers.iter().copied().max().unwrap_or(1)
    }

    /// Seconds of an iteration if nothing were dilated, about.
    fn iteration_s(&self, workers: usize) -> f64 {
        let (compute_s, _) = model(self.model).unwrap_or((0.0, 0.0));
        compute_s + 0.5 * self.travel_s(workers, self.nic())
    }

    /// Seconds for which gradients travel by an all-reduce over links of this rate.
    fn travel_s(&self, workers: usize, bytes_per_s: f64) -> f64 {
        let (_, bytes) = model(self.model).unwrap_or((0.0, 0.0));
        2.0 * (workers - 1) as f64 / workers as f64 * bytes / bytes_per_s
    }

    /// Bytes per second of a host's NIC.
    fn nic(&self) -> f64 {
        NetworkModel::named(self.network).map_or(1e9, |network| 1.0 / network.across.beta_s_per_byte)
    }

    /// What an all-reduce goes through at most.
    fn narrowest(&self) -> f64 {
        // Of a worker that shares its host with others, and so of a host by itself.
        let port = 1.0 / PCIE_3_X16.beta_s_per_byte;
        match (self.hosts, self.workers_per_host) {
            (_, 1) => self.nic(),
            (1, _) => port,
            _ => port.min(self.nic()),
        }
    }

    /// By how much computation and links are slowed, so that the processors keep up: a whole number.
    pub fn dilate(&self, processors: Processors) -> f64 {
        let workers = self.most();
        // One alone sends to servers only.
        let sends = workers > 1 || self.has_servers();
        let bytes = model(self.model).filter(|_| sends).map_or(0.0, |model| model.1);
        let over = |seconds: f64| processors.needed_dilation(workers, bytes, seconds);
        // Nobody computes while gradients travel.
        let exposed = (self.bulk && workers > 1).then(|| over(self.travel_s(workers, self.narrowest())));
        over(self.iteration_s(workers)).max(exposed.unwrap_or(1.0))
    }

    fn has_servers(&self) -> bool {
        self.methods.iter().any(|method| method.contains("ps"))
    }

    /// Bytes that it takes, about: every worker holds its gradients, and so do its servers together.
    pub fn memory_bytes(&self) -> f64 {
        let (_, bytes) = model(self.model).unwrap_or((0.0, 0.0));
        let served = if self.has_servers() { bytes } else { 0.0 };
        self.most() as f64 * (bytes + PROCESS_BYTES) + served
    }

    /// Seconds that it takes, about.
    pub fn estimate_s(&self, processors: Processors, runs: usize) -> f64 {
        let dilate = self.dilate(processors);
        let of_workers = |&workers: &usize| {
            let iteration_s = dilate * self.iteration_s(workers);
            let iterations = runs * (self.warm_up + self.iterations) + RECORDED_ITERATIONS;
            runs as f64 * START_S * workers as f64 + iterations as f64 * iteration_s
        };
        // One method is measured once more: how far does a thing differ from itself?
        let methods = self.methods.len() + usize::from(self.methods.len() > 1);
        methods as f64 * self.workers.iter().map(of_workers).sum::<f64>()
    }

    /// The command line behind `paceline bench`.
    fn arguments(&self, processors: Processors, runs: usize) -> Vec<String> {
        let workers: Vec<String> = self.workers.iter().map(usize::to_string).collect();
        let words = [
            ("--models", self.model.to_owned()),
            ("--methods", self.methods.join(";")),
            ("--workers", workers.join(",")),
            ("--hosts", format!("{}x{}", self.hosts, self.workers_per_host)),
            ("--emulate", self.network.to_owned()),
            ("--compute", "replay".to_owned()),
            ("--dilate", self.dilate(processors).to_string()),
            ("--warmup", self.warm_up.to_string()),
            ("--iterations", self.iterations.to_string()),
            ("--runs", runs.to_string()),
        ];
        words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// Measures what the database does not have yet. Cells that failed are noted in what comes back.
    ///
    /// # Errors
    /// The program cannot be run, was interrupted, or refuses what it is asked.
    pub fn measure(&self, bench: Bench<'_>, processors: Processors, runs: usize) -> Result<Vec<Cell>, Error> {
        bench.call(&self.name, &self.arguments(processors, runs))
    }
}

/// `paceline bench`, and where its files lie.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// Ours.
    pub program: &'a Path,
    /// Finished runs in it are not repeated.
    pub database: &'a Path,
    /// For what it writes.
    pub scratch: &'a Path,
}

impl Bench<'_> {
    /// Measures what the database does not have yet. Cells that failed are noted in what comes back.
    ///
    /// # Errors
    /// As [`Group::measure`].
    pub fn call(&self, name: &str, arguments: &[String]) -> Result<Vec<Cell>, Error> {
        let failed = |what: &dyn std::fmt::Display| Error::from(format!("{name}: {what}"));
        let [json, report] = ["json", "html"].map(|extension| self.scratch.join(format!("{name}.{extension}")));
        // What another call has left there says nothing of this one, which may fail before it writes.
        match fs::remove_file(&json) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
        let mut bench = Command::new(self.program);
        bench.arg("bench").args(arguments).arg("--resume");
        bench.arg("--database").arg(self.database).arg("--json").arg(&json).arg("--report").arg(&report);
        // What it says goes to the terminal; its table comes back in the report.
        let status = bench.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(|error| failed(&error))?;
        match status.code() {
            // Some cell failed: which and why stands in the file.
            Some(0 | 1) if json.exists() => cells::read(&json),
            _ => Err(failed(&format!("`paceline bench {}`: {status}", shell_command_line(arguments)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_cli::CORE_BYTES_PER_S;

    use super::*;

    fn group(workers: &[usize]) -> Group {
        Group {
            name: "g".into(),
            model: "resnet50",
            network: "10GbE",
            hosts: 8,
            workers_per_host: 4,
            workers: workers.to_vec(),
            methods: vec!["wfbp-ps", "schedule=wfbp,arch=a2a:ring"],
            warm_up: 1,
            iterations: 4,
            runs: 1,
            bulk: false,
        }
    }

    #[test]
    fn every_worker_holds_its_gradients() {
        let bytes = group(&[8, 32]).memory_bytes();
        assert!((33.0 * 102.2e6 + 32.0 * PROCESS_BYTES - bytes).abs() < 1.0, "{bytes}");
    }

    #[test]
    fn more_workers_or_fewer_cores_need_more_dilation() {
        let (few, many) = (group(&[8]), group(&[8, 32]));
        let of = |cores: f64| Processors { cores: 2, core_bytes_per_s: 0.5 * cores * CORE_BYTES_PER_S };
        assert!(many.dilate(of(2.0)) > few.dilate(of(2.0)) && many.dilate(of(2.0)) > many.dilate(of(16.0)));
        assert_eq!(few.dilate(of(1000.0)), 1.0);
        // One alone sends to the servers beside it.
        let alone = |methods| Group { methods, ..group(&[1]) }.dilate(of(0.2));
        assert_eq!(alone(vec!["bsp-a2a", "mg-wfbp"]), 1.0);
        assert!(alone(vec!["bsp-a2a", "bsp-ps"]) > 1.0);
        assert!(many.estimate_s(of(2.0), 1) > few.estimate_s(of(2.0), 1));
        // What travels while nobody computes leaves less time; within a host, less than over a slow network.
        let bulk = Group { bulk: true, ..group(&[8]) };
        let here = Group { hosts: 1, workers_per_host: 8, ..bulk.clone() };
        assert!(few.dilate(of(2.0)) < bulk.dilate(of(2.0)) && bulk.dilate(of(2.0)) < here.dilate(of(2.0)));
        // Only the first run of a cell records iterations.
        let [one, two, three] = [1, 2, 3].map(|runs| many.estimate_s(of(2.0), runs));
        assert!((three - two - (two - one)).abs() < 1e-9 * three && two < 2.0 * one);
    }

    /// A program that fails before it writes leaves nothing to be read.
    #[test]
    fn the_file_of_another_call_is_no_result() {
        let scratch = std::env::temp_dir().join(format!("xtask-cluster-{}", std::process::id()));
        fs::create_dir_all(&scratch).expect("a folder");
        let left = scratch.join("g.json");
        fs::write(&left, r#"{"panels": []}"#).expect("written");
        let outcome = {
            let bench =
                Bench { program: Path::new("/bin/false"), database: &scratch.join("runs.db"), scratch: &scratch };
            group(&[8]).measure(bench, processors_here(CORE_BYTES_PER_S), 1)
        };
        let (is_left, _) = (left.exists(), fs::remove_dir_all(&scratch));
        assert!(!is_left && outcome.is_err_and(|error| error.to_string().contains("exit status: 1")));
    }

    #[test]
    fn methods_in_full_are_separated_so_that_bench_tells_them_apart() {
        let words = group(&[8, 32]).arguments(processors_here(CORE_BYTES_PER_S), 1).join(" ");
        assert!(words.contains("--methods wfbp-ps;schedule=wfbp,arch=a2a:ring --workers 8,32 --hosts 8x4"), "{words}");
    }
}
