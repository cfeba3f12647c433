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

impl OperationKey {
    /// Set in `communicator`: the caller gave the operation its number.
    pub const NAMED: u32 = 1 << 30;

    /// Set in `communicator`: a send and its receive. `operation` is sender (16 bits), receiver (16 bits), and the
    /// count of messages between the two with the tag `part` (32 bits).
    pub const POINT_TO_POINT: u32 = 1 << 31;
}

impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let communicator = self.communicator & !(OperationKey::NAMED | OperationKey::POINT_TO_POINT);
        if self.communicator & OperationKey::POINT_TO_POINT != 0 {
            let (sender, receiver) = (self.operation >> 48, self.operation >> 32 & 0xffff);
            let (count, tag) = (self.operation & 0xffff_ffff, self.part);
            write!(f, "message {count} with tag {tag} from rank {sender} to rank {receiver}")?;
        } else {
            let id = if self.communicator & OperationKey::NAMED != 0 { " id" } else { "" };
            write!(f, "operation{id} {}", self.operation)?;
            if self.part != 0 {
                write!(f, ", part {}", self.part)?;
            }
        }
        write!(f, " of communicator {communicator}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_the_caller_called_it() {
        let key = OperationKey { operation: 7, part: 2, ..OperationKey::default() };
        assert_eq!(key.to_string(), "operation 7, part 2 of communicator 0");
        let named = OperationKey { communicator: 3 | OperationKey::NAMED, ..key };
        assert_eq!(named.to_string(), "operation id 7, part 2 of communicator 3");
        let operation = 1 << 48 | 4 << 32 | 9;
        let message = OperationKey { communicator: OperationKey::POINT_TO_POINT, operation, ..key };
        assert_eq!(message.to_string(), "message 9 with tag 2 from rank 1 to rank 4 of communicator 0");
    }
}
