//! Where messages decide among candidates.

use super::*;
use crate::iteration::{Lane, Span};
use crate::{estimate_plan, played_emulated, predict_by_message};

#[test]
fn messages_decide_where_links_are_emulated() {
    let profile = built_in_profile("resnet50").expect("it is built in");
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 2);
    cluster.across.counted_overhead_s = 50e-6;
    let strategy = Registry::built_in().parse("schedule=auto,arch=auto").expect("a strategy");
    let archs = archs_of_world(4);
    let space = Space { archs, intervals: 0, effort: 20, ..Space::of(Schedulers::built_in(), strategy) };
    let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
    let [before, mut after] = [search(&question), search(&question)].map(|answer| answer.expect("an answer"));
    let count = after.play_emulated(&question);
    assert!((2..=8).contains(&count), "{count}");
    let mut moved = 0;
    for candidate in &after.candidates[..count] {
        let (strategy, local_batch) = (&candidate.strategy, Some(candidate.local_batch));
        let job = Job { cluster: &cluster, profile: &profile, strategy, workers: 8, local_batch };
        let by_formulas = estimate_plan(&job, &candidate.prediction.plan).expect("a prediction");
        let played = played_emulated(&job, &by_formulas).expect("it can be played");
        assert!((candidate.prediction.iteration_s / played.iteration_s - 1.0).abs() < 1e-9, "{}", candidate.strategy);
        // What is shown of it is what was played, as long as that is said to take.
        let of_messages = |span: &&Span| span.lane == Lane::Links && span.operation.is_some();
        let Prediction { timeline, iteration_s, .. } = &candidate.prediction;
        let last_s = timeline.iter().filter(of_messages).map(|span| span.end_s).fold(0.0, f64::max);
        assert!((0.9..1.5).contains(&(last_s / iteration_s)), "{}: {last_s} s", candidate.strategy);
        moved += usize::from((played.iteration_s / by_formulas.iteration_s - 1.0).abs() > 1e-3);
    }
    assert!(moved > 0, "formulas are not what messages take");
    // The first is as good as the best of those that were played, and the others follow in their order.
    let rates: Vec<f64> = after.candidates[..count].iter().map(|one| one.prediction.samples_per_s).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    assert!(rates[0] >= most * (1.0 - WORTH) && rates[1..].is_sorted_by(|one, other| one >= other), "{rates:?}");
    // What was not looked at is as it was.
    let rest = |answer: &Answer, count: usize| -> Vec<f64> {
        answer.candidates[count..].iter().map(|one| one.prediction.iteration_s).collect()
    };
    let unplayed = rest(&after, count);
    assert_eq!(unplayed, rest(&before, before.candidates.len() - unplayed.len()));
}

/// With a server on each of sixteen further hosts and few partitions for each, formulas leave out how servers begin, and take them for the best.
#[test]
fn messages_decide_where_formulas_know_too_little() {
    let profile = built_in_profile("bert-base").expect("it is built in");
    let class = LinkClass { alpha_s: 50e-6, overhead_s: 10e-6, beta_s_per_byte: 8e-10 };
    let mut cluster = Cluster::of_network(NetworkModel { within: class, across: class }, 16, 1);
    cluster.server_hosts = 16;
    let space = Space { effort: 0, ..Space::default() };
    let of = |messages| {
        let space = Space { messages, ..space.clone() };
        search(&Question { cluster: &cluster, profile: &profile, workers: 16, space: &space }).expect("an answer")
    };
    let [formulas, messages] = [of(false), of(true)];
    let (before, best) = (formulas.best(), messages.best());
    println!("{} after {} played, instead of {}", best.strategy, messages.played, before.strategy);
    assert!(before.prediction.knows_few_partitions() && formulas.played == 0, "{}", before.strategy);
    assert!(!best.prediction.knows_few_partitions() && messages.played > 0, "{}", best.strategy);
    assert_ne!(best.strategy, before.strategy);
    assert!(!best.prediction.timeline.is_empty(), "{}", best.strategy);
    assert!(messages.candidates[1..].iter().all(|candidate| candidate.prediction.timeline.is_empty()));
    for candidate in &messages.candidates {
        let (strategy, local_batch) = (&candidate.strategy, Some(candidate.local_batch));
        assert!(candidate.gap >= 0.0, "{strategy}: {}", candidate.gap);
        let Some(played_s) = candidate.by_message_s else { continue };
        let job = Job { cluster: &cluster, profile: &profile, strategy, workers: 16, local_batch };
        let prediction = &candidate.prediction;
        let by_message = predict_by_message(&job, &prediction.plan).expect("it can be played").iteration_s;
        assert!((played_s / by_message - 1.0).abs() < 0.01, "{strategy}: {played_s} s, {by_message} s by message");
        assert!((prediction.iteration_s / played_s - 1.0).abs() < 1e-9, "{strategy}: {prediction:?}");
        assert!(prediction.samples_per_s <= best.prediction.samples_per_s * (1.0 + WORTH), "{strategy}");
    }
    let is_before = |candidate: &&Candidate| candidate.strategy == before.strategy;
    let known = messages.candidates.iter().find(is_before).expect("it is a candidate still");
    assert!(known.prediction.iteration_s > 1.06 * before.prediction.iteration_s, "{known:?}");
}
