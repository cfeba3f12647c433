//! Calls that are all the default's, whatever a tuner says: how many jobs report a gain that is none, on the noise of these
//! links? As many others are told that one algorithm takes a fifth less, and must find it: who never reports anything is honest,
//! too. A job may rehearse before its first call, as jobs do that ship: on such calls, and told the same.

use std::io::{self, Write};
use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Communicator};
use paceline_train::{Rehearsed, Took};
use paceline_tune::statistics::median;
use paceline_tune::{Choice, Decision, Situation, Standing, Tuner};
use serde::Serialize;

use super::super::exercise::Subject;
use super::super::pattern::Pattern;
use super::Effort;
use super::bench::{Bench, CALL};
use super::contestants::situation;
use super::size::ITERATION;
use super::turns::{Times, median_us};
use crate::failure::Failure;

/// What calls of one algorithm are said to take, over what they do.
const FASTER: f64 = 0.8;
/// A call is late that takes so many times the median.
const LATE: f64 = 2.0;

/// What was found out of a size; known to rank 0.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TunedAlike {
    /// That are reduced, in place.
    pub bytes: usize,
    /// Jobs, one after the other, each with a tuner of its own.
    pub jobs: usize,
    /// Calls of each job.
    pub calls: usize,
    /// Jobs that reported a gain, even if they took it back.
    pub reported: usize,
    /// Of them, those whose rehearsal has reported one.
    pub rehearsal_reported: usize,
    /// Seconds that a job was rehearsed, in the mean; 0: there was no rehearsal.
    pub rehearsal_s: f64,
    /// Trials that they began.
    pub trials: u64,
    /// Calls of choices that they would have tried.
    pub explored: u64,
    /// How often they took the network for changed.
    pub drifts: u64,
    /// Of as many jobs on the same calls, one of whose algorithms is said to take a fifth less: those that reported it.
    pub found: usize,
    /// Median of how long a call lasted.
    pub call_us: Option<f64>,
    /// Standard deviation of the logarithm of what calls take, within a job; the mean over the jobs.
    pub deviation: f64,
    /// The share of calls that take more than twice the median of their job.
    pub late: f64,
}

/// Measures, all ranks together. Gives elements that were wrong, too.
///
/// # Errors
/// Those of the communication; there is not that much memory.
pub fn measure(
    communicator: &Communicator,
    subject: &Subject,
    bytes: usize,
    jobs: usize,
    effort: &Effort<'_>,
) -> Result<(TunedAlike, u64), Failure> {
    let pattern = Pattern::<f32>::new(subject.reduction, subject.kind.contributors(communicator.world_size()));
    let mut bench = Bench::new(communicator, subject, &pattern, bytes, effort)?;
    let state = bench.tuned.state_of(subject.kind, bench.bytes(), &CALL);
    let mut found = TunedAlike { bytes: bench.bytes(), calls: effort.calls, ..TunedAlike::default() };
    // Where there is no choice, there is nothing to report.
    let Some(situation) = situation(&bench.tuned, &state) else { return Ok((found, bench.wrong)) };
    let faster = told(communicator, likely(&situation))?;
    let mut all = Vec::new();
    for number in 0..jobs {
        let seed = effort.seed.wrapping_mul(1_000_000).wrapping_add(number as u64);
        let pair = || [None, faster].map(|faster| Job::new(seed, faster));
        let mut pair = (communicator.rank() == 0).then(pair);
        if effort.rehearse_s > 0.0 {
            for (place, faster) in [None, faster].into_iter().enumerate() {
                let one = pair.as_mut().map(|pair| &mut pair[place]);
                let mut call = || bench.choice(Choice::Default, false);
                let took_s = rehearse(communicator, &situation, (one, faster), effort.rehearse_s, &mut call)?;
                found.rehearsal_s += took_s / (2 * jobs) as f64;
            }
        }
        let seconds = job(communicator, &mut bench, &situation, pair.as_mut(), effort.calls)?;
        if let Some(pair) = &pair {
            found.count(pair);
        }
        let (deviation, late) = noise(&seconds);
        found.deviation += deviation / jobs as f64;
        found.late += late / jobs as f64;
        all.extend(seconds);
    }
    (found.jobs, found.call_us) = (jobs, median_us(&all));
    Ok((found, bench.wrong))
}

/// What rank 0 says: what is modelled to be the best may hang on the last bit, and all ranks must take the same for faster.
fn told(communicator: &Communicator, algorithm: Option<u8>) -> Result<Option<u8>, CommError> {
    let mut told = [algorithm.map_or(-1, i64::from)];
    communicator.broadcast(&mut told, 0, &CallOptions::default())?;
    Ok(u8::try_from(told[0]).ok())
}

/// Before a job: calls that all are the default's, whatever is rehearsed. Each of a pair has a rehearsal of its own, as what it is told
/// decides what is called how often. Seconds that it took.
fn rehearse(
    communicator: &Communicator,
    situation: &Situation,
    (mut job, faster): (Option<&mut Job>, Option<u8>),
    limit_s: f64,
    call: &mut dyn FnMut() -> Result<Took, CommError>,
) -> Result<f64, CommError> {
    let mut play = |choice: Choice| Ok(call()?.times(said_to_take(choice, faster)));
    let taught = job.as_mut().map(|job| (&mut job.tuner, situation));
    let rehearsed = Rehearsed::of(communicator, taught, Duration::from_secs_f64(limit_s), &mut play)?;
    if let Some(job) = job {
        job.has_rehearsed_a_gain = rehearsed.chosen.is_some();
        job.has_reported |= job.has_rehearsed_a_gain;
    }
    Ok(rehearsed.seconds)
}

/// How many times as long as it did a call of a choice is said to have taken, if this algorithm is said to be faster. The default's own
/// never is.
fn said_to_take(choice: Choice, faster: Option<u8>) -> f64 {
    match choice {
        Choice::Play(action) if Some(action.family.algorithm) == faster => FASTER,
        _ => 1.0,
    }
}

/// The calls of a job, from which both of a pair learn, with a boundary as often as where a tuner's choices are played; how many seconds
/// each lasted. Only the first call and the last one are checked.
fn job(
    communicator: &Communicator,
    bench: &mut Bench<'_>,
    situation: &Situation,
    mut pair: Option<&mut [Job; 2]>,
    calls: usize,
) -> Result<Vec<f64>, CommError> {
    let mut all = Vec::with_capacity(calls);
    while all.len() < calls {
        let count = ITERATION.min(calls - all.len());
        let decided = pair.as_mut().map(|pair| pair.each_mut().map(|job| job.tuner.schedule(situation, count).1));
        let mut made = Vec::with_capacity(count);
        for number in all.len() + 1..=all.len() + count {
            made.push(bench.choice(Choice::Default, number == 1 || number == calls)?);
        }
        let seconds = Times::of(communicator, &made)?.lasted;
        if let (Some(pair), Some(decided)) = (pair.as_mut(), decided) {
            pair.iter_mut().zip(decided).for_each(|(job, decided)| job.learn(situation, &decided, &seconds));
        }
        all.extend(seconds);
    }
    Ok(all)
}

/// A tuner, and what it was told.
struct Job {
    tuner: Tuner,
    /// This algorithm is said to be faster.
    faster: Option<u8>,
    has_reported: bool,
    has_rehearsed_a_gain: bool,
}

impl Job {
    fn new(seed: u64, faster: Option<u8>) -> Job {
        Job { tuner: Tuner::shipped(seed), faster, has_reported: false, has_rehearsed_a_gain: false }
    }

    fn learn(&mut self, situation: &Situation, decided: &[Decision], seconds: &[f64]) {
        for (decision, seconds) in decided.iter().zip(seconds) {
            let times = said_to_take(situation.choice(decision.arm), self.faster);
            self.tuner.observe(situation, *decision, times * seconds);
        }
        // What is reported once has been reported, even if it is taken back.
        let mut standing = self.tuner.courses().map(|(_, course)| course.standing());
        self.has_reported |= standing.any(|standing| matches!(standing, Standing::Chosen(..)));
    }
}

/// The algorithm of the best that is modelled beside the default's: a tuner surely tries it.
fn likely(situation: &Situation) -> Option<u8> {
    let usual = situation.arms[situation.default].action.family.algorithm;
    let others = situation.arms.iter().filter(|arm| arm.action.family.algorithm != usual);
    others.min_by(|one, other| one.modelled_s.total_cmp(&other.modelled_s)).map(|arm| arm.action.family.algorithm)
}

/// The standard deviation of logarithms, and the share of calls that are late.
fn noise(seconds: &[f64]) -> (f64, f64) {
    let count = seconds.len().max(1) as f64;
    let logs: Vec<f64> = seconds.iter().map(|seconds| seconds.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / count;
    let limit = LATE * median(seconds).unwrap_or(f64::INFINITY);
    (variance.sqrt(), seconds.iter().filter(|seconds| **seconds > limit).count() as f64 / count)
}

impl TunedAlike {
    /// A job that has ended, and the one beside it that was told of a gain.
    fn count(&mut self, [alike, with_gain]: &[Job; 2]) {
        self.reported += usize::from(alike.has_reported);
        self.rehearsal_reported += usize::from(alike.has_rehearsed_a_gain);
        self.found += usize::from(with_gain.has_reported);
        self.trials += u64::from(alike.tuner.trials());
        for (_, course) in alike.tuner.courses() {
            self.explored += course.explored;
            self.drifts += u64::from(course.drifts);
        }
    }

    /// For people.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { bytes, jobs, calls, reported, trials, explored, drifts, found, deviation, late, .. } = self;
        let call = self.call_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let (rehearsal_s, there) = (self.rehearsal_s, self.rehearsal_reported);
        let rehearsal = if rehearsal_s > 0.0 {
            format!("; each rehearsed for {rehearsal_s:.2} s, where {there} of the gains were reported")
        } else {
            String::new()
        };
        writeln!(
            out,
            " {bytes} bytes, {jobs} jobs of {calls} calls of {call} us (deviation {:.1} %, {:.1} % late): {reported} report a gain \
             where there is none, in {trials} trials and {explored} calls of other choices, with {drifts} changes noticed; {found} find \
             one of a fifth{rehearsal}",
            100.0 * deviation,
            100.0 * late
        )
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_plan::{CollectiveKind, Reduction};
    use paceline_train::TunedCalls;

    use super::*;

    #[test]
    fn noise_is_that_of_logarithms_and_late_is_twice_the_median() {
        let (deviation, late) = noise(&[1.0, 1.0, 1.0, f64::exp(2.0)]);
        assert!((deviation - 0.75f64.sqrt()).abs() < 1e-12 && late == 0.25, "{deviation} {late}");
        assert_eq!(noise(&[]), (0.0, 0.0));
    }

    /// Two jobs on two ranks, and what can be chosen there: as the leading rank has it.
    fn two_jobs(rehearse_s: f64) -> (TunedAlike, Situation) {
        let effort = Effort { calls: 320, compared: 0, jobs_s: 0.0, search_s: 0.0, rehearse_s, seed: 3, programs: &[] };
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let (kind, reduction) = (CollectiveKind::AllReduce, Reduction::Sum);
                let options = CallOptions::default();
                let subject =
                    Subject { kind, reduction, root: 0, in_place: true, allocated: false, program: None, options };
                let (found, wrong) = measure(&communicator, &subject, 1 << 14, 2, &effort).expect("both ranks measure");
                assert_eq!(wrong, 0);
                let tuned = TunedCalls::new(&communicator, 1);
                let state = tuned.state_of(kind, 1 << 14, &CALL);
                (found, situation(&tuned, &state).expect("there is a choice"))
            })
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        all.into_iter().next().expect("two ranks")
    }

    /// One that is told of a gain learns of it, one that is not does not: by calls that are the same for both.
    #[test]
    fn what_a_job_is_told_is_what_it_learns() {
        let (found, situation) = two_jobs(0.0);
        assert_eq!((found.jobs, found.calls, found.rehearsal_reported, found.rehearsal_s), (2, 320, 0, 0.0));
        assert!(found.reported <= 2 && found.found <= 2 && found.call_us.is_some_and(|us| us > 0.0), "{found:?}");
        // On calls without noise, a fifth is found and nothing else is.
        let faster = likely(&situation).expect("there are several algorithms");
        let mut pair = [Job::new(1, None), Job::new(1, Some(faster))];
        for _ in 0..160 {
            for job in &mut pair {
                let (_, decided) = job.tuner.schedule(&situation, ITERATION);
                job.learn(&situation, &decided, &[1e-3; ITERATION]);
            }
        }
        let mut counted = TunedAlike::default();
        (0..2).for_each(|_| counted.count(&pair));
        assert_eq!((counted.reported, counted.found, counted.drifts), (0, 2, 0));
        let (_, course) = pair[0].tuner.courses().next().expect("its only context");
        assert!(counted.explored > 0 && counted.explored == 2 * course.explored, "{counted:?}");
        let mut line = Vec::new();
        TunedAlike { drifts: 7, explored: 90, ..counted }.write(&mut line).expect("memory is written");
        let line = String::from_utf8(line).expect("text");
        assert!(line.contains("90 calls of other choices, with 7 changes noticed; 2 find one"), "{line}");
        assert!(!line.contains("rehearsed"), "{line}");
    }

    /// Calls without noise: a job that is told of nothing finds nothing in its rehearsal, and one that is told of a fifth finds that.
    #[test]
    fn what_a_job_is_told_is_what_it_rehearses() {
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let tuned = TunedCalls::new(&communicator, 1);
                let state = tuned.state_of(CollectiveKind::AllReduce, 1 << 14, &CALL);
                let situation = situation(&tuned, &state).expect("there is a choice");
                let faster = told(&communicator, likely(&situation)).expect("rank 0 says it");
                [None, faster].map(|faster| {
                    let mut job = Job::new(1, faster);
                    let one = (communicator.rank() == 0).then_some(&mut job);
                    let mut call = || communicator.barrier(&CallOptions::default()).map(|()| Took::from(1e-3));
                    rehearse(&communicator, &situation, (one, faster), 5.0, &mut call).expect("both rehearse");
                    job.has_rehearsed_a_gain
                })
            })
        });
        let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        assert_eq!(found[0], [false, true]);
    }

    /// In a rehearsal every choice takes what the default does, too, but for what the other one is told.
    #[test]
    fn jobs_rehearse_on_calls_that_are_alike() {
        let (found, situation) = two_jobs(0.1);
        assert!(found.rehearsal_s > 0.0 && found.rehearsal_reported <= found.reported, "{found:?}");
        assert!(found.reported <= 2 && found.found <= 2, "{found:?}");
        let faster = likely(&situation);
        let said = |arm: usize| said_to_take(situation.choice(arm), faster);
        for (arm, it) in situation.arms.iter().enumerate() {
            let is_faster = Some(it.action.family.algorithm) == faster;
            assert_eq!(said(arm), if is_faster { FASTER } else { 1.0 }, "{it:?}");
        }
        assert_eq!(said(situation.default), 1.0);
        let mut counted = TunedAlike { rehearsal_s: 0.25, ..TunedAlike::default() };
        let rehearsed = Job { has_reported: true, has_rehearsed_a_gain: true, ..Job::new(1, None) };
        counted.count(&[rehearsed, Job::new(1, faster)]);
        let mut line = Vec::new();
        counted.write(&mut line).expect("memory is written");
        let line = String::from_utf8(line).expect("text");
        assert!(line.contains("each rehearsed for 0.25 s, where 1 of the gains were reported"), "{line}");
    }
}
