//! The kinds of calls that a job makes again and again: what follows from one of them is found out the first time.
//!
//! A short call takes one or two microseconds, and looking up what it is made with must not take a tenth of that.

use std::collections::BTreeMap;

use paceline_comm::CallOptions;
use paceline_plan::CollectiveKind;
use paceline_tune::environment::Call;
use paceline_tune::{Choice, Context, ContextKey, State};

/// So many are looked through at each call, at most; then they are gathered anew.
const KNOWN_MAX: usize = 256;

/// The calls of a job, by what distinguishes them.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    known: Vec<Known>,
    /// The one that was called last.
    last: usize,
    contexts: Vec<Called>,
    /// Of the contexts, called since the ranks have met.
    called: usize,
}

/// Calls that are the same in everything.
#[derive(Debug)]
struct Known {
    collective: CollectiveKind,
    bytes: usize,
    call: Call,
    context: usize,
}

/// A context, and its calls since the ranks have met.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) context: Context,
    pub(super) key: ContextKey,
    /// One of its calls.
    pub(super) state: State,
    calls: u64,
    /// What those take that nobody learns from, as far as it was asked for since the ranks have met.
    pub(super) stands: Option<Choice>,
    /// Seconds of one, as far as a rehearsal has shown.
    pub(super) rehearsed_s: Option<f64>,
    /// How it was made last, and what the caller had chosen then.
    made: Option<(Choice, CallOptions, CallOptions)>,
}

/// Which calls were made, in which order, in one number. Not of whoever would deceive us: ranks tell each other whether they agree.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order(u64);

/// An odd number whose bits look like chance's: 2^64 over the golden ratio.
const SPREADS: u64 = 0x9e37_79b9_7f4a_7c15;

impl Order {
    /// One more, of this key.
    pub(super) fn note(&mut self, key: u64) {
        let mixed = (self.0.rotate_left(5) ^ key).wrapping_add(1).wrapping_mul(SPREADS);
        // Products carry upwards only.
        self.0 = mixed ^ mixed >> 32;
    }

    /// As a number that an `f64` holds exactly.
    pub(super) fn digest(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}

impl Kinds {
    /// The place of a call's context. `state`: what it is, if it is new.
    pub(super) fn place(
        &mut self,
        collective: CollectiveKind,
        bytes: usize,
        call: &Call,
        state: impl FnOnce() -> State,
    ) -> usize {
        let is_it = |known: &Known| known.bytes == bytes && known.collective == collective && known.call == *call;
        let last = self.known.get(self.last).filter(|known| is_it(known));
        if let Some(known) = last {
            return known.context;
        }
        if let Some(place) = self.known.iter().position(is_it) {
            self.last = place;
            return self.known[place].context;
        }
        let context = self.context(state());
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.last = self.known.len();
        self.known.push(Known { collective, bytes, call: *call, context });
        context
    }

    fn context(&mut self, state: State) -> usize {
        let context = state.context();
        self.contexts.iter().position(|called| called.context == context).unwrap_or_else(|| {
            let key = context.key();
            self.contexts.push(Called { context, key, state, calls: 0, stands: None, rehearsed_s: None, made: None });
            self.contexts.len() - 1
        })
    }

    /// A call is made: its context, and its number among those since the ranks have met.
    pub(super) fn count(&mut self, place: usize) -> (&Called, u64) {
        let called = &mut self.contexts[place];
        let number = called.calls;
        called.calls += 1;
        self.called += usize::from(number == 0);
        (called, number)
    }

    /// The context of a call.
    pub(super) fn of(&self, place: usize) -> &Called {
        &self.contexts[place]
    }

    /// Calls of such a state's context take so many seconds, which all ranks have agreed on.
    pub(super) fn takes(&mut self, state: State, seconds: f64) {
        let place = self.context(state);
        self.contexts[place].rehearsed_s = Some(seconds);
    }

    /// Its calls take this from here on, if nobody learns from them.
    pub(super) fn keep(&mut self, place: usize, choice: Choice) {
        self.contexts[place].stands = Some(choice);
    }

    /// Calls may take something else from here on.
    pub(super) fn forget(&mut self) {
        self.contexts.iter_mut().for_each(|called| called.stands = None);
    }

    /// The options of a choice, where the caller has chosen these.
    pub(super) fn options(
        &mut self,
        place: usize,
        choice: Choice,
        options: &CallOptions,
        with: impl FnOnce() -> CallOptions,
    ) -> &CallOptions {
        let made = &mut self.contexts[place].made;
        if !made.as_ref().is_some_and(|(before, base, _)| *before == choice && base == options) {
            *made = None;
        }
        &made.get_or_insert_with(|| (choice, options.clone(), with())).2
    }

    /// Of contexts, how many were called since the ranks have met.
    pub(super) fn called(&self) -> usize {
        self.called
    }

    /// The ranks meet: of each context that was called since they did, how often it was, and one of its calls.
    pub(super) fn take(&mut self) -> BTreeMap<Context, (u64, State)> {
        self.called = 0;
        self.forget();
        let called = self.contexts.iter_mut().filter(|called| called.calls > 0);
        called.map(|called| (called.context, (std::mem::take(&mut called.calls), called.state))).collect()
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_tune::environment::{CostModel, OwnModel};

    use super::*;
    use crate::tuned::tests::CALL;

    fn place(kinds: &mut Kinds, bytes: usize) -> usize {
        let model = OwnModel::of(&Cluster::named("study-10gbe:4x1").unwrap());
        kinds.place(CollectiveKind::AllReduce, bytes, &CALL, || {
            model.state(&Call { bytes: bytes as u64, ranks: 4, hosts: 4, ..CALL })
        })
    }

    #[test]
    fn calls_are_counted_by_context_and_begin_anew_when_ranks_meet() {
        let mut kinds = Kinds::default();
        // 5000 and 6000 bytes are of one context.
        let places = [5000, 70_000, 6000, 5000].map(|bytes| place(&mut kinds, bytes));
        assert_eq!(places, [0, 1, 0, 0]);
        let numbers = places.map(|place| kinds.count(place).1);
        assert_eq!((numbers, kinds.called()), ([0, 0, 1, 2], 2));
        let counts: Vec<u64> = kinds.take().values().map(|(calls, _)| *calls).collect();
        assert_eq!((counts.iter().sum::<u64>(), counts.len(), kinds.called()), (4, 2, 0));
        let again = place(&mut kinds, 70_000);
        assert_eq!((again, kinds.count(again).1, kinds.take().len()), (1, 0, 1));
    }

    #[test]
    fn there_may_be_more_kinds_than_are_kept() {
        let mut kinds = Kinds::default();
        for bytes in (0..3 * KNOWN_MAX).map(|number| 1000 + number) {
            let first = place(&mut kinds, bytes);
            assert_eq!(place(&mut kinds, bytes), first);
        }
        assert!(kinds.known.len() <= KNOWN_MAX && kinds.contexts.len() < 4);
    }

    #[test]
    fn what_stands_is_asked_for_again_when_the_ranks_have_met() {
        let mut kinds = Kinds::default();
        let place = place(&mut kinds, 5000);
        kinds.count(place);
        kinds.keep(place, Choice::Default);
        assert_eq!(kinds.of(place).stands, Some(Choice::Default));
        kinds.take();
        assert_eq!(kinds.of(place).stands, None);
    }

    #[test]
    fn another_call_or_another_order_is_another_number() {
        let number = |keys: &[u64]| {
            let mut order = Order::default();
            keys.iter().for_each(|key| order.note(*key));
            order.digest()
        };
        let all: [&[u64]; 8] = [&[], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[1 << 40, 2], &[1, 2, 2]];
        let numbers: std::collections::BTreeSet<u32> = all.iter().map(|keys| number(keys)).collect();
        assert_eq!(numbers.len(), all.len());
        assert_eq!(number(&[3, 4, 5]), number(&[3, 4, 5]));
    }

    #[test]
    fn options_are_those_of_the_last_choice_and_caller() {
        let mut kinds = Kinds::default();
        let place = place(&mut kinds, 5000);
        let plain = CallOptions::default();
        let with = |lanes: u16| CallOptions { lanes: Some(lanes), ..CallOptions::default() };
        assert_eq!(*kinds.options(place, Choice::Default, &plain, || with(2)), with(2));
        assert_eq!(*kinds.options(place, Choice::Default, &plain, || with(3)), with(2), "it is known");
        assert_eq!(*kinds.options(place, Choice::Default, &with(1), || with(4)), with(4), "another caller");
    }
}
