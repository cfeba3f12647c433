use std::ops::RangeInclusive;

use paceline_plan::Rank;

use super::build::build;
use super::connect::Wiring;
use super::file::File;
use super::flow::{Policy, play};
use super::memory::Memory;
use super::order::rounds;
use super::strict;
use super::xml::{Elements, Token};
use super::{Fault, ReadError};
use crate::Program;
use crate::verify::{Capacity, Proof, Reason, Refusal, verify};

/// The program that a file is; the module says what becomes of it. It is right by [`verify`], in place and apart, on links
/// that hold nothing.
///
/// The cost is that of verifying it, several times.
///
/// # Errors
/// If the text is no file of this format, or the file is no right program: the line, and what is wrong there.
pub fn read(text: &str) -> Result<Program, ReadError> {
    read_proved(text).map(|(program, _)| program)
}

/// As [`read`], with what [`verify`] has found out about the program, by [`Capacity::Rendezvous`].
///
/// # Errors
/// As [`read`].
pub fn read_proved(text: &str) -> Result<(Program, Proof), ReadError> {
    let file = File::parse(text)?;
    let wiring = Wiring::of(&file)?;
    let root = wiring.root(&file)?;
    let memories: Vec<_> = (0..file.gpus.len()).map(|rank| Memory::of(&file, rank, root)).collect();
    strict::check(&file, &wiring, &memories)?;
    let order = rounds(&file, &wiring);
    let mut first = None;
    for policy in Policy::ALL {
        let flow = play(&file, &wiring, &memories, &order, policy)?;
        let (program, lines) = build(&file, &wiring, root, &order, &flow)?;
        let refusal = match verify(&program, Capacity::Rendezvous) {
            Ok(proof) => return Ok((program, proof)),
            Err(refusal) => refusal,
        };
        // Other memory helps only where memory was overwritten that somebody still needed, or waited for.
        let may_help = refusal.in_place || matches!(refusal.reason, Reason::Cycle | Reason::Overlap { .. });
        first.get_or_insert((refusal, lines));
        if !may_help {
            break;
        }
    }
    Err(first.map_or_else(|| unreachable!("there is a policy"), |(refusal, lines)| explain(refusal, &file, &lines)))
}

/// For calls of how many bytes a file says that it is made: from `minBytes` to `maxBytes`, both included, of the larger of input and
/// output. What is left out is no limit, and a `maxBytes` of 0 is none. (Source: the runtime's parser, as for the rest; for the 0, where
/// it chooses, `src/scheduler.cc` of github.com/Azure/msccl-scheduler.)
///
/// # Errors
/// If the text does not begin with an element, or `minBytes` and `maxBytes` are none.
pub fn sizes(text: &str) -> Result<RangeInclusive<u64>, ReadError> {
    let mut elements = Elements::new(text);
    let Token::Open(algo) = elements.next()? else {
        return Err(elements.broken(elements.here(), "there is no element".into()));
    };
    let most = algo.bytes("maxBytes")?.filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
    let least = algo.bytes("minBytes")?.unwrap_or(0);
    if least > most {
        return Err(algo.value("minBytes", &least.to_string(), format!("at most maxBytes, {most}")));
    }
    Ok(least..=most)
}

fn explain(refusal: Refusal, file: &File, lines: &[Vec<usize>]) -> ReadError {
    let of_rank = |rank: Rank| file.gpus.get(rank).map_or(file.line, |gpu| gpu.line);
    let line = match refusal.step {
        Some(step) => lines[refusal.rank].get(step as usize).copied().unwrap_or(of_rank(refusal.rank)),
        None => of_rank(refusal.rank),
    };
    ReadError { line, fault: Fault::Refused(Box::new(refusal)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_file() {
        let of = |attributes: &str| sizes(&format!("<!-- a -->\n<algo name=\"x\" {attributes}></algo>"));
        assert_eq!(of("").unwrap(), 0..=u64::MAX);
        assert_eq!(of(r#"minBytes="1024" maxBytes="65536""#).unwrap(), 1024..=65536);
        assert_eq!(of(r#"minBytes="393216" maxBytes="0""#).unwrap(), 393_216..=u64::MAX);
        for (wrong, word) in [(r#"minBytes="-1""#, "minBytes"), (r#"minBytes="5" maxBytes="4""#, "at most maxBytes, 4")]
        {
            let error = of(wrong).unwrap_err();
            assert!(error.line == 2 && error.to_string().contains(word), "{error}");
        }
        assert!(sizes("").is_err() && sizes("algo").is_err());
    }
}
