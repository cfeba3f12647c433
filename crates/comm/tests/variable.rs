//! Variable counts: a length for each rank, zero among them, and ranks that disagree.

mod support;

use std::time::Duration;

use paceline_collective::registry::of_kind;
use paceline_comm::{CallOptions, CollectiveKind, CommError, Communicator, Failure, Reduction};
use support::{LINKS, Links, on_all_ranks};

const WORLDS: [usize; 4] = [1, 2, 3, 7];

/// Counts for a world: zeros, small and large ones.
fn counts(world: usize) -> [Vec<usize>; 4] {
    [
        vec![0; world],
        (0..world).map(|rank| rank * 5 % 7).collect(),
        (0..world).map(|rank| if rank == world / 2 { 9_001 } else { 0 }).collect(),
        (0..world).map(|rank| 300 * rank + 1).collect(),
    ]
}

fn algorithms(kind: CollectiveKind) -> impl Iterator<Item = CallOptions> {
    let variable = of_kind(kind).filter(|algorithm| algorithm.variable_counts() && algorithm.supports(1));
    variable.map(|algorithm| CallOptions { chunk_bytes: Some(1000), ..CallOptions::algorithm(algorithm.name()) })
}

fn value(rank: usize, index: usize) -> i32 {
    (rank * 31 + index * 7) as i32 % 1009
}

fn start_of(counts: &[usize], rank: usize) -> usize {
    counts[..rank].iter().sum()
}

/// All blocks, one after the other; block r has rank r's values.
fn joined(counts: &[usize]) -> Vec<i32> {
    (0..counts.len()).flat_map(|rank| (0..counts[rank]).map(move |index| value(rank, index))).collect()
}

#[test]
fn all_gather_gather_and_scatter_take_a_length_for_each_rank() {
    for (links, world) in LINKS.into_iter().flat_map(|links| WORLDS.map(|world| (links, world))) {
        on_all_ranks(links, world, move |comm| {
            let me = comm.rank();
            for counts in counts(world) {
                let all = joined(&counts);
                let mine = &all[start_of(&counts, me)..][..counts[me]];
                for options in algorithms(CollectiveKind::AllGather) {
                    let mut output = vec![-1; all.len()];
                    comm.all_gather_variable(mine, &mut output, &counts, &options).unwrap();
                    assert!(output == all, "all-gather {options:?} {counts:?} over {links:?}");
                }
                for root in [0, world - 1] {
                    let at_root = |length| if me == root { length } else { 0 };
                    for options in algorithms(CollectiveKind::Gather) {
                        let mut output = vec![-1; at_root(all.len())];
                        comm.gather_variable(mine, &mut output, &counts, root, &options).unwrap();
                        assert!(output == all[..at_root(all.len())], "gather {options:?} {counts:?}");
                    }
                    for options in algorithms(CollectiveKind::Scatter) {
                        let mut output = vec![-1; counts[me]];
                        comm.scatter_variable(&all[..at_root(all.len())], &mut output, &counts, root, &options)
                            .unwrap();
                        assert!(output == mine, "scatter {options:?} {counts:?}");
                    }
                }
            }
        });
    }
}

#[test]
fn reduce_scatter_takes_a_length_for_each_rank() {
    for (links, world) in LINKS.into_iter().flat_map(|links| WORLDS.map(|world| (links, world))) {
        on_all_ranks(links, world, move |comm| {
            let me = comm.rank();
            for counts in counts(world) {
                let total = counts.iter().sum();
                let input: Vec<i32> = (0..total).map(|index| value(me, index)).collect();
                for options in algorithms(CollectiveKind::ReduceScatter) {
                    let mut output = vec![-1; counts[me]];
                    comm.reduce_scatter_variable(&input, &mut output, &counts, Reduction::Sum, &options).unwrap();
                    let sum = |index: usize| (0..world).map(|rank| value(rank, start_of(&counts, me) + index)).sum();
                    assert!((0..counts[me]).all(|index| output[index] == sum(index)), "{options:?} {counts:?}");
                }
            }
        });
    }
}

/// Elements from one rank to another: nothing, little, or more than goes eagerly.
fn between(from: usize, to: usize) -> usize {
    [0, 3, 1, 400_000, 17][(from * 3 + to) % 5]
}

#[test]
fn all_to_all_takes_a_length_for_each_pair() {
    for (links, world) in LINKS.into_iter().flat_map(|links| [1, 2, 5].map(|world| (links, world))) {
        on_all_ranks(links, world, move |comm| {
            let me = comm.rank();
            let into: Vec<usize> = (0..world).map(|to| between(me, to)).collect();
            let from: Vec<usize> = (0..world).map(|sender| between(sender, me)).collect();
            let input: Vec<i32> =
                (0..world).flat_map(|to| (0..into[to]).map(move |index| value(me * 10 + to, index))).collect();
            let mut output = vec![-1; from.iter().sum()];
            comm.all_to_all_variable(&input, &into, &mut output, &from, &CallOptions::default()).unwrap();
            let right = (0..world).flat_map(|rank| (0..between(rank, me)).map(move |i| value(rank * 10 + me, i)));
            assert!(output.iter().copied().eq(right), "{links:?}, {world} ranks");
        });
    }
}

#[test]
fn all_of_them_run_in_the_background() {
    for links in LINKS {
        on_all_ranks(links, 3, move |comm| {
            let (me, options, counts) = (comm.rank(), CallOptions::default(), [2, 0, 700]);
            let all = joined(&counts);
            let filled = |data: &[i32]| {
                let mut buffer = comm.alloc(data.len()).unwrap();
                buffer.copy_from_slice(data);
                buffer
            };
            let mine = || filled(&all[start_of(&counts, me)..][..counts[me]]);
            let empty = |length| comm.alloc::<i32>(length).unwrap();
            let at_one = |length| if me == 1 { length } else { 0 };
            let gathered = comm.start_all_gather_variable(mine(), empty(702), &counts, &options).unwrap();
            let at_root = comm.start_gather_variable(mine(), empty(at_one(702)), &counts, 1, &options).unwrap();
            let whole = filled(&all[..at_one(702)]);
            let scattered = comm.start_scatter_variable(whole, empty(counts[me]), &counts, 1, &options).unwrap();
            let (input, output) = (filled(&all), empty(counts[me]));
            let reduced = comm.start_reduce_scatter_variable(input, output, &counts, Reduction::Max, &options).unwrap();
            let ones = [1; 3];
            let pairs = comm.start_all_to_all_variable(filled(&[me as i32; 3]), &ones, empty(3), &ones, &options);
            assert_eq!(gathered.wait().unwrap()[..], all[..]);
            assert_eq!(at_root.wait().unwrap()[..], all[..at_one(702)]);
            assert_eq!(scattered.wait().unwrap()[..], mine()[..]);
            assert_eq!(reduced.wait().unwrap()[..], mine()[..]);
            assert_eq!(pairs.unwrap().wait().unwrap()[..], [0, 1, 2]);
        });
    }
}

/// Runs a call that ranks disagree about, and gives what each rank was told.
fn disagree(links: Links, call: impl Fn(&Communicator) -> Result<(), CommError> + Send + Sync + Clone + 'static) {
    let failures = on_all_ranks(links, 2, move |comm| {
        let end = CallOptions { timeout: Some(Duration::from_secs(10)), ..CallOptions::default() };
        let outcome = call(&comm);
        comm.barrier(&end).and(outcome).unwrap_err()
    });
    let mismatch = |error: &CommError| match error {
        CommError::Failed { failure, .. } => match &**failure {
            Failure::Mismatch { ours, theirs, .. } => ours.fingerprint != theirs.fingerprint,
            Failure::Violation { what, .. } => what.contains("of a length that does not fit the operation"),
            _ => false,
        },
        _ => false,
    };
    assert!(failures.iter().any(mismatch), "{links:?}: {failures:?}");
}

#[test]
fn counts_that_ranks_disagree_about_are_an_error_and_no_hang() {
    for links in LINKS {
        // The sum is the same on both ranks.
        disagree(links, |comm| {
            let counts = if comm.rank() == 0 { [2, 4] } else { [3, 3] };
            let mine = vec![1i32; counts[comm.rank()]];
            comm.all_gather_variable(&mine, &mut [0; 6], &counts, &CallOptions::default())
        });
        disagree(links, |comm| {
            let counts = if comm.rank() == 0 { [2, 4] } else { [4, 2] };
            let mut mine = vec![1i32; counts[comm.rank()]];
            comm.reduce_scatter_variable(&[1; 6], &mut mine, &counts, Reduction::Sum, &CallOptions::default())
        });
        disagree(links, |comm| {
            let counts = if comm.rank() == 0 { [2, 4] } else { [3, 3] };
            let (mine, mut output) = (vec![1i32; counts[comm.rank()]], [0; 6]);
            comm.group(|group| group.all_gather_variable(&mine, &mut output, &counts, &CallOptions::default()))
        });
        // Rank 0 sends 5, rank 1 expects 4; and large ones, which wait for a grant.
        for length in [5, 1_000_000] {
            disagree(links, move |comm| {
                let zero = comm.rank() == 0;
                let (into, from) = if zero { ([1, length], [1, 1]) } else { ([1, 1], [length - 1, 1]) };
                let input = vec![7u8; into.iter().sum()];
                let mut output = vec![0u8; from.iter().sum()];
                comm.all_to_all_variable(&input, &into, &mut output, &from, &CallOptions::default())
            });
        }
    }
}

#[test]
fn counts_that_make_no_sense_send_nothing() {
    on_all_ranks(Links::Memory, 2, move |comm| {
        let options = CallOptions::default();
        let mut output = [0u8; 3];
        for (counts, told) in [
            (&[1usize, 1, 1][..], "3 counts of the blocks, but 2 ranks"),
            (&[1, 1], "the output has 3 elements, but 2 by the counts"),
            (&[usize::MAX, 2], "add up to more than there can be"),
        ] {
            let error = comm.all_gather_variable(&[0u8], &mut output, counts, &options).unwrap_err();
            assert!(matches!(error, CommError::Usage { .. }) && error.to_string().contains(told), "{error}");
        }
        let bruck = CallOptions::algorithm("bruck");
        let error = comm.all_gather_variable(&[0u8], &mut output[..2], &[1, 1], &bruck).unwrap_err();
        assert!(error.to_string().contains("bruck needs blocks of one length"), "{error}");
        let own = [[0, 1], [1, 0]][comm.rank()];
        let error = comm.all_to_all_variable(&[0u8], &own, &mut output[..2], &[1, 1], &options).unwrap_err();
        assert!(matches!(error, CommError::Usage { .. }), "{error}");
        comm.barrier(&options).unwrap();
    });
}
