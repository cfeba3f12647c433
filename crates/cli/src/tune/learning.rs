//! What all learning is told: who learns, from which seed, what is kept, and what is shown of it.

use std::path::PathBuf;

use clap::Args;
use paceline_tune::Tuner;
use paceline_tune::learner::{LEARNERS, by_name};

use crate::failure::Failure;

/// The word for all learners.
pub const ALL: &str = "all";

/// Who learns, and what becomes of it.
#[derive(Args)]
#[command(next_help_heading = "What is learned")]
pub struct LearningArguments {
    /// Print the atlas of regimes: where it pays to look, why, and what was spent on it
    #[arg(long)]
    pub atlas: bool,

    /// Print the best knobs of each regime, and how sure that is
    #[arg(long)]
    pub table: bool,

    /// Write what was learned to this file, as a policy; of NCCL's calls, as one for its plug-in (docs/nccl.md)
    #[arg(short, long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,

    /// Begin with what was learned on this cluster before, and keep what is learned: a database, as that of bench. With --atlas or
    /// --table and nothing to learn from: show what jobs have kept in it, cluster by cluster
    #[arg(long, value_name = "FILE.sqlite")]
    pub database: Option<PathBuf>,

    /// Everything that is left to chance follows from it [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Who learns: thompson, linucb, epsilon-greedy, ucb1, coordinate-descent or policy-network; with --simulate, all prints a table
    /// of them, of three clusters that differ by chance [default: thompson]
    #[arg(long, value_name = "LEARNER")]
    pub learner: Option<String>,
}

impl LearningArguments {
    /// What everything that is left to chance follows from.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Who learns.
    pub fn learner(&self) -> &str {
        self.learner.as_deref().unwrap_or(LEARNERS[0])
    }

    /// A tuner that knows nothing yet.
    ///
    /// # Errors
    /// Wrong usage: there is no such learner.
    pub fn tuner(&self) -> Result<Tuner, Failure> {
        let unknown = || {
            let known = LEARNERS.join(", ");
            Failure::usage(format!("there is no learner `{}`; there is: {known}, {ALL}", self.learner()))
        };
        Ok(Tuner::new(by_name(self.learner()).ok_or_else(unknown)?, self.seed()))
    }
}
