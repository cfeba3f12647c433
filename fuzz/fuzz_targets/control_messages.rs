//! Whatever answers where rank 0 should, a rank that looks for it joins a world or learns why not. The bytes are put
//! together, unsealed and decoded as all control messages are.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use paceline_fabric::CONTROL_VERSION;
use paceline_fabric::environment::{Launcher, MeetingPoint, Network, World};
use paceline_fabric::rendezvous::meet;
use paceline_fabric::security::Secret;

/// Much longer than an answer takes. An answer that ends too early costs it all: the rank dials again.
const TIMEOUT: Duration = Duration::from_millis(10);

/// In the first byte: the rank has a secret, so that a handshake is due; and what follows is said as it is.
const SECRET: u8 = 1;
const RAW: u8 = 2;

fuzz_target!(|data: &[u8]| {
    let Some((&how, said)) = data.split_first() else { return };
    let secret = (how & SECRET != 0).then(|| Secret::from_text("0123456789abcdef", "a test").expect("long enough"));
    let said = if how & RAW != 0 { said.to_vec() } else { in_frames(said, usize::from(how >> 2), secret.is_some()) };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let world = rank_one(listener.local_addr().expect("its address").port());
    let network = Network { secret, ..Network::default() };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut socket = listener.accept().expect("the rank dials").0;
            // The rank may have heard enough before all is said. What is left unread ends the connection with a reset.
            let _ = socket.read(&mut [0]).and_then(|_| socket.write_all(&said));
        });
        if let Ok(members) = meet(&world, &network, TIMEOUT, Vec::new(), Vec::new()) {
            assert!((0..2).eq(members.members.iter().map(|member| member.rank)), "a table of another world");
        }
    });
});

/// As two messages, the first of which has so many bytes; or as the answer to a handshake and what may follow it.
fn in_frames(said: &[u8], first: usize, sealed: bool) -> Vec<u8> {
    let (first, second) = said.split_at(first.min(said.len()));
    let frame = |kind: u8, body: &[u8]| {
        let version = CONTROL_VERSION.to_le_bytes();
        [b"PcLc", &version[..], &[kind, u8::from(sealed)], &(body.len() as u32).to_le_bytes(), body].concat()
    };
    [frame(if sealed { 2 } else { 0 }, first), frame(0, second)].concat()
}

/// One of two ranks, whose rank 0 is said to be at this port.
fn rank_one(port: u16) -> World {
    World {
        launcher: Launcher::Paceline,
        rank: 1,
        world_size: 2,
        local_rank: None,
        local_size: None,
        meeting_point: Some(MeetingPoint { host: "127.0.0.1".into(), port }),
        listener: None,
        job: String::new(),
        terms: String::new(),
    }
}
