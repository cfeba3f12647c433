//! The memory of one rank, and who touches it now. Two that touch the same bytes at once, one of them writing, are a
//! race, and the test fails there and then.

use std::ops::Range;

use paceline_collective::Space;
use paceline_engine::{OpId, PoolBuffer, Region};

/// What freed memory looks like.
const POISON: u8 = 0xdb;

/// Where an operation's buffers lie: which buffer, and from which byte.
#[derive(Clone, Copy, Debug)]
pub struct OpMemory {
    pub op: OpId,
    pub input: (usize, usize),
    pub output: (usize, usize),
    pub scratch: (usize, usize),
}

struct Access {
    owner: u64,
    buffer: usize,
    bytes: Range<usize>,
    writes: bool,
    what: &'static str,
}

/// A message in the pool.
#[derive(Debug, Default)]
pub struct Pooled {
    pub bytes: Vec<u8>,
    /// Who it came from, and its name; None while the buffer is free.
    pub message: Option<(usize, u64, u32, u32)>,
    /// What it counts against the link's credit.
    pub eager_bytes: usize,
}

#[derive(Default)]
pub struct Memory {
    buffers: Vec<Option<Vec<u8>>>,
    free: Vec<usize>,
    ops: Vec<Option<OpMemory>>,
    accesses: Vec<Access>,
    pub pool: Vec<Pooled>,
    next_owner: u64,
}

impl Memory {
    pub fn allocate(&mut self, bytes: Vec<u8>) -> usize {
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() - 1
        });
        self.buffers[buffer] = Some(bytes);
        buffer
    }

    pub fn insert(&mut self, memory: OpMemory) {
        let index = memory.op.index as usize;
        self.ops.resize_with(self.ops.len().max(index + 1), || None);
        assert!(self.ops[index].is_none(), "the engine uses the index of a pending operation again");
        self.ops[index] = Some(memory);
    }

    /// The operation has ended: its memory goes back to the caller, who overwrites it. Gives the buffers' last content.
    pub fn remove(&mut self, op: OpId) -> (OpMemory, [Vec<u8>; 2]) {
        let memory = self.ops[op.index as usize].take().expect("an operation ends once");
        assert_eq!(memory.op, op);
        for access in &self.accesses {
            let of_op = [memory.input.0, memory.output.0, memory.scratch.0].contains(&access.buffer);
            assert!(!of_op, "the operation has ended, but {} still uses its memory", access.what);
        }
        let content = [memory.input.0, memory.output.0].map(|buffer| self.bytes(buffer).clone());
        let mut buffers = vec![memory.input.0, memory.output.0, memory.scratch.0];
        buffers.sort_unstable();
        buffers.dedup();
        for buffer in buffers {
            self.buffers[buffer] = None;
            self.free.push(buffer);
        }
        (memory, content)
    }

    /// All accesses end: the links are closed, and nobody works any more.
    pub fn forget_accesses(&mut self) {
        self.accesses.clear();
    }

    fn bytes(&self, buffer: usize) -> &Vec<u8> {
        self.buffers[buffer].as_ref().expect("memory of an operation that has ended")
    }

    /// The bytes of a region: which buffer, and which of them.
    pub fn locate(&self, region: &Region) -> (usize, Range<usize>) {
        let memory = self.ops[region.op.index as usize].as_ref().expect("an operation that has ended");
        assert_eq!(memory.op, region.op, "a region of an earlier operation");
        let (buffer, base) = match region.space {
            Space::Input => memory.input,
            Space::Output => memory.output,
            Space::Scratch => memory.scratch,
        };
        let bytes = base + region.offset..base + region.offset + region.bytes;
        assert!(region.bytes == 0 || bytes.end <= self.bytes(buffer).len(), "{region:?} is outside of its memory");
        (buffer, bytes)
    }

    /// Announces that these regions are read, or written, from now on until [`Memory::release`].
    pub fn acquire(&mut self, what: &'static str, reads: &[Region], writes: &[Region]) -> u64 {
        self.next_owner += 1;
        let owner = self.next_owner;
        let regions = reads.iter().map(|region| (region, false)).chain(writes.iter().map(|region| (region, true)));
        for (region, writing) in regions.filter(|(region, _)| region.bytes > 0) {
            let (buffer, bytes) = self.locate(region);
            for other in self.accesses.iter().filter(|other| other.buffer == buffer && other.owner != owner) {
                let overlap = bytes.start < other.bytes.end && other.bytes.start < bytes.end;
                assert!(!overlap || !(writing || other.writes), "a race: {what} of {region:?} during {}", other.what);
            }
            self.accesses.push(Access { owner, buffer, bytes, writes: writing, what });
        }
        owner
    }

    pub fn release(&mut self, owner: u64) {
        self.accesses.retain(|access| access.owner != owner);
    }

    /// Is anything announced under this name still in use?
    pub fn in_use(&self, owner: u64) -> bool {
        self.accesses.iter().any(|access| access.owner == owner)
    }

    pub fn read(&self, region: &Region) -> &[u8] {
        let (buffer, bytes) = self.locate(region);
        if region.bytes == 0 { &[] } else { &self.bytes(buffer)[bytes] }
    }

    pub fn write(&mut self, region: &Region) -> &mut [u8] {
        let (buffer, bytes) = self.locate(region);
        let all = self.buffers[buffer].as_mut().expect("memory of an operation that has ended");
        if region.bytes == 0 { &mut [] } else { &mut all[bytes] }
    }

    /// The bytes at a place that was located before; poison if they are gone.
    pub fn read_at(&self, buffer: usize, bytes: Range<usize>) -> Vec<u8> {
        match &self.buffers[buffer] {
            Some(all) => all[bytes].to_vec(),
            None => vec![POISON; bytes.len()],
        }
    }

    /// The pool buffer, for this message: a buffer that was free or had another message before is empty.
    pub fn pool_for(&mut self, buffer: PoolBuffer, message: (usize, u64, u32, u32), eager_bytes: usize) {
        let index = buffer.0 as usize;
        self.pool.resize_with(self.pool.len().max(index + 1), Pooled::default);
        let pooled = &mut self.pool[index];
        if pooled.message != Some(message) {
            pooled.message = Some(message);
            pooled.bytes.clear();
            pooled.eager_bytes = eager_bytes;
        }
    }

    pub fn pool_write(&mut self, buffer: PoolBuffer, offset: usize, bytes: &[u8]) {
        let pooled = &mut self.pool[buffer.0 as usize].bytes;
        pooled.resize(pooled.len().max(offset + bytes.len()), POISON);
        pooled[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub fn pool_release(&mut self, buffer: PoolBuffer) {
        if let Some(pooled) = self.pool.get_mut(buffer.0 as usize) {
            pooled.bytes.fill(POISON);
            pooled.message = None;
            pooled.eager_bytes = 0;
        }
    }

    /// Eager bytes of a peer in the pool.
    pub fn pool_bytes(&self, peer: usize) -> usize {
        let of_peer = self.pool.iter().filter(|pooled| pooled.message.is_some_and(|(from, ..)| from == peer));
        of_peer.map(|pooled| pooled.eager_bytes).sum()
    }
}
