//! Programs made by hand: what the type carries besides the algorithms of the registry, and what the verifier says to
//! small mistakes.

use paceline_collective::verify::Reason;
use paceline_collective::{
    Capacity, Combine, Fold, KernelId, Order, Place, Program, RankBuilder, RankProgram, Refusal, Slot, Space, Topology,
    re_encoding_all_reduce, verify,
};
use paceline_plan::CollectiveKind::{self, AllReduce, Barrier, Broadcast, ReduceScatter};

const MERGE: KernelId = KernelId(0);
const ENCODE: KernelId = KernelId(1);
const DECODE: KernelId = KernelId(2);

const EVERY: [Capacity; 4] = [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Messages(2), Capacity::Unbounded];

fn program(kind: CollectiveKind, world: usize, parts: u32, state: impl Fn(usize, &mut RankBuilder)) -> Program {
    let rank = |rank| -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind, rank, world, root: 0 }, parts);
        state(rank, &mut builder);
        builder.finish()
    };
    Program { algorithm: "by-hand".into(), kind, root: 0, parts, ranks: (0..world).map(rank).collect() }
}

fn whole(space: Space, block: u32, parts: u32) -> Slot {
    Slot::of_parts(space, block, 0, parts)
}

/// gTop-k: each round merges two sparse vectors. A merge does not commute, so both sides put the lower rank's first.
fn sparse_all_reduce(world: usize, order: impl Fn(bool) -> Order) -> Program {
    program(AllReduce, world, 1, |rank, builder| {
        let mut have = whole(Space::Input, 0, 1);
        let rounds = world.trailing_zeros();
        for round in 0..rounds {
            let partner = rank ^ 1 << round;
            let last = round + 1 == rounds;
            let into = whole(if last { Space::Output } else { Space::Scratch }, round % 2 * u32::from(!last), 1);
            builder.send(partner, have);
            let fold = Fold { with: have, order: order(rank < partner), combine: Combine::Kernel(MERGE), last };
            builder.receive_with(partner, into, fold);
            have = into;
        }
    })
}

#[test]
fn a_sparse_all_reduce_by_kernels() {
    let lower_first = |lower| if lower { Order::LocalFirst } else { Order::MessageFirst };
    for capacity in EVERY {
        for world in [4, 8, 16] {
            verify(&sparse_all_reduce(world, lower_first), capacity).unwrap();
        }
    }
    // Each its own first: the ranks would end with different merges.
    let refusal = verify(&sparse_all_reduce(4, |_| Order::LocalFirst), Capacity::Unbounded).unwrap_err();
    assert!(matches!(refusal.reason, Reason::Disagree { other: 0, .. }), "{refusal}");
}

/// Reduce-scatter, encode the sum, all-gather the codes, decode. The owner of a part decodes its own code, too, so that
/// all ranks hold the same bits.
fn quantised_all_reduce(world: usize, owner_decodes: bool) -> Program {
    program(AllReduce, world, world as u32, |rank, builder| {
        let part = |space, block, part: usize| Slot::of_parts(space, block, part as u32, 1);
        let peers = || (1..world).map(|offset| (rank + offset) % world);
        for peer in peers() {
            builder.send(peer, part(Space::Input, 0, peer));
        }
        let mut have = part(Space::Input, 0, rank);
        for (count, peer) in peers().enumerate() {
            let sum = part(Space::Scratch, 0, rank);
            builder.receive_fold(peer, have, sum, count == world - 2);
            have = sum;
        }
        builder.map(ENCODE, have, part(Space::Scratch, 1, rank));
        for peer in peers() {
            builder.send(peer, part(Space::Scratch, 1, rank));
            builder.receive(peer, part(Space::Scratch, 1, peer));
            builder.map(DECODE, part(Space::Scratch, 1, peer), part(Space::Output, 0, peer));
        }
        if owner_decodes {
            builder.map(DECODE, part(Space::Scratch, 1, rank), part(Space::Output, 0, rank));
        } else {
            builder.copy(have, part(Space::Output, 0, rank));
        }
    })
}

#[test]
fn a_quantised_all_reduce_that_encodes_the_sum() {
    for capacity in EVERY {
        for world in [2, 3, 5, 8] {
            verify(&quantised_all_reduce(world, true), capacity).unwrap();
        }
    }
    let refusal = verify(&quantised_all_reduce(3, false), Capacity::Unbounded).unwrap_err();
    assert!(matches!(refusal.reason, Reason::Disagree { .. }), "{refusal}");
}

#[test]
fn a_re_encoding_all_reduce_of_the_library() {
    for capacity in EVERY {
        for world in (1..=9).chain([16, 33]) {
            let proof = verify(&re_encoding_all_reduce(world, ENCODE, DECODE), capacity).unwrap();
            assert_eq!(proof.messages, 2 * world * (world - 1));
        }
    }
    // Who keeps its own sum instead of decoding its own code has other bits than the rest.
    let mut greedy = re_encoding_all_reduce(3, ENCODE, DECODE);
    let decodes_own = |step: &paceline_collective::Step| {
        let own = Slot::of_parts(Space::Output, 0, 1, 1);
        matches!(step.action, paceline_collective::Action::Map { into, kernel: DECODE, .. } if into == own)
    };
    let step = greedy.ranks[1].steps.iter().position(decodes_own).unwrap();
    greedy.ranks[1].steps.remove(step);
    for other in &mut greedy.ranks[1].steps {
        assert!(!other.after.contains(&(step as u32)));
        other.after.iter_mut().filter(|after| **after > step as u32).for_each(|after| *after -= 1);
    }
    assert!(matches!(refused(&greedy, Capacity::Unbounded).reason, Reason::Disagree { .. }));
}

/// Push and pull: rank 0 is the server.
#[test]
fn a_parameter_server() {
    let world = 5;
    let pushes_and_pulls = program(AllReduce, world, 1, |rank, builder| {
        let (input, output) = (whole(Space::Input, 0, 1), whole(Space::Output, 0, 1));
        if rank == 0 {
            for worker in 1..world {
                let with = if worker == 1 { input } else { output };
                builder.receive_fold(worker, with, output, worker == world - 1);
            }
            (1..world).for_each(|worker| _ = builder.send(worker, output));
        } else {
            builder.send(0, input);
            builder.receive(0, output);
        }
    });
    for capacity in EVERY {
        verify(&pushes_and_pulls, capacity).unwrap();
    }
}

fn refused(program: &Program, capacity: Capacity) -> Refusal {
    verify(program, capacity).expect_err("the program is wrong")
}

#[test]
fn what_a_kernel_wrote_as_a_whole_is_not_taken_apart() {
    let torn = program(AllReduce, 2, 2, |rank, builder| {
        let scratch = |block| whole(Space::Scratch, block, 2);
        builder.send(1 - rank, whole(Space::Input, 0, 2));
        builder.receive(1 - rank, scratch(0));
        builder.combine_by(MERGE, whole(Space::Input, 0, 2), scratch(0), scratch(1), true);
        for part in 0..2 {
            builder.copy(Slot::of_parts(Space::Scratch, 1, part, 1), Slot::of_parts(Space::Output, 0, part, 1));
        }
    });
    let refusal = refused(&torn, Capacity::Unbounded);
    assert_eq!(refusal.step, Some(3));
    assert!(matches!(refusal.reason, Reason::Torn(_)), "{refusal}");
}

/// Two ranks that each send before they receive, through the same slot.
fn swap() -> Program {
    program(AllReduce, 2, 1, |rank, builder| {
        let (input, output) = (whole(Space::Input, 0, 1), whole(Space::Output, 0, 1));
        builder.send(1 - rank, input);
        builder.receive_fold(1 - rank, input, output, true);
    })
}

#[test]
fn an_exchange_in_one_slot_needs_room_on_the_edge() {
    verify(&swap(), Capacity::Unbounded).unwrap();
    verify(&swap(), Capacity::Messages(1)).unwrap();
    let refusal = refused(&swap(), Capacity::Rendezvous);
    assert_eq!(refusal.reason, Reason::Cycle);
    assert_eq!(refusal.steps().count(), 4, "the ring goes through all four steps: {refusal}");
}

#[test]
fn a_queue_of_one_message_holds_back_the_next() {
    // Rank 1 takes the second message first.
    let crossed = |room_matters: bool| {
        program(Broadcast, 2, 2, move |rank, builder| {
            let part = |space, part| Slot::of_parts(space, 0, part, 1);
            if rank == 0 {
                (0..2).for_each(|index| _ = builder.send(1, part(Space::Input, index)));
                builder.copy(whole(Space::Input, 0, 2), whole(Space::Output, 0, 2));
            } else {
                let first = builder.receive(0, part(Space::Output, 0));
                if room_matters {
                    builder.wait_for(first);
                }
                builder.receive(0, part(Space::Output, 1));
            }
        })
    };
    let mut program = crossed(false);
    program.ranks[1].steps[0].after = vec![1];
    let refusal = refused(&program, Capacity::Messages(1));
    assert_eq!(refusal.reason, Reason::Cycle);
    for capacity in [Capacity::Messages(2), Capacity::Unbounded, Capacity::Rendezvous] {
        verify(&program, capacity).unwrap();
    }
    verify(&crossed(true), Capacity::Messages(1)).unwrap();
}

#[test]
fn what_is_right_apart_may_be_wrong_in_place() {
    // A reduce-scatter that writes its output while a peer may still read that block of the input.
    let mut hasty = program(ReduceScatter, 2, 1, |rank, builder| {
        let peer = 1 - rank;
        builder.send(peer, whole(Space::Input, peer as u32, 1));
        builder.receive_fold(peer, whole(Space::Input, rank as u32, 1), whole(Space::Output, 0, 1), true);
    });
    verify(&hasty, Capacity::Rendezvous).unwrap();
    // Now through the wrong block, which in place is the output.
    let own = |rank: u32| whole(Space::Input, rank, 1);
    for rank in 0..2 {
        let copy = paceline_collective::Action::Copy { from: own(rank), into: whole(Space::Scratch, 0, 1) };
        hasty.ranks[rank as usize].scratch_blocks = 1;
        hasty.ranks[rank as usize].steps.push(paceline_collective::Step { action: copy, after: vec![] });
    }
    let refusal = refused(&hasty, Capacity::Rendezvous);
    assert!(refusal.in_place && matches!(refusal.reason, Reason::Hazard { .. }), "{refusal}");
    assert_eq!(refusal.steps().collect::<Vec<_>>(), [(0, 2), (0, 1)]);
}

#[test]
fn a_barrier_that_one_rank_skips_is_none() {
    // Everyone tells rank 0, and rank 0 tells rank 1 only.
    let leaky = program(Barrier, 3, 1, |rank, builder| {
        let (input, scratch) = (whole(Space::Input, 0, 1), |rank| whole(Space::Scratch, rank, 1));
        match rank {
            0 => {
                let heard = [1, 2].map(|peer| builder.receive(peer, scratch(peer as u32)));
                heard.into_iter().for_each(|step| builder.wait_for(step));
                builder.send(1, input);
            }
            1 => {
                builder.send(0, input);
                builder.receive(0, scratch(0));
            }
            _ => _ = builder.send(0, input),
        }
    });
    let refusal = refused(&leaky, Capacity::Unbounded);
    assert_eq!((refusal.rank, refusal.reason), (2, Reason::Barrier(0)));
}

#[test]
fn a_refusal_reads_like_a_sentence() {
    let mut ring = paceline_collective::registry::find(AllReduce, "ring").unwrap().program(&Topology::flat(3), 0);
    ring.ranks[1].steps[2].after.clear();
    let text = refused(&ring, Capacity::Rendezvous).to_string();
    assert_eq!(text, "rank 1, step 2: races with step 1 for output blocks 0..1 parts 0..1; see rank 1 step 1");
}

#[test]
fn a_damaged_program_is_refused_and_nothing_else() {
    let ring = || paceline_collective::registry::find(AllReduce, "ring").unwrap().program(&Topology::flat(3), 0);
    let mut huge = ring();
    huge.ranks[2].scratch_blocks = u32::MAX;
    assert!(matches!(refused(&huge, Capacity::Unbounded).reason, Reason::Cells(_)));
    let mut far = ring();
    far.ranks[1].steps[0].after = vec![u32::MAX];
    assert_eq!(refused(&far, Capacity::Unbounded).reason, Reason::After(u32::MAX));
    let mut wide = ring();
    let slot = Slot::of_parts(Space::Input, 0, u32::MAX, u32::MAX);
    wide.ranks[0].steps[0].action = paceline_collective::Action::Send { to: 1, message: 0, from: slot };
    assert_eq!(refused(&wide, Capacity::Unbounded).reason, Reason::Range(slot));
    let mut nowhere = ring();
    nowhere.root = 7;
    assert!(matches!(refused(&nowhere, Capacity::Unbounded).reason, Reason::World { .. }));
    assert!(verify(&Program { ranks: vec![], ..ring() }, Capacity::Unbounded).is_err());
}
