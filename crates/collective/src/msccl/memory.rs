//! How the chunks of a rank are numbered: each chunk of memory once, whatever names it has.

use std::ops::Range;

use paceline_plan::Rank;

use super::blocks_max;
use super::file::{Buffer, Chunks, File};
use crate::program::blocks;

/// The chunks of one rank: first those of scratch, then the *data*, which is input and output, one after the other or,
/// in place, one over the other.
pub(super) struct Memory {
    pub parts: u32,
    scratch: u32,
    /// Where input and output begin, as the file names them.
    buffers: [u32; 2],
    /// Where the collective's input and output lie.
    input: Range<u32>,
    output: Range<u32>,
    end: u32,
}

impl Memory {
    pub fn of(file: &File, rank: Rank, root: Rank) -> Memory {
        let (parts, world) = (file.parts, file.gpus.len());
        let [inputs, outputs, scratch] = file.gpus[rank].chunks;
        // Data begins with a chunk that is the first of its block, so that a number says which of its block a chunk is.
        let data = scratch.next_multiple_of(parts);
        let (input_max, output_max) = blocks_max(file.kind, world);
        let (mut buffers, mut end) = ([data, data + inputs], data + inputs + outputs);
        if file.in_place {
            // The single block is the rank's own of the many.
            let own = |less: u32, more: u32| data + if less < more { rank as u32 * parts } else { 0 };
            buffers = [own(input_max, output_max), own(output_max, input_max)];
            end = data + input_max.max(output_max) * parts;
        }
        let (input, output) = blocks(file.kind, rank, root, world);
        let named = |first: u32, blocks: u32, there: u32| {
            first..first + if file.in_place { blocks * parts } else { (blocks * parts).min(there) }
        };
        let (input, output) = (named(buffers[0], input, inputs), named(buffers[1], output, outputs));
        Memory { parts, scratch, buffers, input, output, end }
    }

    /// The numbers of these chunks.
    pub fn numbers(&self, chunks: Chunks, count: u32) -> Range<u32> {
        let first = match chunks.buffer {
            Buffer::Input => self.buffers[0] + chunks.first,
            Buffer::Output => self.buffers[1] + chunks.first,
            Buffer::Scratch => chunks.first,
        };
        first..first + count
    }

    /// How many numbers there are.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// All chunks of the collective's input.
    pub fn inputs(&self) -> Range<u32> {
        self.input.clone()
    }

    /// Which chunk of the collective's output this is.
    pub fn output(&self, number: u32) -> Option<u32> {
        self.output.contains(&number).then(|| number - self.output.start)
    }

    /// Which of its block a chunk is, if it is one of data.
    pub fn part(&self, number: u32) -> u32 {
        number % self.parts
    }

    /// A name of a chunk in the file.
    pub fn name(&self, number: u32) -> String {
        if number < self.scratch {
            format!("s[{number}]")
        } else if self.input.contains(&number) || number < self.buffers[1] {
            format!("i[{}]", number.saturating_sub(self.buffers[0]))
        } else {
            format!("o[{}]", number - self.buffers[1])
        }
    }
}
