//! The lengths of a call's blocks on this rank, and what all ranks must know of them.

use std::sync::Arc;

use paceline_collective::blocks;
use paceline_engine::{Blocks, Geometry};
use paceline_plan::{CollectiveKind, Fnv1a};

/// The lengths of the blocks of a call, in elements.
#[derive(Clone)]
pub(crate) struct Layout {
    pub input: Blocks,
    pub output: Blocks,
    /// The longest block of any rank.
    pub longest: usize,
    /// Elements of the whole call, `u64::MAX` if no rank knows them.
    pub total: u64,
    /// What ranks must agree on besides: the lengths, if they differ.
    pub fingerprint: u32,
    /// One tile, as long as the longest block that this rank knows.
    pub whole: bool,
}

impl Layout {
    /// All blocks of `elements`; `many` of them on the larger side.
    pub fn uniform(elements: usize, many: usize) -> Layout {
        Layout {
            input: Blocks::Uniform(elements),
            output: Blocks::Uniform(elements),
            longest: elements,
            total: elements.saturating_mul(many) as u64,
            fingerprint: 0,
            whole: false,
        }
    }

    /// Block r, wherever there is one for each rank, has `counts[r]` elements; all ranks know all counts.
    pub fn of_counts(kind: CollectiveKind, rank: usize, root: usize, counts: &[usize]) -> Layout {
        let (input, output) = blocks(kind, rank, root, counts.len());
        let side = |blocks: u32| match blocks {
            0 => offsets(&[]),
            1 => offsets(&counts[rank..=rank]),
            _ => offsets(counts),
        };
        Layout {
            input: side(input),
            output: side(output),
            longest: counts.iter().copied().max().unwrap_or(0),
            total: counts.iter().fold(0u64, |sum, &count| sum.saturating_add(count as u64)),
            fingerprint: fingerprint(counts.iter().map(|&count| count as u64)),
            whole: false,
        }
    }

    /// Every pair of ranks has a length of its own, which only the two know: the call runs as one tile, because nobody
    /// knows into how many the longest block would fall, and each message is compared with what its receiver expects.
    pub fn of_pairs(input: &[usize], output: &[usize]) -> Layout {
        let longest = input.iter().chain(output).copied().max().unwrap_or(0);
        let (input, output) = (offsets(input), offsets(output));
        Layout { input, output, longest, total: u64::MAX, fingerprint: 0, whole: true }
    }

    /// Do block lengths differ?
    pub fn variable(&self) -> bool {
        matches!(self.input, Blocks::Offsets(_))
    }

    /// What the signature says of the tiles: what all ranks know.
    pub fn signed_tile_elements(&self, geometry: &Geometry) -> u32 {
        if self.whole { u32::MAX } else { geometry.tile_elements as u32 }
    }

    /// With tiles of about so many bytes.
    pub fn geometry(&self, element_bytes: usize, tile_bytes: usize) -> Geometry {
        // No message is longer than 4 GiB, hence no tile.
        let most = u32::MAX as usize / element_bytes;
        let tile_elements = match self.variable() {
            _ if self.whole => self.longest.max(1),
            // Where lengths differ, scratch has room for a whole tile.
            true => (tile_bytes / element_bytes).min(self.longest).clamp(1, most),
            false => (tile_bytes / element_bytes).clamp(1, most),
        };
        let tiles = if self.whole { 1 } else { self.longest.div_ceil(tile_elements).max(1) as u32 };
        let (input, output) = (self.input.clone(), self.output.clone());
        Geometry { element_bytes, tile_elements, tiles, input, output }
    }
}

/// A fingerprint of some numbers, never 0.
pub(crate) fn fingerprint(numbers: impl Iterator<Item = u64>) -> u32 {
    let mut hash = Fnv1a::default();
    numbers.for_each(|number| _ = hash.number(number));
    let hash = hash.value();
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

fn offsets(counts: &[usize]) -> Blocks {
    let mut end = 0;
    let ends = counts.iter().map(|count| {
        end += count;
        end
    });
    Blocks::Offsets(std::iter::once(0).chain(ends).collect::<Arc<[usize]>>())
}
