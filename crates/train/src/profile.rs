//! Profiles by name or from a file.

use std::fs;
use std::io;
use std::path::Path;

use paceline_plan::{BUILT_IN_PROFILES, Profile, ProfileError, built_in_profile};

/// Why there is no profile to replay.
#[derive(Debug, thiserror::Error)]
pub enum ProfileSourceError {
    /// Neither a built-in profile nor a file.
    #[error("there is no profile `{name}`: it is neither a file nor one of {known}", known = BUILT_IN_PROFILES.join(", "))]
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
    #[error("{path} is no profile: {source}; tools/profile_torch.py writes one, and docs/json.md describes it")]
    Malformed {
        /// The file.
        path: String,
        /// Field, line and column.
        #[source]
        source: serde_json::Error,
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
}

/// The profile that `name` names: a built-in one (`resnet50@rtx2080ti`, or without the device), or a JSON file. A file of
/// a built-in profile's name is reached by `./NAME`.
///
/// # Errors
/// There is no such profile, or the file makes no sense; the message names file, field and reason.
pub fn load_profile(name: &str) -> Result<Profile, ProfileSourceError> {
    if let Some(profile) = built_in_profile(name) {
        return Ok(profile);
    }
    let path = Path::new(name).display().to_string();
    let text = fs::read(name).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ProfileSourceError::Unknown { name: name.to_owned() },
        _ => ProfileSourceError::Unreadable { path: path.clone(), source },
    })?;
    let profile: Profile =
        serde_json::from_slice(&text).map_err(|source| ProfileSourceError::Malformed { path: path.clone(), source })?;
    profile.check().map_err(|source| ProfileSourceError::Inconsistent { path, source })?;
    Ok(profile)
}
