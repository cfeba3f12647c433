//! What tuners have learned, cluster by cluster: the next job begins with it.

use std::collections::BTreeMap;

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

const STATE_VERSION: i64 = paceline_tune::STATE_VERSION as i64;

impl Store {
    /// Keeps what was learned on a cluster, in the place of what was known of the same choices.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is.
    pub fn keep_lessons(&self, cluster: &str, lessons: &[Lesson]) -> Result<(), StoreError> {
        let doing = "keeping what was learned";
        let batch = |statement: &str| {
            self.connection.execute_batch(statement).map_err(|error| database(&self.path, doing, error))
        };
        batch("BEGIN IMMEDIATE")?;
        let kept = lessons.iter().try_for_each(|lesson| {
            let key = self.encode(&(lesson.context, lesson.action), "lesson")?;
            let lesson = self.encode(lesson, "lesson")?;
            self.change(
                doing,
                "INSERT OR REPLACE INTO experience (cluster, state_version, key, lesson) VALUES (?1, ?2, ?3, ?4)",
                params![cluster, STATE_VERSION, key, lesson],
            )
        });
        let kept = kept.and_then(|()| batch("COMMIT"));
        if kept.is_err() {
            // Also where it could not be brought to an end: the connection would stay in it. SQLite may have rolled back itself.
            let _ = batch("ROLLBACK");
        }
        kept
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
