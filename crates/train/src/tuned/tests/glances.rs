//! Ranks that meet before it is time, as their calls take another time.

use super::*;

const EVERY: u64 = 4;

/// After a meeting at which calls took a millisecond, and from which on the ranks glance every so many boundaries, the next meeting is far away.
/// At which of 40 boundaries do they meet, if a call takes so many microseconds on each rank?
fn meetings(us: [u64; 3]) -> Vec<Vec<usize>> {
    on_ranks(3, |communicator| {
        let mut calls = TunedCalls::new(&communicator, 5);
        let state = calls.state_of(CollectiveKind::AllReduce, 1 << 28, &CALL);
        assert!((0..1000).all(|number| calls.meetings.is_recorded(number, state.bytes)), "a call of 256 MiB is long");
        (0..20).for_each(|_| call_of(&mut calls, &state, |_| Duration::from_millis(1)));
        calls.meet(false).unwrap();
        calls.meetings.met(1000);
        calls.glances.set(EVERY);
        let mut met = Vec::new();
        for boundary in 1..=40 {
            call_of(&mut calls, &state, |_| Duration::from_micros(us[communicator.rank()]));
            calls.boundary().unwrap();
            if calls.made.is_empty() {
                met.push(boundary);
                calls.meetings.met(1000);
                calls.glances.set(EVERY);
            }
        }
        met
    })
}

#[test]
fn all_ranks_meet_at_the_same_boundary_when_calls_have_changed() {
    for us in [[5000, 6000, 5000], [400, 300, 500]] {
        // Twelve calls tell. What came with the change is usual from then on.
        let met = meetings(us);
        assert!(met.iter().all(|rank| *rank == [12]), "{us:?}: {met:?}");
    }
}

#[test]
fn a_rank_that_alone_is_slow_calls_nobody() {
    for us in [[5000, 1000, 1000], [1000; 3], [5000, 5000, 1000], [5000, 400, 5000]] {
        let met = meetings(us);
        assert!(met.iter().all(Vec::is_empty), "{us:?}: {met:?}");
    }
}
