//! What a tuner learns of NCCL's calls in simulation is what the plug-in plays.
#![allow(missing_docs)]

use nccl_tuner_paceline::policy::{Call, Policy};
use paceline_tune::environment::{Disturbances, Misfit, NcclModel, SimulatedCluster, Workload};
use paceline_tune::nccl::{Communicator, Graph, Path};
use paceline_tune::{Choice, Tuner, nccl_policy, simulation};

/// Four hosts with eight H100 each.
fn model() -> NcclModel {
    let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let whole = Communicator { ranks: 32, hosts: 4, compute_capability: 90, ..Communicator::of_graph(graph) };
    NcclModel::new("2.30.7".parse().expect("a version"), Communicator { nvls: true, nvswitch: true, ..whole })
        .expect("a communicator")
}

#[test]
fn what_is_learned_in_simulation_is_what_the_plug_in_plays() {
    let (mut rules, mut bounds, mut untouched) = (0, 0, 0);
    for seed in 1..5 {
        let workload = Workload::named("data-parallel", 4, 8).expect("it is known");
        let mut cluster = SimulatedCluster::new(Box::new(model()), Misfit::USUAL, Disturbances::usual(), seed);
        let mut tuner = Tuner::shipped(seed);
        let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 420, seed);
        assert!(outcome.worst_prefix <= 1.02, "seed {seed}: {}", outcome.worst_prefix);
        let learned = tuner.policy();
        let text = nccl_policy::write(&learned, tuner.courses().map(|(context, _)| context), &model());
        let policy = Policy::from_text(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
        assert_eq!(policy.version(), learned.version());
        for (context, _) in tuner.courses() {
            let function = NcclModel::function(context.collective).expect("NCCL has it");
            let (ranks, hosts) = (usize::from(context.ranks), usize::from(context.hosts));
            let call = Call { function, bytes: context.typical_bytes() as usize, ranks, hosts, pipelined: false };
            let played = policy.call(&call);
            let Choice::Play(action) = learned.choice(context.key(), 0) else {
                assert_eq!(played, None, "seed {seed}: {context:?}");
                untouched += 1;
                continue;
            };
            rules += 1;
            assert_eq!(played.and_then(|choice| choice.way()), NcclModel::way(&action), "seed {seed}: {context:?}");
            let own = model().own_channels(context, &action).expect("it is a way of NCCL's");
            let bound = Some(action.channels).filter(|channels| u32::from(*channels) < own);
            assert_eq!(played.and_then(|choice| choice.channels()), bound, "seed {seed}: {context:?}");
            bounds += usize::from(bound.is_some());
            // Another communicator is asked about on its own.
            assert_eq!(policy.call(&Call { hosts: 2, ..call }), None, "seed {seed}: {context:?}");
        }
    }
    println!("{rules} contexts with a rule, {bounds} with fewer channels, {untouched} left to NCCL");
    assert!(rules > 5 && bounds > 0, "{rules} rules, {bounds} bounds");
}
