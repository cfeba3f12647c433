use paceline_plan::{Constant, MeasuredRange, NetworkModel, ProfileTensor, Step};
use paceline_schedule::{Schedule, ScheduleError, Workload};
use paceline_server::Roles;
use paceline_strategy::{Aspect, Method, Registry};

use super::*;
use crate::on_ranks::{on_emulated, on_ranks, on_workers};

/// Four layers of 1 MB.
fn profile() -> Profile {
    let tensor =
        |number| ProfileTensor { name: format!("layer {number}"), elements: 250_000, forward_macs_per_sample: 10 };
    let step = |tensor| Step { tensor, seconds: 0.001 };
    Profile {
        schema: Profile::SCHEMA,
        model: "layers".into(),
        local_batch: 4,
        tensors: (0..4).map(tensor).collect(),
        forward: (0..4).map(step).collect(),
        backward: (0..4).rev().map(step).collect(),
        update_s: 0.000_1,
        ..Profile::default()
    }
}

/// Of workers of whom nothing is known, whose operations start at once.
fn choosing<'a>(strategy: &'a Strategy, schedulers: &'a Schedulers, peers: &'a Peers) -> Choosing<'a> {
    Choosing {
        strategy,
        schedulers,
        peers,
        may_overlap: true,
        start_up: Duration::ZERO,
        all_pass_s: None,
        interference: None,
    }
}

/// One bucket for each tensor, of what it says that it changes what is learned.
fn careless(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(Schedule::of(workload.ready.iter().map(|&tensor| vec![tensor]).collect()))
}

/// A schedule that changes what is learned is no candidate, unless it is named.
#[test]
fn lossy_schedules_are_looked_at_only_where_they_are_named() {
    let mut schedulers = Schedulers::built_in();
    let method = Method {
        aspect: Aspect::Schedule,
        name: "careless",
        parameters: &[],
        sentence: "careless sums",
        lossless: false,
        available: true,
    };
    schedulers.add(method, careless);
    let (profile, cluster) = (profile(), Cluster::named("study-10gbe:4x1").unwrap());
    for (text, looked_at) in [("auto", false), ("schedule=careless,arch=auto", true)] {
        let strategy = schedulers.grammar().parse(text).unwrap();
        let found = on_ranks(1, |communicator| {
            let peers = Peers::from(&communicator);
            let choosing = choosing(&strategy, &schedulers, &peers);
            let space = Space { effort: 0, ..choosing.space() };
            let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &space };
            let candidates = search(&question).unwrap().candidates;
            candidates.iter().any(|candidate| candidate.strategy.schedule.name == "careless")
        });
        assert_eq!(found, [looked_at], "{text}");
    }
}

/// Of three shards that were met one may serve, or two. Where that is as fast, the fewest do, or those of which
/// operations were timed.
#[test]
fn some_of_the_shards_may_serve() {
    let schedulers = Schedulers::built_in();
    let parse = |text: &str| schedulers.grammar().parse(text).unwrap();
    let (open, profile) = (parse("wfbp-a2a,arch=auto"), profile());
    // Two hosts push and pull each byte once, wherever the servers are; and all-to-all operations start late.
    let mut untimed = Cluster::of_network(NetworkModel::TEN_GBE, 2, 1);
    untimed.operation.start_s = 0.02.into();
    let mut timed = untimed.clone();
    let range = MeasuredRange { workers: [2, 2], bytes: [4, 1 << 30], ..MeasuredRange::default() };
    timed.measured = Some(MeasuredRange { shards: Some([3, 3]), ..range });
    let found = on_workers(Roles::new(2, 3).unwrap(), |peers| {
        let choosing = choosing(&open, &schedulers, peers);
        let arch = |text: &str| parse(&format!("arch={text}")).arch;
        assert_eq!(choosing.archs(), ["a2a", "ps:1", "ps:2", "ps:3"].map(arch));
        assert_eq!(choosing.timed_archs(), ["a2a", "ps:3"].map(arch));
        [&untimed, &timed].map(|cluster| choosing.find(cluster, &profile, &[], Vec::new()).unwrap())
    });
    let [untimed, timed] = &found[0];
    assert!(untimed.plan.shards == 1 && untimed.plan.strategy.contains("arch=ps:1:"), "{untimed:?}");
    assert!(timed.plan.shards == 3 && timed.doubts.is_empty(), "{timed:?}");
    assert!(!timed.reasons.iter().any(|it| it.contains("ps:1")), "it would be no faster: {timed:?}");
    assert_eq!(found[0], found[1], "the workers find the same");
}

/// Two workers have one core, and each has it for itself while it computes: an iteration takes both.
#[test]
fn workers_that_take_turns_are_expected_to_take_as_long_as_all_of_them() {
    let schedulers = Schedulers::built_in();
    let strategy = schedulers.grammar().parse("auto").unwrap();
    let profile = profile();
    let own_s = profile.forward_s() + profile.backward_s();
    let core = std::sync::Mutex::new(());
    let seconds = on_ranks(2, |communicator| {
        let peers = Peers::from(&communicator);
        let choosing = choosing(&strategy, &schedulers, &peers);
        let mut pass = || {
            let _alone = core.lock().unwrap();
            std::thread::sleep(Duration::from_secs_f64(own_s));
            Ok(())
        };
        let passing = Passing { pass: &mut pass, seconds: own_s };
        let chosen = choosing.choose(&profile, &[], 0, Some(passing)).unwrap().unwrap();
        chosen.predicted.seconds
    });
    assert!(seconds[0] >= 2.0 * own_s && seconds[0] == seconds[1], "{seconds:?}, {own_s} s alone");
}

/// Of plans that are hardly apart, one of which all was measured is taken; what saves more is taken all the same.
#[test]
fn a_plan_that_leaves_what_was_measured_must_be_worth_it() {
    let (profile, schedulers) = (profile(), Schedulers::built_in());
    let strategy = Registry::built_in().parse("schedule=auto,arch=a2a").unwrap();
    let mut cluster = Cluster::named("study-10gbe:4x1").unwrap();
    // Of this model, so that nothing is in doubt whatever the plan is.
    cluster.computation.overhead_s.insert(profile.model.clone(), Constant::exact(0.0));
    cluster.device = None;
    let archs = vec![Call::all_to_all("auto")];
    let space = Space { archs, effort: EFFORT, intervals: 0, ..Space::of(schedulers, strategy) };
    let mut answer = search(&Question { cluster: &cluster, profile: &profile, workers: 4, space: &space }).unwrap();
    assert!(answer.candidates.len() > 2, "{answer:?}");
    let told = |answer: &Answer| reasons(answer).iter().any(|it| it.ends_with("beyond what was measured"));
    for (longer, doubts, place) in [(1.01, [1, 0], 1), (1.01, [0, 0], 0), (1.01, [1, 1], 0), (1.03, [1, 0], 0)] {
        for (candidate, doubts) in answer.candidates.iter_mut().zip(doubts) {
            candidate.prediction.extrapolated = vec!["larger than what was measured".to_owned(); doubts];
        }
        let best_s = answer.candidates[0].prediction.iteration_s;
        for (place, candidate) in answer.candidates.iter_mut().enumerate().skip(1) {
            candidate.prediction.iteration_s = best_s * longer * 1.1f64.powi(place as i32 - 1);
        }
        let expected = &answer.candidates[place].prediction.plan;
        assert_eq!(&answer.taken().prediction.plan, expected, "{longer} {doubts:?}");
        assert_eq!(told(&answer), place == 1, "{longer} {doubts:?}: {:?}", reasons(&answer));
    }
}

/// Formulas say which plans are worth playing; where links are emulated, messages say what they take and which is the best. Elsewhere
/// nothing is played.
#[test]
fn where_links_are_emulated_candidates_are_played() {
    let (profile, schedulers) = (profile(), Schedulers::built_in());
    let strategy = schedulers.grammar().parse("schedule=auto,arch=a2a").unwrap();
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
    // What no message knows goes along.
    cluster.operation.overtaking_s = 1e-3.into();
    cluster.interference.computation = 0.1.into();
    let find = |communicator| {
        let peers = Peers::from(&communicator);
        choosing(&strategy, &schedulers, &peers).find(&cluster, &profile, &[], Vec::new()).unwrap()
    };
    let (emulated, formulas) = (on_emulated(NetworkModel::TEN_GBE, 2, 2, find), on_ranks(4, find));
    let [emulated, formulas] = [&emulated[0], &formulas[0]];
    let predicted = |plan: &Plan| {
        let strategy = schedulers.grammar().parse(&plan.strategy).unwrap();
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
        let by_formulas = predict_plan(&job, plan).unwrap();
        (by_formulas.iteration_s, played_emulated(&job, &by_formulas).unwrap().iteration_s)
    };
    let (by_formulas_s, played_s) = predicted(&emulated.plan);
    assert!((emulated.predicted.seconds / played_s - 1.0).abs() < 1e-9, "{played_s} {emulated:?}");
    assert!((played_s / by_formulas_s - 1.0).abs() > 1e-6, "formulas are not what messages take: {emulated:?}");
    let (by_formulas_s, played_s) = predicted(&formulas.plan);
    assert!((formulas.predicted.seconds / by_formulas_s - 1.0).abs() < 1e-9, "{by_formulas_s} {formulas:?}");
    assert!(played_s >= emulated.predicted.seconds * (1.0 - 1e-3), "{emulated:?} {formulas:?}");
    let says_so = |chosen: &Chosen| chosen.reasons.iter().any(|reason| reason.contains("played message by message"));
    assert!(says_so(emulated) && !says_so(formulas));
}
