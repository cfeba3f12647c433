//! The file behind `--json`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;
use crate::machine::Machine;

/// A file for results. It is opened before the work, so that a path that cannot be written to is found out in time, and
/// taken away again if the work fails.
pub struct JsonFile {
    path: PathBuf,
    file: Option<File>,
}

/// What every file of results starts with.
#[derive(Serialize)]
struct Run<'a, T> {
    /// The version of this file's form.
    schema: u32,
    machine: Machine,
    /// The command line.
    command: Vec<String>,
    #[serde(flatten)]
    result: &'a T,
}

/// Raised when a field is renamed or removed, or its meaning or unit changes.
const SCHEMA: u32 = 1;

impl JsonFile {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn create(path: &Path) -> Result<JsonFile, Failure> {
        let file = File::create(path).map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", path.display()))
                .cause(error)
                .help("give --json a file in a directory that exists and that you may write to")
        })?;
        Ok(JsonFile { path: path.to_owned(), file: Some(file) })
    }

    /// Writes the results, together with the machine and the command line.
    ///
    /// # Errors
    /// The disk is full, or the file has become unwritable.
    pub fn write(mut self, result: &impl Serialize) -> Result<(), Failure> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let command = ["paceline".to_owned()].into_iter().chain(words).collect();
        let run = Run { schema: SCHEMA, machine: Machine::this(), command, result };
        let mut out = BufWriter::new(file);
        let written = serde_json::to_writer_pretty(&mut out, &run).map_err(std::io::Error::from);
        written.and_then(|()| writeln!(out)).and_then(|()| out.flush()).map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", self.path.display())).cause(error)
        })
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        // Devices and pipes stay.
        if self.file.take().is_some() && self.path.is_file() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
