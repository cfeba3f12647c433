//! Which plans a training has carried out, so that another one can do the same again.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_plan::Plan;
use serde::{Deserialize, Serialize};

/// The plans that a training has carried out, one after the other. The same model, data, options and world give the same
/// bits under them again, whatever is measured or chosen meanwhile. As a file: JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutedPlans {
    /// The version of the form: [`ExecutedPlans::SCHEMA`].
    pub schema: u32,
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
    /// By operation, how its all-reduce was done; empty where servers add up.
    pub all_reduces: Vec<AllReduce>,
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
#[error("{path}: {what}; --plan takes a file that --dump-plan has written for the same model")]
pub struct PlanFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

impl ExecutedPlans {
    /// The version of the form that this version writes and reads.
    pub const SCHEMA: u32 = 1;

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is none that [`ExecutedPlans::write`] has written.
    pub fn read(path: &Path) -> Result<ExecutedPlans, PlanFileError> {
        let wrong = |what: String| PlanFileError { path: path.to_owned(), what };
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let executed: ExecutedPlans = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
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

    /// Do the plans fit a model whose tensors have so many elements? What is wrong, if not.
    pub(crate) fn check(&self, sizes: &[usize]) -> Result<(), String> {
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
        let version = self.plan.version;
        let unfit = |what: &str| Err(format!("version {version} of the plan to carry out again {what}"));
        let mut named = vec![false; sizes.len()];
        let mut next = 0;
        for bucket in &self.plan.buckets {
            let mut elements = 0usize;
            for &tensor in &bucket.tensors {
                if named.get_mut(tensor).is_none_or(|named| std::mem::replace(named, true)) {
                    return unfit(&format!("names tensor {tensor}, which the model has not, or twice"));
                }
                elements += sizes[tensor];
            }
            let mut end = next;
            let tiled = bucket.partitions.iter().all(|partition| {
                let follows = partition.elements.start == end && partition.elements.end >= end;
                end = partition.elements.end;
                follows
            });
            if bucket.elements != (next..next + elements) || !tiled || end != next + elements {
                return unfit("is for tensors of other sizes");
            }
            next = end;
        }
        if named.contains(&false) {
            return unfit("leaves tensors of the model out");
        }
        if !self.all_reduces.is_empty() && self.all_reduces.len() != self.plan.operations() {
            return unfit("names another number of all-reduces than it has operations");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Bucket;

    use super::*;

    fn executed() -> ExecutedPlans {
        let plan = |version, buckets| Plan {
            version,
            strategy: "schedule=mg-wfbp".into(),
            buckets,
            shards: 0,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        };
        let stage = |first_iteration, plan: Plan| Stage { first_iteration, plan, all_reduces: Vec::new() };
        let apart = vec![Bucket::whole(vec![1], 0..3), Bucket::whole(vec![0], 3..7)];
        let stages = vec![stage(0, plan(1, apart)), stage(8, plan(2, vec![Bucket::whole(vec![1, 0], 0..7)]))];
        ExecutedPlans { schema: 1, stages }
    }

    #[test]
    fn plans_fit_their_model_only() {
        assert_eq!(executed().check(&[4, 3]), Ok(()));
        assert!(executed().check(&[4, 4]).unwrap_err().contains("other sizes"));
        assert!(executed().check(&[4]).unwrap_err().contains("tensor 1"));
        assert!(executed().check(&[4, 3, 1]).unwrap_err().contains("leaves tensors"));
        type Change = fn(&mut ExecutedPlans);
        let changes: [(Change, &str); 5] = [
            (|it| it.stages.clear(), "iteration 0"),
            (|it| it.stages[1].first_iteration = 0, "follow each other"),
            (|it| it.stages[1].plan.version = 1, "follow each other"),
            (|it| it.stages[1].plan.buckets[0].tensors = vec![1, 1], "twice"),
            (|it| it.stages[1].plan.buckets[0].partitions[0].elements.end = 6, "other sizes"),
        ];
        for (change, told) in changes {
            let mut executed = executed();
            change(&mut executed);
            let error = executed.check(&[4, 3]).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
