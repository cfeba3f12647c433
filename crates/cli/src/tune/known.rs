//! `paceline tune --atlas` and `--table` of a database: what jobs have kept of what they learned, cluster by cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use paceline_train::TunedContext;
use paceline_tune::atlas::{places, saturation_in_words, who};
use paceline_tune::environment::{NcclModel, OwnModel, counted};
use paceline_tune::learner::Lesson;
use paceline_tune::prior::{Budget, Regime};
use paceline_tune::{Action, Context, State, WireProtocol};
use serde::Serialize;

use super::learning::LearningArguments;
use super::nccl_samples::{BEFORE, NCCL};
use super::simulated::SIMULATED;
use crate::arguments::ByteSize;
use crate::bench::ResultStore as Store;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;

/// With fewer samples than that, a choice is not said to be the best.
const SAMPLES_MIN: f64 = 4.0;

/// Shows what a database knows.
///
/// # Errors
/// There is no such database; a file cannot be written.
pub fn run(learning: &LearningArguments, json: Option<JsonFile>) -> Result<ExitCode, Failure> {
    let path = learning.database.as_deref().ok_or_else(|| Failure::usage("give --database FILE.sqlite"))?;
    let report = Report::of(&Store::open_existing(path)?, path.display().to_string(), learning)?;
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(write!(io::stdout().lock(), "{report}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    database: String,
    known_clusters: Vec<Cluster>,
    #[serde(skip)]
    simulated: usize,
    #[serde(skip)]
    atlas: bool,
    #[serde(skip)]
    table: bool,
}

/// A cluster, and the kinds of calls of which something is known.
#[derive(Serialize)]
struct Cluster {
    cluster: String,
    contexts: Vec<Known>,
}

/// What is known of a context.
#[derive(Serialize)]
struct Known {
    context: Context,
    regime: Option<Regime>,
    rule: Option<String>,
    /// That were measured.
    choices: usize,
    samples: f64,
    default_knobs: Option<String>,
    default_s: Option<f64>,
    default_samples: Option<f64>,
    best: String,
    best_s: f64,
    best_samples: f64,
    /// What the last job that decided it has found, call by call. None: no job has kept it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<TunedContext>,
}

impl Report {
    fn of(store: &Store, database: String, learning: &LearningArguments) -> Result<Report, Failure> {
        let LearningArguments { atlas, table, .. } = *learning;
        let mut report = Report { database, known_clusters: Vec::new(), simulated: 0, atlas, table };
        for cluster in store.clusters()? {
            if cluster.starts_with(SIMULATED) {
                // Its lessons are no seconds, but relative to a model.
                report.simulated += 1;
            } else if !cluster.contains(BEFORE) {
                let contexts = known(&cluster, &store.lessons(&cluster)?, store.standings(&cluster)?);
                report.known_clusters.push(Cluster { cluster, contexts });
            }
        }
        Ok(report)
    }
}

/// What lessons in seconds say, context by context, and what jobs have come to there. What is damaged says nothing.
fn known(cluster: &str, lessons: &[Lesson], kept: Vec<TunedContext>) -> Vec<Known> {
    let mut kept: BTreeMap<Context, TunedContext> = kept.into_iter().map(|it| (it.context, it)).collect();
    let mut lessons: Vec<&Lesson> = lessons.iter().filter(|it| it.mean.is_finite() && it.samples > 0.0).collect();
    lessons.sort_by_key(|lesson| lesson.context);
    let is_nccl = cluster.starts_with(NCCL);
    let contexts = lessons.chunk_by(|one, other| one.context == other.context);
    contexts.filter_map(|lessons| Known::of(is_nccl, lessons, kept.remove(&lessons.first()?.context))).collect()
}

impl Known {
    /// Of lessons of one context. None of none.
    fn of(is_nccl: bool, lessons: &[&Lesson], kept: Option<TunedContext>) -> Option<Known> {
        let context = lessons.first()?.context;
        // A job knows I and M themselves.
        let budget = match &kept {
            Some(kept) => Some((kept.regime, kept.rule.clone())),
            None => budget(&context).map(|budget| (budget.regime, budget.why.to_owned())),
        };
        let (regime, rule) = budget.unzip();
        let (best, default) = (best(lessons)?, default(is_nccl, lessons));
        let words = |lesson: &Lesson| in_words(is_nccl, &context, &lesson.action);
        Some(Known {
            context,
            regime,
            rule,
            choices: lessons.len(),
            samples: lessons.iter().map(|lesson| lesson.samples).sum(),
            default_knobs: default.map(words),
            default_s: default.map(|lesson| lesson.mean.exp()),
            default_samples: default.map(|lesson| lesson.samples),
            best: words(best),
            best_s: best.mean.exp(),
            best_samples: best.samples,
            kept,
        })
    }
}

/// The one that takes least, of those that were measured often enough, if any were.
fn best<'a>(lessons: &[&'a Lesson]) -> Option<&'a Lesson> {
    let least = |enough: f64| {
        let lessons = lessons.iter().copied().filter(move |lesson| lesson.samples >= enough);
        lessons.min_by(|one, other| one.mean.total_cmp(&other.mean))
    };
    least(SAMPLES_MIN).or_else(|| least(0.0))
}

/// What the library does by itself. A database does not say which it was; but its knobs are known, and it is played most. Of several
/// that were played much, it is the slowest: what stands in its place has won against it.
fn default<'a>(is_nccl: bool, lessons: &[&'a Lesson]) -> Option<&'a Lesson> {
    let may_be = |lesson: &&'a Lesson| {
        let Action { family, channels, threads, chunk_log2 } = lesson.action;
        let middle = lesson.context.typical_bytes() < OwnModel::RENDEZVOUS_FROM;
        let protocol = if middle { WireProtocol::Middle } else { WireProtocol::Simple };
        match is_nccl {
            true => chunk_log2 == 0,
            false => channels == OwnModel::LANES_BY_ITSELF && threads == 1 && family.protocol == protocol,
        }
    };
    let candidates: Vec<&'a Lesson> = lessons.iter().copied().filter(may_be).collect();
    let most = candidates.iter().map(|lesson| lesson.samples).fold(0.0, f64::max);
    let often = candidates.into_iter().filter(|lesson| lesson.samples >= 0.5 * most);
    often.max_by(|one, other| one.mean.total_cmp(&other.mean))
}

/// Knobs, for people.
pub fn in_words(is_nccl: bool, context: &Context, action: &Action) -> String {
    let Action { family, channels, threads, chunk_log2 } = *action;
    if is_nccl {
        let way = NcclModel::way(action).map(|(algorithm, protocol)| format!("{algorithm} {protocol}"));
        let chunks = match chunk_log2 {
            0 => String::new(),
            log2 => format!(", chunks cut in {}", 1u32 << log2.min(16)),
        };
        let channels = counted(channels.into(), "channel");
        return format!("{}, {channels}{chunks}", way.unwrap_or_else(|| "program".to_owned()));
    }
    let algorithm = OwnModel::algorithm(context.collective, family.algorithm).unwrap_or("program");
    let protocol = match family.protocol {
        WireProtocol::LowLatency => "inline",
        WireProtocol::Middle => "eager",
        WireProtocol::Simple => "rendezvous",
    };
    let chunk = (1u64 << chunk_log2.min(40)) >> 10;
    let (lanes, threads) = (counted(channels.into(), "lane"), counted(threads.into(), "thread"));
    format!("{algorithm} {protocol}, {lanes}, {threads}, chunks of {chunk} KiB")
}

/// The regime of a context's calls, if it is the same for all calls that there may be: of I and V a context only knows powers of two,
/// and of M nothing else.
fn budget(context: &Context) -> Option<Budget> {
    let Context { collective, ranks, hosts, transport, topology, parallelism, congestion, .. } = *context;
    let least = 2f64.powi(context.intensity_log2.into());
    let from = if context.intensity_log2 == 0 { 0.0 } else { least };
    let step = (2.0 * least - from) / 16.0;
    let state = |part: u32, local_batch: u32| State {
        collective,
        bytes: context.typical_bytes(),
        ranks: ranks.into(),
        hosts: hosts.into(),
        model_intensity: from + step * f64::from(part),
        local_batch,
        has_nvlink: context.has_nvlink,
        transport,
        topology,
        is_ps_deployment: context.is_ps_deployment,
        is_pipelined_layer: context.is_pipelined_layer,
        is_fused_call: context.is_fused_call,
        parallelism,
        congestion,
    };
    // One by one, and then by a sixteenth more each.
    let batches = std::iter::successors(Some(1u32), |batch| Some(batch + (batch / 16).max(1)));
    let batches: Vec<u32> = batches.take_while(|batch| *batch <= 1 << 20).collect();
    let states = (0..16).flat_map(|part| batches.iter().map(move |batch| (part, *batch)));
    let states = states.map(|(part, batch)| state(part, batch)).filter(|state| state.context() == *context);
    let mut budgets = states.map(|state| Budget::of(&state));
    let first = budgets.next()?;
    budgets.all(|budget| budget == first).then_some(first)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.known_clusters.is_empty() {
            let who = "train --tune-database, bench --tune and tune --nccl-samples --database keep what they learn";
            writeln!(f, "{} knows of no cluster: {who}", self.database)?;
        }
        for (place, cluster) in self.known_clusters.iter().enumerate() {
            writeln!(f, "{}{}", if place > 0 { "\n" } else { "" }, cluster.cluster)?;
            if self.atlas {
                write_atlas(f, &cluster.contexts)?;
            }
            if self.table {
                cluster.contexts.iter().try_for_each(|known| write_knobs(f, known))?;
            }
        }
        if !self.known_clusters.is_empty() {
            writeln!(f, "\nWhat finding out has cost (regret) no database keeps: each job tells its own")?;
        }
        if self.simulated > 0 {
            writeln!(f, "\nSimulated clusters besides, whose times are those of a model: {}", self.simulated)?;
        }
        Ok(())
    }
}

fn write_atlas(f: &mut fmt::Formatter<'_>, contexts: &[Known]) -> fmt::Result {
    let (head, places) = places(contexts.iter().map(|known| &known.context));
    writeln!(f, "{head} {:>6} {:<12} {:>8} {:>8}  why", "V", "regime", "choices", "samples")?;
    for (Known { context, regime, rule, choices, samples, .. }, place) in contexts.iter().zip(&places) {
        let ratio = format!("2^-{}", context.inverse_ratio_log2);
        writeln!(
            f,
            "{place} {ratio:>6} {:<12} {:>8} {:>8.0}  {}",
            regime.map_or("?", Regime::name),
            choices,
            samples,
            rule.as_deref().unwrap_or("it depends on I and M, which no job has kept")
        )?;
    }
    Ok(())
}

fn write_knobs(f: &mut fmt::Formatter<'_>, known: &Known) -> fmt::Result {
    let Context { collective, size_log2, ranks, hosts, .. } = known.context;
    let size = ByteSize(1 << size_log2.min(62));
    writeln!(f, "{collective} from {size} among {ranks} ranks on {hosts} hosts ({})", who(&known.context))?;
    let line = |f: &mut fmt::Formatter<'_>, name: &str, seconds: f64, samples: f64, knobs: &str| {
        writeln!(f, "  {name:<8} {:>10.3} ms of {samples:.0} samples  {knobs}", 1e3 * seconds)
    };
    match (&known.default_knobs, known.default_s, known.default_samples) {
        (Some(knobs), Some(seconds), Some(samples)) => line(f, "default", seconds, samples, knobs)?,
        _ => writeln!(f, "  default  nobody has kept its time")?,
    }
    line(f, "best", known.best_s, known.best_samples, &known.best)?;
    let Some(kept) = &known.kept else { return writeln!(f, "  found    no job has kept what has won its trial") };
    writeln!(f, "  found    {} ({})", kept.best, kept.certainty)?;
    match kept.over_bandwidth.filter(|_| kept.lossless_saturated) {
        Some(times) => writeln!(f, "  lossless_saturated: {}", saturation_in_words(times, &kept.compression)),
        None => Ok(()),
    }
}

#[cfg(test)]
pub mod tests {
    use paceline_plan::Cluster as Machines;
    use paceline_tune::Family;
    use paceline_tune::environment::{CostModel, Workload};

    use super::*;

    /// A call of 16 KiB.
    pub fn state() -> State {
        model().state(&Workload::data_parallel(8, 32).calls[0])
    }

    fn model() -> OwnModel {
        OwnModel::of(&Machines::named("study-10gbe").expect("it is built in"))
    }

    /// Of the library's own choice, but for the channels.
    pub fn lesson(state: &State, channels: u8, samples: f64, mean: f64) -> Lesson {
        let situation = model().situation(state).expect("choices");
        let own = situation.arms[situation.default].action;
        Lesson { context: state.context(), action: Action { channels, ..own }, samples, mean }
    }

    /// What a job has come to.
    fn kept(state: &State) -> TunedContext {
        TunedContext {
            context: state.context(),
            regime: Regime::Conservative,
            rule: "as the job knew it".to_owned(),
            ratio: Some(1e-3),
            calls: 400,
            explored: 60,
            drifts: 0,
            best: "ring eager, 4 lanes".to_owned(),
            certainty: "20.0 % ± 1.0, p = 3e-6".to_owned(),
            gain: Some(0.2),
            default_s: Some(1e-3),
            chosen_s: Some(0.8e-3),
            over_bandwidth: Some(1.2),
            lossless_saturated: true,
            compression: vec![("fp16".to_owned(), 1.71)],
        }
    }

    fn arguments() -> LearningArguments {
        LearningArguments { atlas: true, table: true, output: None, database: None, seed: None, learner: None }
    }

    #[test]
    fn what_jobs_have_kept_is_shown_by_cluster() {
        let folder = std::env::temp_dir().join(format!("paceline-known-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let store = Store::open(&folder.join("learned.db")).expect("it is new");
        let report = || Report::of(&store, "learned.db".to_owned(), &arguments()).expect("it can be read");
        assert!(report().to_string().starts_with("learned.db knows of no cluster: train --tune-database"));
        let state = state();
        let learned = [
            lesson(&state, OwnModel::LANES_BY_ITSELF, 40.0, 1e-3f64.ln()),
            lesson(&state, 4, 30.0, 0.8e-3f64.ln()),
            lesson(&state, 2, 2.0, 0.5e-3f64.ln()),
            lesson(&state, 1, f64::NAN, 1.0),
        ];
        for cluster in ["here:shm:4", "simulated:study-10gbe:1", "nccl:0:NCCL, before job 1"] {
            store.keep_lessons(cluster, &learned).expect("kept");
        }
        let report = report();
        let text = report.to_string();
        for words in [
            "here:shm:4\ncollective ",
            "all-reduce      16 to 64 KiB       16 KiB    32     8 data, tcp10g",
            "aggressive          3       72  below 32 KiB: latency decides",
            "all-reduce from 16KiB among 32 ranks on 8 hosts (data, tcp10g, ",
            "  default       1.000 ms of 40 samples  ",
            "  best          0.800 ms of 30 samples  ",
            " eager, 4 lanes, 1 thread, chunks of ",
            "  found    no job has kept what has won its trial\n",
            "What finding out has cost (regret) no database keeps",
            "Simulated clusters besides, whose times are those of a model: 1\n",
        ] {
            assert!(text.contains(words), "no `{words}`: {text}");
        }
        assert_eq!(report.known_clusters.len(), 1, "what a job began with is nobody's");
        let json = serde_json::to_value(&report).expect("JSON");
        let context = &json["known_clusters"][0]["contexts"][0];
        assert_eq!((&context["regime"], &context["choices"]), (&"aggressive".into(), &3.into()));
        store.keep_standings("here:shm:4", &[kept(&state)]).expect("kept");
        let report = Report::of(&store, "learned.db".to_owned(), &arguments()).expect("it can be read");
        let text = report.to_string();
        for words in [
            "conservative        3       72  as the job knew it\n",
            "  found    ring eager, 4 lanes (20.0 % ± 1.0, p = 3e-6)\n  lossless_saturated: takes 1.2 times what \
             bandwidth alone would; at best, compression would bring fp16 1.7x\n",
        ] {
            assert!(text.contains(words), "no `{words}`: {text}");
        }
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["known_clusters"][0]["contexts"][0]["kept"]["gain"], 0.2);
        std::fs::remove_dir_all(folder).expect("our own folder");
    }

    /// Both were played as often as counts; what stands has won against the other one.
    #[test]
    fn the_default_is_what_was_played_most_and_lost() {
        let state = state();
        let own = lesson(&state, OwnModel::LANES_BY_ITSELF, 50.0, -1.0);
        let family = Family { algorithm: own.action.family.algorithm + 1, ..own.action.family };
        let other = |samples: f64, mean: f64| Lesson { action: Action { family, ..own.action }, samples, mean, ..own };
        assert_eq!(default(false, &[&own, &other(48.0, -1.4)]), Some(&own));
        assert_eq!(default(false, &[&other(10.0, -0.9), &own]), Some(&own));
        assert_eq!(default(false, &[&lesson(&state, 4, 50.0, -1.0)]), None, "it is none");
        let ring = Family { algorithm: 1, protocol: WireProtocol::Simple };
        let of_nccl =
            |chunk_log2: u8| Lesson { action: Action { family: ring, channels: 8, threads: 0, chunk_log2 }, ..own };
        assert_eq!(default(true, &[&of_nccl(1), &of_nccl(0)]), Some(&of_nccl(0)));
        assert_eq!(in_words(true, &own.context, &of_nccl(1).action), "Ring Simple, 8 channels, chunks cut in 2");
    }

    #[test]
    fn a_regime_is_told_where_the_context_says_it() {
        for call in Workload::data_parallel(8, 32).calls {
            let state = model().state(&call);
            assert_eq!(budget(&state.context()), Some(Budget::of(&state)), "{call:?}");
        }
        // I is from 256 to 512, on either side of what counts as high.
        let state = State { bytes: 1 << 20, ranks: 8, hosts: 8, model_intensity: 300.0, local_batch: 64, ..state() };
        let state = State { is_pipelined_layer: false, is_fused_call: true, ..state };
        assert_eq!(budget(&state.context()), None);
    }
}
