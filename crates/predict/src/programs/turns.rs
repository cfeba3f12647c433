//! Which message leaves next.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Sending;

/// A step in a tile of an operation; of several, the earliest turn, tile and step are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub turn: u32,
    pub tile: u32,
    pub step: u32,
    /// Where the state of the operation is: follows from the turn.
    pub slot: u32,
}

/// The way of a message: the number of its channel, its sender, its receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub channel: u32,
    pub sender: u32,
    pub receiver: u32,
}

/// Messages, by their sends, that wait for others to be through.
pub(super) enum Turns {
    /// By channel.
    AtOnce(Vec<Channel>),
    /// By rank: what it sends, with the receivers, and what it takes in, with the senders.
    InTurn { sends: Vec<Port>, receives: Vec<Port> },
}

#[derive(Clone, Default)]
pub(super) struct Channel {
    busy: bool,
    waiting: BinaryHeap<Reverse<Piece>>,
}

#[derive(Clone, Default)]
pub(super) struct Port {
    busy: bool,
    waiting: BTreeSet<(Piece, u32)>,
}

impl Turns {
    pub fn new(sending: Sending, channels: usize, world: usize) -> Turns {
        match sending {
            // Where and when what is emulated leaves, its ports say.
            Sending::AtOnce | Sending::Emulated => Turns::AtOnce(vec![Channel::default(); channels]),
            Sending::InTurn => {
                Turns::InTurn { sends: vec![Port::default(); world], receives: vec![Port::default(); world] }
            }
        }
    }

    /// May this message leave now? Otherwise it is kept until its turn.
    pub fn may_leave(&mut self, piece: Piece, way: Way) -> bool {
        match self {
            Turns::AtOnce(channels) => {
                let channel = &mut channels[way.channel as usize];
                if channel.busy {
                    channel.waiting.push(Reverse(piece));
                    return false;
                }
                channel.busy = true;
            }
            Turns::InTurn { sends, receives } => {
                let (send, receive) = (&mut sends[way.sender as usize], &mut receives[way.receiver as usize]);
                if send.busy || receive.busy {
                    send.waiting.insert((piece, way.receiver));
                    receive.waiting.insert((piece, way.sender));
                    return false;
                }
                (send.busy, receive.busy) = (true, true);
            }
        }
        true
    }

    /// The rest of a message that has left in part waits for its next turn: until [`Turns::through`] says so.
    pub fn wait_again(&mut self, piece: Piece, way: Way) {
        match self {
            Turns::AtOnce(channels) => channels[way.channel as usize].waiting.push(Reverse(piece)),
            Turns::InTurn { sends, receives } => {
                sends[way.sender as usize].waiting.insert((piece, way.receiver));
                receives[way.receiver as usize].waiting.insert((piece, way.sender));
            }
        }
    }

    /// A message is through on its way: those that leave next.
    pub fn through(&mut self, way: Way) -> [Option<Piece>; 2] {
        match self {
            Turns::AtOnce(channels) => {
                let channel = &mut channels[way.channel as usize];
                let next = channel.waiting.pop().map(|Reverse(piece)| piece);
                channel.busy = next.is_some();
                [next, None]
            }
            Turns::InTurn { sends, receives } => {
                sends[way.sender as usize].busy = false;
                receives[way.receiver as usize].busy = false;
                [next(sends, receives, way.sender), next(receives, sends, way.receiver)]
            }
        }
    }
}

/// Of what waits for this rank's port, the first for which the port of the other side is free, too.
fn next(own: &mut [Port], others: &mut [Port], rank: u32) -> Option<Piece> {
    let port = &mut own[rank as usize];
    if port.busy {
        return None;
    }
    let &(piece, other) = port.waiting.iter().find(|(_, other)| !others[*other as usize].busy)?;
    port.waiting.remove(&(piece, other));
    port.busy = true;
    let other = &mut others[other as usize];
    other.waiting.remove(&(piece, rank));
    other.busy = true;
    Some(piece)
}
