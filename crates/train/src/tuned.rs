//! Calls of a communicator that are tuned while the job runs.
//!
//! Rank 0 learns. At each iteration boundary the ranks take the minimum of the times of all calls since the last one, rank 0
//! makes the next policy of them and broadcasts it, and the minimum of the ranks' versions says whether it is put up: three small
//! collectives, and no other communication.

mod calls;

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator, Element, Protocol, Reduction, Transport};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::{Call, CostModel, OwnModel};
use paceline_tune::{
    Agreement, Board, Choice, Context, Decision, Policy, Schedule, Situation, State, Transport as Carrier, Tuner,
    WireProtocol,
};

/// A communicator's calls, tuned. Every rank makes the same ones in the same order, and calls [`TunedCalls::boundary`] after each
/// iteration.
///
/// Which algorithm adds up decides in which order: the bits of a sum may change when a policy does, on all ranks alike.
pub struct TunedCalls<'a> {
    communicator: &'a Communicator,
    model: OwnModel,
    situations: BTreeMap<Context, Option<Situation>>,
    board: Board,
    agreement: Agreement,
    /// On rank 0.
    leader: Option<Leader>,
    /// Since the last boundary.
    made: Vec<Made>,
    /// Calls of each context since the last boundary.
    numbers: BTreeMap<Context, u64>,
}

/// What only rank 0 has.
struct Leader {
    tuner: Tuner,
    /// What the policy's schedules came from, in their order.
    decisions: BTreeMap<Context, Vec<Decision>>,
    published: Policy,
}

/// A call that was made.
#[derive(Clone, Copy)]
struct Made {
    context: Context,
    /// Its place in the schedule.
    number: u64,
    choice: Choice,
    seconds: f64,
}

impl<'a> TunedCalls<'a> {
    /// Of a communicator. `seed`: of everything left to chance. Links are believed to cost what was measured when the world
    /// formed.
    pub fn new(communicator: &'a Communicator, seed: u64) -> TunedCalls<'a> {
        let topology = communicator.topology();
        let tcp = (0..communicator.world_size()).any(|rank| communicator.transport(rank) == Some(Transport::Tcp));
        let costs = communicator.link_costs();
        // Which of the links is TCP differs between the ranks of a host and others; what a state says must not.
        let carrier = if topology.hosts() == 1 || !tcp { Carrier::SharedMemory } else { Carrier::Tcp10g };
        let model = OwnModel::measured(&costs, topology.hosts(), topology.ranks_per_host_max(), carrier);
        let leads = communicator.rank() == 0;
        let leader =
            || Leader { tuner: Tuner::shipped(seed), decisions: BTreeMap::new(), published: Policy::default() };
        TunedCalls {
            communicator,
            model,
            situations: BTreeMap::new(),
            board: Board::default(),
            agreement: Agreement::default(),
            leader: leads.then(leader),
            made: Vec::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// An all-reduce, in place. `call` says what it is part of; its bytes, ranks and hosts are filled in.
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
        let state = self.state(CollectiveKind::AllReduce, size_of_val(data), call);
        let (options, made) = self.choose(&state, options);
        let began = Instant::now();
        self.communicator.all_reduce(data, reduction, &options)?;
        self.made.push(Made { seconds: began.elapsed().as_secs_f64(), ..made });
        Ok(())
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
        let state = self.state(CollectiveKind::AllGather, size_of_val(output), call);
        let (options, made) = self.choose(&state, options);
        let began = Instant::now();
        self.communicator.all_gather(input, output, &options)?;
        self.made.push(Made { seconds: began.elapsed().as_secs_f64(), ..made });
        Ok(())
    }

    fn state(&self, collective: CollectiveKind, bytes: usize, call: &Call) -> State {
        let topology = self.communicator.topology();
        let (ranks, hosts) = (topology.world() as u32, topology.hosts() as u32);
        self.model.state(&Call { collective, bytes: bytes as u64, ranks, hosts, ..*call })
    }

    /// What a call takes, by the policy. What the caller has chosen is left alone.
    fn choose(&mut self, state: &State, options: &CallOptions) -> (CallOptions, Made) {
        let context = state.context();
        let model = &self.model;
        let situation = self.situations.entry(context).or_insert_with(|| {
            let typical = State { bytes: context.typical_bytes(), ..*state };
            model.situation(&typical)
        });
        let number = self.numbers.entry(context).or_insert(0);
        let choice = match situation {
            Some(_) if options.algorithm.is_none() => self.board.policy().choice(context.key(), *number),
            _ => Choice::Default,
        };
        let made = Made { context, number: *number, choice, seconds: 0.0 };
        *number += 1;
        (tuned_options(choice, state.collective, options), made)
    }

    /// An iteration has ended: no call is under way. All ranks learn of each other's times, and change to the next policy
    /// together, if there is one. Returns the version under which they go on.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn boundary(&mut self) -> Result<u64, CommError> {
        let plain = CallOptions::default();
        let made = std::mem::take(&mut self.made);
        // The last to come has waited for nobody: its time is the call's.
        let mut seconds: Vec<f64> = made.iter().map(|made| made.seconds).collect();
        if !seconds.is_empty() {
            self.communicator.all_reduce(&mut seconds, Reduction::Min, &plain)?;
        }
        let mut bytes = Vec::new();
        if let Some(leader) = &mut self.leader {
            bytes = leader.learn(&made, &seconds, &self.situations);
        }
        let mut length = [bytes.len() as i64];
        self.communicator.broadcast(&mut length, 0, &plain)?;
        bytes.resize(length[0].max(0) as usize, 0);
        if !bytes.is_empty() {
            self.communicator.broadcast(&mut bytes, 0, &plain)?;
            // What cannot be read is not there; then this rank holds the others on the version before.
            if let Some(policy) = decoded(&bytes) {
                self.agreement.receive(policy);
            }
        }
        let mut lowest = [self.agreement.ballot() as i64];
        self.communicator.all_reduce(&mut lowest, Reduction::Min, &plain)?;
        if let Some(policy) = self.agreement.decide(lowest[0].max(0) as u64) {
            // Where there is no room, there is none on any rank: all stay.
            let _ = self.board.replace(policy);
        }
        // Whose turn it is in a schedule counts from the boundary, which is the same call on all ranks.
        self.numbers.clear();
        Ok(self.agreement.active())
    }

    /// The policy under which calls are made.
    pub fn policy(&self) -> &Policy {
        self.board.policy()
    }

    /// What was learned; on rank 0.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.leader.as_ref().map(|leader| &leader.tuner)
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

impl Leader {
    /// Learns from calls, and makes the next policy of it: its bytes, none if it would be the same.
    fn learn(&mut self, made: &[Made], seconds: &[f64], situations: &BTreeMap<Context, Option<Situation>>) -> Vec<u8> {
        let situation = |context: &Context| situations.get(context).and_then(Option::as_ref);
        let mut counts: BTreeMap<Context, usize> = BTreeMap::new();
        for (made, &seconds) in made.iter().zip(seconds) {
            let Some(situation) = situation(&made.context) else { continue };
            *counts.entry(made.context).or_insert(0) += 1;
            let arm = situation.arm_of(made.choice);
            let decisions = self.decisions.get(&made.context).map_or(&[][..], Vec::as_slice);
            match decisions.get(made.number as usize).filter(|decision| decision.arm == arm) {
                Some(&decision) => self.tuner.observe(situation, decision, seconds),
                None => self.tuner.observe_repeated(situation, arm, seconds),
            }
        }
        let mut entries: Vec<(Context, Schedule)> =
            self.published.entries().map(|(context, schedule)| (*context, *schedule)).collect();
        for (context, count) in counts {
            let Some(situation) = situation(&context) else { continue };
            let (schedule, decisions) = self.tuner.schedule(situation, count);
            let turns = schedule.turns();
            let alike = turns.iter().all(|turn| *turn == turns[0]);
            entries.push((context, if alike { Schedule::always(turns[0]) } else { schedule }));
            self.decisions.insert(context, decisions);
        }
        let next = Policy::new(self.published.version() + 1, entries);
        if next.entries().eq(self.published.entries()) {
            return Vec::new();
        }
        let bytes = encoded(&next);
        self.published = next;
        bytes
    }
}

/// The options of a choice, where the caller has left them open. An action of another collective changes nothing.
pub fn tuned_options(choice: Choice, collective: CollectiveKind, options: &CallOptions) -> CallOptions {
    let mut options = options.clone();
    let Choice::Play(action) = choice else { return options };
    let Some(algorithm) = OwnModel::algorithm(collective, action.family.algorithm) else { return options };
    options.algorithm = Some(algorithm.to_owned());
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

type Encoded = (u64, Vec<(Context, Vec<Choice>)>);

fn encoded(policy: &Policy) -> Vec<u8> {
    let entries = policy.entries().map(|(context, schedule)| (*context, schedule.turns().to_vec())).collect();
    let all: Encoded = (policy.version(), entries);
    // Numbers and short lists: nothing in it can fail. If it did, there would be no new policy.
    postcard::to_stdvec(&all).unwrap_or_default()
}

fn decoded(bytes: &[u8]) -> Option<Policy> {
    let (version, entries): Encoded = postcard::from_bytes(bytes).ok()?;
    let schedules = entries.into_iter().map(|(context, turns)| Some((context, Schedule::of(&turns)?)));
    Some(Policy::new(version, schedules.collect::<Option<Vec<_>>>()?))
}

#[cfg(test)]
mod tests;
