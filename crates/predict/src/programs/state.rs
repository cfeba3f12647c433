//! What an operation has done so far.

use std::ops::Range;
use std::rc::Rc;

use paceline_collective::cost::Load;
use paceline_collective::tiles;

use super::PreparedProgram;
use super::prepared::NONE;

/// An operation that may be done again and again: its program, and what that carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    /// Of all ranks of the machine. Whoever has no part in it has no steps.
    pub program: &'a PreparedProgram,
    pub load: Load,
}

/// When an operation has its turn: of m operations the n-th one of iteration i, both from 0 on, has i·m + n. Of what waits for the
/// same connection or the same rank, the earliest turn goes first.
pub(crate) type Turn = u32;

/// An operation in one of its turns.
pub(super) struct State<'a> {
    pub operation: Operation<'a>,
    tiles: u32,
    pub window: usize,
    /// Which of the machine's channels each one of the program is.
    pub channels: Rc<[u32]>,
    pub turn: Turn,
    /// Those that have steps left. 0: it is not under way.
    pub ranks_left: usize,
    /// By rank: tiles that it has begun, and that it has not ended.
    begun: Vec<u32>,
    left: Vec<u32>,
    /// The places of the tiles of each rank, `window` of them one after the other: a tile is at its number modulo that.
    pub places: Vec<Place>,
    /// How many steps each step still waits for, place by place; or [`BEGUN`], or [`ON_ITS_WAY`].
    pub waits: Vec<u32>,
}

/// Where a rank keeps the state of a tile.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub tile: u32,
    /// Steps that have not ended.
    pub left: u32,
}

/// Both sides of a message were ready, or the tile has not begun yet. So a side whose own tile has begun and that finds no
/// wait left at the other side finds it in the same tile: an earlier one would have had to end there before a later one
/// could begin at the same place.
pub(super) const BEGUN: u32 = u32::MAX;

/// A send is ready, and its message on its way to the receiver.
pub(super) const ON_ITS_WAY: u32 = u32::MAX - 1;

/// What has come to its end with a step.
pub(super) enum Ended {
    /// Nothing else.
    Step,
    /// Its tile, and others are left.
    Tile,
    /// All that the rank does in the operation.
    Operation,
}

impl<'a> State<'a> {
    pub fn new(operation: Operation<'a>, channels: Rc<[u32]>) -> State<'a> {
        let load = operation.load;
        assert!(load.window > 0 && load.tile_bytes > 0, "nothing is in flight: {load:?}");
        let count = tiles(load.bytes, load.tile_bytes);
        assert!(count < NONE as usize, "too many tiles: {load:?}");
        State {
            operation,
            tiles: count as u32,
            window: load.window.min(count),
            channels,
            turn: 0,
            ranks_left: 0,
            begun: Vec::new(),
            left: Vec::new(),
            places: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// The first rank is about to begin.
    pub fn open(&mut self, turn: Turn) {
        let program = self.operation.program;
        let world = program.world();
        self.turn = turn;
        self.ranks_left = (0..world).filter(|&rank| !program.steps_of(rank).is_empty()).count();
        refill(&mut self.begun, world, 0);
        refill(&mut self.left, world, self.tiles);
        refill(&mut self.places, self.window * world, Place { tile: NONE, left: 0 });
        refill(&mut self.waits, self.window * program.steps(), BEGUN);
    }

    /// Where the waits of a step in a tile are counted.
    pub fn place(&self, tile: u32, step: u32) -> usize {
        tile as usize % self.window * self.operation.program.steps() + step as usize
    }

    /// Begins the next tile of a rank, whose steps these are, if there is one and its place is free. Which one.
    pub fn begin_tile(&mut self, rank: usize, steps: Range<usize>) -> Option<u32> {
        let tile = self.begun[rank];
        if tile >= self.tiles {
            return None;
        }
        let place = &mut self.places[rank * self.window + tile as usize % self.window];
        if place.left > 0 {
            return None;
        }
        *place = Place { tile, left: steps.len() as u32 };
        self.begun[rank] += 1;
        let first = self.place(tile, steps.start as u32);
        let waits = self.waits[first..first + steps.len()].iter_mut();
        waits.zip(&self.operation.program.steps[steps]).for_each(|(waits, step)| *waits = step.waits);
        Some(tile)
    }

    pub fn end_step(&mut self, rank: usize, tile: u32) -> Ended {
        let place = &mut self.places[rank * self.window + tile as usize % self.window];
        place.left -= 1;
        if place.left > 0 {
            return Ended::Step;
        }
        self.left[rank] -= 1;
        if self.left[rank] > 0 {
            return Ended::Tile;
        }
        self.ranks_left -= 1;
        Ended::Operation
    }
}

/// As many of these as wanted, in the memory that is there.
fn refill<T: Clone>(values: &mut Vec<T>, count: usize, value: T) {
    values.clear();
    values.resize(count, value);
}
