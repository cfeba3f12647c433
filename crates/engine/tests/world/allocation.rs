//! Counts what the engine allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use paceline_plan::CollectiveKind;

use crate::call::Call;
use crate::setup::Setup;
use crate::world::World;

thread_local! {
    static IN_ENGINE: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Runs a call of the engine; its allocations count.
pub fn counted<R>(call: impl FnOnce() -> R) -> R {
    let outer = IN_ENGINE.replace(true);
    let result = call();
    IN_ENGINE.set(outer);
    result
}

/// Allocations in the engine on this thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    // The thread may be ending, and its variables gone.
    let _ = IN_ENGINE.try_with(|in_engine| {
        if in_engine.get() {
            let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        }
    });
}

// SAFETY: every call is passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[test]
fn a_warm_engine_allocates_nothing() {
    // The same times in every round, so that no queue is longer in a later one.
    let calm = Setup { work: 100..101, ..Setup::calm(4, 1) };
    let wide = Setup { eager_link_bytes: 20_000, ..calm.clone() };
    for setup in [calm.clone(), wide, calm.with_references(500, true)] {
        let mut world = World::new(setup);
        let mut operation = 0;
        let mut round = |world: &mut World| {
            for (name, elements) in [("ring", 40), ("ring", 5000), ("direct", 40), ("halving-doubling", 3000)] {
                operation += 1;
                let call =
                    Call { operation, tile_elements: 400, ..Call::named(CollectiveKind::AllReduce, name, 4, elements) };
                // A rank is late, so that its peers' messages and grants are early.
                (0..4).for_each(|rank| world.post_at(world.now + (rank as u64 % 2) * 100_000, rank, &call));
                world.run();
                world.check(&call);
            }
        };
        (0..20).for_each(|_| round(&mut world));
        let warm = allocations();
        (0..20).for_each(|_| round(&mut world));
        assert_eq!(allocations() - warm, 0, "allocations in 20 rounds of a warm engine");
    }
}
