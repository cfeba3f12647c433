//! What a tuner learns of NCCL's calls in simulation is what the plug-in plays.
#![allow(missing_docs)]

use nccl_tuner_paceline::policy::{Call, Policy};
use paceline_tune::environment::{self, CostModel, Disturbances, Misfit, NcclModel, SimulatedCluster, Workload};
use paceline_tune::nccl::{Algorithm, Communicator, Graph, Path};
use paceline_tune::{Choice, Context, Random, Schedule, Situation, State, Tuner, nccl_policy, simulation};

/// Up to 2.20 NCCL does not say on which communicator a call is made, up to 2.21 it takes what a tuner says unchecked, and from 2.30 on
/// tuners set chunks.
const RELEASES: [&str; 3] = ["2.19.4", "2.21.5", "2.30.7"];

/// Four hosts with eight H100 each.
fn model(release: &str, channels: u32) -> NcclModel {
    let graph = Graph { channels, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let whole = Communicator { ranks: 32, hosts: 4, compute_capability: 90, ..Communicator::of_graph(graph) };
    NcclModel::new(release.parse().expect("a version"), Communicator { nvls: true, nvswitch: true, ..whole })
        .expect("a communicator")
}

#[test]
fn what_is_learned_in_simulation_is_what_the_plug_in_plays() {
    for release in RELEASES {
        let (mut rules, mut bounds, mut untouched) = (0, 0, 0);
        // Where there is less to choose from, less is found, and more seldom.
        let (seeds, least) = if release == "2.30.7" { (4, (6, 1)) } else { (24, (1, 0)) };
        for seed in 1..=seeds {
            let of_seed = learned(release, seed);
            rules += of_seed.0;
            bounds += of_seed.1;
            untouched += of_seed.2;
        }
        println!("NCCL {release}: {rules} contexts with a rule, {bounds} of fewer channels, {untouched} left to NCCL");
        assert!(rules >= least.0 && bounds >= least.1, "NCCL {release}: {rules} rules, {bounds} bounds");
    }
}

/// Learns, and compares the plug-in's answers with what was learned: contexts with a rule, those with fewer channels, and those that are
/// left to NCCL.
fn learned(release: &str, seed: u64) -> (usize, usize, usize) {
    let (model, at) = (model(release, 16), format!("NCCL {release}, seed {seed}"));
    let workload = Workload::named("data-parallel", 4, 8).expect("it is known");
    let mut cluster = SimulatedCluster::new(Box::new(model.clone()), Misfit::USUAL, Disturbances::usual(), seed);
    let mut tuner = Tuner::shipped(seed);
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 420, seed);
    assert!(outcome.worst_prefix <= 1.02, "{at}: {}", outcome.worst_prefix);
    let learned = tuner.policy();
    let text = nccl_policy::write(&learned, tuner.courses().map(|(context, _)| context), &model);
    let policy = Policy::from_text(&text).unwrap_or_else(|error| panic!("{at}: {error}: {text}"));
    assert_eq!(policy.version(), learned.version());
    for (context, choice) in nccl_policy::played(&learned, tuner.courses().map(|(context, _)| context), &model) {
        chunks_are_cut(&policy, &model, &context, choice, &at);
    }
    let is_told = model.version().tells_tuners_the_communicator();
    let (mut rules, mut bounds, mut untouched) = (0, 0, 0);
    for (context, _) in tuner.courses() {
        let function = NcclModel::function(context.collective).expect("NCCL has it");
        // Version 1 asks with zeros.
        let (ranks, hosts) = if is_told { (usize::from(context.ranks), usize::from(context.hosts)) } else { (0, 0) };
        let call = Call { function, bytes: context.typical_bytes() as usize, ranks, hosts, pipelined: false };
        let played = policy.call(&call);
        let Choice::Play(action) = learned.choice(context.key(), 0) else {
            assert_eq!(played, None, "{at}: {context:?}");
            untouched += 1;
            continue;
        };
        rules += 1;
        assert_eq!(played.and_then(|choice| choice.way()), NcclModel::way(&action), "{at}: {context:?}");
        let own = model.own_channels(context, &action).expect("it is a way of NCCL's");
        let bound = Some(action.channels).filter(|channels| u32::from(*channels) < own);
        assert_eq!(played.and_then(|choice| choice.channels()), bound, "{at}: {context:?}");
        bounds += usize::from(bound.is_some());
        // Another communicator is asked about on its own, where it is known.
        assert_eq!(policy.call(&Call { hosts: 2, ..call }).is_some(), !is_told, "{at}: {context:?}");
    }
    (rules, bounds, untouched)
}

/// From one edge of a context to the other its chunks are cut as this choice has it: NCCL's own not at all.
fn chunks_are_cut(policy: &Policy, model: &NcclModel, context: &Context, choice: Choice, at: &str) {
    let (algorithm, protocol, channels, pieces_log2) = match choice {
        Choice::Play(action) => {
            let (algorithm, protocol) = NcclModel::way(&action).expect("a way of NCCL's");
            (algorithm, protocol, u64::from(action.channels), action.chunk_log2)
        }
        Choice::Default => {
            let own = model.own_choice(context).expect("NCCL has one");
            (own.algorithm, own.protocol, u64::from(own.channels), 0)
        }
    };
    let function = NcclModel::function(context.collective).expect("NCCL has it");
    // Between hosts NCCL asks about NVLS with all bytes of the call, else with those of a channel.
    let parts = if algorithm == Algorithm::Nvls && context.hosts > 1 { 1 } else { channels };
    let least = 1u64 << context.size_log2;
    for bytes in (0..=16).map(|part| least + part * (least - 1) / 16) {
        let divided_by = policy.chunk(function, algorithm, protocol, (bytes / parts) as usize).unwrap_or(1);
        assert_eq!(divided_by, 1 << pieces_log2, "{at}: {choice:?}, {bytes} bytes of {context:?}");
    }
}

/// Calls of neighbouring sizes, of which about half take the same: with channels that are no power of two they share chunks.
#[test]
fn what_is_said_to_be_played_has_the_chunks_that_the_plug_in_gives() {
    for channels in [16, 24] {
        let model = model("2.30.7", channels);
        let call = Workload::data_parallel(4, 32).calls[0];
        let situation = |size: u32| {
            let state = model.state(&environment::Call { bytes: 1 << size, ..call });
            model.situation(&State { bytes: state.context().typical_bytes(), ..state }).expect("choices")
        };
        let situations: Vec<Situation> = (18..28).map(situation).collect();
        let (mut cut, mut given_up) = (0, 0);
        for turn in 0..200 {
            let (mut random, at) = (Random::new(1, turn), format!("{channels} channels, turn {turn}"));
            let common = random.below(situations[0].arms.len());
            let mut wanted = |it: &Situation| {
                let arm = if random.below(2) == 0 { common } else { random.below(it.arms.len()) };
                (it.context, Schedule::always(it.choice(arm % it.arms.len())))
            };
            let learned = paceline_tune::Policy::new(1, situations.iter().map(&mut wanted));
            let text = nccl_policy::write(&learned, situations.iter().map(|it| &it.context), &model);
            let policy = Policy::from_text(&text).unwrap_or_else(|error| panic!("{at}: {error}: {text}"));
            for (context, choice) in nccl_policy::played(&learned, situations.iter().map(|it| &it.context), &model) {
                chunks_are_cut(&policy, &model, &context, choice, &at);
                let wanted = learned.choice(context.key(), 0);
                let is_cut = |choice: Choice| matches!(choice, Choice::Play(action) if action.chunk_log2 > 0);
                cut += usize::from(is_cut(choice));
                given_up += usize::from(is_cut(wanted) && !is_cut(choice));
            }
        }
        println!("{channels} channels: {cut} times smaller chunks, {given_up} times given up");
        assert!(cut > 100 && given_up > 0, "{channels} channels: {cut} cut, {given_up} given up");
    }
}
