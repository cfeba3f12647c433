//! What calls took on the GPU: events while they last, then samples for whoever asks.
//!
//! Events are numbers, not addresses: NCCL gives them back, and a stale one is recognised by the count of its slot's uses.
//! NCCL's threads wait for nobody here: what is held by another thread at that moment is left out, and counted as lost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Collectives under way on this process that are recorded at once; beyond that the oldest is given up.
const COLLECTIVES: usize = 256;
/// Samples that wait to be fetched; beyond that the newest is lost.
const WAITING: usize = 1024;

/// What a collective took. The layout is part of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// NCCL's number of the communicator, the same on all ranks; those of one parent may share it.
    pub communicator: u64,
    /// Which of this process's communicators: they are counted as they begin, from 1 on.
    pub instance: u64,
    /// NCCL's count, by communicator and function. Replays of a CUDA graph need not raise it.
    pub sequence: u64,
    /// As the tuner's rules count them: of the larger buffer; those of all ranks with all-gather and reduce-scatter. (A tuner
    /// is asked once for operations of a group that are alike, with the sum of their bytes.)
    pub bytes: u64,
    /// The longest of the channels' times, ns of the GPU. It contains the wait for the last rank: compare the smallest of all
    /// ranks.
    pub longest_ns: u64,
    /// From the first channel's start to the last one's end, ns.
    pub span_ns: u64,
    /// The version of the policy that decided when it began, or 0. A sample may come after the policy has changed; the same on all
    /// ranks. (Replays of a CUDA graph have what was decided when it was captured, whatever stands here.)
    pub policy: u64,
    /// This process's rank.
    pub rank: i32,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its hosts.
    pub hosts: u32,
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
    instance: 0,
    sequence: 0,
    bytes: 0,
    longest_ns: 0,
    span_ns: 0,
    policy: 0,
    rank: 0,
    ranks: 0,
    hosts: 0,
    function: 0,
    algorithm: 0,
    protocol: 0,
    channels: 0,
    threads: 0,
};

static UNDER_WAY: [Mutex<Slot>; COLLECTIVES] = [const { Mutex::new(Slot::FREE) }; COLLECTIVES];
static NEXT: AtomicU32 = AtomicU32::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static WAITING_SAMPLES: Mutex<Waiting> = Mutex::new(Waiting { samples: [NONE; WAITING], first: 0, count: 0 });

/// A collective under way.
struct Slot {
    /// Counts the uses of this slot.
    generation: u32,
    /// That have not ended; 0: nothing is under way.
    channels_left: u32,
    longest_ns: u64,
    first_ns: u64,
    last_ns: u64,
    what: Sample,
    /// When channels began that have not ended; 0: not known.
    starts_ns: [u64; 64],
}

impl Slot {
    const FREE: Slot = Slot {
        generation: 0,
        channels_left: 0,
        longest_ns: 0,
        first_ns: u64::MAX,
        last_ns: 0,
        what: NONE,
        starts_ns: [0; 64],
    };
}

/// A collective's event: which slot, which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    slot: u32,
    generation: u32,
}

/// A collective begins. None if another thread is just taking the same slot, or where NCCL does not say on how many channels
/// it runs: then it does not say when it ends.
pub fn begin(what: Sample) -> Option<Collective> {
    if what.channels == 0 {
        return None;
    }
    let slot = NEXT.fetch_add(1, Relaxed) % COLLECTIVES as u32;
    let Some(mut place) = UNDER_WAY.get(slot as usize).and_then(free_now) else {
        LOST.fetch_add(1, Relaxed);
        return None;
    };
    if place.channels_left > 0 {
        LOST.fetch_add(1, Relaxed);
    }
    let generation = place.generation.wrapping_add(1);
    *place = Slot { generation, channels_left: what.channels, what, ..Slot::FREE };
    Some(Collective { slot, generation })
}

/// One of its channels begins on the GPU.
pub fn begin_channel(collective: Collective, channel: u8, start_ns: u64) {
    let Some(mut slot) = collective.slot() else { return };
    if let Some(start) = slot.starts_ns.get_mut(usize::from(channel)) {
        *start = start_ns;
    }
}

/// One of its channels has ended on the GPU. The last of them makes a sample of it.
pub fn end_channel(collective: Collective, channel: u8, end_ns: u64) {
    let Some(mut slot) = collective.slot() else { return };
    let start_ns = slot.starts_ns.get_mut(usize::from(channel)).map_or(0, std::mem::take);
    if start_ns == 0 || end_ns < start_ns {
        // An end without its beginning: the collective stays incomplete, and is counted as lost when its slot is taken.
        return;
    }
    slot.longest_ns = slot.longest_ns.max(end_ns - start_ns);
    slot.first_ns = slot.first_ns.min(start_ns);
    slot.last_ns = slot.last_ns.max(end_ns);
    slot.channels_left -= 1;
    if slot.channels_left == 0 {
        let sample = Sample { longest_ns: slot.longest_ns, span_ns: slot.last_ns - slot.first_ns, ..slot.what };
        drop(slot);
        keep(sample);
    }
}

/// What a lock guards, unless somebody has it. Whoever panicked with it left numbers that are numbers.
fn free_now<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Collective {
    /// Its slot, unless that has another use by now.
    fn slot(self) -> Option<MutexGuard<'static, Slot>> {
        let slot = UNDER_WAY.get(self.slot as usize).and_then(free_now)?;
        (slot.generation == self.generation && slot.channels_left > 0).then_some(slot)
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

/// Keeps a sample for whoever asks; it is lost where there is no room, or where somebody is just fetching.
fn keep(sample: Sample) {
    match free_now(&WAITING_SAMPLES) {
        Some(mut waiting) if waiting.count < WAITING => {
            let place = (waiting.first + waiting.count) % WAITING;
            waiting.samples[place] = sample;
            waiting.count += 1;
        }
        _ => _ = LOST.fetch_add(1, Relaxed),
    }
}

/// Fetches samples, the oldest first; how many there were.
pub fn fetch(into: &mut [Sample]) -> usize {
    // Whoever panicked with the lock left a sample more or less.
    let mut waiting = WAITING_SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    let count = waiting.count.min(into.len());
    for place in &mut into[..count] {
        *place = waiting.samples[waiting.first];
        waiting.first = (waiting.first + 1) % WAITING;
    }
    waiting.count -= count;
    count
}

/// Collectives that were recorded and became no sample.
pub fn lost() -> u64 {
    LOST.load(Relaxed)
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
        let before = lost();
        for _ in 0..COLLECTIVES {
            begin(Sample { channels: 1, ..NONE }).expect("a slot");
        }
        end_channel(old, 0, 20);
        assert_eq!((fetch(&mut samples), lost() - before), (0, 1), "the oldest was given up");
        // Where NCCL names no channels, their ends would not be the end.
        assert_eq!(begin(NONE), None);

        // Nothing is made of more than there is room for, and that is counted; so is what was given up in every slot.
        let before = lost();
        for sequence in 0..2 * WAITING as u64 {
            let collective = begin(Sample { sequence, channels: 1, ..NONE }).expect("a slot");
            begin_channel(collective, 0, 10);
            end_channel(collective, 0, 20);
        }
        let mut samples = vec![NONE; 2 * WAITING];
        assert_eq!(fetch(&mut samples), WAITING);
        assert_eq!((samples[0].sequence, samples[WAITING - 1].sequence), (0, WAITING as u64 - 1));
        assert_eq!(lost() - before, (WAITING + COLLECTIVES) as u64);
        // Numbers that NCCL never had are nobody's.
        end_channel(Collective::of_number(u64::MAX), 3, 9);
    }
}
