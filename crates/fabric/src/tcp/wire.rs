//! What lies between a stream's frames and its socket: nothing, or encryption.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use snow::TransportState;

use crate::control::Channel;
use crate::security::{PLAIN_BYTES_MAX, RECORD_BYTES_MAX, TAG_BYTES};

/// Each record is preceded by its length, the most significant byte first.
const LENGTH_BYTES: usize = 2;

/// Records that are sealed, or read, at a time: enough for one system call, few enough for an urgent frame to wait for.
const BATCH_RECORDS: usize = 2;
const BATCH_BYTES: usize = BATCH_RECORDS * (LENGTH_BYTES + RECORD_BYTES_MAX);

/// Both sides draw a new key after so many records of a direction: 64 GiB. The analysis of AES-GCM in TLS (Luykx and
/// Paterson, "Limits on authenticated encryption use in TLS", 2016) allows several times as much for an advantage
/// of 2^-60.
const REKEY_RECORDS: u64 = 1 << 20;

/// A connection that carries bytes as they are, or encrypted.
pub(super) enum Wire {
    Plain(TcpStream),
    Sealed(Box<Sealed>),
}

/// A connection that carries Noise transport messages.
pub(super) struct Sealed {
    socket: TcpStream,
    cipher: Box<TransportState>,
    rekey_records: u64,
    records_out: u64,
    records_in: u64,
    /// Plain bytes of a record that come from several places.
    gathered: Vec<u8>,
    /// Records that are sealed and not sent: `written..` of it.
    outgoing: Vec<u8>,
    written: usize,
    /// What was read and not opened: `opened..read` of it.
    incoming: Box<[u8]>,
    opened: usize,
    read: usize,
    /// What was opened and not taken: `taken..` of it.
    plain: Vec<u8>,
    taken: usize,
    /// The last read got less than it asked for: there is no more for now.
    drained: bool,
    end: bool,
}

impl From<Channel> for Wire {
    fn from(channel: Channel) -> Wire {
        match channel.into_parts() {
            (socket, None) => Wire::Plain(socket),
            (socket, Some(cipher)) => Wire::Sealed(Box::new(Sealed::new(socket, cipher, REKEY_RECORDS))),
        }
    }
}

impl Wire {
    /// The socket, for its options and to wait for.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Sealed(sealed) => &sealed.socket,
        }
    }

    /// Sends what it can of these bytes. Returns how many are not needed any more; `AGAIN` if none.
    #[inline]
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match self {
            Wire::Plain(socket) => sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), FLAGS),
            Wire::Sealed(sealed) => sealed.send(slices),
        }
    }

    /// Sends what it has kept. True if some of it went out.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<bool, Errno> {
        match self {
            Wire::Plain(_) => Ok(false),
            Wire::Sealed(sealed) => sealed.flush(),
        }
    }

    /// Bytes that it has kept.
    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        match self {
            Wire::Plain(_) => 0,
            Wire::Sealed(sealed) => sealed.outgoing.len() - sealed.written,
        }
    }

    /// Nothing that it has kept will be sent.
    pub(super) fn forget_unsent(&mut self) {
        if let Wire::Sealed(sealed) = self {
            (sealed.written, _) = (0, sealed.outgoing.clear());
        }
    }

    /// As read(2): what has arrived, 0 at the end. Fewer bytes than there is room for mean that there are no more now.
    #[inline]
    pub(super) fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => Ok(rustix::io::read(socket, room)?),
            Wire::Sealed(sealed) => sealed.receive(&mut [IoSliceMut::new(room)]),
        }
    }

    /// The same for several places, as readv(2).
    #[inline]
    pub(super) fn receive_into(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => Ok(rustix::io::readv(socket, rooms)?),
            Wire::Sealed(sealed) => sealed.receive(rooms),
        }
    }
}

/// NOSIGNAL: a program that embeds us may not ignore SIGPIPE.
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

impl Sealed {
    pub(super) fn new(socket: TcpStream, cipher: Box<TransportState>, rekey_records: u64) -> Sealed {
        Sealed {
            socket,
            cipher,
            rekey_records,
            records_out: 0,
            records_in: 0,
            gathered: Vec::with_capacity(PLAIN_BYTES_MAX),
            outgoing: Vec::with_capacity(BATCH_BYTES),
            written: 0,
            incoming: vec![0; BATCH_BYTES].into_boxed_slice(),
            opened: 0,
            read: 0,
            plain: Vec::with_capacity(RECORD_BYTES_MAX),
            taken: 0,
            drained: false,
            end: false,
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let total = slices.iter().map(|slice| slice.len()).sum();
        let mut rest = Rest { slices, offset: 0 };
        let mut sealed = 0;
        loop {
            // What is sealed goes first, and only a batch at a time is: what waits here can't be overtaken.
            self.flush()?;
            if !self.outgoing.is_empty() || sealed == total {
                break;
            }
            for _ in 0..BATCH_RECORDS {
                sealed += self.seal_some(&mut rest)?;
            }
        }
        if sealed == 0 && total > 0 { Err(Errno::AGAIN) } else { Ok(sealed) }
    }

    fn flush(&mut self) -> Result<bool, Errno> {
        let mut moved = false;
        while self.written < self.outgoing.len() {
            match rustix::net::send(&self.socket, &self.outgoing[self.written..], FLAGS) {
                Ok(sent) => self.written += sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(moved),
                Err(error) => return Err(error),
            }
            moved = true;
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(moved)
    }

    /// Seals at most one record. Returns how many bytes it holds.
    fn seal_some(&mut self, rest: &mut Rest<'_, '_>) -> Result<usize, Errno> {
        if let Some(slice) = rest.next(PLAIN_BYTES_MAX, PLAIN_BYTES_MAX) {
            // A whole record from one place: sealed from there.
            seal(&mut self.cipher, slice, &mut self.outgoing)?;
            self.count_out();
            return Ok(slice.len());
        }
        self.gathered.clear();
        while let Some(slice) = rest.next(1, PLAIN_BYTES_MAX - self.gathered.len()) {
            self.gathered.extend_from_slice(slice);
        }
        if !self.gathered.is_empty() {
            seal(&mut self.cipher, &self.gathered, &mut self.outgoing)?;
            self.count_out();
        }
        Ok(self.gathered.len())
    }

    fn count_out(&mut self) {
        self.records_out += 1;
        if self.records_out.is_multiple_of(self.rekey_records) {
            self.cipher.rekey_outgoing();
        }
    }

    fn receive(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let total: usize = rooms.iter().map(|room| room.len()).sum();
        let mut given = 0;
        for room in rooms {
            let mut filled = 0;
            while filled < room.len() {
                if self.taken == self.plain.len() {
                    match self.open_into(&mut room[filled..])? {
                        Opened::Direct(bytes) => filled += bytes,
                        Opened::Kept => {}
                        Opened::Nothing => return self.outcome(given + filled, total),
                    }
                    continue;
                }
                let bytes = (room.len() - filled).min(self.plain.len() - self.taken);
                room[filled..filled + bytes].copy_from_slice(&self.plain[self.taken..self.taken + bytes]);
                self.taken += bytes;
                filled += bytes;
            }
            given += filled;
        }
        self.outcome(given, total)
    }

    /// No bytes are the end only at the end.
    fn outcome(&mut self, given: usize, total: usize) -> io::Result<usize> {
        self.drained = false;
        if given == 0 && total > 0 && !self.end { Err(Errno::AGAIN.into()) } else { Ok(given) }
    }

    /// Opens the next record, straight to `room` if it fits, else to `plain`.
    fn open_into(&mut self, room: &mut [u8]) -> io::Result<Opened> {
        let Some(record) = self.next_record()? else { return Ok(Opened::Nothing) };
        let (start, bytes) = record;
        let sealed = &self.incoming[start..start + bytes];
        // The cipher works in place: it wants room for the tag, too.
        let direct = bytes <= room.len();
        let into = if direct {
            &mut room[..bytes]
        } else {
            self.plain.resize(bytes, 0);
            &mut self.plain[..]
        };
        let opened = self.cipher.read_message(sealed, into).map_err(|_| {
            invalid("sent what does not decrypt: something between the hosts has changed it, or it is not the peer")
        })?;
        self.opened = start + bytes;
        self.records_in += 1;
        if self.records_in.is_multiple_of(self.rekey_records) {
            self.cipher.rekey_incoming();
        }
        if direct {
            return Ok(Opened::Direct(opened));
        }
        self.plain.truncate(opened);
        self.taken = 0;
        Ok(Opened::Kept)
    }

    /// Where the next record lies in `incoming`, when it is complete. Reads what is missing.
    fn next_record(&mut self) -> io::Result<Option<(usize, usize)>> {
        loop {
            let staged = &self.incoming[self.opened..self.read];
            if let [high, low, rest @ ..] = staged {
                let bytes = usize::from(u16::from_be_bytes([*high, *low]));
                if bytes <= TAG_BYTES {
                    return Err(invalid("sent an empty record"));
                }
                if rest.len() >= bytes {
                    return Ok(Some((self.opened + LENGTH_BYTES, bytes)));
                }
            }
            if self.end || self.drained {
                return Ok(None);
            }
            self.incoming.copy_within(self.opened..self.read, 0);
            (self.read, self.opened) = (self.read - self.opened, 0);
            let room = &mut self.incoming[self.read..];
            let offered = room.len();
            match rustix::io::read(&self.socket, room) {
                Ok(0) => self.end = true,
                Ok(read) => {
                    self.read += read;
                    self.drained = read < offered;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.drained = true,
                Err(Errno::CONNRESET) => self.end = true,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

enum Opened {
    Direct(usize),
    Kept,
    Nothing,
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Appends a record to `outgoing`.
pub(super) fn seal(cipher: &mut TransportState, plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Errno> {
    let (start, bytes) = (outgoing.len(), plain.len() + TAG_BYTES);
    outgoing.resize(start + LENGTH_BYTES + bytes, 0);
    outgoing[start..start + LENGTH_BYTES].copy_from_slice(&(bytes as u16).to_be_bytes());
    // Fails only when 2^64 records were sent.
    cipher.write_message(plain, &mut outgoing[start + LENGTH_BYTES..]).map_err(|_| Errno::OVERFLOW)?;
    Ok(())
}

/// What of some slices is still to be sealed.
struct Rest<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    offset: usize,
}

impl<'a> Rest<'a, '_> {
    /// The next bytes that lie together: between `least` and `most`, or None.
    fn next(&mut self, least: usize, most: usize) -> Option<&'a [u8]> {
        while let Some(slice) = self.slices.first() {
            let rest = &slice[self.offset..];
            if rest.is_empty() {
                (self.slices, self.offset) = (&self.slices[1..], 0);
                continue;
            }
            let bytes = rest.len().min(most);
            if bytes < least {
                return None;
            }
            self.offset += bytes;
            return Some(&rest[..bytes]);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::environment::Network;
    use crate::security::{Credentials, Secret};

    /// Both ends of a connection with small buffers.
    fn pair(rekey_records: u64) -> (Wire, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let left = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let right = listener.accept().expect("the other end").0;
        for socket in [&left, &right] {
            socket.set_nonblocking(true).expect("a socket");
            socket2::SockRef::from(socket).set_send_buffer_size(40_000).expect("a socket");
        }
        let network = Network { secret: Secret::generate().ok(), encrypt: true, ..Network::default() };
        let credentials = Credentials::for_links(&network, "", &[0; 16]).expect("a secret");
        let (initiator, opening) = credentials.initiate(credentials.claim(1, 0, 0)).expect("random");
        let response = credentials.respond(&opening, 0).expect("it fits");
        let cipher = initiator.finish(&response.message).expect("it fits");
        let sealed = |socket, cipher| Wire::Sealed(Box::new(Sealed::new(socket, cipher, rekey_records)));
        (sealed(left, cipher), sealed(right, response.cipher))
    }

    /// A number below `bound` (SplitMix64).
    fn random(state: &mut u64, bound: usize) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    #[test]
    fn bytes_arrive_whatever_the_pieces_and_the_room() {
        for seed in 0..40 {
            let mut state = seed;
            let (mut left, mut right) = pair(1 + seed);
            let sent: Vec<u8> = (0..1_000_000).map(|_| random(&mut state, 256) as u8).collect();
            let (mut at, mut received) = (0, Vec::new());
            while received.len() < sent.len() {
                let mut pieces: Vec<IoSlice<'_>> = Vec::new();
                let mut next = at;
                for _ in 0..random(&mut state, 5) {
                    let most = [100, 1000, 300_000][random(&mut state, 3)];
                    let end = sent.len().min(next + random(&mut state, most));
                    pieces.push(IoSlice::new(&sent[next..end]));
                    next = end;
                }
                match left.send(&pieces) {
                    Ok(taken) => at += taken,
                    Err(error) => assert_eq!(error, Errno::AGAIN),
                }
                left.flush().expect("a connection");
                let most = [100, 200_000][random(&mut state, 2)];
                let (mut one, mut two) = (vec![0; 1 + random(&mut state, most)], vec![0; random(&mut state, 100_000)]);
                let bytes = match right.receive_into(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        0
                    }
                };
                received.extend([one, two].concat().into_iter().take(bytes));
                assert!(received == sent[..received.len()], "seed {seed}");
            }
            assert_eq!((left.unsent_bytes(), at), (0, sent.len()));
            // The end is an end.
            drop(left);
            assert_eq!(right.receive(&mut [0; 10]).expect("an end"), 0);
        }
    }

    #[test]
    fn what_was_changed_cut_or_said_again_is_not_given_on() {
        for (change, expected) in
            [("none", Ok(5)), ("bit", Err("does not decrypt")), ("again", Err("does not decrypt"))]
        {
            let (mut left, mut right) = pair(REKEY_RECORDS);
            let Wire::Sealed(sealed) = &mut left else { unreachable!("it is sealed") };
            let mut record = Vec::new();
            seal(&mut sealed.cipher, b"hello", &mut record).expect("the first record");
            if change == "bit" {
                record[4] ^= 1;
            }
            sealed.socket.write_all(&record).expect("room");
            if change == "again" {
                assert_eq!(right.receive(&mut [0; 10]).expect("the first time"), 5);
                sealed.socket.write_all(&record).expect("room");
            }
            let outcome = right.receive(&mut [0; 10]).map_err(|error| error.to_string());
            match expected {
                Ok(bytes) => assert_eq!(outcome, Ok(bytes)),
                Err(part) => assert!(outcome.expect_err(change).contains(part)),
            }
        }
        for bytes in [0, 1, 16] {
            let (mut left, mut right) = pair(REKEY_RECORDS);
            let Wire::Sealed(sealed) = &mut left else { unreachable!("it is sealed") };
            sealed.socket.write_all(&[0, bytes]).expect("room");
            assert_eq!(right.receive(&mut [0; 10]).expect_err("no record").kind(), io::ErrorKind::InvalidData);
        }
        // Half a record and the end: nothing of it is given on. (The end is seen by the read after the last bytes.)
        let (mut left, mut right) = pair(REKEY_RECORDS);
        let Wire::Sealed(sealed) = &mut left else { unreachable!("it is sealed") };
        sealed.socket.write_all(&[0, 21, 1, 2, 3]).expect("room");
        drop(left);
        assert_eq!(right.receive(&mut [0; 10]).expect_err("not yet").kind(), io::ErrorKind::WouldBlock);
        assert_eq!(right.receive(&mut [0; 10]).expect("an end"), 0);
    }
}
