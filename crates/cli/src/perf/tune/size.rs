//! One size: the tuner while it learns, a search, and what was learned against what was found. The search comes afterwards, so
//! that it prepares nothing that the tuner uses.

use std::io::{self, Write};
use std::time::Instant;

use paceline_comm::{CommError, Communicator};
use paceline_train::{Finish, Rehearsed, links_of, race};
use paceline_tune::{Choice, Course, Policy, State};
use serde::Serialize;

use super::super::exercise::Subject;
use super::super::pattern::Pattern;
use super::bench::{Bench, CALL};
use super::contestants::{Contestants, in_words};
use super::turns::{Length, Turns, median_us, play, ratio, ratio_half_width, worst_prefix};
use super::{Effort, RIVALS, agreed_s};
use crate::failure::Failure;

/// Calls between two boundaries, as in an iteration.
pub const ITERATION: usize = 4;

/// Of the shortest calls, so many jobs learn one after the other at most.
const JOBS_MAX: usize = 1000;

/// A total over the default's that is more is beyond what a tuner promises.
const PROMISED: f64 = 1.02;

/// What was found out of a size. Times are from when the last rank has begun a call until the last one has ended it, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct TunedSize {
    /// That are reduced, in place.
    pub bytes: usize,
    /// Choices that differ on these links.
    pub choices: usize,
    /// Of them, called in the search.
    pub called: usize,
    /// Not called, as four of their algorithm and protocol took twice as long as the best.
    pub hopeless: usize,
    /// Did the search end before its time?
    pub search_ended: bool,
    /// The best that was found; the default without a search.
    pub oracle: String,
    /// What the tuner calls in the end, where nothing is tried.
    pub chosen: String,
    /// It has settled for that. Of short calls it needs more, as ranks meet no more often than these pay for. Known to rank 0.
    pub decided: bool,
    /// Jobs that have learned, one after the other, whose times are added up call by call; the last one's tuner goes on.
    pub jobs: usize,
    /// Calls of each while it learned.
    pub calls: usize,
    /// Calls afterwards, and as many of every rival.
    pub compared: usize,
    /// Medians, after it has learned.
    pub default_us: Option<f64>,
    /// The tuner's.
    pub tuned_us: Option<f64>,
    /// The best that was found.
    pub oracle_us: Option<f64>,
    /// Totals while it learned: the tuner's, boundaries included, over the default's.
    pub learning_over_default: f64,
    /// Totals afterwards, likewise.
    pub tuned_over_default: f64,
    /// Totals afterwards: the tuner's, boundaries included, over those of the best that was found.
    pub tuned_over_oracle: f64,
    /// What its rounds leave open of that: half of the 95 % interval.
    pub over_oracle_half_width: Option<f64>,
    /// The largest total over the default's from 100 calls on, boundaries included: while it learned, and afterwards, too, if there was a
    /// single job, which goes on there. Of several, only the last one does, and it has not made all that is added up.
    pub worst_prefix: Option<f64>,
    /// The tuner's calls alone over those of the best that was found.
    pub calls_over_oracle: f64,
    /// The same, each call as on the rank on which it took least.
    pub reward_over_oracle: f64,
    /// The same of calls alone.
    pub calls_worst_prefix: Option<f64>,
    /// The same measure of the default, which plays twice while it learned: noise.
    pub default_over_itself: Option<f64>,
    /// Of the jobs, those that took more than 1.02 times the default's total, boundaries included, at some call from 100 on while they
    /// learned.
    pub jobs_beyond: usize,
    /// Likewise, of their second defaults: noise.
    pub defaults_beyond: usize,
    /// What a boundary takes in the mean, whether the ranks meet at it or not; there is one after every [`ITERATION`] calls. Less what the
    /// clock says of nothing.
    pub boundary_us: f64,
    /// Calls of choices that were tried, by the last job.
    pub explored: u64,
    /// How often the network was taken for changed, by the last job.
    pub drifts: u32,
    /// What was found out before, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rehearsal: Option<TunedRehearsal>,
    /// What its calls take in the end.
    #[serde(skip)]
    pub policy: Policy,
}

/// What a rehearsal has found; none of its calls is one of the tuner's or the default's.
#[derive(Clone, Debug, Serialize)]
pub struct TunedRehearsal {
    /// What it took.
    pub seconds: f64,
    /// Choices that may be tried, the default included.
    pub choices: usize,
    /// Of them, called.
    pub called: usize,
    /// Was there time for everything?
    pub is_complete: bool,
    /// What it has put in the default's place, if anything.
    pub chosen: Option<String>,
    /// The share of the default's time that this has saved in its trial.
    pub gain: Option<f64>,
}

/// Measures a size, all ranks together. Gives elements that were wrong, too.
///
/// # Errors
/// Those of the communication; there is not that much memory.
pub fn measure(
    communicator: &Communicator,
    subject: &Subject,
    bytes: usize,
    effort: &Effort<'_>,
) -> Result<(TunedSize, u64), Failure> {
    let pattern = Pattern::<f32>::new(subject.reduction, subject.kind.contributors(communicator.world_size()));
    let began = Instant::now();
    let job = |number: usize| Job::learn(communicator, subject, (&pattern, bytes), effort, number);
    let mut last = job(0)?;
    let (mut jobs, mut learning, mut wrong) = (1, last.learning.clone(), 0);
    let mut beyond = is_beyond(&last.learning).map(usize::from);
    while jobs < JOBS_MAX && agreed_s(communicator, began)? < effort.jobs_s {
        wrong += last.bench.wrong;
        last = job(jobs)?;
        beyond.iter_mut().zip(is_beyond(&last.learning)).for_each(|(jobs, is_beyond)| *jobs += usize::from(is_beyond));
        learning = learning.plus(&last.learning);
        jobs += 1;
    }
    let [jobs_beyond, defaults_beyond] = beyond;
    let Job { mut bench, rehearsed, .. } = last;
    let state = bench.tuned.state_of(subject.kind, bench.bytes(), &CALL);
    let contestants = Contestants::of(&bench.tuned, &state, links_of(communicator));
    let finish = search(communicator, &mut bench, &contestants, effort.search_s)?;
    let rivals = finish.best_beside_the_first(RIVALS).into_iter().map(|number| contestants.choices[number]);
    let rivals: Vec<Choice> = rivals.collect();
    let seed = effort.seed.wrapping_add(1);
    let after = play(&mut bench, &rivals, &Length { rounds: effort.compared, between: ITERATION, seed })?;
    let size = summary(&bench, &state, &contestants, &finish, &rivals, &learning, &after);
    let rehearsal = rehearsed.map(|it| TunedRehearsal::of(&it, |choice| in_words(&bench.tuned, &state, choice)));
    let boundary_us = size.boundary_us / jobs as f64;
    let [worst_prefix, calls_worst_prefix] = worst_prefixes(&learning, (jobs == 1).then_some(&after));
    let size = TunedSize {
        rehearsal,
        jobs,
        jobs_beyond,
        defaults_beyond,
        boundary_us,
        worst_prefix,
        calls_worst_prefix,
        ..size
    };
    Ok((size, wrong + bench.wrong))
}

/// With boundaries and without. `after`: what follows for the same tuner.
fn worst_prefixes(learning: &Turns, after: Option<&Turns>) -> [Option<f64>; 2] {
    let all = after.map_or_else(|| learning.clone(), |after| learning.then(after));
    [&all.tuned_whole(), &all.tuned.lasted].map(|tuned| worst_prefix(tuned, &all.rivals[0].lasted))
}

/// Has a job taken more than is promised while it learned, and has its second default?
fn is_beyond(learning: &Turns) -> [bool; 2] {
    let [default, again] = [0, 1].map(|rival| &learning.rivals[rival].lasted);
    [&learning.tuned_whole(), again].map(|total| worst_prefix(total, default).is_some_and(|worst| worst > PROMISED))
}

/// A job that has learned.
struct Job<'a> {
    bench: Bench<'a>,
    rehearsed: Option<Rehearsed>,
    learning: Turns,
}

impl<'a> Job<'a> {
    /// With a tuner that knows nothing yet, by turns with the default, which plays twice, so that it is known how much it differs from
    /// itself.
    fn learn(
        communicator: &'a Communicator,
        subject: &'a Subject,
        (pattern, bytes): (&'a Pattern<f32>, usize),
        effort: &Effort<'_>,
        number: usize,
    ) -> Result<Job<'a>, Failure> {
        let seed = effort.seed.wrapping_add((number as u64) << 32);
        let mut bench = Bench::new(communicator, subject, pattern, bytes, &Effort { seed, ..*effort })?;
        let rehearsed = bench.rehearse(effort.rehearse_s)?;
        let length = Length { rounds: effort.calls, between: ITERATION, seed };
        let learning = play(&mut bench, &[Choice::Default; 2], &length)?;
        Ok(Job { bench, rehearsed, learning })
    }
}

/// Races everything that can be chosen, each checked when it is called for the first time.
pub fn search(
    communicator: &Communicator,
    bench: &mut Bench<'_>,
    contestants: &Contestants,
    limit_s: f64,
) -> Result<Finish, CommError> {
    let mut seen = vec![false; contestants.choices.len()];
    race(communicator, &contestants.entrants, limit_s, &mut |number| {
        let is_first = !std::mem::replace(&mut seen[number], true);
        bench.choice(contestants.choices[number], is_first)
    })
}

fn summary(
    bench: &Bench<'_>,
    state: &State,
    contestants: &Contestants,
    finish: &Finish,
    rivals: &[Choice],
    learning: &Turns,
    after: &Turns,
) -> TunedSize {
    let oracle = after.best(0);
    let best = &after.rivals[oracle];
    let fastest = after.rivals.iter().map(|rival| ratio(&after.tuned.fastest, &rival.fastest));
    let [default, again] = [0, 1].map(|rival| &learning.rivals[rival].lasted);
    let (context, policy) = (state.context(), bench.tuned.standing());
    let course = bench.tuned.tuner().and_then(|tuner| tuner.course(&context));
    TunedSize {
        bytes: bench.bytes(),
        choices: contestants.existing,
        called: finish.called,
        hopeless: finish.hopeless,
        search_ended: finish.is_complete,
        oracle: in_words(&bench.tuned, state, rivals[oracle]),
        chosen: in_words(&bench.tuned, state, policy.choice(context.key(), 0)),
        decided: course.is_some_and(Course::is_decided),
        jobs: 1,
        calls: learning.boundaries.len(),
        compared: after.boundaries.len(),
        default_us: median_us(&after.rivals[0].lasted),
        tuned_us: median_us(&after.tuned.lasted),
        oracle_us: median_us(&best.lasted),
        learning_over_default: ratio(&learning.tuned_whole(), default),
        tuned_over_default: ratio(&after.tuned_whole(), &after.rivals[0].lasted),
        tuned_over_oracle: ratio(&after.tuned_whole(), &best.lasted),
        over_oracle_half_width: ratio_half_width(&after.tuned_whole(), &best.lasted),
        worst_prefix: None,
        calls_over_oracle: ratio(&after.tuned.lasted, &best.lasted),
        reward_over_oracle: fastest.fold(0.0, f64::max),
        calls_worst_prefix: None,
        default_over_itself: worst_prefix(again, default),
        jobs_beyond: 0,
        defaults_beyond: 0,
        boundary_us: learning.boundary_us(),
        explored: course.map_or(0, |course| course.explored),
        drifts: course.map_or(0, |course| course.drifts),
        rehearsal: None,
        policy,
    }
}

impl TunedRehearsal {
    fn of(rehearsed: &Rehearsed, in_words: impl Fn(Choice) -> String) -> TunedRehearsal {
        let &Rehearsed { choices, called, is_complete, chosen, seconds } = rehearsed;
        let (chosen, gain) = chosen.map(|(choice, gain)| (in_words(choice), gain.share)).unzip();
        TunedRehearsal { seconds, choices, called, is_complete, chosen, gain }
    }
}

impl TunedSize {
    /// The head of the table.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write_head(out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "# from the last rank's beginning to the last one's end; totals of the tuner's calls and boundaries (of its calls) over the default's while it learned, \
             and over the best's; at worst over the default's, from 100 calls on; and the default's over itself"
        )?;
        writeln!(
            out,
            "#{:>11} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}  chosen; best of a search",
            "bytes",
            "default us",
            "tuned us",
            "best us",
            "learning",
            "over best",
            "calls",
            "worst",
            "noise",
            "boundary us"
        )
    }

    /// A line of it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let rehearsal =
            self.rehearsal.as_ref().map_or_else(String::new, |it| format!("; rehearsed for {:.2} s", it.seconds));
        let times = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        writeln!(
            out,
            " {:>11} {:>11} {:>11} {:>11} {:>9.3} {:>9.3} {:>9.3} {:>9} {:>9} {:>11.1}  {}{}; {} ({} of {} called){}",
            self.bytes,
            us(self.default_us),
            us(self.tuned_us),
            us(self.oracle_us),
            self.learning_over_default,
            self.tuned_over_oracle,
            self.calls_over_oracle,
            times(self.worst_prefix),
            times(self.default_over_itself),
            self.boundary_us,
            self.chosen,
            if self.decided { "" } else { ", not decided" },
            self.oracle,
            self.called,
            self.choices,
            rehearsal
        )
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_comm::CallOptions;
    use paceline_plan::{CollectiveKind, Reduction};

    use super::super::turns::Times;
    use super::*;

    const EFFORT: Effort<'_> =
        Effort { calls: 120, compared: 20, jobs_s: 2.0, search_s: 0.5, rehearse_s: 0.2, seed: 3, programs: &[] };

    /// What stands takes a tenth less while it is learned, and a half more afterwards: of a single job that is seen.
    #[test]
    fn the_prefix_of_a_single_job_goes_on_behind_the_learning() {
        let turns = |calls: usize, call_s: f64| {
            let times = |seconds: f64| Times { lasted: vec![seconds; calls], fastest: vec![seconds; calls] };
            Turns { tuned: times(call_s), rivals: vec![times(1.0), times(0.5)], boundaries: vec![0.1; calls] }
        };
        let (learning, after) = (turns(300, 0.9), turns(300, 1.5));
        let [whole, calls] = worst_prefixes(&learning, None).map(|worst| worst.expect("there are enough"));
        assert!((whole - 1.0).abs() < 1e-9 && (calls - 0.9).abs() < 1e-9, "{whole} {calls}");
        let [whole, calls] = worst_prefixes(&learning, Some(&after)).map(|worst| worst.expect("there are enough"));
        assert!((whole - 1.3).abs() < 1e-9 && (calls - 1.2).abs() < 1e-9, "{whole} {calls}");
    }

    #[test]
    fn a_size_is_searched_learned_and_compared_and_nothing_is_wrong() {
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let (kind, reduction) = (CollectiveKind::AllReduce, Reduction::Sum);
                let options = CallOptions::default();
                let subject =
                    Subject { kind, reduction, root: 0, in_place: true, allocated: false, program: None, options };
                measure(&communicator, &subject, 1 << 14, &EFFORT).expect("both ranks measure")
            })
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let ((leader, wrong), (follower, wrong_there)) = (&all[0], &all[1]);
        assert_eq!((*wrong, *wrong_there), (0, 0));
        assert_eq!((leader.bytes, leader.calls, leader.compared), (1 << 14, 120, 20));
        assert!(leader.called > 1 && leader.called <= leader.choices, "{leader:?}");
        assert!(leader.worst_prefix.is_some(), "{leader:?}");
        let rehearsal = leader.rehearsal.as_ref().expect("it was asked for");
        assert!(rehearsal.called > 1 && rehearsal.called <= rehearsal.choices, "{rehearsal:?}");
        assert_eq!(rehearsal.chosen.is_some(), rehearsal.gain.is_some());
        // All but what the leading rank alone knows is agreed.
        assert_eq!((&leader.oracle, &leader.chosen), (&follower.oracle, &follower.chosen));
        assert_eq!(leader.tuned_us, follower.tuned_us);
        assert!(leader.calls_over_oracle > 0.0 && leader.boundary_us > 0.0, "{leader:?}");
        assert!(leader.over_oracle_half_width.is_some_and(|half| half > 0.0), "{leader:?}");
        // What boundaries take is in the tuner's total.
        assert!(leader.tuned_over_oracle > leader.calls_over_oracle, "{leader:?}");
        assert!(leader.reward_over_oracle > 0.0 && leader.default_over_itself.is_some_and(|noise| noise > 0.0));
    }
}
