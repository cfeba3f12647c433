//! A peer that says anything, in the clear and sealed: a link gives on what is a frame, refuses the rest with a reason, and
//! keeps nothing. (What a well-behaved peer sees: `tests/tcp_link.rs`.)

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytemuck::bytes_of;
use paceline_engine::frame::{FRAME_BYTES_MAX, HEADER_BYTES, Header, Kind};
use paceline_plan::OperationKey;
use snow::TransportState;
use socket2::SockRef;

use super::wire::{Sealed, Wire, seal};
use super::{CongestionControl, TcpLink, TcpOptions};
use crate::environment::Network;
use crate::security::{Credentials, Secret};
use crate::tests::{Random, frames, held_bytes};
use crate::{Link, LinkError, Sink, Target};

/// Longer than any link needs to see its end.
const LIMIT: Duration = Duration::from_secs(30);

/// What is said on a link at most.
const SAID_MAX: usize = 16;

#[test]
fn whatever_a_peer_says_in_the_clear_is_a_frame_or_refused() {
    let reasons = ["does not start like", "unknown kind", "longer than", "beyond the end", "refers to its memory"];
    Strangers::new(None).talk(&reasons);
}

/// The peer knows the secret, and between it and the link there is somebody who does not.
#[test]
fn whatever_a_peer_says_sealed_is_a_frame_or_refused() {
    let network = Network { secret: Secret::generate().ok(), encrypt: true, ..Network::default() };
    let credentials = Credentials::for_links(&network, "", &[0; 16]).expect("a secret");
    let reasons = ["does not start like", "unknown kind", "longer than", "does not decrypt", "empty record"];
    Strangers::new(Some(credentials)).talk(&reasons);
}

/// Links to peers that say anything.
struct Strangers {
    random: Random,
    listener: TcpListener,
    /// If what is said is sealed.
    credentials: Option<Credentials>,
    sink: Anything,
    /// Why links have ended, and how often.
    ends: BTreeMap<String, usize>,
}

impl Strangers {
    fn new(credentials: Option<Credentials>) -> Strangers {
        let mut random = Random::new();
        let sink = Anything { memory: vec![0; FRAME_BYTES_MAX as usize], random: Random(random.next()), frames: 0 };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Strangers { random, listener, credentials, sink, ends: BTreeMap::new() }
    }

    /// Says as much as a test has to; each of the reasons must have been given.
    fn talk(&mut self, reasons: &[&str]) {
        let (mut said, mut warm) = (0, None);
        while said < frames() {
            said += self.meet();
            if said >= frames() / 10 {
                warm.get_or_insert_with(|| held_bytes().0);
            }
        }
        let warm = warm.expect("much was said");
        let (held, most) = held_bytes();
        assert!(held - warm < 4096, "{} bytes more after {said} frames", held - warm);
        // What a link of two connections reads into at once, and what is said to it.
        assert!(most - warm < 2 << 20, "{} bytes for two connections", most - warm);
        assert!(self.sink.frames > said / 4, "only {} of {said} frames were given on", self.sink.frames);
        let given = |reason: &&str| self.ends.keys().any(|end| end.contains(*reason));
        assert!(reasons.iter().all(given), "{:?}", self.ends);
    }

    /// One link, from its beginning to its end. How much was said to it.
    fn meet(&mut self) -> usize {
        let connections = 1 + self.random.below(2);
        let (wires, mut peers): (Vec<Wire>, Vec<Peer>) = (0..connections).map(|_| self.connection()).unzip();
        let mut link = TcpLink::over(wires, TcpOptions::default(), CongestionControl::default()).expect("a link");
        for said in 1..=SAID_MAX {
            let bytes = something(&mut self.random);
            peers[self.random.below(connections)].say(&bytes, &mut self.random);
            if let Some(end) = self.listen(&mut link) {
                self.ended(&mut link, end);
                return said;
            }
        }
        drop(peers);
        let start = Instant::now();
        let end = loop {
            if let Some(end) = self.listen(&mut link) {
                break end;
            }
            assert!(start.elapsed() < LIMIT, "the link does not see its end");
        };
        self.ended(&mut link, end);
        SAID_MAX
    }

    /// Takes in what is there; why the link has ended, if it has.
    fn listen(&mut self, link: &mut TcpLink) -> Option<LinkError> {
        // Every round takes bytes in, and there are no more than one frame's, said twice, and what was left of others.
        for _ in 0..100_000 {
            match link.receive(&mut self.sink) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(end) => return Some(end),
            }
        }
        panic!("the link goes on without an end");
    }

    fn ended(&mut self, link: &mut TcpLink, end: LinkError) {
        assert!(!matches!(end, LinkError::Io { .. }), "{end}");
        *self.ends.entry(end.to_string()).or_default() += 1;
        assert!(matches!(link.receive(&mut self.sink), Err(LinkError::Closed)), "it goes on after: {end}");
    }

    /// Our end of a new connection, and the other one.
    fn connection(&mut self) -> (Wire, Peer) {
        let theirs = TcpStream::connect(self.listener.local_addr().expect("its address")).expect("we listen");
        let ours = self.listener.accept().expect("somebody dials").0;
        if self.random.below(8) > 0 {
            // Ends with a reset: otherwise the kernel would remember each connection for a minute.
            SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).expect("a socket");
        }
        let Some(credentials) = &self.credentials else {
            return (Wire::Plain(ours), Peer { socket: theirs, cipher: None });
        };
        let (initiator, opening) = credentials.initiate(credentials.claim(1, 0, 0)).expect("random");
        let response = credentials.respond(&opening, 0).expect("it fits");
        let cipher = Some(initiator.finish(&response.message).expect("it fits"));
        // The peer draws no new keys.
        let sealed = Sealed::new(ours, response.cipher, u64::MAX);
        (Wire::Sealed(Box::new(sealed)), Peer { socket: theirs, cipher })
    }
}

/// Whoever is at the other end of a connection.
struct Peer {
    socket: TcpStream,
    cipher: Option<Box<TransportState>>,
}

impl Peer {
    fn say(&mut self, bytes: &[u8], random: &mut Random) {
        let sealed = self.cipher.as_mut().map(|cipher| records(cipher, bytes, random));
        self.socket.write_all(sealed.as_deref().unwrap_or(bytes)).expect("the link takes all in");
    }
}

/// The records of these bytes; now and then one is damaged, said twice, lost, in another's place, made up, or empty.
fn records(cipher: &mut TransportState, bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (plain, after) = rest.split_at(rest.len().min(1 + random.below(20_000)));
        let mut record = Vec::new();
        seal(cipher, plain, &mut record).expect("2^64 are far");
        records.push(record);
        rest = after;
    }
    if !records.is_empty() && random.below(16) == 0 {
        let at = random.below(records.len());
        match random.below(6) {
            0 => random.damage(&mut records[at]),
            1 => records.push(records[at].clone()),
            2 => _ = records.remove(at),
            3 => records.swap(0, at),
            4 => {
                let bytes = random.below(2000);
                records[at] = [&(bytes as u16).to_be_bytes()[..], &random.bytes(bytes)].concat();
            }
            _ => records[at][..2].copy_from_slice(&(random.below(17) as u16).to_be_bytes()),
        }
    }
    records.concat()
}

/// Mostly a frame; now and then what only looks like one, or does not.
fn something(random: &mut Random) -> Vec<u8> {
    let mut bytes = frame(random);
    if random.below(8) > 0 {
        return bytes;
    }
    match random.below(5) {
        0 => {
            let count = random.below(600);
            bytes = random.bytes(count);
        }
        1 | 2 => change_a_field(&mut bytes, random),
        3 => bytes = bytes.repeat(2),
        _ => random.damage(&mut bytes),
    }
    bytes
}

/// A frame that a link gives on, unless it is a reference.
fn frame(random: &mut Random) -> Vec<u8> {
    let kind = match random.below(64) {
        0 => Kind::Reference,
        1..=4 => Kind::Abort,
        5..=8 => Kind::Goodbye,
        9..=12 => Kind::Heartbeat,
        13..=16 => Kind::Taken,
        17..=20 => Kind::Credit,
        21..=28 => Kind::Grant,
        _ => Kind::Data,
    };
    let mut header = Header::new(kind, OperationKey { operation: random.next(), ..OperationKey::default() });
    let bound = [8, 400, 400, 4000, 4000, 4000, 4000, 40_000][random.below(8)];
    let count = if matches!(kind, Kind::Data | Kind::Abort) { random.below(bound) } else { 0 };
    (header.message_bytes, header.payload_bytes) = (count as u32, count as u32);
    [bytes_of(&header), &random.bytes(count)].concat()
}

fn change_a_field(bytes: &mut [u8], random: &mut Random) {
    let mut header: Header = bytemuck::pod_read_unaligned(&bytes[..HEADER_BYTES]);
    let near = header.payload_bytes.wrapping_add(random.below(3) as u32).wrapping_sub(1);
    let value = [random.next() as u32, FRAME_BYTES_MAX + 1, near, 0][random.below(4)];
    match random.below(5) {
        0 => header.magic = value,
        1 => header.kind = random.below(12) as u8,
        2 => header.payload_bytes = value,
        3 => header.message_bytes = value,
        _ => header.offset = value,
    }
    bytes[..HEADER_BYTES].copy_from_slice(bytes_of(&header));
}

/// A sink that takes whatever comes.
struct Anything {
    memory: Vec<u8>,
    random: Random,
    frames: usize,
}

impl Sink for Anything {
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError> {
        assert!(header.check().is_ok(), "the sink sees an unchecked header");
        Ok(match self.random.below(3) {
            0 => Target::Memory(self.memory.as_mut_ptr()),
            1 => Target::Slices(1 + self.random.below(64)),
            _ => Target::Discard,
        })
    }

    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError> {
        assert!(offset + slice.len() <= header.payload_bytes as usize, "more than was announced");
        Ok(())
    }

    fn end(&mut self, _: &Header) -> Result<(), LinkError> {
        self.frames += 1;
        Ok(())
    }
}
