//! The secret that the ranks of a job share.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Random bytes of a generated secret.
const GENERATED_BYTES: usize = 32;

/// A shorter secret could be guessed offline by whoever has heard one handshake.
const LENGTH_MIN: usize = 16;

/// A longer one is a wrong file.
const LENGTH_MAX: usize = 4096;

/// What all ranks of a job know and nobody else: printable text, never shown, never on a command line.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// Why a secret can't be used. Never contains it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Both variables are set, and only one can be meant.
    #[error("PACELINE_SECRET and PACELINE_SECRET_FILE are both set: {}", self.next_step())]
    Both,
    /// Others may read the file.
    #[error("{} has mode {mode:04o}, so others can read the secret in it: {}", .path.display(), self.next_step())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else can change the file.
    #[error(
        "{} belongs to user {owner}, not to user {ours} who runs this rank, nor to root: {}",
        .path.display(), self.next_step()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        ours: u32,
    },
    /// The file cannot be read, or is none.
    #[error("the secret cannot be read from {}: {why}; {}", .path.display(), self.next_step())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// It is too easy to guess, or not text.
    #[error("the secret from {source_name} {what}: {}", self.next_step())]
    Unfit {
        /// Where it came from.
        source_name: String,
        /// What is wrong with it, as the predicate of a sentence.
        what: String,
    },
}

impl SecretError {
    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> String {
        match self {
            SecretError::Both => "unset one of them".into(),
            SecretError::Readable { path, .. } => format!("`chmod 600 {}`", path.display()),
            SecretError::Owner { path, ours, .. } => format!("`chown {ours} {}`", path.display()),
            SecretError::File { .. } => "PACELINE_SECRET_FILE must name a regular file".into(),
            SecretError::Unfit { .. } => "`openssl rand -hex 32` makes a good one".into(),
        }
    }
}

impl Secret {
    /// A new one: 256 bits from the system's random numbers, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn generate() -> io::Result<Secret> {
        let bytes: [u8; GENERATED_BYTES] = random()?;
        Ok(Secret(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()))
    }

    /// From text; spaces and line ends around it are not part of it. `source_name` is named in errors.
    ///
    /// # Errors
    /// If it is shorter than 16 bytes, longer than 4096, or not printable.
    pub fn from_text(text: &str, source_name: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        let unfit = |what: String| Err(SecretError::Unfit { source_name: source_name.to_owned(), what });
        if text.len() < LENGTH_MIN {
            return unfit(format!("has {} bytes, and fewer than {LENGTH_MIN} can be guessed", text.len()));
        }
        if text.len() > LENGTH_MAX {
            return unfit(format!("has {} bytes, and {LENGTH_MAX} are the most", text.len()));
        }
        // What was no UTF-8 in the environment comes as replacement characters: many secrets would be the same.
        if text.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
            return unfit("is not printable text".to_owned());
        }
        Ok(Secret(text.into()))
    }

    /// From a file that only its owner (this user or root) can read.
    ///
    /// # Errors
    /// If it is not a regular file, if others could read or change it, or as [`Secret::from_text`].
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let refuse = |why: String| SecretError::File { path: path.to_owned(), why };
        // Checked after it was opened, so that nobody can put another file in its place in between; without waiting,
        // so that a pipe in its place holds nobody up.
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = file.map_err(|error| refuse(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a regular file".to_owned()));
        }
        let (owner, ours) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != ours && owner != 0 {
            return Err(SecretError::Owner { path: path.to_owned(), owner, ours });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Readable { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        // Room for a line end, and for one byte too many.
        let mut bounded = file.take(LENGTH_MAX as u64 + 3);
        bounded.read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
        Secret::from_text(&text, &path.display().to_string())
    }

    /// The secret itself, to be handed to another rank: through its environment or its standard input, never on a
    /// command line, never to a log.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Shows nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Err(rustix::io::Errno::INTR) => 0,
            result => result?,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn generated_secrets_differ_and_are_never_shown() {
        let (one, other) = (Secret::generate().expect("random"), Secret::generate().expect("random"));
        assert!(one != other && one.reveal().len() == 64, "64 digits");
        assert_eq!(Secret::from_text(one.reveal(), "a test"), Ok(one.clone()));
        assert!(!format!("{one:?}").contains(&one.reveal()[..4]));
    }

    #[test]
    fn only_what_nobody_guesses_is_a_secret() {
        let from = |text: &str| Secret::from_text(text, "PACELINE_SECRET").map_err(|error| error.to_string());
        assert!(from(" 0123456789abcdef\n").is_ok_and(|secret| secret.reveal() == "0123456789abcdef"));
        for text in ["", "short", "0123456789abcde\u{7}f", "0123456789abcdef\u{fffd}", &"x".repeat(4097)] {
            let error = from(text).expect_err("not a secret");
            assert!(error.starts_with("the secret from PACELINE_SECRET ") && error.contains("openssl"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }

    /// A file with a secret that only we can read, in a directory of its own.
    fn secret_file(test: &str) -> (PathBuf, PathBuf) {
        let directory = std::env::temp_dir().join(format!("paceline-secret-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("secret");
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        (directory, path)
    }

    #[test]
    fn files_that_somebody_else_can_change_are_refused() {
        const SOMEBODY: u32 = 4321;
        let (directory, path) = secret_file("owner");
        assert!(Secret::from_file(&path).is_ok());
        if let Err(error) = chown(&path, Some(SOMEBODY), None) {
            assert!(!rustix::process::geteuid().is_root(), "root gives files away: {error}");
            eprintln!("skipped: only root can give a file away: {error}");
        } else {
            let ours = rustix::process::geteuid().as_raw();
            let error = Secret::from_file(&path).expect_err("it is somebody else's");
            assert_eq!(error, SecretError::Owner { path: path.clone(), owner: SOMEBODY, ours });
            let expected = format!("belongs to user {SOMEBODY}, not to user {ours} who runs this rank");
            let text = error.to_string();
            assert!(
                text.contains(&expected) && text.ends_with(&format!("`chown {ours} {}`", path.display())),
                "{text}"
            );
        }
        fs::remove_dir_all(&directory).expect("our own directory");
    }

    #[test]
    fn files_that_others_can_read_are_refused() {
        let (directory, path) = secret_file("mode");
        let read = || Secret::from_file(&path).map_err(|error| error.to_string());
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            assert!(read().is_ok_and(|secret| secret.reveal().len() == 32));
        }
        for mode in [0o640, 0o604, 0o620, 0o777] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            let error = read().expect_err("others can read it");
            let expected = [format!("{} has mode 0{mode:o}", path.display()), format!("chmod 600 {}", path.display())];
            assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        }
        // A directory, a pipe that nobody writes to, nothing at all.
        let pipe = directory.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
        for path in [&directory, &pipe, &directory.join("nothing")] {
            let error = Secret::from_file(path).expect_err("no file").to_string();
            assert!(error.contains(&format!("cannot be read from {}: ", path.display())), "{error}");
        }
        fs::remove_dir_all(&directory).expect("our own directory");
    }
}
