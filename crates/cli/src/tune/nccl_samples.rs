//! `paceline tune --nccl-samples`: what a tuner learns of NCCL's calls from what a job has recorded, and what the job is to try next.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use paceline_plan::Fnv1a;
use paceline_train::{IterationGain, TunedContext, TuningStanding};
use paceline_tune::atlas::{Atlas, Table, rows};
use paceline_tune::environment::{CostModel, NcclModel};
use paceline_tune::learner::Lesson;
use paceline_tune::nccl::Version;
use paceline_tune::whole::Whole;
use paceline_tune::{Action, Congestion, Context, Cost};
use serde::Serialize;

use super::job::{Counts, JobTuner, Model};
use super::known::in_words;
use super::learning::{ALL, LearningArguments};
use super::nccl_table::{NcclArguments, WORLD, usage};
use super::report::{not_actuable, not_actuable_in_words};
use super::samples::{LeftOut, Recording, Round};
use crate::arguments::ByteSize;
use crate::bench::ResultStore as Store;
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::tuning::joined;

/// What stands before the name of a cluster whose calls NCCL makes.
pub const NCCL: &str = "nccl:";

/// What stands before the number of a job, where what was known when it began is kept.
pub const BEFORE: &str = ", before job ";

/// I and M, where nobody says them: nothing is known of what a sample computes, and what follows from it is not said.
const INTENSITY: f64 = 0.0;
const LOCAL_BATCH: u32 = 1;

/// What a job has recorded.
#[derive(Args)]
#[command(next_help_heading = "Learning from what a job has recorded of NCCL's calls")]
pub struct SamplesArguments {
    /// Learn from these samples, of all ranks and all rounds of a job so far (docs/nccl.md); the policy for its next round goes to
    /// --output. The options below describe its communicator
    #[arg(long, value_name = "FILE.jsonl", num_args = 1.., requires = "nccl_version")]
    #[arg(conflicts_with_all = ["nccl_table", "simulate"])]
    pub nccl_samples: Vec<PathBuf>,

    /// The release of NCCL that the job runs with
    #[arg(long, value_name = "VERSION")]
    pub nccl_version: Option<Version>,

    /// Operations per sample and parameter of the job's model: how much it computes for what it sends, 249 with
    /// BERT-Base [default: nobody knows, and only single calls, links and ranks say how much is tried]
    #[arg(long, value_name = "I", value_parser = intensity)]
    pub model_intensity: Option<f64>,

    /// Samples that a rank computes in an iteration [default: 1]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub local_batch: Option<u32>,

    /// Write only what has won its trial to --output: for jobs that do not learn any more
    #[arg(long, requires = "output")]
    pub no_tries: bool,
}

fn intensity(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "give operations per sample and parameter, such as 249".to_owned())
}

/// Learns from samples.
///
/// # Errors
/// A file cannot be read or written, or holds what is no sample; there is no such release or communicator.
pub fn run(
    arguments: &SamplesArguments,
    learning: &LearningArguments,
    nccl: &NcclArguments,
    json: Option<JsonFile>,
) -> Result<ExitCode, Failure> {
    if learning.learner() == ALL {
        return Err(Failure::usage("--learner all compares learners on a simulated cluster: it goes with --simulate"));
    }
    let version =
        arguments.nccl_version.ok_or_else(|| Failure::usage("--nccl-samples needs --nccl-version VERSION"))?;
    let output = learning.output.as_deref().map(PlainFile::create).transpose()?;
    let recording = Recording::read(&arguments.nccl_samples)?;
    let communicator = nccl.communicator(recording.largest().unwrap_or(WORLD));
    recording.check_within(&communicator, nccl.says_world())?;
    let model = NcclModel::new(version, communicator).map_err(usage)?;
    let (rounds, left_out) = recording.rounds()?;
    let store = learning.database.as_deref().map(Store::open).transpose()?;
    // A larger communicator may come later in the job, and what it learns stays in one place all the same.
    let at_first = nccl.communicator(recording.largest_at_first().unwrap_or(WORLD));
    let known_as = known_as(&NcclModel::new(version, at_first).map_err(usage)?, &rounds);
    let before = match &store {
        Some(store) => before(store, &known_as, recording.job(), rounds.len())?,
        None => Vec::new(),
    };
    let job = Model {
        intensity: arguments.model_intensity.unwrap_or(INTENSITY),
        local_batch: arguments.local_batch.unwrap_or(LOCAL_BATCH),
    };
    let mut job = JobTuner::new(&model, job, learning.tuner()?, &before);
    rounds.iter().for_each(|round| job.learn(round));
    if let Some(store) = &store {
        store.keep_lessons(&known_as, &joined(&before, &job.lessons()))?;
    }
    let report = Report::new(learning, &job, left_out, arguments.no_tries);
    if let Some(store) = &store {
        store.keep_standings(&known_as, &report.contexts)?;
    }
    if let Some(output) = output {
        output.write(&job.written(&if arguments.no_tries { job.settled() } else { job.policy() }))?;
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    unless_closed(write!(io::stdout().lock(), "{report}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What a cluster is called in a database: as NCCL sees it, in words and with all that was said of it. Where NCCL has handed over tables, its
/// own choice is known, and where it has not, taken for what formulas say: lessons of one are none of the other.
fn known_as(model: &NcclModel, rounds: &[Round]) -> String {
    let described = Fnv1a::of(format!("{:?}", model.communicator()).as_bytes());
    let by = if rounds.first().is_some_and(|round| !round.costs.is_empty()) { ", by its own tables" } else { "" };
    format!("{NCCL}{described:016x}:{}{by}", model.name())
}

/// What was known when the job began. Each call goes through all rounds of the job again, and must decide as it did then: so the first
/// one keeps what it began with, and later ones begin with that, whatever was kept since.
fn before(store: &Store, known_as: &str, job: u64, rounds: usize) -> Result<Vec<Lesson>, Failure> {
    let words = format!("{known_as}{BEFORE}");
    let name = format!("{words}{job:016x}");
    if let Some(lessons) = store.beginning(&name)? {
        return Ok(lessons);
    }
    // Its first rounds were decided without this database.
    let lessons = if rounds > 1 { Vec::new() } else { store.lessons(known_as)? };
    store.keep_beginning(&words, &name, &lessons)?;
    Ok(lessons)
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    model: String,
    learner: String,
    seed: u64,
    recorded_rounds: u64,
    recorded_calls: u64,
    incomplete_calls: u64,
    absent_calls: u64,
    absent: Option<String>,
    cut_lines: u64,
    lost_samples: u64,
    dishonoured_calls: u64,
    never_honoured: Vec<String>,
    calls_without_choice: u64,
    contexts_by_nccl_costs: u64,
    policy_version: u64,
    standing_contexts: usize,
    tried_contexts: usize,
    undecided_contexts: usize,
    /// By the time of the iteration; None: no round has said it.
    standing: Option<TuningStanding>,
    gain: Option<IterationGain>,
    iteration_trials: u32,
    /// Is a round now and then enough?
    settled: bool,
    measured_s: f64,
    regret_s: f64,
    congestion: Congestion,
    trials: u32,
    contexts: Vec<TunedContext>,
    not_actuable: Vec<&'static str>,
    #[serde(skip)]
    atlas: Option<Atlas>,
    #[serde(skip)]
    table: Option<Table>,
}

impl Report {
    fn new(learning: &LearningArguments, job: &JobTuner, left_out: LeftOut, no_tries: bool) -> Report {
        let model = job.nccl();
        let rows = rows(&job.tuner, model);
        let Counts { rounds, calls, not_honoured, without_choice, by_nccl_costs } = job.counts;
        let Cost { measured_s, regret_s } = job.cost();
        let (standing_contexts, tried_contexts) = job.standing_and_tried();
        let (standing, gain) = job.whole().map(TuningStanding::of).unzip();
        Report {
            model: model.name(),
            learner: learning.learner().to_owned(),
            seed: learning.seed(),
            recorded_rounds: rounds,
            recorded_calls: calls,
            incomplete_calls: left_out.calls,
            absent_calls: left_out.of_absent,
            absent: left_out.absent,
            cut_lines: left_out.cut_lines,
            lost_samples: left_out.lost,
            dishonoured_calls: not_honoured,
            never_honoured: job.unheard().map(|(context, action)| told(context, action)).collect(),
            calls_without_choice: without_choice,
            contexts_by_nccl_costs: by_nccl_costs,
            policy_version: if no_tries { job.settled() } else { job.policy() }.version(),
            standing_contexts,
            tried_contexts: if no_tries { 0 } else { tried_contexts },
            undecided_contexts: job.undecided(),
            standing,
            gain: gain.flatten(),
            iteration_trials: job.whole().map_or(0, Whole::trials),
            settled: job.is_settled(),
            measured_s,
            regret_s,
            congestion: job.congestion(),
            trials: job.tuner.trials(),
            contexts: rows.iter().map(TunedContext::of).collect(),
            not_actuable: not_actuable(model),
            atlas: learning.atlas.then(|| Atlas(rows.clone())),
            table: learning.table.then_some(Table(rows)),
        }
    }
}

impl Report {
    /// Whose model says what is believed of calls that were not tried yet.
    fn prior(&self) -> String {
        match (self.contexts_by_nccl_costs, self.contexts.len() as u64) {
            (0, _) => "the formulas of this release, on links as the options describe them".to_owned(),
            (handed, all) if handed < all => {
                format!("the tables that NCCL handed over in {handed} regimes, its formulas in the others")
            }
            _ => "the tables that NCCL handed over".to_owned(),
        }
    }
}

/// The same in words, for people.
fn in_iterations(standing: Option<TuningStanding>, gain: Option<&IterationGain>) -> String {
    match (standing, gain) {
        (None, _) => "nobody has written what they take (iteration_s): the times of calls decide alone".to_owned(),
        (Some(TuningStanding::Tuned), Some(gain)) => format!("{gain} with what was found"),
        (Some(TuningStanding::Learning), _) => "they decide when all calls are decided".to_owned(),
        (Some(TuningStanding::OnTrial), _) => "rounds with what was found and without take turns".to_owned(),
        (Some(TuningStanding::NoSignificantGain), _) => {
            "calls may be faster, iterations are not: NCCL's own choices stay".to_owned()
        }
        (Some(TuningStanding::Unchanged | TuningStanding::Tuned), _) => {
            "nothing is better than NCCL's own choices, which stay".to_owned()
        }
    }
}

/// What NCCL was told, in words.
fn told(context: &Context, action: &Action) -> String {
    let Context { collective, size_log2, ranks, .. } = *context;
    let size = ByteSize(1 << size_log2.min(62));
    format!("{collective} from {size} among {ranks} ranks: {}", in_words(true, context, action))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, text: String| writeln!(f, "  {name:<15} {text}");
        writeln!(f, "{}: {} rounds of a job", self.model, self.recorded_rounds)?;
        let (calls, kinds) = (self.recorded_calls, self.contexts.len());
        row(f, "calls", format!("{calls} in {kinds} regimes, {} trials", self.trials))?;
        for (count, why) in [
            (self.incomplete_calls, "calls: not every rank has a time of them"),
            (self.absent_calls, "calls: a rank has no sample of their communicator in that round"),
            (self.dishonoured_calls, "calls: they did not go the way of the policy"),
            (self.calls_without_choice, "calls: there is nothing to choose for them"),
            (self.lost_samples, "samples: the ranks that recorded them had no room for them, or no times"),
            (self.cut_lines, "lines: their ends were not written"),
        ] {
            if count > 0 {
                row(f, "left out", format!("{count} {why}"))?;
            }
        }
        if let Some(absent) = &self.absent {
            row(f, "", format!("the first: {absent}"))?;
        }
        row(f, "believed first", self.prior())?;
        for told in &self.never_honoured {
            row(f, "never done", format!("{told}: given up"))?;
        }
        let (version, standing, tried) = (self.policy_version, self.standing_contexts, self.tried_contexts);
        let next = format!("version {version}: something better in {standing} regimes, something to try in {tried}");
        let Report { measured_s, regret_s, congestion, .. } = self;
        if *measured_s > 0.0 {
            let text = format!(
                "{regret_s:.3} s ({:.1} %) of the {measured_s:.3} s of these calls would have been saved, had this \
                 been known from the start",
                100.0 * regret_s / measured_s
            );
            row(f, "regret", text)?;
        }
        if *congestion != Congestion::None {
            row(f, "congestion", format!("{congestion}: others are in the way"))?;
        }
        row(f, "iterations", in_iterations(self.standing, self.gain.as_ref()))?;
        row(f, "next policy", next)?;
        row(f, "not actuable", not_actuable_in_words(&self.not_actuable))?;
        if let Some(atlas) = &self.atlas {
            write!(f, "\n{atlas}")?;
        }
        if let Some(table) = &self.table {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::parsed;
    use super::*;

    /// A call of all-reduce of two ranks, in each of so many rounds.
    fn samples(rank: u32, rounds: u64) -> String {
        let line = |round: u64| {
            format!(
                "{{\"schema\": 1, \"round\": {round}, \"policy\": {}, \"communicator\": 1, \"sequence\": {round}, \
                 \"rank\": {rank}, \"ranks\": 2, \"hosts\": 1, \"function\": \"AllReduce\", \"bytes\": 65536, \
                 \"algorithm\": \"Ring\", \"protocol\": \"LL\", \"channels\": 4, \"longest_ns\": {}}}\n",
                2 * (round - 1),
                30_000 + 1000 * u64::from(rank)
            )
        };
        (1..=rounds).map(line).collect()
    }

    /// What each call of the command writes, and what the database knows then.
    #[test]
    fn a_job_is_learned_from_round_by_round() {
        let folder = std::env::temp_dir().join(format!("paceline-nccl-samples-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the test");
        let path = |name: &str| folder.join(name).display().to_string();
        let tune = |more: &[&str]| {
            let files = [path("0.jsonl"), path("1.jsonl")];
            let (policy, database, json) = (path("policy.toml"), path("learned.db"), path("out.json"));
            let mut words = vec!["--nccl-samples", &*files[0], &files[1], "--nccl-version", "2.30.7"];
            words.extend(["-o", &policy, "--database", &database, "--json", &json, "--table"]);
            words.extend(more);
            super::super::run(&parsed(words)?).map_err(|failure| failure.in_one_line())?;
            Ok::<_, String>((fs::read_to_string(&policy).expect("a policy"), fs::read_to_string(&json).expect("JSON")))
        };
        let write = |rounds: u64| {
            for rank in 0..2 {
                fs::write(path(&format!("{rank}.jsonl")), samples(rank, rounds)).expect("samples");
            }
        };
        for rounds in [1, 2, 3] {
            write(rounds);
            let (policy, json) = tune(&[]).expect("it learns");
            assert!(policy.contains(&format!("version = {}\n", 2 * rounds)), "{policy}");
            assert!(!policy.contains("[[call]]"), "NCCL's own choice comes first: {policy}");
            for field in [format!("\"recorded_rounds\": {rounds}"), format!("\"recorded_calls\": {rounds}")] {
                assert!(json.contains(&field), "no {field}: {json}");
            }
            assert!(json.contains("NCCL 2.30.7 among 2 ranks on 1 hosts"), "as the samples say: {json}");
            assert!(json.contains("\"standing\": null") && json.contains("\"settled\": false"), "{json}");
        }
        // In the fourth round there is a larger communicator, of which a rank has lost its samples, and somebody was ended.
        for (rank, cut) in [(0, ""), (1, "{\"schema\": 1, \"ro")] {
            let larger =
                samples(rank, 4).lines().last().expect("a line").replace("\"communicator\": 1", "\"communicator\": 2");
            let larger = larger.replace("\"ranks\": 2", "\"ranks\": 4, \"lost\": 5, \"iteration_s\": 0.25");
            fs::write(path(&format!("{rank}.jsonl")), format!("{}{larger}\n{cut}", samples(rank, 4))).expect("samples");
        }
        let (_, json) = tune(&[]).expect("it learns");
        for field in [
            "\"recorded_calls\": 4",
            "\"absent_calls\": 1",
            "and in round 4 there is no sample of rank 2, 3",
            "\"lost_samples\": 10",
            "\"cut_lines\": 1",
            "\"policy_version\": 8",
            "\"standing\": \"learning\"",
            "\"iteration_trials\": 0",
            "\"settled\": false",
            "\"not_actuable\": [\n    \"threads\"\n  ]",
            "\"over_bandwidth\": ",
            "\"measured_s\": 0.00012",
            "\"regret_s\": 0.0,",
        ] {
            assert!(json.contains(field), "no {field}: {json}");
        }
        let (settled, _) = tune(&["--no-tries"]).expect("it learns");
        assert!(settled.contains("version = 9\n"), "another policy has another number: {settled}");
        let store = Store::open(std::path::Path::new(&path("learned.db"))).expect("a database");
        let mut clusters = store.clusters().expect("it can be read");
        clusters.retain(|cluster| !cluster.contains(BEFORE));
        let [cluster] = &clusters[..] else { panic!("a job has one name: {clusters:?}") };
        let lessons = store.lessons(cluster).expect("it can be read");
        assert_eq!(lessons.len(), 1, "{lessons:?}");
        assert!((lessons[0].mean.exp() - 30e-6).abs() < 1e-9, "in seconds, of the rank that came last: {lessons:?}");
        let standings = store.standings(cluster).expect("it can be read");
        let [standing] = &standings[..] else { panic!("one kind of calls: {standings:?}") };
        assert!(standing.context.ranks == 2 && !standing.is_decided(), "{standing:?}");
        for (more, words) in [
            (&["--ranks", "4", "--hosts", "3"][..], "hosts = 3"),
            (&["--learner", "all"], "--simulate"),
            (&["--learner", "nobody"], "there is no learner `nobody`"),
        ] {
            assert!(tune(more).is_err_and(|message| message.contains(words)), "{more:?}");
        }
        fs::write(path("1.jsonl"), "").expect("no samples");
        assert!(tune(&[]).is_err_and(|message| message.contains("0.jsonl:1: communicator 1 has 2 ranks")));
        fs::remove_dir_all(&folder).expect("our own folder");
    }

    /// What a job begins with stays what it began with.
    #[test]
    fn what_was_known_when_a_job_began_is_kept() {
        let folder = std::env::temp_dir().join(format!("paceline-nccl-before-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the test");
        let store = Store::open(&folder.join("learned.db")).expect("it is new");
        let state = super::super::known::tests::state();
        let lesson = super::super::known::tests::lesson(&state, 1, 3.0, -2.0);
        store.keep_lessons("here", &[lesson]).expect("kept");
        let begin = |job: u64, rounds: usize| before(&store, "here", job, rounds).expect("it can be read");
        assert_eq!(begin(1, 1), [lesson]);
        let newer = Lesson { mean: -3.0, ..lesson };
        store.keep_lessons("here", &[newer]).expect("kept");
        assert_eq!((begin(1, 1), begin(1, 2)), (vec![lesson], vec![lesson]), "the same job");
        assert_eq!(begin(2, 1), [newer], "another one begins with what there is now");
        assert_eq!(begin(3, 5), [], "one that began without a database");
        // Nothing was known when it began, and that stays so.
        let elsewhere = |job: u64| before(&store, "there", job, 1).expect("it can be read");
        assert_eq!(elsewhere(1), []);
        store.keep_lessons("there", &[lesson]).expect("kept");
        assert_eq!((elsewhere(1), elsewhere(2)), (vec![], vec![lesson]));
        // What many jobs ago was known is forgotten, on this cluster, and nothing else.
        for job in 4..40 {
            assert_eq!(begin(job, 1), [newer]);
        }
        let kept = |name: &str| store.beginning(&format!("{name}{BEFORE}{:016x}", 1)).expect("it can be read");
        assert_eq!((kept("here"), kept("there")), (None, Some(vec![])));
        let of_here = |it: &String| it.starts_with(&format!("here{BEFORE}"));
        assert_eq!(store.clusters().expect("it can be read").iter().filter(|it| of_here(it)).count(), 16);
        assert_eq!((begin(39, 1), store.lessons("here").expect("it can be read")), (vec![newer], vec![newer]));
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
