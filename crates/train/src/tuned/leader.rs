//! Rank 0's part: it learns from calls, and says what they take until the ranks meet again.

use std::collections::{BTreeMap, BTreeSet};

use paceline_tune::environment::OwnModel;
use paceline_tune::{Context, Course, Standing, State, Tuner};

use super::by_iterations::{ByIterations, Step};
use super::learning::{Learning, Made, Situations, situation_of, typical_situation};
use super::meetings::Calls;
use super::policies::{Plays, Version};

/// A context that is not called keeps its turns for so many meetings: an all-reduce in every second or third iteration would else
/// never have any. What is set aside for them meanwhile others cannot spend.
pub(super) const WAITS_MAX: u32 = 32;

/// What only rank 0 has.
pub(super) struct Leader {
    pub(super) learning: Learning,
    pub(super) situations: Situations,
    pub(super) published: Version,
    /// Meetings since a context was called.
    waited: BTreeMap<Context, u32>,
    /// At the last meeting it has seen what was called, and learned from it.
    has_looked: bool,
    /// If the time of the iteration decides.
    pub(super) by_iterations: Option<ByIterations>,
}

impl Leader {
    /// Who has learned nothing. `seed`: of everything left to chance.
    pub(super) fn new(seed: u64) -> Leader {
        Leader {
            learning: Learning::new(Tuner::shipped(seed)),
            situations: Situations::new(),
            published: Version::default(),
            waited: BTreeMap::new(),
            has_looked: false,
            by_iterations: None,
        }
    }

    /// Is nothing to be found out of the contexts that are called, now and then at least, and nothing looks as if that would change?
    pub(super) fn is_settled(&self) -> bool {
        let by_iterations = self.by_iterations.as_ref();
        if !self.listens() {
            return self.has_looked && by_iterations.is_some_and(ByIterations::is_settled);
        }
        self.has_looked
            && by_iterations.is_none_or(ByIterations::is_settled)
            && self.situations.iter().all(|(context, situation)| {
                let is_gone = self.is_gone(context);
                let is_probed = self.learning.tuner.is_on_probation(context);
                let is_decided = |course: &Course| {
                    course.is_decided() && !course.is_arriving() && !course.is_suspicious() && !is_probed
                };
                situation.is_none() || is_gone || self.learning.course(context).is_some_and(is_decided)
            })
    }

    /// Is nothing tried, in calls that decide for themselves, nor beside what stands?
    pub(super) fn is_calm(&self) -> bool {
        let looks = |context: &Context| {
            !self.is_gone(context) && self.learning.course(context).is_some_and(Course::is_looking_beside)
        };
        self.listens() && self.by_iterations.is_none() && self.is_settled() && !self.situations.keys().any(looks)
    }

    /// Does the default stand wherever calls have a choice?
    pub(super) fn is_at_rest(&self) -> bool {
        let is_at_rest = |context: &Context| {
            let standing = self.learning.course(context).map(Course::standing);
            self.is_gone(context) || matches!(standing, None | Some(Standing::Settled(_)))
        };
        self.situations.keys().all(is_at_rest)
    }

    /// The contexts of these that have a choice.
    pub(super) fn with_choice<'c>(
        &self,
        contexts: impl Iterator<Item = &'c Context>,
    ) -> impl Iterator<Item = &'c Context> {
        contexts.filter(|context| situation_of(&self.situations, context).is_some())
    }

    /// Is the default asked in some context whether the network has changed?
    pub(super) fn is_asking(&self) -> bool {
        self.has_context(|_, course| course.is_asking())
    }

    /// Has the network changed, and is something tried in some context, so that it is decided what stands in this one?
    pub(super) fn is_deciding_again(&self) -> bool {
        let is_trying = |context: &Context| {
            let plays = self.published.of(context);
            plays.is_some_and(|plays| plays.turns.turns().iter().any(|turn| *turn != plays.then))
        };
        self.has_context(|context, course| course.is_deciding_again() && is_trying(context))
    }

    /// Is some context like that, which is called now and then?
    fn has_context(&self, is_like_that: impl Fn(&Context, &Course) -> bool) -> bool {
        let is_it = |context: &Context| {
            let course = self.learning.course(context).filter(|_| !self.is_gone(context));
            course.is_some_and(|course| is_like_that(context, course))
        };
        self.listens() && self.situations.keys().any(is_it)
    }

    /// Has a context not been called for long?
    pub(super) fn is_gone(&self, context: &Context) -> bool {
        self.waited.get(context).is_some_and(|waited| *waited > WAITS_MAX)
    }

    /// Learns from calls, and makes the next version of it; none if it would be the same. `numbers`: how many calls each context
    /// has had, and one of them.
    pub(super) fn next(
        &mut self,
        active: u64,
        made: &[Made],
        numbers: &BTreeMap<Context, (u64, State)>,
        model: &OwnModel,
        step: Step,
    ) -> Option<Version> {
        if active < self.published.number {
            // Somebody lacks it: it is sent again.
            self.has_looked = false;
            return Some(self.published.clone());
        }
        self.has_looked = true;
        for (context, (_, state)) in numbers {
            self.situations.entry(*context).or_insert_with(|| typical_situation(model, state));
        }
        self.learning.observe_congestion(made, &mut self.situations);
        if self.listens() {
            let by_calls = self.by_iterations.as_ref().is_none_or(ByIterations::goes_by_calls);
            self.learning.learn(made, &self.situations, by_calls);
        }
        self.judge_iterations(step, numbers);
        let all = self.plays_by_iterations(|leader| leader.plays_by_calls(made, numbers));
        let next = Version::new(self.published.number + 1, all);
        if next.plays_as(&self.published) {
            return None;
        }
        self.published = next.clone();
        Some(next)
    }

    /// What each context takes until the ranks meet again, as its own tuner says.
    fn plays_by_calls(&mut self, made: &[Made], numbers: &BTreeMap<Context, (u64, State)>) -> Vec<Plays> {
        let without_times = made.iter().filter(|made| !made.seconds.is_finite()).map(|made| made.context);
        let without_times: BTreeSet<Context> = without_times.collect();
        let mut all = Vec::new();
        for (context, situation) in &self.situations {
            let Some(situation) = situation else { continue };
            let waited = self.waited.entry(*context).or_default();
            *waited += 1;
            all.push(match (numbers.get(context), self.published.of(context)) {
                // What is tried must be timed, or nobody knows what it has cost.
                (Some(_), _) if without_times.contains(context) => {
                    *waited = 0;
                    self.learning.stays(situation)
                }
                (Some(&(calls, _)), _) => {
                    *waited = 0;
                    self.learning.plays(situation, calls as usize)
                }
                // None of its turns has come: they count from the next meeting on.
                (None, Some(plays)) if *waited <= WAITS_MAX => *plays,
                // What was to be tried in a context that is not called any more is not tried there later, when nobody waits for it.
                (None, _) => self.learning.stays(situation),
            });
        }
        all
    }
}

/// What calls have taken, those that were not timed as long as others of their context, or as they are believed to take.
pub(super) fn taken(
    made: &[Made],
    numbers: &BTreeMap<Context, (u64, State)>,
    believed_s: impl Fn(u64) -> f64,
) -> Calls {
    let mut timed: BTreeMap<Context, (f64, f64)> = BTreeMap::new();
    for made in made.iter().filter(|made| made.seconds.is_finite()) {
        let (seconds, calls) = timed.entry(made.context).or_default();
        *seconds += made.seconds;
        *calls += 1.0;
    }
    let of_context = |(context, (count, state)): (&Context, &(u64, State))| {
        let each_s = timed.get(context).map_or_else(|| believed_s(state.bytes), |(seconds, calls)| seconds / calls);
        each_s * *count as f64
    };
    let most = numbers.values().map(|(count, _)| *count).max().unwrap_or(0);
    Calls { seconds: numbers.iter().map(of_context).sum(), most, ..Calls::default() }
}
