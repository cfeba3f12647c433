//! A conversation with one peer over one connection, sealed if there is a secret.

use std::net::TcpStream;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use snow::TransportState;

use super::message::{Kind, MessageError, decode, receive_frame, send_frame};
use crate::security::{Claim, Credentials, Mode, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, SecurityError, TAG_BYTES};

/// Bytes of an opening or an acceptance at most: what a stranger can make us keep.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 128;

/// A connection, and what seals its messages.
pub(crate) struct Channel {
    pub(crate) socket: TcpStream,
    mode: Mode,
    /// None only if the mode is open.
    cipher: Option<Box<TransportState>>,
}

impl Channel {
    /// As the side that has dialled. If there is a secret, the answer proves that the peer knows it, too.
    ///
    /// # Errors
    /// If the peer refuses, does not know the secret, or does not answer before the deadline.
    pub(crate) fn open(
        socket: TcpStream,
        credentials: &Credentials,
        claim: Claim,
        deadline: Instant,
    ) -> Result<Channel, MessageError> {
        let mode = credentials.mode();
        if mode == Mode::Open {
            return Ok(Channel { socket, mode, cipher: None });
        }
        let (initiator, opening) = credentials.initiate(claim)?;
        send_frame(&socket, Kind::Opening, mode, &opening, deadline)?;
        let answer = receive_frame(&socket, Kind::Acceptance, mode, HANDSHAKE_BYTES_MAX, deadline)?;
        let cipher = Some(initiator.finish(&answer)?);
        Ok(Channel { socket, mode, cipher })
    }

    /// As the side that has accepted. Unless the mode is open, nothing can be said before the handshake.
    pub(super) fn accepted(socket: TcpStream, mode: Mode) -> Channel {
        Channel { socket, mode, cipher: None }
    }

    /// After the handshake.
    pub(super) fn seal_with(&mut self, cipher: Box<TransportState>) {
        self.cipher = Some(cipher);
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If the peer does not take it before the deadline.
    pub(crate) fn send(&mut self, message: &impl Serialize, deadline: Instant) -> Result<(), MessageError> {
        let body = postcard::to_stdvec(message).map_err(|error| MessageError::Malformed(error.to_string()))?;
        let body = match (self.mode, &mut self.cipher) {
            (Mode::Open, _) => body,
            (_, Some(cipher)) => seal(cipher, &body)?,
            (_, None) => return Err(SecurityError::Handshake.into()),
        };
        send_frame(&self.socket, Kind::Message, self.mode, &body, deadline)
    }

    /// Waits for one message of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it does not come before the deadline, is longer, or is none.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<T, MessageError> {
        let wire_max = on_the_wire(self.mode, bytes_max);
        let body = receive_frame(&self.socket, Kind::Message, self.mode, wire_max, deadline)?;
        decode(&self.unseal(body)?)
    }

    /// What a body says.
    pub(super) fn unseal(&mut self, body: Vec<u8>) -> Result<Vec<u8>, MessageError> {
        match (self.mode, &mut self.cipher) {
            (Mode::Open, _) => Ok(body),
            (_, Some(cipher)) => unseal(cipher, &body),
            (_, None) => Err(SecurityError::Handshake.into()),
        }
    }

    /// The socket, and what encrypts everything that follows, if everything is to be encrypted.
    pub(crate) fn into_parts(self) -> (TcpStream, Option<Box<TransportState>>) {
        (self.socket, self.cipher.filter(|_| self.mode == Mode::Encrypted))
    }
}

/// The bytes of a message of at most `bytes_max` bytes.
pub(super) fn on_the_wire(mode: Mode, bytes_max: usize) -> usize {
    match mode {
        Mode::Open => bytes_max,
        _ => bytes_max + 4 + ((bytes_max + 4) / PLAIN_BYTES_MAX + 1) * TAG_BYTES,
    }
}

/// The length, which a stranger could otherwise change at the edge of a record, and the body, in records.
fn seal(cipher: &mut TransportState, body: &[u8]) -> Result<Vec<u8>, MessageError> {
    let length =
        u32::try_from(body.len()).map_err(|_| MessageError::Malformed(format!("a message of {} bytes", body.len())))?;
    let plain = [&length.to_le_bytes()[..], body].concat();
    let mut sealed = Vec::with_capacity(plain.len() + (plain.len() / PLAIN_BYTES_MAX + 1) * TAG_BYTES);
    for piece in plain.chunks(PLAIN_BYTES_MAX) {
        let start = sealed.len();
        sealed.resize(start + piece.len() + TAG_BYTES, 0);
        cipher.write_message(piece, &mut sealed[start..]).map_err(|_| SecurityError::Handshake)?;
    }
    Ok(sealed)
}

fn unseal(cipher: &mut TransportState, sealed: &[u8]) -> Result<Vec<u8>, MessageError> {
    let mut plain = Vec::with_capacity(sealed.len());
    for record in sealed.chunks(RECORD_BYTES_MAX) {
        let start = plain.len();
        // One tag longer than what comes out: some ciphers work in place.
        plain.resize(start + record.len(), 0);
        let opened = cipher.read_message(record, &mut plain[start..]).map_err(|_| SecurityError::Handshake)?;
        plain.truncate(start + opened);
    }
    let body = plain.split_off(4.min(plain.len()));
    if plain != (body.len() as u32).to_le_bytes() {
        return Err(SecurityError::Handshake.into());
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Network;
    use crate::security::Secret;

    #[test]
    fn sealed_messages_of_every_size_open_and_changed_ones_do_not() {
        let secret = Some(Secret::from_text("0123456789abcdef", "a test").expect("long enough"));
        let credentials = Credentials::for_rendezvous(&Network { secret, ..Network::default() }, "").expect("a secret");
        let (initiator, opening) = credentials.initiate(credentials.claim(1, 0, 0)).expect("random");
        let mut right = credentials.respond(&opening, 0).expect("it fits");
        let mut left = initiator.finish(&right.message).expect("it fits");
        for bytes in [0, 1, PLAIN_BYTES_MAX - 4, PLAIN_BYTES_MAX - 3, 200_000] {
            let body: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
            let sealed = seal(&mut left, &body).expect("short enough");
            assert!(sealed.len() <= on_the_wire(Mode::Authenticated, bytes), "{bytes}");
            assert!(unseal(&mut right.cipher, &sealed).expect("unchanged") == body, "{bytes}");
        }
        // Cut at the edge of a record: each record opens, and the length tells.
        let sealed = seal(&mut left, &vec![1; 200_000]).expect("short enough");
        assert!(unseal(&mut right.cipher, &sealed[..RECORD_BYTES_MAX]).is_err());
        let mut sealed = seal(&mut left, b"x").expect("short enough");
        sealed[2] ^= 1;
        assert!(unseal(&mut right.cipher, &sealed).is_err());
        assert!(unseal(&mut right.cipher, &[]).is_err());
    }
}
