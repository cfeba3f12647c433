//! One rank's part in tuning the all-reduces of a job while it runs.
//!
//! A window is some iterations between two boundaries; how many, and of how many of the last ones calls are timed, rank 0 says at
//! the boundary before, and so it is the same on all ranks. In an iteration all calls of a context take the same: they are under way
//! together, and what one of them took by itself nobody could tell if they were of several kinds. At a boundary the ranks take the
//! least of what they tell of each call and the longest time of each iteration, rank 0 decides, and its policy spreads: four small
//! collectives, at a place where all operations of an iteration have arrived and none of the next has begun. What is told of a call is a
//! number of eight bytes, and travels in far less time than the call itself: however many calls there are, there is no need to tell less.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Record, Reduction};
use paceline_plan::{CollectiveKind, OperationKey, OperationNumber, Plan};
use paceline_tune::environment::OwnModel;
use paceline_tune::learner::Lesson;
use paceline_tune::{Choice, Congestion, Context, Family, Tuner};

mod leader;
mod rehearse;

use super::carrier::Way;
use super::own_times::{Span, own_times, told};
use super::tunable::{Job, Operation, operations, seen, situation};
use crate::agreement::Agreement;
use crate::error::TrainError;
use crate::tuned::{Learning, Made, Policies, Situations, TunedProgram, beliefs, of_number};
use crate::tuning::{TuneOptions, TuningNews, TuningReport};
use leader::{Ended, Leader};

/// Calls besides the operations of an iteration that may end in it, such as those of an evaluation.
const CALLS_BESIDE: usize = 256;

/// Tunes.
pub(crate) struct Tuning {
    workers: Communicator,
    job: Job,
    model: OwnModel,
    /// The algorithm that the strategy names: it stays, and the rest is tuned.
    fixed: Option<String>,
    /// That may be chosen, besides the library's algorithms.
    programs: Vec<TunedProgram>,
    /// What can be done about calls; on rank 0, which decides.
    situations: Situations,
    policies: Policies,
    /// On rank 0.
    leader: Option<Leader>,
    /// Of the plan that is carried out.
    operations: Vec<Operation>,
    plan_version: u32,
    /// Calls of each context in an iteration.
    calls: BTreeMap<Context, usize>,
    window: Window,
    /// When the iteration began.
    began: Option<Instant>,
    /// Something else has happened in it: its time says nothing.
    interrupted: bool,
    /// How long the ranks have told each other what they measured, in all, and how often.
    boundaries: (Duration, u32),
    /// How long calls are rehearsed at most, and seconds for which they were.
    rehearsal: Duration,
    rehearsal_s: f64,
    /// Calls are remembered because of us.
    recording: bool,
    settled: bool,
    /// As all ranks agree.
    congestion: Congestion,
}

/// Some iterations.
#[derive(Default)]
struct Window {
    /// How many.
    iterations: usize,
    /// Calls are timed in so many, the last ones.
    recorded: usize,
    /// Of those that have ended; infinite if interrupted.
    seconds: Vec<f64>,
    /// In those in which calls are timed. What they have taken is known when the ranks have met.
    made: Vec<Made>,
    /// Of each operation in each of them, what this rank tells of its call.
    told: Vec<f64>,
}

impl Window {
    /// The first one under a plan: nothing is tried in it, as what was to be tried was so under the plan before.
    const FIRST: Window =
        Window { iterations: 1, recorded: 0, seconds: Vec::new(), made: Vec::new(), told: Vec::new() };

    fn is_over(&self) -> bool {
        self.seconds.len() >= self.iterations
    }

    /// Of the iteration that runs, or begins: its number among those in which calls are timed; None if they are not.
    fn recorded_number(&self) -> Option<u64> {
        (self.seconds.len() + self.recorded).checked_sub(self.iterations).map(|number| number as u64)
    }

    fn is_recorded(&self) -> bool {
        self.recorded_number().is_some()
    }
}

impl Tuning {
    /// `fixed`: the algorithm, if the strategy names one.
    pub(crate) fn new(workers: &Communicator, fixed: Option<&str>, job: Job, options: &TuneOptions) -> Tuning {
        let leads = workers.rank() == 0;
        let leader = || {
            let mut learning = Learning::new(Tuner::shipped(options.seed));
            learning.remember(options.lessons.iter().copied().filter(is_of_algorithm));
            Leader::new(learning, options.seed)
        };
        Tuning {
            workers: workers.clone(),
            job,
            model: beliefs(workers).with_programs(options.programs.iter().map(TunedProgram::admitted).collect()),
            fixed: fixed.map(str::to_owned),
            programs: options.programs.clone(),
            situations: Situations::new(),
            policies: Policies::default(),
            leader: leads.then(leader),
            operations: Vec::new(),
            plan_version: 0,
            calls: BTreeMap::new(),
            window: Window::FIRST,
            began: None,
            interrupted: false,
            boundaries: (Duration::ZERO, 0),
            rehearsal: options.rehearsal,
            rehearsal_s: 0.0,
            recording: false,
            settled: false,
            congestion: Congestion::None,
        }
    }

    /// Another plan is carried out from here on, whose operations the carrier calls like this; `fixed`: with this algorithm, if the
    /// plan's strategy names one. All ranks call it, and compare what they see of the calls.
    pub(crate) fn replanned(
        &mut self,
        plan: &Plan,
        fixed: Option<&str>,
        options: Vec<CallOptions>,
    ) -> Result<(), TrainError> {
        if let Some(leader) = &mut self.leader {
            leader.replanned(&self.situations);
        }
        if self.fixed.as_deref() != fixed {
            self.fixed = fixed.map(str::to_owned);
            if let Some(leader) = &mut self.leader {
                leader.renew(&self.situations);
            }
            self.situations.clear();
        }
        self.calls.clear();
        self.operations.clear();
        for (operation, state) in operations(&self.workers, &self.model, self.job, plan, options) {
            let (context, model, fixed) = (operation.context, &self.model, self.fixed.as_deref());
            if self.leader.is_some() {
                self.situations.entry(context).or_insert_with(|| situation(model, fixed, &state));
            }
            *self.calls.entry(context).or_insert(0) += 1;
            self.operations.push(operation);
        }
        self.plan_version = plan.version;
        (self.window, self.began, self.settled) = (Window::FIRST, None, false);
        // What is remembered is as long as the operations are many.
        self.record(false);
        let mut agreement = Agreement::default();
        agreement.add("what the tuner sees of its calls", seen(&self.operations));
        agreement.compare(&self.workers)
    }

    /// There is nothing to tune until another plan comes.
    pub(crate) fn rest(&mut self) {
        self.record(false);
    }

    /// All operations of the last iteration, `last` from 0 on, have arrived, and none of the next has begun. Returns what
    /// is called otherwise in it.
    pub(crate) fn next_iteration(&mut self, last: u64) -> Result<Vec<(OperationNumber, Way)>, CommError> {
        if let Some(began) = self.began.take() {
            self.end_iteration(began.elapsed(), last);
        }
        if self.window.is_over() {
            let began = Instant::now();
            self.boundary()?;
            let (spent, count) = self.boundaries;
            self.boundaries = (spent + began.elapsed(), count + 1);
        }
        self.record(self.window.is_recorded());
        let changed = self.take_turns();
        self.interrupted = false;
        self.began = Some(Instant::now());
        Ok(changed)
    }

    fn end_iteration(&mut self, took: Duration, iteration: u64) {
        if let Some(number) = self.window.recorded_number() {
            let told = self.told_of(iteration);
            self.window.told.extend(told);
            for (&context, &calls) in &self.calls {
                let of_context = self.operations.iter().find(|operation| operation.context == context);
                let choice = of_context.map_or(Choice::Default, |operation| operation.choice);
                self.window.made.push(Made { context, number, choice, calls, seconds: f64::INFINITY, longest: 1.0 });
            }
        }
        self.window.seconds.push(if self.interrupted { f64::INFINITY } else { took.as_secs_f64() });
    }

    /// By operation, what this rank tells of its call in an iteration.
    fn told_of(&self, iteration: u64) -> Vec<f64> {
        let count = self.operations.len();
        let first = iteration * count as u64;
        let ids: Range<u64> = first..first + count as u64;
        let ours = |record: &Record| {
            let key = record.key;
            key.communicator & OperationKey::NAMED != 0
                && key.plan_version == self.plan_version
                && ids.contains(&key.operation)
                && record.collective == CollectiveKind::AllReduce
                && !record.failed
        };
        let mut records = self.workers.latest_records(count + CALLS_BESIDE);
        records.retain(ours);
        let span = |record: &Record| Span { start: record.start, end: record.end };
        let spans: Vec<Span> = records.iter().map(span).collect();
        let mut by_operation = vec![f64::INFINITY; count];
        for (record, told) in records.iter().zip(told(&spans)) {
            by_operation[(record.key.operation - first) as usize] = told;
        }
        by_operation
    }

    /// All ranks learn of each other's times, and go on under rank 0's next policy, if all have it.
    fn boundary(&mut self) -> Result<(), CommError> {
        let Window { seconds, mut made, told: mut least, .. } = mem::take(&mut self.window);
        // The last to come has waited for nobody: its time is the call's. An iteration takes as long as its slowest rank.
        let calls = least.len();
        least.extend(seconds.iter().map(|seconds| -seconds));
        self.workers.all_reduce(&mut least, Reduction::Min, &CallOptions::default())?;
        let iteration_s: Vec<f64> = least.split_off(calls).iter().map(|seconds| -seconds).collect();
        let mut told = [0; 4];
        let mut version = None;
        if let Some(leader) = &mut self.leader {
            take_times(&self.operations, &mut made, &least);
            let congestion = leader.observe_congestion(&made, &mut self.situations);
            let (situations, calls, active) = (&self.situations, &self.calls, self.policies.active());
            let (spent, count) = self.boundaries;
            let boundary_s = spent.as_secs_f64() / f64::from(count.max(1));
            let iteration_s = &iteration_s;
            let turn = leader.turn(&Ended { active, made: &made, iteration_s, boundary_s, situations, calls });
            told = [turn.iterations as i64, turn.recorded as i64, i64::from(turn.settled), congestion as i64];
            version = turn.version;
        }
        self.policies.spread(&self.workers, version.as_ref(), &mut told)?;
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        self.window = Window { iterations: count(told[0]).max(1), recorded: count(told[1]), ..Window::default() };
        self.settled = told[2] != 0;
        self.congestion = of_number(told[3]);
        Ok(())
    }

    /// Remembers calls, or no more; whoever else wants them remembered is not disturbed.
    fn record(&mut self, wanted: bool) {
        if wanted && !self.workers.is_recording() {
            self.workers.record_calls(self.operations.len() + CALLS_BESIDE);
            self.recording = true;
        } else if !wanted && mem::take(&mut self.recording) {
            self.workers.record_calls(0);
        }
    }

    /// What the policy says of each operation in the iteration that begins: what is called otherwise than in the last one. Things
    /// are tried where calls are timed.
    fn take_turns(&mut self) -> Vec<(OperationNumber, Way)> {
        let (version, number) = (self.policies.current(), self.window.recorded_number());
        let mut changed = Vec::new();
        for (place, operation) in self.operations.iter_mut().enumerate() {
            let choice = version.choice(operation.key, number);
            if operation.choice != choice {
                changed.push((place, operation.choose(choice, &self.workers, self.fixed.as_deref(), &self.programs)));
            }
        }
        changed
    }

    /// The iteration that runs is not like others: its time says nothing.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Is something still open? The same on all ranks.
    pub(crate) fn is_learning(&self) -> bool {
        !self.settled
    }

    /// On rank 0: what has been found out since this was last asked.
    pub(crate) fn take_news(&mut self) -> Vec<TuningNews> {
        self.leader.as_mut().map_or_else(Vec::new, Leader::take_news)
    }

    /// On rank 0: what a later job may begin with.
    pub(crate) fn lessons(&self) -> Option<Vec<Lesson>> {
        let lessons = self.leader.as_ref().map(|leader| leader.lessons(&self.situations))?;
        Some(lessons.into_iter().filter(is_of_algorithm).collect())
    }

    /// On rank 0: what it has come to.
    pub(crate) fn report(&self) -> Option<TuningReport> {
        let (boundaries_s, congestion) = (self.boundaries.0.as_secs_f64(), Some(self.congestion));
        self.leader.as_ref().map(|leader| TuningReport {
            boundaries_s,
            rehearsal_s: self.rehearsal_s,
            congestion,
            ..leader.report(&self.model, &self.situations)
        })
    }
}

/// Says what the calls of a window have taken, of which each iteration has one of each operation: the least that ranks have told of them.
fn take_times(operations: &[Operation], made: &mut [Made], least: &[f64]) {
    let bytes: Vec<usize> = operations.iter().map(|operation| operation.bytes).collect();
    let iterations = least.chunks(operations.len().max(1));
    let own_s: Vec<Vec<f64>> = iterations.map(|calls| own_times(calls, &bytes)).collect();
    for made in made {
        let Some(own_s) = usize::try_from(made.number).ok().and_then(|number| own_s.get(number)) else { continue };
        let of_context = operations.iter().zip(own_s).filter(|(operation, _)| operation.context == made.context);
        let of_context: Vec<f64> = of_context.map(|(_, own_s)| *own_s).collect();
        made.seconds = of_context.iter().sum::<f64>() / made.calls as f64;
        made.longest = of_context.iter().copied().fold(0.0, f64::max) / made.seconds;
    }
}

/// Is it about an algorithm of the library? A later job's programs may be others, in another order.
fn is_of_algorithm(lesson: &Lesson) -> bool {
    lesson.action.family.algorithm < Family::PROGRAMS
}

/// Nobody needs the memory any more.
impl Drop for Tuning {
    fn drop(&mut self) {
        self.record(false);
    }
}

#[cfg(test)]
mod tests;
