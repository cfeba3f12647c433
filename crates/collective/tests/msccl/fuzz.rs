//! No text makes it panic, and whatever it takes is right.

use paceline_collective::msccl::{read, write};
use paceline_collective::registry::registry;
use paceline_collective::{Algorithm, Capacity, Topology, verify};
use proptest::prelude::*;

use crate::files::{block, file};

/// What is read is right, and can be written and read again.
fn check(text: &str) -> Result<(), TestCaseError> {
    if let Ok(program) = read(text) {
        prop_assert!(verify(&program, Capacity::Rendezvous).is_ok());
        let again = write(&program).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let again = read(&again).map_err(|error| TestCaseError::fail(format!("{error}\n{again}")))?;
        prop_assert_eq!(again.ranks.len(), program.ranks.len());
    }
    Ok(())
}

/// Replaces bytes, words, numbers and lines.
fn mutated(text: &str, edits: &[(u16, u8, u16)]) -> String {
    const NUMBERS: [&str; 8] = ["-1", "0", "1", "2", "7", "255", "16777216", "4294967296"];
    const TYPES: [&str; 9] = ["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"];
    let mut text = text.to_owned();
    for &(at, what, with) in edits {
        let (at, with) = (usize::from(at), usize::from(with));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.is_empty() {
            break;
        }
        let (one, other) = (at % lines.len(), with % lines.len());
        match what % 6 {
            0 => _ = lines.remove(one),
            1 => lines.insert(other, lines[one].clone()),
            2 => lines.swap(one, other),
            3 | 4 => {
                // Another value for one of the attributes.
                let mut values: Vec<String> = lines[one].split('"').map(str::to_owned).collect();
                let count = values.len() / 2;
                if count > 0 {
                    let value = &mut values[1 + 2 * (with % count)];
                    let number = value.parse::<i64>().is_ok();
                    *value = if number { NUMBERS[with / 16 % 8] } else { TYPES[with / 16 % 9] }.to_owned();
                }
                lines[one] = values.join("\"");
            }
            _ => {
                let mut bytes = lines[one].clone().into_bytes();
                if !bytes.is_empty() {
                    let place = with % bytes.len();
                    bytes[place] = (with / 256) as u8;
                }
                lines[one] = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
        text = lines.join("\n");
    }
    text
}

/// One thing that two ranks (or one) do: who, which type, from and to which chunks, how many, on which channel.
type Event = (bool, u8, [u8; 4], u8, u8);

/// Messages and local steps in an order in which they could happen, so that only what they move can be wrong.
fn made_up(coll: &str, in_place: bool, events: &[Event]) -> String {
    let place = |number: u8| format!("{}{}", ['i', 'o', 's'][usize::from(number) % 3], number / 3 % 4);
    // For each rank one local thread block and one for each channel, one after the other.
    let mut blocks: [Vec<Vec<String>>; 2] = [vec![Vec::new(); 3], vec![Vec::new(); 3]];
    for &(from, what, [a, b, c, d], count, channel) in events {
        let (from, channel) = (usize::from(from), 1 + usize::from(channel % 2));
        let count = 1 + count % 2;
        let mut push = |rank: usize, block: usize, step: String| blocks[rank][block].push(format!("{step} x{count}"));
        match what % 6 {
            0 => push(from, 0, format!("cpy {} {}", place(a), place(b))),
            1 => push(from, 0, format!("re {} {}", place(a), place(b))),
            2 | 3 => {
                push(from, channel, format!("s {}", place(a)));
                push(1 - from, channel, format!("r {}", place(c)));
            }
            _ => {
                push(from, channel, format!("s {}", place(a)));
                push(1 - from, channel, format!("rrc {} {}", place(c), place(d)));
            }
        }
    }
    let rank_blocks = |rank: usize| {
        let peer = 1 - rank as i32;
        let peers = [(-1, -1, 0), (peer, peer, 0), (peer, peer, 1)];
        peers.into_iter().zip(&blocks[rank]).map(|(peers, steps)| block(peers, steps)).collect()
    };
    file(coll, 4, in_place, 2, |_| [4, 4, 4], rank_blocks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text(text in ".{0,200}") {
        check(&text)?;
    }

    #[test]
    fn any_elements(
        words in proptest::collection::vec(
            prop::sample::select(vec![
                "<algo", "<gpu", "<tb", "<step", "</algo>", "</gpu>", "</tb>", ">", "/>", " id=\"0\"", " name=\"x\"", " s=\"0\"",
                " ngpus=\"1\"", " coll=\"allreduce\"", " cnt=\"1\"", "<!--", "-->", "<![CDATA[", "]]>", "<?", "?>", "&lt;",
            ]),
            0..40,
        ),
    ) {
        check(&words.concat())?;
    }

    #[test]
    fn any_mutation_of_a_file(
        algorithm in 0..registry().len(),
        world in 1usize..5,
        edits in proptest::collection::vec((any::<u16>(), any::<u8>(), any::<u16>()), 1..5),
    ) {
        let algorithm: &dyn Algorithm = registry()[algorithm];
        prop_assume!(algorithm.supports(world));
        let text = write(&algorithm.program(&Topology::flat(world), world - 1)).unwrap();
        check(&mutated(&text, &edits))?;
        check(&mutated(include_str!("ring_of_three.xml"), &edits))?;
    }

    #[test]
    fn any_steps(
        coll in prop::sample::select(vec!["allreduce", "alltoall", "broadcast", "reduce", "allgather", "reduce_scatter"]),
        in_place: bool,
        events in proptest::collection::vec((any::<bool>(), any::<u8>(), any::<[u8; 4]>(), any::<u8>(), any::<u8>()), 1..12),
    ) {
        check(&made_up(coll, in_place, &events))?;
    }
}
