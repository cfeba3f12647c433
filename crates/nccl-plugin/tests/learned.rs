//! What a tuner learns of NCCL's calls in simulation is what the plug-in plays.
#![allow(missing_docs)]

use nccl_tuner_paceline::policy::{Call, Policy};
use paceline_tune::environment::{Disturbances, Misfit, NcclModel, SimulatedCluster, Workload};
use paceline_tune::nccl::{Communicator, Graph, Path};
use paceline_tune::{Choice, Tuner, nccl_policy, simulation};

/// Up to 2.20 NCCL does not say on which communicator a call is made, up to 2.21 it takes what a tuner says unchecked, and from 2.30 on
/// tuners set chunks.
const RELEASES: [&str; 3] = ["2.19.4", "2.21.5", "2.30.7"];

/// Four hosts with eight H100 each.
fn model(release: &str) -> NcclModel {
    let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
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
    let (model, at) = (model(release), format!("NCCL {release}, seed {seed}"));
    let workload = Workload::named("data-parallel", 4, 8).expect("it is known");
    let mut cluster = SimulatedCluster::new(Box::new(model.clone()), Misfit::USUAL, Disturbances::usual(), seed);
    let mut tuner = Tuner::shipped(seed);
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 420, seed);
    assert!(outcome.worst_prefix <= 1.02, "{at}: {}", outcome.worst_prefix);
    let learned = tuner.policy();
    let text = nccl_policy::write(&learned, tuner.courses().map(|(context, _)| context), &model);
    let policy = Policy::from_text(&text).unwrap_or_else(|error| panic!("{at}: {error}: {text}"));
    assert_eq!(policy.version(), learned.version());
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
