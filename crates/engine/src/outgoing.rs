use std::cmp::Ordering;

use paceline_collective::StepId;

use crate::interface::OpId;

/// A message that may be sent. The queue of a link gives the most urgent first, frame by frame, so that a late urgent
/// message overtakes an early long one in its middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub priority: u32,
    pub sequence: u64,
    pub op: OpId,
    pub tile: u32,
    pub step: StepId,
    pub eager: bool,
}

impl Ord for Outgoing {
    /// The greatest goes first: lowest priority number, then the oldest operation, then its earliest tile and step.
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |message: &Self| (message.priority, message.sequence, message.tile, message.step);
        rank(other).cmp(&rank(self))
    }
}

impl PartialOrd for Outgoing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Outgoing {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Outgoing {}

/// A frame on its way: whose memory becomes free when the link is done with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub op: OpId,
    pub tile: u32,
    pub step: StepId,
    pub bytes: usize,
}

/// Values named by small numbers that are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.values[index as usize] = Some(value);
            return index;
        }
        self.values.push(Some(value));
        self.values.len() as u32 - 1
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.values.get_mut(index as usize)?.take();
        if value.is_some() {
            self.free.push(index);
        }
        value
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Takes all.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.free.clear();
        std::mem::take(&mut self.values).into_iter().flatten()
    }
}
