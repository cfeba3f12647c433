//! What goes wrong ends with an error that says who, where, what, and what next; and it ends soon.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Failure, Reduction};
use support::{LINKS, Links, on_all_ranks};

/// What nothing here takes that ends as it should, however busy the machine is; and far less than the deadline of calls that
/// name none.
const SOON: Duration = Duration::from_secs(40);

/// Holds a rank that starts nothing until so many others have ended, however slow the machine is.
fn others_end(ended: &AtomicUsize, count: usize) {
    let patience = Instant::now() + 2 * SOON;
    while ended.load(Ordering::SeqCst) < count && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn different_lengths_are_told_to_both_sides() {
    for links in LINKS {
        let errors = on_all_ranks(links, 2, |comm| {
            let mut data = vec![1f32; 100 + comm.rank()];
            comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::default()).unwrap_err().to_string()
        });
        assert!(
            errors.iter().any(|error| error.contains("100 f32 elements") && error.contains("101 f32 elements")),
            "{links:?}: {errors:?}"
        );
        for (rank, error) in errors.iter().enumerate() {
            assert!(error.contains(&format!("rank {rank} on ")) && error.contains("all-reduce"), "{error}");
        }
    }
}

#[test]
fn different_collectives_types_and_operations_are_told() {
    type Call = fn(&paceline_comm::Communicator) -> Result<(), CommError>;
    let calls: [(Call, Call, &str); 4] = [
        (
            // The algorithm that a call names is the one that runs.
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Sum, &CallOptions::algorithm("ring")),
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Sum, &CallOptions::algorithm("direct")),
            "algorithm",
        ),
        (
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Sum, &CallOptions::default()),
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Max, &CallOptions::default()),
            "max",
        ),
        (
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Sum, &CallOptions::default()),
            |comm| comm.all_reduce(&mut [0i32; 8], Reduction::Sum, &CallOptions::default()),
            "i32",
        ),
        (
            |comm| comm.all_reduce(&mut [0f32; 8], Reduction::Sum, &CallOptions::default()),
            |comm| comm.broadcast(&mut [0f32; 8], 0, &CallOptions::default()),
            "broadcast",
        ),
    ];
    for links in [Links::Memory, Links::Tcp] {
        for (zero, one, word) in calls {
            let errors = on_all_ranks(links, 2, move |comm| {
                let call = if comm.rank() == 0 { zero } else { one };
                // A broadcast's root is content with having sent.
                let outcome = call(&comm);
                comm.barrier(&CallOptions::default()).and(outcome).unwrap_err().to_string()
            });
            let told = |error: &String| error.contains(word) && error.contains("make all ranks call the same");
            assert!(errors.iter().any(|error| told(&error.to_lowercase())), "{word}: {errors:?}");
        }
    }
}

#[test]
fn a_rank_that_never_starts_an_operation_is_named_at_the_deadline() {
    for links in LINKS {
        let ended = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let errors = on_all_ranks(links, 3, move |comm| {
            let options = CallOptions { timeout: Some(Duration::from_millis(200)), ..CallOptions::default() };
            if comm.rank() == 1 {
                others_end(&ended, 2);
                return None;
            }
            let error = comm.all_reduce(&mut [1f32; 1000], Reduction::Sum, &options).unwrap_err();
            ended.fetch_add(1, Ordering::SeqCst);
            Some(error)
        });
        assert!(started.elapsed() < SOON, "{links:?}: {:?}", started.elapsed());
        let texts: Vec<String> = errors.iter().flatten().map(ToString::to_string).collect();
        assert!(texts.iter().any(|text| text.contains("rank 1 (which has not started it)")), "{links:?} {texts:?}");
    }
}

#[test]
fn a_deadline_of_one_rank_ends_the_operations_of_its_patient_peers() {
    for links in LINKS {
        let ended = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let errors = on_all_ranks(links, 3, move |comm| {
            if comm.rank() == 1 {
                others_end(&ended, 2);
                return None;
            }
            let timeout = Some(if comm.rank() == 0 { Duration::from_millis(200) } else { 3 * SOON });
            let options = CallOptions { timeout, ..CallOptions::default() };
            let error = comm.all_reduce(&mut [1f32; 1000], Reduction::Sum, &options).unwrap_err().to_string();
            ended.fetch_add(1, Ordering::SeqCst);
            Some(error)
        });
        assert!(started.elapsed() < SOON, "{links:?}: {:?}", started.elapsed());
        let told = errors[2].as_deref().unwrap_or_default();
        assert!(told.contains("did not finish in time"), "{links:?}: {told}");
    }
}

#[test]
fn a_lost_peer_ends_the_operations_of_everyone() {
    for links in LINKS {
        let started = Instant::now();
        let errors = on_all_ranks(links, 4, |comm| {
            let options = CallOptions::default();
            for round in 0.. {
                if comm.rank() == 3 && round == 5 {
                    comm.abort("as if killed");
                }
                if let Err(error) = comm.all_reduce(&mut vec![1f32; 50_000], Reduction::Sum, &options) {
                    let CommError::Failed { culprit, .. } = &error else { panic!("{error}") };
                    assert_eq!(
                        culprit.as_ref().map(|culprit| culprit.rank),
                        (comm.rank() != 3).then_some(3),
                        "{error}"
                    );
                    // Poisoned: nothing goes on until it is formed again.
                    assert!(comm.barrier(&options).is_err());
                    return error.to_string();
                }
            }
            String::new()
        });
        assert!(started.elapsed() < SOON, "{links:?}: {:?}", started.elapsed());
        for error in &errors[..3] {
            assert!(error.contains("all-reduce") && error.contains("rank 3 on "), "{error}");
        }
    }
}

#[test]
fn leaving_early_is_told_from_dying() {
    for links in LINKS {
        let errors = on_all_ranks(links, 2, |comm| {
            if comm.rank() == 1 {
                return None; // Drops the communicator: a goodbye.
            }
            Some(comm.all_reduce(&mut [1f32; 10], Reduction::Sum, &CallOptions::default()).unwrap_err())
        });
        let Some(CommError::Failed { failure, .. }) = &errors[0] else { panic!("{links:?}: {:?}", errors[0]) };
        assert!(matches!(**failure, Failure::PeerLeft { rank: 1 }), "{links:?}: {failure}");
    }
}

#[test]
fn the_longest_timeout_is_no_mistake() {
    on_all_ranks(Links::Memory, 2, |comm| {
        let options = CallOptions { timeout: Some(Duration::MAX), ..CallOptions::default() };
        comm.barrier(&options).unwrap();
        let pending = comm.start_all_reduce_copy(&[1f32; 10], Reduction::Sum, &options).unwrap();
        pending.wait_timeout(Duration::MAX).unwrap();
        assert_eq!(pending.wait().unwrap()[..], [2.0; 10]);
    });
}

#[test]
fn wrong_arguments_send_nothing() {
    on_all_ranks(Links::Memory, 2, |comm| {
        let options = CallOptions::default();
        let usage = |error: CommError| matches!(error, CommError::Usage { .. });
        assert!(usage(comm.all_gather(&[1f32; 3], &mut [0f32; 5], &options).unwrap_err()));
        assert!(usage(comm.broadcast(&mut [1f32; 3], 2, &options).unwrap_err()));
        assert!(usage(comm.push_pull(&mut [1f32; 3], 2, Reduction::Sum, &options).unwrap_err()));
        assert!(usage(comm.push(&[1f32; 3], &mut [0f32; 3], 0, Reduction::Sum, &options).unwrap_err()));
        let endless = comm.alloc::<f64>(usize::MAX / 4).unwrap_err();
        assert!(matches!(endless, CommError::Memory { .. }), "{endless}");
        assert!(usage(comm.send(&[1f32; 3], comm.rank(), 0, &options).unwrap_err()));
        assert!(usage(comm.all_to_all(&[1f32; 3], &mut [0f32; 3], &options).unwrap_err()));
        let unknown = comm.all_reduce(&mut [1f32], Reduction::Sum, &CallOptions::algorithm("rign")).unwrap_err();
        assert!(unknown.to_string().contains("`rign`") && unknown.to_string().contains("ring"));
        if comm.rank() == 0 {
            // Only here: a call that is refused takes no number.
            let rign = CallOptions::algorithm("rign");
            assert!(comm.all_reduce(&mut [1f32], Reduction::Sum, &rign).is_err());
            assert!(comm.send(&[1f32], 1, 0, &rign).is_err());
            // Twice under one name.
            let named = CallOptions { operation: Some(1), ..CallOptions::default() };
            let pending = comm.start_all_reduce_copy(&[1f32], Reduction::Sum, &named).unwrap();
            let twice = comm.start_all_reduce_copy(&[1f32], Reduction::Sum, &named).unwrap_err();
            assert!(usage(twice), "nothing has failed");
            comm.send(&[1f32], 1, 0, &options).unwrap();
            assert_eq!(pending.wait().unwrap()[..], [2.0]);
        } else {
            comm.receive(&mut [0f32], 0, 0, &options).unwrap();
            let named = CallOptions { operation: Some(1), ..CallOptions::default() };
            comm.all_reduce(&mut [1f32], Reduction::Sum, &named).unwrap();
        }
        let mut data = [1f32];
        comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
        assert_eq!(data, [2.0]);
    });
}
