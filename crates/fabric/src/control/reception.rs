use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde::de::DeserializeOwned;

use super::channel::{Channel, HANDSHAKE_BYTES_MAX, on_the_wire};
use super::message::{Assembler, Kind, MessageError, decode, send_frame};
use super::wait;
use crate::security::{Claim, Credentials, Mode};

/// How long a connection may take over its handshake and its first message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections that have said nothing yet. With more, the oldest goes: strangers can't use up the descriptors.
const PENDING_MAX: usize = 512;

/// Connections accepted in a row, before those that wait are looked at and the time is.
const ACCEPTED_MAX: usize = 64;

/// Strangers that are worth a line each.
const NOTES_MAX: usize = 32;

/// Accepts connections, and from each its handshake (if there is a secret) and one message, all at a time: one that
/// stalls holds nobody up.
pub(crate) struct Reception<'a> {
    listeners: &'a [TcpListener],
    credentials: &'a Credentials,
    /// Of this process: what is meant for others is turned away.
    rank: u32,
    pending: Vec<Pending>,
    bytes_max: usize,
    patience: Duration,
    notes: Vec<String>,
}

struct Pending {
    channel: Channel,
    /// What the handshake is about; None before it, and without a secret.
    claim: Option<Claim>,
    from: SocketAddr,
    assembler: Assembler,
    deadline: Instant,
}

/// A connection that has sent its first message. If there is a secret, its other end knows it.
pub(crate) struct Arrival {
    pub(crate) channel: Channel,
    /// What was proven by the handshake; None without a secret.
    pub(crate) claim: Option<Claim>,
    pub(crate) from: SocketAddr,
    body: Vec<u8>,
}

/// What [`Reception::next`] waited for.
pub(crate) enum Event {
    /// A connection has sent its first message.
    Arrival(Arrival),
    /// The watched connection with this index has ended (or says what nobody has asked for).
    Left(usize),
    /// Nothing happened in time.
    TimedOut,
}

impl Arrival {
    /// The message.
    pub(crate) fn message<T: DeserializeOwned>(&self) -> Result<T, MessageError> {
        decode(&self.body)
    }
}

impl<'a> Reception<'a> {
    /// At these (listening) sockets, as this rank, for messages of at most `bytes_max` bytes.
    pub(crate) fn new(
        listeners: &'a [TcpListener],
        credentials: &'a Credentials,
        rank: u32,
        bytes_max: usize,
    ) -> io::Result<Reception<'a>> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let (pending, notes) = (Vec::new(), Vec::new());
        Ok(Reception { listeners, credentials, rank, pending, bytes_max, patience: PATIENCE, notes })
    }

    /// Who was turned away, and why.
    pub(crate) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    /// As [`Reception::into_notes`].
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Notes who was turned away.
    pub(crate) fn turned_away(&mut self, from: SocketAddr, why: &dyn std::fmt::Display) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("turned away {from}: {why}"));
        }
    }

    /// Waits for the next event.
    pub(crate) fn next(&mut self, watched: &[&TcpStream], until: Instant) -> io::Result<Event> {
        loop {
            let ready = self.wait(watched, until)?;
            if let Some(index) = ready.left {
                return Ok(Event::Left(index));
            }
            if let Some(arrival) = self.read_pending() {
                return Ok(Event::Arrival(arrival));
            }
            for index in ready.listeners {
                self.accept(index)?;
            }
            if ready.late {
                return Ok(Event::TimedOut);
            }
        }
    }

    fn wait(&self, watched: &[&TcpStream], until: Instant) -> io::Result<Ready> {
        let all = self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let all = all.chain(watched.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)));
        let mut all: Vec<PollFd<'_>> =
            all.chain(self.pending.iter().map(|pending| PollFd::new(&pending.channel.socket, PollFlags::IN))).collect();
        let patience_ends = self.pending.iter().map(|pending| pending.deadline).min();
        wait(&mut all, patience_ends.map_or(until, |end| end.min(until)))?;
        // Also when something is ready: with many strangers something always is.
        let late = Instant::now() >= until;
        let (listeners, rest) = all.split_at(self.listeners.len());
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let left = watched.iter().zip(rest).position(|(socket, descriptor)| is_ready(descriptor) && has_left(socket));
        let listeners = listeners.iter().enumerate().filter(|(_, descriptor)| is_ready(descriptor));
        Ok(Ready { listeners: listeners.map(|(index, _)| index).collect(), left, late })
    }

    /// Reads from all; the first that is complete. Drops those that end, talk nonsense or take too long.
    fn read_pending(&mut self) -> Option<Arrival> {
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            let outcome = match pending.advance(self.credentials, self.rank, self.bytes_max) {
                Ok(None) if Instant::now() < pending.deadline => {
                    index += 1;
                    continue;
                }
                Ok(None) => Err(MessageError::TimedOut),
                Ok(Some(body)) => Ok(body),
                Err(error) => Err(error),
            };
            let Pending { channel, claim, from, .. } = self.pending.remove(index);
            match outcome {
                Ok(body) => return Some(Arrival { channel, claim, from, body }),
                Err(error) => self.refuse(&channel, from, &error),
            }
        }
        None
    }

    /// Turns a connection away. Whoever speaks our language is told what we are, so that it can say what is wrong.
    fn refuse(&mut self, channel: &Channel, from: SocketAddr, error: &MessageError) {
        if let MessageError::Security(_) | MessageError::Version { .. } = error {
            // Without waiting: the buffer of a new connection has room, and nobody is owed an answer.
            let _ = send_frame(&channel.socket, Kind::Refusal, self.credentials.mode(), &[], Instant::now());
        }
        self.turned_away(from, error);
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        for _ in 0..ACCEPTED_MAX {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => self.admit(socket, from)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    // No descriptors left: strangers may hold them.
                    Some(Errno::MFILE | Errno::NFILE) if !self.pending.is_empty() => {
                        self.drop_oldest(&format!("it says nothing, and others could not be answered ({error})"));
                    }
                    Some(Errno::MFILE | Errno::NFILE) => return Err(error),
                    // The connection was gone before it was accepted (accept(2) lists what else it may report).
                    _ => return Ok(()),
                },
            }
        }
        Ok(())
    }

    fn admit(&mut self, socket: TcpStream, from: SocketAddr) -> io::Result<()> {
        if self.pending.len() == PENDING_MAX {
            self.drop_oldest("too many others are waiting, and it says nothing");
        }
        socket.set_nonblocking(true)?;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let mode = self.credentials.mode();
        let assembler = match mode {
            Mode::Open => Assembler::new(Kind::Message, mode, self.bytes_max),
            _ => Assembler::new(Kind::Opening, mode, HANDSHAKE_BYTES_MAX),
        };
        let (channel, deadline) = (Channel::accepted(socket, mode), Instant::now() + self.patience);
        self.pending.push(Pending { channel, claim: None, from, assembler, deadline });
        Ok(())
    }

    fn drop_oldest(&mut self, why: &str) {
        let oldest = self.pending.remove(0);
        self.turned_away(oldest.from, &why);
    }
}

impl Pending {
    /// Reads what is there, and answers an opening. The first message when it is complete.
    fn advance(
        &mut self,
        credentials: &Credentials,
        rank: u32,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, MessageError> {
        loop {
            let Some(body) = self.assembler.read(&self.channel.socket)? else { return Ok(None) };
            let mode = credentials.mode();
            if mode == Mode::Open || self.claim.is_some() {
                return self.channel.unseal(body).map(Some);
            }
            let response = credentials.respond(&body, rank)?;
            // It has room for an answer, or it is not one of ours.
            send_frame(&self.channel.socket, Kind::Acceptance, mode, &response.message, Instant::now())?;
            self.claim = Some(response.claim);
            self.channel.seal_with(response.cipher);
            self.assembler = Assembler::new(Kind::Message, mode, on_the_wire(mode, bytes_max));
        }
    }
}

struct Ready {
    listeners: Vec<usize>,
    left: Option<usize>,
    late: bool,
}

/// A connection that was told to wait has nothing to say: whatever can be read is its end or nonsense.
pub(crate) fn has_left(socket: &TcpStream) -> bool {
    let read = rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
    !matches!(read, Err(Errno::AGAIN | Errno::INTR))
}
