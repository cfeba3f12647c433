use paceline_plan::Rank;

use super::STEPS_MAX;
use crate::Refusal;
use crate::program::StepId;

/// A file that is no program: where and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct ReadError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not well-formed XML.
    #[error("no well-formed XML: {0}")]
    Xml(String),
    /// An element at the wrong place, or an unknown one.
    #[error("<{found}> stands where {expected} should")]
    Element {
        /// Its name.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// An attribute is missing.
    #[error("<{element}> has no {attribute}")]
    Missing {
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute has a value that it cannot have.
    #[error("{attribute}=\"{value}\" is not {expected}")]
    Value {
        /// The attribute.
        attribute: &'static str,
        /// Its value, or the beginning of it.
        value: String,
        /// What it could be.
        expected: String,
    },
    /// Two elements with one id.
    #[error("<{element} id=\"{id}\"> already stands on line {first}")]
    Repeated {
        /// The element.
        element: &'static str,
        /// The id.
        id: usize,
        /// The line of the first one.
        first: usize,
    },
    /// Ids are counted from 0 without gaps.
    #[error("there is no <{element} id=\"{id}\">")]
    Absent {
        /// The element.
        element: &'static str,
        /// The first id that is not there.
        id: usize,
    },
    /// More steps than a thread block can have.
    #[error("a thread block has at most {STEPS_MAX} steps")]
    Steps,
    /// A step moves chunks that are not there.
    #[error("{buffer}[{first}..{end}] is out of range: there are {chunks} chunks")]
    Range {
        /// The buffer's letter.
        buffer: char,
        /// The first chunk.
        first: u32,
        /// The chunk after the last.
        end: u32,
        /// How many there are.
        chunks: u32,
    },
    /// A step sends or receives, but its thread block has no peer to do that with.
    #[error("the step needs a peer, but {attribute} of its thread block is -1")]
    NoPeer {
        /// `send` or `recv`.
        attribute: &'static str,
    },
    /// Two thread blocks of a rank with the same peer and channel.
    #[error("{attribute}=\"{peer}\" on channel {channel} already is the thread block's on line {first}")]
    Connection {
        /// `send` or `recv`.
        attribute: &'static str,
        /// The peer.
        peer: Rank,
        /// The channel.
        channel: u32,
        /// The line of the other thread block.
        first: usize,
    },
    /// A message with a sender only, or a receiver only.
    #[error("the message from gpu {from} to gpu {to} on channel {channel} has no {lacks}")]
    Unmatched {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The channel.
        channel: u32,
        /// "sender" or "receiver".
        lacks: &'static str,
    },
    /// Sender and receiver disagree about the length.
    #[error("receives {received} chunks, but line {sender} sends {sent}")]
    Counts {
        /// Chunks received.
        received: u32,
        /// Chunks sent.
        sent: u32,
        /// The line of the send.
        sender: usize,
    },
    /// It waits for a step that does not exist.
    #[error("waits for step {step} of thread block {block}, which is not there")]
    NoSuchStep {
        /// `depid`.
        block: usize,
        /// `deps`.
        step: usize,
    },
    /// It waits for a step that tells nobody when it is done.
    #[error("waits for the step on line {0}, whose hasdep is 0")]
    NobodyTells(usize),
    /// There must be one root, and it must be clear which.
    #[error("no root: {0}")]
    Root(&'static str),
    /// More than any real program: a damaged file.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A ring of waits.
    #[error("waits, in the end, for itself, through {}", listed(.0))]
    Deadlock(Vec<usize>),
    /// Two steps of a rank touch one chunk, one of them writes, and nothing says which comes first.
    #[error("races with line {other} for {chunk}")]
    Race {
        /// The line of the other step.
        other: usize,
        /// The chunk.
        chunk: String,
    },
    /// It reads what nobody has written.
    #[error("reads {0}, which nothing has written")]
    Undefined(String),
    /// It combines different parts of blocks.
    #[error("combines part {with} of a block with part {part}")]
    Mixed {
        /// The part that is here.
        with: u32,
        /// The part that comes.
        part: u32,
    },
    /// What the verifier says about the program that this file is. The refusal counts steps of that program.
    #[error("{0}")]
    Refused(Box<Refusal>),
}

/// A program that MSCCL cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A kernel of the caller's: MSCCL knows one reduction and nothing else.
    #[error("rank {rank}, step {step} calls a kernel, and MSCCL has none")]
    Kernel {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepId,
    },
    /// A step waits for more others than a thread block has steps.
    #[error("rank {rank}, step {step} waits for {waits} others, and a thread block has at most {STEPS_MAX} steps")]
    Waits {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepId,
        /// How many.
        waits: usize,
    },
    /// The name has a character that XML cannot express.
    #[error("the name {0:?} has a character that XML does not know")]
    Name(String),
    /// The program is wrong.
    #[error("{0}")]
    Refused(Box<Refusal>),
}

/// A few lines, in the order in which they wait for each other.
fn listed(lines: &[usize]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = lines.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = lines.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("line{} {}{rest}", if lines.len() == 1 { "" } else { "s" }, shown.join(", "))
}
