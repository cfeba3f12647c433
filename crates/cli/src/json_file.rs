//! The files behind `--json`, `--trace` and the like.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;
use crate::machine::Machine;

/// A file for results. It is opened before the work, so that a path that cannot be written to is found out in time. What
/// the file held before stays until the work is done: until then, `FILE.tmp` beside it is written to.
pub struct PlainFile {
    path: PathBuf,
    file: File,
    /// What is still to be renamed to `path`; none for devices and pipes.
    temporary: Option<PathBuf>,
}

/// A [`PlainFile`] for a JSON object with the machine and the command line.
pub struct JsonFile(PlainFile);

/// What every file of results starts with.
#[derive(Serialize)]
struct Run<'a, T> {
    /// The version of this file's form.
    schema: u32,
    machine: &'a Machine,
    /// The command line.
    command: &'a [String],
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
        PlainFile::create(path).map(JsonFile)
    }

    /// Writes the results, together with this machine and the command line of this call.
    ///
    /// # Errors
    /// The disk is full, or the file has become unwritable.
    pub fn write(self, result: &impl Serialize) -> Result<(), Failure> {
        self.write_of(&Machine::this(), &command_line(), result)
    }

    /// Writes results of another call, with its machine and command line.
    ///
    /// # Errors
    /// As [`JsonFile::write`].
    pub fn write_of(self, machine: &Machine, command: &[String], result: &impl Serialize) -> Result<(), Failure> {
        let run = Run { schema: SCHEMA, machine, command, result };
        self.0.put(|out| {
            serde_json::to_writer_pretty(&mut *out, &run)?;
            writeln!(out)
        })
    }
}

/// The command line of this process, as a user would have typed it.
pub fn command_line() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    ["paceline".to_owned()].into_iter().chain(words).collect()
}

impl PlainFile {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn create(path: &Path) -> Result<PlainFile, Failure> {
        PlainFile::open(path).map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", path.display()))
                .cause(error)
                .help("give a file in a directory that exists and that you may write to")
        })
    }

    fn open(path: &Path) -> io::Result<PlainFile> {
        let before = fs::metadata(path).ok();
        if before.is_some() {
            // May we write to it at all?
            let file = File::options().write(true).open(path)?;
            if !before.is_some_and(|before| before.is_file()) {
                return Ok(PlainFile { path: path.to_owned(), file, temporary: None });
            }
        }
        // A link stays one.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut temporary = path.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        Ok(PlainFile { path, file: File::create(&temporary)?, temporary: Some(temporary) })
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the text.
    ///
    /// # Errors
    /// The disk is full, or the file has become unwritable.
    pub fn write(self, text: &str) -> Result<(), Failure> {
        self.put(|out| out.write_all(text.as_bytes()))
    }

    fn put(mut self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<(), Failure> {
        let mut out = BufWriter::new(&self.file);
        let written = write(&mut out).and_then(|()| out.flush());
        drop(out);
        let moved = written.and_then(|()| match self.temporary.take() {
            Some(temporary) => fs::rename(temporary, &self.path),
            None => Ok(()),
        });
        moved.map_err(|error| {
            Failure::failed(format!("cannot write the results to {}", self.path.display())).cause(error)
        })
    }
}

impl Drop for PlainFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}
