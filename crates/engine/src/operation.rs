use std::sync::Arc;

use paceline_collective::{Action, Message, Slot, Space, StepId};
use paceline_plan::{OperationKey, Rank};

use crate::frame::Signature;
use crate::interface::{LinkTraits, OpId, Time, Tuning};
use crate::outgoing::Outgoing;
use crate::peer::Pooled;
use crate::stall::StallReports;
use crate::{Geometry, RankSchedule, Region};

/// An operation that is being executed. The structure is used again for later operations, with its memory.
#[derive(Debug)]
pub(crate) struct Operation {
    pub live: bool,
    pub generation: u32,
    pub key: OperationKey,
    pub signature: Signature,
    pub schedule: Arc<RankSchedule>,
    pub geometry: Geometry,
    /// Ranks of the world, by rank of the group.
    pub group: Arc<[Rank]>,
    pub priority: u32,
    pub sequence: u64,
    pub deadline: Time,
    /// Its memory can be read by every peer of the host.
    pub shared_memory: bool,
    /// Too large to go eagerly: receives grant at once.
    pub large: bool,
    pub window: u32,
    pub next_tile: u32,
    pub tiles_done: u32,
    /// The first `window` are used; the others have nothing left to do.
    pub tiles: Vec<Tile>,
    /// Grants, also for tiles that have not started here: bit `(tile % (2·window))·steps + step`.
    granted: Vec<bool>,
    /// By rank of the group.
    pub edges: Vec<Edge>,
    pub pooled: Vec<Pooled>,
    /// When a step was completed last, or some bytes arrived.
    pub last_progress: Time,
    /// How often it has been nudged since a step was completed, and when last.
    pub nudges: u32,
    pub nudged_at: Time,
    pub stall: StallReports,
    pub last_arrival: Option<Time>,
    pub tuning: Tuning,
    input_lengths: Vec<usize>,
}

/// One tile in flight.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    pub tile: u32,
    /// Steps that are not complete.
    pub left: usize,
    pub steps: Vec<StepState>,
    /// By block (input, output, scratch) and part, where they are kept: how many parts what was last written from there
    /// on took, and its actual bytes. No parts: as the geometry says.
    lengths: Vec<(u32, usize)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepState {
    /// Steps that it still waits for.
    pub waits: u32,
    pub phase: Phase,
    /// Sends: a reference goes instead of the bytes.
    pub by_reference: bool,
    /// A frame was handed to the link (sends), has begun to arrive, or was taken from the pool (receives).
    pub begun: bool,
    /// Receives: the message takes its [`crate::shortcut::Shortcut`]. Combinations: a message took it, nothing is left.
    pub folded: bool,
    /// Receives: the peer was told to send.
    pub granted: bool,
    /// Bytes of the message or slot; known once the step has started (receives: once it has begun).
    pub total: usize,
    /// Bytes handed to the link (sends), or of the frames that have begun to arrive (receives).
    pub sent: usize,
    /// Bytes done: acknowledged (sends), in place (receives).
    pub moved: usize,
    /// Receives: the eager credit to return when the message is in place.
    pub credit: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Waiting,
    /// A send without permission.
    Parked,
    Started,
    Done,
}

/// What is known of one peer in this operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edge {
    /// It has shown a sign of having started the operation.
    pub heard: bool,
    /// It was sent something eagerly, and so many bytes.
    pub eager: bool,
    pub eager_bytes: usize,
    /// For the nudge that is being made: it waits for something.
    pub waits: bool,
    /// The rank of the group for which it waits in its turn, or one beyond, and which has not started the operation.
    pub blames: Option<Rank>,
}

impl Operation {
    pub fn idle() -> Operation {
        let schedule = Arc::new(RankSchedule::new(&paceline_collective::RankProgram::default(), 1));
        Operation {
            live: false,
            generation: 0,
            key: OperationKey::default(),
            signature: Signature::default(),
            schedule,
            geometry: Geometry::uniform(1, 0, 1),
            group: Arc::new([]),
            priority: 0,
            sequence: 0,
            deadline: Time::MAX,
            shared_memory: false,
            large: false,
            window: 0,
            next_tile: 0,
            tiles_done: 0,
            tiles: Vec::new(),
            granted: Vec::new(),
            edges: Vec::new(),
            pooled: Vec::new(),
            last_progress: Time::ZERO,
            nudges: 0,
            nudged_at: Time::ZERO,
            stall: StallReports::default(),
            last_arrival: None,
            tuning: Tuning::default(),
            input_lengths: Vec::new(),
        }
    }

    /// Makes room for the operation whose fields have been set.
    pub fn prepare(&mut self, input_lengths: Option<&[usize]>) {
        let steps = self.schedule.steps();
        self.next_tile = 0;
        self.tiles_done = 0;
        // Never shorter: tiles beyond the window keep their memory for a later operation.
        self.tiles.resize_with(self.tiles.len().max(self.window as usize), Tile::default);
        self.granted.clear();
        self.granted.resize(2 * self.window as usize * steps, false);
        self.edges.clear();
        self.edges.resize(self.group.len(), Edge::default());
        self.nudges = 0;
        self.stall = StallReports::default();
        self.last_arrival = None;
        self.input_lengths.clear();
        self.input_lengths.extend_from_slice(input_lengths.unwrap_or(&[]));
    }

    /// Starts the next tile; its index in `tiles`.
    pub fn start_tile(&mut self) -> u32 {
        let tile = self.next_tile;
        self.next_tile += 1;
        let keeps_lengths = self.keeps_lengths();
        let slot = &mut self.tiles[(tile % self.window) as usize];
        slot.tile = tile;
        slot.left = self.schedule.steps();
        slot.steps.clear();
        slot.steps.extend(self.schedule.waits().iter().map(|&waits| StepState { waits, ..StepState::default() }));
        if keeps_lengths {
            slot.lengths.clear();
            let blocks = |space| self.schedule.blocks_named(space) as usize;
            let (input, output, scratch) = (blocks(Space::Input), blocks(Space::Output), blocks(Space::Scratch));
            let parts = self.schedule.parts();
            slot.lengths.resize((input + output + scratch) * parts as usize, (0, 0));
            let firsts = slot.lengths.iter_mut().step_by(parts as usize);
            for (length, &given) in firsts.zip(self.input_lengths.iter().take(input)) {
                *length = (parts, given);
            }
        }
        tile
    }

    /// May what lies in a slot be shorter than the slot?
    pub fn keeps_lengths(&self) -> bool {
        self.schedule.dynamic() || self.geometry.variable()
    }

    /// Is this tile in flight?
    pub fn in_flight(&self, tile: u32) -> bool {
        tile < self.next_tile && self.window > 0 && self.tiles[(tile % self.window) as usize].tile == tile
    }

    /// Does this message still wait for permission?
    pub fn is_parked(&self, message: &Outgoing) -> bool {
        self.live
            && self.generation == message.op.generation
            && self.in_flight(message.tile)
            && self.tiles[(message.tile % self.window) as usize].steps[message.step as usize].phase == Phase::Parked
    }

    pub fn state(&mut self, tile: u32, step: StepId) -> &mut StepState {
        &mut self.tiles[(tile % self.window) as usize].steps[step as usize]
    }

    /// What becomes of the message of a receive that has begun.
    pub fn arriving(&mut self, tile: u32, step: StepId) -> Action {
        let folded = self.state(tile, step).folded;
        match self.schedule.shortcut(step).filter(|_| folded) {
            Some(shortcut) => shortcut.action,
            None => *self.schedule.action(step),
        }
    }

    /// Records a grant; false if the tile is further ahead than any peer that keeps the protocol can be.
    pub fn grant(&mut self, tile: u32, step: StepId) -> bool {
        let base = self.next_tile.saturating_sub(self.window);
        if tile < base || tile >= base.saturating_add(2 * self.window) || tile >= self.geometry.tiles {
            return false;
        }
        let index = self.grant_index(tile, step);
        self.granted[index] = true;
        true
    }

    /// Takes the grant for a send, if it is there.
    pub fn take_grant(&mut self, tile: u32, step: StepId) -> bool {
        let index = self.grant_index(tile, step);
        std::mem::take(&mut self.granted[index])
    }

    fn grant_index(&self, tile: u32, step: StepId) -> usize {
        (tile % (2 * self.window)) as usize * self.schedule.steps() + step as usize
    }

    /// The actual bytes of a slot.
    pub fn slot_bytes(&self, slot: &Slot, tile: u32) -> usize {
        let parts = self.schedule.parts();
        match self.length_index(slot) {
            Some(index) => {
                // A length is known of what was written as a whole, not of pieces of it.
                let (of, known) = self.tiles[(tile % self.window) as usize].lengths[index];
                if of == slot.parts { known } else { self.geometry.capacity(slot, tile, parts) }
            }
            None => self.geometry.capacity(slot, tile, parts),
        }
    }

    /// Remembers the actual length of what was written to a slot.
    pub fn set_slot_bytes(&mut self, slot: &Slot, tile: u32, bytes: usize) {
        if let Some(index) = self.length_index(slot) {
            self.tiles[(tile % self.window) as usize].lengths[index] = (slot.parts, bytes);
        }
    }

    /// The actual bytes of the output blocks, if kernels decide them.
    pub fn output_lengths(&self) -> Vec<usize> {
        if !self.schedule.dynamic() || self.geometry.tiles > 1 {
            return Vec::new();
        }
        let parts = self.schedule.parts();
        let block = |block| Slot { space: Space::Output, block, blocks: 1, part: 0, parts };
        (0..self.schedule.blocks_named(Space::Output)).map(|index| self.slot_bytes(&block(index), 0)).collect()
    }

    /// Lengths are kept for single blocks and parts of them.
    fn length_index(&self, slot: &Slot) -> Option<usize> {
        if !self.keeps_lengths() || slot.blocks != 1 {
            return None;
        }
        let blocks = |space| self.schedule.blocks_named(space) as usize;
        let before = match slot.space {
            Space::Input => 0,
            Space::Output => blocks(Space::Input),
            Space::Scratch => blocks(Space::Input) + blocks(Space::Output),
        };
        Some((before + slot.block as usize) * self.schedule.parts() as usize + slot.part as usize)
    }

    /// The memory at `position` of a slot, up to the end of its block: messages are the blocks one after the other.
    pub fn region(&self, id: OpId, slot: &Slot, tile: u32, position: usize) -> Region {
        let parts = self.schedule.parts();
        let mut skipped = 0;
        let mut region = Region { op: id, space: slot.space, offset: 0, bytes: 0 };
        for nth in 0..slot.blocks {
            let (offset, bytes) = self.geometry.piece(slot, nth, tile, parts);
            if position < skipped + bytes || nth + 1 == slot.blocks {
                region.offset = offset + (position - skipped);
                region.bytes = (skipped + bytes).saturating_sub(position);
                break;
            }
            skipped += bytes;
        }
        if slot.space == Space::Scratch {
            let tile_scratch = self.schedule.scratch_blocks() as usize * self.geometry.scratch_block_bytes();
            region.offset += (tile % self.window) as usize * tile_scratch;
        }
        region
    }

    /// How many bytes of a message one reference may name. Kernels need their operands whole.
    pub fn reference_bytes(&self, traits: &LinkTraits) -> usize {
        let whole = self.shared_memory || self.schedule.dynamic();
        traits.reference_at_most.filter(|_| !whole).unwrap_or(usize::MAX)
    }

    /// Into how many references of at most so many bytes the message in a slot falls: each block has its own.
    pub fn pieces(&self, slot: &Slot, tile: u32, at_most: usize) -> usize {
        let parts = self.schedule.parts();
        let pieces = (0..slot.blocks).map(|nth| self.geometry.piece(slot, nth, tile, parts).1.div_ceil(at_most));
        pieces.sum::<usize>().max(1)
    }

    /// The pooled message of this name.
    pub fn find_pooled(&self, from: Rank, tile: u32, message: Message) -> Option<usize> {
        self.pooled.iter().position(|pooled| pooled.is(from, tile, message))
    }

    /// The rank of the group that a rank of the world has here.
    pub fn group_rank(&self, world_rank: Rank) -> Option<Rank> {
        if self.group.get(world_rank) == Some(&world_rank) {
            return Some(world_rank);
        }
        self.group.iter().position(|&rank| rank == world_rank)
    }
}
