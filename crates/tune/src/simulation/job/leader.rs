//! Rank 0 in a simulated job. It decides as in a running one (`crates/train/src/exchange/tuning/leader.rs`), but that all ranks have
//! at once what it has decided, and that boundaries take no time.

use std::collections::BTreeMap;
use std::mem;

use super::Situations;
use crate::action::{Choice, Situation};
use crate::ledger::Ledger;
use crate::policy::Schedule;
use crate::state::Context;
use crate::trial::Gain;
use crate::tuner::{Course, Decision, Standing, Tuner};
use crate::whole::{Event, Found, Stage, Turn, Whole};

/// Iterations of a window while something is open; of one while nothing is, and the last ones of these in which calls are timed.
/// All as in a running job, and so is after how many iterations what is decided is looked at again.
const LEARNING: usize = 4;
const DECIDED: usize = 32;
const WATCHED: usize = 4;
const TRIED_AGAIN: u32 = 4096;

/// Decides.
pub(super) struct Leader {
    tuner: Tuner,
    whole: Whole,
    /// What a context's turns came from, in their order, until their times are known.
    decisions: BTreeMap<Context, Vec<Option<Decision>>>,
    ledgers: BTreeMap<Context, Ledger>,
    /// How often the network has changed, as far as calls have shown.
    drifts: u64,
    /// Iterations of the window in which calls are timed.
    recorded: usize,
}

/// Some iterations, and what calls take in them.
pub(super) struct Window {
    pub(super) iterations: usize,
    recorded: usize,
    plays: BTreeMap<Context, Plays>,
}

/// What a context takes in iterations in which calls are timed, one after the other and then, and in all others.
struct Plays {
    turns: Schedule,
    then: Choice,
    untimed: Choice,
}

/// The calls of a context in an iteration in which calls are timed, the `number`th of its window.
pub(super) struct Made {
    pub(super) context: Context,
    pub(super) number: usize,
    pub(super) choice: Choice,
    pub(super) mean_s: f64,
    pub(super) longest_s: f64,
}

impl Window {
    /// The first one: nothing is tried in it.
    pub(super) fn first() -> Window {
        Window { iterations: 1, recorded: 0, plays: BTreeMap::new() }
    }

    /// The number of an iteration among those in which calls are timed, after so many of the window have ended; None if they are not.
    pub(super) fn recorded_number(&self, ended: usize) -> Option<usize> {
        (ended + self.recorded).checked_sub(self.iterations)
    }

    /// What the calls of a context take.
    pub(super) fn choice(&self, context: &Context, number: Option<usize>) -> Choice {
        let Some(plays) = self.plays.get(context) else { return Choice::Default };
        let Some(number) = number else { return plays.untimed };
        plays.turns.turns().get(number).copied().unwrap_or(plays.then)
    }
}

impl Leader {
    pub(super) fn new(seed: u64) -> Leader {
        Leader {
            tuner: Tuner::shipped(seed),
            whole: Whole::new(seed, TRIED_AGAIN),
            decisions: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            drifts: 0,
            recorded: 0,
        }
    }

    /// A window has ended: learns from it, and says what comes next.
    pub(super) fn turn(&mut self, made: &[Made], iteration_s: &[f64], situations: &Situations) -> Window {
        self.learn(made, situations);
        self.judge(iteration_s, situations);
        let window = self.window(situations);
        self.recorded = window.recorded;
        window
    }

    /// Is nothing open?
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.whole.stage(), Stage::Stands { .. } | Stage::Unused { .. })
    }

    /// What stands, and shortens iterations.
    pub(super) fn stands(&self) -> Found {
        self.whole.stands().cloned().unwrap_or_default()
    }

    /// By how much it does.
    pub(super) fn gain(&self) -> Option<Gain> {
        self.whole.gain()
    }

    /// What is better than the default, call by call, and whether some context is open.
    pub(super) fn found(&self, situations: &Situations) -> (Found, bool) {
        let (mut found, mut is_open) = (Found::new(), false);
        for context in situations.keys() {
            match self.tuner.course(context).map(Course::standing) {
                Some(Standing::Chosen(choice, _)) => _ = found.insert(*context, choice),
                Some(Standing::Settled(_)) => {}
                Some(Standing::Learning) | None => is_open = true,
            }
        }
        (found, is_open)
    }

    fn learn(&mut self, made: &[Made], situations: &Situations) {
        for Made { context, number, choice, mean_s, longest_s } in made {
            let Some(situation) = situations.get(context) else { continue };
            let arm = situation.arm_of(*choice);
            let ledger = self.ledgers.entry(*context).or_default();
            ledger.look_at_longest(&mut self.tuner, situation, arm, [*mean_s, *longest_s]);
            let decisions = self.decisions.get_mut(context);
            match decisions.and_then(|decisions| decisions.get_mut(*number)?.take()) {
                Some(decision) => self.tuner.observe(situation, decision, *mean_s),
                None => self.tuner.observe_elsewhere(situation, arm, *mean_s),
            }
        }
        situations.values().for_each(|situation| self.forget(situation));
    }

    /// What was decided for a context and not seen will not be seen any more.
    fn forget(&mut self, situation: &Situation) {
        for decision in self.decisions.remove(&situation.context).unwrap_or_default().into_iter().flatten() {
            self.tuner.observe(situation, decision, f64::NAN);
        }
    }

    /// Goes on from what stands, if there is a reason.
    fn judge(&mut self, iteration_s: &[f64], situations: &Situations) {
        let count = iteration_s.len();
        // Where something stands, something else may have been called in those that were recorded.
        let says =
            if let Stage::Stands { .. } = self.whole.stage() { count.saturating_sub(self.recorded) } else { count };
        let steps = u32::try_from(count).unwrap_or(u32::MAX);
        let drifts: u64 = self.tuner.courses().map(|(_, course)| u64::from(course.drifts)).sum();
        let is_same_network = mem::replace(&mut self.drifts, drifts) == drifts;
        let (found, is_open) = self.found(situations);
        let event = if is_open && is_same_network {
            self.whole.explore_again(&found, steps)
        } else {
            self.whole.judge((!is_open).then_some(found), &iteration_s[..says], steps)
        };
        if event == Some(Event::Changed) {
            for situation in situations.values() {
                self.forget(situation);
                self.tuner.changed(situation);
            }
        }
    }

    fn window(&mut self, situations: &Situations) -> Window {
        let (iterations, recorded, plays) = match (self.whole.stage(), self.whole.turn()) {
            (Stage::Learning, _) => (LEARNING, LEARNING, None),
            (Stage::Stands { .. }, _) => (DECIDED, WATCHED, None),
            (Stage::OnTrial { .. }, Turn::Found(found)) => (1, 0, Some(always(found))),
            (Stage::OnTrial { .. }, _) => (1, 0, Some(BTreeMap::new())),
            (Stage::Unused { .. }, Turn::Found(found)) => (DECIDED, WATCHED, Some(always(found))),
            (Stage::Unused { .. }, _) => (DECIDED, WATCHED, Some(BTreeMap::new())),
        };
        let plays =
            plays.unwrap_or_else(|| situations.values().map(|it| (it.context, self.plays(it, recorded))).collect());
        Window { iterations, recorded, plays }
    }

    /// What a context takes by what its own calls say, of which so many will be timed.
    fn plays(&mut self, situation: &Situation, calls: usize) -> Plays {
        self.forget(situation);
        let (turns, decisions) = self.tuner.schedule(situation, calls);
        self.decisions.insert(situation.context, decisions.into_iter().map(Some).collect());
        let [then, untimed] = [Tuner::rests_with, Tuner::goes_on_with].map(|of| of(&self.tuner, &situation.context));
        Plays { turns, then, untimed }
    }
}

/// Every call as it was found.
fn always(found: &Found) -> BTreeMap<Context, Plays> {
    let plays = |choice: Choice| Plays { turns: Schedule::always(choice), then: choice, untimed: choice };
    found.iter().map(|(context, choice)| (*context, plays(*choice))).collect()
}
