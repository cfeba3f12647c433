//! What crossed the links, however it did: in frames, or read where it lay.

use std::collections::HashMap;
use std::time::Duration;

use paceline_plan::OperationKey;

use crate::{Frame, Trace, Traced};

/// Bytes of an operation that went from one rank to another, as one of the two has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The rank (of the world) at the other end.
    pub peer: usize,
    /// Did this rank send them?
    pub sent: bool,
    /// The operation that they belong to.
    pub key: OperationKey,
    /// When the link took them, or their header was here, or this rank began to read them in the peer's memory.
    pub start: Duration,
    /// When the link had let go of them or the peer had read them; or all of them were here.
    pub end: Duration,
    /// How many.
    pub bytes: u64,
    /// They were combined with this rank's as they came.
    pub combined: bool,
}

impl Trace {
    /// What crossed the links, in no order: frames of data, and pieces of memory that the receiver has read where they
    /// lay. Linear in the events.
    pub fn transfers(&self) -> Vec<Transfer> {
        // What refers to this rank's memory is on its way until the peer has taken it.
        let mut referred: HashMap<(usize, OperationKey, u32, u32, u32), usize> = HashMap::new();
        let mut transfers = Vec::new();
        for event in &self.events {
            let of = |frame: &Frame, sent| Transfer {
                peer: frame.peer,
                sent,
                key: frame.key,
                start: event.start,
                end: event.end,
                bytes: frame.bytes.into(),
                combined: frame.combined,
            };
            let name = |frame: &Frame| (frame.peer, frame.key, frame.tile, frame.message, frame.offset);
            match &event.what {
                Traced::Sent(frame) if frame.kind == "data" => transfers.push(of(frame, true)),
                Traced::Sent(frame) if frame.kind == "reference" => {
                    referred.insert(name(frame), transfers.len());
                    transfers.push(of(frame, true));
                }
                Traced::Received(frame) if frame.kind == "data" => transfers.push(of(frame, false)),
                Traced::Received(frame) if frame.kind == "taken" => {
                    if let Some(index) = referred.remove(&name(frame)) {
                        transfers[index].end = event.end;
                    }
                }
                &Traced::Work { work, key: Some(key), bytes, peer: Some(peer) } => transfers.push(Transfer {
                    peer,
                    sent: false,
                    key,
                    start: event.start,
                    end: event.end,
                    bytes: bytes as u64,
                    combined: work == "combine",
                }),
                _ => {}
            }
        }
        transfers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceEvent;

    #[test]
    fn a_reference_is_on_its_way_until_it_is_taken() {
        let at = Duration::from_secs;
        let frame = |kind, offset| Frame {
            peer: 2,
            kind,
            key: OperationKey { operation: 7, ..OperationKey::default() },
            tile: 1,
            message: 3,
            offset,
            bytes: 100,
            combined: false,
        };
        let event = |start, what| TraceEvent { start: at(start), end: at(start), what };
        let transfers = |taken: Frame| {
            let events = vec![event(1, Traced::Sent(frame("reference", 40))), event(9, Traced::Received(taken))];
            Trace { events, ..Trace::default() }.transfers()
        };
        let sent = |end| Transfer {
            peer: 2,
            sent: true,
            key: frame("", 0).key,
            start: at(1),
            end: at(end),
            bytes: 100,
            combined: false,
        };
        assert_eq!(transfers(frame("taken", 40)), [sent(9)]);
        // Another piece, or another peer's.
        assert_eq!(transfers(frame("taken", 41)), [sent(1)]);
        assert_eq!(transfers(Frame { peer: 1, ..frame("taken", 40) }), [sent(1)]);
    }
}
