//! What two ranks say to each other once they have greeted: sealed, if they have a secret.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use snow::TransportState;

use super::message::{Message, receive, send};
use crate::security::SecurityError;

/// What encryption adds to a message.
const TAG_BYTES: usize = 16;

/// A conversation over a Unix socket.
pub(super) struct Talk<'a> {
    pub(super) socket: BorrowedFd<'a>,
    /// None only if there is no secret.
    pub(super) cipher: Option<Box<TransportState>>,
}

impl Talk<'_> {
    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let Some(cipher) = &mut self.cipher else { return send(self.socket, message, &[]) };
        let plain = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
        let mut sealed = vec![0; plain.len() + TAG_BYTES];
        let bytes = cipher.write_message(&plain, &mut sealed).map_err(|error| error.to_string())?;
        sealed.truncate(bytes);
        send(self.socket, &Message::Sealed(sealed), &[])
    }

    /// Waits for a message. One that is sealed proves that its sender knows the secret.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message, String> {
        let message = receive(self.socket, deadline)?.0;
        let Some(cipher) = &mut self.cipher else { return Ok(message) };
        let Message::Sealed(sealed) = message else {
            return Err(SecurityError::Handshake.to_string());
        };
        let mut plain = vec![0; sealed.len()];
        let bytes = cipher.read_message(&sealed, &mut plain).map_err(|_| SecurityError::Handshake.to_string())?;
        postcard::from_bytes(&plain[..bytes]).map_err(|_| "the other side speaks another language".to_owned())
    }
}
