//! How a world has ended, from how its ranks did. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::team::RankEnd;
use crate::supervisor::Ending;

/// What became of a world.
#[derive(Debug, PartialEq, Eq)]
pub enum WorldEnd {
    /// Every rank ended well; what rank 0 wrote to its standard output.
    Done(String),
    /// A rank did not: which and why.
    Failed(String),
    /// It took too long, and was ended: how long, and which ranks had not ended.
    TimedOut(String),
    /// We were told to stop.
    Interrupted(Signal),
}

/// How long survivors of a failed rank may take to end by themselves: they notice within 2 s, and say what they know.
const SURVIVORS_GRACE: Duration = Duration::from_millis(2500);

/// Hears how ranks end, and decides when the world has, and how.
pub struct Judge {
    workers: usize,
    left: BTreeSet<usize>,
    output: String,
    /// The rank that is the reason why others failed.
    reason: Option<RankEnd>,
    limit: Duration,
    deadline: Instant,
}

impl Judge {
    /// Of a world of so many ranks, of which the first `workers` are workers and the others servers. It ends after `limit`.
    pub fn new(ranks: usize, workers: usize, limit: Duration, now: Instant) -> Judge {
        let (left, output) = ((0..ranks).collect(), String::new());
        Judge { workers, left, output, reason: None, limit, deadline: now + limit }
    }

    /// A rank has ended.
    pub fn hear(&mut self, end: RankEnd, now: Instant) {
        if !self.left.remove(&end.rank) {
            return;
        }
        if end.ending.is_success() {
            if end.rank == 0 {
                self.output = end.words;
            }
            return;
        }
        // A rank that was killed is the reason why others failed, though they may have ended before it was seen.
        let killed = |end: &RankEnd| matches!(end.ending, Ending::Signal(_));
        if self.reason.as_ref().is_none_or(|first| !killed(first) && killed(&end)) {
            self.deadline = self.deadline.min(now + SURVIVORS_GRACE);
            self.reason = Some(end);
        }
    }

    /// When it has ended, whatever happens.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How it has ended, if it has.
    pub fn verdict(&mut self, now: Instant) -> Option<WorldEnd> {
        match &self.reason {
            None if self.left.is_empty() => Some(WorldEnd::Done(std::mem::take(&mut self.output))),
            Some(end) if self.left.is_empty() || now >= self.deadline => Some(WorldEnd::Failed(self.explain(end))),
            None if now >= self.deadline => {
                let left: Vec<String> = self.left.iter().map(|&rank| self.name(rank)).collect();
                let limit = self.limit.as_secs_f64();
                Some(WorldEnd::TimedOut(format!("not done after {limit:.0} s, ended: {}", left.join(", "))))
            }
            _ => None,
        }
    }

    fn name(&self, rank: usize) -> String {
        match rank.checked_sub(self.workers) {
            None => format!("rank {rank}"),
            Some(server) => format!("rank {rank}, server {server}"),
        }
    }

    /// Which rank ended how, and what it said last: the error that it reported, without the words for its user.
    fn explain(&self, end: &RankEnd) -> String {
        let what = format!("{} (pid {} on {}) {}", self.name(end.rank), end.pid, end.host, end.ending);
        let lines: Vec<&str> = end.words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let begin = lines.iter().rposition(|line| line.starts_with("error:")).unwrap_or(lines.len().saturating_sub(3));
        let words: Vec<&str> = lines[begin..].iter().take(4).map(|line| line.trim_start_matches("error: ")).collect();
        if words.is_empty() { what } else { format!("{what}: {}", words.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);

    fn end(rank: usize, ending: Ending, words: &str) -> RankEnd {
        RankEnd { rank, pid: 7, host: "node1".to_owned(), ending, words: words.to_owned() }
    }

    #[test]
    fn rank_0_speaks_when_all_have_ended_well() {
        let now = Instant::now();
        let mut judge = Judge::new(2, 2, LIMIT, now);
        judge.hear(end(0, Ending::Exit(0), "the result"), now);
        assert_eq!((judge.verdict(now), judge.deadline()), (None, now + LIMIT));
        judge.hear(end(1, Ending::Exit(0), ""), now);
        assert_eq!(judge.verdict(now), Some(WorldEnd::Done("the result".to_owned())));
    }

    #[test]
    fn the_killed_rank_is_the_reason_and_the_others_have_a_moment() {
        let now = Instant::now();
        let mut judge = Judge::new(4, 3, LIMIT, now);
        judge.hear(end(1, Ending::Exit(1), "error: rank 3 was lost\n  cause: it left"), now);
        assert_eq!(judge.verdict(now), None);
        judge.hear(end(3, Ending::Signal(9), ""), now);
        judge.hear(end(0, Ending::Exit(1), "error: rank 3 was lost"), now);
        let later = now + SURVIVORS_GRACE;
        assert_eq!((judge.deadline(), judge.verdict(now)), (later, None));
        let killed = "rank 3, server 0 (pid 7 on node1) was killed by SIGKILL".to_owned();
        assert_eq!(judge.verdict(later), Some(WorldEnd::Failed(killed)));
    }

    #[test]
    fn a_failure_is_told_in_the_words_of_the_rank() {
        let now = Instant::now();
        let mut judge = Judge::new(1, 1, LIMIT, now);
        judge.hear(end(0, Ending::Exit(1), "noise\nerror: no room\n  cause: it is full\n"), now);
        let told = "rank 0 (pid 7 on node1) ended with exit status 1: no room; cause: it is full".to_owned();
        assert_eq!(judge.verdict(now), Some(WorldEnd::Failed(told)));
    }

    #[test]
    fn a_world_that_hangs_is_ended() {
        let now = Instant::now();
        let mut judge = Judge::new(3, 2, LIMIT, now);
        judge.hear(end(0, Ending::Exit(0), ""), now);
        let told = "not done after 100 s, ended: rank 1, rank 2, server 0".to_owned();
        assert_eq!(judge.verdict(now + LIMIT), Some(WorldEnd::TimedOut(told)));
    }
}
