use crate::peer::{Pooled, Unposted};
use crate::work::PoolBuffer;

/// Names for pool buffers, and structures that are used again. The bound on its bytes is the senders' eager credit,
/// which [`crate::Engine::begin`] enforces.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: u32,
    /// Free buffers whose memory the driver may have dropped.
    free: Vec<PoolBuffer>,
    spare_unposted: Vec<Unposted>,
    spare_references: Vec<Vec<([u64; 2], usize, usize)>>,
    /// Free buffers of which the driver has not been told.
    released: Vec<PoolBuffer>,
}

impl Pool {
    /// A free buffer; rather one whose memory the driver still has.
    pub fn buffer(&mut self) -> PoolBuffer {
        self.released.pop().or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.buffers += 1;
            PoolBuffer(self.buffers - 1)
        })
    }

    pub fn release_buffer(&mut self, buffer: PoolBuffer) {
        self.released.push(buffer);
    }

    /// How many hold something.
    pub fn in_use(&self) -> usize {
        self.buffers as usize - self.free.len() - self.released.len()
    }

    /// The next buffer that has become free and is not in use again: the driver may drop its memory.
    pub fn released(&mut self) -> Option<PoolBuffer> {
        let buffer = self.released.pop()?;
        self.free.push(buffer);
        Some(buffer)
    }

    pub fn unposted(&mut self) -> Unposted {
        self.spare_unposted.pop().unwrap_or_default()
    }

    /// Keeps the memory of an emptied entry.
    pub fn recycle(&mut self, unposted: Unposted) {
        if self.spare_unposted.len() < 1024 {
            self.spare_unposted.push(unposted);
        }
    }

    pub fn references(&mut self) -> Vec<([u64; 2], usize, usize)> {
        self.spare_references.pop().unwrap_or_default()
    }

    /// Keeps the memory of a message that has been consumed.
    pub fn recycle_message(&mut self, mut pooled: Pooled) {
        pooled.references.clear();
        if pooled.references.capacity() > 0 && self.spare_references.len() < 1024 {
            self.spare_references.push(pooled.references);
        }
    }
}
