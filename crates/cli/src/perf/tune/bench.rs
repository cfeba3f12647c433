//! An all-reduce in place, called by turns as a choice says and as a tuner says.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator};
use paceline_plan::CollectiveKind;
use paceline_train::{CommonClock, Rehearsed, Took, TunedCalls};
use paceline_tune::environment::Call;
use paceline_tune::{Choice, Parallelism};

use super::super::exercise::{Exercise, Subject};
use super::super::measure::Measurable;
use super::super::pattern::Pattern;
use super::Effort;
use super::turns::Playing;
use crate::failure::Failure;

/// What the calls are part of: a layer's gradient in data-parallel training, of a model of low intensity with a small batch, so
/// that communication decides. Bytes, ranks and hosts are those of each call.
pub const CALL: Call = Call {
    collective: CollectiveKind::AllReduce,
    bytes: 0,
    ranks: 0,
    hosts: 0,
    parallelism: Parallelism::Data,
    is_pipelined_layer: true,
    is_fused_call: false,
    is_ps_deployment: false,
    model_intensity: 100.0,
    local_batch: 8,
    times: 1,
};

/// The call with its data and its tuner.
pub struct Bench<'a> {
    exercise: Exercise<'a, f32>,
    communicator: &'a Communicator,
    subject: &'a Subject,
    pub tuned: TunedCalls<'a>,
    clock: CommonClock,
    /// Elements of this rank that were not what they must be, in the calls that were checked.
    pub wrong: u64,
}

impl<'a> Bench<'a> {
    /// Of so many bytes.
    ///
    /// # Errors
    /// There is not that much memory; the ranks have other programs to choose from, or those are for other calls.
    pub fn new(
        communicator: &'a Communicator,
        subject: &'a Subject,
        pattern: &'a Pattern<f32>,
        bytes: usize,
        effort: &Effort<'_>,
    ) -> Result<Bench<'a>, Failure> {
        let exercise = Exercise::new(communicator, subject, pattern, bytes)?;
        let mut tuned = TunedCalls::new(communicator, effort.seed);
        tuned.admit(effort.programs)?;
        let clock = CommonClock::default();
        Ok(Bench { exercise, communicator, subject, tuned, clock, wrong: 0 })
    }

    /// The bytes that are reduced.
    pub fn bytes(&self) -> usize {
        self.exercise.bytes()
    }

    /// One call as a choice says; what it took on this rank. A checked one starts from wrong data.
    ///
    /// # Errors
    /// Those of the call.
    pub fn choice(&mut self, choice: Choice, is_checked: bool) -> Result<Took, CommError> {
        self.timed(is_checked, |bench| {
            let (data, options) = (bench.exercise.data().1, CallOptions::default());
            bench.tuned.all_reduce_as(choice, data, bench.subject.reduction, &options)
        })
    }

    /// Rehearses the call for about so many seconds, before it is learned. None: it is not to be.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn rehearse(&mut self, seconds: f64) -> Result<Option<Rehearsed>, CommError> {
        if seconds <= 0.0 {
            return Ok(None);
        }
        let limit = Duration::from_secs_f64(seconds);
        let data = self.exercise.data().1;
        self.tuned.rehearse_all_reduce(data, self.subject.reduction, &CALL, limit).map(Some)
    }

    fn timed(
        &mut self,
        is_checked: bool,
        call: impl FnOnce(&mut Self) -> Result<(), CommError>,
    ) -> Result<Took, CommError> {
        if is_checked {
            self.exercise.spoil();
        }
        self.exercise.refill();
        self.clock.compare_now_and_then(self.communicator)?;
        self.exercise.barrier()?;
        let began = Instant::now();
        call(self)?;
        let took = began.elapsed();
        if is_checked {
            self.wrong += self.exercise.count_wrong();
        }
        Ok(self.clock.took(self.communicator, began, took))
    }
}

impl Playing for Bench<'_> {
    type Rival = Choice;

    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    fn tuned(&mut self, is_checked: bool) -> Result<Took, CommError> {
        self.timed(is_checked, |bench| {
            let options = CallOptions::default();
            bench.tuned.all_reduce(bench.exercise.data().1, bench.subject.reduction, &CALL, &options)
        })
    }

    fn rival(&mut self, rival: &Choice, is_checked: bool) -> Result<Took, CommError> {
        self.choice(*rival, is_checked)
    }

    fn boundary(&mut self) -> Result<(), CommError> {
        self.tuned.boundary().map(drop)
    }
}
