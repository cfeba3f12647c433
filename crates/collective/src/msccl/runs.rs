//! Where chunks lie in a program, and how a list of chunks becomes a few slots.

use crate::program::{Slot, Space};

/// Consecutive cells of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub space: Space,
    /// Block × parts + part of the first. Blocks of scratch are numbered with gaps until [`Run::slot`].
    pub at: u64,
    pub cells: u64,
    /// What they take in makes them final.
    pub last: bool,
}

/// Appends a cell, to the last run if it follows there.
pub(super) fn push(runs: &mut Vec<Run>, space: Space, at: u64, last: bool) {
    match runs.last_mut() {
        Some(run) if run.space == space && run.at + run.cells == at && run.last == last => run.cells += 1,
        _ => runs.push(Run { space, at, cells: 1, last }),
    }
}

/// Cuts lists of as many cells, of which the same parts stand at the same places, into pieces that are a slot each in
/// every list: parts of one block, or whole blocks.
pub(super) fn pieces(lists: &[&[Run]], parts: u32) -> Vec<Vec<Run>> {
    let parts = u64::from(parts);
    // Which run of each list comes next, and how many of its cells are gone.
    let mut cursors = vec![(0, 0); lists.len()];
    let mut pieces = Vec::new();
    loop {
        let rest = |(list, (run, gone)): (&&[Run], &(usize, u64))| {
            list.get(*run).map(|run| Run { at: run.at + gone, cells: run.cells - gone, ..*run })
        };
        let Some(mut piece) = lists.iter().zip(&cursors).map(rest).collect::<Option<Vec<Run>>>() else {
            return pieces;
        };
        let (Some(first), Some(shortest)) = (piece.first(), piece.iter().map(|run| run.cells).min()) else {
            return pieces;
        };
        let part = first.at % parts;
        let cells = match shortest {
            _ if part > 0 => shortest.min(parts - part),
            _ if shortest > parts => shortest - shortest % parts,
            _ => shortest,
        };
        for (cursor, run) in cursors.iter_mut().zip(&mut piece) {
            *cursor = if run.cells == cells { (cursor.0 + 1, 0) } else { (cursor.0, cursor.1 + cells) };
            run.cells = cells;
        }
        pieces.push(piece);
    }
}

impl Run {
    /// The slot that a piece is. `scratch` has the blocks of scratch that are in use, rising.
    pub fn slot(&self, parts: u32, scratch: &[u64]) -> Slot {
        let (block, part) = (self.at / u64::from(parts), (self.at % u64::from(parts)) as u32);
        let block = match self.space {
            Space::Scratch => scratch.partition_point(|&used| used < block) as u32,
            Space::Input | Space::Output => block as u32,
        };
        let cells = self.cells as u32;
        if part + cells <= parts {
            return Slot::of_parts(self.space, block, part, cells);
        }
        Slot { space: self.space, block, blocks: cells / parts, part, parts }
    }

    /// The blocks that it touches.
    pub fn blocks(&self, parts: u32) -> impl Iterator<Item = u64> + use<> {
        let parts = u64::from(parts);
        self.at / parts..=(self.at + self.cells - 1) / parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(space: Space, at: u64, cells: u64) -> Run {
        Run { space, at, cells, last: false }
    }

    #[test]
    fn cells_that_follow_each_other_are_one_run() {
        let mut runs = Vec::new();
        for (space, at) in [(Space::Input, 2), (Space::Input, 3), (Space::Output, 4), (Space::Output, 6)] {
            push(&mut runs, space, at, false);
        }
        assert_eq!(runs, [run(Space::Input, 2, 2), run(Space::Output, 4, 1), run(Space::Output, 6, 1)]);
    }

    #[test]
    fn a_piece_is_some_parts_of_one_block_or_whole_blocks() {
        // Blocks of 3: the last part of block 0, blocks 1 and 2, the first part of block 3.
        let one = [run(Space::Input, 2, 8)];
        let other = [run(Space::Output, 5, 5), run(Space::Scratch, 1, 3)];
        let slots = |lists: &[&[Run]]| {
            let slot = |run: &Run| run.slot(3, &[0, 1]).to_string();
            pieces(lists, 3).iter().map(|piece| piece.iter().map(slot).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        assert_eq!(
            slots(&[&one]).concat(),
            ["input blocks 0..1 parts 2..3", "input blocks 1..3 parts 0..3", "input blocks 3..4 parts 0..1"]
        );
        let both = slots(&[&one, &other]).concat();
        assert_eq!(both.iter().filter(|slot| slot.starts_with("input")).count(), 5);
        assert_eq!(
            both[..4],
            [
                "input blocks 0..1 parts 2..3",
                "output blocks 1..2 parts 2..3",
                "input blocks 1..2 parts 0..3",
                "output blocks 2..3 parts 0..3"
            ]
        );
    }

    #[test]
    fn blocks_of_scratch_are_numbered_without_gaps() {
        assert_eq!(
            run(Space::Scratch, 21, 6).slot(3, &[2, 7, 8]),
            Slot { block: 1, blocks: 2, ..run(Space::Scratch, 0, 3).slot(3, &[]) }
        );
    }
}
