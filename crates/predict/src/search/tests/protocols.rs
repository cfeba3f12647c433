//! The search over protocols, where a cluster tells them apart.

use paceline_plan::{Constant, LinkConstants, ProtocolConstants, Protocols};
use paceline_strategy::Aspect;

use super::*;

/// So many hosts of four workers, within which everything takes so many times as long over TCP. (Of BERT-Large, which is trained
/// there, most of an iteration is communication.)
fn two_protocols(hosts: usize, times: f64) -> Cluster {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, 4);
    let mut within = cluster.within.clone();
    for constant in [&mut within.alpha_s, &mut within.overhead_s, &mut within.beta_s_per_byte] {
        *constant = constant.times(times);
    }
    cluster.protocols.tcp = Some(ProtocolConstants { within: Some(within), ..ProtocolConstants::default() });
    cluster
}

/// What is found, and why.
fn answered(question: &Question) -> (Answer, Explanation) {
    let answer = search(question).unwrap();
    let explanation = explain(question, &answer);
    (answer, explanation)
}

fn space(text: &str) -> Space {
    Space { effort: 0, intervals: 0, ..Space::of(Schedulers::built_in(), Registry::built_in().parse(text).unwrap()) }
}

fn protocols(answer: &Answer) -> Vec<&str> {
    answer.candidates.iter().map(|candidate| &*candidate.strategy.protocol.name).collect()
}

/// Clusters are below the grammar and know nothing of it.
#[test]
fn every_protocol_that_a_strategy_can_name_has_its_place_in_a_cluster() {
    let (registry, mut protocols) = (Registry::built_in(), Protocols::default());
    for method in registry.methods(Aspect::Protocol).filter(|method| method.available) {
        assert_eq!(protocols.place(method.name).is_some(), method.name != "auto", "{}", method.name);
    }
    for name in [Protocols::MEMORY, Protocols::TCP] {
        assert!(registry.method(Aspect::Protocol, name).is_some_and(|method| method.available), "{name}");
    }
}

#[test]
fn the_faster_protocol_is_chosen_and_named() {
    let (cluster, profile, space) = (two_protocols(1, 0.5), built_in_profile("bert-large").unwrap(), space("auto"));
    let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &space };
    let (answer, explanation) = answered(&question);
    let best = answer.best();
    assert!(best.strategy.to_string().ends_with(",protocol=tcp"), "{}", best.strategy);
    // As on a cluster that has these links and no others.
    let alone = cluster.over("tcp").into_owned();
    let expected = search(&Question { cluster: &alone, ..question }).unwrap();
    let expected_s = expected.best().prediction.iteration_s;
    assert!((best.prediction.iteration_s / expected_s - 1.0).abs() < 1e-9, "{expected_s}");
    assert!(best.prediction.plan.strategy.ends_with(",protocol=tcp"), "{}", best.prediction.plan.strategy);
    // The other one is among the runners-up, and what it would bring is told.
    let runners_up: Vec<&str> = answer.best_of_each_kind().map(|kind| &*kind.strategy.protocol.name).collect();
    assert!(runners_up.contains(&"auto"), "{runners_up:?}");
    let told = explanation.effects.iter().find(|effect| effect.change == "protocol=auto instead of tcp");
    assert!(told.expect("it is told").gain < -0.05, "{:#?}", explanation.effects);
    let sentences = explanation.sentences.join("\n");
    assert!(sentences.contains(",protocol=tcp c"), "which plans are meant: {sentences}");
    // Somebody who trains with PyTorch has the same links.
    let ddp = ddp_settings(&question, &answer).unwrap().prediction.samples_per_s;
    let plain = ddp_settings(&Question { cluster: &alone, ..question }, &expected).unwrap().prediction.samples_per_s;
    assert!((ddp / plain - 1.0).abs() < 1e-9, "{ddp} {plain}");
}

#[test]
fn a_slower_protocol_is_not_chosen() {
    let (cluster, profile, space) = (two_protocols(1, 2.0), built_in_profile("bert-large").unwrap(), space("auto"));
    let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &space };
    let (answer, explanation) = answered(&question);
    assert_eq!(answer.best().strategy.protocol.name, "auto");
    assert!(protocols(&answer).contains(&"tcp"), "there is one to compare with");
    let told = explanation.effects.iter().find(|effect| effect.change == "protocol=tcp instead of auto");
    assert!(told.expect("it is told").gain < -0.05, "{:#?}", explanation.effects);
    // What was left out is told with the protocol over which it was.
    assert!(answer.left_out.iter().all(|left_out| left_out.protocol.is_some()), "{:?}", answer.left_out);
}

/// Nobody names a protocol for nothing.
#[test]
fn of_protocols_that_are_as_good_the_runtimes_own_choice_stays() {
    let profile = built_in_profile("bert-large").unwrap();
    for times in [1.0, 1.0 - 1e-6] {
        let (cluster, space) = (two_protocols(1, times), space("auto"));
        let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 4, space: &space }).unwrap();
        assert_eq!(answer.best().strategy.protocol.name, "auto", "{times}");
    }
}

#[test]
fn a_protocol_that_is_named_stays_and_costs_what_the_cluster_says() {
    let (cluster, profile, named) =
        (two_protocols(1, 2.0), built_in_profile("bert-large").unwrap(), space("auto,protocol=tcp"));
    let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &named };
    let (answer, explanation) = answered(&question);
    assert!(protocols(&answer).iter().all(|name| *name == "tcp"), "{:?}", protocols(&answer));
    assert!(!explanation.effects.iter().any(|effect| effect.change.contains("protocol=")));
    let (alone, open) = (cluster.over("tcp").into_owned(), space("auto"));
    let expected = search(&Question { cluster: &alone, space: &open, ..question }).unwrap();
    let [over, same] = [&answer, &expected].map(|answer| answer.best().prediction.iteration_s);
    assert_eq!((over, answer.predictions), (same, expected.predictions));
    // Nothing else is left open, and the protocol is.
    let bsp = space("bsp-a2a");
    let fixed = search(&Question { space: &bsp, ..question }).unwrap();
    assert_eq!(protocols(&fixed), ["auto", "tcp"]);
}

/// What is not known is not compared, and what cannot run is no candidate.
#[test]
fn where_there_is_none_to_choose_nothing_changes() {
    let (profile, space) = (built_in_profile("bert-large").unwrap(), space("auto"));
    let found = |cluster: &Cluster, workers: usize| {
        search(&Question { cluster, profile: &profile, workers, space: &space }).unwrap()
    };
    let alike = |one: &Answer, other: &Answer| {
        assert_eq!((one.predictions, one.candidates.len()), (other.predictions, other.candidates.len()));
        assert_eq!(one.best().prediction.iteration_s, other.best().prediction.iteration_s);
        assert!(protocols(one).iter().all(|name| *name == "auto"));
        assert!(one.left_out.iter().all(|left_out| left_out.protocol.is_none()), "{:?}", one.left_out);
    };
    let mut cluster = two_protocols(2, 0.5);
    let known = cluster.protocols.tcp.take();
    let plain = cluster.clone();
    // Hosts share no memory.
    cluster.protocols.shm = known;
    alike(&found(&cluster, 8), &found(&plain, 8));
    let one_host = found(&cluster, 4);
    assert_eq!(one_host.best().strategy.protocol.name, "shm");
    // A worker alone sends nothing.
    alike(&found(&cluster, 1), &found(&plain, 1));
}

/// What is measured over one protocol alone makes a difference over that one alone.
#[test]
fn what_would_be_faster_is_faster_over_every_protocol() {
    let (mut cluster, profile, space) = (two_protocols(2, 0.5), built_in_profile("bert-large").unwrap(), space("auto"));
    let across = LinkConstants { beta_s_per_byte: Constant::exact(0.4e-9), ..cluster.across.clone() };
    cluster.protocols.tcp.as_mut().unwrap().across = Some(across);
    let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
    let (answer, explanation) = answered(&question);
    assert_eq!(answer.best().strategy.protocol.name, "tcp");
    let network = explanation.effects.iter().find(|effect| effect.change == "twice the bandwidth between hosts");
    assert!(network.expect("it is told").gain > 0.05, "{:#?}", explanation.effects);
}
