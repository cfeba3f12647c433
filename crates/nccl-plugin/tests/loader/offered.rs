//! What NCCL's cost model lets a tuner choose is what the plug-in plays: in each release by the interface that it has.

use std::ffi::c_int;

use paceline_tune::environment::{Call, CostModel, NcclModel, Workload};
use paceline_tune::nccl::{Communicator, Function, Graph, Path};
use paceline_tune::{Choice, Policy, Schedule, Situation, State, nccl_policy};

use crate::alone;
use crate::library::Linked;
use crate::nccl::{Context, Direct, Question, Tuner};
use crate::plugin::{activate, number, prepare, release};
use crate::releases::Release;

/// Of the interfaces that differ in what they can say: a release, and where it stands in the table of them.
const ASKED: [(&str, &str); 5] = [
    ("2.19.4", "2.19.1 to 2.20.5"),
    ("2.21.5", "2.21.5"),
    ("2.22.3", "2.22.3"),
    ("2.29.7", "2.29"),
    ("2.30.7", "2.30"),
];
const RANKS: u32 = 32;
const HOSTS: u32 = 4;

/// Four hosts with eight H100 each, whose switches add up, and whose network does.
fn model(version: &str) -> NcclModel {
    let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let whole = Communicator { ranks: RANKS, hosts: HOSTS, compute_capability: 90, ..Communicator::of_graph(graph) };
    let whole = Communicator { nvls: true, nvswitch: true, collnet: true, collnet_heads: 8, ..whole };
    NcclModel::new(version.parse().expect("a version"), whole).expect("a communicator")
}

/// Calls of all functions, from small to large.
fn situations(model: &NcclModel) -> Vec<(Function, Situation)> {
    let call = Workload::data_parallel(HOSTS, RANKS).calls[0];
    let of = |function: Function, size: u32| {
        let state = model.state(&Call { collective: NcclModel::collective(function), bytes: 1 << size, ..call });
        let typical = State { bytes: state.context().typical_bytes(), ..state };
        Some((function, model.situation(&typical)?))
    };
    Function::ALL.iter().flat_map(|&function| [12, 18, 22, 27].map(|size| of(function, size))).flatten().collect()
}

/// Algorithm, protocol, and the bound on the channels, 0 for none.
type Answer = Option<(c_int, c_int, c_int)>;

fn wanted(model: &NcclModel, situation: &Situation, choice: Choice) -> Answer {
    let Choice::Play(action) = choice else { return None };
    let (algorithm, protocol) = NcclModel::way(&action).expect("a way of NCCL's");
    let own = model.own_channels(&situation.context, &action).expect("it is a way of NCCL's");
    let bound = if u32::from(action.channels) < own { c_int::from(action.channels) } else { 0 };
    Some((algorithm.number() as c_int, protocol.number() as c_int, bound))
}

fn answered(tuner: &Tuner, context: Context, question: &Question, release: &Release) -> Answer {
    if tuner.version <= 2 {
        let mut answer = Direct { algorithm: -1, protocol: -1, channels: 0 };
        assert_eq!(tuner.ask_direct(context, question, &mut answer), 0);
        return (answer.algorithm >= 0).then_some((answer.algorithm, answer.protocol, answer.channels));
    }
    let (mut costs, mut channels) = ([9.0_f32; 21], 0);
    assert_eq!(tuner.ask(context, question, costs.as_mut_ptr(), (release.algorithms, 3), &mut channels), 0);
    let place = costs.iter().position(|cost| *cost == 0.0)?;
    Some(((place / 3) as c_int, (place % 3) as c_int, channels))
}

#[test]
fn what_the_model_offers_each_release_plays() {
    let _alone = alone();
    for (version, row) in ASKED {
        let (model, release) = (model(version), release(row));
        let situations = situations(&model);
        let tuner = Tuner::find(&Linked, release).expect("a tuner");
        let communicator = tuner.init(RANKS as usize, HOSTS as usize, None).expect("a communicator");
        let turns = situations.iter().map(|(_, it)| it.arms.len()).max().unwrap_or_default();
        let mut played = 0;
        for turn in 0..turns {
            let choice = |it: &Situation| it.choice(turn % it.arms.len());
            let policy = Policy::new(1, situations.iter().map(|(_, it)| (it.context, Schedule::always(choice(it)))));
            let text = nccl_policy::write(&policy, situations.iter().map(|(_, it)| &it.context), &model);
            prepare(&Linked, &text).unwrap_or_else(|error| panic!("NCCL {version}: {error}: {text}"));
            assert!(activate(&Linked, number(&Linked, "paceline_nccl_prepared_fingerprint")));
            for (function, it) in &situations {
                let bytes = it.context.typical_bytes() as usize;
                let question = Question { function: function.number() as c_int, bytes, operations: 1, can_register: 0 };
                let wanted = wanted(&model, it, choice(it));
                let answer = answered(&tuner, communicator, &question, release);
                assert_eq!(answer, wanted, "NCCL {version}, {question:?}: {text}");
                played += usize::from(wanted.is_some());
            }
        }
        assert_eq!(tuner.end(communicator), 0);
        println!("NCCL {version}: {played} choices are played");
        assert!(played > 50, "NCCL {version}: {played}");
    }
}
