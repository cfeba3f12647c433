use std::fmt;

/// The name under which all ranks know one operation. It stands in every frame, so operations are matched by key and
/// not by the order in which ranks happen to start them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKey {
    /// The communicator: 0 is the world; `split` derives the others.
    pub communicator: u32,
    /// Counts re-formations of the world. Frames of an older epoch are dropped.
    pub epoch: u32,
    /// The version of the training plan under which the operation was issued; 0 outside training.
    pub plan_version: u32,
    /// A piece of the operation: bucket partition or compression stage.
    pub part: u32,
    /// The operation: a caller's id, or the communicator's sequence number.
    pub operation: u64,
}

impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} of communicator {}", self.operation, self.communicator)?;
        if self.part != 0 {
            write!(f, ", part {}", self.part)?;
        }
        Ok(())
    }
}
