//! Which plans a training has carried out, so that another one can do the same again.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use paceline_plan::Plan;
use paceline_strategy::{Registry, Strategy};
use serde::{Deserialize, Serialize};

use crate::json::read_json;
use crate::update_rule::UpdateRule;

/// The plans that a training has carried out, one after the other. The same model, data, options and world give the same
/// bits under them again, whatever is measured or chosen meanwhile. As a file: JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutedPlans {
    /// The version of the form: [`ExecutedPlans::SCHEMA`].
    pub schema: u32,
    /// How gradients became updates. Files of older versions do not say it.
    #[serde(default)]
    pub update_rule: Option<UpdateRule>,
    /// At least one; the first from iteration 0 on.
    pub stages: Vec<Stage>,
}

/// Iterations under one plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// From which iteration on, counted from 0.
    pub first_iteration: usize,
    /// The plan.
    pub plan: Plan,
    /// By operation, how its all-reduce was done at first; empty where servers add up or compressed gradients are gathered, and of a
    /// plan that was not carried out yet: then it is chosen when it is.
    #[serde(default)]
    pub all_reduces: Vec<AllReduce>,
    /// How that changed, if calls were tuned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// From an iteration on, some all-reduces were done otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// From which iteration on, counted from 0.
    pub iteration: usize,
    /// Which, and how.
    pub all_reduces: Vec<ChangedAllReduce>,
}

/// An operation whose all-reduce was done otherwise: the fields of an [`AllReduce`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedAllReduce {
    /// The operation's number in the plan.
    pub operation: usize,
    /// The algorithm.
    pub algorithm: String,
    /// The bytes of a tile.
    pub chunk_bytes: usize,
}

/// How an all-reduce was done: what decides in which order contributions are added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllReduce {
    /// The algorithm.
    pub algorithm: String,
    /// The bytes of a tile.
    pub chunk_bytes: usize,
}

/// Why a file of plans cannot be used, or could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}; --plan takes a file that --dump-plan or `paceline plan -o` has written for the same model")]
pub struct PlanFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

impl ExecutedPlans {
    /// The version of the form that this version writes and reads.
    pub const SCHEMA: u32 = 1;

    /// A plan that nobody has carried out yet, for a training from the first iteration to the last.
    pub fn planned(plan: Plan) -> ExecutedPlans {
        let stages = vec![Stage { first_iteration: 0, plan, all_reduces: Vec::new(), changes: Vec::new() }];
        ExecutedPlans { schema: ExecutedPlans::SCHEMA, update_rule: None, stages }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is none that [`ExecutedPlans::write`] has written.
    pub fn read(path: &Path) -> Result<ExecutedPlans, PlanFileError> {
        let wrong = |what: String| PlanFileError { path: path.to_owned(), what };
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let executed: ExecutedPlans = read_json(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        if executed.schema != ExecutedPlans::SCHEMA {
            return Err(wrong(format!("it has schema {}, and this version reads 1", executed.schema)));
        }
        Ok(executed)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PlanFileError> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string());
        let written = text.and_then(|text| fs::write(path, text + "\n").map_err(|error| error.to_string()));
        written.map_err(|what| PlanFileError { path: path.to_owned(), what })
    }

    /// Do the plans fit a model whose tensors have so many elements, and a training like this? What is wrong, if not.
    pub(crate) fn check(
        &self,
        sizes: &[usize],
        strategy: &Strategy,
        grammar: &Registry,
        rule: &UpdateRule,
    ) -> Result<(), String> {
        if let Some(other) = self.update_rule.as_ref().filter(|other| *other != rule) {
            return Err(format!(
                "the plan to carry out again was carried out with {other}, and this training has {rule}: that would give \
                 other bits"
            ));
        }
        if strategy.servers_apply() && self.stages.len() > 1 {
            return Err("the plan to carry out again has several stages, and servers that have the optimiser would \
                        lose its state between them"
                .into());
        }
        self.check_stages(sizes)?;
        self.stages.iter().try_for_each(|stage| stage.check_mode(strategy, grammar))
    }

    fn check_stages(&self, sizes: &[usize]) -> Result<(), String> {
        if self.stages.first().is_none_or(|stage| stage.first_iteration != 0) {
            return Err("the plan to carry out again does not begin with iteration 0".into());
        }
        if self.stages.windows(2).any(|pair| {
            pair[0].first_iteration >= pair[1].first_iteration || pair[0].plan.version >= pair[1].plan.version
        }) {
            return Err("the stages of the plan to carry out again do not follow each other".into());
        }
        self.stages.iter().try_for_each(|stage| stage.check(sizes))
    }
}

impl Stage {
    fn check(&self, sizes: &[usize]) -> Result<(), String> {
        let plan = &self.plan;
        plan.check().map_err(|error| self.unfit(format_args!("makes no sense: {error}")))?;
        if plan.tensors() != sizes.len() {
            let (planned, tensors) = (plan.tensors(), sizes.len());
            return Err(self.unfit(format_args!("is for {planned} tensors, and the model has {tensors}")));
        }
        plan.check_sizes(sizes).map_err(|error| self.unfit(format_args!("does not fit the model: {error}")))?;
        let all_reduces = if plan.shards == 0 { plan.operations() } else { 0 };
        if self.all_reduces.len() != all_reduces && !self.all_reduces.is_empty() {
            return Err(self.unfit(format_args!("names another number of all-reduces than it has")));
        }
        self.check_changes(all_reduces)
    }

    fn check_changes(&self, all_reduces: usize) -> Result<(), String> {
        let follow = self.changes.windows(2).all(|pair| pair[0].iteration < pair[1].iteration);
        if !follow || self.changes.iter().any(|change| change.iteration < self.first_iteration) {
            return Err(self.unfit(format_args!("has changes that do not follow each other")));
        }
        let mut changed = self.changes.iter().flat_map(|change| &change.all_reduces);
        match changed.find(|change| change.operation >= all_reduces) {
            Some(change) => Err(self.unfit(format_args!("changes an all-reduce {} that it has not", change.operation))),
            None => Ok(()),
        }
    }

    /// Is the optimiser where it was, and are gradients compressed as they were?
    fn check_mode(&self, strategy: &Strategy, grammar: &Registry) -> Result<(), String> {
        let planned = grammar.parse(&self.plan.strategy);
        let planned =
            planned.map_err(|error| self.unfit(format_args!("has a strategy of another version: {error}")))?;
        if planned.servers_apply() != strategy.servers_apply() {
            let (there, here) = (&planned.arch, &strategy.arch);
            return Err(self.unfit(format_args!("is for arch={there}, and this training has arch={here}")));
        }
        if planned.compress != strategy.compress {
            return Err(self.unfit(format_args!("compresses as {planned}, and this training as {strategy}")));
        }
        Ok(())
    }

    fn unfit(&self, what: fmt::Arguments<'_>) -> String {
        format!("version {} of the plan to carry out again {what}", self.plan.version)
    }
}

#[cfg(test)]
mod tests;
