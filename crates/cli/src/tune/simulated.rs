//! `paceline tune --simulate`: what a tuner learns of the calls of a job, on a cluster that is not there.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use paceline_tune::comparison::{Comparison, learners};
use paceline_tune::environment::{Change, Disturbances, Misfit, SimulatedCluster, Workload};
use paceline_tune::learner::{LEARNERS, by_name};
use paceline_tune::{Tuner, simulation};

use super::nccl_table::NcclArguments;
use super::place::Place;
use super::report::Report;
use crate::arguments::at_least_one;
use crate::bench::ResultStore as Store;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};

/// The word for all learners.
const ALL: &str = "all";

/// So many clusters are drawn for a comparison.
const COMPARED: u64 = 3;

/// What is simulated, and who learns.
#[derive(Args)]
#[command(next_help_heading = "Learning on a simulated cluster")]
pub struct SimulationArguments {
    /// Learn on this cluster: a file (docs/clusters.md), or a built-in one such as study-10gbe or 25gbe+pcie4:8x4; nccl:VERSION learns
    /// what NCCL's calls take, by NCCL's own cost model of the communicator that the options below describe
    #[arg(long, value_name = "CLUSTER", conflicts_with = "nccl_table")]
    pub simulate: Option<String>,

    /// What is called: llm-3d (tensor, pipeline, sharded and data parallelism) or data-parallel (gradients of every size)
    #[arg(long, value_name = "WORKLOAD", default_value = "llm-3d")]
    pub workload: String,

    /// Iterations
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "200")]
    pub iterations: usize,

    /// Everything that is left to chance follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Who learns: thompson, linucb, epsilon-greedy, ucb1, coordinate-descent or policy-network; all prints a table of them, of three
    /// clusters that differ by chance
    #[arg(long, value_name = "LEARNER", default_value = LEARNERS[0])]
    pub learner: String,

    /// The network becomes slower at an iteration: ITERATION:FACTOR, such as 100:5; 150:1 takes it back. May stand several times
    #[arg(long, value_name = "ITERATION:FACTOR", value_parser = change)]
    drift: Vec<(u64, f64)>,

    /// Print the atlas of regimes: where it pays to look, why, and what was spent on it
    #[arg(long)]
    pub atlas: bool,

    /// Print the best knobs of each regime, and how sure that is
    #[arg(long)]
    pub table: bool,

    /// Write what was learned to this file, as a policy; of NCCL's calls, as one for its plug-in (docs/nccl.md)
    #[arg(short, long, value_name = "FILE.toml")]
    output: Option<PathBuf>,

    /// Begin with what was learned on this cluster before, and keep what is learned: a database, as that of bench
    #[arg(long, value_name = "FILE.sqlite")]
    database: Option<PathBuf>,
}

/// Learns on a cluster.
///
/// # Errors
/// Wrong usage: no such cluster, workload or learner; a file cannot be written.
pub fn run(
    cluster: &str,
    arguments: &SimulationArguments,
    nccl: &NcclArguments,
    json: Option<JsonFile>,
) -> Result<ExitCode, Failure> {
    let output = arguments.output.as_deref().map(PlainFile::create).transpose()?;
    let place = Place::named(cluster, nccl)?;
    let (hosts, workers_per_host) = place.shape();
    let workload = Workload::named(&arguments.workload, hosts, workers_per_host).map_err(Failure::usage)?;
    if arguments.learner == ALL {
        return compare(&place, &workload, arguments, json.is_some());
    }
    let unknown = || {
        let known = LEARNERS.join(", ");
        Failure::usage(format!("there is no learner `{}`; there is: {known}, {ALL}", arguments.learner))
    };
    let mut tuner = Tuner::new(by_name(&arguments.learner).ok_or_else(unknown)?, arguments.seed);
    let mut cluster = simulated(&place, arguments, arguments.seed);
    let store = arguments.database.as_deref().map(Store::open).transpose()?;
    // A simulated cluster is another one than that of the same name, and each seed draws one of its own.
    let known_as = format!("simulated:{}:{}", place.name(), arguments.seed);
    if let Some(store) = &store {
        tuner.remember(store.lessons(&known_as)?);
    }
    let iterations = arguments.iterations as u64;
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, iterations, arguments.seed);
    let report = Report::new(arguments, &place.name(), &tuner, &cluster, &outcome);
    if let Some(store) = &store {
        store.keep_lessons(&known_as, &tuner.lessons())?;
    }
    if let Some(output) = output {
        let policy = tuner.policy();
        output.write(&place.written(&policy, &tuner))?;
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(write!(io::stdout().lock(), "{report}"))?;
    Ok(ExitCode::SUCCESS)
}

/// All learners on the same clusters, as a table.
fn compare(
    place: &Place,
    workload: &Workload,
    arguments: &SimulationArguments,
    has_json: bool,
) -> Result<ExitCode, Failure> {
    let of_one = arguments.atlas || arguments.table || arguments.output.is_some() || arguments.database.is_some();
    if of_one || has_json {
        return Err(Failure::usage(
            "--learner all prints a table; --atlas, --table, --output, --database and --json are for a single learner",
        ));
    }
    let seeds = arguments.seed..arguments.seed.saturating_add(COMPARED);
    let rows = learners(|seed| simulated(place, arguments, seed), workload, arguments.iterations as u64, seeds);
    unless_closed(write!(io::stdout().lock(), "{}", Comparison(rows)))?;
    Ok(ExitCode::SUCCESS)
}

fn simulated(place: &Place, arguments: &SimulationArguments, seed: u64) -> SimulatedCluster {
    let mut changes: Vec<Change> = arguments.drift.iter().map(|&(step, factor)| Change { step, factor }).collect();
    changes.sort_by_key(|change| change.step);
    let disturbances = Disturbances { changes, ..Disturbances::usual() };
    SimulatedCluster::new(place.model(), Misfit::USUAL, disturbances, seed)
}

fn change(text: &str) -> Result<(u64, f64), String> {
    let wrong = || "give an iteration and a factor from 0.01 to 1000, such as 100:5".to_owned();
    let (step, factor) = text.split_once(':').ok_or_else(wrong)?;
    let factor: f64 = factor.parse().map_err(|_| wrong())?;
    if !(0.01..=1000.0).contains(&factor) {
        return Err(wrong());
    }
    Ok((step.parse().map_err(|_| wrong())?, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_is_an_iteration_and_a_factor() {
        assert_eq!(change("100:5"), Ok((100, 5.0)));
        assert_eq!(change("0:0.5"), Ok((0, 0.5)));
        for text in ["", "100", "100:", ":5", "-1:5", "100:0", "100:NaN", "100:1e9", "a:b"] {
            assert!(change(text).is_err(), "{text}");
        }
    }
}
