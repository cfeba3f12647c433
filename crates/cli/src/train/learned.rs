//! Keeps what a tuner has learned while training goes on.

use paceline_train::{Decision, EpochRow, Observer, Progress, Start, TuningNews};
use paceline_tune::learner::Lesson;

use crate::tuning::{Experience, say_lost};

/// An observer that also keeps what was learned, for the next job on this cluster.
pub struct Learned {
    observer: Box<dyn Observer>,
    /// As long as it can be kept.
    experience: Option<Experience>,
}

impl Learned {
    /// Tells everything on to `observer`.
    pub fn new(observer: Box<dyn Observer>, experience: Experience) -> Learned {
        Learned { observer, experience: Some(experience) }
    }
}

impl Observer for Learned {
    fn started(&mut self, start: &Start) {
        self.observer.started(start);
    }

    fn iteration(&mut self, progress: &Progress) {
        self.observer.iteration(progress);
    }

    fn decided(&mut self, decision: &Decision) {
        self.observer.decided(decision);
    }

    fn tuned(&mut self, iteration: usize, news: &TuningNews) {
        self.observer.tuned(iteration, news);
    }

    /// Training goes on without what cannot be kept.
    fn learned(&mut self, lessons: &[Lesson]) {
        self.observer.learned(lessons);
        if let Some(experience) = &self.experience
            && let Err(failure) = experience.keep(lessons)
        {
            say_lost("what the tuner learns is not kept", &failure);
            self.experience = None;
        }
    }

    fn epoch(&mut self, row: &EpochRow) {
        self.observer.epoch(row);
    }
}
