//! Iterations of ResNet-50 and BERT-Large at 1 to 32 workers, with the tuner and without: gradients travel in buckets while backward
//! goes on, one after the other. As in a running job, the tuner learns from calls, the time of the iteration decides, and at last
//! iterations with what stands and iterations without take turns.

use paceline_plan::{Cluster, Profile, built_in_profile};
use paceline_tune::simulation::job::{self, Options, Outcome};
use paceline_tune::simulation::{PairedRatio, Timeline};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target, ms, percent};
use super::super::{Over, Section, in_words, together};
use super::{SEEDS, machine, of_machine};
use crate::compare::Error;

const MODELS: [&str; 2] = ["resnet50", "bert-large"];
const NETWORKS: [&str; 3] = ["study-10gbe", "study-100gbe", "study-100gbib"];
const WORKERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Of a bucket, as PyTorch's DDP fills them.
const BUCKET_BYTES: u64 = 25 << 20;
/// Iterations of a job: where there is room for few tries only, a size is explored in up to 768, and two trials follow.
const LEARNING: u64 = 1200;
/// Iterations with what stands, and as many with the default, by turns: with 1 % noise of computation their ratio is known within half a
/// percent.
const PAIRS: usize = 400;
/// What computation varies: iterations of a machine that does nothing else differ by a percent or two (docs/tuning.md).
const COMPUTATION_NOISE: f64 = 0.01;
/// An iteration with the tuner over one without.
const OVER_DEFAULT_MAX: f64 = 1.01;
/// What sums in another order differ by.
const ROUNDING: f64 = 1e-9;
/// Truths that are drawn for each row.
const TRUTHS: u64 = 5;

/// How much is asked of each row.
#[derive(Clone, Copy)]
struct Effort {
    iterations: u64,
    pairs: usize,
    seeds: u64,
}

/// A model on some workers of a network. Seconds of an iteration are means over the truths, of medians under noise.
#[derive(Serialize)]
struct Row {
    model: &'static str,
    network: &'static str,
    workers: usize,
    buckets: usize,
    default_s: f64,
    tuned_s: f64,
    /// Truth by truth; none for a worker alone.
    runs: Vec<Run>,
}

/// What was found for one truth.
#[derive(Serialize)]
struct Run {
    /// Medians of iterations that took turns, and by how much they differ.
    default_s: f64,
    tuned_s: f64,
    ratio: PairedRatio,
    /// The same of the default against itself.
    control: PairedRatio,
    /// Kinds of calls for which something else than the default is better, and those of them for which it stands.
    better: usize,
    standing: usize,
    /// By how much iterations are shorter, as the job itself has found in its trial; None: no significant gain.
    gain: Option<f64>,
    /// After so many iterations nothing was open; None: something still was.
    settled_after: Option<u64>,
    /// All iterations of the job over those of the default under the same noise; and all calls, at worst from 100 iterations on.
    learning: f64,
    worst_prefix: f64,
    /// Without noise: iterations with the default and with the best of all, and all calls of the default and of what was better.
    quiet_default_s: f64,
    quiet_tuned_s: f64,
    quiet_best_s: f64,
    default_communication_s: f64,
    better_communication_s: f64,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (models, networks, workers, effort) = match quick {
        true => (&MODELS[..1], &NETWORKS[..1], &WORKERS[..2], Effort { iterations: 40, pairs: 8, seeds: 1 }),
        false => {
            let effort = Effort { iterations: LEARNING, pairs: PAIRS, seeds: TRUTHS };
            (&MODELS[..], &NETWORKS[..], &WORKERS[..], effort)
        }
    };
    let mut rows = Vec::new();
    for &model in models {
        let profile = built_in_profile(model).ok_or_else(|| format!("there is no profile of {model}"))?;
        for &network in networks {
            let machine = machine(network)?;
            let at = |&workers: &usize| row((model, &profile), (network, &machine), workers, effort);
            rows.extend(workers.iter().map(at));
        }
    }
    let targets = if quick { Vec::new() } else { vec![target(&rows), quiet_target(&rows)] };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn row(
    (model, profile): (&'static str, &Profile),
    (network, machine): (&'static str, &Cluster),
    workers: usize,
    effort: Effort,
) -> Row {
    let hosts = machine.hosts_of(workers) as u32;
    let timeline = Timeline::in_buckets(profile, BUCKET_BYTES, workers as u32, hosts);
    // Whoever is alone exchanges nothing.
    let seeds = if workers < 2 { 0 } else { effort.seeds };
    let runs: Vec<Run> = (SEEDS..SEEDS + seeds).map(|seed| one(&timeline, machine, effort, seed)).collect();
    let mean = |seconds: fn(&Run) -> f64| {
        let all: Vec<f64> = runs.iter().map(seconds).collect();
        Over::of(&all).map_or(profile.iteration_s(), |over| over.mean)
    };
    let (default_s, tuned_s) = (mean(|run| run.default_s), mean(|run| run.tuned_s));
    Row { model, network, workers, buckets: timeline.buckets.len(), default_s, tuned_s, runs }
}

fn one(timeline: &Timeline, machine: &Cluster, Effort { iterations, pairs, .. }: Effort, seed: u64) -> Run {
    let options = Options { iterations, pairs, computation_noise: COMPUTATION_NOISE, seed };
    let outcome = job::run(&mut of_machine(machine, seed), timeline, &options);
    let Outcome { spent, by_calls, stands, gain, compared, quiet } = outcome;
    Run {
        default_s: compared.default_s,
        tuned_s: compared.tuned_s,
        ratio: compared.ratio,
        control: compared.control,
        better: by_calls.len(),
        standing: stands.len(),
        gain: gain.map(|gain| gain.share),
        settled_after: spent.settled_after,
        learning: spent.over_default(),
        worst_prefix: spent.worst_prefix,
        quiet_default_s: quiet.default.iteration_s,
        quiet_tuned_s: quiet.stands.iteration_s,
        quiet_best_s: quiet.best.iteration_s,
        default_communication_s: quiet.default.calls_s,
        better_communication_s: quiet.by_calls.calls_s,
    }
}

/// Is an iteration with what stands no longer than it may be, for every truth?
fn verdict(runs: &[Run]) -> Option<bool> {
    let verdicts: Vec<Option<bool>> = runs.iter().map(|run| run.ratio.is_at_most(OVER_DEFAULT_MAX)).collect();
    if verdicts.contains(&Some(false)) { Some(false) } else { (!verdicts.contains(&None)).then_some(true) }
}

fn target(rows: &[Row]) -> Target {
    let over = |row: &Row| {
        let worst = row.runs.iter().map(|run| run.ratio.median + run.ratio.margin).fold(0.0, f64::max);
        (format!("{}, {}, {} workers", row.model, row.network, row.workers), worst, verdict(&row.runs))
    };
    // A worker alone makes no calls, and nothing could become slower.
    let found: Vec<_> = rows.iter().filter(|row| !row.runs.is_empty()).map(over).collect();
    let demanded = format!(
        "each, for every truth: iteration with the tuner over without, by turns ≤ {OVER_DEFAULT_MAX}, at the upper end of its interval"
    );
    together("simulated: ResNet-50 and BERT-Large at 2 to 32 workers".into(), demanded, &found)
}

/// The same without noise, where nothing hides what is longer.
fn quiet_target(rows: &[Row]) -> Target {
    let over = |row: &Row| {
        let worst = row.runs.iter().map(|run| run.quiet_tuned_s / run.quiet_default_s).fold(0.0, f64::max);
        (format!("{}, {}, {} workers", row.model, row.network, row.workers), worst, Some(worst <= 1.0 + ROUNDING))
    };
    let found: Vec<_> = rows.iter().filter(|row| !row.runs.is_empty()).map(over).collect();
    let demanded = "each, for every truth: iteration with what stands over without, both without noise ≤ 1".to_owned();
    together("simulated: ResNet-50 and BERT-Large at 2 to 32 workers".into(), demanded, &found)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: iterations of training",
        format!(
            "In ms: medians of {PAIRS} iterations with what stands after {LEARNING} iterations of a job, and of as many with the \
             default, by turns; means over {TRUTHS} truths. Buckets of 25 MiB travel while backward goes on, one after the other; \
             computation is the study's GPU's, with 1 % noise. Calls teach the tuner, and the time of the iteration decides: what computation \
             hides, or shortens iterations by less than 3 %, does not stand. \"Over\": with over without, mean over truths ± its 95 % \
             interval; \"of each ±\": the interval of single truths, the widest; \"noise\": the default over itself, by how much at most. \"At \
             best\": with the best of all choices, over without, no noise. \"Gain of the calls\": of all that is better by their \
             times, whether it stands or not. \"Stands\": for how many truths something does. \"Decided after\": iterations, the most; – if some truth \
             was still open. \"Learning\": all iterations of the job over the default's under the same noise, at worst; \"prefix\": all calls from 100 \
             iterations on, at worst."
        ),
        &[
            "model",
            "network",
            "workers",
            "buckets",
            "without",
            "with",
            "over",
            "of each ±",
            "noise",
            "at best",
            "gain of the calls",
            "stands",
            "decided after",
            "learning",
            "prefix",
        ],
    );
    table.rows.extend(rows.iter().map(fields));
    table
}

fn fields(row: &Row) -> Vec<String> {
    let runs = &row.runs;
    let values = |value: fn(&Run) -> f64| -> Vec<f64> { runs.iter().map(value).collect() };
    let sum = |value: fn(&Run) -> f64| values(value).iter().sum::<f64>();
    let most = |value: fn(&Run) -> f64| {
        let most = values(value).into_iter().reduce(f64::max);
        most.map_or_else(|| "–".to_owned(), |most| format!("{most:.4}"))
    };
    let (without_s, better_s) = (sum(|run| run.default_communication_s), sum(|run| run.better_communication_s));
    let (default_s, best_s) = (sum(|run| run.quiet_default_s), sum(|run| run.quiet_best_s));
    let decided: Option<Vec<u64>> = runs.iter().map(|run| run.settled_after).collect();
    let decided = decided.and_then(|all| all.into_iter().max());
    let standing = runs.iter().filter(|run| run.standing > 0).count();
    vec![
        row.model.to_owned(),
        row.network.to_owned(),
        row.workers.to_string(),
        row.buckets.to_string(),
        ms(row.default_s),
        ms(row.tuned_s),
        in_words(Over::of(&values(|run| run.ratio.median)).as_ref()),
        most(|run| run.ratio.margin),
        most(|run| (run.control.median - 1.0).abs()),
        if default_s > 0.0 { format!("{:.3}", best_s / default_s) } else { "–".to_owned() },
        percent((without_s > 0.0).then(|| 1.0 - better_s / without_s)),
        format!("{standing} of {}", runs.len()),
        decided.map_or_else(|| "–".to_owned(), |iterations| iterations.to_string()),
        most(|run| run.learning),
        most(|run| run.worst_prefix),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(median: f64, margin: f64) -> Run {
        let ratio = PairedRatio { median, margin };
        Run {
            default_s: 1.0,
            tuned_s: median,
            ratio,
            control: PairedRatio { median: 1.0, margin },
            better: 2,
            standing: 1,
            gain: None,
            settled_after: Some(300),
            learning: 1.0,
            worst_prefix: 1.0,
            quiet_default_s: 1.0,
            quiet_tuned_s: median,
            quiet_best_s: 0.9,
            default_communication_s: 0.5,
            better_communication_s: 0.4,
        }
    }

    fn row_with(workers: usize, runs: Vec<Run>) -> Row {
        let (default_s, tuned_s) = (1.0, 1.0);
        Row { model: "resnet50", network: "study-10gbe", workers, buckets: 1, default_s, tuned_s, runs }
    }

    #[test]
    fn a_worker_alone_proves_nothing() {
        assert_eq!(target(&[row_with(1, Vec::new())]).met, None);
        let both = target(&[row_with(1, Vec::new()), row_with(2, vec![run_with(0.9, 0.001)])]);
        assert!(both.met == Some(true) && both.found.starts_with("1 of 1"), "{}", both.found);
    }

    /// One truth that is longer misses, and one of which noise leaves it open leaves it open.
    #[test]
    fn every_truth_must_be_no_longer() {
        let met = |others: &[(f64, f64)]| {
            let others = others.iter().map(|&(median, margin)| run_with(median, margin));
            let runs = std::iter::once(run_with(0.8, 0.001)).chain(others).collect();
            target(&[row_with(8, runs)]).met
        };
        assert_eq!(met(&[]), Some(true));
        assert_eq!(met(&[(1.004, 0.004)]), Some(true));
        assert_eq!(met(&[(1.008, 0.004)]), None);
        assert_eq!(met(&[(1.008, 0.004), (1.02, 0.004)]), Some(false));
    }

    #[test]
    fn what_calls_gain_stands_beside_what_iterations_do() {
        let table = table(&[row_with(8, vec![run_with(0.98, 0.001), run_with(1.0, 0.002)])]);
        let of = |name: &str| {
            let place = table.columns.iter().position(|column| column == name).expect("a column");
            table.rows[0][place].clone()
        };
        assert!(of("over").starts_with("0.990 ±"), "{}", of("over"));
        assert_eq!((of("gain of the calls"), of("at best")), ("20.0 %".to_owned(), "0.900".to_owned()));
        assert_eq!((of("of each ±"), of("decided after")), ("0.0020".to_owned(), "300".to_owned()));
    }
}
