//! What a user sees on a terminal. That a pipe gets none of it is tested where pipes are.

mod support;

use std::time::Duration;

use support::paceline;
use support::terminal::start_on_terminal;

const LIMIT: Duration = Duration::from_secs(60);

const TRAINING: [&str; 7] = ["train", "--workers", "2", "--model", "mlp", "--iterations", "30"];

#[test]
fn training_shows_a_bar_and_takes_it_away() {
    let outcome = start_on_terminal(paceline(&TRAINING), false).end_within(LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("/30 iterations, "), "no bar: {outcome:#?}");
    let last = outcome.stdout.lines().last().unwrap_or_default();
    assert!(last.contains("2 workers: test accuracy "), "the bar stays below the summary: {outcome:#?}");
    // Messages of the library that draws it go through the same door as ours: nothing is left in mid-line.
    assert!(outcome.stdout.ends_with("\r\n"), "{outcome:#?}");
}

/// The ranks are in process groups of their own, which such a terminal would stop at their first word.
#[test]
fn a_terminal_that_stops_background_output_does_not_stop_the_first_rank() {
    let outcome = start_on_terminal(paceline(&TRAINING), true).end_within(LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("2 workers: test accuracy "), "{outcome:#?}");
}
