//! What changes how all-reduces are done, from one iteration to the next.

use std::collections::VecDeque;

use paceline_comm::CommError;

use super::followed::Followed;
use super::operations::Operations;
use super::tuning::Tuning;
use crate::executed::{Change, ChangedAllReduce};
use crate::tuning::{FollowedOperations, TuningNews};

/// Where changes come from.
#[derive(Default)]
pub(super) enum Changes {
    /// There are none.
    #[default]
    Never,
    /// From an earlier run; iterations count from the first one of the exchange.
    Given(VecDeque<Change>),
    /// From a tuner.
    Tuned(Box<Tuning>),
    /// From a policy that was learned elsewhere.
    Followed(Box<Followed>),
    /// Under this plan servers add up: a tuner waits for another one.
    Idle(Box<Tuning>),
    /// The plan itself is being tuned: a tuner waits for the one that stands in the end.
    Waiting(Box<Tuning>),
}

impl Changes {
    /// All operations of the last iteration have arrived, and none of the next has begun: says how its operations are called.
    /// Returns those all-reduces that add up otherwise than before.
    pub(super) fn before_iteration(&mut self, operations: &Operations) -> Result<Vec<ChangedAllReduce>, CommError> {
        match self {
            Changes::Never | Changes::Idle(_) | Changes::Waiting(_) => Ok(Vec::new()),
            Changes::Given(changes) => {
                let next = operations.lock().iterations() as usize;
                let mut changed = Vec::new();
                while let Some(change) = changes.pop_front_if(|change| change.iteration <= next) {
                    changed.extend(operations.lock().set_all_reduces(change.all_reduces));
                }
                Ok(changed)
            }
            Changes::Tuned(tuning) => {
                let last = operations.lock().iteration();
                let ways = tuning.next_iteration(last)?;
                Ok(operations.lock().set_ways(ways))
            }
            Changes::Followed(followed) => Ok(operations.lock().set_ways(followed.next_iteration())),
        }
    }

    /// What a tuner has found out, or what a policy says, since this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<TuningNews> {
        match self {
            Changes::Tuned(tuning) | Changes::Idle(tuning) | Changes::Waiting(tuning) => tuning.take_news(),
            Changes::Followed(followed) => followed.take_news(),
            Changes::Never | Changes::Given(_) => Vec::new(),
        }
    }

    /// How much of an iteration a policy decides, if one is followed.
    pub(super) fn followed(&self) -> Option<FollowedOperations> {
        match self {
            Changes::Followed(followed) => Some(followed.share()),
            _ => None,
        }
    }

    /// The tuner, if there is one and it has something to do.
    pub(super) fn tuning(&self) -> Option<&Tuning> {
        match self {
            Changes::Tuned(tuning) => Some(tuning),
            _ => None,
        }
    }

    /// The tuner, whether it has something to do under this plan or not: what it has learned stays known.
    pub(super) fn learned(&self) -> Option<&Tuning> {
        match self {
            Changes::Tuned(tuning) | Changes::Idle(tuning) | Changes::Waiting(tuning) => Some(tuning),
            _ => None,
        }
    }

    /// The tuner that has something to do, to be changed.
    pub(super) fn tuning_mut(&mut self) -> Option<&mut Tuning> {
        match self {
            Changes::Tuned(tuning) => Some(tuning),
            _ => None,
        }
    }
}
