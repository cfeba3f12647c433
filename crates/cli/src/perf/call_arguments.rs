//! How the measured calls are made: what `CallOptions` and the links offer, on the command line.

use clap::Args;
use paceline_comm::{CallOptions, Protocol, REDUCING_THREADS_MAX};

use crate::arguments::{ByteSize, at_least_one_byte};

/// How the calls are made, and over what.
#[derive(Args, Clone, Copy, Debug)]
pub struct CallArguments {
    /// How messages travel: auto, inline, eager or rendezvous
    #[arg(long, value_name = "NAME", default_value_t)]
    protocol: Protocol,

    /// TCP connections per pair of ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tcp_streams: u32,

    /// Over how many of the TCP connections a call's large frames are spread [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    lanes: Option<u16>,

    /// Threads that share a large local combination
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=REDUCING_THREADS_MAX as i64))]
    reducing_threads: u16,

    /// The bytes of a block that form one tile, so that tiles overlap [default: the cost model's choice]
    #[arg(long, value_name = "BYTES", value_parser = at_least_one_byte)]
    chunk_bytes: Option<ByteSize>,
}

impl CallArguments {
    /// As options of each call.
    pub fn options(&self, algorithm: Option<String>) -> CallOptions {
        CallOptions {
            algorithm,
            protocol: self.protocol,
            lanes: self.lanes,
            reducing_threads: Some(self.reducing_threads),
            chunk_bytes: self.chunk_bytes.map(|chunk| chunk.0),
            ..CallOptions::default()
        }
    }
}
