use std::fmt::Write;

use super::lanes::{Channels, Lane, LaneStep, lanes, sequences};
use super::{COLLECTIVES, STEPS_MAX, WriteError, blocks_max, unspeakable};
use crate::Program;
use crate::program::{Action, Combine, Slot, Space, StepId, blocks};
use crate::verify::{Capacity, Graph, Matches, match_messages};

/// A program as MSCCL XML, for input and output that are apart (`inplace="0"`) and MSCCL's protocol `Simple`. `read` makes
/// of it the same program, but for the order in which steps are listed that do not wait for each other. (In the file
/// thread blocks do their steps in order, which is more than the program asks.) Which local operand is the left one is
/// lost: reductions commute.
///
/// The cost is about ranks × steps × thread blocks that a step waits for.
///
/// # Errors
/// If MSCCL cannot express the program, or it has a ring of waits or a message without an end. Whether it is right
/// otherwise is for [`crate::verify()`] to say.
pub fn write(program: &Program) -> Result<String, WriteError> {
    let refused = |refusal| WriteError::Refused(Box::new(refusal));
    check_kernels(program)?;
    let matches = match_messages(program).map_err(refused)?;
    let graph = Graph::new(program, &matches, Capacity::Unbounded).map_err(refused)?;
    let name = escaped(&program.algorithm)?;
    let gpus = share_out(program, &matches, &graph)?;
    let coll = COLLECTIVES.iter().find(|&&(kind, _)| kind == program.kind).map_or("custom", |&(_, word)| word);
    let channels = gpus.iter().flatten().map(|lane| lane.channel + 1).max().unwrap_or(1);
    let world = program.ranks.len();
    let (input, output) = blocks_max(program.kind, world);
    let chunks = |blocks: u32| u64::from(blocks) * u64::from(program.parts);
    let mut text = format!(
        "<algo name=\"{name}\" proto=\"Simple\" nchannels=\"{channels}\" nchunksperloop=\"{}\" ngpus=\"{world}\" \
         coll=\"{coll}\" inplace=\"0\">\n",
        chunks(input.max(output))
    );
    for (rank, lanes) in gpus.iter().enumerate() {
        let (input, output) = blocks(program.kind, rank, program.root, world);
        let [input, output, scratch] = [input, output, program.ranks[rank].scratch_blocks].map(chunks);
        let attributes = format!("i_chunks=\"{input}\" o_chunks=\"{output}\" s_chunks=\"{scratch}\"");
        line(&mut text, format_args!("  <gpu id=\"{rank}\" {attributes}>"));
        for (id, lane) in lanes.iter().enumerate() {
            write_lane(&mut text, id, lane, program.parts);
        }
        line(&mut text, format_args!("  </gpu>"));
    }
    text.push_str("</algo>\n");
    Ok(text)
}

fn check_kernels(program: &Program) -> Result<(), WriteError> {
    for (rank, content) in program.ranks.iter().enumerate() {
        for (step, content) in content.steps.iter().enumerate() {
            let combine = match content.action {
                Action::Receive { fold: Some(fold), .. } => fold.combine,
                Action::Combine { combine, .. } => combine,
                Action::Map { kernel, .. } => Combine::Kernel(kernel),
                _ => Combine::Reduction,
            };
            if combine != Combine::Reduction {
                return Err(WriteError::Kernel { rank, step: step as StepId });
            }
        }
    }
    Ok(())
}

/// The thread blocks of all ranks. Where one would have too many steps, all channels get fewer messages.
fn share_out(program: &Program, matches: &Matches, graph: &Graph) -> Result<Vec<Vec<Lane>>, WriteError> {
    let sequences = sequences(program, matches, graph);
    let mut room = usize::MAX;
    loop {
        let channels = Channels::of(program, matches, &sequences, room);
        let (mut gpus, mut too_long) = (Vec::with_capacity(sequences.len()), None);
        for (rank, sequence) in sequences.iter().enumerate() {
            let lanes = lanes(program, matches, sequence, &channels, rank)?;
            if lanes.iter().any(|lane| lane.steps.len() > STEPS_MAX) {
                too_long = Some(rank);
                break;
            }
            gpus.push(lanes);
        }
        let Some(rank) = too_long else { return Ok(gpus) };
        if channels.most <= 1 {
            // One message, and that waits for too many steps.
            let waits = |step: &StepId| program.ranks[rank].steps[*step as usize].after.len();
            let step = sequences[rank].iter().copied().max_by_key(waits).unwrap_or(0);
            return Err(WriteError::Waits { rank, step, waits: waits(&step) });
        }
        room = channels.most.div_ceil(2);
    }
}

fn write_lane(text: &mut String, id: usize, lane: &Lane, parts: u32) {
    let peer = |peer: Option<usize>| peer.map_or("-1".to_owned(), |peer| peer.to_string());
    let (send, receive, channel) = (peer(lane.send), peer(lane.receive), lane.channel);
    line(text, format_args!("    <tb id=\"{id}\" send=\"{send}\" recv=\"{receive}\" chan=\"{channel}\">"));
    for (index, step) in lane.steps.iter().enumerate() {
        write_step(text, index, step, parts);
    }
    line(text, format_args!("    </tb>"));
}

fn write_step(text: &mut String, index: usize, step: &LaneStep, parts: u32) {
    let place = |slot: Option<Slot>, unused: char| {
        let Some(slot) = slot else { return (unused, "-1".to_owned()) };
        let letter = match slot.space {
            Space::Input => 'i',
            Space::Output => 'o',
            Space::Scratch => 's',
        };
        (letter, (u64::from(slot.block) * u64::from(parts) + u64::from(slot.part)).to_string())
    };
    let ((srcbuf, srcoff), (dstbuf, dstoff)) = (place(step.source, 'i'), place(step.destination, 'o'));
    let count = step.source.or(step.destination).map_or(0, |slot| u64::from(slot.blocks) * u64::from(slot.parts));
    let number = |number: usize| number.to_string();
    let (depid, deps) =
        step.after.map_or(("-1".to_owned(), "-1".to_owned()), |(lane, step)| (number(lane), number(step)));
    let (operation, hasdep) = (step.operation, u8::from(step.has_waiting));
    line(
        text,
        format_args!(
            "      <step s=\"{index}\" type=\"{operation}\" srcbuf=\"{srcbuf}\" srcoff=\"{srcoff}\" \
             dstbuf=\"{dstbuf}\" dstoff=\"{dstoff}\" cnt=\"{count}\" depid=\"{depid}\" deps=\"{deps}\" \
             hasdep=\"{hasdep}\"/>"
        ),
    );
}

fn line(text: &mut String, line: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// A name as the value of an attribute. (White space would become spaces: XML 1.0, 3.3.3.)
fn escaped(name: &str) -> Result<String, WriteError> {
    let mut escaped = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(character))),
            other if unspeakable(other) => return Err(WriteError::Name(name.to_owned())),
            other => escaped.push(other),
        }
    }
    Ok(escaped)
}
