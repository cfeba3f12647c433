//! The two crossovers of the survey, where the truth is the predictor's: whether tensors go off while backward runs decides
//! between servers and all-to-all, and intensity between fusing and partitioning (evidence 7 of the issue).

use std::collections::BTreeMap;

use paceline_plan::{Cluster, CollectiveKind, built_in_profile};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;
use paceline_tune::learner::{Learner, LinUcb};
use paceline_tune::{
    Action, Arm, Congestion, Family, Parallelism, Random, Situation, State, TopologyClass, Transport, WireProtocol,
};

const SEED: u64 = 20_261_121;

/// A model on a cluster: what must be chosen, and what each choice takes.
struct Case {
    situation: Situation,
    seconds: Vec<f64>,
    question: Question,
}

/// What is asked of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    /// Servers or all-to-all, with tensors that wait for each other or do not.
    Architecture,
    /// Fused or in partitions.
    Pieces,
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
) -> Case {
    let profile = built_in_profile(model).expect("it is built in");
    let registry = Registry::built_in();
    let seconds = strategies(question, is_pipelined_layer).map(|text| {
        let strategy = registry.parse(text).expect("it is a preset");
        let job = Job { cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
        estimate(&job).unwrap_or_else(|error| panic!("{model}, {text}, {workers} workers: {error}")).iteration_s
    });
    let elements: u64 = profile.tensors.iter().map(|tensor| tensor.elements as u64).sum();
    let state = State {
        collective: CollectiveKind::AllReduce,
        bytes: 4 * elements,
        ranks: workers as u32,
        hosts: cluster.hosts_of(workers) as u32,
        model_intensity: profile.intensity().expect("multiply-accumulates are known"),
        local_batch: profile.local_batch as u32,
        has_nvlink: false,
        transport,
        topology: TopologyClass::Flat,
        is_ps_deployment: false,
        is_pipelined_layer,
        is_fused_call: !is_pipelined_layer,
        parallelism: Parallelism::Data,
        congestion: Congestion::None,
    };
    // Nothing is believed beforehand: both are modelled alike. Each question has families of its own.
    let modelled_s = (seconds[0] * seconds[1]).sqrt();
    let arm = |algorithm: u8| {
        let family = Family { algorithm: algorithm + 2 * question as u8, protocol: WireProtocol::Simple };
        Arm { action: Action { family, channels: 1, threads: 1, chunk_log2: 18 }, modelled_s }
    };
    let situation = Situation::new(state, vec![arm(0), arm(1)], 0).expect("two arms");
    Case { situation, seconds: seconds.to_vec(), question }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let networks =
        [("study-10gbe", Transport::Tcp10g), ("study-100gbe", Transport::Tcp100g), ("study-100gbib", Transport::Rdma)];
    for (name, transport) in networks {
        let cluster = Cluster::named(name).expect("it is built in");
        cases.extend(cases_on((&cluster, transport)));
    }
    cases
}

fn cases_on(network: (&Cluster, Transport)) -> Vec<Case> {
    let mut cases = Vec::new();
    for model in ["resnet50", "bert-base", "bert-large"] {
        for workers in [4, 8, 16, 32] {
            for is_pipelined in [false, true] {
                cases.push(case(network, model, workers, Question::Architecture, is_pipelined));
            }
            cases.push(case(network, model, workers, Question::Pieces, true));
        }
    }
    cases
}

/// The mean share by which choices of a learner that has seen all cases, some without a feature, are slower than the best.
fn regret(cases: &[Case], question: Question, blind: impl Fn(State) -> State) -> f64 {
    let (mut learner, mut random) = (LinUcb::default(), Random::new(SEED, 8));
    let of_it: Vec<&Case> = cases.iter().filter(|case| case.question == question).collect();
    let seen: Vec<Situation> = of_it
        .iter()
        .map(|case| {
            let Situation { state, arms, default, .. } = case.situation.clone();
            Situation::new(blind(state), arms, default).expect("the same arms")
        })
        .collect();
    for _ in 0..3000 {
        let number = random.below(of_it.len());
        let arm = learner.choose(&seen[number], &[true; 2], &mut random);
        learner.observe(&seen[number], arm, of_it[number].seconds[arm] * (0.02 * random.normal()).exp());
    }
    let lost = |(case, seen): (&&Case, &Situation)| {
        let least = case.seconds[0].min(case.seconds[1]);
        (case.seconds[learner.best(seen, &[true; 2])] / least).ln()
    };
    of_it.iter().zip(&seen).map(lost).sum::<f64>() / of_it.len() as f64
}

#[test]
fn the_predictor_has_both_crossovers() {
    let mut better: BTreeMap<(Question, bool), Vec<bool>> = BTreeMap::new();
    for case in cases() {
        let (state, first) = (case.situation.state, case.seconds[0] <= case.seconds[1]);
        println!(
            "{:?}, {}, I {:.0}, {} workers, pipelined {}: {:.1} ms and {:.1} ms",
            case.question,
            state.transport,
            state.model_intensity,
            state.ranks,
            state.is_pipelined_layer,
            1e3 * case.seconds[0],
            1e3 * case.seconds[1]
        );
        let divides = match case.question {
            Question::Architecture => state.is_pipelined_layer,
            Question::Pieces => state.model_intensity >= 400.0,
        };
        better.entry((case.question, divides)).or_default().push(first);
    }
    for question in [Question::Architecture, Question::Pieces] {
        let share = |divides| {
            let all = &better[&(question, divides)];
            all.iter().filter(|first| **first).count() as f64 / all.len() as f64
        };
        // Where intensity is high, fusing is best everywhere; where it is low, in seven cells of eight.
        assert!((share(true) - share(false)).abs() > 0.1, "{question:?}: {} and {}", share(true), share(false));
    }
}

#[test]
fn without_the_feature_that_decides_regret_rises() {
    let cases = cases();
    for (question, blind) in [
        (Question::Architecture, (|state| State { is_pipelined_layer: false, ..state }) as fn(State) -> State),
        (Question::Pieces, (|state| State { model_intensity: 256.0, ..state }) as fn(State) -> State),
    ] {
        let (all, without) = (regret(&cases, question, |state| state), regret(&cases, question, blind));
        println!("{question:?}: {:.2} % with the feature, {:.2} % without", 100.0 * all, 100.0 * without);
        assert!(without > all, "{question:?}: {without} after {all}");
    }
}
