//! How control messages stand on the wire.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};
use serde::de::DeserializeOwned;

use super::wait;
use crate::security::{Mode, SecurityError};

/// The version of the messages that ranks exchange before they have links. Ranks of different versions refuse each
/// other.
pub const VERSION: u16 = 5;

const MAGIC: [u8; 4] = *b"PcLc";

/// Magic, version, kind, mode, length: magic, version and length are the same in every version, so that each can refuse
/// the others.
const HEADER_BYTES: usize = 12;

/// Memory grows by so much at a time, as bytes arrive: a length alone allocates nothing.
const CHUNK_BYTES: usize = 16 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something to be understood; sealed unless the mode is open.
    Message = 0,
    /// A claim, and the first message of its handshake.
    Opening = 1,
    /// The second message of a handshake.
    Acceptance = 2,
    /// We have no common handshake. No body: the version and the mode in the header say why.
    Refusal = 3,
}

/// Why a message did not come or go.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("it closed the connection")]
    Closed,
    #[error("it says nothing")]
    TimedOut,
    #[error("it does not speak like Paceline: {0}")]
    Malformed(String),
    #[error(
        "it speaks version {theirs} of the control protocol, this process version {VERSION}: run the same Paceline on all ranks"
    )]
    Version { theirs: u16 },
    #[error("{0}")]
    Security(#[from] SecurityError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Sends one frame.
///
/// # Errors
/// If the peer does not take it before the deadline.
pub(super) fn send_frame(
    socket: &TcpStream,
    kind: Kind,
    mode: Mode,
    body: &[u8],
    deadline: Instant,
) -> Result<(), MessageError> {
    let length =
        u32::try_from(body.len()).map_err(|_| MessageError::Malformed(format!("a message of {} bytes", body.len())))?;
    let version = VERSION.to_le_bytes();
    let frame = [&MAGIC[..], &version, &[kind as u8, mode as u8], &length.to_le_bytes(), body].concat();
    let mut rest = &frame[..];
    while !rest.is_empty() {
        // NOSIGNAL: a program that embeds us may not ignore SIGPIPE.
        match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => rest = &rest[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                if !wait(&mut [PollFd::new(socket, PollFlags::OUT)], deadline)? {
                    return Err(MessageError::TimedOut);
                }
            }
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(MessageError::Closed),
            Err(error) => return Err(MessageError::Io(error.into())),
        }
    }
    Ok(())
}

/// Waits for the body of one frame of this kind and mode, of at most `bytes_max` bytes.
///
/// # Errors
/// If it does not come before the deadline, is longer, or is another.
pub(super) fn receive_frame(
    socket: &TcpStream,
    kind: Kind,
    mode: Mode,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Vec<u8>, MessageError> {
    let mut assembler = Assembler::new(kind, mode, bytes_max);
    loop {
        if let Some(body) = assembler.read(socket)? {
            return Ok(body);
        }
        if !wait(&mut [PollFd::new(socket, PollFlags::IN)], deadline)? {
            return Err(MessageError::TimedOut);
        }
    }
}

pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, MessageError> {
    postcard::from_bytes(body).map_err(|error| MessageError::Malformed(error.to_string()))
}

/// Puts one frame together as its bytes arrive, and reads none beyond it.
pub(super) struct Assembler {
    bytes: Vec<u8>,
    wanted: usize,
    kind: Kind,
    mode: Mode,
    bytes_max: usize,
}

impl Assembler {
    pub(super) fn new(kind: Kind, mode: Mode, bytes_max: usize) -> Assembler {
        Assembler { bytes: Vec::new(), wanted: HEADER_BYTES, kind, mode, bytes_max }
    }

    /// Reads what is there. The body when it is complete.
    pub(super) fn read(&mut self, socket: &TcpStream) -> Result<Option<Vec<u8>>, MessageError> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            if self.bytes.len() == HEADER_BYTES && self.wanted == HEADER_BYTES {
                self.wanted += self.check_header()?;
            }
            if self.bytes.len() == self.wanted {
                return Ok(Some(self.bytes.split_off(HEADER_BYTES)));
            }
            let room = CHUNK_BYTES.min(self.wanted - self.bytes.len());
            match rustix::net::recv(socket, &mut chunk[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => return Err(MessageError::Closed),
                Ok((read, _)) => self.bytes.extend_from_slice(&chunk[..read]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(MessageError::Io(error.into())),
            }
        }
    }

    /// The length of the body.
    fn check_header(&self) -> Result<usize, MessageError> {
        let (magic, rest) = self.bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(MessageError::Malformed(format!("it begins with \"{}\"", magic.escape_ascii())));
        }
        let version = u16::from_le_bytes([rest[0], rest[1]]);
        if version != VERSION {
            return Err(MessageError::Version { theirs: version });
        }
        let Some(mode) = Mode::from_byte(rest[3]) else {
            return Err(MessageError::Malformed(format!("it has a mode of {}", rest[3])));
        };
        if let Some(error) = Mode::disagreement(mode, self.mode) {
            return Err(error.into());
        }
        if rest[2] == Kind::Refusal as u8 {
            return Err(SecurityError::Refused.into());
        }
        if rest[2] != self.kind as u8 {
            return Err(MessageError::Malformed(format!("it sends kind {}, {} is due", rest[2], self.kind as u8)));
        }
        let length = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        if length > self.bytes_max {
            let what = format!("it announces a message of {length} bytes, and {} are the most", self.bytes_max);
            return Err(MessageError::Malformed(what));
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let dialled = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        (dialled, listener.accept().expect("the other end").0)
    }

    #[test]
    fn the_page_about_errors_shows_a_refusal_by_this_version() {
        let page = include_str!("../../../../docs/errors.md");
        let refusal = MessageError::Version { theirs: VERSION + 1 }.to_string();
        let (what, _) = refusal.split_once(": ").expect("what to do stands behind it");
        assert!(page.contains(&format!("| {what} |")), "docs/errors.md does not have: {what}");
    }

    #[test]
    fn frames_of_every_size_arrive_one_by_one() {
        let (left, right) = pair();
        let deadline = Instant::now() + Duration::from_secs(20);
        let bodies: Vec<Vec<u8>> = [0, 1, 100, CHUNK_BYTES, 3_000_000].map(|bytes| vec![7; bytes]).into();
        let send = |body: &Vec<u8>| send_frame(&left, Kind::Message, Mode::Open, body, deadline);
        std::thread::scope(|scope| {
            scope.spawn(|| bodies.iter().for_each(|body| send(body).expect("a reader")));
            for body in &bodies {
                let received = receive_frame(&right, Kind::Message, Mode::Open, 4_000_000, deadline);
                assert!(received.expect("a frame") == *body);
            }
        });
    }

    #[test]
    fn strangers_are_recognised_and_deadlines_kept() {
        let soon = || Instant::now() + Duration::from_secs(1);
        let refusal = |bytes: &[u8]| {
            let (mut left, right) = pair();
            left.write_all(bytes).expect("the kernel takes a little");
            receive_frame(&right, Kind::Acceptance, Mode::Encrypted, 1000, soon()).expect_err("no frame").to_string()
        };
        assert!(refusal(b"GET / HTTP/1.1\r\n").contains("begins with \"GET \""));
        assert!(refusal(b"PcLc\x01\0\0\0\x01\0\0\0x").contains("version 1"));
        assert!(refusal(b"PcLc\x05\0\x02\x02\xff\xff\xff\xffx").contains("4294967295 bytes"));
        assert!(refusal(b"PcLc\x05\0\x00\x02\x01\0\0\0x").contains("kind 0, 2 is due"));
        assert!(refusal(b"PcLc\x05\0\x02\x09\x01\0\0\0x").contains("mode of 9"));
        assert_eq!(refusal(b"PcLc\x05\0\x03\0\0\0\0\0"), SecurityError::OnlyOurSecret.to_string());
        assert_eq!(refusal(b"PcLc\x05\0\x03\x02\0\0\0\0"), SecurityError::Refused.to_string());
        assert_eq!(refusal(b"PcLc\x05\0\x02\x02\x02\0\0\0\x01"), "it says nothing");
        let (left, right) = pair();
        drop(left);
        let error = receive_frame(&right, Kind::Message, Mode::Open, 1000, soon());
        assert!(matches!(error, Err(MessageError::Closed)));
    }
}
