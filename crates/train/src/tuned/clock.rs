//! When calls began and ended, on clocks that the ranks have set together.
//!
//! What a call takes is what it takes the last rank to come, which waits for nobody: the least of all ranks. That does not see a rank
//! that has its result late, as the others do when a lost packet is sent again to one of them. On a common clock a call lasts from when the
//! last rank has begun until the last one has ended. Ranks of several hosts have no common clock but what they set when they have met, and one may
//! have left that meeting late itself; so only what is much longer than that is believed.

use std::time::{Duration, Instant};

use paceline_tune::Schedule;
use paceline_tune::guard::VETO;

use super::Made;

/// By how much ranks leave a meeting apart at most, unless one was stopped: TCP sends again what was lost after four times as long.
const APART_S: f64 = 0.05;

/// The clock of a rank.
#[derive(Debug)]
pub(super) struct Clock {
    /// When the ranks have last met. Before that there is no clock.
    set: Option<Instant>,
    /// Of the calls since then: seconds to their beginning, and to their end.
    spans: Vec<[f64; 2]>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { set: None, spans: Vec::with_capacity(Schedule::LENGTH_MAX) }
    }

    /// A call was made.
    pub(super) fn note(&mut self, began: Instant, took: Duration) {
        if let Some(set) = self.set {
            let began_s = began.saturating_duration_since(set).as_secs_f64();
            self.spans.push([began_s, began_s + took.as_secs_f64()]);
        }
    }

    /// What the ranks take the minimum of: nothing, or three numbers for each of so many calls, of which that makes the latest beginning,
    /// the latest end and the earliest one.
    pub(super) fn told(&self, calls: usize) -> Vec<f64> {
        let spans = if self.spans.len() == calls { &self.spans[..] } else { &[] };
        spans.iter().flat_map(|[began, ended]| [-began, -ended, *ended]).collect()
    }

    /// Calls that a rank has ended late took until then. `told`: the minimum of what all have told.
    pub(super) fn lengthen(made: &mut [Made], told: &[f64]) {
        let spans = || told.as_chunks::<3>().0.iter().map(|[began, ended, earliest]| [-began, -ended, *earliest]);
        // A rank that has left the meeting late itself ends all calls early by its clock.
        let apart_s = spans().map(|[_, ended, earliest]| ended - earliest).fold(f64::INFINITY, f64::min);
        for (made, [began, ended, _]) in made.iter_mut().zip(spans()) {
            made.seconds = lengthened(made.seconds, ended - began - apart_s);
        }
    }

    /// All ranks have just met.
    pub(super) fn set(&mut self, now: Instant) {
        self.set = Some(now);
        self.spans.clear();
    }
}

/// What a call takes: the least of all ranks, or as long as it has lasted on all of them, if that is so much longer that a rank was late.
pub(super) fn lengthened(least_s: f64, lasted_s: f64) -> f64 {
    if lasted_s > VETO * least_s && lasted_s > least_s + APART_S { lasted_s } else { least_s }
}

#[cfg(test)]
mod tests {
    use paceline_tune::Choice;
    use paceline_tune::environment::{CostModel, OwnModel};

    use super::*;
    use crate::tuned::tests::CALL;

    /// What calls take by the clocks of some ranks: of each, the milliseconds by which it left the meeting late, and to the beginning and the
    /// end of each call.
    fn lasted(ranks: &[(u64, &[[u64; 2]])]) -> Vec<f64> {
        let met = Instant::now();
        let at = |ms: u64| met + Duration::from_millis(ms);
        let cluster = paceline_plan::Cluster::named("study-10gbe:4x1").expect("it is built in");
        let context = OwnModel::of(&cluster).state(&CALL).context();
        let calls = ranks[0].1.len();
        let (mut seconds, mut latest) = (vec![f64::INFINITY; calls], vec![f64::INFINITY; 3 * calls]);
        for (left, spans) in ranks {
            let mut clock = Clock::new();
            clock.set(at(1000 + left));
            for ([began, ended], seconds) in spans.iter().zip(&mut seconds) {
                let took = Duration::from_millis(ended - began);
                clock.note(at(1000 + began), took);
                *seconds = seconds.min(took.as_secs_f64());
            }
            latest.iter_mut().zip(clock.told(calls)).for_each(|(latest, told)| *latest = latest.min(told));
        }
        let call =
            |&seconds: &f64| Made { context, number: 0, choice: Choice::Default, calls: 1, seconds, longest: 1.0 };
        let mut made: Vec<Made> = seconds.iter().map(call).collect();
        Clock::lengthen(&mut made, &latest);
        made.iter().map(|made| (made.seconds * 1e3).round()).collect()
    }

    #[test]
    fn a_call_lasts_until_the_last_rank_has_ended() {
        // In the second call rank 1 gets its result 200 ms late, and so begins the third one late, for which the others wait.
        let usual: &[[u64; 2]] = &[[10, 12], [20, 22], [30, 232]];
        let late: &[[u64; 2]] = &[[10, 12], [20, 222], [230, 232]];
        assert_eq!(lasted(&[(0, usual), (0, late), (0, usual)]), [2.0, 202.0, 2.0]);
        // Who has left the meeting late is not late for that, whoever comes last.
        for late_by in [0, 10, 200] {
            let (first, second): (&[[u64; 2]], &[[u64; 2]]) = (&[[240, 492]], &[[490, 492]]);
            assert_eq!(lasted(&[(late_by, first), (200 - late_by, second)]), [2.0], "{late_by}");
        }
    }

    #[test]
    fn there_is_no_clock_before_the_ranks_have_met() {
        let mut clock = Clock::new();
        clock.note(Instant::now(), Duration::from_millis(1));
        assert!(clock.told(1).is_empty() && clock.told(0).is_empty());
        clock.set(Instant::now());
        clock.note(Instant::now(), Duration::from_millis(1));
        assert_eq!((clock.told(1).len(), clock.told(2).len()), (3, 0), "all of them, or none");
        Clock::lengthen(&mut [], &[]);
    }
}
