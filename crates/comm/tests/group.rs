//! Grouped calls: no order among them, nothing started if one is wrong.

mod support;

use paceline_comm::{CallOptions, CommError, Reduction};
use support::{LINKS, Links, on_all_ranks};

#[test]
fn a_ring_of_large_messages_needs_no_order() {
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            let (me, options) = (comm.rank(), CallOptions::default());
            let (next, before) = ((me + 1) % 4, (me + 3) % 4);
            // Far more than any link pools: blocking sends would wait in a circle.
            let mine = vec![me as i32; 2_000_000];
            let (mut theirs, mut sum, mut gathered) = (vec![-1; mine.len()], vec![1i64; 1000], [0u8; 4]);
            let byte = [me as u8];
            comm.group(|group| {
                group.send(&mine, next, 3, &options)?;
                group.all_reduce(&mut sum, Reduction::Sum, &options)?;
                group.receive(&mut theirs, before, 3, &options)?;
                group.all_gather(&byte, &mut gathered, &options)
            })
            .unwrap();
            assert!(theirs.iter().all(|&got| got == before as i32), "{links:?}");
            assert!(sum.iter().all(|&got| got == 4));
            assert_eq!(gathered, [0, 1, 2, 3]);
        });
    }
}

#[test]
fn every_collective_can_be_grouped() {
    for links in [Links::Memory, Links::Mixed] {
        on_all_ranks(links, 3, move |comm| {
            let (me, options) = (comm.rank(), CallOptions::default());
            let mine = [me as i64 + 1; 3];
            let (mut block, mut data, mut transposed) = ([0i64], mine, [0i64; 3]);
            let at_root = |length| if me == 2 { length } else { 0 };
            let (mut reduced, mut gathered, mut scattered) = (vec![0i64; at_root(3)], vec![0; at_root(3)], [0i64]);
            let whole = [7i64, 8, 9];
            comm.group(|group| {
                group.reduce_scatter(&mine, &mut block, Reduction::Sum, &options)?;
                group.broadcast(&mut data, 1, &options)?;
                group.reduce(&mine, &mut reduced, 2, Reduction::Product, &options)?;
                group.gather(&mine[..1], &mut gathered, 2, &options)?;
                group.scatter(&whole[..at_root(3)], &mut scattered, 2, &options)?;
                group.all_to_all(&mine, &mut transposed, &options)
            })
            .unwrap();
            assert_eq!((block, data, transposed, scattered), ([6], [2; 3], [1, 2, 3], [7 + me as i64]));
            assert!(reduced == vec![6; at_root(3)] && gathered == [1, 2, 3][..at_root(3)]);
        });
    }
}

#[test]
fn an_error_while_building_starts_nothing() {
    on_all_ranks(Links::Memory, 2, move |comm| {
        let options = CallOptions::default();
        let (mut one, mut other) = ([1i32; 4], [1i32; 4]);
        let error = comm
            .group(|group| {
                group.all_reduce(&mut one, Reduction::Sum, &options)?;
                group.broadcast(&mut other, 9, &options)
            })
            .unwrap_err();
        assert!(matches!(error, CommError::Usage { .. }), "{error}");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = comm.group(|group| {
                group.all_reduce(&mut one, Reduction::Sum, &options)?;
                panic!("in the middle of a group")
            });
        }));
        assert!(panicked.is_err());
        // Rank 1 made no other calls than rank 0: sequence numbers still agree.
        if comm.rank() == 0 {
            assert!(comm.group(|group| group.send(&[0u8], 0, 0, &options)).is_err());
        }
        comm.all_reduce(&mut other, Reduction::Sum, &options).unwrap();
        assert_eq!((one, other), ([1; 4], [2; 4]));
    });
}

#[test]
fn an_empty_group_is_done() {
    on_all_ranks(Links::Memory, 2, |comm| comm.group(|_| Ok(())).unwrap());
}
