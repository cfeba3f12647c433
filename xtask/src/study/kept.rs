//! Finished runs, so that a study that was interrupted goes on where it was: a file of JSON, a line each, on the disk as soon
//! as they have ended.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::compare::Error;

/// What was finished, and the file.
pub struct Kept<T> {
    path: PathBuf,
    file: File,
    runs: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> Kept<T> {
    /// Reads what is there. A line that does not end, because whoever wrote it was killed, is no run.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: PathBuf) -> Result<Kept<T>, Error> {
        let failed = |error: std::io::Error| Error::from(format!("{}: {error}", path.display()));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let runs = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        // Behind a line that was not ended.
        file.write_all(b"\n").map_err(failed)?;
        Ok(Kept { path, file, runs })
    }

    /// Keeps it, at once.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&mut self, run: T) -> Result<(), Error> {
        let line = serde_json::to_string(&run).map_err(|error| error.to_string())? + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.runs.push(run);
        Ok(())
    }

    /// In the order in which they ended.
    pub fn runs(&self) -> &[T] {
        &self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_runs_are_found_again_and_torn_lines_are_not() {
        let path = std::env::temp_dir().join(format!("xtask-kept-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut kept = Kept::open(path.clone()).expect("a file");
        kept.keep(("one".to_owned(), 1.0 / 3.0)).expect("kept");
        kept.keep(("two".to_owned(), 2.0)).expect("kept");
        drop(kept);
        let torn = fs::read_to_string(&path).expect("the file") + "[\"thr";
        fs::write(&path, torn).expect("written");
        let mut again: Kept<(String, f64)> = Kept::open(path.clone()).expect("the same file");
        again.keep(("three".to_owned(), 3.0)).expect("kept");
        let last: Kept<(String, f64)> = Kept::open(path.clone()).expect("the same file");
        fs::remove_file(&path).expect("it is there");
        let all = [("one".to_owned(), 1.0 / 3.0), ("two".to_owned(), 2.0), ("three".to_owned(), 3.0)];
        assert_eq!((again.runs(), last.runs()), (&all[..], &all[..]));
    }
}
