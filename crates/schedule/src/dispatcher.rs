use paceline_plan::{Plan, TensorId};

/// Says when a bucket of a [`Plan`] sets off: as soon as its last tensor is ready. Buckets may complete in any order
/// (ranks without samples announce theirs in another): operations are matched by key.
///
/// Call order: [`Dispatcher::begin`], then [`Dispatcher::ready`] once for each tensor, iteration after iteration.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    /// The bucket of each tensor.
    buckets: Vec<usize>,
    /// Tensors of each bucket.
    sizes: Vec<usize>,
    /// Of each bucket: tensors that are not ready yet.
    missing: Vec<usize>,
    /// Of each tensor: it has been announced.
    announced: Vec<bool>,
}

impl Dispatcher {
    /// A dispatcher for a plan, before the first iteration.
    pub fn new(plan: &Plan) -> Dispatcher {
        let tensors = plan.buckets.iter().map(|bucket| bucket.tensors.len()).sum();
        let mut buckets = vec![0; tensors];
        for (number, bucket) in plan.buckets.iter().enumerate() {
            bucket.tensors.iter().for_each(|&tensor| buckets[tensor] = number);
        }
        let sizes: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.tensors.len()).collect();
        Dispatcher { buckets, missing: sizes.clone(), sizes, announced: vec![false; tensors] }
    }

    /// A new iteration: nothing is ready.
    pub fn begin(&mut self) {
        self.missing.copy_from_slice(&self.sizes);
        self.announced.fill(false);
    }

    /// A tensor's gradient is ready. The bucket that is complete with it, if one is.
    ///
    /// # Panics
    /// If the tensor is not in the plan, or was announced before in this iteration.
    pub fn ready(&mut self, tensor: TensorId) -> Option<usize> {
        assert!(!std::mem::replace(&mut self.announced[tensor], true), "tensor {tensor} was announced twice");
        let bucket = self.buckets[tensor];
        self.missing[bucket] -= 1;
        (self.missing[bucket] == 0).then_some(bucket)
    }
}
