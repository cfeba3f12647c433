//! What the shards are to do, and how they learn it.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Communicator};
use paceline_engine::shard::Phase;
use paceline_plan::{OperationNumber, Plan, PlanError};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::roles::Roles;

/// What the shards are to do: some iterations of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Every partition has a shard. If there are more shards than the plan has, the first ones serve, and the others
    /// wait for the next assignment.
    pub plan: Plan,
    /// Which iterations. Under one plan's version they go on where the assignment before ended: operations are known by
    /// version and iteration, and no name may come twice.
    pub iterations: Range<u64>,
    /// What becomes of the sum.
    pub mode: Mode,
}

/// What the shards do with the sum of the gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Workers get it.
    Aggregate,
    /// It goes into the parameters, which the shards have: workers get those.
    Apply {
        /// Which optimiser, for [`crate::Optimizers::make`].
        optimizer: Vec<u8>,
    },
    /// Workers get it, and what they push is compressed ([`crate::ServeOptions::compression`]).
    Decompress,
}

/// Why an assignment cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssignmentError {
    /// More bytes than any plan has.
    #[error(
        "it has {bytes} bytes, more than the {ASSIGNMENT_BYTES_MAX} of the longest plan; plan with fewer partitions"
    )]
    TooLong {
        /// As rank 0 says.
        bytes: i64,
    },
    /// Another version of Paceline.
    #[error("it cannot be read ({0}); run the same version of Paceline on all ranks")]
    Unreadable(String),
    /// A plan for more shards than there are, or for none.
    #[error("its plan is for {plan} shards, but there are {shards}; plan for one at least, and no more than there are")]
    Shards {
        /// The plan's.
        plan: usize,
        /// Those of the world.
        shards: usize,
    },
    /// A plan that nobody could carry out.
    #[error("its plan makes no sense: {0}")]
    Plan(#[from] PlanError),
    /// More iterations than can be numbered.
    #[error("its iterations {0:?} are more than can be numbered")]
    Iterations(Range<u64>),
    /// Names would come twice.
    #[error(
        "it begins with iteration {begins}, but plan version {version} has been carried out up to iteration {done}; \
         go on there, or give a new plan a new version"
    )]
    Again {
        /// The plan's version.
        version: u32,
        /// The first iteration.
        begins: u64,
        /// The first one that may come.
        done: u64,
    },
    /// One version, two plans.
    #[error("plan version {0} was another plan before; give a new plan a new version")]
    OtherPlan(u32),
    /// The parameters of the iteration before are not there.
    #[error(
        "it begins with iteration {0}, but the shards have no parameters of the one before; begin with iteration 0"
    )]
    NothingToGoOnWith(u64),
    /// Workers disagree.
    #[error("rank 0 has given out another one; let all workers make the same plan")]
    Differs,
    /// The optimiser cannot be made.
    #[error("its optimiser {0}")]
    Optimizer(String),
    /// Nobody knows optimisers here.
    #[error("it has an optimiser, and these shards were started without any; give them to `serve`")]
    NoOptimizers,
    /// Nobody can decompress here.
    #[error("its gradients are compressed, and these shards were started without a compressor; give it to `serve`")]
    NoCompressor,
}

/// No assignment is longer: some millions of partitions.
const ASSIGNMENT_BYTES_MAX: i64 = 64 << 20;

impl Assignment {
    /// The options of an operation, for a worker: with its name, the plan's version and how urgent it is to workers.
    /// Everything else is as in `options`; `algorithm` and `chunk_bytes` must be those of [`crate::ServeOptions`].
    ///
    /// # Panics
    /// If the plan has no such operation, or the assignment no such iteration (in one that was given out the names of all
    /// others are numbers).
    pub fn options(&self, iteration: u64, operation: OperationNumber, options: CallOptions) -> CallOptions {
        assert!(iteration < self.iterations.end, "the assignment ends before iteration {iteration}");
        let bucket = self.plan.partition(operation).map(|(bucket, _)| bucket);
        let bucket = bucket.unwrap_or_else(|| panic!("the plan has no operation {operation}"));
        let id = name(self.plan.operations(), iteration, operation);
        CallOptions {
            operation: Some(id),
            plan_version: self.plan.version,
            priority: self.plan.worker_priority(bucket),
            ..options
        }
    }

    /// Does it make sense for these roles?
    fn check(&self, roles: Roles) -> Result<(), AssignmentError> {
        let (plan, shards) = (&self.plan, roles.shards());
        if !(1..=shards).contains(&plan.shards) {
            return Err(AssignmentError::Shards { plan: plan.shards, shards });
        }
        plan.check()?;
        self.check_iterations()
    }

    fn check_iterations(&self) -> Result<(), AssignmentError> {
        let Range { start, end } = self.iterations;
        let numbered =
            start <= end && i64::try_from(end).is_ok() && end.checked_mul(self.plan.operations() as u64).is_some();
        if numbered { Ok(()) } else { Err(AssignmentError::Iterations(self.iterations.clone())) }
    }
}

/// The number of an operation in an iteration, of a plan that has so many. [`Assignment`]s are checked for what fits.
pub(crate) fn name(operations: usize, iteration: u64, operation: OperationNumber) -> u64 {
    iteration * operations as u64 + operation as u64
}

/// The phases of an operation in one iteration have names of their own.
pub(crate) fn in_phase(options: CallOptions, phase: Phase) -> CallOptions {
    CallOptions { part: phase.part(), ..options }
}

/// Which plans have been carried out, by version: their hash, and the first iteration that may come.
#[derive(Debug, Default)]
pub(crate) struct History(HashMap<u32, (u64, u64)>);

impl History {
    /// Checks an assignment, and remembers it.
    pub fn admit(&mut self, assignment: &Assignment, roles: Roles) -> Result<(), AssignmentError> {
        assignment.check(roles)?;
        let (version, Range { start: begins, end }) = (assignment.plan.version, assignment.iterations.clone());
        let hash = assignment.plan.hash();
        let (known, done) = *self.0.entry(version).or_insert((hash, 0));
        if known != hash {
            return Err(AssignmentError::OtherPlan(version));
        }
        if begins < done {
            return Err(AssignmentError::Again { version, begins, done });
        }
        self.0.insert(version, (hash, end));
        Ok(())
    }
}

/// What rank 0 tells all ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Carry this out.
    Serve(Assignment),
    /// Note what you do from here on.
    StartTrace,
    /// Say what you have noted.
    EndTrace,
    /// It was the last one.
    Stop,
}

/// Rank 0 gives an order out; everybody gets it. `timeout`: for how long it may not come.
pub(crate) fn give_out(
    world: &Communicator,
    order: Option<&Order>,
    timeout: Option<Duration>,
) -> Result<Order, ServerError> {
    let refuse = |why| refused(world, why);
    let unreadable = |error: postcard::Error| refuse(AssignmentError::Unreadable(error.to_string()));
    let mut bytes = match order {
        Some(order) if world.rank() == 0 => postcard::to_stdvec(order).map_err(unreadable)?,
        _ => Vec::new(),
    };
    let options = CallOptions { timeout, ..CallOptions::default() };
    let mut length = [i64::try_from(bytes.len()).unwrap_or(i64::MAX)];
    world.broadcast(&mut length, 0, &options)?;
    let [length] = length;
    if !(0..=ASSIGNMENT_BYTES_MAX).contains(&length) {
        return Err(refuse(AssignmentError::TooLong { bytes: length }));
    }
    bytes.resize(length as usize, 0);
    world.broadcast(&mut bytes, 0, &CallOptions::default())?;
    postcard::from_bytes(&bytes).map_err(unreadable)
}

/// An error of this rank.
pub(crate) fn refused(world: &Communicator, why: AssignmentError) -> ServerError {
    let rank = world.rank();
    ServerError::Assignment { rank, host: world.host(rank).to_owned(), why }
}

/// Everyone learns why this rank cannot go on, unless the communicator has told it.
pub(crate) fn tell_everyone<T>(world: &Communicator, result: Result<T, ServerError>) -> Result<T, ServerError> {
    if let Err(error) = &result
        && !matches!(error, ServerError::Comm(CommError::Failed { .. }))
    {
        world.abort(&error.to_string());
    }
    result
}

#[cfg(test)]
mod tests {
    use paceline_plan::{Bucket, Partition};

    use super::*;

    fn assignment() -> Assignment {
        let bucket = |tensor, elements: Range<usize>, shard| Bucket {
            partitions: vec![Partition { elements: elements.clone(), shard: Some(shard) }],
            ..Bucket::whole(vec![tensor], elements)
        };
        let plan = Plan {
            version: 1,
            strategy: String::new(),
            buckets: vec![bucket(1, 0..10, 1), bucket(0, 10..12, 0)],
            shards: 2,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        };
        Assignment { plan, iterations: 0..5, mode: Mode::Aggregate }
    }

    #[test]
    fn a_senseless_assignment_is_refused_with_the_reason() {
        type Change = fn(&mut Assignment);
        let cases: [(Change, &str); 9] = [
            (|it| it.plan.shards = 3, "its plan is for 3 shards, but there are 2"),
            (|it| it.plan.shards = 0, "its plan is for 0 shards, but there are 2"),
            (|it| it.plan.buckets[1].partitions[0].shard = None, "no shard serves operation 1"),
            (|it| it.plan.buckets[0].partitions[0].shard = Some(2), "no shard serves operation 0"),
            (|it| it.plan.buckets[0].partitions[0].elements = 0..9, "the partitions of bucket 0 do not cover"),
            (|it| it.plan.buckets[1].partitions[0].elements = 11..12, "the partitions of bucket 1 do not cover"),
            (|it| it.plan.buckets[1].elements.end = 13, "the partitions of bucket 1 do not cover"),
            (|it| it.iterations = 5..usize::MAX as u64, "are more than can be numbered"),
            (|it| (it.iterations.start, it.iterations.end) = (5, 4), "are more than can be numbered"),
        ];
        let roles = Roles::new(3, 2).unwrap();
        assert_eq!(History::default().admit(&assignment(), roles), Ok(()));
        for (change, told) in cases {
            let mut assignment = assignment();
            change(&mut assignment);
            let error = History::default().admit(&assignment, roles).unwrap_err().to_string();
            assert!(error.contains(told), "{error}, not {told}");
        }
    }

    #[test]
    fn a_plan_may_leave_shards_out() {
        let two_shards = assignment();
        for shards in [2, 3] {
            assert_eq!(History::default().admit(&two_shards, Roles::new(3, shards).unwrap()), Ok(()), "{shards}");
        }
    }

    #[test]
    fn no_operation_has_the_name_of_an_earlier_one() {
        let (mut history, roles) = (History::default(), Roles::new(3, 2).unwrap());
        let later = |iterations| Assignment { iterations, ..assignment() };
        assert_eq!(history.admit(&assignment(), roles), Ok(()));
        assert_eq!(history.admit(&later(5..7), roles), Ok(()));
        let again = AssignmentError::Again { version: 1, begins: 6, done: 7 };
        assert_eq!(history.admit(&later(6..9), roles), Err(again));
        let mut other = later(7..9);
        other.plan.strategy.push('x');
        assert_eq!(history.admit(&other, roles), Err(AssignmentError::OtherPlan(1)));
        other.plan.version = 2;
        assert_eq!(history.admit(&other, roles), Ok(()));
        let again = AssignmentError::Again { version: 2, begins: 7, done: 9 };
        assert_eq!(history.admit(&other, roles), Err(again));
        let id = |iteration, operation| assignment().options(iteration, operation, CallOptions::default()).operation;
        assert_eq!([id(0, 0), id(0, 1), id(3, 1)], [Some(0), Some(1), Some(7)]);
    }
}
