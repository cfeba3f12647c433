//! The harness finds what is wrong with plug-ins that are wrong on purpose, and nothing with those that are not.

use crate::library::Given;
use crate::plugin::release;
use crate::wrong_plugins::{self as wrong, NO_ERRORS, Results, answering, cutting, deciding, deciding_in, returning};
use crate::{check, speed};

fn found(library: &Given, of: &str) -> String {
    check::tuner(library, release(of), 500, 11).expect_err("something is wrong with it")
}

#[test]
fn what_is_right_passes() {
    for decide in [wrong::nothing as wrong::Decide, wrong::prefers_a_ring] {
        let seen = check::tuner(&deciding(decide), release("2.30"), 500, 11).expect("nothing wrong");
        assert_eq!(seen.map(|seen| seen.version), Some(6));
    }
    let seen = check::tuner(&cutting(wrong::quarters), release("2.30"), 500, 11).expect("nothing wrong");
    assert!(seen.is_some_and(|seen| seen.chunks > 400));
    assert_eq!(check::tuner(&cutting(wrong::takes_more), release("2.29"), 10, 1), Ok(None));
    let seen = check::tuner(&answering((1, 2, 4), NO_ERRORS), release("2.21.5"), 500, 11)
        .expect("nothing wrong")
        .expect("a tuner");
    assert_eq!((seen.version, seen.decisions), (2, 500));
}

#[test]
fn a_release_that_looks_for_other_symbols_finds_nothing() {
    let given = deciding(wrong::fails);
    assert_eq!(check::tuner(&given, release("2.29"), 10, 1), Ok(None));
    assert_eq!(check::tuner(&Given(Vec::new()), release("2.30"), 10, 1), Ok(None));
}

#[test]
fn wrong_tables_are_found() {
    for (decide, words) in [
        (wrong::fails as wrong::Decide, "it returned 3"),
        (wrong::takes_what_is_unavailable, "which is unavailable"),
        (wrong::forbids_with_a_negative, "it wrote -1 to entry"),
        (wrong::forbids_with_no_number, "it wrote NaN to entry"),
        (wrong::wants_two, "it set 2 entries to 0"),
        (wrong::writes_behind_the_table, "outside of the table"),
        (wrong::writes_before_the_table, "outside of the table"),
        (wrong::makes_costs_up, "it wrote 1000000 to entry"),
        (wrong::bounds_what_it_does_not_choose, "that it has no algorithm for"),
        (wrong::has_rows_of_three, "in a table of (6, 3)"),
        (wrong::insists_on_a_ring, "which NCCL had put behind all else"),
        (wrong::wants_all_channels, "200 channels"),
        (wrong::wants_fewer_than_no_channels, "-1 channels"),
        (wrong::looks_at_registration, "different answers"),
        (wrong::counts_calls, "different answers"),
        (wrong::counts_calls_of_each, "different answers"),
    ] {
        let reason = found(&deciding(decide), "2.30");
        assert!(reason.contains(words), "{words}: {reason}");
    }
}

#[test]
fn wrong_tables_are_found_in_every_version() {
    for (symbol, of) in [
        ("ncclTunerPlugin_v3", "2.22.3"),
        ("ncclTunerPlugin_v4", "2.27"),
        ("ncclTunerPlugin_v5", "2.28"),
        ("ncclTunerPlugin_v7", "2.32.6"),
    ] {
        let right = check::tuner(&deciding_in(symbol, wrong::prefers_a_ring), release(of), 500, 11);
        assert!(right.expect("nothing wrong").is_some_and(|seen| seen.decisions > 100), "{of}");
        assert!(found(&deciding_in(symbol, wrong::takes_what_is_unavailable), of).contains("unavailable"), "{of}");
        assert!(found(&deciding_in(symbol, wrong::wants_all_channels), of).contains("200 channels"), "{of}");
    }
}

#[test]
fn wrong_results_are_found() {
    for (results, words) in [
        (Results { init: 2, ..NO_ERRORS }, "init returned 2"),
        (Results { edits_constants: true, ..NO_ERRORS }, "init wrote to the constants"),
        (Results { end: 1, ..NO_ERRORS }, "the end of a communicator failed"),
        (Results { chunk: 5, ..NO_ERRORS }, "getChunkSize returned 5"),
        (Results { differs: true, ..NO_ERRORS }, "two ranks got different chunks"),
    ] {
        let reason = found(&returning(results), "2.30");
        assert!(reason.contains(words), "{words}: {reason}");
    }
    for of in ["2.19.1 to 2.20.5", "2.21.5"] {
        for (answer, results, words) in [
            ((1, 0, 0), Results { ask: 3, ..NO_ERRORS }, "it returned 3"),
            ((1, 0, 0), Results { differs: true, ..NO_ERRORS }, "two ranks got different answers"),
            ((1, 0, 0), Results { end: 1, ..NO_ERRORS }, "the end of a communicator failed"),
            ((1, 0, 200), NO_ERRORS, "200 channels"),
            ((1, 0, -1), NO_ERRORS, "-1 channels"),
        ] {
            let reason = found(&answering(answer, results), of);
            assert!(reason.contains(words), "{of}, {words}: {reason}");
        }
    }
}

#[test]
fn wrong_chunks_are_found() {
    let (no_grains, no_part) = (", and grains of", "no half, quarter or eighth of");
    // Of those whose grains are another protocol's, either may be seen first.
    let whichever = "a chunk of";
    for (cut, words) in [
        (wrong::takes_nothing as wrong::Cut, no_grains),
        (wrong::takes_a_crumb, no_grains),
        (wrong::takes_no_whole_grains, no_grains),
        (wrong::takes_more, no_grains),
        (wrong::takes_twice_as_much, no_grains),
        (wrong::takes_all_for_ll, whichever),
        (wrong::takes_all_for_simple, whichever),
        (wrong::takes_one_grain, no_part),
        (wrong::takes_few_grains, no_part),
        (wrong::takes_a_third, no_part),
    ] {
        let reason = found(&cutting(cut), "2.30");
        assert!(reason.contains(words), "{words}: {reason}");
    }
}

#[test]
fn wrong_answers_are_found() {
    // Only one of both; an algorithm that is not everywhere; LL128 without proof; a tree for whatever function.
    for (algorithm, protocol) in [(1, -1), (-1, 0), (4, 2), (1, 1), (0, 2), (9, 9)] {
        let reason = found(&answering((algorithm, protocol, 0), NO_ERRORS), "2.21.5");
        assert!(reason.contains("which NCCL takes unchecked"), "{reason}");
    }
}

#[test]
fn allocations_and_slowness_are_found() {
    let allocating = speed::measure(&deciding(wrong::allocates), release("2.30"), 5000, None);
    assert!(allocating.allocations >= 5000, "{allocating:?}");
    let slow = speed::measure(&deciding(wrong::takes_its_time), release("2.30"), 5000, None);
    assert!(slow.median_ns > 900.0 && slow.allocations == 0, "{slow:?}");
}
