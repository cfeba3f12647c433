//! The results on disk: studies, their cells and runs, in SQLite. Each run is committed by itself, at once, so that
//! neither Ctrl-C nor `kill -9` nor a full disk loses one that has ended.

mod experience;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cell::Cell;
use super::identity::Identity;
use super::placement::Placement;
use crate::failure::Failure;
use paceline_train::CellRun;

/// The version of the tables; in SQLite's `user_version`.
const SCHEMA: i64 = VERSIONS.len() as i64;

/// What makes each version of the tables out of the one before.
const VERSIONS: &[&str] = &[VERSION_1, VERSION_2, VERSION_3, experience::VERSION_4, experience::VERSION_5];

/// "Pacl", in SQLite's `application_id`: the file is ours.
const APPLICATION: i64 = 0x5061_636c;

/// How long another process that writes to the same file is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// After how long it is tried again where SQLite does not wait by itself.
const AGAIN: Duration = Duration::from_millis(5);

/// Why results could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite's words follow.
    #[error("the database {}: {doing}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// Something is to be read, and there is no such file.
    #[error("there is no database {}", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is no room for a run that has just ended.
    #[error("the disk of the database {} is full; what ended before this run is kept", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// It is SQLite, but not ours.
    #[error("{} is a database of another program", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later version of Paceline has made it.
    #[error("the database {} has version {found} of the tables, and this paceline knows up to {SCHEMA}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// A text in it is not what was written.
    #[error("the database {} holds a {what} that cannot be read", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// Why it cannot be read.
        source: serde_json::Error,
    },
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let advice = error.advice();
        let what = match error {
            StoreError::Missing { .. } => "nothing can be read",
            _ => "the results cannot be kept",
        };
        Failure::failed(what).cause(error).help(advice)
    }
}

impl StoreError {
    /// What the user can do.
    pub fn advice(&self) -> &'static str {
        match self {
            StoreError::Database { .. } => "name another file by --database, in a directory that you may write to",
            StoreError::Missing { .. } => {
                "name one that `paceline bench`, or `train` with --tune-database, has written"
            }
            StoreError::Full { .. } => "make room and go on with --resume",
            StoreError::Foreign { .. } => "name another file by --database",
            StoreError::Newer { .. } => "use the newer paceline, or name another file by --database",
            StoreError::Damaged { .. } => "name another file by --database; `sqlite3` can still read this one",
        }
    }
}

/// An open database.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    connection: Connection,
}

/// What a study was: enough to say what its numbers are of.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct StudyRecord {
    /// Its number in the file.
    #[serde(default)]
    pub id: i64,
    /// Seconds since 1970 at its start.
    pub started: u64,
    /// The command line.
    pub command: Vec<String>,
    /// The program's version.
    pub version: String,
    /// Where it ran.
    pub machine: crate::machine::Machine,
    /// The fingerprint of everything that must be the same for its runs to be continued by another call.
    pub fingerprint: String,
    /// What the fingerprint is of, part by part.
    #[serde(default)]
    pub identity: Identity,
    /// Warm-up and measured iterations and runs, in words.
    pub protocol: String,
    /// Where a launcher had placed the ranks; None: all were on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Gamma: seconds in which a processor of the machine added a byte to another, before anything was run. What cells on
    /// emulated networks were expected to do depends on it. None: nobody has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine_s_per_byte: Option<f64>,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// Counts from 1 within the cell.
    pub number: usize,
    /// What it gave, or why it gave nothing.
    pub outcome: Result<CellRun, String>,
    /// When, and beside what.
    pub occasion: Occasion,
}

/// Under which circumstances a run was made: a study may go on another day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
pub struct Occasion {
    /// Seconds since 1970 at its end.
    pub ended: u64,
    /// The load average over the minute before it began; None if nobody looked.
    pub load: Option<f64>,
    /// How many times it was made before and did not count, because its processor was late.
    #[serde(default)]
    pub repeats: usize,
}

/// A cell with what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CellRecord {
    /// What was measured.
    pub cell: Cell,
    /// In the order of their numbers.
    pub runs: Vec<RunRecord>,
}

/// The study that is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyId(i64);

impl Store {
    /// Opens the file, makes it if it is not there, and brings its tables to today's version.
    ///
    /// # Errors
    /// It is no database, one of another program or of a later version, or cannot be written.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let opened = Connection::open(path);
        let store = Store { path: path.to_owned(), connection: opened.map_err(|e| database(path, "opening it", e))? };
        store.prepare()?;
        Ok(store)
    }

    /// Opens a file that must be there, to read it.
    ///
    /// # Errors
    /// As [`Store::open`]; or there is no such file.
    pub fn open_existing(path: &Path) -> Result<Store, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let opened = Connection::open_with_flags(path, flags);
        let store = Store { path: path.to_owned(), connection: opened.map_err(|e| database(path, "opening it", e))? };
        store.prepare()?;
        Ok(store)
    }

    /// SQLite waits for most locks by itself, but not for one that the last user of a file holds while it closes it, nor for
    /// one that is needed to begin writing ahead (its documentation: wal.html, section 9).
    fn prepare(&self) -> Result<(), StoreError> {
        let error = |e| database(&self.path, "preparing its tables", e);
        self.connection.busy_timeout(BUSY).map_err(error)?;
        let deadline = Instant::now() + BUSY;
        loop {
            match self.prepare_once() {
                Err(StoreError::Database { source, .. }) if is_busy(&source) && Instant::now() < deadline => {
                    std::thread::sleep(AGAIN);
                }
                prepared => return prepared,
            }
        }
    }

    fn prepare_once(&self) -> Result<(), StoreError> {
        let error = |e| database(&self.path, "preparing its tables", e);
        // Looked at and made in one transaction: somebody else may open it for the first time, too.
        if self.found().map_err(error)? != Found::Ours(SCHEMA) {
            let all = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate).map_err(error)?;
            self.make()?;
            all.commit().map_err(error)?;
        }
        // Readers go on while a run is committed, and a commit survives the death of this process and of the machine.
        self.connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").map_err(error)?;
        self.connection.execute_batch("PRAGMA foreign_keys = ON").map_err(error)
    }

    /// Makes what is missing.
    fn make(&self) -> Result<(), StoreError> {
        let error = |e| database(&self.path, "preparing its tables", e);
        let missing: &[&str] = match self.found().map_err(error)? {
            Found::Nothing => VERSIONS,
            Found::Ours(found) if found > SCHEMA => return Err(StoreError::Newer { path: self.path.clone(), found }),
            Found::Ours(found) => usize::try_from(found).ok().and_then(|done| VERSIONS.get(done..)).unwrap_or_default(),
            Found::Foreign => return Err(StoreError::Foreign { path: self.path.clone() }),
        };
        missing.iter().try_for_each(|statements| self.connection.execute_batch(statements)).map_err(error)
    }

    /// What the file is.
    fn found(&self) -> rusqlite::Result<Found> {
        let number = |query: &str| self.connection.query_row(query, [], |row| row.get::<_, i64>(0));
        let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
        let tables = number("SELECT count(*) FROM sqlite_schema WHERE type = 'table'")?;
        // Version 1 did not sign.
        let ours = number(
            "SELECT count(*) FROM pragma_table_info('run') WHERE name IN ('cell', 'number', 'ended', 'measured', 'message')",
        )?;
        Ok(match (application, version) {
            (APPLICATION, _) => Found::Ours(version),
            (0, 0) if tables == 0 => Found::Nothing,
            (0, 1) if tables == 3 && ours == 5 => Found::Ours(1),
            _ => Found::Foreign,
        })
    }

    /// Begins a study.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&self, study: &StudyRecord) -> Result<StudyId, StoreError> {
        let json = self.encode(study, "study")?;
        self.change(
            "beginning a study",
            "INSERT INTO study (fingerprint, json) VALUES (?1, ?2)",
            params![study.fingerprint, json],
        )?;
        Ok(StudyId(self.connection.last_insert_rowid()))
    }

    /// The last study with this fingerprint, to be continued.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn last_with(&self, fingerprint: &str) -> Result<Option<StudyId>, StoreError> {
        let query = "SELECT id FROM study WHERE fingerprint = ?1 ORDER BY id DESC LIMIT 1";
        let id = self.connection.query_row(query, [fingerprint], |row| row.get(0)).optional();
        Ok(id.map_err(|e| database(&self.path, "looking for a study to resume", e))?.map(StudyId))
    }

    /// What a study was when it began.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn study(&self, id: StudyId) -> Result<StudyRecord, StoreError> {
        let query = "SELECT json FROM study WHERE id = ?1";
        let json: rusqlite::Result<String> = self.connection.query_row(query, [id.0], |row| row.get(0));
        let json = json.map_err(|e| database(&self.path, "reading the study", e))?;
        Ok(StudyRecord { id: id.0, ..self.decode(&json, "study")? })
    }

    /// The studies, oldest first.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn studies(&self) -> Result<Vec<(StudyId, StudyRecord)>, StoreError> {
        let rows = self.rows("SELECT id, json FROM study ORDER BY id", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let decode = |(id, json): (i64, String)| Ok((StudyId(id), StudyRecord { id, ..self.decode(&json, "study")? }));
        rows.into_iter().map(decode).collect()
    }

    /// Keeps a run that has ended. When this returns, it is on the disk. A run of the same number that had failed is
    /// replaced; one that had ended well stays, as two studies may go on with the same one at once.
    ///
    /// # Errors
    /// It cannot be written; earlier ones are not touched.
    pub fn keep(&self, study: StudyId, cell: &Cell, run: &RunRecord) -> Result<(), StoreError> {
        let key = cell.key().map_err(|source| self.damaged("cell", source))?;
        let (measured, message) = match &run.outcome {
            Ok(measured) => (Some(self.encode(measured, "run")?), None),
            Err(message) => (None, Some(message)),
        };
        let (keeping, Occasion { ended, load, repeats }) = ("keeping a run", run.occasion);
        self.change(keeping, "INSERT OR IGNORE INTO cell (study, key) VALUES (?1, ?2)", params![study.0, key])?;
        self.change(
            keeping,
            "INSERT INTO run (cell, number, ended, measured, message, load, repeats)
             SELECT id, ?3, ?4, ?5, ?6, ?7, ?8 FROM cell WHERE study = ?1 AND key = ?2
             ON CONFLICT (cell, number) DO UPDATE SET ended = excluded.ended, measured = excluded.measured,
                 message = excluded.message, load = excluded.load, repeats = excluded.repeats
             WHERE run.measured IS NULL",
            params![study.0, key, run.number as i64, ended as i64, measured, message, load, repeats as i64],
        )
    }

    /// Has this run of the cell ended well?
    ///
    /// # Errors
    /// It cannot be read.
    pub fn has(&self, study: StudyId, cell: &Cell, number: usize) -> Result<bool, StoreError> {
        let key = cell.key().map_err(|source| self.damaged("cell", source))?;
        let query = "SELECT count(*) FROM run JOIN cell ON cell.id = run.cell
                     WHERE study = ?1 AND key = ?2 AND number = ?3 AND measured IS NOT NULL";
        let count = self.connection.query_row(query, params![study.0, key, number as i64], |row| row.get::<_, i64>(0));
        Ok(count.map_err(|e| database(&self.path, "looking for finished runs", e))? > 0)
    }

    /// What this run of the cell gave; None if it was not made, or gave nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn measured(&self, study: StudyId, cell: &Cell, number: usize) -> Result<Option<CellRun>, StoreError> {
        let key = cell.key().map_err(|source| self.damaged("cell", source))?;
        let query = "SELECT measured FROM run JOIN cell ON cell.id = run.cell
                     WHERE study = ?1 AND key = ?2 AND number = ?3 AND measured IS NOT NULL";
        let json: rusqlite::Result<Option<String>> =
            self.connection.query_row(query, params![study.0, key, number as i64], |row| row.get(0)).optional();
        let json = json.map_err(|e| database(&self.path, "reading a run", e))?;
        json.map(|json| self.decode(&json, "run")).transpose()
    }

    /// Was any run of the cell made, whatever came of it?
    ///
    /// # Errors
    /// It cannot be read.
    pub fn knows(&self, study: StudyId, cell: &Cell) -> Result<bool, StoreError> {
        let key = cell.key().map_err(|source| self.damaged("cell", source))?;
        let query = "SELECT count(*) FROM cell WHERE study = ?1 AND key = ?2";
        let count = self.connection.query_row(query, params![study.0, key], |row| row.get::<_, i64>(0));
        Ok(count.map_err(|e| database(&self.path, "looking for a cell", e))? > 0)
    }

    /// Everything that is known of a study, in the order in which its cells were first measured.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn cells(&self, study: StudyId) -> Result<Vec<CellRecord>, StoreError> {
        let query =
            "SELECT cell.id, key, number, measured, message, ended, load, repeats FROM cell JOIN run ON cell.id = run.cell
                     WHERE study = ?1 ORDER BY cell.id, number";
        type Row = (i64, String, i64, Option<String>, Option<String>, Occasion);
        let rows: Vec<Row> = self.rows(query, [study.0], |row| {
            let (ended, repeats) = (row.get::<_, i64>(5)? as u64, row.get::<_, i64>(7)? as usize);
            let occasion = Occasion { ended, load: row.get(6)?, repeats };
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, occasion))
        })?;
        let (mut cells, mut last): (Vec<CellRecord>, _) = (Vec::new(), None);
        for (id, key, number, measured, message, occasion) in rows {
            if last != Some(id) {
                last = Some(id);
                cells.push(CellRecord { cell: self.decode(&key, "cell")?, runs: Vec::new() });
            }
            let outcome = match measured {
                Some(json) => Ok(self.decode(&json, "run")?),
                None => Err(message.unwrap_or_default()),
            };
            if let Some(cell) = cells.last_mut() {
                cell.runs.push(RunRecord { number: number as usize, outcome, occasion });
            }
        }
        Ok(cells)
    }

    fn rows<T>(
        &self,
        query: &str,
        parameters: impl rusqlite::Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let read = self.connection.prepare(query).and_then(|mut statement| {
            let rows: rusqlite::Result<Vec<T>> = statement.query_map(parameters, read)?.collect();
            rows
        });
        read.map_err(|e| database(&self.path, "reading it", e))
    }

    fn change(
        &self,
        doing: &'static str,
        statement: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<(), StoreError> {
        match self.connection.execute(statement, parameters) {
            Ok(_) => Ok(()),
            Err(source) if is_full(&source) => Err(StoreError::Full { path: self.path.clone(), source }),
            Err(source) => Err(database(&self.path, doing, source)),
        }
    }

    fn encode(&self, value: &impl Serialize, what: &'static str) -> Result<String, StoreError> {
        serde_json::to_string(value).map_err(|source| self.damaged(what, source))
    }

    fn decode<T: DeserializeOwned>(&self, json: &str, what: &'static str) -> Result<T, StoreError> {
        serde_json::from_str(json).map_err(|source| self.damaged(what, source))
    }

    fn damaged(&self, what: &'static str, source: serde_json::Error) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), what, source }
    }
}

/// Cells and runs hold their contents as JSON: what they are made of may grow without new tables.
const VERSION_1: &str = "
CREATE TABLE study (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, json TEXT NOT NULL);
CREATE TABLE cell (
    id INTEGER PRIMARY KEY, study INTEGER NOT NULL REFERENCES study, key TEXT NOT NULL, UNIQUE (study, key));
CREATE TABLE run (
    cell INTEGER NOT NULL REFERENCES cell, number INTEGER NOT NULL, ended INTEGER NOT NULL,
    measured TEXT, message TEXT, PRIMARY KEY (cell, number));
PRAGMA user_version = 1;
";

/// The load average before a run, and our signature.
const VERSION_2: &str = "
ALTER TABLE run ADD COLUMN load REAL;
PRAGMA application_id = 0x5061636c;
PRAGMA user_version = 2;
";

/// How often a run had been made before it counted.
const VERSION_3: &str = "
ALTER TABLE run ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 3;
";

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// New.
    Nothing,
    /// Ours, of this version.
    Ours(i64),
    /// Somebody else's.
    Foreign,
}

fn database(path: &Path, doing: &'static str, source: rusqlite::Error) -> StoreError {
    StoreError::Database { path: path.to_owned(), doing, source }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A limit on file sizes (`ulimit -f`) and a quota show as a failed write.
fn is_full(error: &rusqlite::Error) -> bool {
    const IO_ERROR_WRITE: i32 = rusqlite::ffi::SQLITE_IOERR_WRITE;
    matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull))
        || matches!(error.sqlite_error(), Some(error) if error.extended_code == IO_ERROR_WRITE)
}

#[cfg(test)]
pub mod tests;
