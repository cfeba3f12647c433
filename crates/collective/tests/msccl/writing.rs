//! What is written is what is read.

use std::collections::BTreeMap;

use paceline_collective::cost::{Cost, Load, walk};
use paceline_collective::msccl::{STEPS_MAX, WriteError, read, write};
use paceline_collective::registry::{find, registry};
use paceline_collective::{
    Algorithm, Capacity, KernelId, Place, Program, RankBuilder, RankProgram, Slot, Space, Topology,
    re_encoding_all_reduce, verify,
};
use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};

use crate::same;

/// Messages that leave a port when they arrive, and some that leave it long before.
const LINKS: [LinkCosts; 2] = [
    LinkCosts::uniform(LinkCost::hockney(10e-6, 1e-9, 0.25e-9)),
    LinkCosts::uniform(LinkCost { alpha: 10e-6, overhead: 1e-6, beta: 1e-9, gamma: 0.25e-9 }),
];

/// Bytes of a block, bytes of a tile, and tiles in flight.
const LOADS: [(usize, usize, usize); 3] = [(1000, 4096, 1), (1 << 20, 1 << 20, 1), (1 << 20, 100_000, 4)];

/// Every algorithm among up to 9 ranks, on one host and on several, from the first, the middle and the last rank.
fn programs() -> impl Iterator<Item = (&'static dyn Algorithm, Topology, Program)> {
    let topologies = |world: usize| {
        let hosts: Vec<_> = (0..world).map(|rank| rank * rank % 3).collect();
        [Topology::flat(world), Topology::of_hosts(&hosts)]
    };
    (1..=9).flat_map(topologies).flat_map(|topology| {
        let world = topology.world();
        registry().iter().filter(move |algorithm| algorithm.supports(world)).flat_map(move |&algorithm| {
            let mut roots = if algorithm.kind().has_root() { vec![0, world / 2, world - 1] } else { vec![0] };
            roots.dedup();
            let topology = topology.clone();
            roots.into_iter().map(move |root| (algorithm, topology.clone(), algorithm.program(&topology, root)))
        })
    })
}

#[test]
fn every_algorithm_comes_back_as_it_went() {
    for (algorithm, topology, program) in programs() {
        let name = format!("{} {}, {topology:?}, root {}", algorithm.name(), algorithm.kind(), program.root);
        let text = write(&program).unwrap_or_else(|error| panic!("{name}: {error}"));
        let back = read(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(back.algorithm, program.algorithm);
        same(&program, &back).unwrap_or_else(|difference| panic!("{name}: {difference}\n{text}"));
        let proof = |program| verify(program, Capacity::Rendezvous).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(proof(&program), proof(&back), "{name}");
    }
}

/// Steps that do not wait for each other may be listed in another order, and links that are free at the same time for
/// several messages take the first one listed.
#[test]
fn every_algorithm_costs_about_the_same_when_it_comes_back() {
    let mut ratios = Vec::new();
    for (algorithm, topology, program) in programs() {
        let back = read(&write(&program).unwrap()).unwrap();
        for (costs, (bytes, tile_bytes, window)) in LINKS.iter().flat_map(|costs| LOADS.map(|load| (costs, load))) {
            let load = Load { bytes, tile_bytes, window };
            let cost = |program| -> Cost { walk(program, &load, &topology, costs).unwrap() };
            let (went, came) = (cost(&program), cost(&back));
            let name = format!("{} {}, {topology:?}, {load:?}, {costs:?}", algorithm.name(), algorithm.kind());
            assert_eq!(Cost { seconds: 0.0, ..went }, Cost { seconds: 0.0, ..came }, "{name}");
            let ratio = if went.seconds == came.seconds { 1.0 } else { came.seconds / went.seconds };
            assert!((0.8..1.3).contains(&ratio), "{name}: {went:?} became {came:?}");
            ratios.push(ratio);
        }
    }
    let same = ratios.iter().filter(|&&ratio| ratio == 1.0).count();
    assert!(same * 100 > ratios.len() * 95, "{same} of {}", ratios.len());
}

/// How many steps of each type a text has.
fn types(text: &str) -> BTreeMap<&str, usize> {
    let mut types = BTreeMap::new();
    for word in text.split("type=\"").skip(1) {
        *types.entry(word.split('"').next().unwrap()).or_default() += 1;
    }
    types
}

#[test]
fn what_is_passed_on_is_passed_on_at_once() {
    let ring = find(CollectiveKind::AllReduce, "ring").unwrap().program(&Topology::flat(4), 0);
    let text = write(&ring).unwrap();
    assert_eq!(types(&text), BTreeMap::from([("s", 4), ("rrcs", 12), ("rcs", 8), ("r", 4)]));
    assert_eq!(text.matches("<tb ").count(), 4, "one thread block each:\n{text}");
    let chain = find(CollectiveKind::Broadcast, "pipelined").unwrap().program(&Topology::flat(4), 0);
    // The root also copies its input to its output.
    assert_eq!(types(&write(&chain).unwrap()), BTreeMap::from([("cpy", 1), ("s", 1), ("rcs", 2), ("r", 1)]));
}

#[test]
fn no_thread_block_has_more_steps_than_msccl_can_take() {
    let world = 140;
    let ring = find(CollectiveKind::AllReduce, "ring").unwrap().program(&Topology::flat(world), 0);
    let text = write(&ring).unwrap();
    let blocks: Vec<_> = text.split("<tb ").skip(1).map(|block| block.matches("<step ").count()).collect();
    assert_eq!(blocks.len(), 2 * world, "278 messages and one more step are more than one thread block can take");
    assert!(blocks.iter().all(|&steps| steps <= STEPS_MAX), "{blocks:?}");
    assert!(text.contains("nchannels=\"2\""));
    let back = read(&text).unwrap();
    same(&ring, &back).unwrap();
}

#[test]
fn a_step_that_waits_for_more_than_a_thread_block_can_count_is_refused() {
    // In place, the last combination overwrites what 257 peers are being sent.
    let direct = find(CollectiveKind::AllReduce, "direct").unwrap().program(&Topology::flat(258), 0);
    assert!(matches!(write(&direct), Err(WriteError::Waits { waits: 257.., .. })));
}

fn by_hand(kind: CollectiveKind, world: usize, state: impl Fn(usize, &mut RankBuilder)) -> Program {
    let rank = |rank| -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind, rank, world, root: 0 }, 1);
        state(rank, &mut builder);
        builder.finish()
    };
    Program { algorithm: "by \"hand\" <&>\n".into(), kind, root: 0, parts: 1, ranks: (0..world).map(rank).collect() }
}

fn whole(space: Space, block: u32) -> Slot {
    Slot::of_parts(space, block, 0, 1)
}

/// Two ranks that exchange their inputs and then their sums, which nobody needs.
fn exchange() -> Program {
    by_hand(CollectiveKind::AllReduce, 2, |rank, builder| {
        let peer = 1 - rank;
        builder.send(peer, whole(Space::Input, 0));
        builder.receive(peer, whole(Space::Scratch, 0));
        builder.combine(whole(Space::Input, 0), whole(Space::Scratch, 0), whole(Space::Scratch, 1), true);
        builder.copy(whole(Space::Scratch, 1), whole(Space::Output, 0));
        builder.send(peer, whole(Space::Scratch, 1));
        builder.receive(peer, whole(Space::Scratch, 2));
    })
}

#[test]
fn names_with_marks_and_sums_of_two_come_back() {
    let program = exchange();
    let text = write(&program).unwrap();
    assert_eq!(types(&text)["cpy"], 4, "MSCCL adds to what is there, so that one operand is copied first");
    let back = read(&text).unwrap();
    assert_eq!(back.algorithm, program.algorithm);
    same(&program, &back).unwrap();
    let unspeakable = Program { algorithm: "bell\u{7}".into(), ..program };
    assert_eq!(write(&unspeakable), Err(WriteError::Name("bell\u{7}".into())));
}

#[test]
fn messages_that_overtake_each_other_take_two_channels() {
    let mut program = exchange();
    // Rank 1 lists its receives the other way round. Nothing says that it must not take in the second message first.
    program.ranks[1].steps.reverse();
    let count = program.ranks[1].steps.len() as u32;
    for step in &mut program.ranks[1].steps {
        step.after.iter_mut().for_each(|after| *after = count - 1 - *after);
    }
    verify(&program, Capacity::Rendezvous).unwrap();
    same(&program, &read(&write(&program).unwrap()).unwrap()).unwrap();

    // Here it does take in the second one first.
    let crossing = by_hand(CollectiveKind::SendReceive, 2, |rank, builder| {
        if rank == 0 {
            builder.send(1, whole(Space::Input, 0));
            builder.send(1, whole(Space::Input, 0));
        } else {
            builder.receive(0, whole(Space::Output, 0));
            builder.receive(0, whole(Space::Output, 0));
        }
    });
    let mut crossing = Program { algorithm: "crossing".into(), ..crossing };
    let names = [1, 0];
    for (step, name) in crossing.ranks[1].steps.iter_mut().zip(names) {
        if let paceline_collective::Action::Receive { message, .. } = &mut step.action {
            *message = name;
        }
    }
    verify(&crossing, Capacity::Rendezvous).unwrap();
    let text = write(&crossing).unwrap();
    assert!(text.contains("nchannels=\"2\""), "{text}");
    let back = read(&text).unwrap();
    assert_eq!(verify(&back, Capacity::Rendezvous).unwrap().messages, 2);
}

#[test]
fn what_msccl_cannot_say_is_refused() {
    let program = re_encoding_all_reduce(3, KernelId(0), KernelId(1));
    assert!(matches!(write(&program), Err(WriteError::Kernel { rank: 0, .. })));
    let mut lonely = exchange();
    lonely.ranks[1].steps.pop();
    assert!(matches!(write(&lonely), Err(WriteError::Refused(_))));
}
