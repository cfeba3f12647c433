//! Whatever a peer says over the connections of a TCP link, it is given on as frames or ends the link with a reason.
#![no_main]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use bytemuck::bytes_of;
use libfuzzer_sys::fuzz_target;
use paceline_engine::frame::{FRAME_BYTES_MAX, HEADER_BYTES, Header, Kind};
use paceline_fabric::{Link, LinkError, Sink, Target, TcpLink, TcpOptions};
use paceline_plan::OperationKey;
use socket2::SockRef;

/// Of a frame that is due.
const PAYLOAD_BYTES: usize = 32;

fuzz_target!(|data: &[u8]| {
    let Some((&how, said)) = data.split_first() else { return };
    let connections = 1 + usize::from(how % 2);
    let (ours, mut peers): (Vec<TcpStream>, Vec<TcpStream>) = (0..connections).map(|_| connection()).unzip();
    let mut link = TcpLink::new(ours, TcpOptions::default()).expect("a link");
    let mut sink = Anything { memory: vec![0; FRAME_BYTES_MAX as usize] };
    for (number, change) in said.chunks(HEADER_BYTES + PAYLOAD_BYTES).enumerate() {
        let words = words(change);
        let (first, rest) = words.split_at(words.len().min(usize::from(how / 2)));
        for piece in [first, rest] {
            peers[number % connections].write_all(piece).expect("the link takes all in");
            if !listen(&mut link, &mut sink) {
                return;
            }
        }
    }
    drop(peers);
    while listen(&mut link, &mut sink) {}
});

/// A frame that a link gives on, where there is no change, or the beginning of one.
fn words(change: &[u8]) -> Vec<u8> {
    let bytes = PAYLOAD_BYTES as u32;
    let header =
        Header { message_bytes: bytes, payload_bytes: bytes, ..Header::new(Kind::Data, OperationKey::default()) };
    let frame = [bytes_of(&header), &[0; PAYLOAD_BYTES]].concat();
    frame.iter().zip(change).map(|(byte, change)| byte ^ change).collect()
}

/// Our end of a new connection, and the peer's.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peer = TcpStream::connect(listener.local_addr().expect("its address")).expect("we listen");
    // Ends with a reset: otherwise the kernel would remember each connection for a minute.
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("a socket");
    (listener.accept().expect("somebody dials").0, peer)
}

/// Takes in all that is there. False at the end of the link.
fn listen(link: &mut TcpLink, sink: &mut Anything) -> bool {
    loop {
        match link.receive(sink) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(end) => {
                assert!(!matches!(end, LinkError::Io { .. }), "{end}");
                assert!(matches!(link.receive(sink), Err(LinkError::Closed)), "it goes on after: {end}");
                return false;
            }
        }
    }
}

/// A sink that takes whatever comes.
struct Anything {
    memory: Vec<u8>,
}

impl Sink for Anything {
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError> {
        assert!(header.check().is_ok(), "the sink sees an unchecked header");
        Ok(match header.tile % 3 {
            0 => Target::Memory(self.memory.as_mut_ptr()),
            1 => Target::Slices(1 + header.message as usize % 64),
            _ => Target::Discard,
        })
    }

    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError> {
        assert!(offset + slice.len() <= header.wire_payload_bytes() as usize, "more than was announced");
        Ok(())
    }

    fn end(&mut self, _: &Header) -> Result<(), LinkError> {
        Ok(())
    }
}
