//! How a world comes together.

use std::time::Duration;

/// This machine's name, for messages.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The deadline of calls that name none.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);
