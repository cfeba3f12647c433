//! Studies: tables of throughputs that somebody measured, row by row a model, a network, a method and a number of workers.

mod as_run;
mod byteps;
mod table;

use paceline_strategy::StrategyError;

pub(crate) use as_run::BYTESCHEDULER_A2A;
pub use as_run::{Case, METHODS, same};

/// A table with a heading, as `data/study_calibration.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// The heading, as it stands there.
    pub columns: Vec<String>,
    /// What follows, in order.
    pub rows: Vec<StudyRow>,
}

/// A row of a [`Study`].
#[derive(Clone, Debug, PartialEq)]
pub struct StudyRow {
    /// Where it stands, counted from 1.
    pub line: usize,
    /// What stands there, as the heading has it.
    pub cells: Vec<String>,
    /// The model, such as `ResNet-50`.
    pub model: String,
    /// Samples that a worker computes in an iteration.
    pub local_batch: usize,
    /// The network between hosts, such as `10GbE`.
    pub network: String,
    /// How workers communicated: one of [`METHODS`], or a strategy.
    pub method: String,
    /// How many there were.
    pub workers: usize,
    /// What all of them computed together.
    pub samples_per_s: Option<f64>,
    /// Its standard deviation over the runs.
    pub std_samples_per_s: Option<f64>,
    /// What a worker alone computes.
    pub single_gpu_samples_per_s: Option<f64>,
    /// What else is to be said.
    pub note: String,
}

impl StudyRow {
    /// Does its note say that it ran on a single host (`single_node`)?
    pub fn is_of_one_host(&self) -> bool {
        self.note.to_lowercase().contains("single_node")
    }

    /// Does its note say that what stands there is not believed (`suspect`, `mislabelled`, `wrong`)?
    pub fn is_doubted(&self) -> bool {
        let note = self.note.to_lowercase();
        ["mislabel", "suspect", "wrong"].iter().any(|word| note.contains(word))
    }
}

/// Why a study cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StudyError {
    /// No line is a row.
    #[error("the study has no rows: give a heading and, below it, a line for each measured throughput")]
    Empty,
    /// The heading lacks something.
    #[error("the study has no column `{column}`; it has {found}")]
    Column {
        /// What is missing.
        column: &'static str,
        /// What there is.
        found: String,
    },
    /// A row has more or fewer cells than the heading.
    #[error("line {line} of the study has {found} cells, and the heading has {expected}")]
    Cells {
        /// Counted from 1.
        line: usize,
        /// Cells of the row.
        found: usize,
        /// Cells of the heading.
        expected: usize,
    },
    /// A cell makes no sense.
    #[error("line {line} of the study, column `{column}`: `{value}` is {problem}")]
    Cell {
        /// Counted from 1.
        line: usize,
        /// The column, as the heading has it.
        column: String,
        /// What stands there.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no profile of a row's model.
    #[error("line {line} of the study: there is no profile of {model}; there are profiles of {known}")]
    Model {
        /// Counted from 1.
        line: usize,
        /// The model.
        model: String,
        /// Those that there are.
        known: String,
    },
    /// A row's method is none.
    #[error("line {line} of the study: `{method}` is no method of a study, and no strategy: {reason}")]
    Method {
        /// Counted from 1.
        line: usize,
        /// The method.
        method: String,
        /// Why it is no strategy.
        reason: StrategyError,
    },
}

impl Study {
    /// Reads a table: comma-separated, a heading first, cells in quotation marks where they hold commas, columns in any order
    /// and their names in any case. `model`, `local_batch`, `network`, `method` and `workers` there must be;
    /// `samples_per_s`, `std_samples_per_s`, `single_gpu_samples_per_s` and `note` are read where they are; others are kept in
    /// [`StudyRow::cells`]. Empty lines, and those that begin with `#`, are passed over.
    ///
    /// # Errors
    /// The first cell that makes no sense.
    pub fn parse(text: &str) -> Result<Study, StudyError> {
        table::parse(text)
    }

    /// The networks, in the order in which they first stand there.
    pub fn networks(&self) -> Vec<&str> {
        let mut networks: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !networks.iter().any(|known| known.eq_ignore_ascii_case(&row.network)) {
                networks.push(&row.network);
            }
        }
        networks
    }

    /// Workers that share a host: as many as the largest row has whose note says that it ran on a single one
    /// (`single_node`); None if no note says so.
    pub fn workers_per_host(&self) -> Option<usize> {
        let single = self.rows.iter().filter(|row| row.is_of_one_host());
        single.map(|row| row.workers).max()
    }
}
