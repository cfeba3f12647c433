//! What was learned, for people and for programs.

use std::fmt;

use paceline_train::TunedContext;
use paceline_tune::Tuner;
use paceline_tune::atlas::{Atlas, Table, rows};
use paceline_tune::environment::{CostModel, SimulatedCluster};
use paceline_tune::simulation::{Outcome, Totals};
use paceline_tune::trial::{Gain, Verdict};
use serde::Serialize;

use super::learning::LearningArguments;
use super::place::Place;
use super::simulated::SimulationArguments;

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
pub struct Report {
    cluster: String,
    model: String,
    workload: String,
    learner: String,
    seed: u64,
    iterations: usize,
    calls: u64,
    tuned_s: f64,
    default_s: f64,
    oracle_s: f64,
    regret_s: f64,
    worst_prefix: f64,
    last_iteration: Iteration,
    gain: Option<Significant>,
    trials: u32,
    contexts: Vec<TunedContext>,
    /// Kinds of calls that a job may make, and that nothing is learned of here, with the reason.
    left_out_calls: Vec<String>,
    not_actuable: Vec<&'static str>,
    /// Why it may not hold anywhere.
    extrapolated: Vec<String>,
    #[serde(skip)]
    atlas: Option<Atlas>,
    #[serde(skip)]
    table: Option<Table>,
}

/// Seconds of calls in an iteration.
#[derive(Serialize)]
struct Iteration {
    tuned_s: f64,
    default_s: f64,
    oracle_s: f64,
}

/// A gain that is more than chance.
#[derive(Serialize)]
struct Significant {
    share: f64,
    share_margin: f64,
    probability: f64,
}

impl Report {
    /// Of a simulation that has ended.
    pub fn new(
        arguments: &SimulationArguments,
        learning: &LearningArguments,
        place: &Place,
        tuner: &Tuner,
        cluster: &SimulatedCluster,
        outcome: &Outcome,
        left_out_calls: Vec<String>,
    ) -> Report {
        let rows = rows(tuner, cluster.model());
        let Totals { calls, tuned_s, default_s, oracle_s, .. } = outcome.totals.last().copied().unwrap_or_default();
        let last = outcome.last;
        Report {
            cluster: place.name(),
            model: cluster.model().name(),
            workload: arguments.workload().to_owned(),
            learner: learning.learner().to_owned(),
            seed: learning.seed(),
            iterations: arguments.iterations(),
            calls,
            tuned_s,
            default_s,
            oracle_s,
            regret_s: tuned_s - oracle_s,
            worst_prefix: outcome.worst_prefix,
            last_iteration: Iteration { tuned_s: last.tuned_s, default_s: last.default_s, oracle_s: last.oracle_s },
            gain: match outcome.verdict {
                Verdict::Gain(Gain { share, margin, probability }) => {
                    Some(Significant { share, share_margin: margin, probability })
                }
                Verdict::NoSignificantGain => None,
            },
            trials: tuner.trials(),
            contexts: rows.iter().map(TunedContext::of).collect(),
            left_out_calls,
            not_actuable: not_actuable(cluster.model()),
            extrapolated: place.doubt().into_iter().collect(),
            atlas: learning.atlas.then(|| Atlas(rows.clone())),
            table: learning.table.then_some(Table(rows)),
        }
    }
}

/// The knobs of a call that no tuner can set there.
pub fn not_actuable(model: &dyn CostModel) -> Vec<&'static str> {
    if model.sets_threads() { Vec::new() } else { vec!["threads"] }
}

/// Why, for people. Only NCCL has such knobs.
pub fn not_actuable_in_words(knobs: &[&str]) -> String {
    format!("{}: NCCL_NTHREADS sets them for a whole process, no tuner for a call", knobs.join(", "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, text: String| writeln!(f, "  {name:<15} {text}");
        writeln!(
            f,
            "{} on {}, simulated: {} iterations, seed {}",
            self.workload, self.model, self.iterations, self.seed
        )?;
        let over = |seconds: f64| 100.0 * (seconds / self.oracle_s.max(f64::MIN_POSITIVE) - 1.0);
        row(f, "calls", format!("{} in {} regimes, {} trials", self.calls, self.contexts.len(), self.trials))?;
        row(f, "default", format!("{:.3} s, {:.1} % over the best", self.default_s, over(self.default_s)))?;
        row(f, "tuned", format!("{:.3} s, {:.1} % over the best", self.tuned_s, over(self.tuned_s)))?;
        row(f, "regret", format!("{:.3} s so far", self.regret_s))?;
        let Iteration { tuned_s, default_s, oracle_s } = self.last_iteration;
        let last = format!(
            "{:.2} ms tuned, {:.2} ms default, {:.2} ms at best",
            1e3 * tuned_s,
            1e3 * default_s,
            1e3 * oracle_s
        );
        row(f, "last iteration", last)?;
        let worst = format!("{:.2} % of the default's time, from 100 calls on", 100.0 * self.worst_prefix);
        row(f, "at worst", worst)?;
        let gain = self.gain.as_ref().map_or("no significant gain".to_owned(), |gain| {
            let Significant { share, share_margin: margin, probability } = gain;
            format!("{:.1} % ± {:.1} of an iteration's calls, p = {probability:.0e}", 100.0 * share, 100.0 * margin)
        });
        row(f, "gain", gain)?;
        if !self.not_actuable.is_empty() {
            row(f, "not actuable", not_actuable_in_words(&self.not_actuable))?;
        }
        for left_out in &self.left_out_calls {
            row(f, "left out", left_out.clone())?;
        }
        for doubt in &self.extrapolated {
            row(f, "extrapolated", doubt.clone())?;
        }
        if let Some(atlas) = &self.atlas {
            write!(f, "\n{atlas}")?;
        }
        if let Some(table) = &self.table {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}
