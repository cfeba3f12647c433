//! Whatever a peer says over the connections of a TCP link, it is given on as frames or ends the link with a reason.
#![no_main]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use paceline_engine::frame::{FRAME_BYTES_MAX, Header};
use paceline_fabric::{Link, LinkError, Sink, Target, TcpLink, TcpOptions};
use socket2::SockRef;

fuzz_target!(|data: &[u8]| {
    let Some((&how, said)) = data.split_first() else { return };
    let connections = 1 + usize::from(how % 2);
    let (ours, mut peers): (Vec<TcpStream>, Vec<TcpStream>) = (0..connections).map(|_| connection()).unzip();
    let mut link = TcpLink::new(ours, TcpOptions::default()).expect("a link");
    let mut sink = Anything { memory: vec![0; FRAME_BYTES_MAX as usize] };
    // In pieces, over all connections in turn.
    for (number, piece) in said.chunks(1 + 16 * usize::from(how / 2)).enumerate() {
        peers[number % connections].write_all(piece).expect("the link takes all in");
        if !listen(&mut link, &mut sink) {
            return;
        }
    }
    drop(peers);
    while listen(&mut link, &mut sink) {}
});

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
