//! Whoever says anything: what is no frame is refused with a reason, and nothing of it is kept.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde::ser::{Serialize, SerializeTuple, Serializer};

use super::VERSION;
use super::channel::Channel;
use super::message::{Assembler, Kind, MessageError};
use crate::environment::Network;
use crate::rendezvous::{HostIdentity, Member};
use crate::security::{Credentials, Mode, Secret};
use crate::tests::{Random, frames, held_bytes};

const KINDS: [Kind; 4] = [Kind::Message, Kind::Opening, Kind::Acceptance, Kind::Refusal];
const MODES: [Mode; 3] = [Mode::Open, Mode::Authenticated, Mode::Encrypted];

/// How often each outcome was seen.
type Outcomes = BTreeMap<&'static str, usize>;

/// Each of these in at least one of a thousand.
#[track_caller]
fn assert_all_seen(outcomes: &Outcomes, names: &[&str]) {
    let often = |name: &&str| outcomes.get(*name).is_some_and(|count| *count >= frames() / 1000);
    assert!(names.iter().all(often), "{names:?} in {outcomes:?}");
}

fn name(error: &MessageError) -> &'static str {
    match error {
        MessageError::Closed => "closed",
        MessageError::TimedOut => "incomplete",
        MessageError::Malformed(_) => "malformed",
        MessageError::Version { .. } => "version",
        MessageError::Security(_) => "security",
        MessageError::Io(_) => "io",
    }
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let dialled = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let accepted = listener.accept().expect("the other end").0;
    [&dialled, &accepted].iter().for_each(|socket| socket.set_nonblocking(true).expect("a socket"));
    (dialled, accepted)
}

/// What has arrived.
fn drain(mut socket: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Ends with "would block".
    let _ = socket.read_to_end(&mut bytes);
    bytes
}

/// Forgets what has arrived, which is much if the kernel was late with it, and allocates nothing for it.
fn discard(mut socket: &TcpStream) {
    while socket.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {}
}

/// What may come where a frame of this kind and mode with a body of at most `bytes_max` is due.
fn frame(random: &mut Random, kind: Kind, mode: Mode, bytes_max: usize) -> Vec<u8> {
    // At most one too many.
    let count = random.below(bytes_max + 2);
    let body = random.bytes(count);
    let head = |kind: u8, mode: u8, length: usize| {
        [b"PcLc", &VERSION.to_le_bytes()[..], &[kind, mode], &(length as u32).to_le_bytes()].concat()
    };
    let mut genuine = [head(kind as u8, mode as u8, count), body.clone()].concat();
    match random.below(6) {
        0 => body,
        1 => {
            let length = [count, bytes_max + 1, random.next() as usize][random.below(3)];
            [head(random.below(5) as u8, random.below(4) as u8, length), body].concat()
        }
        2 => genuine.repeat(2),
        3 => genuine,
        _ => {
            random.damage(&mut genuine);
            genuine
        }
    }
}

#[test]
fn whatever_arrives_is_a_frame_or_refused_and_nothing_is_kept() {
    let mut random = Random::new();
    let (mut left, right) = sockets();
    let mut outcomes = Outcomes::new();
    let mut warm = 0;
    for number in 0..frames() {
        if number == frames() / 10 {
            warm = held_bytes().0;
        }
        let (kind, mode, bytes_max) = (KINDS[random.below(4)], MODES[random.below(3)], [0, 128, 5000][random.below(3)]);
        let frame = frame(&mut random, kind, mode, bytes_max);
        let mut assembler = Assembler::new(kind, mode, bytes_max);
        let (first, rest) = frame.split_at(random.below(frame.len() + 1));
        'frame: for piece in [first, rest] {
            left.write_all(piece).expect("there is room");
            loop {
                let outcome = match assembler.read(&right) {
                    Ok(None) => break,
                    Ok(Some(body)) => {
                        assert!(body.len() <= bytes_max);
                        assembler = Assembler::new(kind, mode, bytes_max);
                        "whole"
                    }
                    Err(error) => name(&error),
                };
                *outcomes.entry(outcome).or_default() += 1;
                if outcome != "whole" {
                    break 'frame;
                }
            }
        }
        discard(&right);
    }
    assert_all_seen(&outcomes, &["whole", "malformed", "version", "security"]);
    let (held, most) = held_bytes();
    assert!(held - warm < 1024, "{} bytes more after {} frames", held - warm, frames());
    assert!(most - warm < 64 << 10, "{} bytes for frames of 5000", most - warm);
}

/// Bytes as they are: postcard writes no length before a tuple.
struct Raw(Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

/// What is said between ranks that meet.
type Words = (String, u32, String, Vec<Member>);

/// Both ends of a conversation, and in its middle somebody who can change everything.
struct Conversation {
    credentials: Credentials,
    /// From one side to the middle, and from the middle to the other side.
    hops: [(TcpStream, TcpStream); 2],
}

impl Conversation {
    /// After a new handshake.
    fn channels(&self) -> [Channel; 2] {
        let claim = self.credentials.claim(1, 0, 0);
        let (initiator, opening) = self.credentials.initiate(claim).expect("random");
        let response = self.credentials.respond(&opening, 0).expect("it fits");
        let ciphers = [initiator.finish(&response.message).expect("it fits"), response.cipher];
        discard(&self.hops[0].1);
        discard(&self.hops[1].1);
        let sockets = [&self.hops[0].0, &self.hops[1].1];
        let mut channels =
            sockets.map(|socket| Channel::accepted(socket.try_clone().expect("a descriptor"), self.credentials.mode()));
        channels.iter_mut().zip(ciphers).for_each(|(channel, cipher)| channel.seal_with(cipher));
        channels
    }

    /// Passes on what one side has said, once it is damaged.
    fn pass_on(&self, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = drain(&self.hops[0].1);
        damage(&mut bytes);
        (&self.hops[1].0).write_all(&bytes).expect("there is room");
    }
}

/// A peer that knows the secret may say anything, and the middle may change everything: neither harms.
#[test]
fn sealed_messages_of_a_hostile_peer_and_damaged_ones_are_understood_or_refused() {
    let mut random = Random::new();
    let network =
        Network { secret: Secret::from_text("0123456789abcdef", "a test").ok(), encrypt: true, ..Network::default() };
    let credentials = Credentials::for_rendezvous(&network, "a job").expect("a secret");
    let conversation = Conversation { credentials, hops: [sockets(), sockets()] };
    let member = Member {
        rank: 1,
        host: "host".into(),
        process: 7,
        identity: HostIdentity::here(),
        addresses: vec![([127, 0, 0, 1], 1).into()],
        seen_at: None,
        blob: vec![7; 100],
    };
    let genuine = postcard::to_stdvec(&("a job", 2u32, "", vec![member])).expect("a message");
    let mut channels = conversation.channels();
    let mut outcomes = Outcomes::new();
    let mut warm = 0;
    for number in 0..frames() {
        if number == frames() / 10 {
            warm = held_bytes().0;
        }
        let mut words = genuine.clone();
        match random.below(8) {
            0 => words = random.bytes(300),
            1 => random.damage(&mut words),
            _ => {}
        }
        let [left, right] = &mut channels;
        left.send(&Raw(words), Instant::now()).expect("there is room");
        let damage = random.below(8) == 0;
        conversation.pass_on(|bytes| match random.below(3) {
            _ if !damage => {}
            0 => *bytes = bytes.repeat(2),
            // The header stays.
            1 => bytes.iter_mut().skip(12).for_each(|byte| *byte = 0),
            _ => random.damage(bytes),
        });
        let mut over = damage;
        for _ in 0..1 + usize::from(damage) {
            let heard = right.receive::<Words>(1000, Instant::now());
            let outcome = heard.as_ref().map_or_else(name, |_| "understood");
            *outcomes.entry(outcome).or_default() += 1;
            // Words that make no sense leave the seals in order; all else ends a conversation.
            over |= !matches!(outcome, "understood" | "malformed");
        }
        if over {
            channels = conversation.channels();
        }
    }
    assert_all_seen(&outcomes, &["understood", "malformed", "security", "incomplete"]);
    let (held, most) = held_bytes();
    assert!(held - warm < 1024, "{} bytes more after {} messages", held - warm, frames());
    // A length that is too long reserves 1 MiB at most (serde), for as long as it takes to see that.
    assert!(most - warm < 4 << 20, "{} bytes for messages of 1000", most - warm);
}
