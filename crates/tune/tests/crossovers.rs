//! The two crossovers of the survey, where the truth is the predictor's: whether tensors go off while backward runs decides
//! between servers and all-to-all, and intensity between fusing and partitioning (evidence 7 of the issue).

use paceline_plan::{Cluster, CollectiveKind, Profile, built_in_profile};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;
use paceline_tune::learner::{Learner, Thompson};
use paceline_tune::{
    Action, Arm, Congestion, Family, Parallelism, Random, Situation, State, TopologyClass, Transport, WireProtocol,
};

const SEED: u64 = 20_261_121;

/// The same model as if it computed so many times as much for each parameter, and took as much longer.
fn of_intensity(model: &str, factor: f64) -> Profile {
    let mut profile = built_in_profile(model).expect("it is built in");
    for step in profile.forward.iter_mut().chain(&mut profile.backward) {
        step.seconds *= factor;
    }
    for tensor in &mut profile.tensors {
        tensor.forward_macs_per_sample = (tensor.forward_macs_per_sample as f64 * factor) as u64;
    }
    profile
}

/// A model on a cluster: what must be chosen, and what each choice takes.
struct Case {
    situation: Situation,
    seconds: [f64; 2],
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
    profile: &Profile,
    workers: usize,
    question: Question,
    is_pipelined_layer: bool,
) -> Case {
    let registry = Registry::built_in();
    let seconds = strategies(question, is_pipelined_layer).map(|text| {
        let strategy = registry.parse(text).expect("it is a preset");
        let job = Job { cluster, profile, strategy: &strategy, workers, local_batch: None };
        estimate(&job)
            .unwrap_or_else(|error| panic!("{}, {text}, {workers} workers: {error}", profile.model))
            .iteration_s
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
    Case { situation, seconds }
}

const NETWORKS: [(&str, Transport); 3] =
    [("study-10gbe", Transport::Tcp10g), ("study-100gbe", Transport::Tcp100g), ("study-100gbib", Transport::Rdma)];

/// Servers or all-to-all: three models as they are, with tensors that go off while backward runs and with such that do not.
fn architectures() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, transport) in NETWORKS {
        let cluster = Cluster::named(name).expect("it is built in");
        for model in ["resnet50", "bert-base", "bert-large"] {
            let profile = built_in_profile(model).expect("it is built in");
            for workers in [4, 8, 16, 32] {
                for is_pipelined in [false, true] {
                    cases.push(case((&cluster, transport), &profile, workers, Question::Architecture, is_pipelined));
                }
            }
        }
    }
    cases
}

/// Fused or in partitions: two models at all intensities from a 64th of their own to 16 times as much, everything else alike. One row
/// for each model, network and number of workers, by rising intensity.
fn pieces() -> Vec<Vec<Case>> {
    let mut rows = Vec::new();
    for (name, transport) in NETWORKS {
        let cluster = Cluster::named(name).expect("it is built in");
        for model in ["bert-base", "bert-large"] {
            for workers in [8, 16, 32] {
                let of = |exponent| {
                    let profile = of_intensity(model, 2f64.powi(exponent));
                    case((&cluster, transport), &profile, workers, Question::Pieces, true)
                };
                rows.push((-6..=4).map(of).collect());
            }
        }
    }
    rows
}

/// The mean share by which choices of a learner that has seen all cases, some without a feature, are slower than the best.
fn regret(of_it: &[Case], blind: impl Fn(State) -> State) -> f64 {
    let (mut learner, mut random) = (Thompson::default(), Random::new(SEED, 8));
    let seen: Vec<Situation> = of_it
        .iter()
        .map(|case| {
            let Situation { state, arms, default, .. } = case.situation.clone();
            Situation::new(blind(state), arms, default).expect("the same arms")
        })
        .collect();
    for _ in 0..8000 {
        let number = random.below(of_it.len());
        let arm = learner.choose(&seen[number], &[true; 2], &mut random);
        learner.observe(&seen[number], arm, of_it[number].seconds[arm] * (0.02 * random.normal()).exp());
    }
    let lost = |(case, seen): (&Case, &Situation)| {
        let least = case.seconds[0].min(case.seconds[1]);
        (case.seconds[learner.best(seen, &[true; 2])] / least).ln()
    };
    of_it.iter().zip(&seen).map(lost).sum::<f64>() / of_it.len() as f64
}

/// How much longer the first choice of a case takes, as a share.
fn more(case: &Case) -> f64 {
    case.seconds[0] / case.seconds[1] - 1.0
}

/// Without overlap all-to-all is better everywhere; with it, servers are in some cells, by up to a tenth.
#[test]
fn whether_tensors_go_off_at_once_flips_servers_and_all_to_all() {
    let cases = architectures();
    let of = |pipelined: bool| cases.iter().filter(move |case| case.situation.state.is_pipelined_layer == pipelined);
    assert!(of(false).all(|case| more(case) < 0.0), "all-to-all without overlap");
    let servers: Vec<f64> = of(true).map(more).filter(|more| *more > 0.01).collect();
    println!("with overlap, servers are better in {} of {} cells: {servers:.3?}", servers.len(), of(true).count());
    assert!((3..=18).contains(&servers.len()), "{servers:?}");
}

/// Where communication decides, fusing saves start-ups; where computation takes about as long, partitions let the first tensors of the
/// next iteration go first; where computation decides, both are hidden, and within a percent.
#[test]
fn intensity_flips_fusing_and_partitions() {
    for row in pieces() {
        let all: Vec<f64> = row.iter().map(more).collect();
        let state = row[6].situation.state;
        println!("{}, I {:.0}, {} workers: {all:+.3?}", state.transport, state.model_intensity, state.ranks);
        let (low, high) = (all[0], all[10]);
        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!(low < -0.02 && most > 0.01, "no flip: {all:?}");
        // Where partitions gain most at the highest intensity of all, computation does not decide there yet.
        assert!(most == high || high.abs() < 0.02, "hidden at last: {all:?}");
    }
}

/// Whoever cannot see what decides loses more than whoever can: the learner that ships, on all cases.
#[test]
fn without_the_feature_that_decides_regret_rises() {
    let pieces: Vec<Case> = pieces().into_iter().flatten().collect();
    // What is not pipelined is fused, so that both must be hidden.
    let no_pipelining = |state| State { is_pipelined_layer: false, is_fused_call: true, ..state };
    let no_intensity = |state| State { model_intensity: 256.0, ..state };
    let both = [
        ("pipelining", regret(&architectures(), |state| state), regret(&architectures(), no_pipelining), 1e-3),
        ("intensity", regret(&pieces, |state| state), regret(&pieces, no_intensity), 5e-3),
    ];
    for (feature, all, without, least) in both {
        println!("{feature}: {:.2} % with the feature, {:.2} % without", 100.0 * all, 100.0 * without);
        assert!(without > all + least, "{feature}: {without} after {all}");
    }
}
