//! Programs and kernels of the caller's own, and records of calls.

mod support;

use half::bf16;
use paceline_collective::{
    KernelId, Place, Program, RankBuilder, Slot, Space, StepId, Topology, re_encoding_all_reduce, registry,
};
use paceline_comm::{
    CallOptions, CollectiveKind, CommError, Kernels, Origin, ProgramError, Protocol, Reduction, VerifiedProgram,
};
use support::{LINKS, Links, on_all_ranks};

const ENCODE: KernelId = KernelId(4);
const DECODE: KernelId = KernelId(5);

/// Everyone sends its block as bf16 to everyone, and decodes what it gets.
fn narrow_all_gather(world: usize) -> Program {
    let kind = CollectiveKind::AllGather;
    let steps = |rank| {
        let mut builder = RankBuilder::new(Place { kind, rank, world, root: 0 }, 1);
        let (input, narrow) = (builder.tile(Space::Input, 0), builder.tile(Space::Scratch, rank));
        builder.map(ENCODE, input, narrow);
        for peer in (0..world).filter(|&peer| peer != rank) {
            builder.send(peer, narrow);
        }
        for peer in (0..world).filter(|&peer| peer != rank) {
            let narrow = builder.tile(Space::Scratch, peer);
            builder.receive(peer, narrow);
        }
        for peer in 0..world {
            let (narrow, output) = (builder.tile(Space::Scratch, peer), builder.tile(Space::Output, peer));
            builder.map(DECODE, narrow, output);
        }
        builder.finish()
    };
    Program { algorithm: "narrow".into(), kind, root: 0, parts: 1, ranks: (0..world).map(steps).collect() }
}

fn casts() -> Kernels {
    Kernels::new().convert(ENCODE, bf16::from_f32).convert(DECODE, bf16::to_f32)
}

#[test]
fn a_reduced_value_is_gathered_in_another_encoding() {
    for links in LINKS {
        let program = VerifiedProgram::new(narrow_all_gather(3), casts()).unwrap();
        on_all_ranks(links, 3, move |comm| {
            for (block, chunk_bytes) in [(0, None), (5, None), (70_000, None), (70_000, Some(9_000))] {
                // Sums that bf16 cannot hold: the reference is rounded as the encoding rounds.
                let value = |rank: usize, index: usize| ((rank + 1) * (index % 977)) as f32 * 0.37;
                let input: Vec<f32> = (0..3 * block).map(|index| value(comm.rank(), index)).collect();
                let mut mine = vec![0f32; block];
                let plain = CallOptions::algorithm("ring");
                comm.reduce_scatter(&input, &mut mine, Reduction::Max, &plain).unwrap();
                let options = CallOptions { chunk_bytes, ..CallOptions::default() };
                let mut output = vec![0f32; 3 * block];
                let bytes = comm.run_program(&program, &mine, &mut output, Reduction::Sum, &options).unwrap();
                assert_eq!(bytes, if chunk_bytes.is_none() { vec![4 * block; 3] } else { vec![] });
                let right = |index: usize| bf16::from_f32(value(2, index)).to_f32();
                assert!((0..3 * block).all(|index| output[index] == right(index)), "{links:?}, {block}");
            }
        });
    }
}

/// Numbers of which another order of additions leaves other sums, even when they are rounded to bf16.
fn contribution(rank: usize, index: usize) -> f32 {
    let (small, large) = (((rank + 1) * (index % 977)) as f32 * 0.37, ((1 + index % 5) << 24) as f32);
    [small, large, -large][rank % 3]
}

/// The contributions of these ranks, added in f32 one after the other, as bf16 leaves their sum.
fn sum_in_bf16(ranks: impl Iterator<Item = usize>, index: usize) -> f32 {
    let sum =
        ranks.map(|rank| contribution(rank, index)).reduce(|sum, value| sum + value).expect("somebody contributes");
    bf16::from_f32(sum).to_f32()
}

/// Each rank adds up a part in the order of the ranks and sends it to all as bf16; all decode the same codes, their own as
/// well, so that all hold the same bits.
#[test]
fn sums_that_are_scattered_are_gathered_in_another_encoding() {
    let all = LINKS.into_iter().flat_map(|links| [1, 2, 3, 4, 6].map(|world| (links, world)));
    // Where every message is a nap, or every pair of ranks shakes hands, few ranks must do.
    let slow = |links| matches!(links, Links::Emulated | Links::Encrypted);
    for (links, world) in all.filter(|&(links, world)| world <= 4 || !slow(links)) {
        let other_order = |index| sum_in_bf16(0..world, index) != sum_in_bf16((0..world).rev(), index);
        assert!(world < 3 || (0..1000).any(other_order), "the order of the ranks could not be told from another");
        let program = VerifiedProgram::new(re_encoding_all_reduce(world, ENCODE, DECODE), casts()).unwrap();
        on_all_ranks(links, world, move |comm| {
            for (length, chunk_bytes) in
                [(0, None), (1, None), (1000, Some(512)), (1003, Some(1000)), (70_000, None), (70_000, Some(9_000))]
            {
                let input: Vec<f32> = (0..length).map(|index| contribution(comm.rank(), index)).collect();
                let mut output = vec![f32::NAN; length];
                let options = CallOptions { chunk_bytes, ..CallOptions::default() };
                comm.run_program(&program, &input, &mut output, Reduction::Sum, &options).unwrap();
                let right = |index| sum_in_bf16(0..world, index);
                let wrong = (0..length).find(|&index| output[index].to_bits() != right(index).to_bits());
                assert_eq!(wrong, None, "{links:?}, {world} ranks, {length} elements, tiles of {chunk_bytes:?} bytes");
            }
        });
    }
}

/// The programs of our own all-reduces, given as a caller's, where input and output are one memory; and another collective has no
/// such place.
#[test]
fn all_reduces_of_the_callers_run_in_place() {
    for links in LINKS {
        let kind = CollectiveKind::AllReduce;
        let all = registry::of_kind(kind).filter(|algorithm| algorithm.supports(3));
        let prove = |program| VerifiedProgram::new(program, Kernels::new()).unwrap();
        let programs: Vec<_> = all.map(|algorithm| prove(algorithm.program(&Topology::flat(3), 0))).collect();
        let gather = prove(registry::find(CollectiveKind::AllGather, "ring").unwrap().program(&Topology::flat(3), 0));
        on_all_ranks(links, 3, move |comm| {
            for program in &programs {
                for (length, chunk_bytes) in [(0, None), (1, None), (1003, Some(1000)), (70_000, Some(9_000))] {
                    let options = CallOptions { chunk_bytes, ..CallOptions::default() };
                    let mut data: Vec<i32> = (0..length).map(|index| index * (comm.rank() as i32 + 1)).collect();
                    let mut buffer = comm.alloc::<i32>(data.len()).unwrap();
                    buffer.copy_from_slice(&data);
                    let pending = comm.start_program_in_place(program, buffer, Reduction::Sum, &options).unwrap();
                    comm.run_program_in_place(program, &mut data, Reduction::Sum, &options).unwrap();
                    let right = |data: &[i32]| (0..length).all(|index| data[index as usize] == 6 * index);
                    let both = [right(&data), right(&pending.wait().unwrap())];
                    assert_eq!(both, [true; 2], "{links:?}, {}, {length} elements", program.algorithm());
                }
            }
            let refused = comm.run_program_in_place(&gather, &mut [1i32; 6], Reduction::Sum, &CallOptions::default());
            assert!(matches!(refused, Err(CommError::Usage { .. })), "{refused:?}");
        });
    }
}

/// Two ranks send each other their inputs, and both combine the lower rank's and the other's to their outputs.
fn exchange(name: &str, combine: impl Fn(&mut RankBuilder, Slot, Slot, Slot) -> StepId) -> Program {
    let kind = CollectiveKind::AllReduce;
    let steps = |rank: usize| {
        let mut builder = RankBuilder::new(Place { kind, rank, world: 2, root: 0 }, 1);
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let other = builder.tile(Space::Scratch, 0);
        builder.send(1 - rank, input);
        builder.receive(1 - rank, other);
        let (left, right) = if rank == 0 { (input, other) } else { (other, input) };
        combine(&mut builder, left, right, output);
        builder.finish()
    };
    Program { algorithm: name.to_owned(), kind, root: 0, parts: 1, ranks: (0..2).map(steps).collect() }
}

/// Two ranks, both of which end with the lower rank's bytes and then the other's.
fn joined() -> VerifiedProgram {
    const JOIN: KernelId = KernelId(6);
    let program = exchange("join", |builder, left, right, output| builder.combine_by(JOIN, left, right, output, true));
    let join = |left: &[u8], right: &[u8], into: &mut [u8]| {
        let both = [left, right].concat();
        into[..both.len()].copy_from_slice(&both);
        both.len()
    };
    VerifiedProgram::new(program, Kernels::new().combine(JOIN, join)).unwrap()
}

#[test]
fn lengths_that_kernels_decide_come_back() {
    for links in LINKS {
        let program = joined();
        on_all_ranks(links, 2, move |comm| {
            let (options, me) = (CallOptions::default(), comm.rank());
            for round in 0..20 {
                // Of a hundred bytes a few count, on each rank others.
                let input: Vec<u8> = (0..100).map(|index| (100 * me + index + round) as u8).collect();
                let (mine, both) = (10 + 7 * me + round, 27 + 2 * round);
                let mut output = [0u8; 100];
                let run = |output: &mut [u8], bytes: &[usize]| {
                    comm.run_program_on_lengths(&program, (&input, bytes), output, Reduction::Sum, &options)
                };
                assert_eq!(run(&mut output, &[mine]).unwrap(), [both], "{links:?}");
                let right = |at: usize| if at < 10 + round { at + round } else { 100 + at - 10 };
                assert!((0..both).all(|at| output[at] == right(at) as u8), "{links:?}: {output:?}");
                for wrong in [&[101][..], &[], &[1, 1]] {
                    assert!(matches!(run(&mut output, wrong), Err(CommError::Usage { .. })), "{wrong:?}");
                }
            }
        });
    }
}

#[test]
fn programs_run_in_a_group_and_their_lengths_come_back_with_it() {
    for links in LINKS {
        let (join, narrow) = (joined(), VerifiedProgram::new(narrow_all_gather(2), casts()).unwrap());
        on_all_ranks(links, 2, move |comm| {
            let (options, me) = (CallOptions::default(), comm.rank());
            let (mine, value) = ([me as u8 + 1; 100], [me as f32 + 0.5; 3]);
            let (mut both, mut values, mut sum) = ([0u8; 100], [0f32; 6], [1i64; 9]);
            let (mut joined, mut decoded) = (vec![99], vec![99]);
            let refused = comm.group(|group| {
                group.run_program(&narrow, &value, &mut values, &mut decoded, Reduction::Sum, &options)?;
                group.run_program_on_lengths(&join, (&mine, &[101]), &mut both, &mut joined, Reduction::Sum, &options)
            });
            assert!(matches!(refused, Err(CommError::Usage { .. })), "{refused:?}");
            assert_eq!((&joined[..], &decoded[..]), (&[99][..], &[99][..]), "nothing has run");
            comm.group(|group| {
                let input = (&mine[..], &[20 + me][..]);
                group.run_program_on_lengths(&join, input, &mut both, &mut joined, Reduction::Sum, &options)?;
                group.run_program(&narrow, &value, &mut values, &mut decoded, Reduction::Sum, &options)?;
                group.all_reduce(&mut sum, Reduction::Sum, &options)
            })
            .unwrap();
            assert_eq!((&joined[..], &decoded[..]), (&[41][..], &[12, 12][..]), "{links:?}");
            assert!(both[..20] == [1; 20] && both[20..41] == [2; 21], "{links:?}: {both:?}");
            assert_eq!((values, sum), ([0.5, 0.5, 0.5, 1.5, 1.5, 1.5], [2; 9]), "{links:?}");
        });
    }
}

#[test]
fn lengths_are_refused_where_no_kernel_takes_them() {
    let program = exchange("plain", |builder, left, right, output| builder.combine(left, right, output, true));
    let program = VerifiedProgram::new(program, Kernels::new()).unwrap();
    on_all_ranks(Links::Memory, 2, move |comm| {
        let (options, input, mut output) = (CallOptions::default(), [comm.rank() as u8 + 1; 10], [0u8; 10]);
        let refused =
            comm.run_program_on_lengths(&program, (&input, &[5]), &mut output, Reduction::Sum, &options).unwrap_err();
        assert!(matches!(refused, CommError::Usage { .. }), "{refused}");
        assert!(refused.to_string().contains("a program without kernels"), "{refused}");
        comm.run_program(&program, &input, &mut output, Reduction::Sum, &options).unwrap();
        assert_eq!(output, [3; 10]);
    });
}

#[test]
fn what_is_wrong_with_a_program_is_told_before_it_runs() {
    let mut deaf = narrow_all_gather(2);
    deaf.ranks[1].steps.pop();
    assert!(matches!(VerifiedProgram::new(deaf, casts()), Err(ProgramError::Refused { .. })));
    let error = VerifiedProgram::new(narrow_all_gather(2), Kernels::new().convert(ENCODE, bf16::from_f32)).unwrap_err();
    assert!(error.to_string().contains("calls kernel 5 to map, and there is none"), "{error}");
    on_all_ranks(Links::Memory, 2, |comm| {
        let program = VerifiedProgram::new(narrow_all_gather(3), casts()).unwrap();
        let error = comm.run_program(&program, &[0f32], &mut [0f32; 3], Reduction::Sum, &CallOptions::default());
        assert!(matches!(error, Err(CommError::Usage { .. })), "{error:?}");
    });
}

#[test]
fn a_kernel_that_panics_or_lies_fails_the_call_and_nothing_else() {
    for lie in [false, true] {
        let kernel = move |_: &[u8], into: &mut [u8]| if lie { into.len() + 1 } else { panic!("as the test wants it") };
        let program = VerifiedProgram::new(narrow_all_gather(2), casts().map(DECODE, kernel)).unwrap();
        let errors = on_all_ranks(Links::Tcp, 2, move |comm| {
            let options = CallOptions::default();
            comm.run_program(&program, &[1f32], &mut [0f32; 2], Reduction::Sum, &options).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("kernel 5 ")), "{errors:?}");
    }
}

#[test]
fn ranks_with_different_programs_are_told() {
    let errors = on_all_ranks(Links::Memory, 2, |comm| {
        let mut program = narrow_all_gather(2);
        program.algorithm = format!("of rank {}", comm.rank());
        let program = VerifiedProgram::new(program, casts()).unwrap();
        let options = CallOptions::default();
        let outcome = comm.run_program(&program, &[1f32], &mut [0f32; 2], Reduction::Sum, &options);
        comm.barrier(&options).and(outcome).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("counts or program")), "{errors:?}");
}

#[test]
fn records_say_what_each_call_did_and_keep_the_latest() {
    for links in LINKS {
        on_all_ranks(links, 2, |comm| {
            assert!(comm.take_records().calls.is_empty());
            comm.all_reduce(&mut [1f32], Reduction::Sum, &CallOptions::default()).unwrap();
            comm.record_calls(4);
            let options = CallOptions {
                protocol: Protocol::Eager,
                chunk_bytes: Some(400),
                tag: 77,
                origin: Origin::Fused,
                ..CallOptions::algorithm("ring")
            };
            for _ in 0..6 {
                comm.all_reduce(&mut [1f32; 1000], Reduction::Sum, &options).unwrap();
            }
            assert!(comm.is_recording() && comm.latest_records(9).len() == 4);
            let latest = comm.latest_records(2);
            let records = comm.take_records();
            assert_eq!((records.calls.len(), records.dropped), (4, 2));
            assert_eq!(latest, records.calls[2..], "to look at them takes nothing away");
            for (call, next) in records.calls.iter().zip(&records.calls[1..]) {
                assert!(
                    call.start < call.end && call.end <= next.start && call.key.operation + 1 == next.key.operation
                );
                assert!(call.last_arrival.is_some_and(|arrival| arrival <= call.end), "{call:?}");
                let how = (call.algorithm, call.protocol, call.chunk_bytes, call.bytes);
                assert_eq!(how, ("ring", Protocol::Eager, 400, 4000));
                assert_eq!((call.tag, call.origin, call.failed), (77, Origin::Fused, false));
            }
            comm.record_calls(0);
            comm.barrier(&CallOptions::default()).unwrap();
            assert!(!comm.is_recording() && comm.take_records().calls.is_empty());
        });
    }
}

#[test]
fn a_call_that_fails_is_recorded_as_failed() {
    for links in [Links::Memory, Links::Tcp] {
        on_all_ranks(links, 2, move |comm| {
            let options = CallOptions::default();
            if comm.rank() == 1 {
                comm.receive(&mut [0u8], 0, 0, &options).unwrap();
                return comm.abort("as the test wants it");
            }
            comm.record_calls(4);
            let pending = comm.start_all_reduce_copy(&[1f32; 10], Reduction::Sum, &options).unwrap();
            comm.send(&[0u8], 1, 0, &options).unwrap();
            pending.wait().unwrap_err();
            let calls = comm.take_records().calls;
            let ended: Vec<_> = calls.iter().map(|call| (call.collective, call.failed)).collect();
            assert_eq!(ended, [(CollectiveKind::SendReceive, false), (CollectiveKind::AllReduce, true)], "{links:?}");
            assert_eq!(calls[1].last_arrival, None, "nothing of rank 1 came");
            assert!(calls[1].start < calls[0].end && calls[0].end <= calls[1].end, "{calls:?}");
        });
    }
}
