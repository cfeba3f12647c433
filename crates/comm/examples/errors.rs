//! What errors say, and how soon they come: of a rank that gives up, and of one that stays away.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use paceline_comm::{CallOptions, Cause, CommError, Communicator, Reduction, StallReport, ThreadsConfig, Watch};

/// Rank 1 gives up; each of the others learns it from the call in which it waits, at once.
fn gives_up(comm: &Communicator) {
    if comm.rank() == 1 {
        return comm.abort("the disk is full");
    }
    let options = CallOptions::default();
    let error = comm.all_reduce(&mut [1f32; 8], Reduction::Sum, &options).expect_err("rank 1 does not come");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    // Who reports, what it was doing, who is to blame, and what to do about it.
    let CommError::Failed { rank, host, operation, culprit: Some(culprit), next_step, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*rank, &host[..]), (comm.rank(), comm.host(comm.rank())));
    assert_eq!((culprit.rank, &culprit.host[..]), (1, comm.host(1)));
    assert!(operation.starts_with("all-reduce") && next_step.contains("Look at the output of rank 1"), "{error}");
    // From now on every call of the communicator says so.
    assert!(comm.barrier(&options).is_err());
}

/// Rank 0 waits for rank 1, which does not call: a report says so soon, and at the deadline an error.
fn waits_in_vain(comm: &Communicator, reports: &Receiver<StallReport>) {
    let options = CallOptions { timeout: Some(Duration::from_secs(1)), ..CallOptions::default() };
    let error = comm.all_reduce(&mut [1f32; 8], Reduction::Sum, &options).expect_err("rank 1 does not come");
    let CommError::Failed { failure, .. } = &error else { panic!("{error}") };
    assert_eq!(failure.cause(), Cause::Deadline, "{error}");
    assert!(error.to_string().contains("rank 1 (which has not started it)"), "{error}");
    let report = reports.try_recv().expect("it came before the deadline");
    assert_eq!(report.not_started, [(1, comm.host(1).to_owned())], "{report}");
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || gives_up(&comm))).collect();
    ranks.into_iter().for_each(|rank| rank.join().expect("no panic"));

    let (log, reports) = channel();
    let on_stall = move |report: &StallReport| log.send(report.clone()).expect("somebody reads");
    // The first report after a tenth of the time for the call; without this, after 10 s of the 300 s that a call has.
    let watch = Watch { stall: Duration::from_millis(100), on_stall: Some(Arc::new(on_stall)), ..Watch::default() };
    let world = Communicator::threads_with(2, &ThreadsConfig { watch, ..ThreadsConfig::default() })?;
    waits_in_vain(&world[0], &reports);
    Ok(())
}
