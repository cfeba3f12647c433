//! How long calls last, on clocks that the ranks have compared.
//!
//! A call lasts from when the last rank has begun it until the last one has ended it. No rank sees that alone: who comes early waits for the
//! others, and of a tree or a ring some ranks have their result long before others. So beginning and end are taken by a clock that is the same
//! on all ranks: within a host the system's, and among hosts each knows by how much rank 0's is ahead of its own ([`hosts`]).

mod hosts;

use std::time::{Duration, Instant};

use paceline_comm::{CommError, Communicator};
use paceline_tune::Schedule;
use rustix::time::{ClockId, clock_gettime};

use super::Made;

/// Clocks of hosts are compared again after so long, as some run faster: 50 millionths are many, and a tenth of a millisecond by then.
const OLD: Duration = Duration::from_secs(2);
/// And no oftener than so that it takes a thousandth of the time.
const OLD_TIMES: u32 = 1000;

/// The clock of a rank.
#[derive(Debug)]
pub(super) struct Clock {
    /// The same moment, for this process and for all of its host, in seconds.
    began: (Instant, f64),
    /// By how much rank 0's is ahead. None before anybody has asked.
    ahead_s: Option<f64>,
    /// When that was found, and what it took.
    compared: (Instant, Duration),
    /// Of the calls since the ranks have met: seconds of this host's clock at their beginning, and what they took.
    spans: Vec<[f64; 2]>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let (now, time) = (Instant::now(), clock_gettime(ClockId::Monotonic));
        let began = (now, time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64);
        Clock { began, ahead_s: None, compared: (now, Duration::ZERO), spans: Vec::with_capacity(Schedule::LENGTH_MAX) }
    }

    /// Compares the hosts' clocks. All ranks call it; those of one host have nothing to compare.
    ///
    /// # Errors
    /// As [`Communicator::send`] and [`Communicator::broadcast`].
    pub(super) fn compare(&mut self, communicator: &Communicator) -> Result<(), CommError> {
        let began = Instant::now();
        self.ahead_s = Some(hosts::ahead_s(communicator, || self.of_host(Instant::now()))?);
        self.compared = (Instant::now(), began.elapsed());
        Ok(())
    }

    pub(super) fn is_compared(&self) -> bool {
        self.ahead_s.is_some()
    }

    /// Is it long ago that they were compared? On one host they never have to be again.
    pub(super) fn is_old(&self, communicator: &Communicator) -> bool {
        let (when, took) = self.compared;
        communicator.topology().hosts() > 1 && when.elapsed() > OLD.max(OLD_TIMES * took)
    }

    /// Seconds of this host's clock.
    pub(super) fn of_host(&self, moment: Instant) -> f64 {
        let (began, seconds) = self.began;
        seconds + moment.saturating_duration_since(began).as_secs_f64()
    }

    /// A call was made.
    pub(super) fn note(&mut self, began: Instant, took: Duration) {
        self.spans.push([self.of_host(began), took.as_secs_f64()]);
    }

    /// What the ranks take the minimum of: nothing, or of each of so many calls what [`lasted`] needs.
    pub(super) fn told(&self, calls: usize) -> Vec<f64> {
        let spans = if self.spans.len() == calls { &self.spans[..] } else { &[] };
        let ahead_s = self.ahead_s.into_iter();
        ahead_s.flat_map(|ahead_s| spans.iter().flat_map(move |span| tell(*span, ahead_s))).collect()
    }

    /// What one rank tells of a call.
    pub(super) fn tell(&self, span: [f64; 2]) -> [f64; 3] {
        tell(span, self.ahead_s.unwrap_or(0.0))
    }

    /// Calls last until the last rank has ended them. `told`: the minimum of what all have told. `made`: what they took at least.
    pub(super) fn lengthen(made: &mut [Made], told: &[f64]) {
        for (made, told) in made.iter_mut().zip(told.as_chunks().0) {
            made.seconds = lasted(made.seconds, *told);
        }
    }

    /// All ranks have met: other calls follow.
    pub(super) fn met(&mut self) {
        self.spans.clear();
    }
}

/// When a call began, negative; when it ended, negative; and what it took, negative. The minimum over all ranks is when the last rank began,
/// when the last one ended, and what it took the one that took longest.
fn tell([began_s, took_s]: [f64; 2], ahead_s: f64) -> [f64; 3] {
    let began_s = began_s + ahead_s;
    [-began_s, -(began_s + took_s), -took_s]
}

/// What a call takes, if it took this on the rank on which it took least. It is never less, nor more than on the one that took longest,
/// however far clocks are apart.
pub(super) fn lasted(least_s: f64, [began_s, ended_s, longest_s]: [f64; 3]) -> f64 {
    if !least_s.is_finite() {
        return least_s;
    }
    (began_s - ended_s).clamp(least_s, (-longest_s).max(least_s))
}

#[cfg(test)]
mod tests {
    use paceline_tune::Choice;
    use paceline_tune::environment::{CostModel, OwnModel};

    use super::*;
    use crate::tuned::tests::CALL;

    /// What calls take, in milliseconds. Of each rank, by how many rank 0's clock is ahead of its host's, by how many it believes that, and when it
    /// began and ended each call by rank 0's clock.
    fn lasting(ranks: &[([i64; 2], &[[i64; 2]])]) -> Vec<f64> {
        let cluster = paceline_plan::Cluster::named("study-10gbe:4x1").expect("it is built in");
        let context = OwnModel::of(&cluster).state(&CALL).context();
        let calls = ranks[0].1.len();
        let (mut seconds, mut least) = (vec![f64::INFINITY; calls], vec![f64::INFINITY; 3 * calls]);
        for ([ahead, believed], spans) in ranks {
            let mut clock = Clock { ahead_s: Some(1e-3 * *believed as f64), ..Clock::new() };
            for ([began, ended], seconds) in spans.iter().zip(&mut seconds) {
                let took = Duration::from_millis((ended - began) as u64);
                clock.note(clock.began.0 + Duration::from_millis((1000 + began - ahead) as u64), took);
                *seconds = seconds.min(took.as_secs_f64());
            }
            least.iter_mut().zip(clock.told(calls)).for_each(|(least, told)| *least = least.min(told));
        }
        let call =
            |&seconds: &f64| Made { context, number: 0, choice: Choice::Default, calls: 1, seconds, longest: 1.0 };
        let mut made: Vec<Made> = seconds.iter().map(call).collect();
        Clock::lengthen(&mut made, &least);
        made.iter().map(|made| (made.seconds * 1e3).round()).collect()
    }

    #[test]
    fn a_call_lasts_from_the_last_to_begin_until_the_last_to_end() {
        // In the second call rank 1 has its result 200 ms late, and so begins the third one late, for which the others wait. In the
        // last one, rank 1 comes late and has its result at once, and the others do not.
        let usual: &[[i64; 2]] = &[[10, 12], [20, 22], [30, 232], [300, 335]];
        let late: &[[i64; 2]] = &[[10, 12], [20, 222], [230, 232], [330, 331]];
        let all = [2.0, 202.0, 2.0, 5.0];
        assert_eq!(lasting(&[([0, 0], usual), ([0, 0], late), ([0, 0], usual)]), all);
        // Clocks of hosts may be anywhere, as long as that is known.
        assert_eq!(lasting(&[([0, 0], usual), ([-500, -500], late), ([700, 700], usual)]), all);
        // Where it is not, a call takes no less than on any rank, and no more than on the slowest.
        assert_eq!(lasting(&[([0, 0], usual), ([600, 0], late)]), [2.0, 2.0, 202.0, 35.0]);
        assert_eq!(lasting(&[([0, 0], usual), ([0, 600], late)]), [2.0, 202.0, 2.0, 1.0]);
    }

    #[test]
    fn there_is_no_clock_before_they_were_compared_and_none_of_some_calls() {
        let mut clock = Clock::new();
        clock.note(Instant::now(), Duration::from_millis(1));
        assert!(clock.told(1).is_empty() && !clock.is_compared());
        clock.compare(&Communicator::solo().unwrap()).unwrap();
        assert_eq!((clock.told(1).len(), clock.told(2).len()), (3, 0), "all of them, or none");
        clock.met();
        assert_eq!((clock.told(0).len(), clock.told(1).len()), (0, 0));
        Clock::lengthen(&mut [], &[]);
        assert!(lasted(f64::INFINITY, [0.0; 3]).is_infinite() && lasted(f64::NAN, [0.0; 3]).is_nan());
    }
}
