//! Open MPI, through our own small C program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{self, Error, Measured};
use super::results::Setting;

/// The algorithms of `coll_tuned` for all-reduce, by their numbers from 1 (`ompi_info --param coll tuned`).
const ALGORITHMS: [&str; 6] =
    ["basic-linear", "nonoverlapping", "recursive-doubling", "ring", "segmented-ring", "rabenseifner"];

/// An installed Open MPI.
pub struct OpenMpi {
    /// As it calls itself.
    pub version: String,
    program: PathBuf,
    /// The name of the transport through shared memory: `vader` up to version 4, `sm` from 5.
    shared_memory: &'static str,
}

/// For every algorithm, the sizes for which it was the fastest.
pub type Best = BTreeMap<usize, Vec<usize>>;

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
        Ok(OpenMpi { version, program, shared_memory })
    }

    /// Measures with one algorithm (an index into [`ALGORITHMS`]), or with Open MPI's own choice.
    pub fn measure(
        &self,
        setting: &Setting,
        algorithm: Option<usize>,
        sizes: &[usize],
    ) -> Result<Vec<Measured>, Error> {
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", &setting.ranks.to_string()]);
        mpirun.args(["--mca", "pml", "ob1"]);
        match setting.transport.as_str() {
            "shm" => mpirun.args(["--mca", "btl", &format!("{},self", self.shared_memory)]),
            _ => mpirun.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]),
        };
        if let Some(algorithm) = algorithm {
            mpirun.args(["--mca", "coll_tuned_use_dynamic_rules", "1"]);
            mpirun.args(["--mca", "coll_tuned_allreduce_algorithm", &(algorithm + 1).to_string()]);
        }
        mpirun.arg(&self.program).arg(setting.seconds.to_string()).args(sizes.iter().map(usize::to_string));
        let mut rows = command::measure(&mut mpirun, sizes)?;
        for row in &mut rows {
            row.algorithm = algorithm.map_or("default", |algorithm| ALGORITHMS[algorithm]).to_owned();
        }
        Ok(rows)
    }

    /// Tries every algorithm once, before anything is compared.
    pub fn scout(&self, setting: &Setting, sizes: &[usize]) -> Result<Best, Error> {
        let mut fastest: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); sizes.len()];
        for (algorithm, name) in ALGORITHMS.iter().enumerate() {
            eprintln!("{}, {} ranks: Open MPI's {name}", setting.transport, setting.ranks);
            for (row, fastest) in self.measure(setting, Some(algorithm), sizes)?.iter().zip(&mut fastest) {
                if row.p50_us < fastest.0 {
                    *fastest = (row.p50_us, algorithm);
                }
            }
        }
        let mut best = Best::new();
        for ((_, algorithm), bytes) in fastest.iter().zip(sizes) {
            best.entry(*algorithm).or_default().push(*bytes);
        }
        Ok(best)
    }

    /// Measures every size with the algorithm that was the fastest for it.
    pub fn measure_best(&self, setting: &Setting, best: &Best) -> Result<Vec<Measured>, Error> {
        let mut rows = Vec::new();
        for (algorithm, sizes) in best {
            rows.extend(self.measure(setting, Some(*algorithm), sizes)?);
        }
        Ok(rows)
    }
}
