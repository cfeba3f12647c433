//! What is run instead of the highest predicted throughput, and why.

use std::fmt;

use paceline_strategy::{Call, Strategy};

use super::{Answer, Candidate, Question, archs_of_world};

/// Servers beside the workers must be predicted to save this share: what their processors cost the workers is in no constant.
const WORTH_SERVERS: f64 = 0.03;

/// A plan that leaves what was measured, as one whose operations are larger than those that were timed, must be predicted to save
/// this share beside one that does not: its prediction is off by more.
pub(super) const WORTH_LEAVING: f64 = 0.02;

/// A world in which `strategy=auto` chooses by what is open there.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenWorld {
    /// What `arch=auto` may stand for there, with a server on each host.
    pub archs: Vec<Call>,
    /// Over what its messages travel: `protocol=`.
    pub protocol: String,
}

impl OpenWorld {
    /// None: the question has said what is there.
    pub(super) fn of(question: &Question<'_>) -> Option<OpenWorld> {
        let Question { cluster, workers, space, .. } = *question;
        let is_all_open = space.strategy.arch_is_open() && space.archs.is_empty();
        is_all_open.then(|| OpenWorld {
            archs: archs_of_world(cluster.hosts_of(workers)),
            protocol: space.strategy.protocol.name.clone(),
        })
    }

    /// Could that be chosen there, however its servers want buckets to be cut?
    pub(super) fn has(&self, strategy: &Strategy) -> bool {
        fn chosen(arch: &Call) -> (&str, Option<u64>, Option<&str>, Option<&str>) {
            (&arch.name, arch.number(0), arch.word(0), arch.word(2))
        }
        let is_there = self.archs.iter().any(|arch| chosen(arch) == chosen(&strategy.arch));
        is_there && strategy.protocol.name == self.protocol
    }
}

/// Why the highest predicted throughput is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caution {
    /// No world has it in which something is chosen.
    Elsewhere,
    /// It has servers, and would hardly be faster than all-to-all.
    Servers,
    /// It would hardly be faster than something of which more is known.
    Unmeasured,
}

impl Answer {
    /// What is run where the constants were measured just now: the answer, or [what is run instead](Answer::taken_instead).
    pub fn taken(&self) -> &Candidate {
        self.taken_instead().map_or_else(|| self.best(), |(taken, _)| taken)
    }

    /// The best that a world has in which something is chosen; the best all-to-all, if servers would hardly be faster; or the best of
    /// which more is known, if it would hardly be slower: of the answer's batch. None: the answer itself is run.
    pub fn taken_instead(&self) -> Option<(&Candidate, Vec<Caution>)> {
        let find = |best: &Candidate, saved_at_most: f64, is_wanted: &dyn Fn(&Candidate) -> bool| {
            self.candidates.iter().find(|other| {
                let saved = 1.0 - best.prediction.iteration_s / other.prediction.iteration_s;
                let is_there = other.local_batch == best.local_batch && self.is_in_world(other);
                is_there && saved <= saved_at_most && is_wanted(other)
            })
        };
        let (mut taken, mut cautions) = (self.best(), Vec::new());
        if !self.is_in_world(taken)
            && let Some(there) = find(taken, 1.0, &|_| true)
        {
            taken = there;
            cautions.push(Caution::Elsewhere);
        }
        if taken.strategy.arch.name == "ps"
            && let Some(all_to_all) = find(taken, WORTH_SERVERS, &|other| other.strategy.arch.name == "a2a")
        {
            taken = all_to_all;
            cautions.push(Caution::Servers);
        }
        let is_known_better =
            |other: &Candidate| other.strategy.arch.name == taken.strategy.arch.name && other.doubts() < taken.doubts();
        if let Some(known) = find(taken, WORTH_LEAVING, &is_known_better) {
            taken = known;
            cautions.push(Caution::Unmeasured);
        }
        (!cautions.is_empty()).then_some((taken, cautions))
    }

    /// Could `strategy=auto` take it?
    fn is_in_world(&self, candidate: &Candidate) -> bool {
        self.world.as_ref().is_none_or(|world| world.has(&candidate.strategy))
    }
}

/// As the reason of what is done.
impl fmt::Display for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caution::Elsewhere => write!(
                f,
                "where it chooses, servers are beside the workers, one on each host at most, and the runtime takes algorithms and \
                 the protocol by itself"
            ),
            Caution::Servers => write!(
                f,
                "servers must be predicted to save {:.0} %, as what their processors cost the workers is in no constant",
                100.0 * WORTH_SERVERS
            ),
            Caution::Unmeasured => write!(
                f,
                "a plan beyond what was measured must be predicted to save {:.0} % over one within it, as its prediction is off \
                 by more",
                100.0 * WORTH_LEAVING
            ),
        }
    }
}
