use serde::{Deserialize, Serialize};

use crate::profile::wrong;
use crate::{DataType, ProfileError};

/// What a worker takes in the device's memory: so much whatever it computes, and so much for each sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryNeed {
    /// Parameters, gradients, the optimiser's state, temporary tensors, the program.
    pub fixed_bytes: u64,
    /// What autograd keeps of a sample between forward and backward, and what backward needs for it.
    pub bytes_per_sample: u64,
    /// What the device has for one worker. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
}

impl MemoryNeed {
    /// Bytes of a worker that computes so many samples in an iteration; at most [`u64::MAX`].
    pub fn worker_bytes(&self, local_batch: usize) -> u64 {
        self.bytes_per_sample.saturating_mul(local_batch as u64).saturating_add(self.fixed_bytes)
    }

    /// The largest local batch that fits; 0 if no sample does. None if it is not known what the device has, or a sample
    /// takes nothing.
    pub fn largest_local_batch(&self) -> Option<u64> {
        self.available_bytes?.saturating_sub(self.fixed_bytes).checked_div(self.bytes_per_sample)
    }

    /// Bytes of so many parameters by themselves, as f32: no worker takes less.
    pub fn of_parameters(parameters: usize) -> u64 {
        (parameters as u64).saturating_mul(DataType::F32.size() as u64)
    }

    /// Of a worker with so many parameters.
    ///
    /// # Errors
    /// A field that makes no sense.
    pub(crate) fn check(&self, parameters: usize) -> Result<(), ProfileError> {
        let (fixed, least) = (self.fixed_bytes, MemoryNeed::of_parameters(parameters));
        if fixed < least {
            let problem = format!("is {fixed}; a worker has at least its {parameters} parameters, {least} bytes");
            return wrong("memory.fixed_bytes", problem);
        }
        if self.available_bytes == Some(0) {
            return wrong("memory.available_bytes", "is 0; leave it out where it is not known what the device has");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let need = MemoryNeed { fixed_bytes: 1000, bytes_per_sample: 30, available_bytes: Some(1100) };
        assert_eq!((need.worker_bytes(3), need.worker_bytes(4)), (1090, 1120));
        assert_eq!(need.largest_local_batch(), Some(3));
        assert_eq!(MemoryNeed { available_bytes: Some(999), ..need }.largest_local_batch(), Some(0));
        assert_eq!(MemoryNeed { available_bytes: None, ..need }.largest_local_batch(), None);
        assert_eq!(MemoryNeed { bytes_per_sample: 0, ..need }.largest_local_batch(), None);
        // No overflow, whatever a file says.
        assert_eq!(MemoryNeed { bytes_per_sample: u64::MAX, ..need }.worker_bytes(usize::MAX), u64::MAX);
    }
}
