//! A program with one thing wrong is refused, and the refusal names what was wrong. A program with one thing changed
//! that does no harm is not refused.
//!
//! What is harmful is decided by a second opinion: `machine` runs every schedule that matters.

mod machine;
mod mutation;
mod near;
mod sums;

use paceline_collective::registry::registry;
use paceline_collective::verify::Reason;
use paceline_collective::{Algorithm, Capacity, Program, Topology, verify};

use mutation::{Change, mutants};

/// The strictest and the loosest links; the machine knows both.
const LINKS: [(Capacity, bool); 2] = [(Capacity::Rendezvous, true), (Capacity::Unbounded, false)];

#[test]
fn the_originals_are_right() {
    for (name, program) in programs() {
        for (capacity, rendezvous) in LINKS {
            assert_eq!(machine::check(&program, rendezvous), Ok(()), "{name}, {capacity:?}");
        }
    }
}

#[test]
fn a_mutant_is_refused_exactly_if_some_schedule_breaks_it() {
    for (name, program) in programs() {
        for mutant in mutants(&program) {
            for (capacity, rendezvous) in LINKS {
                let verdict = verify(&mutant.program, capacity).map_err(|refusal| refusal.to_string());
                let truth = match mutant.change {
                    // An additional wait can only close a ring.
                    Change::Waits(other) if machine::follows(&program, rendezvous, mutant.rank, mutant.step, other) => {
                        Err("waits for what follows it".into())
                    }
                    Change::Waits(_) => Ok(()),
                    _ => machine::check(&mutant.program, rendezvous),
                };
                assert_eq!(
                    verdict.is_ok(),
                    truth.is_ok(),
                    "{name}, {mutant}, {capacity:?}: {verdict:?}, but {truth:?}"
                );
            }
        }
    }
}

#[test]
fn what_no_program_survives_is_refused_everywhere() {
    for (name, program) in programs() {
        for mutant in mutants(&program).iter().filter(|mutant| mutant.change.is_fatal()) {
            for capacity in [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Messages(2), Capacity::Unbounded] {
                assert!(verify(&mutant.program, capacity).is_err(), "{name}, {mutant}, {capacity:?}");
            }
        }
    }
}

#[test]
fn a_refusal_names_the_step_or_one_that_it_touches() {
    let (mut refusals, mut by_path_only) = (0, 0);
    for (name, program) in programs() {
        for mutant in mutants(&program) {
            let Err(refusal) = verify(&mutant.program, Capacity::Rendezvous) else { continue };
            let near = near::steps(&program, &mutant);
            // Where nobody writes what should be there, no step can be named, but the cell is.
            let unwritten = match (refusal.step, &refusal.reason) {
                (None, Reason::Result { cell, .. }) => near::wrote(&program, &mutant, refusal.rank, *cell),
                _ => false,
            };
            refusals += 1;
            if !unwritten && !refusal.steps().any(|step| near.contains(&step)) {
                by_path_only += 1;
                assert!(refusal.path.iter().any(|step| near.contains(step)), "{name}, {mutant}: {refusal}");
            }
        }
    }
    // Naming a whole path is the exception, or it would be no naming.
    assert!(by_path_only * 100 < refusals, "{by_path_only} of {refusals} refusals name the step in the path only");
}

/// Every algorithm in small worlds, powers of two and others. In a world of 7, more ranks have a proxy than not: that
/// matters to those that double; the others would only take long.
fn programs() -> Vec<(String, Program)> {
    let mut programs = Vec::new();
    for world in [1, 2, 3, 4, 5, 7] {
        let flat = Topology::flat(world);
        let size = |algorithm: &&&dyn Algorithm| world < 5 || algorithm.messages(&flat) <= 30;
        for algorithm in registry().iter().filter(|algorithm| algorithm.supports(world)).filter(size) {
            let root = world / 2;
            let name = format!("{} {} of {world} ranks", algorithm.name(), algorithm.kind());
            programs.push((name, algorithm.program(&flat, root)));
        }
    }
    // Two ranks on one host, one on another.
    let uneven = Topology::of_hosts(&[0, 1, 0]);
    for algorithm in registry().iter().filter(|algorithm| algorithm.name() == "hierarchical") {
        let name = format!("{} {} of {uneven:?}", algorithm.name(), algorithm.kind());
        programs.push((name, algorithm.program(&uneven, 0)));
    }
    programs
}
