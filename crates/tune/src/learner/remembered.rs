//! What earlier jobs have told, in seconds, until the calls come that it is about.

use std::collections::{BTreeMap, BTreeSet};

use super::Lesson;
use crate::action::{Action, Situation};
use crate::state::Context;

/// Lessons of earlier jobs. They are kept in seconds: what the model expects depends on how this job's links were measured or described,
/// and the next job's may be otherwise.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// Of contexts that have not come yet.
    waiting: BTreeMap<Context, Vec<Lesson>>,
    /// Of contexts that have come, of choices that there are.
    recalled: BTreeMap<(Context, Action), Lesson>,
}

impl Remembered {
    /// Adds what an earlier job has kept.
    pub fn add(&mut self, lessons: impl IntoIterator<Item = Lesson>) {
        for lesson in lessons {
            self.waiting.entry(lesson.context).or_default().push(lesson);
        }
    }

    /// A context comes: what was told of it and has not been recalled yet, relative to what is modelled here, as a tuner is told it.
    /// What is no time, or no choice here, is left out.
    pub fn recall(&mut self, situation: &Situation) -> Vec<Lesson> {
        let mut relative = Vec::new();
        for lesson in self.waiting.remove(&situation.context).unwrap_or_default() {
            let mean = modelled_s(situation, &lesson).map(|modelled_s| lesson.mean - modelled_s.ln());
            if let Some(mean) = mean.filter(|mean| mean.is_finite()) {
                self.recalled.insert(lesson.subject(), lesson);
                relative.push(Lesson { mean, ..lesson });
            }
        }
        relative
    }

    /// Was something told of a context?
    pub fn tells_of(&self, context: &Context) -> bool {
        self.waiting.contains_key(context) || self.recalled.keys().any(|(of, _)| of == context)
    }

    /// Of how many choices something was recalled.
    pub fn recalled(&self) -> usize {
        self.recalled.len()
    }

    /// What a later job may begin with, in seconds: what a tuner has learned in this one, and what was told and not measured again, as
    /// it was told.
    pub fn lessons<'a>(
        &self,
        learned: impl IntoIterator<Item = Lesson>,
        situation_of: impl Fn(&Context) -> Option<&'a Situation>,
    ) -> Vec<Lesson> {
        let in_seconds = learned.into_iter().filter_map(|lesson| {
            let modelled_s = modelled_s(situation_of(&lesson.context)?, &lesson)?;
            Some(Lesson { mean: lesson.mean + modelled_s.ln(), ..lesson })
        });
        let mut all: Vec<Lesson> = in_seconds.collect();
        let measured: BTreeSet<(Context, Action)> = all.iter().map(Lesson::subject).collect();
        let told = self.recalled.values().chain(self.waiting.values().flatten());
        all.extend(told.filter(|lesson| !measured.contains(&lesson.subject())));
        all
    }
}

impl Lesson {
    /// What it is about.
    pub fn subject(&self) -> (Context, Action) {
        (self.context, self.action)
    }
}

/// Seconds that the model expects of a lesson's choice; None if there is no such choice here.
fn modelled_s(situation: &Situation, lesson: &Lesson) -> Option<f64> {
    situation.arms.iter().find(|arm| arm.action == lesson.action).map(|arm| arm.modelled_s)
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;

    use super::*;
    use crate::environment::{CostModel, OwnModel, Workload};

    #[test]
    fn what_was_told_is_told_on_unless_it_was_measured() {
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let situation = model.situation(&model.state(&Workload::data_parallel(8, 32).calls[0])).expect("choices");
        let lesson = |arm: usize, mean: f64| Lesson {
            context: situation.context,
            action: situation.arms[arm].action,
            samples: 3.0,
            mean,
        };
        let unknown = Lesson { action: Action { channels: 77, ..situation.arms[0].action }, ..lesson(0, -2.0) };
        let mut remembered = Remembered::default();
        remembered.add([lesson(0, -2.0), lesson(1, -3.0), lesson(2, f64::NAN), unknown]);
        let of = |_: &Context| Some(&situation);
        assert_eq!(remembered.lessons([], of).len(), 4, "what has not come yet is not lost");
        assert!(remembered.tells_of(&situation.context));
        let relative = remembered.recall(&situation);
        assert!(remembered.tells_of(&situation.context) && !Remembered::default().tells_of(&situation.context));
        assert_eq!((relative.len(), remembered.recalled()), (2, 2));
        assert!((relative[0].mean + 2.0 + situation.arms[0].modelled_s.ln()).abs() < 1e-12, "{relative:?}");
        assert_eq!(remembered.recall(&situation), [], "once");
        let measured = Lesson { mean: 0.5, ..lesson(1, 0.0) };
        let all = remembered.lessons([measured], of);
        assert_eq!(all[1..], [lesson(0, -2.0)], "to the bit");
        assert_eq!(all[0].subject(), lesson(1, 0.0).subject());
        assert!((all[0].mean - 0.5 - situation.arms[1].modelled_s.ln()).abs() < 1e-12, "in seconds: {all:?}");
    }
}
