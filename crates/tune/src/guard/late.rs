//! Calls that are late for reasons that are nobody's: a packet that was lost, a process that had to wait. The default has them, too; a
//! choice that has them no oftener is neither out for them nor charged with them.

use std::collections::{BTreeMap, BTreeSet};

use super::VETO;
use crate::action::Action;
use crate::statistics::binomial_tail;
use crate::trial::INTERRUPTED;

/// If what is tried is late by chance more seldom than that, though it is as the default is, it is its own fault.
const CHANCE_TRIED: f64 = 0.02;

/// The same of what stands: it is asked for as long as a job runs.
const CHANCE_STANDING: f64 = 0.005;

/// That the default is never late, fewer of its calls do not tell; and more need not be asked for, however many what stands had.
const FEW: f64 = 60.0;
const ENOUGH: f64 = 500.0;

/// What is late by more than so many times as much as the default in the mean is charged with the rest.
const AS_LATE: f64 = 4.0;

/// What a call leaves of what those before it say: a thousand count.
const KEPT: f64 = 0.999;

/// Calls, and those of them that were late.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    calls: f64,
    late: f64,
    /// By how many seconds, all together.
    more_s: f64,
    /// Seconds that were charged for it, and that were not.
    charged_s: f64,
    excused_s: f64,
}

/// The late calls of a context.
#[derive(Clone, Debug, Default)]
pub(super) struct Lateness {
    of_default: Late,
    of_chosen: Late,
    /// Of all that was tried together: many choices, each of which is slow once, are no chance.
    of_tried: Late,
    by_action: BTreeMap<Action, Late>,
    /// What is out, as it was late too often.
    out: BTreeSet<Action>,
    owed: Owed,
    /// What stands has saved before the job, as far as no late call has taken that.
    saved_before_job_s: f64,
}

/// Late calls of what stands that wait for the default: until that had half as many calls, nobody knows whose fault they are.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    seconds: f64,
    calls: u32,
}

/// What a call of the default says of late calls: seconds that turn out to be nobody's fault after they were charged, and those that turn
/// out to be the fault of what stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reckoned {
    pub(super) of_tried_s: f64,
    pub(super) of_chosen_s: f64,
    pub(super) due_s: f64,
}

/// A call that is late takes so many times as long as the default does usually.
pub(super) fn is_late(seconds: f64, usual_s: f64) -> bool {
    seconds > VETO * usual_s
}

/// Of seconds that a call has taken more than the default, those that count if it was interrupted.
pub(super) fn as_interrupted(more_s: f64, usual_s: f64) -> f64 {
    more_s.min((INTERRUPTED - 1.0) * usual_s)
}

impl Late {
    fn add(&mut self, more_s: Option<f64>) {
        self.calls += 1.0;
        self.late += if more_s.is_some() { 1.0 } else { 0.0 };
        self.more_s += more_s.unwrap_or(0.0);
    }

    /// The same of calls that go on for ever.
    fn add_to_last(&mut self, more_s: Option<f64>) {
        let Late { calls, late, more_s: all_s, charged_s, excused_s } = self;
        [calls, late, all_s, charged_s, excused_s].into_iter().for_each(|it| *it *= KEPT);
        self.add(more_s);
    }

    /// If these are the default's: is it chance, as likely as that, that so many of those were late? Of all late calls, as many would be those
    /// as of all calls (the test of two rates under a given sum: Przyborowski and Wilenski, "Homogeneity of results in testing samples from
    /// Poisson series", 1940). Where the default is never late, it is not.
    fn excuses(&self, those: &Late, chance: f64) -> bool {
        let (all, late) = ((self.late + those.late).round(), those.late.round());
        let share = those.calls / (self.calls + those.calls);
        self.late >= 0.5 && binomial_tail(all as u64, late as u64, share) >= chance
    }

    /// Of a late call, if these are the default's: seconds that its own late calls explain.
    fn explained_s(&self) -> f64 {
        AS_LATE * self.more_s / self.late
    }

    /// If these are the default's: may that be chance, of a choice and of all that is tried together? A single call says little of a choice.
    fn excuses_tried(&self, choice: &Late, all: &Late) -> bool {
        self.excuses(all, CHANCE_TRIED) && (choice.late < 2.0 || self.excuses(choice, CHANCE_TRIED))
    }
}

impl Lateness {
    /// What is known of choices is of another network: the default is late as often as before.
    pub(super) fn after_change(&self) -> Lateness {
        Lateness { of_default: self.of_default, ..Lateness::default() }
    }

    /// Another choice stands, or none.
    pub(super) fn stands_anew(&mut self) {
        (self.of_chosen, self.owed, self.saved_before_job_s) = (Late::default(), Owed::default(), 0.0);
    }

    /// What stands has saved so many seconds before the job, all its calls there counted, late ones too.
    pub(super) fn saved_before_job(&mut self, seconds: f64) {
        self.saved_before_job_s = seconds;
    }

    /// In the job everything takes so many times as long.
    pub(super) fn was_measured_elsewhere(&mut self, times: f64) {
        self.saved_before_job_s *= times;
    }

    /// Of seconds that are charged to what stands for late calls, those that it has not saved before the job.
    fn not_saved_before_job(&mut self, late_s: f64) -> f64 {
        let paid_s = late_s.min(self.saved_before_job_s);
        self.saved_before_job_s -= paid_s;
        late_s - paid_s
    }

    /// Seconds that may turn out to be the fault of what stands, and that it has not saved before the job.
    pub(super) fn owed_s(&self) -> f64 {
        (self.owed.seconds - self.saved_before_job_s).max(0.0)
    }

    /// Was it late more than once since then?
    pub(super) fn is_owed_for_many(&self) -> bool {
        self.owed.calls > 1
    }

    /// Would the default's calls say whose fault late ones are? What stands was late, and the default had too few calls to say whether that is chance.
    pub(super) fn is_on_probation(&self) -> bool {
        self.owed.seconds > 0.0 && !self.had_default_enough()
    }

    /// Had the default half as many calls as what stands?
    fn had_default_enough(&self) -> bool {
        self.of_default.calls >= (0.5 * self.of_chosen.calls).clamp(FEW, ENOUGH)
    }

    /// Of the default's calls, how many were late.
    #[cfg(test)]
    pub(super) fn late_of_default(&self) -> [f64; 2] {
        [self.of_default.calls, self.of_default.late]
    }

    /// Is the default late now and then?
    pub(super) fn is_of_default(&self) -> bool {
        self.of_default.late >= 0.5
    }

    /// Is something out?
    pub(super) fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    pub(super) fn is_out(&self, action: &Action) -> bool {
        self.out.contains(action)
    }

    pub(super) fn out(&self) -> &BTreeSet<Action> {
        &self.out
    }

    /// A call of the default, in a network that is what it was. What was charged before may turn out to be no fault.
    pub(super) fn add_default(&mut self, seconds: f64, usual_s: f64) -> Reckoned {
        let more_s = is_late(seconds, usual_s).then_some(seconds - usual_s);
        self.of_default.add_to_last(more_s);
        let mut reckoned = Reckoned::default();
        let is_excused = more_s.is_some() && self.excuse(&mut reckoned);
        if is_excused || self.had_default_enough() {
            let owed_s = std::mem::take(&mut self.owed).seconds;
            reckoned.due_s = self.not_saved_before_job(owed_s);
            self.of_chosen.charged_s += reckoned.due_s;
        }
        reckoned
    }

    /// The default was late: what may be chance by what is known now is no fault. Is it so of what stands?
    fn excuse(&mut self, reckoned: &mut Reckoned) -> bool {
        let Lateness { of_default, of_chosen, of_tried, by_action, out, owed, .. } = self;
        let each_s = of_default.explained_s();
        for (action, late) in by_action.iter_mut().filter(|(_, late)| of_default.excuses_tried(late, of_tried)) {
            out.remove(action);
            // What is beyond that stays charged.
            let back_s = (each_s * late.late - late.excused_s).clamp(0.0, late.charged_s);
            late.charged_s -= back_s;
            late.excused_s += back_s;
            reckoned.of_tried_s += back_s;
        }
        let is_excused = of_default.excuses(of_chosen, CHANCE_STANDING);
        if is_excused {
            // What was excused before is not excused again, and what is beyond all that is its own.
            let explained_s = (each_s * of_chosen.late - of_chosen.excused_s).max(0.0);
            reckoned.of_chosen_s = explained_s.min(of_chosen.charged_s);
            of_chosen.charged_s -= reckoned.of_chosen_s;
            let not_owed_s = (explained_s - reckoned.of_chosen_s).min(owed.seconds);
            owed.seconds -= not_owed_s;
            of_chosen.excused_s += reckoned.of_chosen_s + not_owed_s;
        }
        is_excused
    }

    /// A call of a choice that is tried. One that is late may put it out. Does it not?
    pub(super) fn see_tried(&mut self, action: Action, seconds: f64, usual_s: f64) -> bool {
        let more_s = is_late(seconds, usual_s).then_some(seconds - usual_s);
        let late = self.by_action.entry(action).or_default();
        late.add(more_s);
        self.of_tried.add(more_s);
        if more_s.is_none() {
            return true;
        }
        let is_excused = self.of_default.excuses_tried(late, &self.of_tried);
        if !is_excused {
            self.out.insert(action);
        }
        is_excused
    }

    /// The same: seconds that it is charged with.
    pub(super) fn add_tried(&mut self, action: Action, seconds: f64, usual_s: f64) -> f64 {
        let (is_excused, all_s) = (self.see_tried(action, seconds, usual_s), seconds - usual_s);
        let Some(late) = self.by_action.get_mut(&action).filter(|_| is_late(seconds, usual_s)) else { return all_s };
        let charged_s = if is_excused {
            (all_s - self.of_default.explained_s()).max(0.0)
        } else {
            // It was no chance before, either.
            all_s + std::mem::take(&mut late.excused_s)
        };
        late.excused_s += if is_excused { all_s - charged_s } else { 0.0 };
        late.charged_s += charged_s;
        charged_s
    }

    /// The same of what stands, which is not out for that. If the default is not late as often, it pays for all of it, but for what it had saved
    /// before the job; but where the default had less than half as many calls, it is as if it had been interrupted, until that had them.
    pub(super) fn add_chosen(&mut self, seconds: f64, usual_s: f64) -> f64 {
        let all_s = seconds - usual_s;
        let more_s = is_late(seconds, usual_s).then_some(all_s);
        self.of_chosen.add_to_last(more_s);
        if more_s.is_none() {
            return all_s;
        }
        let is_excused = self.of_default.excuses(&self.of_chosen, CHANCE_STANDING);
        let counted_s = as_interrupted(all_s, usual_s);
        let charged_s = if is_excused {
            (all_s - self.of_default.explained_s()).max(0.0)
        } else if self.had_default_enough() {
            counted_s + self.not_saved_before_job(all_s - counted_s)
        } else {
            self.owed.seconds += all_s - counted_s;
            self.owed.calls += 1;
            counted_s
        };
        self.of_chosen.charged_s += charged_s;
        if is_excused {
            self.of_chosen.excused_s += all_s - charged_s;
        }
        charged_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::random::Random;

    const USUAL_S: f64 = 1e-3;
    const STALLED_S: f64 = 0.1;

    fn with_defaults(late: usize, calls: usize) -> Lateness {
        let mut lateness = Lateness::default();
        for call in 0..calls {
            lateness.add_default(if call < late { STALLED_S } else { USUAL_S }, USUAL_S);
        }
        lateness
    }

    /// Ten calls of a millisecond less each, in its rehearsal: a call that is late by less costs what an interrupted one does, once.
    #[test]
    fn what_was_saved_before_the_job_pays_for_late_calls() {
        let mut lateness = with_defaults(0, 80);
        lateness.saved_before_job(10e-3);
        let charged_s = [9e-3, 9e-3, 9e-3].map(|seconds| lateness.add_chosen(seconds, USUAL_S));
        for (charged_s, expected_s) in charged_s.into_iter().zip([3e-3, 3e-3, 8e-3]) {
            assert!((charged_s - expected_s).abs() < 1e-9, "{charged_s} s, expected {expected_s}");
        }
        lateness.stands_anew();
        lateness.saved_before_job(10e-3);
        let charged_s = lateness.add_chosen(STALLED_S, USUAL_S);
        assert!((charged_s - 0.089).abs() < 1e-9, "the rest counts: {charged_s}");
        lateness.saved_before_job(10e-3);
        lateness.stands_anew();
        assert!((lateness.add_chosen(9e-3, USUAL_S) - 8e-3).abs() < 1e-9, "something else has saved it");
    }

    #[test]
    fn what_is_tried_may_be_late_as_often_as_the_default() {
        let action = situation().arms[0].action;
        let mut lateness = with_defaults(4, 80);
        let mut tried = |seconds: f64| (lateness.add_tried(action, seconds, USUAL_S), lateness.is_out(&action));
        assert_eq!(tried(STALLED_S), (0.0, false));
        (0..5).for_each(|_| assert_eq!(tried(USUAL_S), (0.0, false)));
        assert_eq!(tried(STALLED_S), (0.0, false), "two of seven");
        assert_eq!(tried(STALLED_S), (0.0, false), "three of eight");
        // Longer than any of the default's: what is beyond four times that is charged.
        let (charged_s, is_out) = tried(STALLED_S);
        assert!(is_out && (charged_s - 4.0 * 0.099).abs() < 1e-9, "four of nine, and all of them count: {charged_s}");
        let mut lateness = with_defaults(4, 80);
        let charged_s = lateness.add_tried(action, 1.0, USUAL_S);
        assert!(!lateness.is_out(&action) && (0.6..0.61).contains(&charged_s), "{charged_s}");
        assert!(lateness.add_default(STALLED_S, USUAL_S).of_tried_s < 1e-9, "and stays charged");
        // Where the default never is, one is too many.
        let mut lateness = with_defaults(0, 80);
        assert!((lateness.add_tried(action, STALLED_S, USUAL_S) - 0.099).abs() < 1e-9 && lateness.is_out(&action));
    }

    #[test]
    fn what_the_default_shows_afterwards_excuses_what_was_charged() {
        let action = situation().arms[0].action;
        let mut lateness = with_defaults(0, 30);
        assert!(lateness.add_tried(action, STALLED_S, USUAL_S) > 0.098 && lateness.is_out(&action));
        assert!(lateness.add_chosen(STALLED_S, USUAL_S) > 2.9e-3);
        let Reckoned { of_tried_s, of_chosen_s, .. } = lateness.add_default(STALLED_S, USUAL_S);
        assert!((of_tried_s - 0.099).abs() < 1e-9 && (of_chosen_s - 3e-3).abs() < 1e-9 && !lateness.is_out(&action));
        assert_eq!(lateness.add_default(STALLED_S, USUAL_S), Reckoned::default(), "once");
        // What becomes slow of itself pays for what was excused.
        let charged_s: f64 = (0..4).map(|_| lateness.add_tried(action, STALLED_S, USUAL_S)).sum();
        assert!(lateness.is_out(&action) && (charged_s - 5.0 * 0.099).abs() < 1e-9, "{charged_s}");
    }

    /// Each of them once.
    #[test]
    fn many_slow_choices_are_no_chance() {
        let mut lateness = with_defaults(4, 80);
        let actions: BTreeSet<Action> = situation().arms.iter().map(|arm| arm.action).collect();
        let charged = actions.iter().filter(|action| lateness.add_tried(**action, STALLED_S, USUAL_S) > 0.0).count();
        assert!(actions.len() > 4 && charged >= actions.len() - 2, "{charged} of {}", actions.len());
    }

    /// Both are late in 3 % of their calls, for ever: little of it is charged, and the default is seldom asked for it. Then what stands is in
    /// 15 %.
    #[test]
    fn what_stands_may_be_late_as_often_as_the_default_for_ever() {
        let (mut charged, mut asked) = (0, 0);
        for seed in 0..20 {
            let (mut lateness, mut random) = (with_defaults(1, 40), Random::new(seed, 2));
            let call = |random: &mut Random, share: f64| if random.unit() < share { STALLED_S } else { USUAL_S };
            for number in 0..20_000 {
                if lateness.is_on_probation() || number % 64 == 0 {
                    asked += 1;
                    charged += u32::from(lateness.add_default(call(&mut random, 0.03), USUAL_S).due_s > 0.0);
                } else {
                    charged += u32::from(lateness.add_chosen(call(&mut random, 0.03), USUAL_S) > 3.1e-3);
                }
            }
            let mut often_s = 0.0;
            for number in 0..4000 {
                if lateness.is_on_probation() || number % 64 == 0 {
                    often_s += lateness.add_default(call(&mut random, 0.03), USUAL_S).due_s;
                } else {
                    often_s += lateness.add_chosen(call(&mut random, 0.15), USUAL_S);
                }
            }
            assert!(often_s > 50.0 * STALLED_S, "seed {seed}: {often_s} s");
        }
        println!("{charged} of 12,000 late calls, {asked} of 400,000");
        assert!(charged < 240 && asked < 40_000, "{charged} of 12,000 late calls, {asked} of 400,000");
    }

    /// It waits for half as many calls of the default, and if none of them is late, it pays for all of it.
    #[test]
    fn what_stands_pays_for_late_calls_that_the_default_does_not_have() {
        let mut lateness = with_defaults(0, 30);
        (0..200).for_each(|_| _ = lateness.add_chosen(USUAL_S, USUAL_S));
        assert!(lateness.add_chosen(STALLED_S, USUAL_S) < 3.1e-3 && lateness.is_on_probation());
        let mut due_s = Vec::new();
        while lateness.is_on_probation() && due_s.len() < 400 {
            due_s.push(lateness.add_default(USUAL_S, USUAL_S).due_s);
        }
        assert!((60..90).contains(&due_s.len()), "{}", due_s.len());
        let (last, others) = due_s.split_last().expect("calls");
        assert!((last - 0.096).abs() < 1e-9 && others.iter().all(|due_s| *due_s == 0.0), "{due_s:?}");
        assert!(lateness.add_chosen(STALLED_S, USUAL_S) > 0.098, "the default is known now");
        // If one of them is late, it pays for nothing.
        let mut lateness = with_defaults(0, 30);
        assert!(lateness.add_chosen(STALLED_S, USUAL_S) < 3.1e-3 && lateness.is_on_probation());
        let Reckoned { of_chosen_s, due_s, .. } = lateness.add_default(STALLED_S, USUAL_S);
        assert!((of_chosen_s - 3e-3).abs() < 1e-9 && due_s == 0.0 && !lateness.is_on_probation());
    }
}
