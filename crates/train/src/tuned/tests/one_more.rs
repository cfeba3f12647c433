//! A rank that makes one call more than the others while choices take turns: its counter, which says whose turn it is, is ahead of theirs.
//! (What is only asked for, as `options_for` does, moves no counter: the ranks of `splits` ask as often as they like.)

use super::*;

const WORLD: usize = 3;

/// The rank whose first call is made twice.
const ODD: usize = 1;

const MANY: usize = 1 << 14;
const FEW: usize = 64;

/// The calls of an iteration, in elements of eight bytes, and what each of them took.
fn iterate(calls: &mut TunedCalls<'_>, elements: &[usize], took: &mut Vec<Choice>) -> Result<u64, CommError> {
    for elements in elements {
        let mut data = vec![1.0f64; *elements];
        calls.all_reduce(&mut data, Reduction::Sum, &CALL, &CallOptions::default())?;
        assert!(data.iter().all(|sum| *sum == WORLD as f64));
        let made = calls.made.last_mut().unwrap();
        // Whatever is tried halves the time: something is, however busy the machine may be.
        made.seconds = if made.choice == Choice::Default { 4e-3 } else { 2e-3 };
        took.push(made.choice);
    }
    calls.boundary()
}

/// Iterations until [`MANY`] elements have turns, and then some more until the ranks meet again, after so many boundaries: in the first one
/// of these a rank makes a call more. Of each rank, what these calls took, and what it is told.
fn with_one_more(elements: &[usize], boundaries: u64) -> Vec<(Vec<Choice>, String)> {
    on_tuned_ranks(WORLD, |communicator, calls| {
        let context = calls.state_of(CollectiveKind::AllReduce, 8 * MANY, &CALL).context();
        let have_turns = |calls: &TunedCalls<'_>| {
            let plays = calls.policies.current().of(&context).copied();
            plays.is_some_and(|plays| plays != Plays::always(plays.context, plays.then))
        };
        for iteration in 0.. {
            assert!(iteration < 1000, "nothing is ever tried");
            iterate(calls, elements, &mut Vec::new()).unwrap();
            if have_turns(calls) {
                break;
            }
        }
        calls.meetings.met(boundaries);
        let more = if communicator.rank() == ODD { &elements[..1] } else { &[] };
        let (first, mut took) = ([more, elements].concat(), Vec::new());
        let mut outcome = iterate(calls, &first, &mut took);
        for _ in 1..boundaries {
            outcome = outcome.and_then(|_| iterate(calls, elements, &mut took));
        }
        (took, outcome.unwrap_err().to_string())
    })
}

/// Before a byte is taken in: the next operation of the others is another one, be it a meeting or a call of another size. Until then, calls
/// take the same on all ranks, by their numbers.
#[test]
fn a_call_that_one_rank_alone_makes_is_told_to_all() {
    for (elements, boundaries, together) in [
        // The others meet.
        (&[MANY; 4][..], 1, 4),
        // They make the same calls, by which nobody sees it, until they meet.
        (&[MANY; 4][..], 3, 12),
        // They make another call.
        (&[MANY, FEW, MANY, FEW][..], 1, 1),
    ] {
        let all = with_one_more(elements, boundaries);
        // Whoever is behind the others in a call that is the same for all may be told in that one already.
        let odd = &all[ODD].0;
        assert_eq!(odd.len(), together, "{elements:?}, {boundaries}");
        for (took, told) in &all {
            assert!(told.contains("Make all ranks call the same collectives"), "{elements:?}, {boundaries}: {told}");
            assert!(odd.starts_with(took), "{elements:?}, {boundaries}: {took:?} and {odd:?}");
        }
        let is_tried = odd.iter().any(|choice| *choice != Choice::Default);
        assert!(is_tried || together < 4, "nothing took turns: {all:?}");
    }
}
