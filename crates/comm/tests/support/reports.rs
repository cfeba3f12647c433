//! What the ranks of [`super::processes`] say of a call that fails, and how a test reads it.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Cause, CommError, Communicator, Reduction};

/// In a rank: says how a call has failed, in the type and in words, and sees that the next call fails at once and blames
/// the same rank.
pub fn report(comm: &Communicator, error: &CommError) {
    let CommError::Failed { rank, host, operation, failure, culprit, next_step, .. } = error else { panic!("{error}") };
    assert_eq!((*rank, &host[..]), (comm.rank(), comm.host(comm.rank())));
    assert_eq!(culprit.as_ref().map(|culprit| culprit.rank), failure.culprit());
    if let Some(culprit) = culprit {
        assert_eq!(culprit.host, comm.host(culprit.rank));
        assert!(error.to_string().contains(&culprit.host), "{error}");
    }
    assert!(operation.contains("(operation ") && next_step.len() > 10, "{error}");
    let started = Instant::now();
    let again = comm.all_reduce(&mut [1f32; 10], Reduction::Sum, &CallOptions::default()).unwrap_err();
    // At once, and not at its deadline, which is in 300 s.
    assert!(started.elapsed() < Duration::from_secs(60), "the next call takes {:?}", started.elapsed());
    let CommError::Failed { failure: later, culprit: blamed, .. } = &again else { panic!("{again}") };
    assert_eq!((later, blamed), (failure, culprit), "poisoned by something else");
    let blamed = culprit.as_ref().map_or("nobody".to_owned(), |culprit| format!("rank {}", culprit.rank));
    eprintln!("{:?} of {blamed}: {error}", failure.cause());
}

/// The line of [`report`].
#[track_caller]
pub fn reported(said: &str, cause: Cause) -> &str {
    let line = said.lines().find(|line| line.starts_with(&format!("{cause:?} of ")));
    line.unwrap_or_else(|| panic!("no {cause:?} in: {said}"))
}

/// In a rank: calls until it fails.
pub fn until_it_fails(comm: &Communicator, elements: usize) -> CommError {
    let mut data = vec![1f32; elements];
    loop {
        if let Err(error) = comm.all_reduce(&mut data, Reduction::Max, &CallOptions::default()) {
            return error;
        }
    }
}
