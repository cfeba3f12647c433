//! Programs as MSCCL XML: the files that MSCCL's compilers write and its runtime executes.
//!
//! [`read`] takes any well-formed file and proves what it makes of it; [`write()`] states any program without kernels, so
//! that reading it gives the same program back, but for the order in which independent steps are listed.
//!
//! ```
//! use paceline_collective::{Capacity, Topology, msccl, registry, verify};
//! use paceline_plan::CollectiveKind;
//!
//! let ring = registry::find(CollectiveKind::AllReduce, "ring")?.program(&Topology::flat(3), 0);
//! let text = msccl::write(&ring)?;
//! assert!(text.starts_with(r#"<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="3" ngpus="3" coll="allreduce""#));
//! let back = msccl::read(&text)?;
//! assert_eq!(verify(&back, Capacity::Rendezvous)?.messages, 12);
//!
//! let wrong = text.replace(r#"type="rcs""#, r#"type="rsc""#);
//! let error = msccl::read(&wrong).unwrap_err().to_string();
//! assert!(error.ends_with(r#"type="rsc" is not one of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop"#), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The format
//!
//! `<algo name proto nchannels nchunksperloop ngpus coll inplace>` holds a `<gpu id i_chunks o_chunks s_chunks>` per rank,
//! that holds *thread blocks* `<tb id send recv chan>`, and these hold `<step s type srcbuf srcoff dstbuf dstoff cnt depid
//! deps hasdep>`. Of other attributes, [`sizes`] knows `minBytes` and `maxBytes`; the rest is ignored, and other elements are
//! refused. (Source: the runtime's parser and interpreter,
//! `src/graph/topo.cc` and `src/collectives/device/msccl_interpreter.h` of github.com/microsoft/msccl, and
//! `msccl/language/ir.py` of github.com/microsoft/msccl-tools; Cowan et al., "MSCCLang: Microsoft collective communication
//! language", 2023.)
//!
//! - Memory is counted in *chunks*: buffer `i` is the input, `o` the output, `s` scratch. A block of ours has
//!   [`Program::parts`](crate::Program::parts) chunks, one after the other. With `inplace="1"` input and output are one
//!   memory, by the rule of [`Space`](crate::Space), and `i_chunks` and `o_chunks` may count fewer: up to the last that a step
//!   touches.
//! - A thread block does its steps in order. It sends to one peer and receives from one, or from none (−1). The blocks of
//!   sender and receiver find each other by peer and channel, and what they send and receive fits in order.
//! - `s` sends src; `r` receives into dst; `rcs` does that and sends it on; `rrc` receives, reduces with src, stores in dst;
//!   `rrcs` also sends it on; `rrs` sends it on and stores nothing; `cpy` copies src to dst; `re` reduces src into dst; `nop`
//!   does nothing. A step may wait for one step of another block (`depid`, `deps`), whose `hasdep` says that somebody does.
//!
//! # What a file becomes
//!
//! What a file says is checked first, with the verifier: the strict order of every block's steps must not close a ring of
//! waits, even if links hold any number of messages, and must leave nothing to chance where two steps touch one chunk.
//!
//! A program of ours needs less order than a file, because nobody of its makers had to share thread blocks out: a step
//! waits only for steps that touch the same memory. So thread blocks and channels are gone in it. It must also be right
//! where input and output are one memory and where they are not, and on links that hold nothing, whatever the file was made
//! for. If it isn't as it stands, initial data is saved in scratch first, and, if need be, nothing overwrites what may
//! still be on its way out: each further write of a chunk takes other memory. ([`RankProgram::apart`] takes the saving back
//! where it is not needed.)
//!
//! A chunk may lie where another one belongs (scratch; the output while it is still under way). Chunks of ours may differ
//! by an element, so such a place becomes scratch that has the size of what lies there.
//!
//! [`RankProgram::apart`]: crate::RankProgram::apart
//!
//! # What MSCCL does not know
//!
//! A root: it is the only rank with input (broadcast) or output (reduce); where a file gives all of them chunks, the only
//! one that receives or sends nothing. Gather, scatter, send-receive, push, push-pull and barrier: their `coll` is written
//! in our words, which MSCCL's runtime will refuse and [`read`] takes. `custom` promises nothing that could be verified
//! and is refused. Kernels: a program that has them cannot be written. More than 32 channels, 216 thread blocks to a rank
//! and 71 chunks to a step are beyond MSCCL's runtime, but not refused here.
//!
//! # Size
//!
//! A ring of 1,024 ranks is a text of 241 MB with 4.2 million steps. Writing it takes about 5 s of one processor, reading
//! and proving it about 23 s; for 256 ranks (15 MB) it is 0.2 s and 1 s.
//!
//! Whatever a file says, it takes memory and time by the number of its steps: chunks, what its steps move, and what becomes
//! of them are limited by that ([`Fault::TooLarge`]), far beyond what any collective needs.

mod build;
mod connect;
mod error;
mod file;
mod flow;
mod lanes;
mod memory;
mod order;
mod read;
mod runs;
mod strict;
mod write;
mod xml;

use paceline_plan::CollectiveKind;

use crate::program::blocks;

pub use error::{Fault, ReadError, WriteError};
pub use read::{read, read_proved, sizes};
pub use write::write;

/// Steps of a thread block, at most (`MSCCL_MAX_NUM_STEPS` in `src/include/msccl.h` of github.com/microsoft/msccl).
pub const STEPS_MAX: usize = 256;

/// What stands in `coll`. The first six are MSCCL's words.
const COLLECTIVES: [(CollectiveKind, &str); 12] = [
    (CollectiveKind::AllReduce, "allreduce"),
    (CollectiveKind::ReduceScatter, "reduce_scatter"),
    (CollectiveKind::AllGather, "allgather"),
    (CollectiveKind::Broadcast, "broadcast"),
    (CollectiveKind::Reduce, "reduce"),
    (CollectiveKind::AllToAll, "alltoall"),
    (CollectiveKind::Gather, "gather"),
    (CollectiveKind::Scatter, "scatter"),
    (CollectiveKind::Barrier, "barrier"),
    (CollectiveKind::SendReceive, "send_receive"),
    (CollectiveKind::PushPull, "push_pull"),
    (CollectiveKind::Push, "push"),
];

/// The most blocks that the input and the output of any rank have.
fn blocks_max(kind: CollectiveKind, world: usize) -> (u32, u32) {
    let (root, other) = (blocks(kind, 0, 0, world), blocks(kind, 1, 0, world));
    (root.0.max(other.0), root.1.max(other.1))
}

/// XML has no way to write this character (XML 1.0, 2.2).
fn unspeakable(character: char) -> bool {
    matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}
