//! What follows from a failed rank and from a signal: who is told to end, and when.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::KILLED_GRACE;
use crate::failure::Failure;

/// How long survivors of a failed rank may take to end by themselves. They notice within 2 s and print what they know.
const SURVIVORS_GRACE: Duration = Duration::from_millis(2500);
/// How long ranks may take to obey a termination signal after a failure.
const TERMINATION_GRACE: Duration = Duration::from_millis(1000);
/// After Ctrl-C everything must be gone within 2 s: when the ranks are told to terminate, and when they are killed.
const INTERRUPT_TERMINATE: Duration = Duration::from_millis(700);
const INTERRUPT_KILL: Duration = Duration::from_millis(1000);
/// How far a job has come.
#[derive(Default)]
pub struct Progress {
    failed: bool,
    interrupted: Option<Signal>,
    /// We have signalled the ranks: how they end says nothing about them any more.
    signalled: bool,
    escalation: Escalation,
    /// Whoever has not ended by then does not obey the last signal.
    give_up: Option<Instant>,
}

impl Progress {
    /// A rank has ended as it should not have: `what` names it. The first one is the reason, and the others get little
    /// time from now on. Nothing that happens after we have signalled the ranks says anything about them.
    pub fn failed(&mut self, what: &str, advice: &str) {
        if self.signalled {
            return;
        }
        if self.failed {
            eprintln!("paceline: {what}");
        } else {
            self.failed = true;
            Failure::failed(what).help(advice).report();
            self.escalation = Escalation::after_failure(Instant::now());
        }
    }

    /// The first signal is passed on, the second one means it.
    pub fn interrupt(&mut self, signal: Signal) {
        let now = Instant::now();
        self.escalation = match self.interrupted.replace(signal) {
            None => Escalation::after_interrupt(now, signal),
            Some(_) => Escalation { stages: [(now, Signal::KILL)].into() },
        };
    }

    /// The signal that all ranks which are left must get now; ask again until there is none. `left` names those ranks.
    pub fn due(&mut self, left: impl FnOnce() -> String) -> Option<Signal> {
        let signal = self.escalation.due(Instant::now())?;
        if self.interrupted.is_none() && !self.signalled {
            eprintln!("paceline: still running {SURVIVORS_GRACE:?} later, terminated: {}", left());
        }
        self.signalled = true;
        if signal == Signal::KILL {
            self.give_up = Some(Instant::now() + KILLED_GRACE);
        }
        Some(signal)
    }

    /// When to look again.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.escalation.next_deadline(), self.give_up].into_iter().flatten().min()
    }

    /// Ranks that have not ended by now do not even obey the last signal.
    ///
    /// # Errors
    /// Then; `left` names them.
    pub fn check(&self, left: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.give_up.is_none_or(|deadline| deadline > Instant::now()) {
            return Ok(());
        }
        Err(Failure::failed(format!("killed, but still there: {}", left()))
            .help("the kernel holds it: look for a file system or device that hangs"))
    }

    /// Has a signal told us to stop?
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// What the launcher ends with, once all ranks have ended.
    pub fn exit_code(&self) -> ExitCode {
        match self.interrupted {
            Some(signal) => ExitCode::from(128 + signal.as_raw() as u8),
            None if self.failed => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// Which signals are sent to the ranks, and when.
#[derive(Default)]
struct Escalation {
    stages: VecDeque<(Instant, Signal)>,
}

impl Escalation {
    fn after_failure(now: Instant) -> Escalation {
        let terminate = now + SURVIVORS_GRACE;
        Escalation { stages: [(terminate, Signal::TERM), (terminate + TERMINATION_GRACE, Signal::KILL)].into() }
    }

    fn after_interrupt(now: Instant, signal: Signal) -> Escalation {
        let (terminate, kill) = (now + INTERRUPT_TERMINATE, now + INTERRUPT_KILL);
        Escalation { stages: [(now, signal), (terminate, Signal::TERM), (kill, Signal::KILL)].into() }
    }

    fn due(&mut self, now: Instant) -> Option<Signal> {
        self.stages.pop_front_if(|stage| stage.0 <= now).map(|stage| stage.1)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.stages.front().map(|stage| stage.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals in their order, and how many milliseconds after the reason for them they are due.
    fn signals(mut escalation: Escalation, reason: Instant) -> Vec<(u128, Signal)> {
        let mut signals = Vec::new();
        while let Some(due) = escalation.next_deadline() {
            let early = due.checked_sub(Duration::from_millis(1)).expect("it is long after the machine has started");
            assert!(early < reason || escalation.due(early).is_none(), "it does not wait");
            signals.push(((due - reason).as_millis(), escalation.due(due).expect("its time has come")));
        }
        signals
    }

    #[test]
    fn an_interrupt_is_passed_on_and_means_the_end_within_two_seconds() {
        let now = Instant::now();
        let signals = signals(Escalation::after_interrupt(now, Signal::INT), now);
        assert_eq!(signals, [(0, Signal::INT), (700, Signal::TERM), (1000, Signal::KILL)]);
    }

    #[test]
    fn survivors_have_time_for_their_last_words_and_no_more() {
        let now = Instant::now();
        assert_eq!(signals(Escalation::after_failure(now), now), [(2500, Signal::TERM), (3500, Signal::KILL)]);
    }
}
