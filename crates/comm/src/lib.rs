//! The communicator: collectives between ranks, on shared memory and TCP, blocking or in the background.
//!
//! ```
//! use paceline_comm::{CallOptions, Communicator, Reduction};
//!
//! let ranks: Vec<_> = Communicator::threads(3)?
//!     .into_iter()
//!     .map(|comm| {
//!         std::thread::spawn(move || {
//!             let mut data = [comm.rank() as f32 + 1.0; 4];
//!             comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::default()).map(|()| data)
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().expect("no panic")?, [6.0; 4]);
//! }
//! # Ok::<(), paceline_comm::CommError>(())
//! ```
#![deny(missing_docs)]

mod alarm;
mod background;
mod buffer;
mod calls;
mod clocks;
mod communicator;
mod connect;
mod connect_error;
mod context;
mod core;
mod element;
mod emulated;
mod ends;
mod error;
mod execute;
mod group;
mod helpers;
mod layout;
mod memory;
mod options;
mod outcome;
mod own_processor;
mod parting;
mod pending;
mod prepare;
mod probe;
mod processor_time;
mod program;
mod programs;
mod recent;
mod records;
mod scratch;
mod sink;
mod staging;
mod threads;
mod trace;
mod traffic;
mod transfers;
mod variable;
mod watch;
mod world;

pub use buffer::Buffer;
pub use clocks::ClockOffset;
pub use communicator::Communicator;
pub use connect::{Config, TransportChoice};
pub use connect_error::{ConnectCause, ConnectError};
pub use element::Element;
pub use ends::WakeAtEnds;
pub use error::{CommError, Culprit};
pub use group::Group;
pub use options::{CallOptions, Origin, Parallelism, REDUCING_THREADS_MAX};
pub use paceline_collective::Topology;
pub use paceline_engine::{Cause, Failure};
pub use paceline_fabric::Transport;
pub use paceline_fabric::shm::ShmOptions;
pub use paceline_plan::{CollectiveKind, DataType, Emulation, LinkCost, LinkCosts, Protocol, Reduction};
pub use pending::Pending;
pub use probe::{OVERHEAD_EMULATED_S, seconds_per_byte_reduced};
pub use processor_time::ProcessorTime;
pub use program::{Kernels, ProgramError, VerifiedProgram};
pub use records::{Record, Records};
pub use threads::ThreadsConfig;
pub use trace::{Frame, Trace, TraceEvent, Traced};
pub use traffic::Traffic;
pub use transfers::Transfer;
pub use watch::{OnStall, StallReport, Watch};
