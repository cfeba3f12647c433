use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use paceline_collective::Topology;
use paceline_collective::kernels::Elementwise;
use paceline_engine::frame::Signature;
use paceline_engine::{Failure, Request};
use paceline_fabric::Transport;
use paceline_plan::{CollectiveKind, LinkCosts, OperationKey};

use crate::buffer::Memory;
use crate::memory::{OperationMemory, Span};
use crate::options::Settings;
use crate::outcome::Ticket;
use crate::pending::name;
use crate::prepare::Call;
use crate::program::VerifiedProgram;
use crate::programs::Choice;
use crate::recent::{Chosen, Question, Recent};
use crate::records::Described;
use crate::world::World;
use crate::{Buffer, CallOptions, CommError, Element};

/// A group of ranks that communicate. Clones are the same communicator; it may be used from several threads. Which call of
/// a rank meets which of another follows from their order; threads that call at once have none, so they name their calls
/// ([`CallOptions::operation`], the tags of messages), or each has a communicator of its own ([`Communicator::split`]).
#[derive(Clone)]
pub struct Communicator {
    pub(crate) world: Arc<World>,
    group: Arc<Group>,
}

/// The ranks of a communicator.
struct Group {
    id: u32,
    /// Ranks of the world, by rank here.
    members: Arc<[usize]>,
    /// Which of them share a host.
    topology: Topology,
    rank: usize,
    sequence: AtomicU64,
    recent: Recent,
    messages: Mutex<Messages>,
}

/// Messages so far, by (sender, receiver, tag), and the two ranks as a group of their own: some 80 bytes for every tag
/// that was ever used.
type Messages = HashMap<(usize, usize, u32), (u64, Arc<[usize]>)>;

impl Communicator {
    /// The communicator of a whole world.
    pub(crate) fn over(world: Arc<World>) -> Communicator {
        let members = (0..world.size()).collect();
        let group = Group::new(0, members, world.topology.clone(), world.rank);
        Communicator { world, group: Arc::new(group) }
    }

    /// This rank in the group.
    pub fn rank(&self) -> usize {
        self.group.rank
    }

    /// Ranks in the group.
    pub fn world_size(&self) -> usize {
        self.group.members.len()
    }

    /// A rank's number in the world, which is what [`crate::Frame`]s and [`crate::Transfer`]s name.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank_in_world(&self, rank: usize) -> usize {
        self.group.members[rank]
    }

    /// The name of a rank's host.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn host(&self, rank: usize) -> &str {
        &self.world.hosts[self.group.members[rank]]
    }

    /// What carries the link to a rank; None for this rank itself.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn transport(&self, rank: usize) -> Option<Transport> {
        self.world.transports[self.group.members[rank]]
    }

    /// TCP connections per pair of ranks that TCP links: over so many lanes a call can be spread ([`crate::CallOptions::lanes`]).
    pub fn tcp_streams(&self) -> usize {
        self.world.tcp_streams
    }

    /// Do some ranks of a host talk over TCP? All ranks say the same, from when links were measured ([`Communicator::probe`]); before, no.
    pub fn has_tcp_within(&self) -> bool {
        self.world.tcp_within.load(Ordering::Relaxed)
    }

    /// Messages take so many times as long as on the network that is emulated, if one is; else 1.
    pub fn dilation(&self) -> f64 {
        self.world.dilation
    }

    /// What was decided while connecting (which interface, why not shared memory, …), for the log.
    pub fn notes(&self) -> &[String] {
        &self.world.notes
    }

    /// Which ranks of the group share a host.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// What the links cost, as all ranks of the world agreed it; a guess before [`Communicator::probe`].
    pub fn link_costs(&self) -> LinkCosts {
        self.world.link_costs()
    }

    /// Do its messages take their time by the clock, on an emulated network?
    pub fn is_emulated(&self) -> bool {
        self.world.keeps_time
    }

    /// The deadline of calls that name none.
    pub fn timeout(&self) -> Duration {
        self.world.timeout
    }

    /// Zeroed memory for communication. On a host with shared memory, the peers read it where it lies.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn alloc<T: Element>(&self, elements: usize) -> Result<Buffer<T>, CommError> {
        let no_memory = |bytes, why: &dyn fmt::Display| CommError::Memory {
            rank: self.world.rank,
            host: self.world.hosts[self.world.rank].clone(),
            bytes,
            why: why.to_string(),
        };
        let bytes = elements
            .checked_mul(size_of::<T>())
            .ok_or_else(|| no_memory(usize::MAX, &format!("{elements} elements are more than the address space")))?;
        let memory = match &self.world.arena {
            Some(arena) if bytes > 0 => {
                // What operations keep for each other is less than what a caller asks for.
                let spare = || self.world.context.with(|core| core.memories.return_spare_scratch());
                let allocation = match arena.allocate(bytes, 64) {
                    Err(_) if spare() => arena.allocate(bytes, 64),
                    allocation => allocation,
                };
                let allocation = allocation.map_err(|error| no_memory(bytes, &error))?;
                // SAFETY: the allocation is new and `bytes` long.
                unsafe { allocation.start().as_ptr().write_bytes(0, bytes) };
                Memory::Shared(allocation)
            }
            _ => Memory::private(bytes).map_err(|error| no_memory(bytes, &error))?,
        };
        Ok(Buffer::new(memory, elements))
    }

    /// The algorithm that a call would run, and its tile size in bytes.
    ///
    /// # Errors
    /// If the options name an unknown algorithm, or make no sense.
    pub fn choice(
        &self,
        kind: CollectiveKind,
        block_bytes: usize,
        options: &CallOptions,
    ) -> Result<(&'static str, usize), CommError> {
        let settings = self.settings(kind, options)?;
        let costs = self.link_costs();
        let choice = self.world.programs.choose(kind, self.topology(), block_bytes, false, &costs, &settings)?;
        Ok((choice.algorithm.name(), choice.tile_bytes))
    }

    /// Cuts the group in pieces: ranks with the same `color` form a new communicator, ordered by `key`, then by rank
    /// here. All ranks of this group call it; those with `None` get none.
    ///
    /// # Errors
    /// As any collective.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>, CommError> {
        let mine = [color.map_or(-1, i64::from), i64::from(key), self.world.new_communicator().map_or(-1, i64::from)];
        let mut all = vec![0i64; 3 * self.world_size()];
        self.all_gather(&mine, &mut all, &CallOptions::default())?;
        let rows: Vec<&[i64]> = all.chunks_exact(3).collect();
        if let Some(rank) = rows.iter().position(|row| row[2] < 0) {
            let what = format!("rank {rank} has no number left for a communicator: keep those that there are");
            return Err(self.world.usage("split", what));
        }
        let Some(color) = color.map(i64::from) else { return Ok(None) };
        let mut members: Vec<usize> = (0..rows.len()).filter(|&rank| rows[rank][0] == color).collect();
        members.sort_by_key(|&rank| (rows[rank][1], rank));
        let rank = members.iter().position(|&rank| rank == self.rank()).unwrap_or(0);
        let topology = self.topology().subset(&members);
        // Every rank offers a number of its own, so that groups that are split at the same time get different ones.
        let id = rows[members[0]][2] as u32;
        let members = members.into_iter().map(|rank| self.group.members[rank]).collect();
        let group = Arc::new(Group::new(id, members, topology, rank));
        Ok(Some(Communicator { world: self.world.clone(), group }))
    }

    /// Gives up: every pending and later operation of this rank's communicators fails, and the peers are told why.
    pub fn abort(&self, reason: &str) {
        let reason = format!("the program called abort: {reason}");
        self.world.context.with(|core| core.fail(Failure::Cancelled { reason }));
    }

    /// Starts an operation.
    pub(crate) fn start(&self, call: Call) -> Result<(Ticket, OperationKey), CommError> {
        let kind = call.kind;
        let chosen = self.choose(&call)?;
        let (request, memory) = self.request(call, chosen);
        let key = request.key;
        let posted = self.world.context.post(request, memory);
        Ok((posted.map_err(|failure| self.not_started(kind, &key, failure))?, key))
    }

    /// Why an operation was not started: because the communicator has failed, or because it was refused. Then nothing
    /// was sent, and everything else goes on.
    pub(crate) fn not_started(&self, kind: CollectiveKind, key: &OperationKey, failure: Failure) -> CommError {
        match failure {
            Failure::Cancelled { reason } if !self.world.context.with(|core| core.engine.failure().is_some()) => {
                self.usage(kind, reason)
            }
            failure => self.world.error(name(kind, key), failure),
        }
    }

    /// What a call runs. Comes before the call takes its number: the peers know nothing of a call that is refused.
    pub(crate) fn choose(&self, call: &Call) -> Result<Chosen, CommError> {
        let question = Question::of(call, self.world.costs_version());
        if let Some(known) = question.and_then(|question| self.group.recent.find(&question)) {
            return Ok(known);
        }
        let chosen = self.choose_anew(call)?;
        if let Some(question) = question {
            self.group.recent.remember(question, chosen.clone());
        }
        Ok(chosen)
    }

    fn choose_anew(&self, call: &Call) -> Result<Chosen, CommError> {
        let (programs, topology, block_bytes) =
            (&self.world.programs, self.topology_of(&call.route), call.block_bytes());
        let rank = match call.route {
            None => self.rank(),
            Some((_, receiver, _)) => usize::from(self.rank() == receiver),
        };
        if let Some(program) = &call.program {
            let choice = Choice::of_caller(call.settings.chunk_bytes.unwrap_or(block_bytes));
            return Ok(Chosen { choice, schedule: program.schedule(rank) });
        }
        let (variable, costs) = (call.layout.variable(), self.link_costs());
        let choice = programs.choose(call.kind, topology, block_bytes, variable, &costs, &call.settings)?;
        let apart = call.input.is_apart_from(&call.output);
        Ok(Chosen { choice, schedule: programs.schedule(&choice, rank, topology, call.root, apart) })
    }

    /// Who shares a host among those that a call concerns: the group, or the two ranks of a message.
    fn topology_of(&self, route: &Option<(usize, usize, u32)>) -> &Topology {
        static TOGETHER: LazyLock<Topology> = LazyLock::new(|| Topology::flat(2));
        static APART: LazyLock<Topology> = LazyLock::new(|| Topology::regular(2, 1));
        match *route {
            None => self.topology(),
            Some((sender, receiver, _)) if self.topology().same_host(sender, receiver) => &TOGETHER,
            Some(_) => &APART,
        }
    }

    /// Makes a call an operation of a group of the world: this one, or the two ranks of a message.
    pub(crate) fn request(&self, call: Call, chosen: Chosen) -> (Request, OperationMemory) {
        let Chosen { choice, schedule } = chosen;
        let (key, members) = match call.route {
            None => (self.collective_key(&call.settings), self.group.members.clone()),
            Some((sender, receiver, tag)) => self.message_key(sender, receiver, tag),
        };
        let world = members.len();
        let geometry = call.layout.geometry(call.data_type.size(), choice.tile_bytes);
        let signature = Signature {
            collective: call.kind.code(),
            data_type: call.data_type.code(),
            reduction: call.reduction.code(),
            algorithm: choice.index,
            root: call.root as u32,
            elements: call.layout.total,
            tile_elements: call.layout.signed_tile_elements(&geometry),
            fingerprint: call.layout.fingerprint,
        };
        let request = Request {
            key,
            signature,
            schedule,
            geometry,
            group: members,
            priority: call.settings.priority,
            deadline: call.settings.timeout.unwrap_or(self.world.timeout), // From when it is posted.
            window: paceline_collective::WINDOW as u32,
            shared_memory: self.is_shared(&call.input) && self.is_shared(&call.output),
            input_lengths: call.program.as_ref().and_then(VerifiedProgram::input_lengths),
            tuning: call.settings.tuning,
        };
        let memory = OperationMemory {
            kernels: call.program.as_ref().map(VerifiedProgram::kernels),
            lengths: call.program.as_ref().map(VerifiedProgram::lengths),
            described: self.described(&call, &request, &choice),
            input: call.input,
            output: call.output,
            elementwise: Elementwise { data_type: call.data_type, reduction: call.reduction, divisor: 1 },
            divisor: call.kind.contributors(world) as u32,
            reducing_threads: call.settings.tuning.reducing_threads.into(),
            scratch: None,
            _owners: call.owners,
            background: call.background,
        };
        (request, memory)
    }

    /// Do the peers map it? A buffer's owner does not tell: it may come from another world's arena, which they do not.
    fn is_shared(&self, span: &Span) -> bool {
        span.bytes == 0
            || self.world.arena.as_ref().is_some_and(|arena| arena.offset_of(span.start, span.bytes).is_some())
    }

    /// What records say of a call, if somebody wants them.
    fn described(&self, call: &Call, request: &Request, choice: &Choice) -> Option<Box<Described>> {
        let describe = || {
            Box::new(Described {
                key: request.key,
                collective: call.kind,
                data_type: call.data_type,
                bytes: call.input.bytes.max(call.output.bytes),
                algorithm: if call.program.is_some() { "program" } else { choice.algorithm.name() },
                chunk_bytes: request.geometry.tile_elements * request.geometry.element_bytes,
                tuning: call.settings.tuning,
                tag: call.settings.tag,
                origin: call.settings.origin,
                start: Duration::ZERO,
            })
        };
        self.world.recording.load(Ordering::Relaxed).then(describe)
    }

    /// Runs an operation to its end.
    pub(crate) fn run(&self, call: Call) -> Result<(), CommError> {
        let kind = call.kind;
        let chosen = self.choose(&call)?;
        let (request, memory) = self.request(call, chosen);
        let key = request.key;
        // From here on the operation may touch the caller's memory: no way out before it has ended.
        let guard = NoUnwind(&self.world);
        let outcome = match self.world.context.run(request, memory) {
            Ok(ticket) => ticket.outcome().map_err(|failure| self.world.error(name(kind, &key), failure)),
            Err(failure) => Err(self.not_started(kind, &key, failure)),
        };
        std::mem::forget(guard);
        outcome
    }

    pub(crate) fn finish(&self, ticket: &Ticket, kind: CollectiveKind, key: &OperationKey) -> Result<(), CommError> {
        self.world.context.wait(ticket, None);
        ticket.outcome().map_err(|failure| self.world.error(name(kind, key), failure))
    }

    fn collective_key(&self, options: &Settings) -> OperationKey {
        let (communicator, operation) = match options.operation {
            Some(operation) => (self.group.id | OperationKey::NAMED, operation),
            None => (self.group.id, self.group.sequence.fetch_add(1, Ordering::Relaxed)),
        };
        OperationKey { communicator, epoch: 0, plan_version: options.plan_version, part: options.part, operation }
    }

    /// Messages between two ranks with one tag are matched in the order in which they are sent and received.
    fn message_key(&self, sender: usize, receiver: usize, tag: u32) -> (OperationKey, Arc<[usize]>) {
        let mut messages = self.group.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = || (0, [self.group.members[sender], self.group.members[receiver]].into());
        let (count, pair) = messages.entry((sender, receiver, tag)).or_insert_with(pair);
        let operation = (sender as u64) << 48 | (receiver as u64) << 32 | (*count & u64::from(u32::MAX));
        *count += 1;
        let communicator = self.group.id | OperationKey::POINT_TO_POINT;
        (OperationKey { communicator, epoch: 0, plan_version: 0, part: tag, operation }, pair.clone())
    }

    /// A mistake of the caller.
    pub(crate) fn usage(&self, kind: CollectiveKind, what: String) -> CommError {
        self.world.usage(kind.name(), what)
    }
}

impl Group {
    fn new(id: u32, members: Arc<[usize]>, topology: Topology, rank: usize) -> Group {
        Group {
            id,
            members,
            topology,
            rank,
            sequence: AtomicU64::new(0),
            recent: Recent::default(),
            messages: Mutex::default(),
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}

/// A panic while an operation uses a caller's slices must not free them under it: everything fails first.
pub(crate) struct NoUnwind<'a>(pub &'a World);

impl Drop for NoUnwind<'_> {
    fn drop(&mut self) {
        self.0.context.with(|core| core.fail(Failure::Cancelled { reason: "a thread panicked in a call".into() }));
    }
}
