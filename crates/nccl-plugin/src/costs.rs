//! What NCCL's own model says of calls: the first table of costs of each kind, for whoever learns of them.
//!
//! NCCL's threads allocate nothing here and wait for nobody: who finds a kind known, or finds another thread writing it down, goes on.
//! What is written down never changes.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::policy::Call;

/// Kinds of calls that are kept; beyond that NCCL's formulas have to do (docs/nccl.md).
const KINDS: usize = 256;
/// Places that are looked at for a kind.
const PLACES: usize = 8;
/// Entries of a table at most: NCCL has seven algorithms with three protocols.
pub const ENTRIES: usize = 32;
/// In a key: the table is complete.
const COMPLETE: u64 = 1;

static KEPT: Kept = Kept([const { Place::free() }; KINDS]);

/// Tables by kind.
struct Kept([Place; KINDS]);

/// One of them.
struct Place {
    /// 0: nobody's.
    key: AtomicU64,
    bytes: AtomicU64,
    protocols: AtomicU32,
    entries: AtomicU32,
    costs: [AtomicU32; ENTRIES],
}

/// A table of costs as NCCL has handed it over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Of the call that it was for.
    pub bytes: u64,
    /// Entries of a row; each row is an algorithm.
    pub protocols: usize,
    /// How many entries there are.
    pub entries: usize,
    /// Microseconds; -1: that way is not there.
    pub costs: [f32; ENTRIES],
}

/// Keeps the table of a call, if it is the first of its kind; of calls by themselves only, as
/// [`Communicator::is_first_of_kind`](crate::state::Communicator::is_first_of_kind) says.
pub fn keep(call: &Call, costs: &[f32], protocols: usize) {
    KEPT.keep(call, costs, protocols);
}

/// What was kept of the kind of this call.
pub fn of(call: &Call) -> Option<Table> {
    KEPT.of(call)
}

impl Kept {
    fn keep(&self, call: &Call, costs: &[f32], protocols: usize) {
        let Some(key) = key(call).filter(|_| costs.len() <= ENTRIES) else { return };
        for place in self.places(key) {
            let found = place.key.load(Relaxed);
            if found & !COMPLETE == key {
                return;
            }
            if found != 0 {
                continue;
            }
            match place.key.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => return place.write(key, call.bytes as u64, costs, protocols),
                // Another thread was faster, with a call of this kind or of another one.
                Err(other) if other & !COMPLETE == key => return,
                Err(_) => {}
            }
        }
    }

    fn of(&self, call: &Call) -> Option<Table> {
        let key = key(call)?;
        let place = self.places(key).find(|place| place.key.load(Acquire) == key | COMPLETE)?;
        Some(place.read())
    }

    fn places(&self, key: u64) -> impl Iterator<Item = &Place> {
        // Fibonacci's hash, of which the highest bits depend on all others.
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - KINDS.ilog2())) as usize;
        (first..first + PLACES).map(|place| &self.0[place % KINDS])
    }
}

impl Place {
    const fn free() -> Place {
        Place {
            key: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            protocols: AtomicU32::new(0),
            entries: AtomicU32::new(0),
            costs: [const { AtomicU32::new(0) }; ENTRIES],
        }
    }

    /// By whoever has put the key there; complete for others when the key says so.
    fn write(&self, key: u64, bytes: u64, costs: &[f32], protocols: usize) {
        self.bytes.store(bytes, Relaxed);
        self.protocols.store(protocols as u32, Relaxed);
        self.entries.store(costs.len() as u32, Relaxed);
        self.costs.iter().zip(costs).for_each(|(place, cost)| place.store(cost.to_bits(), Relaxed));
        self.key.store(key | COMPLETE, Release);
    }

    fn read(&self) -> Table {
        let costs = std::array::from_fn(|place| f32::from_bits(self.costs[place].load(Relaxed)));
        let number = |of: &AtomicU32| of.load(Relaxed) as usize;
        Table {
            bytes: self.bytes.load(Relaxed),
            protocols: number(&self.protocols),
            entries: number(&self.entries),
            costs,
        }
    }
}

/// All that contexts are told apart by, in one number, with room for the mark. None: a communicator that is larger than any.
fn key(call: &Call) -> Option<u64> {
    const WORLD: usize = 1 << 27;
    let Call { function, bytes, ranks, hosts, .. } = *call;
    let size = u64::from(bytes.max(1).ilog2());
    let is_known = ranks < WORLD && hosts < WORLD;
    is_known
        .then(|| ((function.number() as u64 + 1) << 61) | (size << 55) | ((ranks as u64) << 28) | ((hosts as u64) << 1))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_tune::nccl::Function;

    use super::*;

    const CALL: Call = Call { function: Function::AllReduce, bytes: 5000, ranks: 8, hosts: 2, pipelined: false };

    fn table(of: &Table) -> (u64, usize, Vec<f32>) {
        (of.bytes, of.protocols, of.costs[..of.entries].to_vec())
    }

    #[test]
    fn the_first_table_of_a_kind_is_kept() {
        let kept = Kept([const { Place::free() }; KINDS]);
        assert_eq!(kept.of(&CALL), None);
        kept.keep(&CALL, &[1.0, -1.0, 3.0, 4.0, 5.0, 6.0], 3);
        kept.keep(&Call { bytes: 8191, ..CALL }, &[9.0; 6], 3);
        let found = kept.of(&Call { bytes: 4096, ..CALL }).expect("the same power of two");
        assert_eq!(table(&found), (5000, 3, vec![1.0, -1.0, 3.0, 4.0, 5.0, 6.0]));
        for other in [
            Call { bytes: 8192, ..CALL },
            Call { ranks: 9, ..CALL },
            Call { hosts: 1, ..CALL },
            Call { function: Function::AllGather, ..CALL },
        ] {
            assert_eq!(kept.of(&other), None, "{other:?}");
            kept.keep(&other, &[2.0; 21], 3);
            assert_eq!(kept.of(&other).map(|it| it.entries), Some(21), "{other:?}");
        }
        assert_eq!(kept.of(&CALL), Some(found));
        // Nothing is made of what has no room.
        let other = Call { ranks: 10, ..CALL };
        kept.keep(&other, &[1.0; ENTRIES + 1], 3);
        kept.keep(&Call { ranks: usize::MAX, ..CALL }, &[1.0; 3], 3);
        assert_eq!((kept.of(&other), kept.of(&Call { ranks: usize::MAX, ..CALL })), (None, None));
    }

    #[test]
    fn of_more_kinds_than_there_is_room_for_some_are_kept() {
        let kept = Kept([const { Place::free() }; KINDS]);
        let call = |ranks: usize| Call { ranks, ..CALL };
        (2..2 + 2 * KINDS).for_each(|ranks| kept.keep(&call(ranks), &[ranks as f32; 3], 3));
        let known: Vec<(usize, Table)> =
            (2..2 + 2 * KINDS).filter_map(|ranks| Some((ranks, kept.of(&call(ranks))?))).collect();
        assert!(known.len() > KINDS * 9 / 10, "{} of {KINDS}", known.len());
        assert!(known.iter().all(|(ranks, table)| table.costs[..3] == [*ranks as f32; 3]));
    }

    /// A job has few communicators, and calls of many functions and sizes.
    #[test]
    fn all_kinds_of_a_communicator_have_a_place() {
        let kept = Kept([const { Place::free() }; KINDS]);
        let kinds = || {
            let sizes = 8..32u32;
            sizes
                .flat_map(|size| Function::ALL.iter().map(move |&function| Call { function, bytes: 1 << size, ..CALL }))
        };
        kinds().for_each(|call| kept.keep(&call, &[call.bytes as f32; 21], 3));
        let missing = kinds().filter(|call| kept.of(call).is_none_or(|table| table.costs[0] != call.bytes as f32));
        assert_eq!(missing.count(), 0);
    }

    /// Several threads with calls of the same kinds: whoever reads sees one of their tables, whole.
    #[test]
    fn no_table_is_of_two_calls() {
        static SHARED: Kept = Kept([const { Place::free() }; KINDS]);
        const THREADS: usize = 4;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for ranks in 2..60 {
                        let call = Call { ranks, ..CALL };
                        SHARED.keep(&call, &[thread as f32; 21], 3);
                        if let Some(table) = SHARED.of(&call) {
                            assert!(table.costs[..21].iter().all(|cost| *cost == table.costs[0]), "{table:?}");
                        }
                    }
                });
            }
        });
        assert!((2..60).all(|ranks| SHARED.of(&Call { ranks, ..CALL }).is_some()));
    }
}
