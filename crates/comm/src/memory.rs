//! Where the bytes of operations lie: the callers' buffers, scratch, and the pool for early messages.

use std::collections::TryReserveError;
use std::ptr::NonNull;
use std::sync::Arc;

use paceline_collective::Space;
use paceline_collective::kernels::{Elementwise, last_level_cache_bytes};
use paceline_engine::frame::Header;
use paceline_engine::{Job, PoolBuffer, Region};
use paceline_fabric::shm::Arena;
use paceline_plan::OperationKey;

use crate::buffer::Memory;
use crate::helpers::Helpers;
use crate::program::{Kernels, ProgramLengths};
use crate::records::Described;
use crate::scratch::ScratchPool;
use crate::staging::Staging;

/// Pool memory that is kept for later messages; beyond it, released buffers give their memory back.
const POOL_KEPT_BYTES: usize = 4 << 20;

/// The memory of all operations of a rank.
#[derive(Default)]
pub(crate) struct Memories {
    operations: Vec<OperationMemory>,
    pool: Vec<Vec<u8>>,
    pool_bytes: usize,
    spare_scratch: ScratchPool,
    pub staging: Staging,
    /// Share large combinations.
    pub helpers: Helpers,
    /// Where peers of the host can read scratch in place.
    pub arena: Option<Arc<Arena>>,
    /// Ranks of this host: all have operations of about the same length.
    pub local_ranks: usize,
}

/// The memory of one operation.
pub(crate) struct OperationMemory {
    pub input: Span,
    pub output: Span,
    pub elementwise: Elementwise,
    /// What an average divides by.
    pub divisor: u32,
    /// What the steps with kernels call.
    pub kernels: Option<Arc<Kernels>>,
    /// Where the lengths go that its kernels decide.
    pub lengths: Option<Arc<ProgramLengths>>,
    /// For its record, if there is to be one.
    pub described: Option<Box<Described>>,
    /// Threads that may share a combination.
    pub reducing_threads: usize,
    pub scratch: Option<Memory>,
    /// Keeps buffers that the operation owns alive; never read.
    pub _owners: [Option<Arc<Memory>>; 2],
    /// Nobody waits for it in a call: the progress thread drives it.
    pub background: bool,
}

/// Some memory of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub start: *mut u8,
    pub bytes: usize,
}

// SAFETY: a span is an address and a length; whoever posts an operation vouches for the memory until it has ended, on
// whatever thread it is used.
unsafe impl Send for Span {}

impl Span {
    pub const EMPTY: Span = Span { start: std::ptr::null_mut(), bytes: 0 };

    pub fn of<T>(slice: &[T]) -> Span {
        Span { start: slice.as_ptr().cast::<u8>().cast_mut(), bytes: size_of_val(slice) }
    }

    pub fn of_mut<T>(slice: &mut [T]) -> Span {
        Span { start: slice.as_mut_ptr().cast(), bytes: size_of_val(slice) }
    }

    /// Do they share no byte?
    pub fn is_apart_from(&self, other: &Span) -> bool {
        let (start, others) = (self.start.addr(), other.start.addr());
        start + self.bytes <= others || others + other.bytes <= start
    }
}

impl Memories {
    /// Keeps the memory of the operation with this index.
    pub fn insert(&mut self, index: u32, memory: OperationMemory) {
        let index = index as usize;
        while self.operations.len() <= index {
            self.operations.push(OperationMemory::none());
        }
        if let Some(scratch) = &memory.scratch {
            self.spare_scratch.lent(scratch);
        }
        debug_assert!(self.operations[index].scratch.is_none(), "the operation before it has been removed");
        self.operations[index] = memory;
    }

    pub fn operation(&self, index: u32) -> &OperationMemory {
        &self.operations[index as usize]
    }

    /// Is there more memory in an operation, on all ranks of this host, than the caches hold? Then what it writes is no
    /// longer there when somebody reads it.
    pub fn is_beyond_caches(&self, index: u32) -> bool {
        let OperationMemory { input, output, .. } = self.operation(index);
        // In place, both are the same memory.
        let own = if input.is_apart_from(output) {
            input.bytes.saturating_add(output.bytes)
        } else {
            input.bytes.max(output.bytes)
        };
        own.saturating_mul(self.local_ranks) > last_level_cache_bytes()
    }

    /// The operation that work is for, if its call is described.
    pub fn key_of(&self, job: &Job) -> Option<OperationKey> {
        let (Job::Copy { into, .. } | Job::Combine { into, .. } | Job::Map { into, .. }) = job;
        self.operation(into.op.index).described.as_ref().map(|described| described.key)
    }

    /// The operation has ended: its scratch is free, and the buffers that it owned. True if it ran in the background;
    /// and what is known for its record.
    pub fn remove(&mut self, index: u32) -> (bool, Option<Box<Described>>) {
        let memory = std::mem::replace(&mut self.operations[index as usize], OperationMemory::none());
        if let Some(scratch) = memory.scratch {
            // Private where there was no room to share: the next one may find some.
            let worth_keeping = scratch.shared() || self.arena.is_none();
            self.spare_scratch.give_back(scratch, worth_keeping);
        }
        (memory.background, memory.described)
    }

    /// Scratch of at least so many bytes; shared with the host where that is possible.
    pub fn scratch(&mut self, bytes: usize) -> Result<Option<Memory>, TryReserveError> {
        if bytes == 0 {
            return Ok(None);
        }
        if let Some(spare) = self.spare_scratch.take(bytes) {
            return Ok(Some(spare));
        }
        let shared = |arena: &Option<Arc<Arena>>| arena.as_ref().and_then(|arena| arena.allocate(bytes, 64).ok());
        let mut allocation = shared(&self.arena);
        if allocation.is_none() && self.arena.is_some() && self.return_spare_scratch() {
            allocation = shared(&self.arena);
        }
        allocation.map_or_else(|| Memory::private(bytes), |allocation| Ok(Memory::Shared(allocation))).map(Some)
    }

    /// Where the peer of this frame, which maps this rank's memory, reads a region sooner than in the caller's: a copy, which is
    /// kept until it has. None: it reads it where it lies.
    pub fn stage(&mut self, frame: (usize, &Header), region: &Region) -> Option<*const u8> {
        let from = self.address(region).cast_const();
        let arena = self.arena.as_ref().filter(|_| region.bytes > 0)?;
        if arena.offset_of(from, region.bytes).is_some() {
            return None;
        }
        let spare = &mut self.spare_scratch;
        let shared = |bytes| {
            let memory = match spare.take(bytes) {
                Some(memory) if memory.shared() => memory,
                // Private where there was no room to share: there is none now.
                Some(memory) => {
                    spare.keep(memory);
                    return None;
                }
                None => Memory::Shared(arena.allocate(bytes, 64).ok()?),
            };
            spare.lent(&memory);
            Some(memory)
        };
        // SAFETY: `address` has checked that the region lies in the operation's memory; the copy is as long, new, and nobody
        // else's.
        let fill = |copy: NonNull<u8>| unsafe { std::ptr::copy_nonoverlapping(from, copy.as_ptr(), region.bytes) };
        self.staging.stage(frame, region, shared, fill).map(|copy| copy.as_ptr().cast_const())
    }

    /// A peer has read what a frame referred to.
    pub fn read(&mut self, peer: usize, header: &Header) {
        if let Some(copy) = self.staging.read(peer, header) {
            self.spare_scratch.give_back(copy, true);
        }
    }

    /// Gives scratch that no operation has back to the system. Was there any?
    pub fn return_spare_scratch(&mut self) -> bool {
        self.spare_scratch.empty()
    }

    /// Scratch that was taken for an operation that did not start.
    pub fn unused_scratch(&mut self, scratch: Option<Memory>) {
        scratch.into_iter().for_each(|scratch| self.spare_scratch.keep(scratch));
    }

    /// The address of a region.
    ///
    /// # Panics
    /// If it does not lie in the operation's memory: that would be a wrong program, and no byte may be touched.
    pub fn address(&self, region: &Region) -> *mut u8 {
        let memory = &self.operations[region.op.index as usize];
        let span = match region.space {
            Space::Input => memory.input,
            Space::Output => memory.output,
            Space::Scratch => memory
                .scratch
                .as_ref()
                .map_or(Span::EMPTY, |scratch| Span { start: scratch.start().as_ptr(), bytes: scratch.bytes() }),
        };
        if region.bytes == 0 {
            return span.start;
        }
        assert!(
            region.offset.checked_add(region.bytes).is_some_and(|end| end <= span.bytes),
            "a program reaches beyond its memory: {region:?} of {} bytes",
            span.bytes
        );
        // SAFETY: the offset is within the span, which is one piece of memory.
        unsafe { span.start.add(region.offset) }
    }

    /// Room for `bytes` at `offset` of a pool buffer.
    pub fn pool_mut(&mut self, buffer: PoolBuffer, offset: usize, bytes: usize) -> &mut [u8] {
        let index = buffer.0 as usize;
        while self.pool.len() <= index {
            self.pool.push(Vec::new());
        }
        let memory = &mut self.pool[index];
        let before = memory.capacity();
        if memory.len() < offset + bytes {
            memory.resize(offset + bytes, 0);
        }
        self.pool_bytes += memory.capacity() - before;
        &mut self.pool[index][offset..offset + bytes]
    }

    pub fn pool(&self, buffer: PoolBuffer, offset: usize, bytes: usize) -> &[u8] {
        match self.pool.get(buffer.0 as usize) {
            Some(memory) => &memory[offset..offset + bytes],
            None => &[],
        }
    }

    /// A pool buffer is free.
    pub fn release_pool(&mut self, buffer: PoolBuffer) {
        if self.pool_bytes > POOL_KEPT_BYTES
            && let Some(memory) = self.pool.get_mut(buffer.0 as usize)
        {
            self.pool_bytes -= memory.capacity();
            *memory = Vec::new();
        }
    }
}

impl OperationMemory {
    /// How operands are combined; the `last` combination of a value completes an average.
    pub fn combining(&self, last: bool) -> Elementwise {
        Elementwise { divisor: if last { self.divisor } else { 1 }, ..self.elementwise }
    }

    pub fn none() -> OperationMemory {
        use paceline_plan::{DataType, Reduction};
        OperationMemory {
            input: Span::EMPTY,
            output: Span::EMPTY,
            elementwise: Elementwise { data_type: DataType::U8, reduction: Reduction::Sum, divisor: 1 },
            divisor: 1,
            kernels: None,
            lengths: None,
            described: None,
            reducing_threads: 1,
            scratch: None,
            _owners: [None, None],
            background: false,
        }
    }
}
