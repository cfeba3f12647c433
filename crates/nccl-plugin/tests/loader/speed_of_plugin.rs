//! What decisions cost. Allocations are counted in the copy of the code that is linked into this program: the library has an
//! allocator of its own, whose calls nobody here sees (`preloaded.rs` does).

use crate::alone;
use crate::library::{Library, Linked, Opened};
use crate::nccl::Log;
use crate::newest::{NoNccl, VERSION_7};
use crate::plugin::{clear, install, release};
use crate::releases::{RELEASES, Release};
use crate::speed;

const IS_RELEASE: bool = !cfg!(debug_assertions);
const MEDIAN_NS_MAX: f64 = if IS_RELEASE { 60.0 } else { 120.0 };

/// The newest two interfaces: one release of each.
const NEWEST: [&str; 2] = ["2.30", "2.32.6"];
/// One release of each of those before.
const OLDER: [&str; 5] = ["2.19.1 to 2.20.5", "2.21.5", "2.22.3", "2.27", "2.29"];

/// Up to three rounds of so many calls, one of which must have a median of at most 60 ns, since a machine may be busy for the length of
/// one: in a release build always, with debug assertions compiled in where PACELINE_LONG_TESTS is set, and then twice that. Else a tenth
/// of them, whose median is printed.
fn is_cheap(name: &str, library: &dyn Library, release: &Release, calls: usize, log: Log, is_counted: bool) {
    let is_judged = IS_RELEASE || std::env::var_os("PACELINE_LONG_TESTS").is_some();
    let calls = if is_judged { calls } else { calls / 10 };
    let nccl = release.nccl;
    let mut medians_ns = Vec::new();
    while medians_ns.len() < 3 && medians_ns.iter().all(|median_ns| *median_ns > MEDIAN_NS_MAX) {
        let cost = speed::measure(library, release, calls, Some(log));
        println!(
            "{name}, {nccl}: a decision takes {:.1} ns, one batch in 1000 over {:.0}",
            cost.median_ns, cost.slow_ns
        );
        let allocations = if is_counted { cost.allocations.to_string() } else { "null".to_owned() };
        println!(
            r#"evidence: {{"what":"cost","nccl":"{nccl}","library":"{name}","calls":{calls},"median_ns":{:.2},"slow_ns":{:.1},"allocations":{allocations}}}"#,
            cost.median_ns, cost.slow_ns
        );
        assert!(cost.decided && (cost.allocations == 0 || !is_counted), "{name}, {nccl}: {cost:?}");
        medians_ns.push(cost.median_ns);
    }
    let holds = medians_ns.iter().any(|median_ns| *median_ns <= MEDIAN_NS_MAX);
    assert!(holds || !is_judged, "{name}, {nccl}: {calls} calls, three times: {medians_ns:.1?} ns each");
}

/// The newest two interfaces by 10^7 calls each, the others by 10^6.
#[test]
fn a_decision_is_cheap() {
    let _alone = alone();
    let nccl = NoNccl::of(VERSION_7);
    let opened = Opened::plugin();
    install(&opened);
    install(&Linked);
    // Of the library nothing but its time is known: its allocations would be none, however many there were.
    for (name, library, is_counted) in [("library", &opened as &dyn Library, false), ("linked copy", &Linked, true)] {
        for newest in NEWEST {
            is_cheap(name, library, release(newest), 10_000_000, nccl.log(), is_counted);
        }
        for older in OLDER {
            is_cheap(name, library, release(older), 1_000_000, nccl.log(), is_counted);
        }
    }
}

#[test]
fn nothing_is_allocated_in_any_release_with_a_policy_or_without() {
    let _alone = alone();
    let nccl = NoNccl::of(VERSION_7);
    for with_policy in [true, false] {
        if with_policy {
            install(&Linked)
        } else {
            clear(&Linked)
        }
        allocates_nothing("linked copy", &Linked, with_policy, nccl.log(), crate::counting::allocations);
    }
}

/// Of no release's calls, as `counted` counts.
pub fn allocates_nothing(name: &str, library: &dyn Library, with_policy: bool, log: Log, counted: impl Fn() -> u64) {
    // Twelve million in all, with a policy and without.
    const CALLS: usize = if IS_RELEASE { 500_000 } else { 5_000 };
    for release in RELEASES.iter().filter(|release| !release.tuners.is_empty()) {
        let allocated = speed::allocations_of(library, release, CALLS, log, &counted);
        println!(
            r#"evidence: {{"what":"allocations","nccl":"{}","library":"{name}","with_policy":{with_policy},"calls":{CALLS},"allocations":{allocated}}}"#,
            release.nccl
        );
        assert_eq!(allocated, 0, "{name}, NCCL {}, with a policy: {with_policy}", release.nccl);
    }
}
