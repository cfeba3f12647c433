//! One world of processes of this host, from its start to its end: a run of a cell. However it ends, the study goes on.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::judge::{Judge, WorldEnd};
use super::team::Team;
use crate::failure::Failure;
use crate::supervisor::{self, Job, Meeting, Output, Seat, Signals};

/// Runs the job, of which the first `workers` ranks are workers; a world that has not ended after `limit` is ended. One
/// that cannot be started has failed. Without `signals` a signal is not caught: it ends us, and so the ranks.
///
/// # Errors
/// The ranks could not be watched.
pub fn run(job: &Job, workers: usize, limit: Duration, mut signals: Option<&mut Signals>) -> Result<WorldEnd, Failure> {
    let meeting = match Meeting::arrange() {
        Ok(meeting) => meeting,
        Err(error) => {
            return Ok(WorldEnd::Failed(format!("cannot listen on 127.0.0.1 for the ranks to meet: {error}")));
        }
    };
    let seat = |rank| Seat { rank, world_size: job.ranks, local_rank: rank, local_size: job.ranks };
    let seats: Vec<Seat> = (0..job.ranks).map(seat).collect();
    let mut team = match Team::start(&seats, job, &meeting) {
        Ok(team) => team,
        Err(why) => return Ok(WorldEnd::Failed(why)),
    };
    let cannot = |error| Failure::failed("cannot watch the ranks; they have been ended").cause(error);
    let mut judge = Judge::new(job.ranks, workers, limit, Instant::now());
    loop {
        team.ended().map_err(cannot)?.into_iter().for_each(|end| judge.hear(end, Instant::now()));
        if let Some(signal) = signals.as_mut().and_then(|signals| signals.next()) {
            return Ok(WorldEnd::Interrupted(signal));
        }
        if let Some(end) = judge.verdict(Instant::now()) {
            return Ok(end);
        }
        let signalled = signals.as_ref().map(|signals| signals.as_fd());
        supervisor::wait(team.processes(), signalled, Some(judge.deadline())).map_err(cannot)?;
    }
}

/// The job of a world: this program as its ranks, with all output to us.
pub fn job(command: Vec<std::ffi::OsString>, ranks: usize, environment: Vec<(String, String)>) -> Job {
    Job { command, ranks, environment, output: Output::Lines { tag: false } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_as(command: &[&str], ranks: usize, limit: Duration) -> WorldEnd {
        let command = command.iter().map(Into::into).collect();
        let mut signals = Signals::catch().expect("signals can be caught");
        run(&job(command, ranks, Vec::new()), ranks, limit, Some(&mut signals)).expect("they are watched")
    }

    fn run_shell(script: &str, ranks: usize, limit: Duration) -> WorldEnd {
        run_as(&["sh", "-c", script], ranks, limit)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn rank_0_speaks_for_a_world_that_ends_well() {
        let end = run_shell("echo rank $PACELINE_RANK of $PACELINE_WORLD_SIZE; echo noise >&2", 3, LONG);
        assert_eq!(end, WorldEnd::Done("rank 0 of 3\n".to_owned()));
    }

    /// A process that a rank has left behind holds its pipe open.
    #[test]
    fn a_result_does_not_wait_for_the_end_of_the_pipe() {
        let started = Instant::now();
        let end = run_shell("setsid sleep 60 & echo a result; sleep 0.2", 1, LONG);
        assert_eq!(end, WorldEnd::Done("a result\n".to_owned()));
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn a_killed_rank_fails_its_world_and_is_named_with_its_words() {
        let script = "if [ $PACELINE_RANK = 1 ]; then printf 'error: no room\\n  cause: it is full\\n' >&2; exit 1; fi; sleep 60";
        let started = Instant::now();
        let WorldEnd::Failed(what) = run_shell(script, 3, LONG) else { panic!("it failed") };
        assert!(
            what.starts_with("rank 1 (pid ") && what.ends_with("ended with exit status 1: no room; cause: it is full"),
            "{what}"
        );
        assert!(started.elapsed() < LONG);
        let WorldEnd::Failed(what) = run_shell("[ $PACELINE_RANK = 2 ] && kill -9 $$; sleep 60", 3, LONG) else {
            panic!("it failed")
        };
        assert!(what.starts_with("rank 2 (pid ") && what.contains("was killed by SIGKILL"), "{what}");
    }

    #[test]
    fn a_world_that_hangs_is_ended_in_time() {
        let end = run_shell("sleep 60", 2, Duration::from_millis(200));
        assert_eq!(end, WorldEnd::TimedOut("not done after 0 s, ended: rank 0, rank 1".to_owned()));
    }

    #[test]
    fn a_world_that_cannot_start_has_failed() {
        let WorldEnd::Failed(what) = run_as(&["/no/such/program"], 2, LONG) else { panic!("it failed") };
        assert!(what.starts_with("cannot start rank 0 on ") && what.contains("No such file"), "{what}");
    }
}
