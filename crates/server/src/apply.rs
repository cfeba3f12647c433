//! What a shard does with the sum of the gradients when it has the parameters: the optimiser, as the server sees it.

use std::ops::Range;

use paceline_plan::{OperationNumber, Plan};

/// Which partition is updated, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The partition's number in the plan. A shard sees only its own.
    pub operation: OperationNumber,
    /// The partition's elements of the arena.
    pub elements: Range<usize>,
    /// The iteration, from 0.
    pub iteration: u64,
}

/// An optimiser on a shard. It keeps its state (momenta) itself, by partition.
///
/// Of one partition the updates come in the order of the iterations; of different partitions in any order.
pub trait Apply: Send {
    /// Makes new parameters of the sum of all workers' contributions and the old parameters; all three have one length.
    fn apply(&mut self, update: &Update, gradient: &[f32], parameters: &mut [f32]);
}

/// Makes the optimiser that an assignment asks for. The shards know nothing of optimisers: workers and whoever starts the
/// shards agree about what the bytes mean.
pub trait Optimizers: Send + Sync {
    /// The optimiser for the partitions that `plan` gives to `shard`. `specification` comes from rank 0
    /// ([`crate::Mode::Apply`]) and may be anything.
    ///
    /// # Errors
    /// What is wrong with the specification, as the predicate of a sentence about it.
    fn make(&self, specification: &[u8], plan: &Plan, shard: usize) -> Result<Box<dyn Apply>, String>;
}

impl<F> Optimizers for F
where
    F: Fn(&[u8], &Plan, usize) -> Result<Box<dyn Apply>, String> + Send + Sync,
{
    fn make(&self, specification: &[u8], plan: &Plan, shard: usize) -> Result<Box<dyn Apply>, String> {
        self(specification, plan, shard)
    }
}
