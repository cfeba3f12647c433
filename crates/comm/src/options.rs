use std::time::Duration;

use paceline_collective::Algorithm;
use paceline_collective::registry::{UnknownAlgorithm, find};
use paceline_engine::Tuning;
use paceline_plan::{CollectiveKind, Protocol};

/// More threads than this share no piece of work.
pub const REDUCING_THREADS_MAX: usize = 64;

/// What a caller may say about one call. The default is right for most.
///
/// Ranks must agree on `algorithm`, `chunk_bytes`, `operation`, `part` and `plan_version`: they say which call it is,
/// and a rank that differs gets an error. Everything else is each rank's own business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The algorithm by name (`ring`, `direct`, …). None: the one that the cost model finds cheapest.
    pub algorithm: Option<String>,
    /// How messages travel; see [`Protocol`]. If a receiver has chosen otherwise than its sender, a message may wait
    /// 2 ms for a grant that the receiver did not think of; the result is the same.
    pub protocol: Protocol,
    /// Over how many parallel streams of a TCP link large frames are spread ([`crate::Config::tcp_streams`]; where there
    /// are several, the first is for small frames). With which it begins depends on the operation's number, so that calls
    /// of few lanes that run at the same time take different ones. At least 1. None: all.
    pub lanes: Option<u16>,
    /// Threads that share a large local combination, this one included; at least 1 and at most
    /// [`REDUCING_THREADS_MAX`]. None: 1. They are started once, by the first call that wants them, and sleep between its
    /// pieces. The bits of the result do not depend on it. Data that is combined while it arrives from a socket or a ring
    /// is combined by the one thread that takes it in, so over TCP this changes nothing; nor does it for what is copied
    /// out of a peer's private memory first. Each thread gets at least 128 KiB of a tile; shorter tiles have fewer.
    pub reducing_threads: Option<u16>,
    /// The bytes of a block that form one tile (pipelining): the call is cut into so large chunks. At least 1. None:
    /// the cost model's choice.
    pub chunk_bytes: Option<usize>,
    /// Lower goes first on the links. 0 is the most urgent and the default.
    pub priority: u32,
    /// When to give up: the deadline is so long after the start. None: the communicator's default.
    pub timeout: Option<Duration>,
    /// The operation's id, for callers that start operations in different orders on different ranks. None: the
    /// communicator's next sequence number. An id must not be used again.
    pub operation: Option<u64>,
    /// A piece of the operation.
    pub part: u32,
    /// The version of the training plan under which it is issued.
    pub plan_version: u32,
    /// A number of the caller's, for [`crate::Record`]s only.
    pub tag: u64,
    /// Why the call is made, for [`crate::Record`]s only.
    pub origin: Origin,
}

/// What a call is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The caller did not say.
    #[default]
    Unspecified,
    /// Several tensors, fused: all that an iteration exchanges, after backward.
    Fused,
    /// Several tensors, fused, in one of several operations, which set off while backward still runs.
    FusedPipelined,
    /// A partition of a tensor, one of several in a pipeline.
    Pipelined,
    /// One layer's tensor, as it is, in one of several operations.
    Layer,
    /// One tensor, which is all that an iteration exchanges.
    Lone,
    /// A kind of parallelism, which needs the result to go on.
    Parallelism(Parallelism),
}

/// How a model is spread over workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parallelism {
    /// Each worker has the model and a part of the batch.
    Data,
    /// Each worker has a part of every layer.
    Tensor,
    /// Each worker has some of the layers.
    Pipeline,
    /// Each worker has some of the experts.
    Expert,
    /// Each worker has a part of the sequence.
    Sequence,
}

impl CallOptions {
    /// Options with this algorithm.
    pub fn algorithm(name: impl Into<String>) -> CallOptions {
        CallOptions { algorithm: Some(name.into()), ..CallOptions::default() }
    }

    /// Checks the options for a collective. The text says what is wrong.
    pub(crate) fn settings(&self, kind: CollectiveKind) -> Result<Settings, Refused> {
        let algorithm = match self.algorithm.as_deref() {
            None | Some("auto") => None,
            Some(name) => Some(find(kind, name).map_err(Refused::Algorithm)?),
        };
        let refuse = |what: String| Err(Refused::Usage(what));
        if self.chunk_bytes == Some(0) {
            return refuse("chunk_bytes is 0; a chunk has at least 1 byte".into());
        }
        if self.lanes == Some(0) {
            return refuse("lanes is 0; a call uses at least 1".into());
        }
        let threads = self.reducing_threads.unwrap_or(1);
        if threads == 0 || usize::from(threads) > REDUCING_THREADS_MAX {
            return refuse(format!("reducing_threads is {threads}; 1 to {REDUCING_THREADS_MAX} can share the work"));
        }
        let tuning = Tuning { protocol: self.protocol, lanes: self.lanes.unwrap_or(0), reducing_threads: threads };
        Ok(Settings {
            algorithm,
            tuning,
            chunk_bytes: self.chunk_bytes,
            priority: self.priority,
            timeout: self.timeout,
            operation: self.operation,
            part: self.part,
            plan_version: self.plan_version,
            tag: self.tag,
            origin: self.origin,
        })
    }
}

impl Origin {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Unspecified => "unspecified",
            Origin::Fused => "fused",
            Origin::FusedPipelined => "fused-pipelined",
            Origin::Pipelined => "pipelined",
            Origin::Layer => "layer",
            Origin::Lone => "lone",
            Origin::Parallelism(Parallelism::Data) => "data-parallelism",
            Origin::Parallelism(Parallelism::Tensor) => "tensor-parallelism",
            Origin::Parallelism(Parallelism::Pipeline) => "pipeline-parallelism",
            Origin::Parallelism(Parallelism::Expert) => "expert-parallelism",
            Origin::Parallelism(Parallelism::Sequence) => "sequence-parallelism",
        }
    }

    /// Is it one of several operations of an iteration, which are under way while others are computed or sent?
    pub const fn is_pipelined(self) -> bool {
        matches!(self, Origin::FusedPipelined | Origin::Pipelined | Origin::Layer)
    }

    /// Does it carry several tensors?
    pub const fn is_fused(self) -> bool {
        matches!(self, Origin::Fused | Origin::FusedPipelined)
    }
}

/// Options that have been checked, without what they borrow.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub algorithm: Option<&'static dyn Algorithm>,
    pub tuning: Tuning,
    pub chunk_bytes: Option<usize>,
    pub priority: u32,
    pub timeout: Option<Duration>,
    pub operation: Option<u64>,
    pub part: u32,
    pub plan_version: u32,
    pub tag: u64,
    pub origin: Origin,
}

/// Why options are no good.
pub(crate) enum Refused {
    Algorithm(UnknownAlgorithm),
    Usage(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_may_be_pipelined_and_fused_and_neither() {
        let both = |origin: Origin| (origin.name(), origin.is_pipelined(), origin.is_fused());
        let gradients = [Origin::Lone, Origin::Fused, Origin::Layer, Origin::Pipelined, Origin::FusedPipelined];
        let expected = [
            ("lone", false, false),
            ("fused", false, true),
            ("layer", true, false),
            ("pipelined", true, false),
            ("fused-pipelined", true, true),
        ];
        assert_eq!(gradients.map(both), expected);
        assert_eq!(both(Origin::default()), ("unspecified", false, false));
    }
}
