//! What a cell holds: an expression over the contributions of the ranks, each stored once, so that equal expressions
//! have equal numbers.

use std::collections::HashMap;

use paceline_plan::Rank;

use super::Reason;
use crate::program::{Combine, KernelId, StepId};

/// The number of an expression.
pub(super) type Id = u32;

/// What is known about an expression.
pub(super) struct Expression {
    /// The block and the part that its contributions come from.
    pub place: (u32, u32),
    /// Is it the final result of a reduction?
    pub last: bool,
    /// The step that made it first; None for an input.
    pub made_by: Option<(Rank, StepId)>,
    /// If a kernel wrote several cells as a whole: the expression of its first cell, and which of how many this is.
    pub piece: Option<(Id, usize, usize)>,
}

/// What makes two expressions equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Input(Rank, (u32, u32)),
    /// Commutes, so the smaller operand stands first.
    Reduced(Id, Id, bool),
    /// A kernel's piece also depends on how many there are and on the first.
    Combined(KernelId, Id, Id, bool, (usize, Option<Id>)),
    Mapped(KernelId, Id, (usize, Option<Id>)),
}

/// All expressions of one symbolic execution.
pub(super) struct Expressions {
    /// Words of a set of ranks.
    words: usize,
    world: usize,
    /// The rank that has nothing to contribute.
    silent: Option<Rank>,
    numbers: HashMap<Key, Id>,
    all: Vec<Expression>,
    /// For each expression the set of ranks that contribute.
    contributors: Vec<u64>,
}

/// Which cell of how many a step writes, and the expression of the first.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub head: Option<Id>,
    pub index: usize,
    pub of: usize,
}

impl Expressions {
    pub fn new(world: usize, silent: Option<Rank>) -> Self {
        let words = world.div_ceil(64);
        Expressions { words, world, silent, numbers: HashMap::new(), all: Vec::new(), contributors: Vec::new() }
    }

    pub fn get(&self, id: Id) -> &Expression {
        &self.all[id as usize]
    }

    /// The contribution of a rank: a cell of its input.
    pub fn input(&mut self, rank: Rank, place: (u32, u32)) -> Id {
        let start = self.contributors.len();
        self.contributors.resize(start + self.words, 0);
        self.contributors[start + rank / 64] = 1 << (rank % 64);
        self.insert(Key::Input(rank, place), Expression { place, last: false, made_by: None, piece: None })
    }

    /// The combination of two expressions; refused if a contribution would count twice or a final value would change.
    pub fn combine(
        &mut self,
        combine: Combine,
        (left, right): (Id, Id),
        last: bool,
        by: (Rank, StepId),
        piece: Piece,
    ) -> Result<Id, Reason> {
        let key = match combine {
            Combine::Reduction => Key::Reduced(left.min(right), left.max(right), last),
            Combine::Kernel(kernel) => Key::Combined(kernel, left, right, last, (piece.of, piece.head)),
        };
        if let Some(&known) = self.numbers.get(&key) {
            return Ok(known);
        }
        let (one, other) = (self.get(left), self.get(right));
        if one.place != other.place {
            return Err(Reason::Mixed { left: one.place, right: other.place });
        }
        if one.last || other.last {
            return Err(Reason::AfterLast);
        }
        let place = one.place;
        let start = self.contributors.len();
        for word in 0..self.words {
            let (one, other) = (self.set(left)[word], self.set(right)[word]);
            if one & other != 0 {
                self.contributors.truncate(start);
                return Err(Reason::Twice(word * 64 + (one & other).trailing_zeros() as usize));
            }
            self.contributors.push(one | other);
        }
        if last && let Some(missing) = self.missing(&self.contributors[start..]) {
            self.contributors.truncate(start);
            return Err(Reason::LastTooEarly(missing));
        }
        let piece = if combine == Combine::Reduction { None } else { self.piece(piece) };
        Ok(self.insert(key, Expression { place, last, made_by: Some(by), piece }))
    }

    /// What a kernel makes of an expression.
    pub fn map(&mut self, kernel: KernelId, from: Id, by: (Rank, StepId), piece: Piece) -> Id {
        let key = Key::Mapped(kernel, from, (piece.of, piece.head));
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let range = from as usize * self.words..(from as usize + 1) * self.words;
        self.contributors.extend_from_within(range);
        let Expression { place, last, .. } = *self.get(from);
        let piece = self.piece(piece);
        self.insert(key, Expression { place, last, made_by: Some(by), piece })
    }

    /// The first rank whose contribution an expression lacks.
    pub fn lacks(&self, id: Id) -> Option<Rank> {
        self.missing(self.set(id))
    }

    /// Is this rank the only one that contributes?
    pub fn is_of(&self, id: Id, rank: Rank) -> bool {
        let own = |word: usize| if rank / 64 == word { 1 << (rank % 64) } else { 0 };
        self.set(id).iter().enumerate().all(|(word, &present)| present == own(word))
    }

    /// The ranks that contribute.
    pub fn contributors(&self, id: Id) -> impl Iterator<Item = Rank> {
        let set = self.set(id);
        (0..self.world).filter(move |rank| set[rank / 64] >> (rank % 64) & 1 == 1)
    }

    fn set(&self, id: Id) -> &[u64] {
        &self.contributors[id as usize * self.words..(id as usize + 1) * self.words]
    }

    fn missing(&self, set: &[u64]) -> Option<Rank> {
        set.iter().enumerate().find_map(|(word, present)| {
            let first = 64 * word;
            let all = u64::MAX >> (64 - (self.world - first).min(64));
            let silent = self.silent.filter(|&rank| rank / 64 == word).map_or(0, |rank| 1 << (rank % 64));
            let missing = all & !present & !silent;
            (missing != 0).then(|| first + missing.trailing_zeros() as usize)
        })
    }

    fn piece(&self, piece: Piece) -> Option<(Id, usize, usize)> {
        (piece.of > 1).then(|| (piece.head.unwrap_or(self.all.len() as Id), piece.index, piece.of))
    }

    fn insert(&mut self, key: Key, expression: Expression) -> Id {
        let id = self.all.len() as Id;
        self.numbers.insert(key, id);
        self.all.push(expression);
        id
    }
}
