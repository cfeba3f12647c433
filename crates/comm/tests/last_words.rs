//! Why a rank gives up reaches all others, however much is on its way in both directions and however soon it ends: no
//! closing overtakes the last words. Repeated, because it is a race.

mod support;

use paceline_comm::{CallOptions, CommError, Communicator, Failure, Reduction};
use support::{LINKS, Links, on_all_ranks};

const WORLD: usize = 3;

/// On each transport so many times: each length from each rank, once or four times.
fn repeat(run: impl Fn(Links, usize)) {
    let rounds = if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 48 } else { 12 };
    for links in LINKS {
        (0..rounds).for_each(|round| run(links, round));
    }
}

/// Lengths that go eagerly, by reference, and in many frames over full links.
fn length(round: usize) -> usize {
    [10, 5_000, 200_000, 2_000_000][round % 4]
}

/// Calls until it fails. The communicator is dropped at once, as by a program that ends with the error.
fn until_it_fails(comm: &Communicator, elements: usize, mut before: impl FnMut(usize)) -> Failure {
    let mut data = vec![1f32; elements];
    for round in 0.. {
        before(round);
        let outcome = comm.all_reduce(&mut data, Reduction::Max, &CallOptions::default());
        match outcome {
            Ok(()) => assert!(round < 1000, "nothing fails"),
            Err(CommError::Failed { failure, .. }) => return *failure,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("the loop ends with a failure")
}

#[test]
fn a_mismatch_is_known_to_everyone() {
    repeat(|links, round| {
        let odd = round % WORLD;
        let failures = on_all_ranks(links, WORLD, move |comm| {
            let elements = length(round / WORLD) + usize::from(comm.rank() == odd);
            until_it_fails(&comm, elements, |_| ())
        });
        for (rank, failure) in failures.iter().enumerate() {
            let told = match failure {
                Failure::Mismatch { .. } => true,
                Failure::Aborted { reason, .. } => reason.contains("elements here but"),
                _ => false,
            };
            assert!(told, "{links:?}, round {round}, rank {rank}: {failure}");
        }
    });
}

#[test]
fn an_abort_is_known_to_everyone() {
    repeat(|links, round| {
        let quitter = round % WORLD;
        let failures = on_all_ranks(links, WORLD, move |comm| {
            let abort = |call| {
                if call == 3 && comm.rank() == quitter {
                    comm.abort("it has seen enough");
                }
            };
            until_it_fails(&comm, length(round / WORLD), abort)
        });
        for (rank, failure) in failures.iter().enumerate() {
            assert!(
                failure.to_string().contains("it has seen enough"),
                "{links:?}, round {round}, rank {rank}: {failure}"
            );
        }
    });
}
