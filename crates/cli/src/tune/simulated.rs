//! `paceline tune --simulate`: what a tuner learns of the calls of a job, on a cluster that is not there.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use paceline_tune::comparison::{Comparison, learners};
use paceline_tune::environment::{Call, Misfit, NcclModel, SimulatedCluster, Workload};
use paceline_tune::simulation;

use super::disturbed::DisturbanceArguments;
use super::learning::{ALL, LearningArguments};
use super::nccl_table::NcclArguments;
use super::place::Place;
use super::report::Report;
use crate::arguments::{ByteSize, at_least_one};
use crate::bench::ResultStore as Store;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::tuning::joined;

/// What stands before a simulated cluster's name in a database, whose lessons are relative to its model.
pub const SIMULATED: &str = "simulated:";

/// So many clusters are drawn for a comparison.
const COMPARED: u64 = 3;

/// What is simulated.
#[derive(Args)]
#[command(next_help_heading = "Learning on a simulated cluster")]
pub struct SimulationArguments {
    /// Learn on this cluster: a file (docs/clusters.md), or a built-in one such as study-10gbe or 25gbe+pcie4:8x4; nccl:VERSION learns
    /// what NCCL's calls take, by NCCL's own cost model of the communicator that the options below describe
    #[arg(long, value_name = "CLUSTER", conflicts_with = "nccl_table")]
    pub simulate: Option<String>,

    /// What is called: llm-3d (tensor, pipeline, sharded and data parallelism) or data-parallel (gradients of every size)
    /// [default: llm-3d]
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: Option<String>,

    /// Iterations [default: 200]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,

    /// The calls are of a job that exchanges gradients through parameter servers, which is part of what is known of each; not with
    /// nccl:VERSION, whose model knows of no servers
    #[arg(long)]
    pub ps_deployment: bool,

    #[command(flatten)]
    pub disturbed: DisturbanceArguments,
}

impl SimulationArguments {
    /// What is called.
    pub fn workload(&self) -> &str {
        self.workload.as_deref().unwrap_or("llm-3d")
    }

    /// How often.
    pub fn iterations(&self) -> usize {
        self.iterations.unwrap_or(200)
    }

    fn cluster(&self, place: &Place, seed: u64) -> SimulatedCluster {
        SimulatedCluster::new(place.model(), Misfit::USUAL, self.disturbed.disturbances(seed), seed)
    }
}

/// Learns on a cluster.
///
/// # Errors
/// Wrong usage: no such cluster, workload or learner; a file cannot be written.
pub fn run(
    arguments: &SimulationArguments,
    learning: &LearningArguments,
    nccl: &NcclArguments,
    json: Option<JsonFile>,
) -> Result<ExitCode, Failure> {
    let name = arguments.simulate.as_deref().ok_or_else(|| Failure::usage("give --simulate CLUSTER"))?;
    let output = learning.output.as_deref().map(PlainFile::create).transpose()?;
    let place = Place::named(name, nccl)?;
    let (hosts, workers_per_host) = place.shape();
    let mut workload = Workload::named(arguments.workload(), hosts, workers_per_host).map_err(Failure::usage)?;
    workload.calls.iter_mut().for_each(|call| call.is_ps_deployment = arguments.ps_deployment);
    if learning.learner() == ALL {
        return compare(&place, &workload, arguments, learning, json.is_some());
    }
    let (mut tuner, seed) = (learning.tuner()?, learning.seed());
    let mut cluster = arguments.cluster(&place, seed);
    let store = learning.database.as_deref().map(Store::open).transpose()?;
    // A simulated cluster is another one than that of the same name, and each seed draws one of its own.
    let known_as = format!("{SIMULATED}{}:{seed}", place.name());
    let before = match &store {
        Some(store) => store.lessons(&known_as)?,
        None => Vec::new(),
    };
    tuner.remember(before.iter().copied());
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, arguments.iterations() as u64, seed);
    let left_out = left_out(&place, &workload);
    let report = Report::new(arguments, learning, &place, &tuner, &cluster, &outcome, left_out);
    if let Some(store) = &store {
        store.keep_lessons(&known_as, &joined(&before, &tuner.lessons()))?;
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

/// The kinds of calls that a job may make, and that nothing is learned of there, with the reason: each in a sentence.
fn left_out(place: &Place, workload: &Workload) -> Vec<String> {
    let ((hosts, workers_per_host), model) = (place.shape(), place.model());
    let absent = workload.left_out(hosts, workers_per_host);
    let absent = absent.into_iter().map(|(kind, why)| format!("{kind} parallelism, not called: {why}"));
    let calls = workload.calls.iter().filter(|call| model.situation(&model.state(call)).is_none());
    let without_choice = calls.map(|Call { collective, bytes, ranks, hosts, parallelism, .. }| {
        let why = match place {
            Place::Nccl(_) if NcclModel::function(*collective).is_none() => "NCCL asks no tuner about it".to_owned(),
            _ => format!("there is nothing to choose among {ranks} ranks on {hosts} hosts"),
        };
        format!("{parallelism} parallelism, {collective} of {}: {why}", ByteSize(*bytes as usize))
    });
    absent.chain(without_choice).collect()
}

/// All learners on the same clusters, as a table.
fn compare(
    place: &Place,
    workload: &Workload,
    arguments: &SimulationArguments,
    learning: &LearningArguments,
    has_json: bool,
) -> Result<ExitCode, Failure> {
    let of_one = learning.atlas || learning.table || learning.output.is_some() || learning.database.is_some();
    if of_one || has_json {
        return Err(Failure::usage(
            "--learner all prints a table; --atlas, --table, --output, --database and --json are for a single learner",
        ));
    }
    let seeds = learning.seed()..learning.seed().saturating_add(COMPARED);
    let rows = learners(|seed| arguments.cluster(place, seed), workload, arguments.iterations() as u64, seeds);
    let left_out = left_out(place, workload).into_iter().map(|words| format!("left out: {words}\n"));
    let doubt = place.doubt().map(|words| format!("extrapolated: {words}\n"));
    let told: String = left_out.chain(doubt).collect();
    unless_closed(write!(io::stdout().lock(), "{}{told}", Comparison(rows)))?;
    Ok(ExitCode::SUCCESS)
}
