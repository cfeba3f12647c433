//! One direction of a link: frames cut in pieces, each stream in order, with a latency and a bandwidth.

use std::collections::VecDeque;

use paceline_engine::frame::{HEADER_BYTES, Header, Kind};
use paceline_engine::{Placement, Region};

use crate::random::Random;

/// How links behave. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct LinkModel {
    pub latency: std::ops::Range<u64>,
    pub bytes_per_microsecond: u64,
    /// A frame travels in pieces of at most so many bytes.
    pub cut: std::ops::Range<u64>,
    /// A link holds back further frames once so many bytes are unsent.
    pub unsent_bytes_max: usize,
    /// Streams of a link: the first carries the small frames.
    pub streams: usize,
    /// Once in so many pieces, a stream stalls, for so long.
    pub stall_once_in: u64,
    pub stall: std::ops::Range<u64>,
    /// A rank has one port for all that it sends and one for all that it is sent, each as fast as a link, and each serves first what came
    /// first: a frame takes its turn at its sender's, when it begins to leave at its receiver's, and the next one of its link when it
    /// has passed both. Else links share nothing.
    pub ports: bool,
}

/// A frame that has not left completely.
#[derive(Debug)]
pub struct Outgoing {
    pub header: Header,
    pub payload: Option<Region>,
    pub ticket: Option<u64>,
    pub access: u64,
    pub reason: Vec<u8>,
    pub sent: usize,
    pub header_sent: bool,
}

/// A piece of a frame on its way.
#[derive(Debug)]
pub struct Piece {
    pub header: Option<Header>,
    pub bytes: Vec<u8>,
    pub last: bool,
}

/// A frame that has begun to arrive.
#[derive(Debug)]
pub struct Arriving {
    pub header: Header,
    pub placement: Placement,
    pub access: u64,
    /// Bytes of the payload that are in place, and those that wait for the rest of their element.
    pub done: usize,
    pub rest: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct Stream {
    pub queue: VecDeque<Outgoing>,
    pub pieces: VecDeque<Piece>,
    pub arriving: Option<Arriving>,
    /// A step of the sender is scheduled.
    pub moving: bool,
    /// The frame at the head has its turn at the sender's port.
    pub has_turn: bool,
    pub last_arrival: u64,
    pub goodbyes: usize,
}

#[derive(Debug)]
pub struct Direction {
    pub streams: Vec<Stream>,
    pub unsent: usize,
    /// Nothing more arrives.
    pub cut: bool,
    /// Frames so far.
    pub frames: u64,
}

impl Direction {
    pub fn new(streams: usize) -> Direction {
        Direction { streams: (0..streams).map(|_| Stream::default()).collect(), unsent: 0, cut: false, frames: 0 }
    }

    /// The stream of a frame.
    pub fn stream_for(&self, header: &Header, random: &mut Random) -> usize {
        let bulk = header.kind() == Some(Kind::Data) && header.payload_bytes > 64;
        if bulk && self.streams.len() > 1 { 1 + random.below(self.streams.len() - 1) } else { 0 }
    }

    pub fn push(&mut self, stream: usize, frame: Outgoing) {
        self.frames += 1;
        self.unsent += HEADER_BYTES + frame.header.wire_payload_bytes() as usize;
        self.streams[stream].queue.push_back(frame);
    }
}
