use std::time::Duration;

/// What a caller may say about one call. The default is right for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The algorithm by name (`ring`, `direct`, …). None: the one that the cost model finds cheapest.
    pub algorithm: Option<String>,
    /// Lower goes first on the links. 0 is the most urgent and the default.
    pub priority: u32,
    /// When to give up. None: the communicator's default.
    pub timeout: Option<Duration>,
    /// The operation's id, for callers that start operations in different orders on different ranks. None: the
    /// communicator's next sequence number. An id must not be used again.
    pub operation: Option<u64>,
    /// A piece of the operation.
    pub part: u32,
    /// The version of the training plan under which it is issued.
    pub plan_version: u32,
    /// The bytes of a block that form one tile (pipelining). None: the cost model's choice.
    pub tile_bytes: Option<usize>,
}

impl CallOptions {
    /// Options with this algorithm.
    pub fn algorithm(name: impl Into<String>) -> CallOptions {
        CallOptions { algorithm: Some(name.into()), ..CallOptions::default() }
    }
}
