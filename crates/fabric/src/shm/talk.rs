//! What two ranks say to each other once they have greeted: sealed, if they have a secret.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use snow::TransportState;

use super::message::{Message, receive, refused, send};
use crate::security::{SecurityError, TAG_BYTES};

/// A conversation over a Unix socket.
pub(super) struct Talk<'a> {
    pub(super) socket: BorrowedFd<'a>,
    /// None before the greetings, or if there is no secret.
    pub(super) cipher: Option<Box<TransportState>>,
    /// Has the other side said something sealed? Then it knows the secret.
    pub(super) is_proven: bool,
}

impl<'a> Talk<'a> {
    /// In the open, to begin with.
    pub(super) fn new(socket: BorrowedFd<'a>) -> Talk<'a> {
        Talk { socket, cipher: None, is_proven: false }
    }

    /// Tells the other side why there is no link.
    pub(super) fn refuse(&mut self, reason: &str) {
        // If the socket is broken, its end is the message.
        let _ = self.send(&Message::refusal(reason));
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let Some(cipher) = &mut self.cipher else { return send(self.socket, message, &[]) };
        let plain = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
        let mut sealed = vec![0; plain.len() + TAG_BYTES];
        let bytes = cipher.write_message(&plain, &mut sealed).map_err(|error| error.to_string())?;
        sealed.truncate(bytes);
        send(self.socket, &Message::Sealed(sealed), &[])
    }

    /// Waits for a message. A refusal becomes an error.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message, String> {
        let message = receive(self.socket, deadline)?.0;
        let Some(cipher) = &mut self.cipher else { return Ok(message) };
        let Message::Sealed(sealed) = message else {
            return Err(SecurityError::Handshake.to_string());
        };
        let mut plain = vec![0; sealed.len()];
        let bytes = cipher.read_message(&sealed, &mut plain).map_err(|_| SecurityError::Handshake.to_string())?;
        self.is_proven = true;
        match postcard::from_bytes(&plain[..bytes]) {
            Ok(Message::Refused { reason }) => Err(refused(&reason)),
            Ok(message) => Ok(message),
            Err(_) => Err("the other side speaks another language".to_owned()),
        }
    }
}
