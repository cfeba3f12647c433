//! The ranks of a world that are processes of this host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::supervisor::{self, Ending, Job, Meeting, RankProcess, Seat, end_descendants};

/// Of a rank's last words, so much is kept.
const WORDS_BYTES_MAX: usize = 64 << 10;
/// Of what rank 0 writes; a timeline is the largest part of it.
const RESULT_BYTES_MAX: usize = 64 << 20;
/// A process that a rank left behind may hold its pipes open: once the rank has ended, nobody waits longer than so long
/// without a word, nor, if it goes on talking, longer than so long in all.
const LAST_WORDS_QUIET: Duration = Duration::from_millis(500);
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How a rank of a world has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    /// Which.
    pub rank: usize,
    /// Its process id.
    pub pid: u32,
    /// Where it was.
    pub host: String,
    /// How.
    pub ending: Ending,
    /// What it wrote: to standard output, if it was rank 0 and ended well; to standard error, if it did not.
    pub words: String,
}

/// Ranks, from their start to their end. Dropped, it ends them and all that they have started.
pub struct Team {
    ranks: Vec<RankProcess>,
    /// By rank of `ranks`: standard output and error, until it has ended.
    words: Vec<Option<(Words, Words)>>,
    /// Children of this process that are not of the team.
    spared: Vec<Pid>,
    host: String,
}

impl Team {
    /// Starts ranks on these seats.
    ///
    /// # Errors
    /// One could not be started, in a sentence; those before it have been ended.
    pub fn start(seats: &[Seat], job: &Job, meeting: &Meeting) -> Result<Team, String> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut team = Team { ranks: Vec::new(), words: Vec::new(), spared: supervisor::children(), host };
        for &seat in seats {
            let rank = seat.rank;
            let mut process = RankProcess::start(seat, job, meeting).map_err(|error| {
                let host = &team.host;
                format!(
                    "cannot start rank {rank} on {host}: {error} (`ulimit -u` and `ulimit -n` limit processes and open \
                     files)"
                )
            })?;
            let (output, error) = process.take_pipes();
            let limit = if rank == 0 { RESULT_BYTES_MAX } else { WORDS_BYTES_MAX };
            team.words.push(Some((Words::follow(output, limit), Words::follow(error, WORDS_BYTES_MAX))));
            team.ranks.push(process);
        }
        Ok(team)
    }

    /// The ranks that have ended since the last call.
    ///
    /// # Errors
    /// They cannot be watched.
    pub fn ended(&mut self) -> io::Result<Vec<RankEnd>> {
        let mut ended = Vec::new();
        for (process, words) in self.ranks.iter_mut().zip(&mut self.words) {
            let Some(ending) = process.collect()? else { continue };
            let (rank, pid, host) = (process.seat.rank, process.pid(), self.host.clone());
            let words = match (words.take(), ending.is_success()) {
                (Some((output, _)), true) if rank == 0 => output.take(),
                (Some((_, error)), false) => error.take(),
                _ => String::new(),
            };
            ended.push(RankEnd { rank, pid, host, ending, words });
        }
        Ok(ended)
    }

    /// Has every rank ended?
    pub fn is_done(&self) -> bool {
        self.ranks.iter().all(|process| process.ending.is_some())
    }

    /// The processes, to wait for.
    pub fn processes(&self) -> &[RankProcess] {
        &self.ranks
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Dropping a rank ends it; what it has started is found as our child.
        self.ranks.clear();
        end_descendants(&self.spared);
    }
}

/// What comes out of a pipe, piece by piece up to a limit; of more, the end is lost but the pipe never blocks its
/// writer.
struct Words(Receiver<Vec<u8>>);

/// As much as a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

impl Words {
    fn follow(pipe: Option<OwnedFd>, limit: usize) -> Words {
        let (sender, receiver) = channel();
        if let Some(pipe) = pipe {
            // If there is no thread to read it, the rank's words are lost, and it is told so by the closed pipe.
            let _ = thread::Builder::new().name("words of a rank".to_owned()).spawn(move || {
                let (mut pipe, mut piece, mut left) = (File::from(pipe), vec![0; PIECE_BYTES], limit);
                loop {
                    match pipe.read(&mut piece) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Ok(0) | Err(_) => break,
                        Ok(read) => {
                            let kept = read.min(left);
                            left -= kept;
                            if kept > 0 {
                                // Nobody may want to hear it any more; the pipe is emptied all the same.
                                let _ = sender.send(piece[..kept].to_vec());
                            }
                        }
                    }
                }
            });
        }
        Words(receiver)
    }

    /// All of it, once whoever wrote it has ended; what has come until then, if somebody else holds the pipe open.
    fn take(self) -> String {
        let (until, mut words) = (Instant::now() + LAST_WORDS, Vec::new());
        let patience = || LAST_WORDS_QUIET.min(until.saturating_duration_since(Instant::now()));
        while let Ok(piece) = self.0.recv_timeout(patience()) {
            words.extend(piece);
        }
        String::from_utf8_lossy(&words).into_owned()
    }
}
