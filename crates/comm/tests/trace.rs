//! The timeline of a rank: what one sends another receives, and memory is bounded.

mod support;

use std::collections::BTreeSet;

use paceline_comm::{CallOptions, Frame, Reduction, Trace, TraceEvent, Traced};
use support::{LINKS, Links, on_all_ranks};

/// Everything traced on each rank of a world while it all-reduces so many elements with a tag, as the sixth call.
fn traced(links: Links, ranks: usize, elements: usize, capacity: usize) -> Vec<Trace> {
    on_all_ranks(links, ranks, move |comm| {
        comm.start_trace(capacity);
        comm.barrier(&CallOptions::default()).unwrap();
        let mut data = vec![1f32; elements];
        let options = CallOptions { tag: 77, ..CallOptions::algorithm("ring") };
        comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
        assert!(data.iter().all(|&sum| sum == ranks as f32));
        comm.barrier(&CallOptions::default()).unwrap();
        comm.end_trace()
    })
}

#[test]
fn what_one_rank_sends_another_receives() {
    const RANKS: usize = 3;
    for links in LINKS {
        for elements in [10, 700_000] {
            let traces = traced(links, RANKS, elements, 1 << 16);
            let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
            for (rank, trace) in traces.iter().enumerate() {
                assert_eq!((trace.dropped, trace.dropped_calls), (0, 0));
                assert!(trace.events.iter().all(|event| event.start <= event.end));
                let calls = trace.events.iter().filter_map(|event| match event.what {
                    Traced::Call { key, bytes, tag: 77, algorithm: "ring", failed: false, .. } => {
                        Some((event, key, bytes))
                    }
                    _ => None,
                });
                let [(call, call_key, bytes)] = calls.collect::<Vec<_>>()[..] else { panic!("one call: {trace:#?}") };
                assert_eq!(bytes, elements * 4);
                let name = |frame: &Frame| (frame.tile, frame.message, frame.offset, frame.bytes);
                for event in &trace.events {
                    match &event.what {
                        Traced::Sent(frame) if frame.key == call_key && ["data", "reference"].contains(&frame.kind) => {
                            assert!(event.start >= call.start);
                            assert!(sent.insert((rank, frame.peer, frame.kind, name(frame))), "{frame:?}");
                        }
                        Traced::Received(frame)
                            if frame.key == call_key && ["data", "reference"].contains(&frame.kind) =>
                        {
                            assert!(event.end <= call.end);
                            assert!(received.insert((frame.peer, rank, frame.kind, name(frame))), "{frame:?}");
                        }
                        _ => {}
                    }
                }
                let combined = trace.events.iter().any(|event| match &event.what {
                    Traced::Received(frame) => frame.combined && frame.key == call_key,
                    Traced::Work { work, key, .. } => *work == "combine" && *key == Some(call_key),
                    _ => false,
                });
                assert!(combined, "{links:?}: nothing was combined on rank {rank}");
            }
            assert!(sent.len() >= 2 * RANKS * (RANKS - 1), "{links:?}: {sent:?}");
            assert_eq!(sent, received, "{links:?}, {elements} elements");
        }
    }
}

/// Whether bytes cross in frames or are read where they lie: what left one rank has reached another, after it left.
#[test]
fn every_byte_of_a_ring_is_transferred_once() {
    const RANKS: usize = 3;
    for links in LINKS {
        for elements in [30, 700_000] {
            let mut crossed = [0, 0];
            for (rank, trace) in traced(links, RANKS, elements, 1 << 16).iter().enumerate() {
                let of_call = |event: &&TraceEvent| matches!(event.what, Traced::Call { tag: 77, .. });
                let call = trace.events.iter().find(of_call).expect("it was called");
                let Traced::Call { key, .. } = call.what else { unreachable!("found above") };
                let transfers: Vec<_> = trace.transfers().into_iter().filter(|one| one.key == key).collect();
                assert!(transfers.iter().all(|one| one.start <= one.end && one.peer != rank));
                transfers.iter().for_each(|one| crossed[usize::from(one.sent)] += one.bytes);
                let ended = transfers.iter().filter(|one| !one.sent).all(|one| one.end <= call.end);
                assert!(ended, "{links:?}, rank {rank}: the call ended before its bytes were here");
            }
            // Each of n ranks sends 2 (n - 1) / n of them.
            assert_eq!(crossed, [(elements * 4 * 2 * (RANKS - 1)) as u64; 2], "{links:?}, {elements} elements");
        }
    }
}

#[test]
fn a_trace_is_bounded_and_ends() {
    let is_call = |event: &&TraceEvent| matches!(event.what, Traced::Call { .. });
    for trace in traced(Links::Tcp, 2, 100_000, 4) {
        // Two barriers and the all-reduce, whose frames were there long before they ended.
        assert_eq!((trace.events.iter().filter(is_call).count(), trace.dropped_calls), (3, 0), "{trace:?}");
        let is_pause = |event: &&TraceEvent| matches!(event.what, Traced::Waiting | Traced::Asleep);
        let pauses = trace.events.iter().filter(is_pause).count();
        assert!(pauses <= 4 && (pauses == 4 || trace.dropped_pauses == 0), "{trace:?}");
        assert_eq!(trace.events.len(), 3 + 4 + pauses);
        assert!(trace.dropped > 0);
    }
    for trace in traced(Links::Tcp, 2, 100_000, 2) {
        assert_eq!((trace.events.iter().filter(is_call).count(), trace.dropped_calls), (2, 1), "{trace:?}");
    }
    on_all_ranks(Links::Memory, 2, |comm| {
        comm.barrier(&CallOptions::default()).unwrap();
        assert!(comm.end_trace().events.is_empty(), "none was asked for");
        comm.start_trace(100);
        comm.barrier(&CallOptions::default()).unwrap();
        let clock = comm.clock();
        let trace = comm.end_trace();
        assert!(!trace.events.is_empty() && trace.events.iter().all(|event| event.start <= clock), "{trace:?}");
        comm.barrier(&CallOptions::default()).unwrap();
        assert!(comm.end_trace().events.is_empty(), "it has ended");
    });
}

#[test]
fn a_rank_that_waits_says_so() {
    let traces = on_all_ranks(Links::Tcp, 2, |comm| {
        comm.start_trace(1 << 16);
        // Late by so much after the other has said that it is about to call, however late that is.
        if comm.rank() == 0 {
            comm.receive(&mut [0u8], 1, 0, &CallOptions::default()).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(1));
        } else {
            comm.send(&[0u8], 0, 0, &CallOptions::default()).unwrap();
        }
        comm.all_reduce(&mut [1f32], Reduction::Sum, &CallOptions::default()).unwrap();
        comm.end_trace()
    });
    let longest = |wanted: &Traced| {
        let lengths =
            traces[1].events.iter().filter(|event| event.what == *wanted).map(|event| event.end - event.start);
        lengths.max().unwrap_or_default()
    };
    assert!(longest(&Traced::Waiting).as_millis() >= 20, "{:?}", traces[1]);
    assert!(longest(&Traced::Asleep).as_millis() >= 10, "{:?}", traces[1]);
}
