//! Memory stays bounded whatever order the ranks start operations in, and a warm communicator allocates nothing.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, Reduction};
use support::{LINKS, Links, on_all_ranks};

/// Counts allocations while told to.
struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Allocations of three ranks in 4,800 calls. One per call of one kind on one rank would be 200.
const MOST: usize = 100;
/// The tests of this file measure the whole process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNT.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("statm of this process");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    pages * rustix::param::page_size()
}

#[test]
fn two_ranks_start_large_operations_in_different_orders() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const ELEMENTS: usize = 25 << 20; // 100 MiB of f32.
    let growths = on_all_ranks(Links::Tcp, 2, |comm| {
        let buffer = |value| {
            let mut buffer = comm.alloc::<f32>(ELEMENTS).unwrap();
            buffer.fill(value);
            buffer
        };
        let (mut first, mut second) = (Some(buffer(1.0)), Some(buffer(2.0)));
        if comm.rank() == 1 {
            std::mem::swap(&mut first, &mut second);
        }
        comm.barrier(&CallOptions::default()).unwrap();
        let before = resident_bytes();
        let mut most = 0;
        let id = |operation| CallOptions { operation: Some(operation), ..CallOptions::default() };
        let mine = comm.rank() as u64;
        let one = comm.start_all_reduce(first.take().unwrap(), Reduction::Sum, &id(mine)).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        most = most.max(resident_bytes());
        let two = comm.start_all_reduce(second.take().unwrap(), Reduction::Sum, &id(1 - mine)).unwrap();
        while !(one.is_done() && two.is_done()) {
            most = most.max(resident_bytes());
            std::thread::sleep(Duration::from_millis(2));
        }
        let (one, two) = (one.wait().unwrap(), two.wait().unwrap());
        let values = if mine == 0 { (2.0, 4.0) } else { (4.0, 2.0) };
        assert!(one.iter().all(|&got| got == values.0) && two.iter().all(|&got| got == values.1));
        most.saturating_sub(before)
    });
    for growth in growths {
        assert!(growth < 8 << 20, "resident memory grew by {growth} bytes");
    }
}

/// What workers push before the shard has opened it waits with them, or in the bounded pool of a link: a large one for its
/// grant, and many small ones, each of which may go at once, for the credit of 1 MiB that all of a link share.
#[test]
fn early_pushes_to_a_late_shard_wait_with_their_workers() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const SHARD: usize = 2;
    const LATE: Duration = Duration::from_secs(1);
    let growths = on_all_ranks(Links::Tcp, 3, |comm| {
        let lengths = [8 << 20].into_iter().chain(std::iter::repeat_n(16 << 10, 256));
        let mut buffers: Vec<Buffer<f32>> = lengths.map(|length| comm.alloc(length).unwrap()).collect();
        let mut growth = 0;
        // The first time nobody is late: structures are made that the second time finds.
        for round in 0..2 {
            buffers.iter_mut().for_each(|buffer| buffer.fill(comm.rank() as f32 + 1.0));
            comm.barrier(&CallOptions::default()).unwrap();
            let (before, mut most, opens) = (resident_bytes(), 0, Instant::now() + LATE);
            while round == 1 && comm.rank() == SHARD && Instant::now() < opens {
                most = most.max(resident_bytes());
                std::thread::sleep(Duration::from_millis(2));
            }
            let push_pull = |(number, buffer): (usize, Buffer<f32>)| {
                let operation = Some(1000 * round + number as u64);
                let options = CallOptions { operation, ..CallOptions::default() };
                comm.start_push_pull(buffer, SHARD, Reduction::Sum, &options).unwrap()
            };
            let pending: Vec<_> = buffers.drain(..).enumerate().map(push_pull).collect();
            while !pending.iter().all(|one| one.is_done()) {
                most = most.max(resident_bytes());
                std::thread::sleep(Duration::from_millis(2));
            }
            buffers.extend(pending.into_iter().map(|one| one.wait().unwrap()));
            assert!(buffers.iter().all(|buffer| buffer.iter().all(|&got| got == 3.0)), "round {round}");
            growth = most.saturating_sub(before);
        }
        growth
    });
    // Early they were 32 MiB and 16 MiB of each of two workers.
    for growth in growths {
        assert!(growth < 8 << 20, "resident memory grew by {growth} bytes");
    }
}

#[test]
fn a_warm_communicator_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // (Encrypted links do allocate, in one call of three or four; nothing here bounds it.)
    for links in LINKS.into_iter().filter(|links| *links != Links::Encrypted) {
        let allocations = on_all_ranks(links, 3, move |comm| {
            let options = CallOptions::default();
            let mut small = vec![1f32; 16];
            let mut large = vec![1f32; 100_000];
            let mut gathered = vec![0f32; 48];
            let mut pending = Some(comm.alloc::<f32>(3000).unwrap());
            let round =
                |small: &mut [f32], large: &mut [f32], gathered: &mut [f32], pending: &mut Option<Buffer<f32>>| {
                    comm.all_reduce(small, Reduction::Max, &options).unwrap();
                    comm.all_reduce(large, Reduction::Max, &options).unwrap();
                    comm.all_gather(small, gathered, &options).unwrap();
                    comm.barrier(&options).unwrap();
                    comm.broadcast(small, 1, &options).unwrap();
                    let (next, before) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
                    if comm.rank() == 0 {
                        comm.receive(&mut small[..4], before, 1, &options).unwrap();
                        comm.send(&small[4..8], next, 1, &options).unwrap();
                    } else {
                        comm.send(&small[4..8], next, 1, &options).unwrap();
                        comm.receive(&mut small[..4], before, 1, &options).unwrap();
                    }
                    let buffer = pending.take().expect("the last round gave it back");
                    let started = comm.start_all_reduce(buffer, Reduction::Max, &options).unwrap();
                    *pending = Some(started.wait().unwrap());
                };
            for _ in 0..300 {
                round(&mut small, &mut large, &mut gathered, &mut pending);
            }
            comm.barrier(&options).unwrap();
            // On a busy machine messages come late and are pooled, and queues find new high-water marks: the quietest of a
            // few windows counts, or of many.
            let mut least = usize::MAX;
            for window in 0..30 {
                let mut found = [least as f64];
                comm.all_reduce(&mut found, Reduction::Max, &options).unwrap();
                if window >= 6 && found[0] <= MOST as f64 {
                    break;
                }
                comm.barrier(&options).unwrap();
                COUNT.store(true, Ordering::SeqCst);
                ALLOCATIONS.store(0, Ordering::SeqCst);
                comm.barrier(&options).unwrap();
                for _ in 0..200 {
                    round(&mut small, &mut large, &mut gathered, &mut pending);
                }
                comm.barrier(&options).unwrap();
                least = least.min(ALLOCATIONS.load(Ordering::SeqCst));
                COUNT.store(false, Ordering::SeqCst);
            }
            least
        });
        let most = allocations.iter().max().copied().unwrap_or(0);
        assert!(most <= MOST, "{most} allocations in 4,800 calls over {links:?}");
    }
}
