use std::fmt;

use paceline_plan::{CollectiveKind, DataType, OperationKey, Rank, Reduction};

use crate::frame::Signature;

/// What kind of failure it is: every survivor's has the same, whether it has seen it itself or was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// See [`Failure::PeerLost`].
    PeerLost = 1,
    /// See [`Failure::PeerLeft`].
    PeerLeft = 2,
    /// See [`Failure::Mismatch`].
    Mismatch = 3,
    /// See [`Failure::Deadline`].
    Deadline = 4,
    /// See [`Failure::Violation`].
    Violation = 5,
    /// See [`Failure::Cancelled`].
    Cancelled = 6,
}

impl Cause {
    /// The cause with this code.
    pub fn from_code(code: u32) -> Option<Cause> {
        Some(match code {
            1 => Cause::PeerLost,
            2 => Cause::PeerLeft,
            3 => Cause::Mismatch,
            4 => Cause::Deadline,
            5 => Cause::Violation,
            6 => Cause::Cancelled,
            _ => return None,
        })
    }
}

/// Why an operation, and with it the communicator, ended. Ranks are ranks of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended without a goodbye, to this rank or to one that has told it so.
    PeerLost {
        /// Which. It is this one if it was only silent, and was given up for that.
        rank: Rank,
        /// How it was noticed.
        how: String,
        /// Which other rank has noticed it.
        noticed_by: Option<Rank>,
    },
    /// The peer left in good order while the operation still needed it.
    PeerLeft {
        /// Which.
        rank: Rank,
    },
    /// Another rank gave up first, and said why.
    Aborted {
        /// Which.
        rank: Rank,
        /// What befell it.
        cause: Cause,
        /// Whom it blames: itself, if its program has called `abort`.
        culprit: Rank,
        /// In its words.
        reason: String,
    },
    /// The peer made a different call under the same key.
    Mismatch {
        /// Which.
        rank: Rank,
        /// The operation.
        key: OperationKey,
        /// What this rank called.
        ours: Signature,
        /// What the peer called.
        theirs: Signature,
    },
    /// The deadline passed.
    Deadline {
        /// The operation.
        key: OperationKey,
        /// For whom it waited.
        waiting: Vec<Waiting>,
    },
    /// The peer sent what no peer of this version sends.
    Violation {
        /// Which.
        rank: Rank,
        /// What it did, as the predicate of a sentence.
        what: String,
    },
    /// This rank was told to give up.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// A peer that an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its rank in the world.
    pub rank: Rank,
    /// Has it shown a sign of having started the operation?
    pub started: bool,
}

impl Failure {
    /// What kind of failure it is.
    pub fn cause(&self) -> Cause {
        match self {
            Failure::PeerLost { .. } => Cause::PeerLost,
            Failure::PeerLeft { .. } => Cause::PeerLeft,
            Failure::Aborted { cause, .. } => *cause,
            Failure::Mismatch { .. } => Cause::Mismatch,
            Failure::Deadline { .. } => Cause::Deadline,
            Failure::Violation { .. } => Cause::Violation,
            Failure::Cancelled { .. } => Cause::Cancelled,
        }
    }

    /// The rank that is to blame, if it is not this one's own doing. Of those that a deadline has waited for, one that
    /// has not started.
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            Failure::Aborted { culprit, .. } => Some(*culprit),
            Failure::PeerLost { rank, .. }
            | Failure::PeerLeft { rank }
            | Failure::Mismatch { rank, .. }
            | Failure::Violation { rank, .. } => Some(*rank),
            Failure::Deadline { waiting, .. } => {
                let absent = waiting.iter().find(|waiting| !waiting.started);
                absent.or(waiting.first()).map(|waiting| waiting.rank)
            }
            Failure::Cancelled { .. } => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::PeerLost { rank, how, noticed_by: None } => write!(f, "rank {rank} is lost: {how}"),
            Failure::PeerLost { rank, how, noticed_by: Some(by) } => {
                write!(f, "rank {rank} is lost: {how}, says rank {by}")
            }
            Failure::PeerLeft { rank } => write!(f, "rank {rank} has left while it was still needed"),
            Failure::Aborted { rank, reason, .. } => write!(f, "rank {rank} gave up: {reason}"),
            Failure::Mismatch { rank, key, ours, theirs } => {
                write!(f, "{key} is {} here but {} on rank {rank}", describe(ours), describe(theirs))
            }
            Failure::Deadline { key, waiting } => {
                write!(f, "{key} did not finish in time")?;
                for (index, waiting) in waiting.iter().enumerate() {
                    let start = if index == 0 { "; it waits for" } else { "," };
                    let note = if waiting.started { "" } else { " (which has not started it)" };
                    write!(f, "{start} rank {}{note}", waiting.rank)?;
                }
                Ok(())
            }
            Failure::Violation { rank, what } => write!(f, "rank {rank} {what}"),
            Failure::Cancelled { reason } => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A call in words: "an all-reduce (sum) of 1000 f32 elements".
fn describe(signature: &Signature) -> String {
    let kind = CollectiveKind::from_code(signature.collective);
    let kind = kind.map_or("an unknown collective".to_owned(), |kind| {
        let name = kind.name();
        let article = if name.starts_with('a') { "an" } else { "a" };
        format!("{article} {name}")
    });
    let data_type = DataType::from_code(signature.data_type).map_or("unknown", DataType::name);
    let reduction = Reduction::from_code(signature.reduction).map_or("unknown", Reduction::name);
    let elements = match signature.elements {
        u64::MAX => "so many".to_owned(),
        elements => elements.to_string(),
    };
    let fingerprint = match signature.fingerprint {
        0 => String::new(),
        fingerprint => format!(", counts or program {fingerprint:08x}"),
    };
    format!(
        "{kind} ({reduction}, root {}, algorithm {}, tiles of {}{fingerprint}) of {elements} {data_type} elements",
        signature.root, signature.algorithm, signature.tile_elements
    )
}
