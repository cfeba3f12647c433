//! The header that stands before everything that crosses a link.

use bytemuck::{Pod, Zeroable};
use paceline_plan::OperationKey;

/// Marks the start of a frame and the version of the wire format ("PcL" and 2).
pub const MAGIC: u32 = u32::from_le_bytes(*b"PcL\x02");

/// No frame carries more than this. A link refuses a longer one before it allocates anything.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;

/// The bytes of a header on the wire.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A piece of a message; its bytes follow the header.
    Data = 1,
    /// A piece of a message that stays in the sender's memory; [`Header::reference`] says where, nothing follows.
    Reference = 2,
    /// The receiver has read the piece that a `Reference` named: the sender may overwrite it.
    Taken = 3,
    /// The receiver is ready for a message: the sender may send all of it.
    Grant = 4,
    /// Returns eager credit ([`Header::eager_returned`]); nothing else.
    Credit = 5,
    /// The sender is alive; [`Header::message`] says after how many milliseconds an idle link carries the next. With a
    /// signature: it has started this operation, and waits for the rank `message - 1` of its group, which has not.
    Heartbeat = 6,
    /// The sender has given up. [`Header::message`] says whom it blames, [`Header::tile`] who has noticed it,
    /// [`Header::offset`] the [`crate::Cause`]; what follows is the reason as UTF-8.
    Abort = 7,
    /// The sender leaves in good order and will send nothing more.
    Goodbye = 8,
}

impl Kind {
    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Data,
            2 => Kind::Reference,
            3 => Kind::Taken,
            4 => Kind::Grant,
            5 => Kind::Credit,
            6 => Kind::Heartbeat,
            7 => Kind::Abort,
            8 => Kind::Goodbye,
            _ => return None,
        })
    }
}

/// What the operation is, as its sender understood the call. Two ranks that disagree under one key made different
/// calls; the engine compares before it takes a byte in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Signature {
    /// [`paceline_plan::CollectiveKind::code`].
    pub collective: u8,
    /// [`paceline_plan::DataType::code`].
    pub data_type: u8,
    /// [`paceline_plan::Reduction::code`].
    pub reduction: u8,
    /// The index of the algorithm in the registry that both sides were built with.
    pub algorithm: u8,
    /// The root's rank in the group, or 0.
    pub root: u32,
    /// Elements of the whole call (the sum over the blocks of its larger side); `u64::MAX` if no rank knows them all.
    pub elements: u64,
    /// Elements per tile.
    pub tile_elements: u32,
    /// A fingerprint of what else the ranks must agree on: the lengths of blocks that differ, or a program of the
    /// caller's. 0 if there is nothing else.
    pub fingerprint: u32,
}

/// A frame header. Little-endian, as on every machine that we run on; 104 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`Kind`] as a number.
    pub kind: u8,
    /// 1 if the piece was sent without a grant and counts against the link's eager credit.
    pub eager: u8,
    /// For the sender's link: over which of its parallel streams the operation's frames are spread ([`lanes`]). 0: all.
    pub lanes: u16,
    /// [`OperationKey::communicator`].
    pub communicator: u32,
    /// [`OperationKey::epoch`].
    pub epoch: u32,
    /// [`OperationKey::plan_version`].
    pub plan_version: u32,
    /// [`OperationKey::part`].
    pub part: u32,
    /// [`OperationKey::operation`].
    pub operation: u64,
    /// What the sender believes the operation to be.
    pub signature: Signature,
    /// The tile that the message belongs to.
    pub tile: u32,
    /// The message's name on its edge. For `Grant` and `Taken` too it is the name on the edge of the *data*.
    pub message: u32,
    /// Bytes of the whole message.
    pub message_bytes: u32,
    /// Where this piece lies in the message. For `Taken`, `message_bytes` says how long the piece was. A `Grant` that
    /// repeats an earlier one has 1 here.
    pub offset: u32,
    /// Bytes that follow this header (for `Reference`: bytes that the reference names).
    pub payload_bytes: u32,
    /// Zero.
    pub reserved_2: u32,
    /// All eager bytes of the peer that the sender of this frame has released since the link opened.
    pub eager_returned: u64,
    /// Opaque to the engine: how the link finds the bytes of a `Reference`.
    pub reference: [u64; 2],
}

impl Header {
    /// The operation that the frame belongs to.
    pub fn key(&self) -> OperationKey {
        OperationKey {
            communicator: self.communicator,
            epoch: self.epoch,
            plan_version: self.plan_version,
            part: self.part,
            operation: self.operation,
        }
    }

    /// A header of this kind for this operation; everything else zero.
    pub fn new(kind: Kind, key: OperationKey) -> Header {
        Header {
            magic: MAGIC,
            kind: kind as u8,
            communicator: key.communicator,
            epoch: key.epoch,
            plan_version: key.plan_version,
            part: key.part,
            operation: key.operation,
            ..Header::default()
        }
    }

    /// What the frame is for; None if it is none that this version knows.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_code(self.kind)
    }

    /// Does the frame say that its sender has started the operation that it names?
    pub fn is_of_operation(&self) -> bool {
        match self.kind() {
            Some(Kind::Data | Kind::Reference | Kind::Grant | Kind::Taken) => true,
            Some(Kind::Heartbeat) => self.signature.tile_elements > 0,
            _ => false,
        }
    }

    /// Is it a grant that was given before?
    pub fn is_repeated(&self) -> bool {
        self.kind() == Some(Kind::Grant) && self.offset != 0
    }

    /// The bytes that follow the header on the wire.
    pub fn wire_payload_bytes(&self) -> u32 {
        if self.kind == Kind::Data as u8 || self.kind == Kind::Abort as u8 { self.payload_bytes } else { 0 }
    }

    /// Checks what a link must know before it believes the header: magic, kind, and lengths that fit each other.
    pub fn check(&self) -> Result<Kind, &'static str> {
        if self.magic != MAGIC {
            return Err("does not start like a Paceline frame of this version");
        }
        let kind = self.kind().ok_or("is of an unknown kind")?;
        if self.payload_bytes > FRAME_BYTES_MAX && kind != Kind::Reference {
            return Err("is longer than any frame may be");
        }
        if matches!(kind, Kind::Data | Kind::Reference)
            && u64::from(self.offset) + u64::from(self.payload_bytes) > u64::from(self.message_bytes)
        {
            return Err("reaches beyond the end of its message");
        }
        Ok(kind)
    }
}

/// Some of a link's parallel streams, for [`Header::lanes`]: so many, the first of which has this number. Links count both
/// modulo the streams that they have; 255 are as good as more.
pub fn lanes(count: u16, first: u64) -> u16 {
    let count = count.min(255);
    if count == 0 { 0 } else { count | ((first % 256) as u16) << 8 }
}

/// How many streams [`Header::lanes`] says, and the number of the first.
pub fn split_lanes(lanes: u16) -> (usize, usize) {
    (usize::from(lanes & 255), usize::from(lanes >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        let known = (0..=u8::MAX).filter_map(Kind::from_code);
        assert_eq!(known.map(|kind| kind as u8).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    }

    #[test]
    fn a_header_has_no_padding_and_refuses_nonsense() {
        assert_eq!(HEADER_BYTES, 104);
        let good = Header { payload_bytes: 8, message_bytes: 8, ..Header::new(Kind::Data, OperationKey::default()) };
        assert_eq!(good.check(), Ok(Kind::Data));
        assert!(Header { magic: 7, ..good }.check().is_err());
        assert!(Header { kind: 99, ..good }.check().is_err());
        assert!(Header { offset: 1, ..good }.check().is_err());
        assert!(Header { payload_bytes: FRAME_BYTES_MAX + 1, message_bytes: u32::MAX, ..good }.check().is_err());
    }
}
