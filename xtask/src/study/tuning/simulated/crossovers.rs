//! The two crossovers of the survey, where the truth is the predictor's: whether tensors go off while backward runs decides between
//! servers and all-to-all, and the model's intensity between fusing and partitioning. What does a learner lose that does not see
//! the feature?

use paceline_plan::{Cluster, built_in_profile};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;
use paceline_tune::learner::{Learner, LinUcb};
use paceline_tune::{Action, Arm, Family, Random, Situation, State, Transport, WireProtocol};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target, percent};
use super::super::{Over, Section, in_words};
use super::{STATE, machine};
use crate::compare::Error;

const NETWORKS: [(&str, Transport); 3] =
    [("study-10gbe", Transport::Tcp10g), ("study-100gbe", Transport::Tcp100g), ("study-100gbib", Transport::Rdma)];
const MODELS: [&str; 3] = ["resnet50", "bert-base", "bert-large"];
const WORKERS: [usize; 4] = [4, 8, 16, 32];
/// Calls of each learner, over all cases.
const CALLS: usize = 3000;
/// An intensity that says nothing.
const BLIND_INTENSITY: f64 = 256.0;
/// From here on a model's intensity is high.
const HIGH_INTENSITY: f64 = 400.0;

/// What is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Question {
    /// All-to-all or servers.
    Architecture,
    /// Fused or in partitions.
    Pieces,
}

/// A model on a cluster with the seconds that each of two strategies takes.
struct Case {
    situation: Situation,
    seconds: [f64; 2],
    question: Question,
}

/// What is lost without a feature.
#[derive(Serialize)]
struct Row {
    question: Question,
    feature: &'static str,
    cases: usize,
    /// The share of the cases in which the first strategy is the better one, with the feature and without it.
    first_better: [f64; 2],
    /// What is chosen over the best, by seeds.
    seeing: Option<Over>,
    blind: Option<Over>,
    /// How much more the blind one takes, seed by seed.
    rise: Option<Over>,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (seeds, networks) = if quick { (1, 1) } else { (20, NETWORKS.len()) };
    let cases = cases(&NETWORKS[..networks])?;
    let rows = [
        row(&cases, Question::Architecture, "is_pipelined_layer", seeds),
        row(&cases, Question::Pieces, "model_intensity", seeds),
    ];
    let targets = if quick { Vec::new() } else { rows.iter().flat_map(targets).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn cases(networks: &[(&str, Transport)]) -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for (name, transport) in networks {
        let cluster = machine(name)?;
        for model in MODELS {
            for workers in WORKERS {
                for (question, is_pipelined) in
                    [(Question::Architecture, false), (Question::Architecture, true), (Question::Pieces, true)]
                {
                    cases.push(case((&cluster, *transport), model, workers, question, is_pipelined)?);
                }
            }
        }
    }
    Ok(cases)
}

fn strategies(question: Question, is_pipelined: bool) -> [&'static str; 2] {
    match (question, is_pipelined) {
        (Question::Architecture, false) => ["bsp-a2a", "bsp-ps"],
        (Question::Architecture, true) => ["wfbp-a2a", "wfbp-ps"],
        (Question::Pieces, _) => ["mg-wfbp", "bytescheduler-a2a"],
    }
}

fn case(
    (cluster, transport): (&Cluster, Transport),
    model: &str,
    workers: usize,
    question: Question,
    is_pipelined_layer: bool,
) -> Result<Case, Error> {
    let profile = built_in_profile(model).ok_or_else(|| format!("there is no profile of {model}"))?;
    let mut seconds = [0.0; 2];
    for (seconds, text) in seconds.iter_mut().zip(strategies(question, is_pipelined_layer)) {
        let failed =
            |error: &dyn std::fmt::Display| Error::from(format!("{model}, {text}, {workers} workers: {error}"));
        let strategy = Registry::built_in().parse(text).map_err(|error| failed(&error))?;
        let job = Job { cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
        *seconds = estimate(&job).map_err(|error| failed(&error))?.iteration_s;
    }
    let state = State {
        bytes: 4 * profile.parameters() as u64,
        ranks: workers as u32,
        hosts: cluster.hosts_of(workers) as u32,
        model_intensity: profile.intensity().unwrap_or(0.0),
        local_batch: profile.local_batch as u32,
        transport,
        is_pipelined_layer,
        is_fused_call: !is_pipelined_layer,
        ..STATE
    };
    // Nothing is believed beforehand: both are modelled alike. Each question has families of its own.
    let modelled_s = (seconds[0] * seconds[1]).sqrt();
    let arm = |algorithm: u8| {
        let family = Family { algorithm: algorithm + 2 * question as u8, protocol: WireProtocol::Simple };
        Arm { action: Action { family, channels: 1, threads: 1, chunk_log2: 18 }, modelled_s }
    };
    let situation = Situation::new(state, vec![arm(0), arm(1)], 0).ok_or("an iteration without time")?;
    Ok(Case { situation, seconds, question })
}

/// Has the case the feature: is it pipelined, is its model's intensity high?
fn divides(case: &Case) -> bool {
    match case.question {
        Question::Architecture => case.situation.state.is_pipelined_layer,
        Question::Pieces => case.situation.state.model_intensity >= HIGH_INTENSITY,
    }
}

fn blind(question: Question, state: State) -> State {
    match question {
        Question::Architecture => State { is_pipelined_layer: false, ..state },
        Question::Pieces => State { model_intensity: BLIND_INTENSITY, ..state },
    }
}

/// What a learner that has seen all cases chooses over the best: the geometric mean over the cases.
fn regret(cases: &[&Case], seen: &[Situation], seed: u64) -> f64 {
    let (mut learner, mut random) = (LinUcb::default(), Random::new(seed, 8));
    for _ in 0..CALLS {
        let number = random.below(cases.len());
        let arm = learner.choose(&seen[number], &[true; 2], &mut random);
        learner.observe(&seen[number], arm, cases[number].seconds[arm] * (0.02 * random.normal()).exp());
    }
    let lost = |(case, seen): (&&Case, &Situation)| {
        let least = case.seconds[0].min(case.seconds[1]);
        (case.seconds[learner.best(seen, &[true; 2])] / least).ln()
    };
    (cases.iter().zip(seen).map(lost).sum::<f64>() / cases.len().max(1) as f64).exp()
}

fn row(cases: &[Case], question: Question, feature: &'static str, seeds: u64) -> Row {
    let cases: Vec<&Case> = cases.iter().filter(|case| case.question == question).collect();
    let share = |divided: bool| {
        let of_it = cases.iter().filter(|case| divides(case) == divided);
        let (first, all) = of_it.fold((0usize, 0usize), |(first, all), case| {
            (first + usize::from(case.seconds[0] <= case.seconds[1]), all + 1)
        });
        first as f64 / all.max(1) as f64
    };
    let seen: Vec<Situation> = cases.iter().map(|case| case.situation.clone()).collect();
    let hidden: Vec<Situation> =
        seen.iter().filter_map(|it| Situation::new(blind(question, it.state), it.arms.clone(), it.default)).collect();
    let by_seed: Vec<(f64, f64)> =
        (1..=seeds).map(|seed| (regret(&cases, &seen, seed), regret(&cases, &hidden, seed))).collect();
    let of = |value: fn(&(f64, f64)) -> f64| Over::of(&by_seed.iter().map(value).collect::<Vec<f64>>());
    Row {
        question,
        feature,
        cases: cases.len(),
        first_better: [share(true), share(false)],
        seeing: of(|(seeing, _)| *seeing),
        blind: of(|(_, blind)| *blind),
        rise: of(|(seeing, blind)| blind - seeing),
    }
}

/// The predictor has the crossover, and without the feature more is lost, by more than seeds leave open.
fn targets(row: &Row) -> [Target; 2] {
    let [with, without] = row.first_better;
    let name = names(row.question);
    let rise = row.rise.as_ref().map(|rise| rise.mean - rise.half_width.unwrap_or(0.0));
    let flips = Target {
        case: format!("simulated: {name}"),
        demanded: format!("{} changes which is better in most cases", row.feature),
        found: format!("the first in {} with it, in {} without", percent(Some(with)), percent(Some(without))),
        met: Some((with > 0.5) != (without > 0.5)),
    };
    let demanded = format!("regret rises without {}", row.feature);
    let found =
        row.rise.as_ref().map_or_else(|| "nothing".to_owned(), |_| format!("by {}", in_words(row.rise.as_ref())));
    [flips, Target { case: format!("simulated: {name}"), demanded, found, met: rise.map(|least| least > 0.0) }]
}

fn names(question: Question) -> &'static str {
    match question {
        Question::Architecture => "all-to-all or servers",
        Question::Pieces => "fused or in partitions",
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: what a feature is worth",
        "The truth is what the predictor says of an iteration, with 2 % noise, on the study's networks with 4 to 32 workers. LinUCB, the \
         learner that generalises most, sees all cases, with the feature or without it. \"The first is better\": in which share of \
         the cases with the feature (pipelined; high intensity), and without. Regret: what is chosen over the best, mean over seeds \
         ± its 95 % interval.",
        &["question", "feature", "cases", "the first is better", "regret seeing it", "regret without", "rise"],
    );
    table.rows.extend(rows.iter().map(|row| {
        let [with, without] = row.first_better.map(|share| format!("{:.0} %", 100.0 * share));
        vec![
            names(row.question).to_owned(),
            row.feature.to_owned(),
            row.cases.to_string(),
            format!("{with} with, {without} without"),
            in_words(row.seeing.as_ref()),
            in_words(row.blind.as_ref()),
            in_words(row.rise.as_ref()),
        ]
    }));
    table
}
