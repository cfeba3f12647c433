//! What keeps strangers out: the shared secret of a job.

mod secret;

pub use secret::{Secret, SecretError};
