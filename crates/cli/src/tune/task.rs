//! Which of its things `paceline tune` is asked for. It is told nothing that would be ignored.

use super::TuneArguments;
use super::place::Place;
use crate::failure::Failure;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// NCCL's tables are printed.
    Tables,
    /// Learning on a simulated cluster with our communicator.
    Simulated,
    /// The same with NCCL.
    SimulatedNccl,
    /// Learning from what a job has recorded of NCCL's calls.
    Samples,
    /// What a database knows is shown.
    Known,
}

/// The tasks of an option, and what asks for them.
type For = (&'static [Task], &'static str);

const TABLES: For = (&[Task::Tables], "--nccl-table VERSION");
const SIMULATED: For = (&[Task::Simulated, Task::SimulatedNccl], "--simulate CLUSTER");
/// NCCL's model knows of no servers.
const OWN: For = (&[Task::Simulated], "--simulate CLUSTER, not nccl:VERSION");
const SAMPLES: For = (&[Task::Samples], "--nccl-samples FILE.jsonl");
const COMMUNICATOR: For = (
    &[Task::Tables, Task::SimulatedNccl, Task::Samples],
    "--nccl-table VERSION, --simulate nccl:VERSION or --nccl-samples FILE.jsonl",
);
const LEARNS: For =
    (&[Task::Simulated, Task::SimulatedNccl, Task::Samples], "--simulate CLUSTER or --nccl-samples FILE.jsonl");
const SHOWN: For = (
    &[Task::Simulated, Task::SimulatedNccl, Task::Samples, Task::Known],
    "--simulate CLUSTER, --nccl-samples FILE.jsonl or --database FILE.sqlite",
);
/// A database alone is shown by `--atlas` and `--table`.
const KEPT: For = (SHOWN.0, "--simulate CLUSTER, --nccl-samples FILE.jsonl, --atlas or --table");

impl Task {
    /// That of a command line.
    ///
    /// # Errors
    /// It asks for nothing, or has an option that says nothing there.
    pub fn of(arguments: &TuneArguments) -> Result<Task, Failure> {
        let given = given(arguments);
        let needs = |name: &str, (_, whose): For| {
            Failure::usage(format!("{name} would be ignored: it goes with {whose}"))
                .help(format!("leave {name} out, or give what it goes with"))
        };
        let Some(task) = Task::asked_for(arguments) else {
            let first = given.first().map(|(name, whose)| needs(name, *whose));
            return Err(first.unwrap_or_else(|| {
                Failure::usage(
                    "nothing was asked for: give --nccl-table VERSION, --simulate CLUSTER or --nccl-samples \
                     FILE.jsonl; or --database FILE.sqlite with --atlas or --table",
                )
            }));
        };
        match given.iter().find(|(_, (tasks, _))| !tasks.contains(&task)) {
            Some((name, whose)) => Err(needs(name, *whose)),
            None => Ok(task),
        }
    }

    fn asked_for(arguments: &TuneArguments) -> Option<Task> {
        let TuneArguments { learning, simulation, samples, nccl, .. } = arguments;
        if nccl.nccl_table.is_some() {
            return Some(Task::Tables);
        }
        if let Some(cluster) = &simulation.simulate {
            return Some(if Place::is_nccl(cluster) { Task::SimulatedNccl } else { Task::Simulated });
        }
        if !samples.nccl_samples.is_empty() {
            return Some(Task::Samples);
        }
        (learning.database.is_some() && (learning.atlas || learning.table)).then_some(Task::Known)
    }
}

/// The options that were given, besides `--json`, which every task has, and those that ask for a task.
fn given(arguments: &TuneArguments) -> Vec<(&'static str, For)> {
    let TuneArguments { learning, simulation, samples, nccl, .. } = arguments;
    let disturbed = &simulation.disturbed;
    let mut given: Vec<(&'static str, For)> = Vec::new();
    for (is_given, name, whose) in [
        (learning.atlas, "--atlas", SHOWN),
        (learning.table, "--table", SHOWN),
        (learning.database.is_some(), "--database", KEPT),
        (learning.output.is_some(), "--output", LEARNS),
        (learning.seed.is_some(), "--seed", LEARNS),
        (learning.learner.is_some(), "--learner", LEARNS),
        (simulation.workload.is_some(), "--workload", SIMULATED),
        (simulation.iterations.is_some(), "--iterations", SIMULATED),
        (simulation.ps_deployment, "--ps-deployment", OWN),
        (!disturbed.drift.is_empty(), "--drift", SIMULATED),
        (disturbed.congestion.is_some(), "--congestion", SIMULATED),
        (disturbed.noise.is_some(), "--noise", SIMULATED),
        (disturbed.stragglers.is_some(), "--stragglers", SIMULATED),
        (samples.nccl_version.is_some(), "--nccl-version", SAMPLES),
        (samples.model_intensity.is_some(), "--model-intensity", SAMPLES),
        (samples.local_batch.is_some(), "--local-batch", SAMPLES),
        (samples.no_tries, "--no-tries", SAMPLES),
        (!nccl.bytes.is_empty(), "--bytes", TABLES),
    ] {
        if is_given {
            given.push((name, whose));
        }
    }
    given.extend(nccl.given().into_iter().map(|name| (name, COMMUNICATOR)));
    given
}

#[cfg(test)]
mod tests {
    use super::super::parsed;
    use super::*;

    fn task(arguments: &[&str]) -> Result<Task, String> {
        Task::of(&parsed(arguments.iter().copied())?).map_err(|failure| failure.in_one_line())
    }

    #[test]
    fn what_is_asked_for_is_done() {
        for (arguments, expected) in [
            (&["--nccl-table", "2.30", "--ranks", "16", "--bytes", "1KiB"][..], Task::Tables),
            (&["--simulate", "study-10gbe", "--seed", "3", "--atlas", "--noise", "0.1"], Task::Simulated),
            (&["--simulate", "study-10gbe", "--ps-deployment"], Task::Simulated),
            (&["--simulate", "nccl:2.30", "--ranks", "16", "--database", "f"], Task::SimulatedNccl),
            (&["--nccl-samples", "a", "b", "--nccl-version", "2.30", "--nvls", "-o", "policy.toml"], Task::Samples),
            (&["--database", "f", "--table"], Task::Known),
            (&["--database", "f", "--atlas"], Task::Known),
        ] {
            assert_eq!(task(arguments), Ok(expected), "{arguments:?}");
        }
    }

    /// Each of these was ignored once, or would be.
    #[test]
    fn nothing_is_ignored_without_a_word() {
        for (arguments, name, needed) in [
            (&["--nccl-table", "2.30", "--atlas"][..], "--atlas", "--simulate CLUSTER"),
            (&["--nccl-table", "2.30", "--table"], "--table", "--nccl-samples FILE.jsonl"),
            (&["--nccl-table", "2.30", "-o", "policy.toml"], "--output", "--simulate CLUSTER"),
            (&["--nccl-table", "2.30", "--database", "f"], "--database", "--simulate CLUSTER"),
            (&["--nccl-table", "2.30", "--drift", "1:5"], "--drift", "--simulate CLUSTER"),
            (&["--nccl-table", "2.30", "--nccl-version", "2.30"], "--nccl-version", "--nccl-samples FILE.jsonl"),
            (&["--simulate", "study-10gbe", "--ranks", "64"], "--ranks", "--simulate nccl:VERSION"),
            (&["--simulate", "study-10gbe", "--nvls"], "--nvls", "--nccl-table VERSION"),
            (&["--simulate", "study-10gbe", "--bytes", "1KiB"], "--bytes", "--nccl-table VERSION"),
            (&["--simulate", "nccl:2.30", "--bytes", "1KiB"], "--bytes", "--nccl-table VERSION"),
            (&["--simulate", "nccl:2.30", "--ps-deployment"], "--ps-deployment", "not nccl:VERSION"),
            (&["--simulate", "nccl:2.30", "--no-tries", "-o", "f"], "--no-tries", "--nccl-samples FILE.jsonl"),
            (&["--nccl-samples", "a", "--nccl-version", "2.30", "--workload", "x"], "--workload", "--simulate CLUSTER"),
            (&["--nccl-samples", "a", "--nccl-version", "2.30", "--congestion", "0.1:2"], "--congestion", "--simulate"),
            (&["--database", "f"], "--database", "--atlas or --table"),
            (&["--database", "f", "--atlas", "--seed", "1"], "--seed", "--simulate CLUSTER"),
            (&["--database", "f", "--atlas", "-o", "policy.toml"], "--output", "--nccl-samples FILE.jsonl"),
            (&["--atlas"], "--atlas", "--database FILE.sqlite"),
            (&["--hosts", "2"], "--hosts", "--nccl-table VERSION"),
            (&[], "nothing was asked for", "--database FILE.sqlite with --atlas or --table"),
        ] {
            let message = task(arguments).expect_err("something would be ignored");
            assert!(message.starts_with(name) && message.contains(needed), "{arguments:?}: {message}");
        }
        for arguments in [
            &["--nccl-samples", "a"][..],
            &["--nccl-table", "2.30", "--simulate", "study-10gbe"],
            &["--nccl-samples", "a", "--nccl-version", "2.30", "--simulate", "study-10gbe"],
            &["--nccl-samples", "a", "--nccl-version", "2.30", "--nccl-table", "2.30"],
        ] {
            let message = task(arguments).expect_err("one thing at a time");
            let says = ["--nccl-version", "cannot be used"].iter().any(|words| message.contains(words));
            assert!(says, "{arguments:?}: {message}");
        }
    }
}
