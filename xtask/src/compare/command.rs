//! Other programs, and what they say.

use std::fmt;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// Why the comparison could not be made.
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

/// One size as a contestant measured it.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// The bytes of the data.
    pub bytes: usize,
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

/// Runs a contestant that prints one JSON object per size, and checks that it measured these sizes, correctly.
pub fn measure(command: &mut Command, sizes: &[usize]) -> Result<Vec<Measured>, Error> {
    let text = output(command)?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let rows = lines.map(serde_json::from_str).collect::<Result<Vec<Measured>, _>>();
    check(rows.map_err(|error| format!("{:?}: {error}", command.get_program()))?, sizes)
}

/// The rows, if they are those of these sizes and nothing was wrong.
pub fn check(rows: Vec<Measured>, sizes: &[usize]) -> Result<Vec<Measured>, Error> {
    if let Some(row) = rows.iter().find(|row| row.wrong != 0) {
        return Err(format!("{} elements of {} bytes were wrong", row.wrong, row.bytes).into());
    }
    let found: Vec<usize> = rows.iter().map(|row| row.bytes).collect();
    if found != sizes {
        return Err(format!("asked for the sizes {sizes:?}, got {found:?}").into());
    }
    Ok(rows)
}
