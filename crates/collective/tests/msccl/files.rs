//! Files in short: a step is `rrc s1 i0 x2 @0.3 !`, which is its type, its source and destination as far as it has them,
//! its count, the thread block and the step for which it waits, and whether somebody waits for it.

use std::fmt::Write;

/// A thread block: the peer that it sends to, the one that it receives from, its channel, its steps.
pub struct Block {
    pub peers: (i32, i32, i32),
    pub steps: Vec<String>,
}

pub fn block<S: ToString>(peers: (i32, i32, i32), steps: impl IntoIterator<Item = S>) -> Block {
    Block { peers, steps: steps.into_iter().map(|step| step.to_string()).collect() }
}

/// A file: the collective, `nchunksperloop`, `inplace`, the chunks of each rank, and what each rank does.
pub fn file(
    coll: &str,
    chunks: u32,
    in_place: bool,
    world: usize,
    buffers: impl Fn(usize) -> [u32; 3],
    blocks: impl Fn(usize) -> Vec<Block>,
) -> String {
    let mut text = format!(
        "<algo name=\"by hand\" proto=\"LL128\" nchannels=\"9\" nchunksperloop=\"{chunks}\" ngpus=\"{world}\" \
         coll=\"{coll}\" inplace=\"{}\">\n",
        u8::from(in_place)
    );
    for rank in 0..world {
        let [i, o, s] = buffers(rank);
        writeln!(text, "<gpu id=\"{rank}\" i_chunks=\"{i}\" o_chunks=\"{o}\" s_chunks=\"{s}\">").unwrap();
        for (id, Block { peers: (send, receive, channel), steps }) in blocks(rank).iter().enumerate() {
            writeln!(text, "<tb id=\"{id}\" send=\"{send}\" recv=\"{receive}\" chan=\"{channel}\">").unwrap();
            for (index, step) in steps.iter().enumerate() {
                writeln!(text, "{}", long(index, step)).unwrap();
            }
            writeln!(text, "</tb>").unwrap();
        }
        writeln!(text, "</gpu>").unwrap();
    }
    text + "</algo>\n"
}

/// Some steps of one type, one to a chunk, as one.
fn long(index: usize, short: &str) -> String {
    let mut words = short.split(' ');
    let operation = words.next().unwrap();
    let (mut places, mut count, mut waits, mut has_waiting) = (Vec::new(), "1", ("-1", "-1"), 0);
    for word in words {
        match word.as_bytes()[0] {
            b'x' => count = &word[1..],
            b'@' => waits = word[1..].split_once('.').unwrap(),
            b'!' => has_waiting = 1,
            _ => places.push(word),
        }
    }
    let (source, destination) = match operation {
        "nop" => ("i-1", "o-1"),
        "s" | "rrs" => (places[0], "o-1"),
        "r" | "rcs" => ("i-1", places[0]),
        _ => (places[0], places[1]),
    };
    format!(
        "<step s=\"{index}\" type=\"{operation}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" cnt=\"{count}\" \
         depid=\"{}\" deps=\"{}\" hasdep=\"{has_waiting}\"/>",
        &source[..1],
        &source[1..],
        &destination[..1],
        &destination[1..],
        waits.0,
        waits.1
    )
}
