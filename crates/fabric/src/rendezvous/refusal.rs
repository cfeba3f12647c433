use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Process;
use crate::interfaces::ADMIT_OTHERS;
use crate::text::{Advised, Clauses, Ranks, Seconds, Terms};

/// Why rank 0 forms no world, or none with a rank. Everybody who has reached it is told so in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Rank 0 waited in vain.
    #[error(
        "{} never came within {} (have {}){}; {}",
        Ranks(.missing), Seconds(*.waited), Ranks::numbers(.have), Clauses(.turned_away), self.next_step()
    )]
    Missing {
        /// Who did not come.
        missing: Vec<u32>,
        /// Who did.
        have: Vec<u32>,
        /// How long rank 0 waited.
        waited: Duration,
        /// Who was turned away, and why.
        turned_away: Vec<String>,
    },
    /// Two ranks count differently.
    #[error("rank {rank} ({process}) says the world has {theirs} ranks, rank 0 says {ours}: {}", self.next_step())]
    WorldSize {
        /// Who disagrees with rank 0.
        rank: u32,
        /// Who that is.
        process: Process,
        /// What it says.
        theirs: u32,
        /// What rank 0 says.
        ours: u32,
    },
    /// Two ranks mean different things to come of the meeting.
    #[error("rank {rank} ({process}) comes {}, rank 0 {}: {}", Terms(.theirs), Terms(.ours), self.next_step())]
    Terms {
        /// Who disagrees with rank 0.
        rank: u32,
        /// Who that is.
        process: Process,
        /// What it has said.
        theirs: String,
        /// What rank 0 says.
        ours: String,
    },
    /// Two processes have the same rank.
    #[error("two processes claim rank {rank}: {first} and {second}; {}", self.next_step())]
    Duplicate {
        /// The rank.
        rank: u32,
        /// Who came first.
        first: Process,
        /// Who came second.
        second: Process,
    },
    /// A rank that does not exist.
    #[error("{process} says it is rank {rank}, and the world has {world_size} ranks: {}", self.next_step())]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Who says so.
        process: Process,
        /// How many there are.
        world_size: u32,
    },
    /// A rank ended before all had come.
    #[error("rank {rank} ({process}) left before all ranks had come (have {}); {}", Ranks::numbers(.have), self.next_step())]
    Left {
        /// Its rank.
        rank: u32,
        /// Who it was.
        process: Process,
        /// Who is still there.
        have: Vec<u32>,
    },
    /// A rank of another job has come. The others wait on.
    #[error("rank {rank} ({process}) belongs to job {theirs:?}, rank 0 to job {ours:?}: {}", self.next_step())]
    Job {
        /// Its rank.
        rank: u32,
        /// Who it is.
        process: Process,
        /// Its job.
        theirs: String,
        /// Rank 0's job.
        ours: String,
    },
    /// A rank has come from another host, and nothing proves that it belongs here. The others wait on.
    #[error("rank {rank} ({process}): {}", Advised(.reason, self.next_step()))]
    NotAdmitted {
        /// Its rank.
        rank: u32,
        /// Who it is.
        process: Process,
        /// Why it is not admitted.
        reason: String,
    },
    /// A rank says what no rank of this version says. The others wait on.
    #[error("rank {rank} ({process}) {what}: {}", self.next_step())]
    Senseless {
        /// Its rank.
        rank: u32,
        /// Who it is.
        process: Process,
        /// What it does, as the predicate of a sentence.
        what: String,
    },
    /// Rank 0 itself cannot go on.
    #[error("{}", Advised(.reason, .next_step))]
    RankZero {
        /// Why.
        reason: String,
        /// What to do about it.
        next_step: String,
    },
}

impl Refusal {
    /// Who is to blame, and its host unless that is not known. The first of several ranks that never came.
    pub fn culprit(&self) -> Option<(u32, Option<&str>)> {
        match self {
            Refusal::Missing { missing, .. } => missing.first().map(|&rank| (rank, None)),
            Refusal::Duplicate { rank, second: process, .. }
            | Refusal::WorldSize { rank, process, .. }
            | Refusal::Terms { rank, process, .. }
            | Refusal::NoSuchRank { rank, process, .. }
            | Refusal::Left { rank, process, .. }
            | Refusal::Job { rank, process, .. }
            | Refusal::NotAdmitted { rank, process, .. }
            | Refusal::Senseless { rank, process, .. } => Some((*rank, Some(&*process.host))),
            Refusal::RankZero { .. } => Some((0, None)),
        }
    }

    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> String {
        match self {
            Refusal::Missing { missing, .. } => {
                let slow = if missing.len() == 1 { "it only starts" } else { "they only start" };
                format!("look at the output of {}, and raise PACELINE_TIMEOUT if {slow} slowly", Ranks(missing))
            }
            Refusal::WorldSize { .. } => "start all with the same world size".into(),
            Refusal::Terms { .. } => "start all ranks with the same arguments".into(),
            Refusal::Duplicate { .. } => "start each rank once".into(),
            Refusal::NoSuchRank { world_size, .. } => {
                format!("give it a rank from 0 to {}, or all ranks a larger world", world_size.saturating_sub(1))
            }
            Refusal::Left { rank, .. } => format!("look at the output of rank {rank}, then start the job again"),
            Refusal::Job { .. } => {
                "give all ranks of a job the same PACELINE_JOB, and each job a port of its own".into()
            }
            Refusal::NotAdmitted { .. } => ADMIT_OTHERS.into(),
            Refusal::Senseless { .. } => "run the same Paceline on all ranks".into(),
            Refusal::RankZero { next_step, .. } => next_step.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ends_with_what_to_do_and_survives_the_wire() {
        let process = || Process { host: "b".into(), process: 7 };
        let (rank, reason) = (3, "it is too late".to_owned());
        let all = [
            Refusal::Missing { missing: vec![1], have: vec![0], waited: Duration::from_secs(1), turned_away: vec![] },
            Refusal::WorldSize { rank, process: process(), theirs: 4, ours: 5 },
            Refusal::Terms { rank, process: process(), theirs: String::new(), ours: "otherwise".into() },
            Refusal::Duplicate { rank, first: process(), second: process() },
            Refusal::NoSuchRank { rank, process: process(), world_size: 2 },
            Refusal::Left { rank, process: process(), have: vec![0] },
            Refusal::Job { rank, process: process(), theirs: "one".into(), ours: "other".into() },
            Refusal::NotAdmitted { rank, process: process(), reason: reason.clone() },
            Refusal::Senseless { rank, process: process(), what: "talks in its sleep".into() },
            Refusal::RankZero { reason, next_step: "start earlier".into() },
        ];
        for refusal in all {
            let (text, next_step) = (refusal.to_string(), refusal.next_step());
            assert!(next_step.len() > 10 && text.ends_with(&next_step), "{text}");
            assert_eq!(text.matches(&next_step).count(), 1, "{text}");
            let wire = postcard::to_stdvec(&refusal).expect("a message");
            assert_eq!(postcard::from_bytes::<Refusal>(&wire).expect("the same"), refusal);
        }
    }
}
