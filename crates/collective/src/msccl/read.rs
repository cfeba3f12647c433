use paceline_plan::Rank;

use super::build::build;
use super::connect::Wiring;
use super::file::File;
use super::flow::{Policy, play};
use super::memory::Memory;
use super::order::rounds;
use super::strict;
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

fn explain(refusal: Refusal, file: &File, lines: &[Vec<usize>]) -> ReadError {
    let of_rank = |rank: Rank| file.gpus.get(rank).map_or(file.line, |gpu| gpu.line);
    let line = match refusal.step {
        Some(step) => lines[refusal.rank].get(step as usize).copied().unwrap_or(of_rank(refusal.rank)),
        None => of_rank(refusal.rank),
    };
    ReadError { line, fault: Fault::Refused(Box::new(refusal)) }
}
