//! What one stream has received and not handed on yet.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use paceline_engine::frame::{HEADER_BYTES, Header, Kind};

use super::wire::Wire;
use crate::{LinkError, Sink, Target};

/// Headers and small payloads are read here, many per system call.
const STAGING_BYTES: usize = 128 << 10;

/// After a frame of at least this many bytes another such frame is likely: then only its header and this little of
/// its payload are read into the staging buffer, and the rest directly to where it belongs.
const DIRECT_BYTES: usize = 16 << 10;
const PEEK_BYTES: usize = 4 << 10;

/// Payload is handed out in slices of about this size, so that what is combined stays in the cache.
const SLICE_BYTES: usize = 64 << 10;

/// Parses one stream of frames. Whatever is complete is handed on at once: between calls the staging buffer holds less
/// than one header or one slice, so a sleeper that waits for the socket misses nothing.
pub(super) struct Inbox {
    staging: Box<[u8]>,
    /// Of the bytes in `staging` that were not handed on yet; they start at 0 between calls.
    staged: usize,
    current: Option<Current>,
    previous_was_large: bool,
    end: bool,
    goodbyes: usize,
    goodbye: Header,
}

/// A frame of which the header was read.
struct Current {
    header: Header,
    target: Target,
    done: usize,
    total: usize,
}

// SAFETY: the address in `target` is of memory that is exclusively the link's until the frame ends (contract of
// `Target::Memory`); nothing ties it to a thread. All other fields are Send.
unsafe impl Send for Current {}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            staged: 0,
            current: None,
            previous_was_large: false,
            end: false,
            goodbyes: 0,
            goodbye: Header::default(),
        }
    }

    /// Nothing more will come on this stream.
    pub(super) fn at_end(&self) -> bool {
        self.end
    }

    /// How many goodbyes have come on this stream. The link hands them on, not the inbox.
    pub(super) fn goodbyes(&self) -> usize {
        self.goodbyes
    }

    /// The last of them.
    pub(super) fn goodbye(&self) -> Header {
        self.goodbye
    }

    /// Reads at most about `budget` bytes and hands them on. Returns how many it read.
    pub(super) fn read(&mut self, wire: &mut Wire, budget: usize, sink: &mut dyn Sink) -> Result<usize, LinkError> {
        let mut total = 0;
        while total < budget && !self.end {
            let (read, offered) = match self.read_once(wire, budget - total) {
                Ok(counts) => counts,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The peer's process died with unread bytes, or its host came back without the connection.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => (0, 0),
                // Only what decrypts is data.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(LinkError::Protocol { what: error.to_string() });
                }
                Err(source) => return Err(LinkError::Io { doing: "reading from the connection", source }),
            };
            if read == 0 {
                self.end = true;
                break;
            }
            total += read;
            self.hand_on(sink)?;
            if read < offered {
                break;
            }
        }
        Ok(total)
    }

    /// Writes no more to the memory that the sink gave: what is left of the frame that is arriving is forgotten.
    pub(super) fn abandon(&mut self) {
        if let Some(Current { target: target @ Target::Memory(_), .. }) = &mut self.current {
            *target = Target::Discard;
        }
    }

    /// Reads and forgets what has arrived, at most about `budget` bytes. Nothing is handed on any more.
    pub(super) fn discard(&mut self, stream: &TcpStream, budget: usize) {
        (self.current, self.staged) = (None, 0);
        let mut total = 0;
        while total < budget && !self.end {
            match rustix::io::read(stream, &mut self.staging[..]) {
                Ok(0) => self.end = true,
                Ok(read) => total += read,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => self.end = true,
            }
        }
    }

    /// One system call. Payload for `Target::Memory` goes where it belongs; the rest, and what follows, is staged.
    fn read_once(&mut self, wire: &mut Wire, budget: usize) -> io::Result<(usize, usize)> {
        let limit = if self.previous_was_large { self.staged + PEEK_BYTES } else { STAGING_BYTES };
        if let Some(Current { target: Target::Memory(into), done, total, .. }) = &mut self.current {
            debug_assert_eq!(self.staged, 0, "staged bytes go to the target before anything is read");
            let direct = (*total - *done).min(budget);
            // SAFETY: the sink gave memory that is valid for the frame's `total` bytes and exclusively ours until
            // `end`; `done + direct <= total`.
            let memory = unsafe { std::slice::from_raw_parts_mut(into.add(*done), direct) };
            // What follows a frame is worth reading only if the frame is read to its end.
            let follow = if direct == *total - *done { limit } else { 0 };
            let mut slices = [IoSliceMut::new(memory), IoSliceMut::new(&mut self.staging[..follow])];
            let read = wire.receive_into(&mut slices)?;
            *done += read.min(direct);
            self.staged = read.saturating_sub(direct);
            return Ok((read, direct + follow));
        }
        // A slice that the sink wants in pieces passes through the staging buffer: no longer than fits the cache.
        let limit = if self.current.is_some() { self.staged.max(SLICE_BYTES) + PEEK_BYTES } else { limit };
        let room = &mut self.staging[self.staged..limit.min(STAGING_BYTES)];
        let offered = room.len();
        let read = wire.receive(room)?;
        self.staged += read;
        Ok((read, offered))
    }

    /// Hands on all that is complete, and moves the rest to the front.
    fn hand_on(&mut self, sink: &mut dyn Sink) -> Result<(), LinkError> {
        let mut at = 0;
        loop {
            let staged = &self.staging[at..self.staged];
            let Some(current) = &mut self.current else {
                let Some(bytes) = staged.get(..HEADER_BYTES) else { break };
                let header: Header = bytemuck::pod_read_unaligned(bytes);
                at += HEADER_BYTES;
                self.begin(&header, sink)?;
                continue;
            };
            let used = current.take(staged, sink)?;
            at += used;
            if current.done == current.total {
                sink.end(&current.header)?;
                self.current = None;
            } else if used == 0 {
                break;
            }
        }
        self.staging.copy_within(at..self.staged, 0);
        self.staged -= at;
        Ok(())
    }

    fn begin(&mut self, header: &Header, sink: &mut dyn Sink) -> Result<(), LinkError> {
        let refuse = |what: &str| LinkError::Protocol { what: format!("sent a frame that {what}") };
        match header.check().map_err(refuse)? {
            Kind::Goodbye => {
                self.goodbyes += 1;
                self.goodbye = *header;
                return Ok(());
            }
            Kind::Reference => return Err(refuse("refers to its memory, which TCP cannot reach")),
            _ => {}
        }
        let total = header.wire_payload_bytes() as usize;
        self.previous_was_large = total >= DIRECT_BYTES;
        let mut target = sink.begin(header)?;
        if let Target::Slices(granularity) = &mut target {
            *granularity = (*granularity).max(1);
            assert!(*granularity <= SLICE_BYTES, "a sink asks for slices of {granularity} bytes at least");
        }
        self.current = Some(Current { header: *header, target, done: 0, total });
        Ok(())
    }
}

impl Current {
    /// Takes from `staged` what can be handed on. Returns how many bytes.
    fn take(&mut self, staged: &[u8], sink: &mut dyn Sink) -> Result<usize, LinkError> {
        let available = staged.len().min(self.total - self.done);
        let used = match self.target {
            Target::Memory(into) => {
                // SAFETY: the sink gave memory that is valid for the frame's `total` bytes and exclusively ours until
                // `end`; `done + available <= total`.
                unsafe { std::ptr::copy_nonoverlapping(staged.as_ptr(), into.add(self.done), available) };
                available
            }
            Target::Discard => available,
            Target::Slices(granularity) => {
                let completes = available == self.total - self.done;
                let used = if completes { available } else { available - available % granularity };
                let slice_bytes = SLICE_BYTES - SLICE_BYTES % granularity;
                for (index, slice) in staged[..used].chunks(slice_bytes).enumerate() {
                    sink.bytes(&self.header, self.done + index * slice_bytes, slice)?;
                }
                used
            }
        };
        self.done += used;
        Ok(used)
    }
}
