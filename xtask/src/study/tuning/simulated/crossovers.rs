//! The two crossovers of the survey, where the truth is the predictor's: whether tensors go off while backward runs decides between
//! servers and all-to-all, and the model's intensity between fusing and partitioning. What does the learner that ships lose if it does
//! not see the feature? The same cases and criteria as in `crates/tune/tests/crossovers.rs`, over many seeds.

use paceline_plan::{Cluster, Profile, built_in_profile};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;
use paceline_tune::learner::{Learner, Thompson};
use paceline_tune::{Action, Arm, Family, Random, Situation, State, Transport, WireProtocol};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target};
use super::super::{Over, Section, in_words};
use super::{STATE, machine};
use crate::compare::Error;

const NETWORKS: [(&str, Transport); 3] =
    [("study-10gbe", Transport::Tcp10g), ("study-100gbe", Transport::Tcp100g), ("study-100gbib", Transport::Rdma)];

/// Of servers or all-to-all: models as they are, among so many workers.
const MODELS: [&str; 3] = ["resnet50", "bert-base", "bert-large"];
const WORKERS: [usize; 4] = [4, 8, 16, 32];
/// Without overlap, all-to-all is better in every case; with it, servers are by a percent in so many of 36, at least and at most.
const SERVERS: std::ops::RangeInclusive<usize> = 3..=18;
const SERVERS_BETTER: f64 = 0.01;

/// Of fused or in partitions: models whose intensity alone is varied, from a 64th to 16 times their own, among so many workers.
/// (ResNet-50 has no such flip: fused is better, or hidden.)
const VARIED_MODELS: [&str; 2] = ["bert-base", "bert-large"];
const VARIED_WORKERS: [usize; 3] = [8, 16, 32];
const EXPONENTS: std::ops::RangeInclusive<i32> = -6..=4;
/// A row of such cases flips if at the lowest intensity fusing is better by so much, and at some intensity partitions are by so much.
const FUSED_BETTER: f64 = 0.02;
const PARTITIONS_BETTER: f64 = 0.01;
/// So many of the 18 rows must.
const FLIPS: usize = 14;

/// Calls of each learner, over all cases.
const CALLS: usize = 8000;
/// An intensity that says nothing.
const BLIND_INTENSITY: f64 = 256.0;

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
}

/// What is lost without a feature.
#[derive(Serialize)]
struct Row {
    question: Question,
    feature: &'static str,
    cases: usize,
    /// Where the feature changes what is better, in words, and whether it is as it must be.
    crossover: String,
    has_crossover: bool,
    /// By which share regret must rise at least.
    rise_min: f64,
    /// What is chosen over the best, by seeds.
    seeing: Option<Over>,
    blind: Option<Over>,
    /// How much more the blind one takes, seed by seed.
    rise: Option<Over>,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (seeds, networks) = if quick { (1, 1) } else { (20, NETWORKS.len()) };
    let rows = [of_architectures(&NETWORKS[..networks], seeds)?, of_pieces(&NETWORKS[..networks], seeds)?];
    let targets = if quick { Vec::new() } else { rows.iter().flat_map(targets).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn of_architectures(networks: &[(&str, Transport)], seeds: u64) -> Result<Row, Error> {
    let mut cases = Vec::new();
    for &(name, transport) in networks {
        let cluster = machine(name)?;
        for model in MODELS {
            let profile = profile(model)?;
            for workers in WORKERS {
                for is_pipelined in [false, true] {
                    cases.push(case((&cluster, transport), &profile, workers, Question::Architecture, is_pipelined)?);
                }
            }
        }
    }
    let of = |pipelined: bool| cases.iter().filter(move |case| case.situation.state.is_pipelined_layer == pipelined);
    let servers = of(true).filter(|case| more(case) > SERVERS_BETTER).count();
    let alike = of(false).filter(|case| more(case) < 0.0).count();
    let (without, with) = (of(false).count(), of(true).count());
    let crossover = format!(
        "all-to-all is better in {alike} of {without} cases without overlap; servers in {servers} of {with} with it"
    );
    let has_crossover = alike == without && SERVERS.contains(&servers);
    // What is not pipelined is fused, so that both must be hidden.
    let blind = |state| State { is_pipelined_layer: false, is_fused_call: true, ..state };
    let (feature, question) = ("is_pipelined_layer", Question::Architecture);
    Ok(Row { crossover, has_crossover, rise_min: 1e-3, ..row(question, feature, &cases, blind, seeds) })
}

fn of_pieces(networks: &[(&str, Transport)], seeds: u64) -> Result<Row, Error> {
    let (mut cases, mut flips, mut rows) = (Vec::new(), 0, 0);
    for &(name, transport) in networks {
        let cluster = machine(name)?;
        for model in VARIED_MODELS {
            for workers in VARIED_WORKERS {
                let begin = cases.len();
                for exponent in EXPONENTS {
                    let profile = of_intensity(profile(model)?, 2f64.powi(exponent));
                    cases.push(case((&cluster, transport), &profile, workers, Question::Pieces, true)?);
                }
                flips += usize::from(is_flip(&cases[begin..]));
                rows += 1;
            }
        }
    }
    let crossover =
        format!("fused at low intensities and in partitions at higher ones in {flips} of {rows} rows of models");
    let blind = |state| State { model_intensity: BLIND_INTENSITY, ..state };
    let (feature, question) = ("model_intensity", Question::Pieces);
    Ok(Row { crossover, has_crossover: flips >= FLIPS, rise_min: 5e-3, ..row(question, feature, &cases, blind, seeds) })
}

/// Of cases by rising intensity.
fn is_flip(row: &[Case]) -> bool {
    let most = row.iter().map(more).fold(f64::NEG_INFINITY, f64::max);
    row.first().is_some_and(|low| more(low) < -FUSED_BETTER) && most > PARTITIONS_BETTER
}

/// How much longer the first choice of a case takes, as a share.
fn more(case: &Case) -> f64 {
    case.seconds[0] / case.seconds[1] - 1.0
}

fn profile(model: &str) -> Result<Profile, Error> {
    built_in_profile(model).ok_or_else(|| format!("there is no profile of {model}").into())
}

/// The same model as if it computed so many times as much for each parameter, and took as much longer.
fn of_intensity(mut profile: Profile, factor: f64) -> Profile {
    for step in profile.forward.iter_mut().chain(&mut profile.backward) {
        step.seconds *= factor;
    }
    for tensor in &mut profile.tensors {
        tensor.forward_macs_per_sample = (tensor.forward_macs_per_sample as f64 * factor) as u64;
    }
    profile
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
    profile: &Profile,
    workers: usize,
    question: Question,
    is_pipelined_layer: bool,
) -> Result<Case, Error> {
    let mut seconds = [0.0; 2];
    for (seconds, text) in seconds.iter_mut().zip(strategies(question, is_pipelined_layer)) {
        let failed = |error: &dyn std::fmt::Display| {
            Error::from(format!("{}, {text}, {workers} workers: {error}", profile.model))
        };
        let strategy = Registry::built_in().parse(text).map_err(|error| failed(&error))?;
        let job = Job { cluster, profile, strategy: &strategy, workers, local_batch: None };
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
    Ok(Case { situation, seconds })
}

/// What the learner that ships chooses over the best when it has seen all cases: the geometric mean over the cases.
fn regret(cases: &[Case], seen: &[Situation], seed: u64) -> f64 {
    let (mut learner, mut random) = (Thompson::default(), Random::new(seed, 8));
    for _ in 0..CALLS {
        let number = random.below(cases.len());
        let arm = learner.choose(&seen[number], &[true; 2], &mut random);
        learner.observe(&seen[number], arm, cases[number].seconds[arm] * (0.02 * random.normal()).exp());
    }
    let lost = |(case, seen): (&Case, &Situation)| {
        let least = case.seconds[0].min(case.seconds[1]);
        (case.seconds[learner.best(seen, &[true; 2])] / least).ln()
    };
    (cases.iter().zip(seen).map(lost).sum::<f64>() / cases.len().max(1) as f64).exp()
}

/// Regret with the feature and without it, seed by seed; whether there is a crossover, the questions say.
fn row(question: Question, feature: &'static str, cases: &[Case], blind: impl Fn(State) -> State, seeds: u64) -> Row {
    let seen: Vec<Situation> = cases.iter().map(|case| case.situation.clone()).collect();
    let hidden: Vec<Situation> =
        seen.iter().filter_map(|it| Situation::new(blind(it.state), it.arms.clone(), it.default)).collect();
    let by_seed: Vec<(f64, f64)> =
        (1..=seeds).map(|seed| (regret(cases, &seen, seed), regret(cases, &hidden, seed))).collect();
    let of = |value: fn(&(f64, f64)) -> f64| Over::of(&by_seed.iter().map(value).collect::<Vec<f64>>());
    Row {
        question,
        feature,
        cases: cases.len(),
        crossover: String::new(),
        has_crossover: false,
        rise_min: 0.0,
        seeing: of(|(seeing, _)| *seeing),
        blind: of(|(_, blind)| *blind),
        rise: of(|(seeing, blind)| blind - seeing),
    }
}

/// The predictor has the crossover, and without the feature more is lost than what seeds leave open.
fn targets(row: &Row) -> [Target; 2] {
    let case = format!("simulated: {}", names(row.question));
    let demanded = match row.question {
        Question::Architecture => format!(
            "all-to-all without overlap everywhere, servers with it in {} to {} cases",
            SERVERS.start(),
            SERVERS.end()
        ),
        Question::Pieces => format!("{} changes which is better in {FLIPS} rows or more", row.feature),
    };
    let crossover = Target { case: case.clone(), demanded, found: row.crossover.clone(), met: Some(row.has_crossover) };
    let found =
        row.rise.as_ref().map_or_else(|| "nothing".to_owned(), |_| format!("by {}", in_words(row.rise.as_ref())));
    let demanded = format!("regret rises by {} and more without {}", row.rise_min, row.feature);
    // At least so much is what is not at most so much.
    let met = row.rise.as_ref().and_then(|rise| rise.is_at_most(row.rise_min)).map(|at_most| !at_most);
    [crossover, Target { case, demanded, found, met }]
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
        "The truth is what the predictor says of an iteration, with 2 % noise, on the study's networks: of three models as they are with 4 \
         to 32 workers, with tensors that go off while backward runs and with such that do not; and of BERT with 8 to 32 workers, its \
         intensity alone varied from a 64th to 16 times its own. The learner that ships sees all cases, with the feature or without it. \
         Regret: what is chosen over the best, mean over seeds ± its 95 % interval.",
        &["question", "feature", "cases", "what is better", "regret seeing it", "regret without", "rise"],
    );
    table.rows.extend(rows.iter().map(|row| {
        vec![
            names(row.question).to_owned(),
            row.feature.to_owned(),
            row.cases.to_string(),
            row.crossover.clone(),
            in_words(row.seeing.as_ref()),
            in_words(row.blind.as_ref()),
            in_words(row.rise.as_ref()),
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case_of(seconds: [f64; 2]) -> Case {
        let family = Family { algorithm: 0, protocol: WireProtocol::Simple };
        let arm = Arm { action: Action { family, channels: 1, threads: 1, chunk_log2: 18 }, modelled_s: 1.0 };
        Case { situation: Situation::new(STATE, vec![arm], 0).expect("an arm"), seconds }
    }

    #[test]
    fn a_row_flips_if_each_is_better_somewhere() {
        let row = |seconds: &[f64]| seconds.iter().map(|&fused| case_of([fused, 1.0])).collect::<Vec<_>>();
        assert!(is_flip(&row(&[0.9, 1.05, 1.0])));
        for never in [&[0.9, 1.005, 1.0][..], &[0.99, 1.05, 1.0], &[1.1, 1.2], &[]] {
            assert!(!is_flip(&row(never)), "{never:?}");
        }
    }

    #[test]
    fn regret_must_rise_by_more_than_seeds_leave_open() {
        let met = |rises: &[f64]| {
            let row = Row {
                question: Question::Pieces,
                feature: "model_intensity",
                cases: 1,
                crossover: "everywhere".to_owned(),
                has_crossover: true,
                rise_min: 5e-3,
                seeing: None,
                blind: None,
                rise: Over::of(rises),
            };
            targets(&row).map(|target| target.met)
        };
        assert_eq!(met(&[0.01, 0.011, 0.01]), [Some(true), Some(true)]);
        assert_eq!(met(&[0.001, 0.0011, 0.001]), [Some(true), Some(false)]);
        assert_eq!(met(&[0.001, 0.02, 0.01]), [Some(true), None]);
        assert_eq!(met(&[]), [Some(true), None]);
    }
}
