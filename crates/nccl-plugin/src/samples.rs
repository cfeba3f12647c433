//! What calls took on the GPU: events while they last, then samples for whoever asks.
//!
//! Events are numbers, not addresses: NCCL gives them back, and a stale one is recognised by its count.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Collectives under way on this process that are recorded at once; beyond that the oldest is given up.
const COLLECTIVES: usize = 256;
/// Samples that wait to be fetched; beyond that the newest is lost.
const WAITING: usize = 1024;

/// What a collective took. The layout is part of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// NCCL's number of the communicator; those of one parent may share it.
    pub communicator: u64,
    /// Counted by communicator and function.
    pub sequence: u64,
    /// Elements · size, as NCCL's event has them.
    pub bytes: u64,
    /// The longest of the channels' times, ns of the GPU. It contains the wait for the last rank: compare the smallest of all
    /// ranks.
    pub longest_ns: u64,
    /// From the first channel's start to the last one's end, ns.
    pub span_ns: u64,
    /// This process's rank.
    pub rank: i32,
    /// NCCL's numbers; -1 where the event's name is unknown.
    pub function: i32,
    /// As above.
    pub algorithm: i32,
    /// As above.
    pub protocol: i32,
    /// That it ran with.
    pub channels: u32,
    /// Of each channel.
    pub threads: u32,
}

struct Waiting {
    samples: [Sample; WAITING],
    first: usize,
    count: usize,
}

const NONE: Sample = Sample {
    communicator: 0,
    sequence: 0,
    bytes: 0,
    longest_ns: 0,
    span_ns: 0,
    rank: 0,
    function: 0,
    algorithm: 0,
    protocol: 0,
    channels: 0,
    threads: 0,
};

static UNDER_WAY: [Slot; COLLECTIVES] = [const { Slot::new() }; COLLECTIVES];
static NEXT: AtomicU32 = AtomicU32::new(0);
static WAITING_SAMPLES: Mutex<Waiting> = Mutex::new(Waiting { samples: [NONE; WAITING], first: 0, count: 0 });

/// A collective under way.
struct Slot {
    /// Even: free, or being written. Odd: this use of it. Counts up.
    generation: AtomicU32,
    channels_left: AtomicU32,
    longest_ns: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    what: Mutex<Sample>,
    /// Channels whose start is known, by channel: the time.
    starts: [AtomicU64; 64],
}

/// A collective's event: which slot, which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    slot: u32,
    generation: u32,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            generation: AtomicU32::new(0),
            channels_left: AtomicU32::new(0),
            longest_ns: AtomicU64::new(0),
            first_ns: AtomicU64::new(u64::MAX),
            last_ns: AtomicU64::new(0),
            what: Mutex::new(NONE),
            starts: [const { AtomicU64::new(0) }; 64],
        }
    }
}

/// A collective begins; none if another thread is just taking the same slot.
pub fn begin(what: Sample) -> Option<Collective> {
    let slot = NEXT.fetch_add(1, Relaxed) % COLLECTIVES as u32;
    let place = &UNDER_WAY[slot as usize];
    let mut of_slot = place.what.try_lock().ok()?;
    // Whoever still has the slot's last use finds that it is gone.
    let generation = (place.generation.load(Relaxed) | 1).wrapping_add(2);
    place.generation.store(generation.wrapping_sub(1), Release);
    place.channels_left.store(what.channels.max(1), Relaxed);
    place.longest_ns.store(0, Relaxed);
    place.first_ns.store(u64::MAX, Relaxed);
    place.last_ns.store(0, Relaxed);
    place.starts.iter().for_each(|start| start.store(0, Relaxed));
    *of_slot = what;
    place.generation.store(generation, Release);
    Some(Collective { slot, generation })
}

/// One of its channels begins on the GPU.
pub fn begin_channel(collective: Collective, channel: u8, start_ns: u64) {
    if let Some(slot) = collective.slot()
        && let Some(start) = slot.starts.get(usize::from(channel))
    {
        start.store(start_ns, Relaxed);
    }
}

/// One of its channels has ended on the GPU. The last of them makes a sample of it.
pub fn end_channel(collective: Collective, channel: u8, end_ns: u64) {
    let Some(slot) = collective.slot() else { return };
    let start_ns = slot.starts.get(usize::from(channel)).map_or(0, |start| start.swap(0, AcqRel));
    if start_ns == 0 || end_ns < start_ns {
        return;
    }
    slot.longest_ns.fetch_max(end_ns - start_ns, Relaxed);
    slot.first_ns.fetch_min(start_ns, Relaxed);
    slot.last_ns.fetch_max(end_ns, Relaxed);
    if slot.channels_left.fetch_sub(1, AcqRel) == 1 {
        slot.finish(collective);
    }
}

impl Collective {
    fn slot(self) -> Option<&'static Slot> {
        let slot = UNDER_WAY.get(self.slot as usize)?;
        (slot.generation.load(Acquire) == self.generation).then_some(slot)
    }

    /// For NCCL to keep: never 0.
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 16 | u64::from(self.slot) << 1 | 1
    }

    /// From what NCCL kept.
    pub fn of_number(number: u64) -> Collective {
        Collective { slot: (number >> 1 & 0x7fff) as u32, generation: (number >> 16) as u32 }
    }
}

impl Slot {
    fn finish(&self, collective: Collective) {
        let Ok(what) = self.what.try_lock() else { return };
        if self.generation.load(Acquire) != collective.generation {
            return;
        }
        let span_ns = self.last_ns.load(Relaxed).saturating_sub(self.first_ns.load(Relaxed));
        let sample = Sample { longest_ns: self.longest_ns.load(Relaxed), span_ns, ..*what };
        self.generation.store(collective.generation.wrapping_add(1), Release);
        drop(what);
        // Whoever fetches holds this for the time of a copy.
        if let Ok(mut waiting) = WAITING_SAMPLES.lock()
            && waiting.count < WAITING
        {
            let place = (waiting.first + waiting.count) % WAITING;
            waiting.samples[place] = sample;
            waiting.count += 1;
        }
    }
}

/// Fetches samples, the oldest first; how many there were.
pub fn fetch(into: &mut [Sample]) -> usize {
    let Ok(mut waiting) = WAITING_SAMPLES.lock() else { return 0 };
    let count = waiting.count.min(into.len());
    for place in &mut into[..count] {
        *place = waiting.samples[waiting.first];
        waiting.first = (waiting.first + 1) % WAITING;
    }
    waiting.count -= count;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the samples of the process are fetched in one place.
    #[test]
    fn a_collective_is_what_its_channels_took() {
        let what = Sample { communicator: 7, sequence: 3, channels: 2, ..NONE };
        let collective = begin(what).expect("a slot");
        assert_eq!(Collective::of_number(collective.number()), collective);
        begin_channel(collective, 0, 1_000);
        begin_channel(collective, 1, 1_500);
        end_channel(collective, 1, 4_500);
        // A second end of the same channel is none; nor is one without a beginning.
        end_channel(collective, 1, 9_000);
        end_channel(collective, 5, 9_000);
        let mut samples = [NONE; 4];
        assert_eq!(fetch(&mut samples), 0);
        end_channel(collective, 0, 3_000);
        assert_eq!(fetch(&mut samples), 1);
        assert_eq!(samples[0], Sample { longest_ns: 3_000, span_ns: 3_500, ..what });
        // What comes late finds nothing.
        begin_channel(collective, 0, 5_000);
        end_channel(collective, 0, 6_000);
        assert_eq!(fetch(&mut samples), 0);

        // A slot that is used again forgets its last use.
        let old = begin(Sample { channels: 1, ..NONE }).expect("a slot");
        begin_channel(old, 0, 10);
        for _ in 0..COLLECTIVES {
            begin(Sample { channels: 1, ..NONE }).expect("a slot");
        }
        end_channel(old, 0, 20);
        assert_eq!(fetch(&mut samples), 0);

        // Nothing is made of more than there is room for.
        for sequence in 0..2 * WAITING as u64 {
            let collective = begin(Sample { sequence, channels: 1, ..NONE }).expect("a slot");
            begin_channel(collective, 0, 10);
            end_channel(collective, 0, 20);
        }
        let mut samples = vec![NONE; 2 * WAITING];
        assert_eq!(fetch(&mut samples), WAITING);
        assert_eq!((samples[0].sequence, samples[WAITING - 1].sequence), (0, WAITING as u64 - 1));
        // Numbers that NCCL never had are nobody's.
        end_channel(Collective::of_number(u64::MAX), 3, 9);
    }
}
