//! `paceline plan`: the best strategy for a job on a cluster, and why.

mod report;

use std::io::{self, Write};
use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use paceline_plan::{Cluster, ClusterError, Plan, Profile};
use paceline_predict::search::{
    Change, ChangeError, Question, Space, apply_changes, explain, search, unmeasured, without_effect,
};
use paceline_predict::{Prediction, protocol_doubt};
use paceline_train::{ExecutedPlans, TrainError, load_profile};

use crate::Registry;
use crate::arguments::at_least_one;
use crate::clusters::{blamed, load_cluster};
use crate::explain as strategies;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;
use report::{Epoch, Report};

/// What `plan` is told.
#[derive(Args)]
pub struct PlanArguments {
    /// The cluster: a file (docs/clusters.md), or a built-in one such as study-10gbe or 25gbe+pcie4:8x4
    #[arg(long, value_name = "CLUSTER")]
    cluster: String,

    /// The model: a profile file (docs/json.md), or a built-in profile such as resnet50@rtx2080ti
    #[arg(long, value_name = "PROFILE")]
    model: String,

    /// Workers [default: as many as the cluster has]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: Option<usize>,

    /// What may be chosen: aspects that are auto are searched, the others stay
    #[arg(long, value_name = "STRATEGY", default_value = "auto")]
    strategy: String,

    /// Samples per worker and iteration; several are compared; auto: the powers of two that fit in memory, the most that fit, and
    /// those of the profile [default: those of the profile]
    #[arg(long, value_name = "N,…|auto", value_delimiter = ',', value_parser = batch_or_auto)]
    local_batch: Vec<LocalBatch>,

    /// What a host costs in an hour, in any currency [default: what the cluster says]
    #[arg(long, value_name = "PRICE")]
    price: Option<f64>,

    /// Samples of an epoch, for its time and price [default: what the profile says, if it does]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    epoch: Option<usize>,

    /// Admit methods that change the result of training: for PyTorch gradients of 16 bits; others are not predicted yet
    #[arg(long)]
    lossy: bool,

    /// What would be otherwise: network=25GbE (or 2x), workers=64, local-batch=128; the answer is for that
    #[arg(long, value_name = "CHANGE,…", value_delimiter = ',')]
    what_if: Vec<Change>,

    /// Write the plan of the best strategy to this file: `paceline simulate --plan` and, for its own models, `paceline train --plan`
    /// carry it out (docs/json.md)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Candidates to list
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 10)]
    top: usize,

    /// Write the answer to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One of those that `--local-batch` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalBatch {
    /// So many samples.
    Samples(usize),
    /// What the profile's memory has room for.
    Auto,
}

fn batch_or_auto(text: &str) -> Result<LocalBatch, String> {
    match text {
        "auto" => Ok(LocalBatch::Auto),
        number => at_least_one(number).map(LocalBatch::Samples).map_err(|why| format!("{why}, or auto")),
    }
}

/// Plans.
///
/// # Errors
/// Wrong usage: no such cluster, profile or change, or they do not fit together.
pub fn run(arguments: &PlanArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(price) = arguments.price.filter(|price| !(price.is_finite() && *price >= 0.0)) {
        return Err(Failure::usage(format!("--price {price} is no price")).help("give what a host costs in an hour"));
    }
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let profile = load_profile(&arguments.model).map_err(Failure::usage)?;
    let asked = load_cluster(&arguments.cluster)?.for_device(&profile.device);
    let asked_workers = arguments.workers.unwrap_or(asked.workers());
    let (cluster, workers, local_batch) = apply_changes(&asked, asked_workers, None, &arguments.what_if)
        .map_err(|error| wrong_change(arguments, error))?;
    fits(&cluster, workers)?;
    let strategy = strategies::parse(registry.grammar(), &arguments.strategy)?;
    let unchanged = Space {
        local_batches: local_batches(&arguments.local_batch, &profile)?,
        intervals: arguments.top,
        lossy: arguments.lossy,
        messages: true,
        ..Space::of(registry.schedulers().clone(), strategy)
    };
    let changed_batch = local_batch.map_or_else(|| unchanged.local_batches.clone(), |batch| vec![batch]);
    let space = Space { local_batches: changed_batch, ..unchanged.clone() };
    let question = Question { cluster: &cluster, profile: &profile, workers, space: &space };
    let (mut report, best) = report(arguments, &question)?;
    report.reasons.extend(without_effect(&cluster, workers, &arguments.what_if));
    report.extrapolated.extend(unmeasured(&asked, &arguments.what_if));
    report.extrapolated.extend(protocol_doubt(&cluster, workers, &space.strategy));
    report.extrapolated.extend(cluster.measurement_doubt().filter(|_| workers > 1));
    if cluster.hosts > asked.hosts {
        let more = cluster.hosts - asked.hosts;
        report.extrapolated.push(format!("{more} hosts more than {} has, which are taken to be like them", asked.name));
    }
    if let Some(output) = &arguments.output {
        ExecutedPlans::planned(best).write(output).map_err(TrainError::from)?;
    }
    if !arguments.what_if.is_empty() {
        let space = Space { intervals: 0, ..unchanged };
        let now = Question { cluster: &asked, profile: &profile, workers: asked_workers, space: &space };
        // What cannot be answered as it is may be what the change is for.
        if let Ok(answer) = search(&now) {
            let Prediction { samples_per_s, extrapolated, .. } = &answer.best().prediction;
            report.unchanged_samples_per_s = Some(*samples_per_s);
            report.unchanged_extrapolated.clone_from(extrapolated);
        }
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(write!(io::stdout().lock(), "{report}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What is told, and the best plan.
fn report(arguments: &PlanArguments, question: &Question) -> Result<(Report, Plan), Failure> {
    let began = Instant::now();
    let answer = search(question).map_err(|error| Failure::usage(blamed(&arguments.cluster, &error)))?;
    let explanation = explain(question, &answer);
    let elapsed = began.elapsed();
    let price_per_host_hour = arguments.price.or(question.cluster.price_per_host_hour);
    let epoch = Epoch { samples: arguments.epoch.or(question.profile.epoch_samples), price_per_host_hour };
    let report = Report::new(question, &answer, &explanation, &epoch, arguments.top, elapsed);
    Ok((report, answer.best().prediction.plan.clone()))
}

/// The batches to compare, rising; none: only that of the profile.
fn local_batches(asked: &[LocalBatch], profile: &Profile) -> Result<Vec<usize>, Failure> {
    let mut batches = Vec::new();
    for batch in asked {
        match *batch {
            LocalBatch::Samples(samples) => batches.push(samples),
            LocalBatch::Auto => {
                let most = profile.memory.and_then(|memory| memory.largest_local_batch());
                let most = most.ok_or_else(|| no_largest_batch(profile))?;
                let powers = iter::successors(Some(1_usize), |power| power.checked_mul(2));
                batches.extend(powers.take_while(|&power| power as u64 <= most).chain([profile.local_batch]));
                batches.extend(usize::try_from(most).ok().filter(|&most| most > 0));
            }
        }
    }
    batches.sort_unstable();
    batches.dedup();
    Ok(batches)
}

/// There is nothing to go up to.
fn no_largest_batch(profile: &Profile) -> Failure {
    let Profile { model, device, .. } = profile;
    let what = format!(
        "--local-batch auto goes up to the largest batch that fits in memory, and the profile of {model} on {device} \
         does not say which that is"
    );
    let help = "list the batches, as in --local-batch 32,64, or let the profile say `available_bytes` (docs/json.md)";
    Failure::usage(what).help(help)
}

/// A change that cannot be read, or that the cluster does not bear.
fn wrong_change(arguments: &PlanArguments, error: ChangeError) -> Failure {
    match error {
        ChangeError::Cluster(error @ ClusterError::Field { .. }) => {
            Failure::usage(format!("{} after --what-if: {error}", arguments.cluster))
        }
        other => Failure::usage(other),
    }
}

/// Is there room for the workers?
fn fits(cluster: &Cluster, workers: usize) -> Result<(), Failure> {
    let room = cluster.workers();
    if workers <= room {
        return Ok(());
    }
    let what = format!("{workers} workers do not fit on {}, which has room for {room}", cluster.name);
    Err(Failure::usage(what).help(format!("--what-if workers={workers} adds hosts like those that it has")))
}

#[cfg(test)]
mod tests {
    use paceline_plan::MemoryNeed;

    use super::*;

    #[test]
    fn auto_is_the_powers_of_two_that_fit_the_most_that_fit_and_the_batch_of_the_profile() {
        let with = |available_bytes| Profile {
            local_batch: 24,
            memory: Some(MemoryNeed { fixed_bytes: 100, bytes_per_sample: 10, available_bytes }),
            ..Profile::default()
        };
        let of = |asked: &[&str], available_bytes| {
            let asked: Vec<LocalBatch> = asked.iter().map(|text| batch_or_auto(text).unwrap()).collect();
            local_batches(&asked, &with(available_bytes)).map_err(|failure| failure.in_one_line())
        };
        // 32 samples fit, or 31, or none.
        assert_eq!(of(&["auto"], Some(420)), Ok(vec![1, 2, 4, 8, 16, 24, 32]));
        assert_eq!(of(&["auto"], Some(419)), Ok(vec![1, 2, 4, 8, 16, 24, 31]));
        assert_eq!(of(&["auto"], Some(50)), Ok(vec![24]));
        assert_eq!(of(&["48", "auto", "8"], Some(150)), Ok(vec![1, 2, 4, 5, 8, 24, 48]));
        assert_eq!((of(&["64", "32"], None), of(&[], None)), (Ok(vec![32, 64]), Ok(vec![])));
        assert!(of(&["auto"], None).unwrap_err().contains("does not say which that is (list the batches"));
        assert_eq!(batch_or_auto("many"), Err("give a whole number such as 4, or auto".to_owned()));
    }
}
