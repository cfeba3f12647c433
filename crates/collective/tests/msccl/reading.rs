//! Files as others write them.

use paceline_collective::cost::{Load, walk};
use paceline_collective::msccl::{Fault, read, read_proved, sizes};
use paceline_collective::registry::find;
use paceline_collective::verify::{Reason, verify_apart};
use paceline_collective::{Capacity, Program, Topology, verify};
use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};

use crate::files::{block, file};
use crate::same;

fn right(text: &str) -> Program {
    let (program, proof) = read_proved(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(verify(&program, Capacity::Rendezvous).unwrap(), proof);
    program
}

#[test]
fn a_ring_of_three() {
    let program = right(include_str!("ring_of_three.xml"));
    assert_eq!((program.algorithm.as_str(), program.kind), ("ring of three", CollectiveKind::AllReduce));
    let ranks = Topology::flat(3);
    let ring = find(CollectiveKind::AllReduce, "ring").unwrap().program(&ranks, 0);
    same(&ring, &program).unwrap();
    let costs = LinkCosts::uniform(LinkCost::hockney(10e-6, 1e-9, 0.25e-9));
    let load = Load { bytes: 3 << 18, tile_bytes: 1 << 16, window: 4 };
    let cost = |program| walk(program, &load, &ranks, &costs).unwrap();
    assert_eq!(cost(&program), cost(&ring));
}

/// In the form that msccl-tools writes and its users complete; see the file.
#[test]
fn a_ring_as_msccl_tools_write_it() {
    let text = include_str!("ring_of_tools.xml");
    let program = right(text);
    assert_eq!((program.algorithm.as_str(), program.kind), ("allreduce_ring", CollectiveKind::AllReduce));
    assert_eq!(verify(&program, Capacity::Rendezvous).unwrap().messages, 12);
    assert_eq!(sizes(text).unwrap(), 393_216..=u64::MAX);
}

/// The last rank's own block stays where it is, and MSCCL's compiler counts up to the last chunk that a step touches.
#[test]
fn in_place_chunks_that_no_step_touches_need_not_be_counted() {
    let exchange = |chunks: fn(usize) -> u32| {
        file(
            "alltoall",
            2,
            true,
            2,
            |rank| [chunks(rank), 0, 1],
            |rank| {
                let peer = 1 - rank;
                let steps = [format!("s i{peer}"), "r s0".into(), format!("cpy s0 i{peer}")];
                vec![block((peer as i32, peer as i32, 0), steps)]
            },
        )
    };
    assert_eq!(verify(&right(&exchange(|rank| 2 - rank as u32)), Capacity::Rendezvous).unwrap().messages, 2);
    // Too few for its steps, and more than there are.
    assert!(matches!(read(&exchange(|_| 1)).unwrap_err().fault, Fault::Range { .. }));
    assert!(matches!(read(&exchange(|_| 3)).unwrap_err().fault, Fault::Value { .. }));
}

/// What is only passed on lies in scratch, one place to a part.
#[test]
fn partial_sums_may_be_passed_on_without_being_kept() {
    for in_place in [false, true] {
        let out = if in_place { 'i' } else { 'o' };
        let text = file(
            "allreduce",
            4,
            in_place,
            4,
            |_| [4, 4, 0],
            |rank| {
                let at = |hop: usize| (rank + 4 - hop) % 4;
                let mut steps = vec![format!("s i{rank}")];
                steps.extend([1, 2].map(|hop| format!("rrs i{}", at(hop))));
                steps.push(format!("rrcs i{0} {out}{0}", at(3)));
                steps.extend([0, 1].map(|hop| format!("rcs {out}{}", at(hop))));
                steps.push(format!("r {out}{}", at(2)));
                vec![block((at(3) as i32, at(1) as i32, 0), steps)]
            },
        );
        let program = right(&text);
        assert!(program.ranks.iter().all(|rank| rank.scratch_blocks == 1), "{program:#?}");
        assert_eq!(verify(&program, Capacity::Rendezvous).unwrap().messages, 24);
    }
}

/// Each of three ranks takes in its part from the others, and hands the sum out.
fn all_pairs() -> String {
    file(
        "allreduce",
        3,
        true,
        3,
        |_| [3, 3, 2],
        |rank| {
            let [one, other] = [[1, 2], [0, 2], [0, 1]][rank];
            let first = [
                format!("s i{one}"),
                "r s0".into(),
                format!("re s0 i{rank}"),
                format!("re s1 i{rank} @1.1 !"),
                format!("s i{rank}"),
                format!("r i{one}"),
            ];
            let second = [format!("s i{other}"), "r s1 !".into(), format!("s i{rank} @0.3"), format!("r i{other}")];
            vec![block((one, one, 0), first), block((other, other, 0), second)]
        },
    )
}

#[test]
fn parts_of_different_ranks_share_no_block_of_scratch_unless_they_fit() {
    let program = right(&all_pairs());
    assert_eq!(verify(&program, Capacity::Rendezvous).unwrap().messages, 12);
    // Both contributions are the same part, so neither fits beside the other.
    assert!(program.ranks.iter().all(|rank| rank.scratch_blocks == 2));
}

#[test]
fn an_exchange_out_of_place_is_made_right_in_place_and_costs_nothing_apart() {
    let world = 3;
    let text = file(
        "alltoall",
        3,
        false,
        world,
        |_| [3, 3, 0],
        |rank| {
            let peers = (0..world).filter(|&peer| peer != rank);
            let exchange = |peer| block((peer as i32, peer as i32, 0), [format!("s i{peer}"), format!("r o{peer}")]);
            peers.map(exchange).chain([block((-1, -1, -1), [format!("cpy i{rank} o{rank}")])]).collect()
        },
    );
    let program = right(&text);
    assert!(program.ranks.iter().all(|rank| rank.scratch_blocks > 0));
    let apart = program.apart();
    verify_apart(&apart, Capacity::Rendezvous).unwrap();
    assert!(apart.ranks.iter().all(|rank| rank.scratch_blocks == 0 && rank.steps.len() == 5), "{apart:#?}");
}

/// It relies on links that hold a message: both partners overwrite what they are sending.
#[test]
fn recursive_doubling_in_one_chunk() {
    let text = file(
        "allreduce",
        1,
        true,
        8,
        |_| [1, 0, 0],
        |rank| {
            let round = |round: u32| {
                let peer = (rank ^ 1 << round) as i32;
                let wait = if round > 0 { format!(" @{}.1", round - 1) } else { String::new() };
                block((peer, peer, 0), [format!("s i0{wait}"), "rrc i0 i0 !".into()])
            };
            (0..3).map(round).collect()
        },
    );
    let program = right(&text);
    assert_eq!(verify(&program, Capacity::Rendezvous).unwrap().rounds, 3);
}

#[test]
fn both_spellings_of_reduce_scatter_and_sums_in_the_input() {
    for coll in ["reduce_scatter", "reducescatter"] {
        for chunks_out in [0, 1] {
            let text = file(
                coll,
                3,
                true,
                3,
                |_| [3, chunks_out, 0],
                |rank| {
                    let at = |hop: usize| (rank + 3 - hop) % 3;
                    let last = if chunks_out == 1 { "o0".into() } else { format!("i{rank}") };
                    let steps =
                        [format!("s i{}", at(1)), format!("rrcs i{0} i{0}", at(2)), format!("rrc i{rank} {last}")];
                    vec![block((at(2) as i32, at(1) as i32, 0), steps)]
                },
            );
            let program = right(&text);
            assert_eq!(program.kind, CollectiveKind::ReduceScatter);
            // The sum that is passed on cannot stay in the input.
            assert!(program.ranks.iter().all(|rank| rank.scratch_blocks == 1));
        }
    }
}

#[test]
fn in_place_the_own_block_of_a_gathered_whole_is_the_input() {
    let text = file(
        "allgather",
        6,
        true,
        3,
        |_| [2, 6, 0],
        |rank| {
            let at = |hop: usize| (rank + 3 - hop) % 3;
            let steps =
                [format!("s o{} x2", 2 * rank), format!("rcs o{} x2", 2 * at(1)), format!("r o{} x2", 2 * at(2))];
            vec![block((at(2) as i32, at(1) as i32, 0), steps)]
        },
    );
    let program = right(&text);
    assert_eq!((program.parts, program.ranks[0].scratch_blocks), (2, 0));
    let ring = find(CollectiveKind::AllGather, "ring").unwrap().program(&Topology::flat(3), 0);
    let proof = |program| verify(program, Capacity::Rendezvous).unwrap();
    assert_eq!((proof(&program).messages, proof(&program).rounds), (proof(&ring).messages, proof(&ring).rounds));
}

#[test]
fn the_root_is_who_has_the_input_or_else_who_receives_nothing() {
    let chain = |chunks: fn(usize) -> [u32; 3], in_place: bool| {
        let buffer = if in_place { 'i' } else { 'o' };
        file("broadcast", 1, in_place, 3, chunks, |rank| match rank {
            2 if in_place => vec![block((0, -1, 0), ["s i0"])],
            2 => vec![block((0, -1, 0), ["cpy i0 o0", "s i0"])],
            0 => vec![block((1, 2, 0), [format!("rcs {buffer}0")])],
            _ => vec![block((-1, 0, 0), [format!("r {buffer}0")])],
        })
    };
    for text in
        [chain(|_| [1, 1, 0], true), chain(|_| [1, 1, 0], false), chain(|rank| [u32::from(rank == 2), 1, 0], false)]
    {
        assert_eq!(right(&text).root, 2);
    }
    let swapped = file(
        "broadcast",
        1,
        false,
        2,
        |_| [1, 1, 0],
        |rank| {
            let peer = 1 - rank as i32;
            vec![block((peer, peer, 0), ["s i0", "r o0"])]
        },
    );
    assert!(matches!(read(&swapped).unwrap_err().fault, Fault::Root(_)));
}

/// The output holds a chunk for a while where another one belongs.
#[test]
fn a_chunk_may_wait_where_another_one_belongs() {
    let text = file(
        "allgather",
        4,
        false,
        2,
        |_| [2, 4, 0],
        |rank| {
            let (own, other, peer) = (2 * rank, 2 * (1 - rank), 1 - rank as i32);
            let steps = [
                "s i0".to_owned(),
                "s i1".into(),
                format!("r o{}", own + 1),
                format!("r o{}", other + 1),
                format!("cpy o{} o{other}", own + 1),
                format!("cpy i0 o{own} x2"),
            ];
            vec![block((peer, peer, 0), steps)]
        },
    );
    let program = right(&text);
    assert!(program.ranks.iter().all(|rank| rank.scratch_blocks >= 1));
    // If the other part waits there, it ends in the wrong place.
    let staged = text.replace("type=\"s\" srcbuf=\"i\" srcoff=\"0\"", "type=\"s\" srcbuf=\"i\" srcoff=\"1\"");
    assert!(read(&staged).is_err());
}

/// Rank 1 sums all blocks where its input was. In the program only its own lies in the output, the others in scratch.
#[test]
fn a_message_that_is_one_piece_here_and_three_there_is_three_messages() {
    let text = file(
        "reduce_scatter",
        3,
        true,
        3,
        |_| [3, 1, 0],
        |rank| match rank {
            1 => vec![
                block((0, 0, 0), ["rrc i0 i0 x3 !", "s i0 @1.0"]),
                block((2, 2, 0), ["rrc i0 i0 x3 @0.0 !", "s i2"]),
            ],
            _ => vec![block((1, 1, 0), ["s i0 x3".to_owned(), format!("r i{rank}")])],
        },
    );
    assert_eq!(verify(&right(&text), Capacity::Rendezvous).unwrap().messages, 3 + 3 + 2);
}

/// Rank 0 gathers all and hands the whole out, its own block, which is its input, among the others.
#[test]
fn what_lies_side_by_side_in_place_stays_one_message() {
    let text = file(
        "allgather",
        3,
        true,
        3,
        |_| [1, 3, 0],
        |rank| match rank {
            0 => vec![block((1, 1, 0), ["r o1 !", "s o0 x3 @1.0"]), block((2, 2, 0), ["r o2 !", "s o0 x3 @0.0"])],
            _ => vec![block((0, 0, 0), ["s i0", "r o0 x3"])],
        },
    );
    assert_eq!(verify(&right(&text), Capacity::Rendezvous).unwrap().messages, 4);
}

/// Everyone adds its own first, so that the ranks end with different roundings of the sum.
#[test]
fn one_shot_sums_in_different_orders_are_refused() {
    let text = file(
        "allreduce",
        1,
        true,
        3,
        |_| [1, 1, 3],
        |rank| {
            let [one, other] = [[1, 2], [0, 2], [0, 1]][rank];
            let first = [
                "s i0".into(),
                format!("r s{one}"),
                "nop @1.1".into(),
                format!("re s{one} i0"),
                format!("re s{other} i0"),
            ];
            vec![block((one, one, 0), first), block((other, other, 0), ["s i0".into(), format!("r s{other} !")])]
        },
    );
    let Fault::Refused(refusal) = read(&text).unwrap_err().fault else { panic!("{text}") };
    assert!(matches!(refusal.reason, Reason::Disagree { .. }), "{refusal}");
}
