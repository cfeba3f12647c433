//! Before a job: iterations that are made for their times only, while nobody waits for their results.
//!
//! What a call takes alone is not what it adds to an iteration. So each kind of call has a race of its own first, which says what is worth
//! a try ([`TunedCalls::shortlist_call`]); then all of them race at once, by the time of the iteration; and what wins that meets the default in a
//! trial of iterations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, VerifiedProgram};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::Call;
use paceline_tune::guard::NEVER_TRIED;
use paceline_tune::main_effects::{Entrant, TRAITS};
use paceline_tune::statistics::median;
use paceline_tune::together::{Picks, Together};
use paceline_tune::trial::{Gain, Side, Trial, Verdict};
use paceline_tune::whole::Found;
use paceline_tune::{Action, Choice, Context, Family, Random, Situation};

use super::TunedCalls;
use super::learning::{situation_of, typical_situation};
use super::race::{agree, race};
use super::rehearsal::{Rehearsal, ended, said_by_the_first, timed};

/// Choices of a call that take part besides the default, at most.
const CHOICES_MAX: usize = 11;
/// What takes so many times as long as the default alone is not worth a try.
const HOPELESS: f64 = 2.0;
/// Until such a share of the time is over what is the same for all calls, or all of a collective, may race, and until another one all calls at once; then
/// what has won is tried. If that is in vain and there is time, all race once more.
const FOR_ALIKE: f64 = 0.25;
const FOR_RACES: [f64; 2] = [0.6, 0.85];
/// Iterations until what they prepare is there, and those that tell how long one takes.
const WARM_UP: usize = 2;
const USUAL: usize = 3;
/// No iteration is taken to be shorter, and no race has more of them.
const LEAST_S: f64 = 1e-6;
const ITERATIONS_MAX: f64 = 20_000.0;
/// Iterations of which each choice should have so many.
const EACH: usize = 12;
/// What is the same for all calls, or all of a collective, is where the others begin, if iterations with it take so much less.
const BEGINS: f64 = 0.005;
/// Short calls are made so long in a row, as often as they are in an iteration.
const ROW_S: f64 = 2e-3;

/// The number of "each call's own default" among algorithms: no program's, and no collective's.
const OF_ALL: u8 = 63;

/// A contestant, and what its calls take.
pub(super) type Alike = (Entrant, Vec<(Context, Choice)>);

/// What a call may be made with; the default first.
pub(super) type Shortlists = BTreeMap<Context, Vec<Choice>>;

/// A job whose iterations can be rehearsed. Every rank of the world has one.
pub trait Iterations<'a> {
    /// All ranks that an iteration waits for.
    fn world(&self) -> &Communicator;

    /// This rank's calls, by communicator. What the world's first rank has no part in keeps the default.
    fn tuned(&mut self) -> Vec<&mut TunedCalls<'a>>;

    /// Makes an iteration once with these calls, which all ranks begin together; seconds of this rank.
    ///
    /// # Errors
    /// Those of the calls.
    fn iteration(&mut self) -> Result<f64, CommError>;
}

/// What rehearsed iterations have shown; the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsedIterations {
    /// Kinds of calls that have a choice.
    pub contexts: usize,
    /// Of them, those that take something else than the default from here on, and by how much that shortens iterations. None: nothing does.
    pub chosen: Option<(usize, Gain)>,
    /// Was there time to find that out?
    pub is_complete: bool,
    /// Iterations that were made.
    pub iterations: usize,
    /// Seconds that they took.
    pub seconds: f64,
}

/// Finds what shortens the iterations of a job, in about so much time: a race of what was put on a shortlist of each kind of calls, and
/// a trial of what wins. What wins that stands from here on in all calls, and is watched by the time of the iteration; where nothing does, the
/// default. If the time is over before that is known, calls are learned from in the job. All ranks call it at the same place, after
/// [`TunedCalls::shortlist_call`] of each kind; the calls are those of [`TunedCalls::by_iterations`]. Of `limit`, that of the first rank counts.
///
/// # Errors
/// Those of the iterations; what the first rank says cannot be read.
pub fn rehearse_iterations<'a>(
    job: &mut dyn Iterations<'a>,
    limit: Duration,
) -> Result<RehearsedIterations, CommError> {
    let began = Instant::now();
    let limit_s = said(job, &limit.as_secs_f64())?;
    let mut rehearsed = Rehearsed { began, limit_s, iterations: 0, usual_s: 0.0, lists: Vec::new() };
    let shown = rehearsed.run(job);
    // Also after an error: whoever goes on goes on with what stands.
    job.tuned().into_iter().for_each(|tuned| tuned.play(None));
    let (contexts, won) = (rehearsed.lists.len(), shown?);
    let chosen = won.as_ref().and_then(|won| won.as_ref().map(|(found, gain)| (found.len(), *gain)));
    if let Some(won) = &won {
        for tuned in job.tuned() {
            tuned.stand_by_iterations(won.as_ref().map(|(found, gain)| (found, *gain)))?;
        }
    }
    let (is_complete, seconds) = (won.is_some(), rehearsed.elapsed_s(job)?);
    Ok(RehearsedIterations { contexts, chosen, is_complete, iterations: rehearsed.iterations, seconds })
}

/// What rank 0 has on its lists, each context once.
fn lists_of(job: &mut dyn Iterations<'_>) -> Vec<(Context, Vec<Choice>)> {
    let mut all = Shortlists::new();
    for tuned in job.tuned() {
        all.extend(tuned.shortlists.iter().map(|(context, list)| (*context, list.clone())));
    }
    all.into_iter().collect()
}

/// What may be the same for many calls, by contestant, with all contexts that have it: the default first, then what is the same for all calls, and then for
/// those of each collective.
fn alike_of(job: &mut dyn Iterations<'_>) -> Vec<Alike> {
    let tuned = job.tuned();
    let leaders = tuned.iter().filter_map(|tuned| tuned.leader.as_ref());
    let all: Vec<&Situation> = leaders.flat_map(|leader| leader.situations.values().flatten()).collect();
    let kinds = [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];
    let of_kinds = kinds.into_iter().flat_map(|kind| alike_of_kind(&all, kind));
    let default = (Entrant::unmodelled([0; TRAITS]), Vec::new());
    std::iter::once(default).chain(alike_in_all(&all)).chain(of_kinds).collect()
}

/// What all calls can have at once: each keeps the algorithm that it has by default, with the same protocol, lanes and threads, and with chunks of the same
/// length, or of the length nearest to that.
pub(super) fn alike_in_all(all: &[&Situation]) -> Vec<Alike> {
    let own = |it: &&Situation| {
        let default = it.arms[it.default].action.family.algorithm;
        let actions = it.arms.iter().map(|arm| arm.action);
        actions.filter(|action| action.family.algorithm == default).collect::<Vec<Action>>()
    };
    let of_contexts: Vec<(&Situation, Vec<Action>)> = all.iter().map(|it| (*it, own(it))).collect();
    let alike = |action: &Action| Action { family: Family { algorithm: OF_ALL, ..action.family }, ..*action };
    let wished: BTreeSet<Action> = of_contexts.iter().flat_map(|(_, actions)| actions.iter().map(alike)).collect();
    let found = |wish: &Action| -> Vec<(Context, Choice)> {
        let of_context = |(situation, actions): &(&Situation, Vec<Action>)| {
            let chunks_apart = |it: &&Action| it.chunk_log2.abs_diff(wish.chunk_log2);
            let same = actions.iter().filter(|it| Action { chunk_log2: wish.chunk_log2, ..alike(it) } == *wish);
            let choice = Choice::Play(*same.min_by_key(chunks_apart)?);
            (situation.arm_of(choice) != situation.default).then_some((situation.context, choice))
        };
        of_contexts.iter().filter_map(of_context).collect()
    };
    let contestants = wished.iter().map(|wish| (Entrant::unmodelled(wish.traits()), found(wish)));
    contestants.filter(|(_, found)| found.len() > 1).collect()
}

/// Of each choice of the largest calls of a collective, all contexts that have it.
fn alike_of_kind(all: &[&Situation], kind: CollectiveKind) -> Vec<Alike> {
    let calls: Vec<&&Situation> = all.iter().filter(|it| it.state.collective == kind).collect();
    let Some(largest) = calls.iter().max_by_key(|it| it.state.bytes) else { return Vec::new() };
    let of = |arm: usize| {
        let choice = largest.choice(arm);
        let has_it = |it: &&&&Situation| it.arm_of(choice) != it.default;
        let found: Vec<(Context, Choice)> = calls.iter().filter(has_it).map(|it| (it.context, choice)).collect();
        // Those that are alike in everything but the collective are none of each other's kin.
        let mut traits = largest.entrant(arm).traits;
        traits[0] = traits[0].wrapping_add(64 * (kind as u8 + 1));
        (Entrant::unmodelled(traits), found)
    };
    let others = largest.arms_within(NEVER_TRIED).into_iter().filter(|arm| *arm != largest.default);
    others.map(of).filter(|(_, found)| found.len() > 1).collect()
}

/// What the first rank says.
fn said<T: serde::Serialize + serde::de::DeserializeOwned>(job: &dyn Iterations<'_>, said: &T) -> Result<T, CommError> {
    let world = job.world();
    said_by_the_first(world, said)?.ok_or_else(|| CommError::Usage {
        rank: world.rank(),
        host: world.host(world.rank()).to_owned(),
        operation: "rehearsal of iterations".into(),
        what: "what rank 0 says cannot be read: run the same program on all hosts".to_owned(),
    })
}

struct Rehearsed {
    began: Instant,
    limit_s: f64,
    iterations: usize,
    /// What one takes with the default.
    usual_s: f64,
    /// What the calls may be made with, on all ranks the same.
    lists: Vec<(Context, Vec<Choice>)>,
}

/// What has won a trial, and by how much. None: nothing is better than the default.
type Won = Option<(Found, Gain)>;

impl Rehearsed {
    /// Races and trials, until one finds a gain or the time is over; None: nobody knows.
    fn run(&mut self, job: &mut dyn Iterations<'_>) -> Result<Option<Won>, CommError> {
        let is_first = job.world().rank() == 0;
        let (lists, alike) = if is_first { (lists_of(job), alike_of(job)) } else { Default::default() };
        self.lists = said(job, &lists)?;
        self.lists.retain(|(_, choices)| choices.len() > 1);
        let alike = said(job, &alike)?;
        if self.lists.is_empty() {
            return Ok(None);
        }
        self.warm_up(job)?;
        self.race_alike(job, &alike)?;
        let mut known = None;
        for until in FOR_RACES {
            let Some(winners) = self.race(job, until)? else { break };
            let won = self.found(&winners);
            if won.is_empty() {
                known = Some(None);
                continue;
            }
            match self.trial(job, &won)? {
                Some(Verdict::Gain(gain)) => return Ok(Some(Some((won, gain)))),
                Some(Verdict::NoSignificantGain) => known = Some(None),
                None => break,
            }
        }
        Ok(known)
    }

    /// As all ranks agree.
    fn elapsed_s(&self, job: &dyn Iterations<'_>) -> Result<f64, CommError> {
        let mut elapsed = [self.began.elapsed().as_secs_f64()];
        agree(job.world(), &mut elapsed)?;
        Ok(elapsed[0])
    }

    /// What these numbers choose, but for the default.
    fn found(&self, picks: &[usize]) -> Found {
        let chosen =
            self.lists.iter().zip(picks).filter_map(|((context, list), pick)| Some((*context, *list.get(*pick)?)));
        chosen.filter(|(_, choice)| *choice != Choice::Default).collect()
    }

    /// An iteration whose calls take this; seconds of the slowest rank.
    fn iteration(&mut self, job: &mut dyn Iterations<'_>, found: &Found) -> Result<f64, CommError> {
        let mut seconds = [self.own_iteration(job, found)?];
        agree(job.world(), &mut seconds)?;
        Ok(seconds[0])
    }

    /// The same; seconds of this rank.
    fn own_iteration(&mut self, job: &mut dyn Iterations<'_>, found: &Found) -> Result<f64, CommError> {
        job.tuned().into_iter().for_each(|tuned| tuned.play(Some(found)));
        self.iterations += 1;
        job.iteration()
    }

    /// The default, until what it prepares is there.
    fn warm_up(&mut self, job: &mut dyn Iterations<'_>) -> Result<(), CommError> {
        let mut all_s = Vec::new();
        for _ in 0..WARM_UP + USUAL {
            all_s.push(self.iteration(job, &Found::new())?);
        }
        self.usual_s = median(&all_s[WARM_UP..]).unwrap_or(self.limit_s);
        Ok(())
    }

    /// What is the same for all calls, or all of a collective: they are in each other's way less than what differs from call to call. What wins is where
    /// these calls begin.
    fn race_alike(&mut self, job: &mut dyn Iterations<'_>, alike: &[Alike]) -> Result<(), CommError> {
        if alike.len() < 2 {
            return Ok(());
        }
        let entrants: Vec<Entrant> = alike.iter().map(|(entrant, _)| *entrant).collect();
        let found: Vec<Found> = alike.iter().map(|(_, found)| found.iter().copied().collect()).collect();
        let limit_s = FOR_ALIKE * self.limit_s - self.elapsed_s(job)?;
        let world = job.world().clone();
        let finish = race(&world, &entrants, limit_s, &mut |number| self.own_iteration(job, &found[number]))?;
        let of = |number: usize| median(&finish.seconds[number]);
        let best = finish.ranking.iter().copied().find(|number| *number > 0);
        let is_ahead = |best: &usize| of(*best).zip(of(0)).is_some_and(|(own, usual)| own < (1.0 - BEGINS) * usual);
        let first = said(job, &best.filter(is_ahead))?;
        for (context, choice) in first.and_then(|first| found.get(first)).into_iter().flatten() {
            if let Some((_, list)) = self.lists.iter_mut().find(|(other, _)| other == context) {
                list.retain(|other| other != choice);
                list.insert(0, *choice);
            }
        }
        Ok(())
    }

    /// All calls at once, until such a share of the time is over; who has won, on all ranks the same: rank 0 says it, as logarithms may differ
    /// in the last bit. None: there was no time for all heats.
    fn race(&mut self, job: &mut dyn Iterations<'_>, until: f64) -> Result<Option<Picks>, CommError> {
        let until_s = until * self.limit_s;
        // By all that an iteration takes here: the ranks agree on its time, too.
        let mut each_s = self.usual_s.max(self.elapsed_s(job)? / self.iterations.max(1) as f64).max(LEAST_S);
        let affordable = ((until_s - self.elapsed_s(job)?) / each_s).clamp(0.0, ITERATIONS_MAX) as usize;
        // With few iterations few choices are compared, those first that are best alone.
        let most = (affordable / EACH).clamp(2, CHOICES_MAX + 1);
        self.lists.iter_mut().for_each(|(_, list)| list.truncate(most));
        let counts: Vec<usize> = self.lists.iter().map(|(_, list)| list.len()).collect();
        let mut together = Together::new(&counts, self.iterations as u64);
        while together.heats() > 0 {
            let began_s = self.elapsed_s(job)?;
            let iterations = ((until_s - began_s) / each_s / f64::from(together.heats())).clamp(0.0, ITERATIONS_MAX);
            let heat = said(job, &together.heat(iterations as usize))?;
            let mut seconds = Vec::with_capacity(heat.len());
            for picks in &heat {
                let found = self.found(picks);
                seconds.push(self.iteration(job, &found)?);
            }
            together.observe(&heat, &seconds);
            let now_s = self.elapsed_s(job)?;
            each_s = ((now_s - began_s) / heat.len().max(1) as f64).max(LEAST_S);
            if now_s > self.limit_s {
                return Ok(None);
            }
        }
        said(job, &together.winners()).map(Some)
    }

    /// What has won against the default, in iterations; None: there was no time to find out.
    fn trial(&mut self, job: &mut dyn Iterations<'_>, won: &Found) -> Result<Option<Verdict>, CommError> {
        let own = job.tuned().into_iter().find_map(TunedCalls::next_level_of_iterations);
        let level = said(job, &own.unwrap_or_default())?;
        let (mut trial, mut random) = (Trial::patient(level), Random::new(level.to_bits(), 0x17e7));
        let default = Found::new();
        loop {
            let mut any = false;
            while let Some((side, block)) = trial.next(&mut random) {
                any = true;
                let seconds = self.iteration(job, if side == Side::Candidate { won } else { &default })?;
                trial.observe(side, block, seconds);
                if trial.is_between_blocks() {
                    break;
                }
            }
            let is_over = !any || self.elapsed_s(job)? >= self.limit_s;
            if let Some(ended) = ended(job.world(), &trial, is_over)? {
                return Ok(ended);
            }
        }
    }
}

impl TunedCalls<'_> {
    /// Calls of this kind have a race of their own, before [`rehearse_iterations`]: what is likely to be worth a try there. `in_a_row`: how
    /// many of them an iteration makes. `play` makes one with these options, or by this program. All ranks of the communicator call it; it
    /// takes about `limit` at most.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn shortlist_call(
        &mut self,
        collective: CollectiveKind,
        bytes: usize,
        call: &Call,
        in_a_row: usize,
        limit: Duration,
        mut play: impl FnMut(&Communicator, &CallOptions, Option<&VerifiedProgram>) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        self.place(collective, bytes, call);
        let state = self.state(collective, bytes, call);
        let context = state.context();
        if let Some(leader) = &mut self.leader {
            leader.situations.entry(context).or_insert_with(|| typical_situation(&self.model, &state));
        }
        let situation = self.leader.as_ref().and_then(|leader| situation_of(&leader.situations, &context).cloned());
        let rehearsal = Rehearsal::new(self.communicator, situation.as_ref(), limit)?;
        if !rehearsal.has_choice() {
            return Ok(());
        }
        let mut once = |choice| {
            let (options, program) = self.played(choice, collective, &CallOptions::default());
            play(self.communicator, &options, program)
        };
        let mut first = [0.0; 2];
        for seconds in &mut first {
            *seconds = timed(self.communicator, Choice::Default, &mut once)?;
        }
        agree(self.communicator, &mut first)?;
        let row = ((ROW_S / first[1].max(1e-9)) as usize).clamp(1, in_a_row.max(1));
        let mut in_row = |choice| (0..row).try_for_each(|_| once(choice));
        let entrants: Vec<_> = rehearsal.contestants.iter().map(|(_, entrant)| *entrant).collect();
        let finish = race(self.communicator, &entrants, limit.as_secs_f64(), &mut |number| {
            timed(self.communicator, rehearsal.contestants[number].0, &mut in_row)
        })?;
        if self.leader.is_some() {
            let choices: Vec<Choice> = rehearsal.contestants.iter().map(|(choice, _)| *choice).collect();
            let usual_s: Vec<Option<f64>> = finish.seconds.iter().map(|seconds| median(seconds)).collect();
            self.shortlists.insert(context, shortlist(&choices, &usual_s));
        }
        Ok(())
    }

    /// From here on calls take this and nothing is learned of them, until it is None.
    fn play(&mut self, played: Option<&Found>) {
        self.kinds.forget();
        self.rehearsed = played.map(|found| found.iter().map(|(context, choice)| (context.key(), *choice)).collect());
    }
}

/// The default, and then the best of each algorithm and protocol, as they were measured alone; and if there is room, who else was good.
pub(super) fn shortlist(choices: &[Choice], usual_s: &[Option<f64>]) -> Vec<Choice> {
    let Some(default_s) = usual_s.first().copied().flatten() else { return vec![Choice::Default] };
    let timed = choices.iter().zip(usual_s).skip(1).filter_map(|(choice, seconds)| Some((*choice, (*seconds)?)));
    let mut timed: Vec<(Choice, f64)> = timed.filter(|(_, seconds)| *seconds <= HOPELESS * default_s).collect();
    timed.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let family = |choice: &Choice| if let Choice::Play(action) = choice { Some(action.family) } else { None };
    let (mut first, mut others): (Vec<Choice>, Vec<Choice>) = (Vec::new(), Vec::new());
    for (choice, _) in timed {
        let is_known = first.iter().any(|known| family(known) == family(&choice));
        if is_known { &mut others } else { &mut first }.push(choice);
    }
    let list = std::iter::once(Choice::Default).chain(first).chain(others);
    list.take(CHOICES_MAX + 1).collect()
}
