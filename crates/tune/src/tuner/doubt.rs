//! An alarm, and what comes of it: before a change is believed, the default is asked.
//!
//! What raises an alarm is a sum over calls of all kinds of arms, compared with beliefs. Noise that rises, a choice that alone has changed
//! and a belief that was wrong raise it, too. Only the default's own calls tell these apart from a change of the network.

use super::course::{Answer, BASELINE, Course, Phase};
use super::{Role, Tuner};
use crate::action::Situation;

/// So many calls wait at most until it is known what their times mean.
const WAITING_MAX: usize = 32;
const WAITING_LAST: usize = 4 * WAITING_MAX;

/// Five of the default's calls tell, unless they differ from those before and that may be chance, as it may where some are late for reasons of
/// their own: then so many are asked for at most.
const ASKED_MAX: usize = 3 * BASELINE;

/// A context in doubt, in which the default is called some times; whatever went on goes on afterwards.
#[derive(Clone, Debug)]
pub(super) struct Doubted {
    /// What went on.
    pub(super) resume: Box<Phase>,
    /// The arm whose call has raised the alarm.
    suspect: usize,
    /// Seconds of the default since then.
    default_s: Vec<f64>,
    /// The calls of that time, that of the alarm included.
    calls: Vec<(usize, Role, f64)>,
}

impl Tuner {
    /// It looks as if the network had changed.
    pub(super) fn alarmed(&mut self, situation: &Situation, course: &mut Course, call: (usize, Role, f64)) {
        if !course.knows_default() {
            // There is nothing to compare the default with.
            return self.begin_anew(situation, course);
        }
        let (suspect, _, seconds) = call;
        course.waiting.push((suspect, seconds));
        let resume = Box::new(std::mem::replace(&mut course.phase, Phase::Baseline));
        course.phase = Phase::Doubt(Doubted { resume, suspect, default_s: Vec::new(), calls: vec![call] });
    }

    /// A call while it is in doubt.
    pub(super) fn ask(&mut self, situation: &Situation, course: &mut Course, call: (usize, Role, f64)) {
        let Phase::Doubt(doubted) = &mut course.phase else { return };
        let (arm, _, seconds) = call;
        course.waiting.push((arm, seconds));
        doubted.calls.push(call);
        if arm == situation.default {
            doubted.default_s.push(seconds);
        }
        let asked = doubted.default_s.len();
        if arm != situation.default || asked % BASELINE != 0 {
            return;
        }
        let resume = std::mem::replace(&mut *doubted.resume, Phase::Baseline);
        let Phase::Doubt(doubted) = std::mem::replace(&mut course.phase, resume) else { return };
        match course.answer(&doubted.default_s) {
            Answer::Changed => self.confirmed(situation, course, &doubted.default_s),
            Answer::Unclear if asked < ASKED_MAX => {
                let resume = Box::new(std::mem::replace(&mut course.phase, Phase::Baseline));
                course.phase = Phase::Doubt(Doubted { resume, ..doubted });
            }
            Answer::Unclear | Answer::Unchanged => self.dismissed(situation, course, doubted),
        }
    }

    /// The network has changed, and what the default takes now is known.
    fn confirmed(&mut self, situation: &Situation, course: &mut Course, default_s: &[f64]) {
        self.begin_anew(situation, course);
        self.guard.measured_again(&situation.context, default_s);
        for &seconds in default_s {
            course.add_default(seconds);
            course.add_baseline(seconds);
        }
        self.after_baseline(situation, course);
    }

    /// The network is what it was. All goes on as if nothing had been suspected; only what raised the alarm is known less well. If it
    /// stands, the sentinel decides, by calls of the same time.
    fn dismissed(&mut self, situation: &Situation, course: &mut Course, doubted: Doubted) {
        let Doubted { suspect, calls, .. } = doubted;
        self.show_lateness(situation, &course.dismiss());
        self.learner.doubted(situation, suspect);
        if course.stands() == Some(suspect) {
            let before = course.waiting.len().saturating_sub(calls.len());
            let of_it = course.waiting[..before].iter().filter(|(arm, _)| *arm == suspect);
            course.sentinel.begin_anew(of_it.map(|(_, seconds)| self.counted_s(situation, *seconds)));
        }
        self.learn_waiting(situation, course);
        for (arm, role, seconds) in calls {
            self.advance(situation, course, arm, role, seconds);
        }
        if course.stands() == Some(suspect) {
            course.sentinel.hurry();
        }
    }

    /// Learns from a call, at once or when it is known what its time means: of a network that may have changed, nobody knows. `counts`:
    /// was it compared with what was expected?
    pub(super) fn learn(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        (arm, seconds): (usize, f64),
        counts: bool,
    ) {
        if course.is_measured_anew() {
            return;
        }
        // What is tried for the first time says nothing about the network; it waits only if there is a reason.
        let waits = if counts { !course.drift.is_calm() } else { course.drift.is_suspicious() };
        if waits || course.is_in_doubt() {
            // More than these are calls that a schedule repeats while the default is asked.
            if course.waiting.len() < WAITING_LAST {
                course.waiting.push((arm, seconds));
            }
        } else {
            self.learner.observe(situation, arm, seconds);
        }
        if course.is_in_doubt() {
            return;
        }
        if course.drift.is_calm() {
            self.learn_waiting(situation, course);
        } else if course.waiting.len() > WAITING_MAX {
            let (arm, seconds) = course.waiting.remove(0);
            self.learner.observe(situation, arm, seconds);
        }
    }

    /// Calls of the default in a network that is what it was: some may be late for reasons of their own.
    pub(super) fn show_lateness(&mut self, situation: &Situation, default_s: &[f64]) {
        default_s.iter().for_each(|&seconds| self.guard.shows_lateness(&situation.context, seconds));
    }

    fn learn_waiting(&mut self, situation: &Situation, course: &mut Course) {
        for (arm, seconds) in std::mem::take(&mut course.waiting) {
            self.learner.observe(situation, arm, seconds);
        }
    }
}
