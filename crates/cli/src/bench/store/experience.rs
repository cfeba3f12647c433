//! What tuners have learned, cluster by cluster: the next job begins with it.

use std::collections::BTreeMap;

use paceline_train::TunedContext;
use paceline_tune::learner::Lesson;
use rusqlite::params;

use super::{Store, StoreError, database};

/// One row for each context and action. Both are JSON, as contexts may grow.
pub(super) const VERSION_4: &str = "
CREATE TABLE experience (
    cluster TEXT NOT NULL, state_version INTEGER NOT NULL, key TEXT NOT NULL, lesson TEXT NOT NULL,
    PRIMARY KEY (cluster, state_version, key));
PRAGMA user_version = 4;
";

/// What jobs have come to, one row for each context: as the last one left it that has decided it.
pub(super) const VERSION_5: &str = "
CREATE TABLE standing (
    cluster TEXT NOT NULL, state_version INTEGER NOT NULL, context TEXT NOT NULL, standing TEXT NOT NULL,
    PRIMARY KEY (cluster, state_version, context));
PRAGMA user_version = 5;
";

const STATE_VERSION: i64 = paceline_tune::STATE_VERSION as i64;

/// What an error says was being done.
const DOING: &str = "keeping what was learned";

/// The key of a row that holds no lesson: under this name a job has begun.
const BEGUN: &str = "";

/// What so many jobs began with is kept; of those before, nobody asks any more.
const BEGINNINGS: i64 = 16;

impl Store {
    /// Keeps what was learned on a cluster, in the place of what was known of the same choices.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is.
    pub fn keep_lessons(&self, cluster: &str, lessons: &[Lesson]) -> Result<(), StoreError> {
        self.together(|| self.keep_each(cluster, lessons))
    }

    /// Keeps what a job begins with under a name of its own, also if that is nothing, and forgets what all but the last jobs began with
    /// whose names begin with the same words.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is.
    pub fn keep_beginning(&self, words: &str, name: &str, lessons: &[Lesson]) -> Result<(), StoreError> {
        self.together(|| {
            self.keep_row(name, BEGUN, BEGUN)?;
            self.keep_each(name, lessons)?;
            // Rows are numbered in the order in which they came.
            self.change(
                DOING,
                "DELETE FROM experience WHERE substr(cluster, 1, length(?1)) = ?1 AND cluster NOT IN (SELECT cluster FROM \
                 experience WHERE substr(cluster, 1, length(?1)) = ?1 GROUP BY cluster ORDER BY max(rowid) DESC LIMIT ?2)",
                params![words, BEGINNINGS],
            )
        })
    }

    /// What a job began with. None: it has not begun.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn beginning(&self, name: &str) -> Result<Option<Vec<Lesson>>, StoreError> {
        let query = "SELECT count(*) FROM experience WHERE cluster = ?1 AND state_version = ?2";
        let rows: Vec<i64> = self.rows(query, params![name, STATE_VERSION], |row| row.get(0))?;
        if rows == [0] { Ok(None) } else { self.lessons(name).map(Some) }
    }

    fn keep_each(&self, cluster: &str, lessons: &[Lesson]) -> Result<(), StoreError> {
        lessons.iter().try_for_each(|lesson| {
            let key = self.encode(&(lesson.context, lesson.action), "lesson")?;
            self.keep_row(cluster, &key, &self.encode(lesson, "lesson")?)
        })
    }

    fn keep_row(&self, cluster: &str, key: &str, lesson: &str) -> Result<(), StoreError> {
        self.change(
            DOING,
            "INSERT OR REPLACE INTO experience (cluster, state_version, key, lesson) VALUES (?1, ?2, ?3, ?4)",
            params![cluster, STATE_VERSION, key, lesson],
        )
    }

    /// Keeps what stands on a cluster at the end of a job. What it has not decided does not take the place of what an earlier one had.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is.
    pub fn keep_standings(&self, cluster: &str, standings: &[TunedContext]) -> Result<(), StoreError> {
        self.together(|| standings.iter().try_for_each(|standing| self.keep_standing(cluster, standing)))
    }

    fn keep_standing(&self, cluster: &str, standing: &TunedContext) -> Result<(), StoreError> {
        let otherwise = if standing.is_decided() { "REPLACE" } else { "IGNORE" };
        let context = self.encode(&standing.context, "context")?;
        self.change(
            DOING,
            &format!(
                "INSERT OR {otherwise} INTO standing (cluster, state_version, context, standing) \
                 VALUES (?1, ?2, ?3, ?4)"
            ),
            params![cluster, STATE_VERSION, context, self.encode(standing, "standing")?],
        )
    }

    /// What stood on a cluster at the end of the last jobs that kept it. What cannot be read is left out, as with lessons.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn standings(&self, cluster: &str) -> Result<Vec<TunedContext>, StoreError> {
        let query = "SELECT standing FROM standing WHERE cluster = ?1 AND state_version = ?2 ORDER BY context";
        let rows: Vec<String> = self.rows(query, params![cluster, STATE_VERSION], |row| row.get(0))?;
        Ok(rows.iter().filter_map(|standing| serde_json::from_str(standing).ok()).collect())
    }

    /// All of it is written, or nothing.
    fn together(&self, write: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
        let batch = |statement: &str| {
            self.connection.execute_batch(statement).map_err(|error| database(&self.path, DOING, error))
        };
        batch("BEGIN IMMEDIATE")?;
        let kept = write().and_then(|()| batch("COMMIT"));
        if kept.is_err() {
            // Also where it could not be brought to an end: the connection would stay in it. SQLite may have rolled back itself.
            let _ = batch("ROLLBACK");
        }
        kept
    }

    /// The clusters of which something is known.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn clusters(&self) -> Result<Vec<String>, StoreError> {
        let query = "SELECT DISTINCT cluster FROM experience WHERE state_version = ?1 ORDER BY cluster";
        self.rows(query, params![STATE_VERSION], |row| row.get(0))
    }

    /// What is known of a cluster. What other versions have learned means nothing here, and is left alone, and so is a lesson that
    /// cannot be read.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn lessons(&self, cluster: &str) -> Result<Vec<Lesson>, StoreError> {
        let query = "SELECT key, lesson FROM experience WHERE cluster = ?1 AND state_version = ?2";
        let rows: Vec<(String, String)> =
            self.rows(query, params![cluster, STATE_VERSION], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // In an order of their own, whatever SQLite's is.
        let rows: BTreeMap<String, String> = rows.into_iter().collect();
        Ok(rows.values().filter_map(|lesson| serde_json::from_str(lesson).ok()).collect())
    }
}
