//! Before a job: calls that are made for their times only, while nobody waits for their results.
//!
//! What a call is made with can be found out in the job only as fast as the ranks learn of each other's times, which takes longer than
//! a short call itself, and only as far as the default's time pays for what is tried. Before the job, a tenth of a second is thousands of
//! short calls, and nothing is lost by bad ones.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Element, Reduction, VerifiedProgram};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::Call;
use paceline_tune::guard::NEVER_TRIED;
use paceline_tune::main_effects::{Entrant, TRAITS};
use paceline_tune::statistics::median;
use paceline_tune::trial::{Gain, Side, Trial, Verdict, WORTHWHILE};
use paceline_tune::{Choice, Outcome as Shown, Random, Schedule, Situation, State, Tuner};

use super::learning::{situation_of, typical_situation};
use super::policies::{Plays, Version};
use super::race::{Finish, agree, race};
use super::{Leader, TunedCalls};

/// The race for the best may take such a share of the time; the rest is for the trial of what has won it.
const FOR_RACE: f64 = 0.6;

/// Trials of what has won the race, until one finds a gain: of calls that vary much, 32 blocks are often not sure. Each is one of the
/// job's trials, which together err as seldom as they may.
const TRIALS: usize = 3;

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
type Play<'p> = &'p mut dyn FnMut(Choice) -> Result<(), CommError>;

/// Calls of one kind, rehearsed by all ranks.
pub(crate) struct Rehearsal<'a> {
    communicator: &'a Communicator,
    /// Everything that rank 0 would try: the default first, and then by what is modelled.
    contestants: Vec<(Choice, Entrant)>,
    began: Instant,
    limit_s: f64,
}

/// What came out.
pub(crate) struct Outcome {
    pub(crate) rehearsed: Rehearsed,
    contestants: Vec<(Choice, Entrant)>,
    /// By contestant, seconds of its calls as a job takes them: the least of all ranks.
    least_s: Vec<Vec<f64>>,
    found: Found,
}

/// By contestant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    Gain(usize, Gain),
    NoSignificantGain,
    Nothing,
    Open,
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
        // Numbers only: nothing in it can fail. If it did, there would be nothing to choose from.
        let mut bytes = postcard::to_stdvec(&all).unwrap_or_default();
        let mut length = [bytes.len() as i64];
        communicator.broadcast(&mut length, 0, &CallOptions::default())?;
        bytes.resize(length[0].max(0) as usize, 0);
        communicator.broadcast(&mut bytes, 0, &CallOptions::default())?;
        let contestants = postcard::from_bytes(&bytes).unwrap_or_else(|_| alone());
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
    pub(crate) fn run(self, mut level: impl FnMut() -> f64, play: Play<'_>) -> Result<Outcome, CommError> {
        let entrants: Vec<Entrant> = self.contestants.iter().map(|(_, entrant)| *entrant).collect();
        let mut own_s: Vec<Vec<f64>> = vec![Vec::new(); entrants.len()];
        let finish = race(self.communicator, &entrants, FOR_RACE * self.limit_s, &mut |number| {
            let seconds = self.timed(self.contestants[number].0, &mut *play)?;
            own_s[number].push(seconds);
            Ok(seconds)
        })?;
        // What the race does not count, as it was there to prepare something, does not count here.
        for (own_s, counted) in own_s.iter_mut().zip(&finish.seconds) {
            own_s.drain(..own_s.len().saturating_sub(counted.len()));
        }
        let (found, is_complete) = match looks_better(&finish) {
            None if finish.is_enough => (Found::Nothing, finish.is_complete),
            None => (Found::Open, false),
            Some(best) => {
                let mut verdict = Some(Verdict::NoSignificantGain);
                for _ in 0..TRIALS {
                    if verdict == Some(Verdict::NoSignificantGain) {
                        verdict = self.try_out(best, &mut level, &mut own_s, &mut *play)?;
                    }
                }
                let found = match verdict {
                    Some(Verdict::Gain(gain)) => Found::Gain(best, gain),
                    Some(Verdict::NoSignificantGain) if finish.is_enough => Found::NoSignificantGain,
                    _ => Found::Open,
                };
                (found, finish.is_complete && verdict.is_some())
            }
        };
        let least_s = self.least(own_s)?;
        let mut seconds = [self.began.elapsed().as_secs_f64()];
        agree(self.communicator, &mut seconds)?;
        let chosen = match found {
            Found::Gain(best, gain) => Some((self.contestants[best].0, gain)),
            _ => None,
        };
        let (choices, called) = (self.contestants.len(), finish.called);
        let rehearsed = Rehearsed { choices, called, is_complete, chosen, seconds: seconds[0] };
        Ok(Outcome { rehearsed, contestants: self.contestants, least_s, found })
    }

    /// One call, which all ranks begin together; seconds of this one.
    fn timed(&self, choice: Choice, play: Play<'_>) -> Result<f64, CommError> {
        self.communicator.barrier(&CallOptions::default())?;
        let began = Instant::now();
        play(choice)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Of each call the least time of all ranks: whoever came last has waited for nobody, and so a job takes it.
    fn least(&self, mut own_s: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, CommError> {
        let mut least_s: Vec<f64> = own_s.concat();
        self.communicator.all_reduce(&mut least_s, Reduction::Min, &CallOptions::default())?;
        own_s.iter_mut().flatten().zip(least_s).for_each(|(seconds, least_s)| *seconds = least_s);
        Ok(own_s)
    }

    /// A trial of a candidate against the default; None if its time is over first. Adds this rank's times to `own_s`.
    fn try_out(
        &self,
        candidate: usize,
        level: &mut dyn FnMut() -> f64,
        own_s: &mut [Vec<f64>],
        play: Play<'_>,
    ) -> Result<Option<Verdict>, CommError> {
        // The order of its calls need not be a secret: it must be the same on all ranks, as all of them see the same times.
        let mut told = if self.communicator.rank() == 0 { [level()] } else { [0.0] };
        self.communicator.broadcast(&mut told, 0, &CallOptions::default())?;
        let (mut trial, mut random) = (Trial::new(told[0]), Random::new(told[0].to_bits(), 0x7e4e));
        loop {
            let (mut sides, mut agreed) = (Vec::new(), Vec::new());
            while let Some((side, block)) = trial.next(&mut random) {
                let contestant = if side == Side::Candidate { candidate } else { 0 };
                let seconds = self.timed(self.contestants[contestant].0, &mut *play)?;
                own_s[contestant].push(seconds);
                sides.push((side, block));
                agreed.push(seconds);
                if trial.is_between_blocks() {
                    break;
                }
            }
            agreed.push(self.began.elapsed().as_secs_f64());
            agree(self.communicator, &mut agreed)?;
            sides.iter().zip(&agreed).for_each(|(&(side, block), &seconds)| trial.observe(side, block, seconds));
            if let Some(ended) = self.ended(&trial, sides.is_empty() || agreed[sides.len()] >= self.limit_s)? {
                return Ok(ended);
            }
        }
    }

    /// Has a trial ended, and how? None inside: its time is over. Rank 0 says it: logarithms may differ in the last bit between processors
    /// that are not alike, and who ended another block than the others would leave them waiting.
    fn ended(&self, trial: &Trial, is_over: bool) -> Result<Option<Option<Verdict>>, CommError> {
        const GAIN: f64 = 1.0;
        const NONE: f64 = 2.0;
        const OVER: f64 = 3.0;
        let mut told = match trial.verdict().filter(|_| self.communicator.rank() == 0) {
            Some(Verdict::Gain(Gain { share, margin, probability })) => [GAIN, share, margin, probability],
            Some(Verdict::NoSignificantGain) => [NONE, 0.0, 0.0, 0.0],
            None => [if is_over { OVER } else { 0.0 }, 0.0, 0.0, 0.0],
        };
        self.communicator.broadcast(&mut told, 0, &CallOptions::default())?;
        let [ended, share, margin, probability] = told;
        Ok(match ended {
            GAIN => Some(Some(Verdict::Gain(Gain { share, margin, probability }))),
            NONE => Some(Some(Verdict::NoSignificantGain)),
            OVER => Some(None),
            _ => None,
        })
    }
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

/// The winner of a race, if it is not the default and ahead by what a change is worth.
fn looks_better(finish: &Finish) -> Option<usize> {
    let best = *finish.ranking.first()?;
    let (best_s, default_s) = (median(&finish.seconds[best])?, median(finish.seconds.first()?)?);
    (best > 0 && best_s <= (1.0 - WORTHWHILE) * default_s).then_some(best)
}

/// How a tuner takes in what was measured, by arm, and what that has shown.
type Tell = fn(&mut Tuner, &Situation, &[(usize, &[f64])], Shown);

impl Outcome {
    /// Tells a tuner, on rank 0, whose job makes the same calls in the same way (`Tuner::rehearsed`), or beside others
    /// (`Tuner::rehearsed_alone`).
    pub(crate) fn teach(&self, tuner: &mut Tuner, situation: &Situation, tell: Tell) {
        let arm_of = |contestant: usize| situation.arm_of(self.contestants[contestant].0);
        let outcome = match self.found {
            Found::Gain(best, gain) => Shown::Gain(arm_of(best), gain),
            Found::NoSignificantGain => Shown::NoSignificantGain,
            Found::Nothing => Shown::NothingBetter,
            Found::Open => Shown::Open,
        };
        let seconds = self.least_s.iter().enumerate();
        let measured: Vec<(usize, &[f64])> = seconds.map(|(number, seconds)| (arm_of(number), &seconds[..])).collect();
        tell(tuner, situation, &measured, outcome);
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
        self.rehearse(&state, limit, |tuned, choice| {
            let (options, program) = tuned.played(choice, collective, &CallOptions::default());
            play(tuned.communicator, &options, program)
        })
    }

    fn rehearse(
        &mut self,
        state: &State,
        limit: Duration,
        mut play: impl FnMut(&Self, Choice) -> Result<(), CommError>,
    ) -> Result<Rehearsed, CommError> {
        let context = state.context();
        if let Some(leader) = &mut self.leader {
            leader.situations.entry(context).or_insert_with(|| typical_situation(&self.model, state));
        }
        let situation = self.leader.as_ref().and_then(|leader| situation_of(&leader.situations, &context).cloned());
        let rehearsal = Rehearsal::new(self.communicator, situation.as_ref(), limit)?;
        if !rehearsal.has_choice() {
            return Ok(Rehearsed { choices: 1, called: 0, is_complete: true, chosen: None, seconds: 0.0 });
        }
        // Who plays needs all but the leader.
        let mut leader = self.leader.take();
        let level = || leader.as_mut().map_or(0.0, |leader| leader.learning.tuner.next_level());
        let outcome = rehearsal.run(level, &mut |choice| play(self, choice));
        self.leader = leader;
        let outcome = outcome?;
        let next = match (&mut self.leader, &situation) {
            (Some(leader), Some(situation)) => Some(leader.rehearsed(self.policies.active(), situation, &outcome)),
            _ => None,
        };
        self.policies.spread(self.communicator, next.as_ref(), &mut [])?;
        self.kinds.forget();
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
mod tests {
    use paceline_tune::Standing;
    use paceline_tune::trial::ERROR;

    use super::*;
    use crate::on_ranks::on_ranks;
    use crate::tuned::tests::CALL;

    const LIMIT: Duration = Duration::from_millis(400);

    /// With so many channels, a call takes a third of the default's time; all else takes more than that.
    fn play(tuned: &TunedCalls<'_>, choice: Choice, fast: Option<u8>) -> Result<(), CommError> {
        let takes_us = match choice {
            Choice::Default => 2700,
            Choice::Play(action) if Some(action.channels) == fast => 900,
            Choice::Play(_) => 3600,
        };
        std::thread::sleep(Duration::from_micros(takes_us));
        tuned.all_reduce_as(Choice::Default, &mut [1.0f32; 64], Reduction::Sum, &CallOptions::default())
    }

    #[test]
    fn what_is_faster_wins_and_is_in_force_on_all_ranks() {
        on_ranks(2, |communicator| {
            let mut tuned = TunedCalls::new(&communicator, 1);
            let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
            let all = contestants(&typical_situation(&tuned.model, &state).unwrap());
            let channels = all.iter().find_map(|(choice, _)| match choice {
                Choice::Play(action) => Some(action.channels),
                Choice::Default => None,
            });
            // Of calls that nobody learns from, what stands is asked for once, and again when something else does.
            let plain = CallOptions::default();
            let place = tuned.place(CollectiveKind::AllReduce, 64 << 10, &CALL);
            assert_eq!(tuned.stands(place, &plain), Choice::Default);
            let found = tuned.rehearse(&state, 10 * LIMIT, |tuned, choice| play(tuned, choice, channels)).unwrap();
            let (choice, gain) = found.chosen.expect("two thirds are a gain");
            // On a busy machine sleeps end late, whichever is chosen.
            assert!(gain.share > 0.0, "{gain:?}");
            assert!(matches!(choice, Choice::Play(action) if Some(action.channels) == channels), "{choice:?}");
            assert_eq!(tuned.policies.current().choice(state.context().key(), Some(0)), choice);
            assert_eq!(tuned.stands(place, &plain), choice);
            assert_eq!(tuned.policies.active(), 1);
            if let Some(tuner) = tuned.tuner() {
                let standing = tuner.courses().next().unwrap().1.standing();
                assert!(matches!(standing, Standing::Chosen(stands, _) if stands == choice), "{standing:?}");
            }
            assert!(found.called > 1 && found.called <= found.choices, "{found:?}");
        });
    }

    /// Rank 1 cannot read the first version: it is sent again before the next one follows it.
    #[test]
    fn what_somebody_lacks_comes_first() {
        on_ranks(2, |communicator| {
            let mut tuned = TunedCalls::new(&communicator, 1);
            let read = tuned.policies.read;
            if communicator.rank() == 1 {
                tuned.policies.read = |_| None;
            }
            let rehearse = |tuned: &mut TunedCalls<'_>, bytes: usize| {
                let state = tuned.state(CollectiveKind::AllReduce, bytes, &CALL);
                tuned.rehearse(&state, LIMIT, |tuned, choice| play(tuned, choice, None)).unwrap();
                tuned.policies.active()
            };
            assert_eq!(rehearse(&mut tuned, 64 << 10), 0);
            tuned.policies.read = read;
            assert_eq!([64 << 10, 1 << 20].map(|bytes| rehearse(&mut tuned, bytes)), [1, 2]);
        });
    }

    #[test]
    fn where_nothing_is_faster_the_default_stays_and_time_is_kept() {
        on_ranks(2, |communicator| {
            let mut tuned = TunedCalls::new(&communicator, 1);
            let state = tuned.state(CollectiveKind::AllReduce, 1 << 20, &CALL);
            let found = tuned.rehearse(&state, 3 * LIMIT, |tuned, choice| play(tuned, choice, None)).unwrap();
            assert_eq!(found.chosen, None, "{found:?}");
            assert!(found.seconds < 30.0 * LIMIT.as_secs_f64(), "{found:?}");
            assert_eq!(tuned.policies.current().choice(state.context().key(), Some(0)), Choice::Default);
        });
    }

    /// Rank 1 takes 3 ms longer over everything. Calls take as long as on it, and a tuner learns what rank 0 has seen, as in a job; the
    /// trial's calls count for that, however few the race has come to.
    #[test]
    fn a_tuner_is_taught_the_least_time_of_all_ranks() {
        let taught = on_ranks(2, |communicator| {
            let tuned = TunedCalls::new(&communicator, 1);
            let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
            let situation = typical_situation(&tuned.model, &state).unwrap();
            let rehearsal = Rehearsal::new(&communicator, Some(&situation), LIMIT).unwrap();
            let late_us = if communicator.rank() == 1 { 3000 } else { 0 };
            let mut play = |choice: Choice| -> Result<(), CommError> {
                let takes_us = if choice == Choice::Default { 1000 } else { 200 };
                std::thread::sleep(Duration::from_micros(takes_us + late_us));
                Ok(())
            };
            rehearsal.run(|| ERROR, &mut play).unwrap().least_s
        });
        assert_eq!(taught[0], taught[1]);
        let default_s = &taught[0][0];
        assert!(default_s.len() > 2 && median(default_s).is_some_and(|seconds| seconds < 3e-3), "{default_s:?}");
    }

    #[test]
    fn a_world_of_one_has_nothing_to_rehearse() {
        let communicator = paceline_comm::Communicator::solo().unwrap();
        let mut tuned = TunedCalls::new(&communicator, 1);
        let found = tuned.rehearse_all_reduce(&mut [0.0f32; 16], Reduction::Sum, &CALL, LIMIT).unwrap();
        assert_eq!(found.chosen, None, "{found:?}");
    }
}
