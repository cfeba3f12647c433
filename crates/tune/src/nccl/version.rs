//! Releases of NCCL whose cost model is known.

use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Function, NcclError, Protocol};

/// A release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// A release whose cost model is known.
    ///
    /// # Errors
    /// It is older than 2.19, or 2.31 and younger: another model.
    pub fn new(major: u32, minor: u32, patch: u32) -> Result<Version, NcclError> {
        let version = Version { major, minor, patch };
        if major == 2 && (19..=30).contains(&minor) { Ok(version) } else { Err(NcclError::Version(version)) }
    }

    /// Whether its tuners can set the bytes of a chunk: those of interface 6 and later.
    pub fn lets_tuners_set_chunks(self) -> bool {
        self.since(30)
    }

    /// Whether its tuners know of which communicator a call is: those of interface 2 and later.
    pub fn tells_tuners_the_communicator(self) -> bool {
        self.since(21)
    }

    /// Whether its tuners name algorithm and protocol, and NCCL takes them unchecked: those of interfaces 1 and 2. Later ones mark one
    /// of the ways that NCCL offers for a call.
    pub fn takes_tuners_unchecked(self) -> bool {
        !self.since(22)
    }

    /// Whether a tuner may name this way where NCCL takes it [unchecked](Version::takes_tuners_unchecked): one that is there on every
    /// machine. LL128 is not safe on all of them, so somebody must have proved that it is.
    pub fn is_safe_unchecked(function: Function, algorithm: Algorithm, protocol: Protocol, ll128_proved: bool) -> bool {
        let is_there = match algorithm {
            Algorithm::Ring => true,
            Algorithm::Tree => function == Function::AllReduce,
            _ => false,
        };
        is_there && (protocol != Protocol::Ll128 || ll128_proved)
    }

    /// Whether this release is 2.`minor` or younger.
    pub(super) fn since(self, minor: u32) -> bool {
        self.minor >= minor
    }

    /// Whether this release is 2.`minor`.`patch` or younger.
    pub(super) fn since_patch(self, minor: u32, patch: u32) -> bool {
        (self.minor, self.patch) >= (minor, patch)
    }
}

/// `2.30.7`, or `2.30`, which means its last release.
impl FromStr for Version {
    type Err = NcclError;

    fn from_str(text: &str) -> Result<Version, NcclError> {
        let wrong = || NcclError::NoVersion(text.to_owned());
        let text_parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let parts = text_parts.map(str::parse).collect::<Result<Vec<u32>, _>>().map_err(|_| wrong())?;
        match parts[..] {
            [major, minor] => Version::new(major, minor, u32::MAX),
            [major, minor, patch] => Version::new(major, minor, patch),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Version { major, minor, patch: u32::MAX } => write!(f, "{major}.{minor}"),
            Version { major, minor, patch } => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        let text = |text: &str| text.parse::<Version>().map(|version| version.to_string()).map_err(|e| e.to_string());
        assert_eq!(text("2.30.7").as_deref(), Ok("2.30.7"));
        assert_eq!(text("v2.19").as_deref(), Ok("2.19"));
        for (wrong, words) in [("2.31.2", "2.19 to 2.30 are"), ("2.18", "2.19 to 2.30 are"), ("3.0", "NCCL 3.0 has")] {
            assert!(text(wrong).is_err_and(|error| error.contains(words)), "{wrong}");
        }
        for wrong in ["", "2", "2.x", "2.30.7.1", "-2.30", "2..30"] {
            assert!(text(wrong).is_err_and(|error| error.contains("is no version")), "{wrong}");
        }
    }

    #[test]
    fn a_minor_version_alone_is_its_last_release() {
        let version: Version = "2.28".parse().expect("a version");
        assert!(version.since_patch(28, 9) && !version.since_patch(29, 2) && version.since(28) && !version.since(29));
    }

    /// Interface 1 is that of 2.19 and 2.20, interface 2 that of 2.21, interface 6 that of 2.30.
    #[test]
    fn what_tuners_know_and_may_set_follows_from_the_release() {
        let of = |text: &str| {
            let version: Version = text.parse().expect("a version");
            let known = (version.tells_tuners_the_communicator(), version.takes_tuners_unchecked());
            (known, version.lets_tuners_set_chunks())
        };
        assert_eq!([of("2.19.1"), of("2.20.5")], [((false, true), false); 2]);
        assert_eq!(of("2.21.5"), ((true, true), false));
        assert_eq!([of("2.22.3"), of("2.29.7")], [((true, false), false); 2]);
        assert_eq!(of("2.30.3"), ((true, false), true));
    }
}
