//! Other programs, and what they say.

use std::fmt;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Why the comparison could not be made.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Error {
    fn from(message: String) -> Error {
        Error(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Error {
        Error(message.to_owned())
    }
}

/// What is compared: who takes part depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// As `paceline perf` calls it.
    pub collective: String,
    /// `shm` or `tcp`.
    pub transport: String,
    /// The world size.
    pub ranks: usize,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {} ranks", self.collective, self.transport, self.ranks)
    }
}

/// One size as a contestant measured it.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// The bytes of the larger of input and output.
    pub bytes: usize,
    /// Measured calls.
    pub iterations: usize,
    /// The median over the calls.
    pub p50_us: f64,
    /// Wrong elements: must be 0.
    pub wrong: u64,
    /// What was run, where the contestant says it.
    #[serde(default)]
    pub algorithm: String,
}

/// Runs a program to its end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("`{name} {}` failed ({}): {said}", words.join(" "), output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The measurement, if it is one of this size and nothing was wrong.
pub fn check(measured: Measured, bytes: usize) -> Result<Measured, Error> {
    if measured.wrong != 0 {
        return Err(format!("{} elements of {} bytes were wrong", measured.wrong, measured.bytes).into());
    }
    if measured.bytes != bytes {
        return Err(format!("asked for {bytes} bytes, got {}", measured.bytes).into());
    }
    if !(measured.p50_us.is_finite() && measured.p50_us > 0.0) {
        return Err(format!("{} us is no time for {bytes} bytes", measured.p50_us).into());
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_results_sizes_and_times_are_refused() {
        let good = Measured { bytes: 1024, iterations: 5, p50_us: 2.0, wrong: 0, algorithm: String::new() };
        let refused = |measured: Measured| check(measured, 1024).expect_err("refused").to_string();
        assert_eq!(check(good.clone(), 1024).expect("good").bytes, 1024);
        assert_eq!(refused(Measured { wrong: 3, ..good.clone() }), "3 elements of 1024 bytes were wrong");
        assert_eq!(refused(Measured { bytes: 512, ..good.clone() }), "asked for 1024 bytes, got 512");
        assert!(refused(Measured { p50_us: 0.0, ..good.clone() }).contains("no time"));
        assert!(refused(Measured { p50_us: f64::NAN, ..good }).contains("no time"));
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).expect_err("it fails");
        assert!(error.to_string().contains("exit status: 3): why"), "{error}");
    }
}
