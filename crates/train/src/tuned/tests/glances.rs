//! Ranks that meet before it is time, as their calls take another time.

use super::*;
use crate::on_ranks::on_hosts;

const EVERY: u64 = 4;

/// After a meeting at which calls took a millisecond, and from which on the ranks glance every so many boundaries, the next meeting is far away.
/// At which of 40 boundaries do they meet, if a call takes so many microseconds on each rank?
/// `hosts`: that each rank has one of its own.
fn meetings(us: [u64; 3], hosts: bool) -> Vec<Vec<usize>> {
    let rank = |communicator: Communicator| {
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
    };
    if hosts { on_hosts(3, "flat", rank) } else { on_ranks(3, rank) }
}

#[test]
fn all_ranks_meet_at_the_same_boundary_when_calls_have_changed() {
    for us in [[5000, 6000, 5000], [400, 300, 500]] {
        // Twelve calls tell. What came with the change is usual from then on.
        let met = meetings(us, false);
        assert!(met.iter().all(|rank| *rank == [12]), "{us:?}: {met:?}");
        // Among hosts nobody waits for the answer, which is there two boundaries later.
        let met = meetings(us, true);
        assert!(met.iter().all(|rank| *rank == [14]), "{us:?}: {met:?}");
    }
}

/// Calls that were rehearsed become five times as long, long before the ranks would meet for the first time.
#[test]
fn a_change_before_the_first_meeting_is_seen() {
    let met = on_hosts(3, "flat", |communicator| {
        let mut calls = TunedCalls::new(&communicator, 5);
        let state = calls.state_of(CollectiveKind::AllReduce, 1 << 28, &CALL);
        calls.kinds.takes(state, 1e-6);
        calls.glances.begin_early(1e-9);
        let met = |boundary: &usize| {
            call_of(&mut calls, &state, |_| Duration::from_micros(if *boundary < 40 { 1 } else { 5 }));
            calls.boundary().unwrap();
            calls.made.is_empty()
        };
        (1..=90).find(met)
    });
    // What is usual is noted at the 32nd call, of those from the 17th on. At the 48th nine of the twelve that tell have changed, and at the 50th all
    // ranks know it.
    assert_eq!(met, [Some(50); 3]);
}

/// Whoever stops in the middle of one ends it.
#[test]
fn a_job_may_end_while_a_glance_is_under_way() {
    on_hosts(3, "flat", |communicator| {
        let mut calls = TunedCalls::new(&communicator, 5);
        calls.meetings.met(1000);
        calls.glances.set(1);
        if communicator.rank() > 0 {
            // The first one has long ended his job then, but for this.
            std::thread::sleep(Duration::from_millis(30));
        }
        calls.boundary().unwrap();
        if communicator.rank() > 0 {
            assert_eq!(calls.glances.end().map_err(|error| error.to_string()), Ok(false));
        }
    });
}

#[test]
fn a_rank_that_alone_is_slow_calls_nobody() {
    for us in [[5000, 1000, 1000], [1000; 3], [5000, 5000, 1000], [5000, 400, 5000]] {
        for hosts in [false, true] {
            let met = meetings(us, hosts);
            assert!(met.iter().all(Vec::is_empty), "{us:?}: {met:?}");
        }
    }
}
