//! How a world comes together.

/// This machine's name, for messages.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
