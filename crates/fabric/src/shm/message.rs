//! What two ranks say to each other over a Unix socket while they find out whether they share memory.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

/// The version of these messages and of the layout of the shared memory.
pub(super) const VERSION: u32 = 3;

/// Longer messages are refused.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The most descriptors in a message.
const DESCRIPTORS_MAX: usize = 4;

/// 16 bytes that nobody can guess.
pub(super) type Nonce = [u8; 16];

/// What the other ranks need to know of a rank; it travels by the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) version: u32,
    /// The abstract name of its Unix socket.
    pub(super) name: Nonce,
    /// Who knows it has it from the rendezvous. (Names of sockets are public, in /proc/net/unix.)
    pub(super) secret: Nonce,
}

/// The messages, in order: `Hello` from the higher rank and from the lower, `Proof` from the higher and from the lower,
/// `Done` from the higher. Each may be `Refused` instead. If there is a secret, all are `Sealed` after `Hello`, but for what
/// the lower rank refuses: the other side may be anybody.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// With the descriptors of the arena and the doorbell; from the lower rank of the segment, and of its attachment.
    Hello {
        version: u32,
        rank: u32,
        /// [`Card::secret`] of the one spoken to.
        secret: Nonce,
        ring_bytes: u64,
        arena_bytes: u64,
        /// An address in the sender's process where 16 random bytes lie, to try a single copy on.
        probe: u64,
        /// Does the sender use references at all?
        references: bool,
        /// The sender's part of the Noise handshake; empty if it has no secret.
        handshake: Vec<u8>,
    },
    /// What the sender has read from the peer's memory.
    Proof {
        /// From the shared segment.
        seen: Nonce,
        /// From the peer's process, or the number of the error.
        probed: Result<Nonce, i32>,
        /// Has it mapped the peer's arena?
        arena_mapped: bool,
    },
    /// Another message, encrypted with the keys that the handshake has given.
    Sealed(Vec<u8>),
    /// The link is established.
    Done,
    /// It is not.
    Refused { reason: String },
}

/// Of the reason of a refusal: it fits into a message whatever its characters are, sealed, too.
const REASON_CHARS_MAX: usize = 240;

impl Message {
    /// There is no link, for this reason.
    pub(super) fn refusal(reason: &str) -> Message {
        Message::Refused { reason: reason.chars().take(REASON_CHARS_MAX).collect() }
    }
}

/// What a refusal is to who hears it.
pub(super) fn refused(reason: &str) -> String {
    format!("the other side refuses: {reason}")
}

/// Sends a message with descriptors; the socket's buffer has room, as messages are few and short.
pub(super) fn send(socket: BorrowedFd<'_>, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    let bytes = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    send_bytes(socket, &bytes, fds)
}

/// Sends what need not be a message.
pub(super) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "a message has at most four descriptors");
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("sending over the Unix socket: {error}")),
        }
    }
}

/// Waits for a message and its descriptors. A refusal becomes an error.
pub(super) fn receive(socket: BorrowedFd<'_>, deadline: Instant) -> Result<(Message, Vec<OwnedFd>), String> {
    loop {
        match try_receive(socket)? {
            Some((Message::Refused { reason }, _)) => return Err(refused(&reason)),
            Some(received) => return Ok(received),
            None if !readable(&[socket], deadline).map_err(|error| error.to_string())?.is_empty() => {}
            None => return Err("the other side did not answer within the time".into()),
        }
    }
}

/// Receives a message if one is there.
pub(super) fn try_receive(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, String> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        result => result.map_err(|error| format!("receiving over the Unix socket: {error}"))?,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Err("the other side closed the Unix socket".into());
    }
    let bytes = bytes.get(..received.bytes).unwrap_or_default();
    let message = postcard::from_bytes(bytes).map_err(|_| "the other side speaks another language".to_owned())?;
    Ok(Some((message, fds)))
}

/// Waits until one of the sockets can be read; which ones, none if the deadline has passed.
pub(super) fn readable(sockets: &[BorrowedFd<'_>], deadline: Instant) -> std::io::Result<Vec<usize>> {
    let mut fds: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left > Duration::ZERO => {}
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((0..fds.len()).filter(|index| !fds[*index].revents().is_empty()).collect())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Checks that the process behind a socket runs as the same user, and says which process it is: 0 if it is in a PID
/// namespace that cannot be seen from here.
pub(super) fn same_user(socket: BorrowedFd<'_>) -> Result<i32, String> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` to `credentials`, which is that long and has no invalid values. (The
    // safe wrapper cannot express a process number of 0.)
    let status = unsafe {
        let into = std::ptr::from_mut(&mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut bytes)
    };
    if status != 0 {
        return Err(format!("asking who is behind the Unix socket: {}", std::io::Error::last_os_error()));
    }
    let (mine, theirs) = (rustix::process::geteuid().as_raw(), credentials.uid);
    if mine != theirs {
        return Err(format!("the other process runs as user {theirs}, this one as user {mine}"));
    }
    Ok(credentials.pid)
}
