//! What a caller may say about a call: it makes no difference to the result, and nonsense is refused.

mod support;

use std::fs::DirEntry;

use paceline_comm::{CallOptions, CommError, Communicator, Protocol, Reduction};
use support::{LINKS, Links, on_all_ranks};

#[test]
fn every_protocol_gives_the_same_even_if_ranks_choose_differently() {
    for links in LINKS {
        on_all_ranks(links, 3, move |comm| {
            for (round, &protocol) in Protocol::ALL.iter().enumerate() {
                let other = Protocol::ALL[(round + comm.rank()) % Protocol::ALL.len()];
                for (protocol, elements) in [(protocol, 5), (protocol, 700_000), (other, 5), (other, 700_000)] {
                    let options = CallOptions { protocol, ..CallOptions::default() };
                    let mut data = comm.alloc::<f32>(elements).unwrap();
                    data.fill(comm.rank() as f32 + 1.0);
                    comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
                    assert!(data.iter().all(|&got| got == 6.0), "{protocol}, {elements} elements");
                    let mut data = vec![comm.rank() as i32; elements];
                    comm.broadcast(&mut data, 2, &options).unwrap();
                    assert!(data.iter().all(|&got| got == 2), "{protocol}, {elements} elements");
                }
            }
        });
    }
}

#[test]
fn an_eager_message_needs_no_receiver_and_a_rendezvous_waits_for_it() {
    for links in LINKS {
        on_all_ranks(links, 2, move |comm| {
            let with = |protocol| CallOptions { protocol, ..CallOptions::default() };
            let buffer = || comm.alloc::<u8>(100).unwrap();
            if comm.rank() == 0 {
                let waits = comm.start_send(buffer(), 1, 1, &with(Protocol::Rendezvous)).unwrap();
                // Rank 1 receives neither before it has got what comes after.
                let goes = comm.start_send(buffer(), 1, 2, &with(Protocol::Inline)).unwrap();
                goes.wait().unwrap();
                assert!(!waits.is_done(), "{links:?}");
                comm.send(&[0u8], 1, 3, &with(Protocol::Auto)).unwrap();
                waits.wait().unwrap();
            } else {
                comm.receive(&mut [0u8], 0, 3, &with(Protocol::Auto)).unwrap();
                comm.receive(&mut [0u8; 100], 0, 2, &with(Protocol::Inline)).unwrap();
                comm.receive(&mut [0u8; 100], 0, 1, &with(Protocol::Rendezvous)).unwrap();
            }
        });
    }
}

/// The bits of an average of 3.6 MB.
fn average(comm: &Communicator, options: &CallOptions) -> Vec<u32> {
    let mut data = comm.alloc::<f32>(900_001).unwrap();
    let value = |index: usize| ((index * 7919 + comm.rank() * 31) % 10_007) as f32 * 0.1;
    data.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
    comm.all_reduce(&mut data, Reduction::Average, options).unwrap();
    data.iter().map(|value| value.to_bits()).collect()
}

/// The threads of this process that share additions.
fn reducing_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let name = |task: &DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task).trim() == "paceline-reduce").count()
}

#[test]
fn lanes_and_reducing_threads_change_no_bit() {
    // Nobody else in this file asks for such threads: where ranks read each other's memory, each starts one if it may.
    on_all_ranks(Links::SharedMemory, 3, |comm| {
        let large = CallOptions { chunk_bytes: Some(1 << 22), ..CallOptions::algorithm("direct") };
        average(&comm, &large);
        assert_eq!(reducing_threads(), 0, "nobody has asked for any");
        comm.barrier(&CallOptions::default()).unwrap();
        average(&comm, &CallOptions { reducing_threads: Some(2), ..large });
        comm.barrier(&CallOptions::default()).unwrap();
        assert_eq!(reducing_threads(), 3);
        comm.barrier(&CallOptions::default()).unwrap();
    });
    for links in LINKS {
        on_all_ranks(links, 3, move |comm| {
            let run = |options: &CallOptions| average(&comm, options);
            for algorithm in ["ring", "direct"] {
                let plain = CallOptions { chunk_bytes: Some(1 << 22), ..CallOptions::algorithm(algorithm) };
                let right = run(&plain);
                for (lanes, reducing_threads) in [(Some(1), None), (Some(9), Some(2)), (None, Some(3))] {
                    let options = CallOptions { lanes, reducing_threads, ..plain.clone() };
                    assert!(run(&options) == right, "{options:?}");
                }
            }
        });
    }
}

#[test]
fn nonsense_is_refused_and_sends_nothing() {
    on_all_ranks(Links::Memory, 2, move |comm| {
        let default = CallOptions::default;
        for (options, told) in [
            (CallOptions { chunk_bytes: Some(0), ..default() }, "chunk_bytes is 0"),
            (CallOptions { lanes: Some(0), ..default() }, "lanes is 0"),
            (CallOptions { reducing_threads: Some(0), ..default() }, "reducing_threads is 0"),
            (CallOptions { reducing_threads: Some(65), ..default() }, "1 to 64"),
        ] {
            let error = comm.all_reduce(&mut [1f32], Reduction::Sum, &options).unwrap_err();
            assert!(matches!(error, CommError::Usage { .. }) && error.to_string().contains(told), "{error}");
            assert!(comm.barrier(&options).is_err());
        }
        comm.barrier(&default()).unwrap();
    });
}
