//! What decisions cost. Allocations are counted in the copy of the code that is linked into this program.

use crate::alone;
use crate::library::{Library, Linked, Opened};
use crate::plugin::{clear, install, release};
use crate::releases::RELEASES;
use crate::speed;

/// Whole rounds of 10^7 calls, with PACELINE_LONG_TESTS: one of three must have a median of at most 60 ns, since a machine may be
/// busy for the length of one; twice that where debug assertions are compiled in. Else 10^6, whose median is printed.
#[test]
fn a_decision_is_cheap() {
    const MEDIAN_NS_MAX: f64 = if cfg!(debug_assertions) { 120.0 } else { 60.0 };
    let _alone = alone();
    let opened = Opened::plugin();
    install(&opened);
    install(&Linked);
    let long = std::env::var_os("PACELINE_LONG_TESTS").is_some();
    let calls = if long { 10_000_000 } else { 1_000_000 };
    for (name, library) in [("library", &opened as &dyn Library), ("linked copy", &Linked)] {
        let mut medians_ns = Vec::new();
        while medians_ns.len() < 3 && medians_ns.iter().all(|median_ns| *median_ns > MEDIAN_NS_MAX) {
            let cost = speed::measure(library, release("2.30"), calls);
            println!("{name}: a decision takes {:.1} ns, one batch in 1000 over {:.0}", cost.median_ns, cost.slow_ns);
            assert!(cost.decided && cost.allocations == 0, "{name}: {cost:?}");
            medians_ns.push(cost.median_ns);
        }
        let holds = medians_ns.iter().any(|median_ns| *median_ns <= MEDIAN_NS_MAX);
        assert!(holds || !long, "{name}: {calls} calls, three times: {medians_ns:.1?} ns each");
    }
}

#[test]
fn nothing_is_allocated_in_any_release_with_a_policy_or_without() {
    let _alone = alone();
    for with_policy in [true, false] {
        if with_policy {
            install(&Linked)
        } else {
            clear(&Linked)
        }
        for release in RELEASES.iter().filter(|release| !release.tuners.is_empty()) {
            let allocated = speed::allocations_of(&Linked, release, 5000);
            assert_eq!(allocated, 0, "NCCL {}, with a policy: {with_policy}", release.nccl);
        }
    }
}
