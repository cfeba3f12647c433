//! Open MPI, through our own small C program: with its own choice of algorithm, and with each that `coll_tuned` has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::command::{self, Error, Measured, Setting};
use super::resident::Resident;
use super::statistics::median;

/// An installed Open MPI.
pub struct OpenMpi {
    /// As it calls itself.
    pub version: String,
    program: PathBuf,
    scratch: PathBuf,
    /// The name of the transport through shared memory: `vader` up to version 4, `sm` from 5.
    shared_memory: &'static str,
}

/// One way to run Open MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    name: String,
    arguments: Vec<String>,
}

/// The ways to run Open MPI in one setting, each with its own ranks, started when first needed.
pub struct Contest<'a> {
    openmpi: &'a OpenMpi,
    setting: Setting,
    candidates: Vec<Candidate>,
    residents: BTreeMap<usize, Resident>,
}

/// Under which conditions a candidate ran, as it says itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Conditions {
    #[serde(flatten)]
    pub setting: Setting,
    /// The candidate.
    pub candidate: String,
    /// `mpi_yield_when_idle` in force; -1: unknown.
    pub yields_when_idle: i64,
    /// How large messages cross shared memory: 1 is CMA (`process_vm_readv`), 3 none; -1: unknown.
    pub single_copy_mechanism: i64,
    /// What `--report-bindings` said.
    pub bindings: Vec<String>,
}

/// What was tried for one size, before anything was compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scouted {
    #[serde(flatten)]
    pub setting: Setting,
    pub bytes: usize,
    /// The medians over the passes, the fastest first.
    pub median_us: Vec<(String, f64)>,
}

/// Open MPI's own choice, by index among the candidates.
pub const DEFAULT: usize = 0;
/// Those that stay in the scouting after the first pass.
const FINALISTS: usize = 3;

impl OpenMpi {
    /// Compiles the program, if Open MPI is there.
    pub fn prepare(root: &Path, scratch: &Path) -> Result<OpenMpi, Error> {
        let missing = |error| format!("Open MPI (Debian: openmpi-bin and libopenmpi-dev): {error}");
        let version = command::output(Command::new("mpirun").arg("--version")).map_err(missing)?;
        let version = version.lines().next().unwrap_or_default().trim().to_owned();
        if !version.contains("Open MPI") {
            return Err(format!("mpirun is not Open MPI's but `{version}`").into());
        }
        let program = scratch.join("openmpi");
        let source = root.join("xtask/compare/openmpi.c");
        let mut compiler = Command::new("mpicc");
        compiler.args(["-O2", "-std=c11", "-Wall", "-Wextra"]).arg(source).arg("-o").arg(&program).arg("-lm");
        command::output(&mut compiler).map_err(missing)?;
        let components = command::output(Command::new("ompi_info").arg("--parsable")).map_err(missing)?;
        let shared_memory = if components.contains("mca:btl:vader:") { "vader" } else { "sm" };
        Ok(OpenMpi { version, program, scratch: scratch.to_owned(), shared_memory })
    }

    /// All ways to run it in this setting.
    pub fn contest(&self, setting: &Setting) -> Contest<'_> {
        let candidates = candidates(&setting.collective, setting.ranks);
        Contest { openmpi: self, setting: setting.clone(), candidates, residents: BTreeMap::new() }
    }

    fn start(&self, setting: &Setting, index: usize, candidate: &Candidate) -> Result<Resident, Error> {
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "--report-bindings"]);
        mpirun.args(["-np", &setting.ranks.to_string(), "--mca", "pml", "ob1"]);
        match setting.transport.as_str() {
            "shm" => mpirun.args(["--mca", "btl", &format!("{},self", self.shared_memory)]),
            _ => mpirun.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]),
        };
        mpirun.args(&candidate.arguments).arg(&self.program);
        let folder = self.scratch.join(format!("openmpi-{index}"));
        Resident::start(&format!("Open MPI ({})", candidate.name), mpirun, setting.ranks, &folder)
    }
}

impl Contest<'_> {
    /// Measures one size with one candidate.
    pub fn measure(&mut self, candidate: usize, bytes: usize, seconds: f64) -> Result<Measured, Error> {
        if !self.residents.contains_key(&candidate) {
            let resident = self.openmpi.start(&self.setting, candidate, &self.candidates[candidate])?;
            self.residents.insert(candidate, resident);
        }
        let Some(resident) = self.residents.get_mut(&candidate) else { return Err("it was just started".into()) };
        let measured = resident.measure(&self.setting.collective, bytes, seconds)?;
        Ok(Measured { algorithm: self.candidates[candidate].name.clone(), ..measured })
    }

    /// Finds the fastest candidate for every size: all take part in the first pass, the best of it in the others. Those
    /// that won nowhere end.
    pub fn scout(&mut self, sizes: &[usize], passes: usize, seconds: f64) -> Result<(Vec<usize>, Vec<Scouted>), Error> {
        eprintln!("{}: trying {} ways to run Open MPI", self.setting, self.candidates.len());
        let (mut best, mut scouted) = (Vec::new(), Vec::new());
        for &bytes in sizes {
            let mut times: Vec<(usize, Vec<f64>)> = (0..self.candidates.len()).map(|index| (index, vec![])).collect();
            for _ in 0..passes {
                for (candidate, times) in &mut times {
                    times.push(self.measure(*candidate, bytes, seconds)?.p50_us);
                }
                times.sort_by(|(_, left), (_, right)| median(left).total_cmp(&median(right)));
                times.truncate(FINALISTS);
            }
            best.extend(times.first().map(|(candidate, _)| *candidate));
            let named =
                times.iter().map(|(candidate, times)| (self.candidates[*candidate].name.clone(), median(times)));
            scouted.push(Scouted { setting: self.setting.clone(), bytes, median_us: named.collect() });
        }
        self.residents.retain(|candidate, _| *candidate == DEFAULT || best.contains(candidate));
        Ok((best, scouted))
    }

    /// Under which conditions those that are still there ran.
    pub fn conditions(&self) -> Vec<Conditions> {
        let of = |(candidate, resident): (&usize, &Resident)| Conditions {
            setting: self.setting.clone(),
            candidate: self.candidates[*candidate].name.clone(),
            yields_when_idle: resident.greeting["yields_when_idle"].as_i64().unwrap_or(-1),
            single_copy_mechanism: resident.greeting["single_copy_mechanism"].as_i64().unwrap_or(-1),
            bindings: bindings(&resident.complaints()),
        };
        self.residents.iter().map(of).collect()
    }
}

/// Open MPI's own choice first; then the same with ranks that are bound to no core; then every algorithm.
fn candidates(collective: &str, ranks: usize) -> Vec<Candidate> {
    let candidate = |name: &str, arguments: &[&str]| Candidate {
        name: name.to_owned(),
        arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
    };
    let mut candidates = vec![candidate("default", &[]), candidate("default, unbound", &["--bind-to", "none"])];
    let (parameter, algorithms) = algorithms(collective);
    for &(number, name, segments) in algorithms {
        // There is one for two ranks only, and one for even numbers.
        if (name == "two-proc" && ranks != 2) || (name == "neighbor" && ranks % 2 == 1) {
            continue;
        }
        let (number, key) = (number.to_string(), format!("coll_tuned_{parameter}_algorithm"));
        let forced = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", &key, &number];
        if segments.is_empty() {
            candidates.push(candidate(name, &forced));
        }
        for &bytes in segments {
            let (key, value) = (format!("{key}_segmentsize"), bytes.to_string());
            let named = format!("{name}, {} KiB", bytes >> 10);
            candidates.push(candidate(&named, &[&forced[..], &["--mca", &key, &value]].concat()));
        }
    }
    candidates
}

type Algorithms = &'static [(u32, &'static str, &'static [usize])];

/// The name of a collective in `coll_tuned`'s parameters, and its algorithms with their numbers (`ompi_info --param coll
/// tuned --level 9`) and the segment sizes to try, for those that do nothing without one.
fn algorithms(collective: &str) -> (&'static str, Algorithms) {
    const KI: usize = 1 << 10;
    match collective {
        "all-reduce" => (
            "allreduce",
            &[
                (1, "basic-linear", &[]),
                (2, "nonoverlapping", &[]),
                (3, "recursive-doubling", &[]),
                (4, "ring", &[]),
                (5, "segmented-ring", &[64 * KI, 256 * KI, 1024 * KI]),
                (6, "rabenseifner", &[]),
            ],
        ),
        "all-gather" => (
            "allgather",
            &[
                (1, "linear", &[]),
                (2, "bruck", &[]),
                (3, "recursive-doubling", &[]),
                (4, "ring", &[]),
                (5, "neighbor", &[]),
                (6, "two-proc", &[]),
            ],
        ),
        "reduce-scatter" => (
            "reduce_scatter_block",
            &[
                (1, "basic-linear", &[]),
                (2, "recursive-doubling", &[]),
                (3, "recursive-halving", &[]),
                (4, "butterfly", &[]),
            ],
        ),
        "broadcast" => (
            "bcast",
            &[
                (1, "basic-linear", &[]),
                (2, "chain", &[64 * KI]),
                (3, "pipeline", &[64 * KI, 256 * KI]),
                (5, "binary-tree", &[64 * KI]),
                (6, "binomial", &[]),
                (7, "knomial", &[]),
                (8, "scatter-allgather", &[]),
                (9, "scatter-allgather-ring", &[]),
            ],
        ),
        _ => (
            "alltoall",
            &[
                (1, "linear", &[]),
                (2, "pairwise", &[]),
                (3, "modified-bruck", &[]),
                (4, "linear-sync", &[]),
                (5, "two-proc", &[]),
            ],
        ),
    }
}

/// The lines of `--report-bindings`, without host and process.
fn bindings(complaints: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        complaints.lines().filter_map(|line| Some(line[line.find("MCW rank")?..].to_owned())).collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_candidate_and_segments_have_a_size() {
        let all = candidates("all-reduce", 4);
        let names: Vec<_> = all.iter().map(|candidate| candidate.name.as_str()).collect();
        assert_eq!(names[DEFAULT], "default");
        assert_eq!(names.iter().filter(|name| name.starts_with("segmented-ring, ")).count(), 3);
        assert!(all[DEFAULT].arguments.is_empty());
        let segmented = all.iter().find(|candidate| candidate.name == "segmented-ring, 256 KiB").expect("it is there");
        assert_eq!(segmented.arguments.last().map(String::as_str), Some("262144"));
        let two_proc = |ranks| candidates("all-to-all", ranks).iter().any(|candidate| candidate.name == "two-proc");
        assert!(two_proc(2) && !two_proc(4));
    }

    #[test]
    fn bindings_are_found_among_other_words() {
        let text =
            "warning\n[host:12] MCW rank 1 is not bound\n[host:12] MCW rank 0 bound to socket 0[core 0]: [B/.]\n";
        assert_eq!(bindings(text), ["MCW rank 0 bound to socket 0[core 0]: [B/.]", "MCW rank 1 is not bound"]);
    }
}
