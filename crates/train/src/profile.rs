//! Profiles by name or from a file.

use std::fs::File;
use std::io;
use std::path::Path;

use paceline_plan::{BUILT_IN_PROFILES, Profile, ProfileError, ScaleError, built_in_profile, scaled_profile};

use crate::json::{JsonError, read_json};
use crate::read_at_most::read_at_most;

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileSourceError {
    /// Neither a built-in profile nor a file.
    #[error(
        "there is no profile `{name}`: it is neither a file nor one of {known}; each may be scaled: NAME@GPU, \
         NAME@GPU=SAMPLES_PER_S",
        known = BUILT_IN_PROFILES.join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("the profile {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The file is no JSON of a profile.
    #[error("{path} is no profile: {source}; `paceline profile` writes one, and docs/json.md describes it")]
    Malformed {
        /// The file.
        path: String,
        /// Field, line and column.
        #[source]
        source: JsonError,
    },
    /// It is one that makes no sense.
    #[error("{path}: {source}")]
    Inconsistent {
        /// The file.
        path: String,
        /// Which field, and why.
        #[source]
        source: ProfileError,
    },
    /// It cannot be scaled to the device that was asked for.
    #[error(transparent)]
    Scale(#[from] ScaleError),
}

/// The profile that `name` names: a built-in one (`resnet50@rtx2080ti`, or without the device), or a JSON file; or either of
/// them scaled to another device ([`scaled_profile`]), as in `resnet50@v100`, `resnet50@v100=405` and
/// `mine.json@v100=405:5%`. A file of a built-in profile's name is reached by `./NAME`.
///
/// # Errors
/// There is no such profile, or the file makes no sense; the message names file, field and reason.
pub fn load_profile(name: &str) -> Result<Profile, ProfileSourceError> {
    match named(name) {
        // The names of files and directories may have an `@`, too.
        Err(ProfileSourceError::Unknown { name }) => {
            match name.rsplit_once('@').filter(|(_, gpu)| !gpu.contains('/')) {
                Some((base, target)) => checked(scaled_profile(&named(base)?, target)?, &name),
                None => Err(ProfileSourceError::Unknown { name }),
            }
        }
        found => found,
    }
}

/// A profile that is not scaled.
fn named(name: &str) -> Result<Profile, ProfileSourceError> {
    if let Some(profile) = built_in_profile(name) {
        return Ok(profile);
    }
    let path = Path::new(name).display().to_string();
    let text = read(name).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ProfileSourceError::Unknown { name: name.to_owned() },
        _ => ProfileSourceError::Unreadable { path: path.clone(), source },
    })?;
    let profile: Profile =
        read_json(&text).map_err(|source| ProfileSourceError::Malformed { path: path.clone(), source })?;
    checked(profile, &path)
}

fn checked(profile: Profile, path: &str) -> Result<Profile, ProfileSourceError> {
    match profile.check().and_then(|()| profile.check_pace()) {
        Ok(()) => Ok(profile),
        Err(source) => Err(ProfileSourceError::Inconsistent { path: path.to_owned(), source }),
    }
}

/// The largest file that is taken for a profile: a million steps, each on a line of its own.
const BYTES_MAX: u64 = 256 << 20;

fn read(name: &str) -> io::Result<Vec<u8>> {
    read_at_most(File::open(name)?, BYTES_MAX, "it is larger than any profile")
}
