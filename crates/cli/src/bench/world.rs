//! One world of processes, from its start to its end: a run of a cell. However it ends, the study goes on.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::failure::Failure;
use crate::supervisor::{self, Ending, Job, Meeting, Output, RankProcess, Seat, Signals, end_descendants};

/// What became of a world.
#[derive(Debug, PartialEq, Eq)]
pub enum WorldEnd {
    /// Every rank ended well; what rank 0 wrote to its standard output.
    Done(String),
    /// A rank did not, or the world took too long: which and why.
    Failed(String),
    /// We were told to stop.
    Interrupted(Signal),
}

/// How long survivors of a failed rank may take to end by themselves: they notice within 2 s, and say what they know.
const SURVIVORS_GRACE: Duration = Duration::from_millis(2500);
/// Of a rank's last words, so much is kept.
const WORDS_BYTES_MAX: usize = 64 << 10;
/// Of what rank 0 writes; a timeline is the largest part of it.
const RESULT_BYTES_MAX: usize = 64 << 20;
/// A process that a rank left behind may hold its pipes open: nobody waits for it longer.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs the job; a world that has not ended at `deadline` is ended.
///
/// # Errors
/// The ranks could not be started or watched.
pub fn run(job: &Job, deadline: Duration, signals: &mut Signals) -> Result<WorldEnd, Failure> {
    let not_ours = supervisor::children();
    let meeting = Meeting::arrange()
        .map_err(|error| Failure::failed("cannot listen on 127.0.0.1 for the ranks to meet").cause(error))?;
    let mut ranks = Vec::with_capacity(job.ranks);
    let mut words = Vec::with_capacity(job.ranks);
    for rank in 0..job.ranks {
        let seat = Seat { rank, world_size: job.ranks, local_rank: rank, local_size: job.ranks };
        let mut process = RankProcess::start(seat, job, &meeting).map_err(|error| {
            Failure::failed(format!("cannot start rank {rank} of a world"))
                .cause(error)
                .help("`ulimit -u` and `ulimit -n` limit processes and open files")
        })?;
        let (output, error) = process.take_pipes();
        let limit = if rank == 0 { RESULT_BYTES_MAX } else { WORDS_BYTES_MAX };
        words.push((Words::follow(output, limit), Words::follow(error, WORDS_BYTES_MAX)));
        ranks.push(process);
    }
    let end = watch(&mut ranks, Instant::now() + deadline, deadline, signals);
    // Dropping a rank ends it; what it has started is found as our child.
    drop(ranks);
    end_descendants(&not_ours);
    let mut words = words.into_iter();
    let first = words.next();
    Ok(match end? {
        Watched::Done => WorldEnd::Done(first.map(|(output, _)| output.take()).unwrap_or_default()),
        Watched::Interrupted(signal) => WorldEnd::Interrupted(signal),
        Watched::Failed { rank, what } => {
            let of_rank = |rank: usize| match rank {
                0 => first,
                rank => words.nth(rank - 1),
            };
            let said = rank.and_then(of_rank).map(|(_, error)| error.take()).unwrap_or_default();
            WorldEnd::Failed(with_words(&what, &said))
        }
    })
}

/// How the watch over a world ended.
enum Watched {
    Done,
    Failed { rank: Option<usize>, what: String },
    Interrupted(Signal),
}

/// Waits until every rank has ended, one has failed and its survivors had their time, or we are told to stop.
fn watch(ranks: &mut [RankProcess], end: Instant, limit: Duration, signals: &mut Signals) -> Result<Watched, Failure> {
    let cannot = |error: io::Error| Failure::failed("cannot watch the ranks; they have been ended").cause(error);
    let mut failed: Option<(usize, String, Ending)> = None;
    let mut deadline = end;
    loop {
        for process in &mut *ranks {
            let (rank, pid) = (process.seat.rank, process.pid());
            let Some(ending) = process.collect().map_err(cannot)?.filter(|ending| !ending.is_success()) else {
                continue;
            };
            // A rank that was killed is the reason why others failed, though they may have ended before it was seen.
            let is_reason = failed
                .as_ref()
                .is_none_or(|(.., first)| matches!(first, Ending::Exit(_)) && matches!(ending, Ending::Signal(_)));
            if is_reason {
                failed = Some((rank, format!("rank {rank} (pid {pid}) {ending}"), ending));
                deadline = deadline.min(Instant::now() + SURVIVORS_GRACE);
            }
        }
        let all_ended = ranks.iter().all(|process| process.ending.is_some());
        if let Some(signal) = signals.next() {
            return Ok(Watched::Interrupted(signal));
        }
        match failed {
            None if all_ended => return Ok(Watched::Done),
            Some((rank, what, _)) if all_ended || Instant::now() >= deadline => {
                return Ok(Watched::Failed { rank: Some(rank), what });
            }
            None if Instant::now() >= deadline => {
                let what = format!("not done after {:.0} s, ended: {}", limit.as_secs_f64(), supervisor::left(ranks));
                return Ok(Watched::Failed { rank: None, what });
            }
            _ => {}
        }
        supervisor::wait(ranks, Some(signals.as_fd()), Some(deadline)).map_err(cannot)?;
    }
}

/// What ended, and what it said last: the error that it reported, without the words for its user.
fn with_words(what: &str, said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let begin = lines.iter().rposition(|line| line.starts_with("error:")).unwrap_or(lines.len().saturating_sub(3));
    let words: Vec<&str> = lines[begin..].iter().take(4).map(|line| line.trim_start_matches("error: ")).collect();
    if words.is_empty() { what.to_owned() } else { format!("{what}: {}", words.join("; ")) }
}

/// What comes out of a pipe, up to a limit; of more, the end is lost but the pipe never blocks its writer.
struct Words(Receiver<String>);

impl Words {
    fn follow(pipe: Option<OwnedFd>, limit: usize) -> Words {
        let (sender, receiver) = channel();
        if let Some(pipe) = pipe {
            // If there is no thread to read it, the rank's words are lost, and it is told so by the closed pipe.
            let _ = thread::Builder::new().name("words of a rank".to_owned()).spawn(move || {
                let mut pipe = File::from(pipe);
                let mut kept = Vec::new();
                let _ = pipe.by_ref().take(limit as u64).read_to_end(&mut kept);
                let _ = io::copy(&mut pipe, &mut io::sink());
                let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
            });
        }
        Words(receiver)
    }

    fn take(self) -> String {
        self.0.recv_timeout(LAST_WORDS).unwrap_or_default()
    }
}

/// The job of a world: this program as its ranks, with all output to us.
pub fn job(command: Vec<std::ffi::OsString>, ranks: usize, environment: Vec<(String, String)>) -> Job {
    Job { command, ranks, environment, output: Output::Lines { tag: false } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shell(script: &str, ranks: usize, limit: Duration) -> WorldEnd {
        let command = ["sh", "-c", script].map(Into::into).to_vec();
        let mut signals = Signals::catch().expect("signals can be caught");
        run(&job(command, ranks, Vec::new()), limit, &mut signals).expect("sh is there")
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn rank_0_speaks_for_a_world_that_ends_well() {
        let end = run_shell("echo rank $PACELINE_RANK of $PACELINE_WORLD_SIZE; echo noise >&2", 3, LONG);
        assert_eq!(end, WorldEnd::Done("rank 0 of 3\n".to_owned()));
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
        assert!(started.elapsed() < Duration::from_secs(10));
        let WorldEnd::Failed(what) = run_shell("[ $PACELINE_RANK = 2 ] && kill -9 $$; sleep 60", 3, LONG) else {
            panic!("it failed")
        };
        assert!(what.starts_with("rank 2 (pid ") && what.contains("was killed by SIGKILL"), "{what}");
    }

    #[test]
    fn a_world_that_hangs_is_ended_in_time() {
        let WorldEnd::Failed(what) = run_shell("sleep 60", 2, Duration::from_millis(200)) else { panic!("it failed") };
        assert!(what.starts_with("not done after") && what.contains("rank 1 (pid "), "{what}");
    }
}
