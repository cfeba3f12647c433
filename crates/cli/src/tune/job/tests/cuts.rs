//! Chunks that rules cannot say: with 24 channels calls of one context share bytes of a channel with those of the next.

use super::*;

const SIZES: [u64; 3] = [24 << 20, 48 << 20, 96 << 20];

fn with_24_channels() -> NcclModel {
    let graph = Graph { channels: 24, intra_gb_s: 20.0, inter_gb_s: 20.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let whole = Communicator { ranks: RANKS, hosts: 1, compute_capability: 90, ..Communicator::of_graph(graph) };
    NcclModel::new("2.30.3".parse().expect("a version"), whole).expect("a communicator")
}

/// What is decided is played, or given up: never the same way in whole chunks instead.
#[test]
fn a_try_whose_chunks_a_neighbour_is_in_the_way_of_is_given_up() {
    let nccl = with_24_channels();
    let calls = SIZES.map(|bytes| measured(Function::AllReduce, bytes, Label::default()));
    let situations = calls.map(|call| {
        let state = nccl.state(&MODEL.call(&call, Label::default()));
        nccl.situation(&State { bytes: state.context().typical_bytes(), ..state }).expect("choices")
    });
    let (mut job, mut random) = (JobTuner::new(&nccl, MODEL, Tuner::shipped(5), &[]), Random::new(5, 0xc075));
    let mut cuts = 0;
    for _ in 0..400 {
        let policy = job.policy();
        let played = nccl_policy::played(&policy, job.contexts(), &nccl);
        let mut round =
            Round { policy: policy.version(), iteration_s: None, calls: Vec::new(), costs: BTreeMap::new() };
        for (call, it) in calls.iter().zip(&situations) {
            let decided = job.kinds.get(&it.context).and_then(|kind| kind.as_ref()?.to_play());
            let choice = played.get(&it.context).copied().unwrap_or_default();
            if let (Some(Choice::Play(decided)), Choice::Play(played)) = (decided, choice) {
                assert_eq!(decided.chunk_log2, played.chunk_log2, "{:?}", it.context);
                cuts += u32::from(decided.chunk_log2 > 0);
            }
            let arm = it.arms[it.arm_of(choice)];
            let seconds = arm.modelled_s * Disturbances::usual().noise(&mut random);
            let (way, channels) = (NcclModel::way(&arm.action), arm.action.channels.into());
            round.calls.extend([Measured { way, channels, seconds, ..*call }; TIMES as usize]);
        }
        job.learn(&round);
    }
    assert!(cuts > 10, "{cuts} tries in chunks that are cut");
}
