//! Writes telemetry while training goes on.

use paceline_comm::Communicator;
use paceline_train::{Decision, EpochRow, Observer, Progress, Start, TuningNews};
use paceline_tune::learner::Lesson;

use crate::failure::Failure;
use crate::telemetry::Telemetry;

/// Updates between two writings: few enough that no call is forgotten, many enough that writing costs nothing.
const UPDATES: usize = 256;

/// An observer that also writes what each call did, if that is wanted.
pub struct Recorded<'a> {
    observer: Box<dyn Observer>,
    telemetry: Option<Telemetry>,
    communicator: &'a Communicator,
    /// The first writing that failed. Training goes on without.
    failure: Option<Failure>,
}

impl<'a> Recorded<'a> {
    /// Tells everything on to `observer`.
    pub fn new(
        observer: Box<dyn Observer>,
        telemetry: Option<Telemetry>,
        communicator: &'a Communicator,
    ) -> Recorded<'a> {
        Recorded { observer, telemetry, communicator, failure: None }
    }

    /// Writes the last calls.
    ///
    /// # Errors
    /// This writing, or an earlier one, failed.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.write();
        self.failure.map_or(Ok(()), Err)
    }

    fn write(&mut self) {
        if let Some(telemetry) = self.telemetry.as_mut()
            && let Err(failure) = telemetry.write(self.communicator)
        {
            self.telemetry = None;
            self.failure = Some(failure);
        }
    }
}

impl Observer for Recorded<'_> {
    fn started(&mut self, start: &Start) {
        self.observer.started(start);
    }

    fn iteration(&mut self, progress: &Progress) {
        self.observer.iteration(progress);
        if progress.iteration.is_multiple_of(UPDATES) {
            self.write();
        }
    }

    fn decided(&mut self, decision: &Decision) {
        self.observer.decided(decision);
    }

    fn tuned(&mut self, iteration: usize, news: &TuningNews) {
        self.observer.tuned(iteration, news);
    }

    fn learned(&mut self, lessons: &[Lesson]) {
        self.observer.learned(lessons);
    }

    fn epoch(&mut self, row: &EpochRow) {
        self.observer.epoch(row);
        self.write();
    }
}
