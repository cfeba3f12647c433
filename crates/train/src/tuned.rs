//! Calls of a communicator that are tuned while the job runs.
//!
//! Rank 0 learns. The ranks meet at iteration boundaries, as often as is worth it: they take the minimum of the times of the calls
//! since the last time, rank 0 makes the next policy of them and broadcasts it, and the minimum of the ranks' versions says whether
//! it is in force: four small collectives at most. In between they glance whether calls take what they took: one more.

mod by_iterations;
mod calls;
mod clock;
mod congestion;
mod early;
mod followed;
mod glances;
mod iterations;
mod kinds;
mod leader;
mod learning;
mod meetings;
mod policies;
mod programs;
mod race;
mod rehearsal;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Element, Protocol, Reduction, VerifiedProgram};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::{Call, OwnModel};
use paceline_tune::{Action, Choice, Congestion, Context, ContextKey, Policy, Schedule, State, Tuner, WireProtocol};

use by_iterations::Step;
use clock::Clock;
pub use clock::{CommonClock, Took};
pub(crate) use congestion::of_number;
pub(crate) use followed::rules_elsewhere;
use glances::Glances;
pub use iterations::{Iterations, RehearsedIterations, rehearse_iterations};
use kinds::{Called, Kinds, Order};
use leader::{Leader, taken};
pub use learning::links_of;
use learning::state_of;
pub(crate) use learning::{Learning, Made, Situations, beliefs, situation_of, typical_situation};
use meetings::{Calls, Meetings, STRETCHES};
pub(crate) use meetings::{SHARE, TURNS};
pub(crate) use policies::{Plays, Policies, Version};
pub(crate) use programs::program_of;
pub use programs::{TunedProgram, named, ranks_that_differ};
pub use race::{Finish, race};
pub(crate) use rehearsal::Rehearsal;
pub use rehearsal::Rehearsed;

/// A communicator's calls, tuned. Every rank makes the same ones in the same order, and calls [`TunedCalls::boundary`] after each
/// iteration.
///
/// Which algorithm adds up decides in which order: the bits of a sum may change when a policy does, on all ranks alike.
pub struct TunedCalls<'a> {
    communicator: &'a Communicator,
    model: OwnModel,
    policies: Policies,
    /// On rank 0.
    leader: Option<Leader>,
    meetings: Meetings,
    /// What the last one took here.
    met: Option<Took>,
    glances: Glances,
    /// The first calls of each context since the ranks have met.
    made: Vec<Made>,
    /// When these began and ended.
    clock: Clock,
    /// Which calls were made since then, in which order.
    seen: Order,
    /// Which calls there are, and how often each was made since then.
    kinds: Kinds,
    /// If a policy that was learned elsewhere is followed.
    followed: Option<followed::Followed>,
    /// That may be chosen, besides the library's algorithms.
    programs: Vec<TunedProgram>,
    /// As all ranks agree.
    congestion: Congestion,
    /// Does a boundary end an iteration, whose time decides?
    counts_iterations: bool,
    /// Are calls learned from? Not while rehearsed iterations say what stands: then only iterations are watched.
    listens: bool,
    /// Those since the ranks have met, and when the last one has ended.
    step: Step,
    ended: Instant,
    /// What is worth a try in iterations that are rehearsed; on rank 0.
    shortlists: iterations::Shortlists,
    /// While iterations are rehearsed, what calls take.
    rehearsed: Option<BTreeMap<ContextKey, Choice>>,
}

impl<'a> TunedCalls<'a> {
    /// Of a communicator. `seed`: of everything left to chance. Links are believed to cost what was measured when the world
    /// formed.
    pub fn new(communicator: &'a Communicator, seed: u64) -> TunedCalls<'a> {
        let leads = communicator.rank() == 0;
        let (topology, costs) = (communicator.topology(), communicator.link_costs());
        TunedCalls {
            communicator,
            model: beliefs(communicator),
            policies: Policies::default(),
            leader: leads.then(|| Leader::new(seed)),
            meetings: Meetings::new(&costs, topology.hosts(), topology.world()),
            met: None,
            glances: Glances::default(),
            made: Vec::new(),
            clock: Clock::new(),
            seen: Order::default(),
            kinds: Kinds::default(),
            followed: None,
            programs: Vec::new(),
            congestion: Congestion::None,
            counts_iterations: false,
            listens: true,
            step: Step::default(),
            ended: Instant::now(),
            shortlists: BTreeMap::new(),
            rehearsed: None,
        }
    }

    /// An all-reduce, in place. `call` says what it is part of, the same on all ranks; its bytes, ranks and hosts are filled in.
    /// If `options` chooses something of what is tuned, that stays, and nothing is learned of the call; where it chooses what all ranks must
    /// agree on, the algorithm or the bytes of a tile, the call is left alone altogether.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        reduction: Reduction,
        call: &Call,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let place = self.place(CollectiveKind::AllReduce, size_of_val(data), call);
        self.timed(place, options, |communicator, options, program| match program {
            Some(program) => communicator.run_program_in_place(program, data, reduction, options),
            None => communicator.all_reduce(data, reduction, options),
        })
    }

    /// An all-gather. As [`TunedCalls::all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        call: &Call,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let place = self.place(CollectiveKind::AllGather, size_of_val(output), call);
        self.timed(place, options, |communicator, options, program| match program {
            Some(program) => communicator.run_program(program, input, output, Reduction::Sum, options).map(drop),
            None => communicator.all_gather(input, output, options),
        })
    }

    /// The place of a call among those that the job makes.
    fn place(&mut self, collective: CollectiveKind, bytes: usize, call: &Call) -> usize {
        let (communicator, model) = (self.communicator, &self.model);
        self.kinds.place(collective, bytes, call, || state_of(communicator, model, collective, bytes, call))
    }

    /// Makes a call as it is chosen, and notes what it took.
    fn timed(
        &mut self,
        place: usize,
        options: &CallOptions,
        call: impl FnOnce(&Communicator, &CallOptions, Option<&VerifiedProgram>) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let communicator = self.communicator;
        if let Some(rehearsed) = &self.rehearsed {
            let choice = rehearsed.get(&self.kinds.of(place).key).copied().unwrap_or_default();
            let choice = if chooses_for_all(options) { Choice::Default } else { choice };
            let (options, program) = self.made_with(place, choice, options);
            return call(communicator, &options, program);
        }
        let number = self.count(place);
        if !self.listens || !self.meetings.is_recorded(number, self.kinds.of(place).state.bytes) {
            let choice = self.stands(place, options);
            if choice == Choice::Default {
                return call(communicator, options, None);
            }
            let (options, program) = self.made_with(place, choice, options);
            return call(communicator, &options, program);
        }
        let made = self.choose(place, number, options);
        let (options, program) = self.made_with(place, made.choice, options);
        let began = Instant::now();
        call(communicator, &options, program)?;
        let took = began.elapsed();
        self.made.push(made.took(took));
        self.clock.note(began, took);
        Ok(())
    }

    /// A call is made: its number among those of its context since the ranks have met.
    fn count(&mut self, place: usize) -> u64 {
        let (called, number) = self.kinds.count(place);
        self.seen.note(called.key.0);
        self.meetings.called(number, called.state.bytes, called.rehearsed_s);
        number
    }

    /// What a call is made with, and its program, if its choice is one.
    fn made_with<'b>(
        &'b mut self,
        place: usize,
        choice: Choice,
        options: &'b CallOptions,
    ) -> (Cow<'b, CallOptions>, Option<&'b VerifiedProgram>) {
        if choice == Choice::Default {
            return (Cow::Borrowed(options), None);
        }
        let collective = self.kinds.of(place).state.collective;
        match program_of(&self.programs, choice, collective, options) {
            Some((options, program)) => (Cow::Owned(options), Some(program)),
            None => {
                let with = || tuned_options(choice, collective, options);
                (Cow::Borrowed(self.kinds.options(place, choice, options, with)), None)
            }
        }
    }

    fn state(&self, collective: CollectiveKind, bytes: usize, call: &Call) -> State {
        state_of(self.communicator, &self.model, collective, bytes, call)
    }

    /// What a call of this number takes, by the policy.
    fn choose(&mut self, place: usize, number: u64, options: &CallOptions) -> Made {
        let &Called { context, key, state, .. } = self.kinds.of(place);
        let choice = match chooses_for_all(options) {
            true => Choice::Default,
            false => self.choice_of(key, &state, Some(number)),
        };
        // The time of a caller's choice is neither the default's nor that of what was tried.
        let seconds = if has_chosen(options) { f64::NAN } else { 0.0 };
        Made { context, number, choice, calls: 1, seconds, longest: 1.0 }
    }

    /// What a call takes that nobody learns from, which is the same until the ranks meet: short ones have no time to look it up.
    fn stands(&mut self, place: usize, options: &CallOptions) -> Choice {
        let &Called { key, state, stands, .. } = self.kinds.of(place);
        match stands {
            _ if chooses_for_all(options) => Choice::Default,
            Some(choice) => choice,
            None => {
                let choice = self.choice_of(key, &state, None);
                self.kinds.keep(place, choice);
                choice
            }
        }
    }

    /// What the policy says of a call, by its number among those of its context since the ranks have met; None: nothing is tried in it.
    fn choice_of(&mut self, key: ContextKey, state: &State, number: Option<u64>) -> Choice {
        let choice = self.policies.current().choice(key, number);
        match &mut self.followed {
            Some(followed) => followed::possible(followed, &self.model, state, choice),
            None => choice,
        }
    }

    /// How such a call is made by what stands, for whoever makes it by himself, of which nothing is learned; `bytes` as those of
    /// [`State`]. What `options` choose stays.
    pub fn options_for(
        &mut self,
        collective: CollectiveKind,
        bytes: usize,
        call: &Call,
        options: &CallOptions,
    ) -> CallOptions {
        if chooses_for_all(options) {
            return options.clone();
        }
        let state = self.state(collective, bytes, call);
        let choice = self.choice_of(state.context().key(), &state, None);
        tuned_options(choice, collective, options)
    }

    /// An iteration has ended: no call is under way. Where the ranks meet here, they learn of each other's times, and change to the
    /// next policy together, if there is one. Returns the version under which they go on.
    ///
    /// Meetings take about a hundredth of the time of the calls between them (or of the iterations, where these count), however short these are, and less
    /// while nothing is open: at most boundaries of short calls nothing is sent. Between them ranks glance whether calls have changed, for a
    /// two-hundredth of that time at most, and meet at once if they have.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; the ranks have not made the same calls.
    pub fn boundary(&mut self) -> Result<u64, CommError> {
        self.boundary_after(self.ended.elapsed())
    }

    /// The same where the caller knows what the iteration took on this rank. (Otherwise it is the time since the last boundary.)
    ///
    /// # Errors
    /// As [`TunedCalls::boundary`].
    pub fn boundary_after(&mut self, iteration: Duration) -> Result<u64, CommError> {
        self.step.add(iteration);
        // Of calls that follow a policy nothing is learned.
        if self.followed.is_none() {
            let is_due = self.meetings.is_due(self.kinds.called());
            let have_changed = !is_due && self.glance()?;
            if is_due || have_changed {
                if !self.clock.is_compared() {
                    self.clock.compare(self.communicator)?;
                }
                let began = Instant::now();
                let (every, compares) = self.meet(have_changed)?;
                self.meetings.met(every);
                self.met = Some(self.clock.took(self.communicator, began, began.elapsed()));
                if compares {
                    self.clock.compare(self.communicator)?;
                }
            }
        }
        self.ended = Instant::now();
        Ok(self.policies.active())
    }

    /// In how many boundaries they meet again, and whether they compare clocks now. `at_a_glance`: they do not because it is time, but as calls look
    /// changed.
    fn meet(&mut self, at_a_glance: bool) -> Result<(u64, bool), CommError> {
        // One that is under way may have seen what they meet for now.
        let at_a_glance = self.glances.end()? || at_a_glance;
        // Whose turn it is in a schedule counts from here, which is behind the same call on all ranks.
        let (mut made, numbers) = (std::mem::take(&mut self.made), self.kinds.take());
        let mut step = std::mem::take(&mut self.step);
        let seen = f64::from(std::mem::take(&mut self.seen).digest());
        self.glances.meet(&made, at_a_glance, |key| self.policies.current().after_turns(key));
        // Where one rank has no time, there is none: the least is what counts until it is known how long a call has lasted.
        let times = made.iter().map(|made| -made.seconds);
        let head = [seen, -seen, step.seconds].into_iter().chain(self.met.unwrap_or(Took::NEVER).told());
        let mut most: Vec<f64> = head.chain(times).collect();
        most.extend(self.clock.told(self.communicator, made.len()));
        self.communicator.all_reduce(&mut most, Reduction::Max, &CallOptions::default())?;
        // All are here.
        let together = Instant::now();
        if most[0] != -most[1] {
            let what = "the ranks have not made the same calls since they met: sizes, and what each `Call` says, must be \
                        the same on all of them";
            return Err(self.usage("boundary of tuned calls", what.to_owned()));
        }
        // An iteration takes as long as on its slowest rank.
        step.seconds = most[2];
        // A meeting, too, lasts from when the last rank has come until the last one goes on.
        let last_s = Took::lasted(std::array::from_fn(|number| most[3 + number]));
        let (least_s, told) = most[7..].split_at(made.len());
        made.iter_mut().zip(least_s).for_each(|(made, least_s)| made.seconds = -least_s);
        Clock::lengthen(&mut made, told);
        self.clock.met();
        let (next, mut told) = self.lead(&made, &numbers, step, (last_s, together, at_a_glance));
        self.policies.spread(self.communicator, next.as_ref(), &mut told)?;
        self.congestion = of_number(told[0]);
        self.listens = told[2] != 0;
        self.glances.set(u64::try_from(told[3]).unwrap_or(0));
        Ok((u64::try_from(told[1]).unwrap_or(1), told[4] != 0))
    }

    /// The next version, if there is one, and what rank 0 tells with it: how much others are in the way, after how many boundaries they meet and
    /// glance, whether calls are learned from, and whether clocks are compared again. On other ranks nothing. `last_s`: what the last meeting took; `together`: since when all are at this
    /// one; `at_a_glance`: has a glance called it?
    fn lead(
        &mut self,
        made: &[Made],
        numbers: &BTreeMap<Context, (u64, State)>,
        step: Step,
        (last_s, together, at_a_glance): (f64, Instant, bool),
    ) -> (Option<Version>, [i64; 5]) {
        let glance_s = self.glance_s();
        let Some(leader) = &mut self.leader else { return (None, [0; 5]) };
        let before = (leader.learning.drifts(), leader.is_asking());
        let next = leader.next(self.policies.active(), made, numbers, &self.model, step);
        let has_come_of_it = leader.learning.drifts() > before.0 || leader.is_asking() && !before.1;
        let calls = taken(made, numbers, |bytes| self.meetings.call_s(bytes));
        // An iteration may have calls of several communicators, whose ranks meet for each of them.
        let seconds = if self.counts_iterations { step.seconds.min(calls.seconds) } else { calls.seconds };
        let calls = Calls {
            are_settled: leader.is_settled(),
            are_watched: !leader.listens(),
            are_in_doubt: leader.is_asking(),
            are_decided_again: leader.is_deciding_again(),
            seconds,
            timed: made.len(),
            ..calls
        };
        let every = self.meetings.plan(last_s, together.elapsed(), calls);
        let most_called = numbers.values().find(|it| it.0 == calls.most).map_or(0, |(_, state)| state.bytes);
        let (pace, was_right) = (self.meetings.pace(calls, most_called), at_a_glance.then_some(has_come_of_it));
        let glance = self.glances.plan(every, pace, glance_s, was_right);
        // Of calls that nobody times, to the end, nothing can be seen.
        let meetings = &self.meetings;
        let is_timed = |(count, state): &(u64, State), until: u64| meetings.are_recorded(*count, state.bytes, until);
        let is_seen = numbers.values().any(|it| it.0 == calls.most && is_timed(it, every));
        let glance = if leader.listens() && is_seen { glance } else { 0 };
        let all_timed = |until: u64| numbers.values().all(|it| is_timed(it, until));
        let called = || leader.with_choice(numbers.keys()).map(Context::key);
        let then = |key| next.as_ref().unwrap_or(self.policies.current()).after_turns(key);
        let is_watched = glance > 0 && leader.is_calm() && self.glances.know(called(), then);
        let are_timed = STRETCHES.map(|times| all_timed(every.saturating_mul(times)));
        let every = self.meetings.stretched(every, is_watched, leader.is_at_rest(), are_timed);
        let [every, glance] = [every, glance].map(|boundaries| i64::try_from(boundaries).unwrap_or(i64::MAX));
        let compares = self.clock.is_old(self.communicator);
        (next, [leader.learning.congestion() as i64, every, leader.listens().into(), glance, compares.into()])
    }

    fn usage(&self, operation: &str, what: String) -> CommError {
        let rank = self.communicator.rank();
        CommError::Usage { rank, host: self.communicator.host(rank).to_owned(), operation: operation.into(), what }
    }

    /// The policy under which calls are made that are timed.
    pub fn policy(&self) -> &Policy {
        self.policies.policy()
    }

    /// The same without what is only tried, and without the calls that watch the default: what stands, for a file. (While iterations are on
    /// trial, it is what the next ones take.)
    pub fn standing(&self) -> Policy {
        let version = self.policies.current();
        Policy::new(version.number, version.plays().map(|plays| (plays.context, Schedule::always(plays.untimed))))
    }

    /// What was learned; on rank 0.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.leader.as_ref().map(|leader| &leader.learning.tuner)
    }

    /// How much others are in the way, as all ranks have agreed when they last met, where they are tuned: what calls take against
    /// what the same have taken at their best. (While rehearsed iterations say what stands, no call is timed, and it stays what it was.)
    pub fn congestion(&self) -> Congestion {
        self.congestion
    }

    /// A call as the tuner sees it, with this communicator's ranks and hosts.
    pub fn state_of(&self, collective: CollectiveKind, bytes: usize, call: &Call) -> State {
        self.state(collective, bytes, call)
    }

    /// What is believed of the links.
    pub fn model(&self) -> &OwnModel {
        &self.model
    }
}

/// Has the caller chosen something on which all ranks must agree, and so all of them? Then nothing is chosen here. What else he may
/// choose each rank may by itself: that stays, and of the rest all ranks take the same.
fn chooses_for_all(options: &CallOptions) -> bool {
    options.algorithm.is_some() || options.chunk_bytes.is_some()
}

/// Has the caller chosen something of what is tuned?
fn has_chosen(options: &CallOptions) -> bool {
    chooses_for_all(options)
        || options.protocol != Protocol::Auto
        || options.lanes.is_some()
        || options.reducing_threads.is_some()
}

/// The options of a choice, where the caller has left them open. An action of another collective, or of a program, changes nothing.
pub fn tuned_options(choice: Choice, collective: CollectiveKind, options: &CallOptions) -> CallOptions {
    let Choice::Play(action) = choice else { return options.clone() };
    let Some(algorithm) = OwnModel::algorithm(collective, action.family.algorithm) else { return options.clone() };
    CallOptions { algorithm: Some(algorithm.to_owned()), ..with_knobs(&action, options) }
}

/// The options of an action, besides its algorithm.
fn with_knobs(action: &Action, options: &CallOptions) -> CallOptions {
    let mut options = options.clone();
    if options.protocol == Protocol::Auto {
        options.protocol = match action.family.protocol {
            WireProtocol::LowLatency => Protocol::Inline,
            WireProtocol::Middle => Protocol::Eager,
            WireProtocol::Simple => Protocol::Rendezvous,
        };
    }
    let chosen = |number: u8| (number > 0).then_some(u16::from(number));
    options.lanes = options.lanes.or(chosen(action.channels));
    options.reducing_threads = options.reducing_threads.or(chosen(action.threads));
    let chunk_bytes = || (9..=30).contains(&action.chunk_log2).then(|| 1usize << action.chunk_log2);
    options.chunk_bytes = options.chunk_bytes.or_else(chunk_bytes);
    options
}

#[cfg(test)]
pub(crate) mod tests;
