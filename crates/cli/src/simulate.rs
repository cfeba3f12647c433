//! `paceline simulate`: what an iteration of training would take on a cluster, whether one has it or not.

mod graph;
mod report;
mod study;
mod timeline;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use paceline_plan::Plan;
use paceline_predict::search::{Question, SearchError, Space, search};
use paceline_predict::{
    ByMessage, Job, PredictError, Prediction, estimate, estimate_plan, predict_by_message, predict_plan,
    predict_scheduled, protocol_doubt,
};
use paceline_strategy::Strategy;
use paceline_train::{ExecutedPlans, TrainError, load_profile};

use crate::Registry;
use crate::arguments::at_least_one;
use crate::clusters::{blamed, load_cluster};
use crate::explain;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use report::Report;

/// What `simulate` is told.
#[derive(Args)]
pub struct SimulateArguments {
    /// The cluster: a file (docs/clusters.md; of several networks FILE:NETWORK), or a built-in one such as study-10gbe or
    /// 25gbe+pcie4:8x4; of a study, instead of study-NETWORK for all its rows or for each network
    #[arg(long, value_name = "CLUSTER", required_unless_present_any = ["study", "graph"])]
    cluster: Option<String>,

    /// The model: a profile file (docs/json.md), or a built-in profile such as resnet50@rtx2080ti
    #[arg(long, value_name = "PROFILE", required_unless_present_any = ["study", "graph"])]
    model: Option<String>,

    /// How workers communicate
    #[arg(long, value_name = "STRATEGY", default_value = "ddp", conflicts_with_all = ["study", "graph"])]
    strategy: String,

    /// The plan to carry out, of a file that `paceline plan -o` or `paceline train --dump-plan` has written (of that the last one),
    /// with the strategy that it names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["strategy", "study", "graph"])]
    plan: Option<PathBuf>,

    /// Workers [default: as many as the cluster has]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["study", "graph"])]
    workers: Option<usize>,

    /// Samples per worker and iteration [default: those of the profile]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["study", "graph"])]
    local_batch: Option<usize>,

    /// Predict every row of a table with the columns model, local_batch, network, method, workers (docs/prediction.md); where it has
    /// samples_per_s, say how far predictions are off, and what choosing methods by them costs
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["model", "graph", "trace"])]
    study: Option<PathBuf>,

    /// Of a study: the profile of a model that is not built in; may stand several times
    #[arg(long = "profile", value_name = "FILE", requires = "study")]
    profiles: Vec<String>,

    /// Play any tasks instead, on any resources and over any links: a file of tasks that wait for each other (docs/json.md)
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["cluster", "model"])]
    graph: Option<PathBuf>,

    /// Play the iteration message by message as well: every worker by itself, all programs under way on the links of the topology
    #[arg(long, conflicts_with_all = ["study", "graph"])]
    by_message: bool,

    /// Write the iteration to this file, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Write the prediction to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Simulates.
///
/// # Errors
/// Wrong usage: no such cluster, profile or strategy, or they do not fit together; a file cannot be read or written.
pub fn run(arguments: &SimulateArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let trace = arguments.trace.as_deref().map(PlainFile::create).transpose()?;
    if let Some(path) = &arguments.study {
        return study::run(path, arguments, registry, json);
    }
    if let Some(path) = &arguments.graph {
        return graph::run(path, json, trace);
    }
    let (Some(source), Some(model)) = (&arguments.cluster, &arguments.model) else {
        return Err(Failure::usage("--cluster and --model say what to simulate"));
    };
    let profile = load_profile(model).map_err(Failure::usage)?;
    let cluster = load_cluster(source)?.for_device(&profile.device);
    let plan = arguments.plan.as_deref().map(last_plan).transpose()?;
    let strategy = match &plan {
        Some(plan) => registry
            .grammar()
            .parse(&plan.strategy)
            .map_err(|error| of_plan(arguments, &format_args!("the plan's strategy `{}`: {error}", plan.strategy)))?,
        None => explain::parse(registry.grammar(), &arguments.strategy)?,
    };
    let workers = arguments.workers.unwrap_or(cluster.workers());
    let local_batch = arguments.local_batch;
    let open = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers, local_batch };
    let began = Instant::now();
    let found = match &plan {
        Some(plan) => predict_plan(&open, plan).map(|found| (strategy.clone(), found)).map_err(SearchError::from),
        None => predicted(&open, registry),
    };
    let (chosen, mut prediction) = found.map_err(|error| match error {
        SearchError::Predict(PredictError::Plan(_) | PredictError::OtherPlan { .. }) => of_plan(arguments, &error),
        _ => refused(blamed(source, &error)),
    })?;
    // Of a plan that was given nothing is searched.
    let searched_us = (strategy.is_open() && plan.is_none()).then(|| 1e6 * began.elapsed().as_secs_f64());
    prediction.extrapolated.extend(protocol_doubt(&cluster, workers, &chosen));
    // One worker alone takes nothing from the cluster.
    prediction.extrapolated.extend(cluster.measurement_doubt().filter(|_| workers > 1));
    let job = Job { strategy: &chosen, ..open };
    // A schedule that is found by search is found already.
    let known = (chosen.schedule.name == "auto").then_some(&prediction.plan);
    let elapsed_us = timed(&job, plan.as_ref().or(known));
    let played = arguments.by_message.then(|| played(&job, &prediction));
    let played = played.transpose().map_err(|error| refused(blamed(source, &SearchError::from(error))))?;
    let report = Report::new(&job, &prediction, elapsed_us, searched_us).with_messages(played.as_ref());
    // Whoever wants messages wants to see them.
    if let Some((played, _)) = played {
        (prediction.iteration_s, prediction.timeline) = (played.iteration_s, played.timeline);
    }
    if let Some(trace) = trace {
        trace.write(&timeline::trace_events(&job, &prediction).to_string())?;
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(write!(io::stdout().lock(), "{report}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What a strategy would do; with what is chosen if it leaves something open.
///
/// # Errors
/// It cannot be predicted.
fn predicted(job: &Job<'_>, registry: &Registry) -> Result<(Strategy, Prediction), SearchError> {
    let Job { cluster, profile, strategy, workers, local_batch } = *job;
    if !strategy.is_open() {
        return Ok((strategy.clone(), predict_scheduled(job, registry.schedulers())?));
    }
    let space = Space {
        local_batches: local_batch.into_iter().collect(),
        intervals: 1,
        messages: true,
        ..Space::of(registry.schedulers().clone(), strategy.clone())
    };
    let answer = search(&Question { cluster, profile, workers, space: &space })?;
    let best = answer.best();
    Ok((best.strategy.clone(), best.prediction.clone()))
}

/// The iteration message by message, and the microseconds that this takes.
///
/// # Errors
/// It cannot be played.
fn played(job: &Job<'_>, prediction: &Prediction) -> Result<(ByMessage, f64), PredictError> {
    let began = Instant::now();
    let played = predict_by_message(job, &prediction.plan)?;
    Ok((played, 1e6 * began.elapsed().as_secs_f64()))
}

/// Microseconds that a prediction takes, from cluster, profile and strategy, or plan, to the time of an iteration: the least of
/// three, as what else the machine does only adds to it. None if a schedule of the caller's own is in the way.
fn timed(job: &Job<'_>, plan: Option<&Plan>) -> Option<f64> {
    let once = |_| {
        let began = Instant::now();
        let estimated = plan.map_or_else(|| estimate(job), |plan| estimate_plan(job, plan));
        estimated.ok().map(|_| 1e6 * began.elapsed().as_secs_f64())
    };
    (0..3).filter_map(once).reduce(f64::min)
}

/// The plan of a file.
fn last_plan(path: &Path) -> Result<Plan, Failure> {
    let mut executed = ExecutedPlans::read(path).map_err(|error| Failure::usage(TrainError::from(error)))?;
    let last = executed.stages.pop().map(|stage| stage.plan);
    last.ok_or_else(|| Failure::usage(format!("{} has no plan", path.display())))
}

/// What is wrong with a plan, with its file in front if it came from one.
fn of_plan(arguments: &SimulateArguments, problem: &dyn Display) -> Failure {
    let file = arguments.plan.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
    refused(format!("{file}{problem}"))
}

fn refused(error: String) -> Failure {
    Failure::usage(error).help("docs/prediction.md says what is predicted, and from what")
}

fn read(path: &Path, what: &str) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the {what} {}", path.display())).cause(error))
}
