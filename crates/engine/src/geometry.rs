use std::sync::Arc;

use paceline_collective::{Slot, Space};

/// The lengths of the blocks of a call, and how they are cut into tiles: what turns a [`Slot`] into bytes.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes per element.
    pub element_bytes: usize,
    /// Elements of a block in one tile. At least 1.
    pub tile_elements: usize,
    /// How often the program is repeated: the longest block of any rank in tiles, at least 1.
    pub tiles: u32,
    /// The blocks of the input.
    pub input: Blocks,
    /// The blocks of the output.
    pub output: Blocks,
}

/// The lengths of the blocks of one buffer, which lie one after the other.
#[derive(Clone, Debug)]
pub enum Blocks {
    /// All of this many elements.
    Uniform(usize),
    /// Block b is `offsets[b] .. offsets[b + 1]`, in elements.
    Offsets(Arc<[usize]>),
}

impl Blocks {
    /// The elements of the longest block.
    fn longest(&self) -> usize {
        match self {
            Blocks::Uniform(elements) => *elements,
            Blocks::Offsets(offsets) => offsets.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0),
        }
    }

    /// Where a block begins, and how many elements it has.
    fn block(&self, block: u32) -> (usize, usize) {
        match self {
            Blocks::Uniform(elements) => (block as usize * elements, *elements),
            Blocks::Offsets(offsets) => {
                let start = offsets[block as usize];
                (start, offsets[block as usize + 1] - start)
            }
        }
    }
}

impl Geometry {
    /// All blocks of all ranks of `elements`.
    pub fn uniform(element_bytes: usize, elements: usize, tile_elements: usize) -> Geometry {
        let tile_elements = tile_elements.max(1);
        // Where they are more than can be counted, the operation is refused.
        let tiles = u32::try_from(elements.div_ceil(tile_elements).max(1)).unwrap_or(u32::MAX);
        let blocks = Blocks::Uniform(elements);
        Geometry { element_bytes, tile_elements, tiles, input: blocks.clone(), output: blocks }
    }

    /// Do the tiles cover all blocks?
    pub(crate) fn is_covered(&self) -> bool {
        let longest = self.input.longest().max(self.output.longest());
        self.tile_elements.saturating_mul(self.tiles as usize) >= longest
    }

    /// Bytes of one block of scratch.
    pub(crate) fn scratch_block_bytes(&self) -> usize {
        self.scratch_elements().saturating_mul(self.element_bytes)
    }

    /// Elements of one block of scratch: a tile. Blocks of different lengths may be longer on other ranks than here.
    fn scratch_elements(&self) -> usize {
        match (&self.input, &self.output) {
            (Blocks::Uniform(input), Blocks::Uniform(output)) => self.tile_elements.min(*input.max(output)),
            _ => self.tile_elements,
        }
    }

    /// No message of so many blocks is longer than this.
    pub(crate) fn message_bytes_max(&self, blocks: u32) -> u128 {
        u128::from(blocks) * self.scratch_elements() as u128 * self.element_bytes as u128
    }

    /// The largest number of bytes up to `limit` that are whole elements; at least one element.
    pub(crate) fn whole_elements(&self, limit: usize) -> usize {
        let element = self.element_bytes.max(1);
        (limit - limit % element).max(element)
    }

    /// Are the blocks of different lengths?
    pub(crate) fn variable(&self) -> bool {
        matches!(self.input, Blocks::Offsets(_)) || matches!(self.output, Blocks::Offsets(_))
    }

    /// The first element of a tile of a block in its buffer, and the elements that the tile has there.
    fn tile(&self, space: Space, block: u32, tile: u32) -> (usize, usize) {
        let skipped = tile as usize * self.tile_elements;
        let rest = |length: usize| length.saturating_sub(skipped).min(self.tile_elements);
        match space {
            Space::Input | Space::Output => {
                let blocks = if space == Space::Input { &self.input } else { &self.output };
                let (start, length) = blocks.block(block);
                (start + skipped.min(length), rest(length))
            }
            Space::Scratch => {
                let length = match self.input {
                    Blocks::Uniform(elements) if !self.variable() => rest(elements),
                    _ => self.tile_elements,
                };
                (block as usize * self.scratch_elements(), length)
            }
        }
    }

    /// The bytes of one block of a slot in its buffer: `(offset, length)`. `parts` is the program's number of parts.
    /// Scratch offsets count from the start of the tile's scratch.
    pub(crate) fn piece(&self, slot: &Slot, nth_block: u32, tile: u32, parts: u32) -> (usize, usize) {
        let (start, length) = self.tile(slot.space, slot.block + nth_block, tile);
        // The ends of a tile, without a division: most slots are whole tiles.
        let part = |index: u32| match index {
            0 => 0,
            all if all == parts => length,
            index => (length as u64 * u64::from(index) / u64::from(parts)) as usize,
        };
        let (from, to) = (part(slot.part), part(slot.part + slot.parts));
        ((start + from) * self.element_bytes, (to - from) * self.element_bytes)
    }

    /// The capacity of a slot in bytes.
    pub(crate) fn capacity(&self, slot: &Slot, tile: u32, parts: u32) -> usize {
        (0..slot.blocks).map(|nth| self.piece(slot, nth, tile, parts).1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_tiles_cover_the_block_once() {
        for (elements, tile_elements, parts) in [(0, 4, 3), (1, 4, 3), (10, 4, 3), (16, 4, 4), (1000, 77, 8)] {
            let geometry = Geometry::uniform(4, elements, tile_elements);
            let mut end = 0;
            for tile in 0..geometry.tiles {
                for part in 0..parts {
                    let slot = Slot::of_parts(Space::Output, 0, part, 1);
                    let (offset, bytes) = geometry.piece(&slot, 0, tile, parts);
                    assert_eq!(offset, end);
                    end = offset + bytes;
                }
            }
            assert_eq!(end, elements * 4);
        }
    }

    #[test]
    fn blocks_of_different_lengths_end_in_different_tiles() {
        let blocks = Blocks::Offsets(vec![0, 5, 5, 12].into());
        let geometry = Geometry { element_bytes: 1, tile_elements: 4, tiles: 2, input: blocks.clone(), output: blocks };
        let slot = |block| Slot::of_parts(Space::Output, block, 0, 1);
        assert_eq!(geometry.piece(&slot(0), 0, 1, 1), (4, 1));
        assert_eq!(geometry.piece(&slot(1), 0, 0, 1), (5, 0));
        assert_eq!(geometry.piece(&slot(2), 0, 1, 1), (9, 3));
    }
}
