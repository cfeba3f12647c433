//! Where there is no difference, none is reported.

use paceline_plan::CollectiveKind;
use paceline_tune::trial::{ERROR, Side, Trial, Verdict, WORTHWHILE};
use paceline_tune::{
    Action, Arm, Choice, Congestion, Family, Parallelism, Random, Situation, Standing, State, TopologyClass, Transport,
    Tuner, WireProtocol,
};

/// The first seed; each run takes the next one.
const SEED: u64 = 20_261_121;

const CALL: State = State {
    collective: CollectiveKind::AllReduce,
    bytes: 1 << 18,
    ranks: 8,
    hosts: 8,
    model_intensity: 100.0,
    local_batch: 8,
    has_nvlink: false,
    transport: Transport::Tcp10g,
    topology: TopologyClass::Flat,
    is_ps_deployment: false,
    is_pipelined_layer: false,
    is_fused_call: true,
    parallelism: Parallelism::Data,
    congestion: Congestion::None,
};

/// Sixty choices, all the same.
fn situation(bytes: u64) -> Situation {
    let mut arms = Vec::new();
    for (algorithm, &protocol) in (0..4u8).flat_map(|algorithm| WireProtocol::ALL.iter().map(move |it| (algorithm, it)))
    {
        for chunk_log2 in 16..21 {
            let action = Action { family: Family { algorithm, protocol }, channels: 2, threads: 1, chunk_log2 };
            arms.push(Arm { action, modelled_s: 1e-3 });
        }
    }
    Situation::new(State { bytes, ..CALL }, arms, 7).expect("there are arms")
}

fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

/// Is any gain reported in a job of four contexts, in which nothing makes a difference? And how many trials were there?
fn reports_a_gain(seed: u64, calls: u64, noise: impl Fn(&mut Random) -> f64) -> (bool, u32) {
    let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 1));
    let situations: Vec<Situation> = (15..19).map(|size| situation(1 << size)).collect();
    let mut reported = false;
    for call in 0..calls {
        let situation = &situations[(call % 4) as usize];
        let decision = tuner.decide(situation);
        tuner.observe(situation, decision, 1e-3 * noise(&mut random));
        // What is reported once has been reported, even if it is taken back.
        reported |= tuner.courses().any(|(_, course)| matches!(course.standing(), Standing::Chosen(..)));
    }
    (reported, tuner.trials())
}

/// In how many runs is a gain reported? Those in which nothing was tried prove nothing, so that there must be a trial in most.
fn count(runs: u64, calls: u64, noise: impl Fn(&mut Random) -> f64) -> usize {
    let (mut found, mut trials) = (0, 0);
    for run in 0..runs {
        let (reported, begun) = reports_a_gain(SEED + run, calls, &noise);
        found += usize::from(reported);
        trials += u64::from(begun);
    }
    println!("{found} of {runs} runs from seed {SEED} on, in {trials} trials");
    assert!(trials >= runs, "{trials} trials in {runs} runs from seed {SEED} on");
    found
}

/// Evidence 5 of the issue: noise only, 200 seeded runs, a gain in 5 % of them at most.
#[test]
fn noise_alone_is_a_gain_in_five_percent_of_the_runs_at_most() {
    let runs = if long() { 1000 } else { 200 };
    let found = count(runs, 2400, |random| (0.1 * random.normal()).exp());
    assert!(found as f64 <= 0.05 * runs as f64, "{found} of {runs} runs from seed {SEED} on");
}

/// Two modes, one of them three times as slow, and heavy tails: the medians of few calls differ by a lot.
#[test]
fn two_modes_without_a_difference_are_no_gain_either() {
    let runs = if long() { 1000 } else { 200 };
    let found = count(runs, 2400, |random| {
        let mode = if random.below(3) == 0 { 3.0 } else { 1.0 };
        mode * (0.05 * random.normal()).exp()
    });
    assert!(found as f64 <= 0.05 * runs as f64, "{found} of {runs} runs from seed {SEED} on");
}

/// So many of a short run's 20 jobs may report a gain where there is none: 15 %. One is 5 %, but of 20 jobs that report one with that
/// probability each, two and more do in a quarter of all cases, and four and more in 1.6 %.
const REPORTED_OF_TWENTY: f64 = 3.0;

/// A job that is explored again and again, under noise that comes in bursts, so that the network seems to change. Long runs hold 200 of
/// them to 5 %, short ones 20 to [`REPORTED_OF_TWENTY`].
#[test]
fn bursts_for_everybody_are_no_gain() {
    let runs = if long() { 200 } else { 20 };
    let mut found = 0;
    for run in 0..runs {
        let state = std::cell::Cell::new(0u64);
        let (reported, _) = reports_a_gain(SEED + run, 8000, |random| {
            // Thirty iterations of four contexts each.
            let turn = state.get() / 120;
            state.set(state.get() + 1);
            let slow = Random::new(SEED + run, turn).below(4) == 0;
            (if slow { 1.4 } else { 1.0 }) * (0.05 * random.normal()).exp()
        });
        found += u64::from(reported);
    }
    println!("{found} of {runs} runs from seed {SEED} on");
    let most = if long() { 0.05 * runs as f64 } else { REPORTED_OF_TWENTY };
    assert!(found as f64 <= most, "{found} of {runs} runs from seed {SEED} on");
}

/// Logs of two configurations that were drawn from one distribution with two modes: whoever compares means sees a winner in most.
#[test]
fn bimodal_logs_end_with_no_significant_gain() {
    let (mut by_means, mut by_trials) = (0, 0);
    for seed in SEED..SEED + 200 {
        let mut random = Random::new(seed, 2);
        let mut draw = || if random.below(4) == 0 { 2.5e-3 } else { 1e-3 } * (0.02 * random.normal()).exp();
        let logs: Vec<[f64; 3]> = (0..64).map(|_| [draw(), draw(), draw()]).collect();
        let sum = |side: Side| logs.iter().map(|block| block[side as usize]).sum::<f64>();
        by_means += u32::from((sum(Side::Candidate) / sum(Side::Default) - 1.0).abs() > WORTHWHILE);
        let (mut trial, mut order) = (Trial::new(ERROR), Random::new(seed, 3));
        let verdict = loop {
            let (side, block) = trial.next(&mut order).expect("a verdict comes in time");
            trial.observe(side, block, logs[block][side as usize]);
            if let Some(verdict) = trial.verdict() {
                break verdict;
            }
        };
        by_trials += u32::from(verdict != Verdict::NoSignificantGain);
    }
    println!("seeds from {SEED} on: means differ by 3 % in {by_means} of 200 logs, trials find a gain in {by_trials}");
    assert!(by_means > 100 && by_trials <= 10, "{by_means} and {by_trials} of 200 from seed {SEED} on");
}

/// The other side: a gain of a fifth under the same noise is found nearly always.
#[test]
fn a_real_gain_is_reported() {
    let runs = 40;
    let found = |seed: u64| {
        let (mut tuner, mut random, situation) = (Tuner::shipped(seed), Random::new(seed, 1), situation(1 << 18));
        for _ in 0..1500 {
            let decision = tuner.decide(&situation);
            // One algorithm, with all its protocols and chunks.
            let better = situation.arms[decision.arm].action.family.algorithm == 2;
            let seconds = if better { 0.8e-3 } else { 1e-3 } * (0.1 * random.normal()).exp();
            tuner.observe(&situation, decision, seconds);
        }
        let chosen = |standing| match standing {
            Standing::Chosen(Choice::Play(action), _) => Some(action.family.algorithm),
            _ => None,
        };
        tuner.courses().any(|(_, course)| chosen(course.standing()) == Some(2))
    };
    let found = (0..runs).filter(|run| found(SEED + run)).count();
    assert!(found as u64 >= runs * 9 / 10, "{found} of {runs} runs from seed {SEED} on");
}
