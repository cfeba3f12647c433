//! Before a job: calls that are made for their times only, while nobody waits for their results.
//!
//! What a call is made with can be found out in the job only as fast as the ranks learn of each other's times, which takes longer than
//! a short call itself, and only as far as the default's time pays for what is tried. Before the job, a tenth of a second is thousands of
//! short calls, and nothing is lost by bad ones.

mod outcome;
mod patience;

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Element, Reduction, VerifiedProgram};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::Call;
use paceline_tune::guard::{NEVER_TRIED, VETO};
use paceline_tune::main_effects::{Entrant, TRAITS};
use paceline_tune::statistics::{binomial_tail, median};
use paceline_tune::trial::{Gain, Side, Trial, Verdict, WORTHWHILE};
use paceline_tune::{Choice, Outcome as Shown, Random, Schedule, Situation, State, Tuner};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TunedCalls;
use super::clock::{CommonClock, Took};
use super::leader::Leader;
use super::learning::{situation_of, typical_situation};
use super::policies::{Plays, Version};
use super::race::{Finish, agree, race};
pub(crate) use outcome::Outcome;
use outcome::as_in_a_job;
use patience::Patience;

/// The race for the best may take such a share of the time; the rest is for the trial of what has won it.
const FOR_RACE: f64 = 0.6;

/// Trials of what has won the race, until one finds a gain: of calls that vary much, 32 blocks are often not sure. Each is one of the
/// job's trials, which together err as seldom as they may.
const TRIALS: usize = 3;

/// So many of those that look better are tried, one after the other, as long as none has won, or what has won its trial is late too often.
const CANDIDATES: usize = 3;

/// What has won its trial is called so many times more, by turns with the default: what is late once in a hundred calls takes longer in all, if
/// TCP then waits for 200 ms, and shows nothing of it in a trial.
const ENDURANCE_CALLS: usize = 256;

/// Times of what is usual that are late: by the first, one may just have waited for a processor; by the others, for a lost packet.
const LATE: [f64; 3] = [VETO, 8.0 * VETO, 64.0 * VETO];

/// Where the default is late, too, what has won may be late so much oftener as chance would have it in one case of five.
const ENDURANCE_CHANCE: f64 = 0.2;

/// What a rehearsal has found; the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsed {
    /// Choices, the default included, without those that are modelled to take more than four times as long as the best.
    pub choices: usize,
    /// Of them, called.
    pub called: usize,
    /// Was there time for all that there is to be found out?
    pub is_complete: bool,
    /// What has won a trial against the default, if anything has, and by how much it is faster.
    pub chosen: Option<(Choice, Gain)>,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Makes a call once, as a choice says.
pub(super) type Play<'p> = &'p mut dyn FnMut(Choice) -> Result<(), CommError>;

/// The same, and what it took. All ranks begin it together.
type Timed<'p> = &'p mut dyn FnMut(Choice) -> Result<Took, CommError>;

/// Calls of one kind, rehearsed by all ranks.
pub(crate) struct Rehearsal<'a> {
    communicator: &'a Communicator,
    /// Everything that rank 0 would try: the default first, and then by what is modelled.
    pub(super) contestants: Vec<(Choice, Entrant)>,
    began: Instant,
    limit_s: f64,
}

impl<'a> Rehearsal<'a> {
    /// `situation`: on rank 0, which alone knows what differs on its links.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub(crate) fn new(
        communicator: &'a Communicator,
        situation: Option<&Situation>,
        limit: Duration,
    ) -> Result<Rehearsal<'a>, CommError> {
        let (began, limit_s) = (Instant::now(), limit.as_secs_f64());
        let all = situation.map_or_else(alone, contestants);
        let contestants = said_by_the_first(communicator, &all)?.unwrap_or_else(alone);
        Ok(Rehearsal { communicator, contestants, began, limit_s })
    }

    /// Is there anything but the default?
    pub(crate) fn has_choice(&self) -> bool {
        self.contestants.len() > 1
    }

    /// A race of everything that there is time for, and trials of what wins it. `level`: on rank 0, of each trial, the error it may make.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn run(self, level: impl FnMut() -> f64, play: Play<'_>) -> Result<Outcome, CommError> {
        let communicator = self.communicator;
        self.run_timed(level, &mut |choice| timed(communicator, choice, &mut *play).map(Took::from))
    }

    /// The same, of calls that whoever makes them has timed.
    fn run_timed(self, mut level: impl FnMut() -> f64, play: Timed<'_>) -> Result<Outcome, CommError> {
        let entrants: Vec<Entrant> = self.contestants.iter().map(|(_, entrant)| *entrant).collect();
        let mut own: Vec<Vec<Took>> = vec![Vec::new(); entrants.len()];
        let finish = race(self.communicator, &entrants, FOR_RACE * self.limit_s, &mut |number| {
            let took = play(self.contestants[number].0)?;
            own[number].push(took);
            Ok(took)
        })?;
        // What the race does not count, as it was there to prepare something, does not count here.
        for (own, counted) in own.iter_mut().zip(&finish.seconds) {
            own.drain(..own.len().saturating_sub(counted.len()));
        }
        let patience = self.patience(&own)?;
        let (shown, is_complete) = match &look_better(&finish, patience.worthwhile())[..] {
            [] if finish.is_enough => (Shown::NothingBetter, finish.is_complete),
            [] => (Shown::Open, false),
            better => {
                let found = self.best_that_endures(better, patience, &mut level, &mut own, &mut *play)?;
                let shown = match found {
                    Some(Some((best, gain))) if finish.is_enough => Shown::Gain(best, gain),
                    Some(Some((best, gain))) => Shown::GainOfFew(best, gain),
                    Some(None) if finish.is_enough => Shown::NoSignificantGain,
                    _ => Shown::Open,
                };
                (shown, finish.is_complete && found.is_some())
            }
        };
        let all_s = as_in_a_job(self.communicator, &own)?;
        let mut seconds = [self.began.elapsed().as_secs_f64()];
        agree(self.communicator, &mut seconds)?;
        let chosen = match shown {
            Shown::Gain(best, gain) | Shown::GainOfFew(best, gain) => Some((self.contestants[best].0, gain)),
            _ => None,
        };
        let (choices, called) = (self.contestants.len(), finish.called);
        let rehearsed = Rehearsed { choices, called, is_complete, chosen, seconds: seconds[0] };
        Ok(Outcome { rehearsed, contestants: self.contestants, all_s, shown })
    }

    /// The first of these that wins a trial against the default and is not late oftener, and by how much it is faster. None inside: there
    /// is none; None: there was no time to find out.
    fn best_that_endures(
        &self,
        better: &[usize],
        patience: Patience,
        level: &mut dyn FnMut() -> f64,
        own: &mut [Vec<Took>],
        play: Timed<'_>,
    ) -> Result<Option<Option<(usize, Gain)>>, CommError> {
        for &candidate in better {
            let mut verdict = Some(Verdict::NoSignificantGain);
            for _ in 0..TRIALS {
                if verdict == Some(Verdict::NoSignificantGain) {
                    verdict = self.try_out(candidate, patience, level, own, &mut *play)?;
                }
            }
            match verdict {
                Some(Verdict::Gain(gain)) if self.endures(candidate, own, &mut *play)? => {
                    return Ok(Some(Some((candidate, gain))));
                }
                // Perhaps the next one is better.
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(Some(None))
    }

    /// What has won its trial is called on, by turns with the default, as long as there is time. Adds this rank's times to `own`.
    fn endures(&self, candidate: usize, own: &mut [Vec<Took>], play: Timed<'_>) -> Result<bool, CommError> {
        let mut all_s: [Vec<f64>; 2] = Default::default();
        for _ in 0..ENDURANCE_CALLS {
            let mut told = Vec::new();
            for contestant in [0, candidate] {
                let took = play(self.contestants[contestant].0)?;
                own[contestant].push(took);
                told.extend(took.told());
            }
            let elapsed_s = self.agree(&mut told)?;
            all_s.iter_mut().zip(lasted(&told)).for_each(|(all_s, seconds)| all_s.push(seconds));
            if elapsed_s >= self.limit_s {
                break;
            }
        }
        Ok(has_endured(&all_s[0], &all_s[1]))
    }

    /// Agrees on what calls took, and on how long it has gone on, in seconds.
    fn agree(&self, told: &mut Vec<f64>) -> Result<f64, CommError> {
        told.push(self.began.elapsed().as_secs_f64());
        agree(self.communicator, told)?;
        Ok(told.pop().unwrap_or(f64::INFINITY))
    }

    /// For how long a trial is there time, with what follows, if calls go on to take what those before have taken? The same on all ranks.
    fn patience(&self, own: &[Vec<Took>]) -> Result<Patience, CommError> {
        let elapsed_s = self.agree(&mut Vec::new())?;
        let made = own.iter().map(Vec::len).sum::<usize>().max(1);
        Ok(Patience::within(|calls| elapsed_s * (1.0 + calls as f64 / made as f64) <= self.limit_s))
    }

    /// A trial of a candidate against the default; None if its time is over first. Adds this rank's times to `own`.
    fn try_out(
        &self,
        candidate: usize,
        patience: Patience,
        level: &mut dyn FnMut() -> f64,
        own: &mut [Vec<Took>],
        play: Timed<'_>,
    ) -> Result<Option<Verdict>, CommError> {
        // The order of its calls need not be a secret: it must be the same on all ranks, as all of them see the same times.
        let mut told = if self.communicator.rank() == 0 { [level()] } else { [0.0] };
        self.communicator.broadcast(&mut told, 0, &CallOptions::default())?;
        let (mut trial, mut random) = (patience.trial(told[0]), Random::new(told[0].to_bits(), 0x7e4e));
        loop {
            let (mut sides, mut told) = (Vec::new(), Vec::new());
            while let Some((side, block)) = trial.next(&mut random) {
                let contestant = if side == Side::Candidate { candidate } else { 0 };
                let took = play(self.contestants[contestant].0)?;
                own[contestant].push(took);
                sides.push((side, block));
                told.extend(took.told());
                if trial.is_between_blocks() {
                    break;
                }
            }
            let elapsed_s = self.agree(&mut told)?;
            sides.iter().zip(lasted(&told)).for_each(|(&(side, block), seconds)| trial.observe(side, block, seconds));
            let is_over = sides.is_empty() || elapsed_s >= self.limit_s;
            if let Some(ended) = ended(self.communicator, &trial, is_over)? {
                return Ok(ended);
            }
        }
    }
}

/// How long calls lasted, of which all have agreed on what they were told.
fn lasted(told: &[f64]) -> impl Iterator<Item = f64> {
    told.as_chunks().0.iter().map(|told| Took::lasted(*told))
}

/// One call, which all ranks begin together; seconds of this one.
pub(super) fn timed(communicator: &Communicator, choice: Choice, play: Play<'_>) -> Result<f64, CommError> {
    begun_together(communicator, || play(choice)).map(|(_, took)| took.as_secs_f64())
}

/// A call that all ranks begin together: when this one has, and what it took.
fn begun_together(
    communicator: &Communicator,
    call: impl FnOnce() -> Result<(), CommError>,
) -> Result<(Instant, Duration), CommError> {
    communicator.barrier(&CallOptions::default())?;
    let began = Instant::now();
    call()?;
    Ok((began, began.elapsed()))
}

/// Has a trial ended, and how? None inside: its time is over. Rank 0 says it: logarithms may differ in the last bit between processors
/// that are not alike, and who ended another block than the others would leave them waiting.
pub(super) fn ended(
    communicator: &Communicator,
    trial: &Trial,
    is_over: bool,
) -> Result<Option<Option<Verdict>>, CommError> {
    const GAIN: f64 = 1.0;
    const NONE: f64 = 2.0;
    const OVER: f64 = 3.0;
    let mut told = match trial.verdict().filter(|_| communicator.rank() == 0) {
        Some(Verdict::Gain(Gain { share, margin, probability })) => [GAIN, share, margin, probability],
        Some(Verdict::NoSignificantGain) => [NONE, 0.0, 0.0, 0.0],
        None => [if is_over { OVER } else { 0.0 }, 0.0, 0.0, 0.0],
    };
    communicator.broadcast(&mut told, 0, &CallOptions::default())?;
    let [ended, share, margin, probability] = told;
    Ok(match ended {
        GAIN => Some(Some(Verdict::Gain(Gain { share, margin, probability }))),
        NONE => Some(Some(Verdict::NoSignificantGain)),
        OVER => Some(None),
        _ => None,
    })
}

/// What rank 0 says, on all ranks; None where it cannot be read.
///
/// # Errors
/// As [`Communicator::broadcast`].
pub(super) fn said_by_the_first<T: Serialize + DeserializeOwned>(
    communicator: &Communicator,
    said: &T,
) -> Result<Option<T>, CommError> {
    // Numbers and lists: nothing in it can fail. If it did, nothing would be said.
    let mut bytes = postcard::to_stdvec(said).unwrap_or_default();
    let mut length = [bytes.len() as i64];
    communicator.broadcast(&mut length, 0, &CallOptions::default())?;
    bytes.resize(length[0].max(0) as usize, 0);
    communicator.broadcast(&mut bytes, 0, &CallOptions::default())?;
    Ok(postcard::from_bytes(&bytes).ok())
}

/// There is nothing to choose from.
fn alone() -> Vec<(Choice, Entrant)> {
    vec![(Choice::Default, Entrant::unmodelled([0; TRAITS]))]
}

/// What may be tried, as the guard has it.
fn contestants(situation: &Situation) -> Vec<(Choice, Entrant)> {
    let default = situation.default;
    let others = situation.arms_within(NEVER_TRIED).into_iter().filter(|arm| *arm != default);
    std::iter::once(default).chain(others).map(|arm| (situation.choice(arm), situation.entrant(arm))).collect()
}

/// The first of a race, as long as they are not the default and ahead by what is worth a change: such a share of the time.
fn look_better(finish: &Finish, worthwhile: f64) -> Vec<usize> {
    let default_s = finish.seconds.first().and_then(|seconds| median(seconds));
    let is_better = |number: &usize| {
        let times = median(&finish.seconds[*number]).zip(default_s).map(|(own_s, default_s)| own_s / default_s);
        *number > 0 && times.is_some_and(|times| times <= 1.0 - worthwhile)
    };
    finish.ranking.iter().copied().take_while(is_better).take(CANDIDATES).collect()
}

/// Is a candidate late no oftener than the default, but for chance, or saves what a change is worth all the same? Of as many calls of both.
/// Where the default is never late, one late call is too many: what it costs is certain, and what others would save is not. That is asked of
/// each of [`LATE`] by itself.
fn has_endured(default_s: &[f64], candidate_s: &[f64]) -> bool {
    let Some(usual_s) = median(default_s) else { return true };
    let not_oftener_late = |times: &f64| {
        let late = |seconds: &[f64]| seconds.iter().filter(|seconds| **seconds > times * usual_s).count() as u64;
        let (own, of_default) = (late(candidate_s), late(default_s));
        own <= of_default || of_default > 0 && binomial_tail(own + of_default, own, 0.5) >= ENDURANCE_CHANCE
    };
    let sum = |seconds: &[f64]| seconds.iter().sum::<f64>();
    LATE.iter().all(not_oftener_late) || sum(candidate_s) <= (1.0 - WORTHWHILE) * sum(default_s)
}

impl Rehearsed {
    /// What a rehearsal finds of calls that somebody makes and times himself, whatever they take of a choice, for a tuner of his own:
    /// it is taught as by [`TunedCalls::rehearse_call`]. `taught`: on rank 0, that tuner and what it chooses from. `play`: what counts as a
    /// call of the choice on this rank; all ranks begin it together.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and those of `play`.
    pub fn of(
        communicator: &Communicator,
        mut taught: Option<(&mut Tuner, &Situation)>,
        limit: Duration,
        play: &mut dyn FnMut(Choice) -> Result<Took, CommError>,
    ) -> Result<Rehearsed, CommError> {
        let situation = taught.as_ref().map(|(_, situation)| *situation);
        let rehearsal = Rehearsal::new(communicator, situation, limit)?;
        if !rehearsal.has_choice() {
            return Ok(Rehearsed::without_choice());
        }
        let level = || taught.as_mut().map_or(0.0, |(tuner, _)| tuner.next_level());
        let outcome = rehearsal.run_timed(level, play)?;
        if let Some((tuner, situation)) = taught {
            outcome.teach(tuner, situation, Tuner::rehearsed);
        }
        Ok(outcome.rehearsed)
    }

    /// There is nothing but the default.
    fn without_choice() -> Rehearsed {
        Rehearsed { choices: 1, called: 0, is_complete: true, chosen: None, seconds: 0.0 }
    }
}

impl TunedCalls<'_> {
    /// Makes all-reduces of this kind before the job, in place on `data`, which holds anything afterwards: everything that can be
    /// chosen takes part in a race (successive halving), and what wins it meets the default in a trial, as in a job. What wins that stands
    /// from here on (or when they meet next, where a rank lacks what was found before). All ranks call it with the same arguments, before
    /// they make such calls; it takes about `limit` at most.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn rehearse_all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        reduction: Reduction,
        call: &Call,
        limit: Duration,
    ) -> Result<Rehearsed, CommError> {
        let bytes = size_of_val(data);
        let play = |communicator: &Communicator, options: &CallOptions, program: Option<&VerifiedProgram>| match program
        {
            Some(program) => communicator.run_program_in_place(program, data, reduction, options),
            None => communicator.all_reduce(data, reduction, options),
        };
        self.rehearse_call(CollectiveKind::AllReduce, bytes, call, limit, play)
    }

    /// The same of any call: `play` makes it once with these options, or by this program, if there is one. `bytes` as those of [`State`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and those of `play`.
    pub fn rehearse_call(
        &mut self,
        collective: CollectiveKind,
        bytes: usize,
        call: &Call,
        limit: Duration,
        mut play: impl FnMut(&Communicator, &CallOptions, Option<&VerifiedProgram>) -> Result<(), CommError>,
    ) -> Result<Rehearsed, CommError> {
        // The job's first call finds its place.
        self.place(collective, bytes, call);
        self.made.reserve(Schedule::LENGTH_MAX);
        let state = self.state(collective, bytes, call);
        let mut clock = CommonClock::default();
        self.rehearse(&state, limit, |tuned, choice| {
            clock.compare_now_and_then(tuned.communicator)?;
            let (options, program) = tuned.played(choice, collective, &CallOptions::default());
            let call = || play(tuned.communicator, &options, program);
            let (began, took) = begun_together(tuned.communicator, call)?;
            Ok(clock.took(tuned.communicator, began, took))
        })
    }

    /// `play`: what it took on this rank; all ranks begin it together.
    fn rehearse(
        &mut self,
        state: &State,
        limit: Duration,
        mut play: impl FnMut(&Self, Choice) -> Result<Took, CommError>,
    ) -> Result<Rehearsed, CommError> {
        let context = state.context();
        if let Some(leader) = &mut self.leader {
            leader.situations.entry(context).or_insert_with(|| typical_situation(&self.model, state));
        }
        let situation = self.leader.as_ref().and_then(|leader| situation_of(&leader.situations, &context).cloned());
        let rehearsal = Rehearsal::new(self.communicator, situation.as_ref(), limit)?;
        if !rehearsal.has_choice() {
            return Ok(Rehearsed::without_choice());
        }
        // Who plays needs all but the leader.
        let mut leader = self.leader.take();
        let level = || leader.as_mut().map_or(0.0, |leader| leader.learning.tuner.next_level());
        let outcome = rehearsal.run_timed(level, &mut |choice| play(self, choice));
        self.leader = leader;
        let outcome = outcome?;
        let next = match (&mut self.leader, &situation) {
            (Some(leader), Some(situation)) => Some(leader.rehearsed(self.policies.active(), situation, &outcome)),
            _ => None,
        };
        self.policies.spread(self.communicator, next.as_ref(), &mut [])?;
        self.kinds.forget();
        if let Some(seconds) = outcome.standing_s() {
            self.kinds.takes(*state, seconds);
            if self.meetings.times_others(state.bytes) {
                self.glances.begin_early(self.glance_s());
            }
        }
        // Or it would be done when they meet first, while somebody waits.
        self.clock.compare(self.communicator)?;
        Ok(outcome.rehearsed)
    }
}

impl Leader {
    /// Learns from a rehearsal; the version that follows. `active`: the one in force.
    fn rehearsed(&mut self, active: u64, situation: &Situation, outcome: &Outcome) -> Version {
        outcome.teach(&mut self.learning.tuner, situation, Tuner::rehearsed);
        if active < self.published.number {
            // Somebody lacks it, and versions follow each other: it is sent again, and what was learned goes into the next one.
            return self.published.clone();
        }
        let stand = self.situations.keys().map(|context| Plays::always(*context, self.learning.stands(context)));
        self.published = Version::new(self.published.number + 1, stand);
        self.published.clone()
    }
}

#[cfg(test)]
mod tests;
