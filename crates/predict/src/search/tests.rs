//! The search against what one would choose without it, and, in `oracle`, against all plans of small instances.

use paceline_plan::{LinkClass, MeasuredRange, NetworkModel, ProfileTensor, Step, built_in_profile};
use paceline_schedule::Schedule;
use paceline_strategy::Registry;

use super::*;
use crate::random::Random;

mod faster;
mod oracle;
mod played;
mod protocols;
mod reasons;

/// From low to high, evenly in the logarithm.
fn between(random: &mut Random, low: f64, high: f64) -> f64 {
    low * (high / low).powf(random.below(1 << 20) as f64 / f64::from(1 << 20))
}

/// A few tensors of 10 kB to 20 MB, with 1 to 20 ms of computation each.
fn small_profile(random: &mut Random, tensors: usize) -> Profile {
    let tensor = |number: usize, elements: f64| ProfileTensor {
        name: number.to_string(),
        elements: elements as usize,
        forward_macs_per_sample: 1,
    };
    let mut forward = Vec::new();
    let tensors = (0..tensors).map(|number| tensor(number, between(random, 2.5e3, 5e6))).collect::<Vec<_>>();
    for number in 0..tensors.len() {
        forward.push(Step { tensor: number, seconds: between(random, 1e-3, 2e-2) });
    }
    let backward = forward.iter().rev().map(|step| Step { seconds: 2.0 * step.seconds, ..*step }).collect();
    Profile {
        model: "small".into(),
        tensors,
        forward,
        backward,
        update_s: 1e-3,
        ..built_in_profile("resnet50").unwrap()
    }
}

/// Two to four hosts of one or two workers on a network of 1 to 50 Gbit/s; every other one with all that a cluster can have
/// besides: what computation and communication cost each other, stragglers, contention, jitter, hosts that serve.
fn small_cluster(random: &mut Random) -> Cluster {
    let mut link = |beta_min: f64, beta_max: f64| LinkClass {
        alpha_s: between(random, 5e-6, 2e-4),
        overhead_s: between(random, 1e-7, 5e-6),
        beta_s_per_byte: between(random, beta_min, beta_max),
    };
    let network = NetworkModel { within: link(0.05e-9, 0.3e-9), across: link(0.16e-9, 8e-9) };
    let mut cluster = Cluster::of_network(network, 2 + random.below(3), 1 + random.below(2));
    cluster.operation.start_s = between(random, 1e-5, 2e-3).into();
    cluster.server.partition_s = between(random, 1e-5, 1e-3).into();
    cluster.server_hosts = random.below(3);
    if random.below(2) == 0 {
        cluster.interference.computation = between(random, 0.01, 0.3).into();
        cluster.interference.communication = between(random, 0.01, 0.3).into();
        cluster.computation.spread = between(random, 0.01, 0.2).into();
        cluster.computation.overhead_s.insert("*".into(), between(random, 1e-4, 1e-2).into());
        cluster.across.incast_s_per_byte = between(random, 1e-11, 1e-9).into();
        cluster.server.combine_s_per_byte = between(random, 1e-11, 1e-9).into();
        cluster.server.copy_s_per_byte = between(random, 1e-11, 1e-10).into();
        cluster.server.duplex_loss = between(random, 0.01, 0.5).into();
        // Between nothing and all, and between little and as much as the links take.
        cluster.server.dedicated_share = Some((2.0 * cluster.server.duplex_loss.value).into());
        cluster.server.connection_s_per_byte = Some(cluster.server.combine_s_per_byte);
    }
    cluster
}

fn archs(texts: &[&str]) -> Vec<Call> {
    texts.iter().map(|text| Registry::built_in().parse(&format!("arch={text}")).unwrap().arch).collect()
}

/// What bounds leave out would not have been the answer: of medium instances, each way searched by itself.
#[test]
fn nothing_better_is_left_out() {
    let mut left_out = 0;
    for seed in 100..108 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let (cluster, tensors) = (small_cluster(random), 8 + random.below(5));
        let profile = small_profile(random, tensors);
        let workers = cluster.workers();
        let found = |archs: Vec<Call>| {
            let space = Space { archs, effort: 100, intervals: 0, ..Space::default() };
            search(&Question { cluster: &cluster, profile: &profile, workers, space: &space }).unwrap()
        };
        let all = archs(&["a2a:auto", "a2a:ring", "a2a:recursive-doubling", "ps:1", "ps:2", "ps:3", "ps:4"]);
        let known =
            |arch: &Call| arch.name == "ps" || workers.is_power_of_two() || arch.word(0) != Some("recursive-doubling");
        let all: Vec<Call> = all.into_iter().filter(known).collect();
        let answer = found(all.clone());
        left_out += answer.left_out.len();
        let seconds = answer.best().prediction.iteration_s;
        for arch in all {
            let alone = found(vec![arch.clone()]);
            let alone_s = alone.best().prediction.iteration_s;
            assert!(seconds <= alone_s * 1.005, "{arch} takes {alone_s} s, the answer {seconds} s");
        }
    }
    assert!(left_out > 0, "no way was left out: the test shows nothing");
}

/// A schedule that cannot be planned is told, and the others are predicted all the same.
#[test]
fn a_schedule_that_fails_takes_no_other_along() {
    use paceline_strategy::{Aspect, Method};
    let mut schedulers = Schedulers::built_in();
    schedulers.add(
        Method {
            aspect: Aspect::Schedule,
            name: "broken",
            parameters: &[],
            sentence: "has no buckets",
            lossless: true,
            available: true,
        },
        |_: &Call, _: &Workload| Ok(Schedule::of(Vec::new())),
    );
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let strategy = schedulers.grammar().parse("auto,arch=a2a").unwrap();
    let space = Space { effort: 0, ..Space::of(schedulers, strategy) };
    let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space }).unwrap();
    let schedules: Vec<&str> = answer.candidates.iter().map(|candidate| &*candidate.strategy.schedule.name).collect();
    assert!(schedules.contains(&"bytescheduler") && schedules.contains(&"auto"), "{schedules:?}");
    let told = answer.left_out.iter().find(|left_out| left_out.schedule.as_deref() == Some("broken"));
    assert!(matches!(told.unwrap().reason, Reason::Refused(_)), "{:?}", answer.left_out);
}

/// No strategy that one could name beats what is found, and every runner-up is what it says.
#[test]
fn nothing_with_a_name_is_better() {
    let registry = Registry::built_in();
    for (cluster, model, workers) in [
        ("study-10gbe", "resnet50", 32),
        ("study-10gbe", "bert-base", 8),
        ("study-100gbib", "bert-base", 32),
        ("study-100gbib", "resnet50", 4),
    ] {
        let (cluster, profile) = (Cluster::named(cluster).unwrap(), built_in_profile(model).unwrap());
        let space = Space { effort: 20, ..Space::default() };
        let question = Question { cluster: &cluster, profile: &profile, workers, space: &space };
        let answer = search(&question).unwrap();
        let best = answer.best().prediction.samples_per_s;
        for preset in
            ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp", "bytescheduler-ps", "bytescheduler-a2a", "ddp"]
        {
            let strategy = registry.parse(preset).unwrap();
            let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
            let predicted = crate::predict(&job).unwrap().samples_per_s;
            assert!(predicted <= best * (1.0 + 1e-3), "{model} on {}: {preset} {predicted}, {best}", cluster.name);
        }
        // Arguments between those that the search tries.
        for text in [
            "schedule=fusion:3MiB,arch=a2a",
            "schedule=fusion:37MiB,arch=a2a:ring",
            "schedule=bytescheduler:3MiB:7MiB,arch=a2a",
            "schedule=bytescheduler:3MiB:9MiB,arch=ps:hosts",
            "schedule=fusion:7MiB,arch=ps:hosts:3MiB",
        ] {
            let strategy = registry.parse(text).unwrap();
            let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
            let predicted = crate::predict(&job).unwrap().samples_per_s;
            assert!(predicted <= best * 1.01, "{model} on {}: {text} {predicted}, {best}", cluster.name);
        }
        let ranked = answer.candidates.iter().map(|candidate| candidate.prediction.samples_per_s).collect::<Vec<_>>();
        assert!(ranked[1..].windows(2).all(|pair| pair[0] >= pair[1]), "{ranked:?}");
        for candidate in &answer.candidates {
            let again = candidate.predict(&question).unwrap();
            assert!((again.iteration_s / candidate.prediction.iteration_s - 1.0).abs() < 1e-9);
            assert_eq!(candidate.prediction.plan.check(), Ok(()));
        }
    }
}

#[test]
fn what_is_not_open_stays() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let found = |text: &str, workers| {
        let space = Space { effort: 0, ..Space::of(Schedulers::built_in(), Registry::built_in().parse(text).unwrap()) };
        search(&Question { cluster: &cluster, profile: &profile, workers, space: &space })
    };
    let answer = found("ddp,arch=auto", 8).unwrap();
    assert!(answer.candidates.len() > 1);
    assert!(answer.candidates.iter().all(|candidate| candidate.strategy.schedule.name == "ddp"));
    let answer = found("auto,arch=ps:2", 8).unwrap();
    let shards = |candidate: &Candidate| candidate.strategy.servers(8, 2).map(|servers| servers.shards);
    assert!(answer.candidates.iter().all(|candidate| shards(candidate) == Some(2)));
    // One worker sends nothing, and everything is as good: the simplest is taken.
    let alone = found("auto", 1).unwrap();
    assert_eq!((alone.best().strategy.schedule.to_string(), &*alone.best().strategy.arch.name), ("none".into(), "a2a"));
    assert!(alone.best().gap < 1e-9);
}

/// Iterations that must not overlap do not.
#[test]
fn without_overlap_there_is_none() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-base").unwrap());
    let space = Space { forward_overlap: false, effort: 50, ..Space::default() };
    let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space }).unwrap();
    assert!(answer.candidates.iter().all(|candidate| !candidate.prediction.plan.forward_overlap));
    let free = Space { effort: 50, ..Space::default() };
    let freely = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &free }).unwrap();
    assert!(freely.best().prediction.iteration_s <= answer.best().prediction.iteration_s * (1.0 + 1e-6));
}

/// What is found can be compared with the best of the other kinds of arch, whether their bounds admit more or not.
#[test]
fn every_kind_of_arch_has_a_candidate() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-large").unwrap());
    let space = Space { effort: 0, intervals: 0, ..Space::default() };
    let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 32, space: &space }).unwrap();
    let has = |words: &str| answer.candidates.iter().any(|candidate| candidate.strategy.to_string().contains(words));
    assert!(has("arch=a2a") && has(":dedicated") && has(":colocated"), "{:#?}", answer.left_out);
    assert!(answer.left_out.iter().any(|left_out| matches!(left_out.reason, Reason::Bound(_))));
}

/// Where computation hides everything, nobody wants servers for a millionth.
#[test]
fn of_those_that_are_as_good_the_simplest_is_the_answer() {
    let profile = built_in_profile("resnet50").unwrap();
    let cluster = Cluster { server_hosts: 4, ..Cluster::of_network(NetworkModel::HUNDRED_GB_IB, 4, 1) };
    let space = Space { effort: 20, ..Space::default() };
    let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 4, space: &space }).unwrap();
    let rates = answer.candidates.iter().map(|candidate| candidate.prediction.samples_per_s);
    let highest = rates.fold(0.0, f64::max);
    let best = answer.best();
    assert!(best.prediction.samples_per_s >= highest * (1.0 - WORTH));
    assert_eq!(best.strategy.arch.name, "a2a", "{}", best.strategy);
}

/// An algorithm by its name, or whichever the runtime takes: which of the two is ahead by rounding says nothing.
#[test]
fn the_algorithm_that_the_runtime_takes_is_the_simpler_one() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let space = Space { intervals: 0, ..Space::default() };
    let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
    let best = search(&question).unwrap().best().clone();
    let with = |arch: &str, faster: f64| {
        let strategy = Registry::built_in().parse(&format!("schedule=wfbp,arch={arch}")).unwrap();
        let samples_per_s = best.prediction.samples_per_s * faster;
        Candidate { strategy, prediction: Prediction { samples_per_s, ..best.prediction.clone() }, ..best.clone() }
    };
    for (faster, first) in [(1.0 + 1e-4, "a2a:auto"), (1.01, "a2a:ring")] {
        let mut candidates = [with("a2a:ring", faster), with("a2a:auto", 1.0)];
        rank(&mut candidates);
        assert_eq!(candidates[0].strategy.arch.to_string(), first);
    }
}

/// The workers of one host have nothing for servers elsewhere to do: those are not among what is chosen from, and are as good if
/// somebody asks for them.
#[test]
fn one_host_wants_no_servers_elsewhere() {
    for name in ["study-10gbe", "study-100gbib"] {
        let (cluster, profile) = (Cluster::named(name).unwrap(), built_in_profile("bert-large").unwrap());
        let workers = cluster.workers_per_host;
        assert!(cluster.server_hosts > 0 && workers > 1, "{name}");
        let found = |archs| {
            let space = Space { archs, effort: 0, intervals: 0, ..Space::default() };
            search(&Question { cluster: &cluster, profile: &profile, workers, space: &space }).unwrap()
        };
        let answer = found(Vec::new());
        let elsewhere = |candidate: &&Candidate| candidate.strategy.arch.word(2) == Some("dedicated");
        assert!(!answer.candidates.iter().any(|candidate| elsewhere(&candidate)), "{:?}", answer.best().strategy);
        let asked = found(archs(&["ps:1:4MiB:dedicated"]));
        let ratio = asked.best().prediction.iteration_s / answer.best().prediction.iteration_s;
        assert!((ratio - 1.0).abs() < 0.03, "{name}: {ratio}");
    }
}

#[test]
fn a_batch_that_does_not_fit_is_not_chosen() {
    use paceline_plan::MemoryNeed;
    let memory = MemoryNeed { fixed_bytes: 1 << 30, bytes_per_sample: 1 << 25, available_bytes: Some(2 << 30) };
    let profile = Profile { memory: Some(memory), ..built_in_profile("bert-base").unwrap() };
    let cluster = Cluster::named("study-10gbe").unwrap();
    let found = |local_batches: Vec<usize>| {
        let space = Space { local_batches, effort: 0, ..Space::default() };
        search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space })
    };
    let answer = found(vec![16, 64]).unwrap();
    assert_eq!(answer.best().local_batch, 16);
    let error = found(vec![64]).unwrap_err();
    assert!(error.to_string().contains("a local batch of 64 does not fit"), "{error}");
}

/// The whole lossless space for the largest model of the study, on one core. It takes about a second; the bound leaves room for
/// a machine that does something else.
#[test]
fn bert_large_is_planned_within_ten_seconds() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-large").unwrap());
    let space = Space::default();
    let question = Question { cluster: &cluster, profile: &profile, workers: 32, space: &space };
    let began = std::time::Instant::now();
    let answer = search(&question).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    println!("{} predictions in {seconds:.2} s", answer.predictions);
    assert!(seconds < 10.0, "{seconds} s");
}

#[test]
fn larger_batches_are_compared_by_throughput() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-base").unwrap());
    let space = Space { local_batches: vec![16, 64], effort: 0, ..Space::default() };
    let answer = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space }).unwrap();
    // Communication takes as long for either.
    assert_eq!(answer.best().local_batch, 64);
}

/// Who plans has timed operations: what leaves the range of those must be worth it, and not what is an estimate of a formula.
#[test]
fn estimates_of_formulas_are_no_reason_to_take_another_plan() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let space = Space { archs: archs(&["a2a:auto"]), effort: 0, intervals: 0, ..Space::default() };
    let mut answer = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space }).unwrap();
    assert!(answer.candidates.len() > 1, "{answer:?}");
    let best_s = answer.candidates[0].prediction.iteration_s;
    for candidate in &mut answer.candidates[1..] {
        (candidate.prediction.iteration_s, candidate.prediction.extrapolated) = (1.01 * best_s, Vec::new());
    }
    for (estimates, place) in [(0, 1), (1, 0)] {
        let best = &mut answer.candidates[0].prediction;
        (best.extrapolated, best.estimates) = (vec!["a doubt".to_owned()], estimates);
        assert_eq!(answer.taken().prediction.plan, answer.candidates[place].prediction.plan, "{estimates}");
        let cautions = answer.taken_instead().map(|(_, cautions)| cautions);
        assert_eq!(cautions, (place == 1).then(|| vec![Caution::Unmeasured]), "{estimates}");
    }
}

/// Servers on hosts of their own, and an algorithm by its name, may be the answer, and are not there where `auto` chooses.
#[test]
fn what_no_world_has_that_chooses_is_not_what_auto_takes() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-base").unwrap());
    let of = |archs: Vec<paceline_strategy::Call>| {
        let space = Space { archs, effort: 0, intervals: 0, ..Space::default() };
        search(&Question { cluster: &cluster, profile: &profile, workers: 32, space: &space }).unwrap()
    };
    let answer = of(Vec::new());
    let servers = |candidate: &Candidate| candidate.strategy.servers(32, 8);
    assert!(servers(answer.best()).is_some_and(|servers| servers.dedicated), "{}", answer.best().strategy);
    let (taken, cautions) = answer.taken_instead().expect("something else");
    assert_eq!(cautions[0], Caution::Elsewhere);
    let is_there = servers(taken)
        .map_or(taken.strategy.algorithm() == Some("auto"), |servers| !servers.dedicated && servers.shards <= 8);
    assert!(is_there, "{}", taken.strategy);
    // Who names it has it.
    let named = of(archs(&["ps:8:dedicated", "a2a:ring"]));
    assert!(servers(named.best()).is_some_and(|servers| servers.dedicated) && named.world.is_none());
    assert!(named.taken_instead().is_none_or(|(_, cautions)| !cautions.contains(&Caution::Elsewhere)));
}

#[test]
fn lossy_methods_are_admitted_or_refused() {
    use paceline_strategy::{Aspect, Method};
    let mut schedulers = Schedulers::built_in();
    let half = Method {
        aspect: Aspect::Compress,
        name: "half",
        parameters: &[],
        sentence: "halves",
        lossless: false,
        available: true,
    };
    schedulers.grammar_mut().add_method(half);
    let strategy = schedulers.grammar().parse("auto,compress=half").unwrap();
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let space = Space::of(schedulers, strategy);
    let error = search(&Question { cluster: &cluster, profile: &profile, workers: 8, space: &space }).unwrap_err();
    assert!(matches!(error, SearchError::Lossy { .. }), "{error}");
}
