//! What a rehearsal has measured, what a job takes that for, and who is told.

use paceline_comm::{CommError, Communicator};
use paceline_tune::guard::VETO;
use paceline_tune::main_effects::Entrant;
use paceline_tune::statistics::median;
use paceline_tune::{Choice, Outcome as Shown, Situation, Tuner};

use super::Rehearsed;
use crate::tuned::clock::Took;
use crate::tuned::race::agree;

/// By how much ranks leave a barrier apart at most, unless one was stopped: TCP sends again what was lost after four times as long.
const APART_S: f64 = 0.05;

/// What came out of a rehearsal.
pub(crate) struct Outcome {
    pub(crate) rehearsed: Rehearsed,
    pub(super) contestants: Vec<(Choice, Entrant)>,
    /// By contestant, seconds of its calls as a job takes them.
    pub(super) all_s: Vec<Vec<f64>>,
    /// By contestant, not by arm.
    pub(super) shown: Shown,
}

/// How a tuner takes in what was measured, by arm, and what that has shown.
type Tell = fn(&mut Tuner, &Situation, &[(usize, &[f64])], Shown);

impl Outcome {
    /// Tells a tuner, on rank 0, whose job makes the same calls in the same way (`Tuner::rehearsed`), or beside others
    /// (`Tuner::rehearsed_alone`).
    pub(crate) fn teach(&self, tuner: &mut Tuner, situation: &Situation, tell: Tell) {
        let arm_of = |contestant: usize| situation.arm_of(self.contestants[contestant].0);
        let seconds = self.all_s.iter().enumerate();
        let measured: Vec<(usize, &[f64])> = seconds.map(|(number, seconds)| (arm_of(number), &seconds[..])).collect();
        tell(tuner, situation, &measured, self.shown.renumbered(arm_of));
    }

    /// What a call takes by what stands from here on; the same on all ranks. None if it was never called.
    pub(super) fn standing_s(&self) -> Option<f64> {
        let stands = match self.shown {
            Shown::Gain(best, _) | Shown::GainOfFew(best, _) => best,
            _ => 0,
        };
        self.all_s.get(stands).and_then(|seconds| median(seconds))
    }
}

/// Of each call what a job takes it for: from when the last rank has begun it until the last one has ended it, if clocks were compared. Else the
/// least time of all ranks, as whoever came last has waited for nobody, and until the last has ended if that was late. (All of them begin together.)
pub(super) fn as_in_a_job(communicator: &Communicator, own: &[Vec<Took>]) -> Result<Vec<Vec<f64>>, CommError> {
    let mut told: Vec<f64> = own.iter().flatten().flat_map(|took| took.told()).collect();
    agree(communicator, &mut told)?;
    let by_clock = own.iter().flatten().all(Took::is_by_clock);
    let mut all_s = told.as_chunks().0.iter().map(|&told| match by_clock {
        true => Took::lasted(told),
        false => until_late(Took::least_s(told), Took::longest_s(told)),
    });
    Ok(own.iter().map(|own| all_s.by_ref().take(own.len()).collect()).collect())
}

/// What a call takes that all ranks begin together: the least of them, or the longest, if that is so much longer that a rank was late.
fn until_late(least_s: f64, longest_s: f64) -> f64 {
    if longest_s > VETO * least_s && longest_s > least_s + APART_S { longest_s } else { least_s }
}
