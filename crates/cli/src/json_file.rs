//! The files behind `--json` and `--trace`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;
use crate::machine::Machine;

/// A file for results. It is opened before the work, so that a path that cannot be written to is found out in time. What
/// the file held before stays until the work is done: until then, `FILE.tmp` beside it is written to.
pub struct JsonFile {
    path: PathBuf,
    file: File,
    /// What is still to be renamed to `path`; none for devices and pipes.
    temporary: Option<PathBuf>,
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
        JsonFile::open(path).map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", path.display()))
                .cause(error)
                .help("give a file in a directory that exists and that you may write to")
        })
    }

    fn open(path: &Path) -> io::Result<JsonFile> {
        let before = fs::metadata(path).ok();
        if before.is_some() {
            // May we write to it at all?
            let file = File::options().write(true).open(path)?;
            if !before.is_some_and(|before| before.is_file()) {
                return Ok(JsonFile { path: path.to_owned(), file, temporary: None });
            }
        }
        // A link stays one.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut temporary = path.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        Ok(JsonFile { path, file: File::create(&temporary)?, temporary: Some(temporary) })
    }

    /// Writes the results, together with the machine and the command line.
    ///
    /// # Errors
    /// The disk is full, or the file has become unwritable.
    pub fn write(mut self, result: &impl Serialize) -> Result<(), Failure> {
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let command = ["paceline".to_owned()].into_iter().chain(words).collect();
        let run = Run { schema: SCHEMA, machine: Machine::this(), command, result };
        self.put(&run).map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", self.path.display())).cause(error)
        })
    }

    fn put(&mut self, run: &impl Serialize) -> io::Result<()> {
        let mut out = BufWriter::new(&self.file);
        serde_json::to_writer_pretty(&mut out, run)?;
        writeln!(out)?;
        out.flush()?;
        match self.temporary.take() {
            Some(temporary) => fs::rename(temporary, &self.path),
            None => Ok(()),
        }
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}
