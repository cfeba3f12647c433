//! What keeps strangers out: a secret that the ranks of a job share, and a handshake that proves its knowledge.
//! `docs/security.md` says what this protects, and what it does not.

mod handshake;
mod secret;

pub use handshake::SecurityError;
pub(crate) use handshake::{
    Claim, Credentials, Initiator, Mode, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, Response, TAG_BYTES,
};
pub(crate) use secret::random;
pub use secret::{Secret, SecretError};
