//! NCCL's built-in cost model, for NCCL 2.19 to 2.30.
//!
//! NCCL makes two tables when a communicator starts: for each function, algorithm and protocol a latency in microseconds
//! and an algorithm bandwidth in GB/s (`NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING` prints them). For each call it compares
//! latency · operations + bytes / (1000 · bandwidth), with a correction for trees, and takes the smallest. The constants and
//! formulas are facts of `src/graph/tuning.cc` and `src/enqueue.cc` of each release, stated here in our own words; what was
//! single precision there is single precision here, so that printed digits agree.
//!
//! What the graph search finds (channels, bandwidth per channel, link types) is an argument: `NCCL_DEBUG_SUBSYS=GRAPH`
//! prints it.
//!
//! ```
//! use paceline_tune::nccl::{Algorithm, Communicator, Function, Graph, Path, Protocol, Tables, Version};
//!
//! // Two hosts with eight H100 each; 16 channels of 20 GB/s within a host, 20 GB/s between them.
//! let graph = Graph { channels: 16, intra_gb_s: 20.0, inter_gb_s: 20.0, ..Graph::default() };
//! let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
//! let communicator = Communicator { ranks: 16, hosts: 2, compute_capability: 90, ..Communicator::of_graph(graph) };
//! let tables = Tables::new(Version::new(2, 30, 7)?, &communicator)?;
//! let ring = tables.entry(Function::AllReduce, Algorithm::Ring, Protocol::Simple);
//! assert_eq!(format!("{:.1} us, {:.1} GB/s", ring.latency_us, ring.bandwidth_gb_s), "131.6 us, 170.7 GB/s");
//! // Small messages take a tree with little latency, large ones bandwidth.
//! let (small, large) = (tables.choose(Function::AllReduce, 1 << 10, 1), tables.choose(Function::AllReduce, 1 << 30, 1));
//! assert_eq!(small.map(|choice| (choice.algorithm, choice.protocol)), Some((Algorithm::Tree, Protocol::Ll)));
//! assert_eq!(large.map(|choice| choice.protocol), Some(Protocol::Simple));
//! # Ok::<(), paceline_tune::nccl::NcclError>(())
//! ```

mod communicator;
mod constants;
mod model;
mod names;
mod print;
mod time;
mod version;

pub use communicator::{Communicator, CpuVendor, Graph, Path};
pub use constants::{Constants, work_batch};
pub use model::{Entry, Tables};
pub use names::{Algorithm, Function, Protocol};
pub use time::Choice;
pub use version::Version;

/// Why there is no table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NcclError {
    /// A name that NCCL does not have.
    #[error("`{name}` is no {what} of NCCL; known: {known}")]
    Name {
        /// "algorithm", "protocol", …
        what: &'static str,
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// No tables are known of this version.
    #[error("NCCL {0} has a cost model that is not known here: 2.19 to 2.30 are; give 2.30 for a newer one")]
    Version(Version),
    /// A text that is no version.
    #[error("`{0}` is no version of NCCL: give one such as 2.27 or 2.30.7")]
    NoVersion(String),
    /// A number that no communicator has.
    #[error("a communicator of NCCL cannot have {what} = {value}: {reason}")]
    Communicator {
        /// The field.
        what: &'static str,
        /// What was given.
        value: String,
        /// What it should be.
        reason: &'static str,
    },
}
