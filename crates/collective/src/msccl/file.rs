//! A file as it stands: elements and attributes with their meaning, each by itself.

use std::collections::BTreeMap;

use paceline_plan::{CollectiveKind, Rank};

use super::xml::{Element, Elements, Token, value_fault};
use super::{COLLECTIVES, Fault, ReadError, STEPS_MAX, blocks_max, unspeakable};

/// A whole file.
pub(super) struct File {
    pub line: usize,
    pub name: String,
    pub kind: CollectiveKind,
    /// Chunks of a block.
    pub parts: u32,
    pub in_place: bool,
    pub gpus: Vec<Gpu>,
}

pub(super) struct Gpu {
    pub line: usize,
    /// Chunks of input, output and scratch.
    pub chunks: [u32; 3],
    pub blocks: Vec<Block>,
}

/// A thread block.
pub(super) struct Block {
    pub line: usize,
    pub send: Option<Rank>,
    pub receive: Option<Rank>,
    pub channel: u32,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy)]
pub(super) struct Step {
    pub line: usize,
    pub operation: Operation,
    /// What it reads here, if it does.
    pub source: Option<Chunks>,
    /// What it writes here, if it does.
    pub destination: Option<Chunks>,
    /// How many chunks it moves.
    pub count: u32,
    /// The thread block and the step for which it waits.
    pub after: Option<(usize, usize)>,
    /// Somebody waits for it.
    pub has_waiting: bool,
}

/// Consecutive chunks, as many as the step's count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    pub buffer: Buffer,
    pub first: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    Input,
    Output,
    Scratch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    Receive,
    ReceiveCopySend,
    ReceiveReduceSend,
    ReceiveReduceCopy,
    ReceiveReduceCopySend,
    Copy,
    Reduce,
    Nothing,
}

/// Chunks of all buffers together, and chunks that all steps together move, at most: 4,096 ranks' blocks on each of so
/// many ranks.
const CHUNKS_MAX: i32 = 1 << 24;

/// A short file has few of either: so many, and so many more for each step. No collective needs fewer steps for its chunks
/// than a gather, which is counted with all blocks on each of its at most 4,096 ranks, and has two steps to a rank.
const CHUNKS_FREE: u64 = 1 << 18;
const CHUNKS_OF_STEP: u64 = 1 << 11;

/// Steps that become of a file whose chunks do not lie side by side where its program has them, at most: so many, and so
/// many for each step of the file.
const PIECES_FREE: u64 = 1 << 14;
pub(super) const PIECES_OF_STEP: u64 = 16;

/// The verifier knows of every value which ranks have contributed to it: words of 64 ranks, at most (512 MiB).
const CONTRIBUTORS_MAX: u64 = 1 << 26;

const GPUS_MAX: i32 = 1 << 16;

const BUFFERS: [(&str, Buffer); 3] = [("i", Buffer::Input), ("o", Buffer::Output), ("s", Buffer::Scratch)];

const OPERATIONS: [(&str, Operation); 9] = [
    ("s", Operation::Send),
    ("r", Operation::Receive),
    ("rcs", Operation::ReceiveCopySend),
    ("rrs", Operation::ReceiveReduceSend),
    ("rrc", Operation::ReceiveReduceCopy),
    ("rrcs", Operation::ReceiveReduceCopySend),
    ("cpy", Operation::Copy),
    ("re", Operation::Reduce),
    ("nop", Operation::Nothing),
];

impl File {
    /// Reads the text and checks whatever can be seen of one rank without the others.
    pub fn parse(text: &str) -> Result<File, ReadError> {
        let mut elements = Elements::new(text);
        let Some(algo) = child(&mut elements, "algo", "<algo>", Token::End)? else {
            return Err(elements.broken(elements.here(), "there is no element".into()));
        };
        let mut file = File::of(&algo)?;
        let world = algo.number("ngpus", (1, GPUS_MAX))? as usize;
        let nchannels = algo.number("nchannels", (0, i32::MAX))?;
        let mut gpus = BTreeMap::new();
        while let Some(element) = child(&mut elements, "gpu", "<gpu>", Token::Close)? {
            let id = element.number("id", (0, world as i32 - 1))? as usize;
            let gpu = Gpu::parse(&mut elements, &element, (id, world, nchannels))?;
            insert(&mut gpus, "gpu", id, gpu, |gpu| gpu.line)?;
        }
        file.gpus = counted(gpus, "gpu", world, algo.line)?;
        file.set_parts(&algo)?;
        file.check_size(&algo)?;
        match elements.next()? {
            Token::Open(element) => Err(element.misplaced("the end")),
            Token::Close | Token::End => Ok(file),
        }
    }

    fn of(algo: &Element) -> Result<File, ReadError> {
        let name = algo.text("name")?.to_owned();
        if name.contains(unspeakable) {
            return Err(algo.value("name", &name, "a name without control characters".into()));
        }
        algo.word("proto", &[("Simple", ()), ("LL", ()), ("LL128", ())])?;
        let in_place = algo.number("inplace", (0, 1))? == 1;
        let coll = algo.text("coll")?;
        // There are two spellings of reduce-scatter about; what holds for one word may hold for all.
        let plain = |word: &str| word.replace(['_', '-'], "");
        let kind = COLLECTIVES.iter().find(|(_, word)| plain(word) == plain(coll)).map(|&(kind, _)| kind);
        let Some(kind) = kind else {
            let known: Vec<_> = COLLECTIVES.iter().map(|&(_, word)| word).collect();
            return Err(algo.value("coll", coll, format!("a collective that can be verified: {}", known.join(", "))));
        };
        Ok(File { line: algo.line, name, kind, parts: 1, in_place, gpus: Vec::new() })
    }

    /// Derives the chunks of a block, and compares what the ranks say about theirs.
    fn set_parts(&mut self, algo: &Element) -> Result<(), ReadError> {
        let chunks = algo.number("nchunksperloop", (1, CHUNKS_MAX))? as u32;
        let (input, output) = blocks_max(self.kind, self.gpus.len());
        let blocks = input.max(output);
        if !chunks.is_multiple_of(blocks) {
            let expected = format!("a multiple of {blocks}, the blocks of {}", self.kind);
            return Err(algo.value("nchunksperloop", &chunks.to_string(), expected));
        }
        self.parts = chunks / blocks;
        for gpu in &self.gpus {
            for (attribute, found, blocks) in [("i_chunks", gpu.chunks[0], input), ("o_chunks", gpu.chunks[1], output)]
            {
                let right = self.parts * blocks;
                // In place, MSCCL's compiler counts up to the last chunk that a step touches, and a gpu may leave what is in its place
                // already alone.
                let (fits, range) = match self.in_place {
                    true => (found <= right, "at most"),
                    false => (found == 0 || found == right, "0 or"),
                };
                if !fits {
                    let expected = format!("{range} {right}, as {} and nchunksperloop say", self.kind);
                    let fault = value_fault(attribute, &found.to_string(), expected);
                    return Err(ReadError { line: gpu.line, fault });
                }
            }
        }
        Ok(())
    }

    /// A few numbers are not to cost much memory or time.
    fn check_size(&self, algo: &Element) -> Result<(), ReadError> {
        let too_large = |what: String| Err(algo.fault(Fault::TooLarge(what)));
        let (world, steps) = (self.gpus.len() as u64, self.steps().count());
        let (input, output) = blocks_max(self.kind, self.gpus.len());
        let data = u64::from(self.parts) * u64::from(input + output) * world;
        let chunks = data + self.gpus.iter().map(|gpu| u64::from(gpu.chunks[2])).sum::<u64>();
        if chunks > self.chunks_max() {
            return too_large(format!("{chunks} chunks for {steps} steps"));
        }
        let moved = |some: fn(Operation) -> bool| -> u64 {
            self.steps().filter(|step| some(step.operation)).map(|step| u64::from(step.count)).sum()
        };
        let all = moved(|_| true);
        if all > self.chunks_max() {
            return too_large(format!("its {steps} steps move {all} chunks"));
        }
        let from_one = matches!(self.kind, CollectiveKind::Broadcast | CollectiveKind::Scatter);
        let have_input = if from_one { 1 } else { world };
        let values = u64::from(self.parts) * u64::from(input) * have_input + moved(Operation::reduces);
        if values * world.div_ceil(64) > CONTRIBUTORS_MAX {
            return too_large(format!("{values} different values of {world} ranks"));
        }
        Ok(())
    }

    /// All steps of all ranks.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.gpus.iter().flat_map(|gpu| &gpu.blocks).flat_map(|block| &block.steps)
    }

    /// Chunks of all buffers together, and chunks that all steps together move, at most.
    pub fn chunks_max(&self) -> u64 {
        (CHUNKS_MAX as u64).min(CHUNKS_FREE + CHUNKS_OF_STEP * self.steps().count() as u64)
    }

    /// Steps of the program that it becomes, at most.
    pub fn pieces_max(&self) -> u64 {
        PIECES_FREE + PIECES_OF_STEP * self.steps().count() as u64
    }
}

impl Gpu {
    fn parse(
        elements: &mut Elements,
        element: &Element,
        (id, world, nchannels): (Rank, usize, i32),
    ) -> Result<Gpu, ReadError> {
        let mut chunks = [0; 3];
        for (chunks, attribute) in chunks.iter_mut().zip(["i_chunks", "o_chunks", "s_chunks"]) {
            *chunks = element.number(attribute, (0, CHUNKS_MAX))? as u32;
        }
        let mut blocks = BTreeMap::new();
        while let Some(inner) = child(elements, "tb", "<tb>", Token::Close)? {
            let block = Block::parse(elements, &inner, (id, world, nchannels), chunks)?;
            insert(&mut blocks, "tb", inner.number("id", (0, i32::MAX))? as usize, block, |block| block.line)?;
        }
        let count = blocks.len();
        Ok(Gpu { line: element.line, chunks, blocks: counted(blocks, "tb", count, element.line)? })
    }
}

impl Block {
    fn parse(
        elements: &mut Elements,
        element: &Element,
        (id, world, nchannels): (Rank, usize, i32),
        chunks: [u32; 3],
    ) -> Result<Block, ReadError> {
        let peer = |attribute| {
            let peer = element.number(attribute, (-1, world as i32 - 1))?;
            if peer == id as i32 {
                return Err(element.value(attribute, &peer.to_string(), "another gpu".into()));
            }
            Ok(usize::try_from(peer).ok())
        };
        let (send, receive) = (peer("send")?, peer("recv")?);
        // A block that only works locally may have no channel.
        let local = send.is_none() && receive.is_none();
        let channel = element.number("chan", if local { (-1, i32::MAX) } else { (0, nchannels.max(1) - 1) })?;
        let mut steps = Vec::new();
        while let Some(inner) = child(elements, "step", "<step>", Token::Close)? {
            let step = Step::parse(&inner, chunks)?;
            close(elements)?;
            if inner.number("s", (0, i32::MAX))? as usize != steps.len() {
                let expected = format!("{}, its place in the thread block", steps.len());
                return Err(inner.value("s", inner.text("s")?, expected));
            }
            if steps.len() == STEPS_MAX {
                return Err(inner.fault(Fault::Steps));
            }
            for (peer, needs, attribute) in
                [(send, step.operation.sends(), "send"), (receive, step.operation.receives(), "recv")]
            {
                if needs && peer.is_none() {
                    return Err(inner.fault(Fault::NoPeer { attribute }));
                }
            }
            steps.push(step);
        }
        Ok(Block { line: element.line, send, receive, channel: channel.max(0) as u32, steps })
    }
}

impl Step {
    fn parse(element: &Element, chunks: [u32; 3]) -> Result<Step, ReadError> {
        let operation = element.word("type", &OPERATIONS)?;
        let least = i32::from(operation != Operation::Nothing);
        let count = element.number("cnt", (least, CHUNKS_MAX))? as u32;
        let place = |buffer, offset, used| -> Result<Option<Chunks>, ReadError> {
            let buffer = element.word(buffer, &BUFFERS)?;
            let first = element.number(offset, (if used { 0 } else { i32::MIN }, CHUNKS_MAX))?;
            if !used {
                return Ok(None);
            }
            let (first, chunks) = (first as u32, chunks[buffer as usize]);
            if first + count > chunks {
                let (buffer, end) = (buffer.letter(), first + count);
                return Err(element.fault(Fault::Range { buffer, first, end, chunks }));
            }
            Ok(Some(Chunks { buffer, first }))
        };
        let source = place("srcbuf", "srcoff", operation.reads())?;
        let destination = place("dstbuf", "dstoff", operation.writes())?;
        let block = element.number("depid", (-1, i32::MAX))?;
        let step = element.number("deps", (-1, i32::MAX))?;
        let after = match (usize::try_from(block), usize::try_from(step)) {
            (Ok(block), Ok(step)) => Some((block, step)),
            (Ok(block), Err(_)) => return Err(element.value("deps", "-1", format!("a step of thread block {block}"))),
            (Err(_), _) => None,
        };
        let has_waiting = element.number("hasdep", (0, 1))? == 1;
        Ok(Step { line: element.line, operation, source, destination, count, after, has_waiting })
    }
}

impl Operation {
    pub fn sends(self) -> bool {
        use Operation::{ReceiveCopySend, ReceiveReduceCopySend, ReceiveReduceSend, Send};
        matches!(self, Send | ReceiveCopySend | ReceiveReduceSend | ReceiveReduceCopySend)
    }

    pub fn receives(self) -> bool {
        !matches!(self, Operation::Send | Operation::Copy | Operation::Reduce | Operation::Nothing)
    }

    fn reduces(self) -> bool {
        use Operation::{ReceiveReduceCopy, ReceiveReduceCopySend, ReceiveReduceSend, Reduce};
        matches!(self, ReceiveReduceSend | ReceiveReduceCopy | ReceiveReduceCopySend | Reduce)
    }

    /// Does the source lie on this rank?
    fn reads(self) -> bool {
        !matches!(self, Operation::Receive | Operation::ReceiveCopySend | Operation::Nothing)
    }

    fn writes(self) -> bool {
        !matches!(self, Operation::Send | Operation::ReceiveReduceSend | Operation::Nothing)
    }
}

impl Buffer {
    pub fn letter(self) -> char {
        ['i', 'o', 's'][self as usize]
    }
}

/// The next element inside of the open one, which must be of this name; none where the open one ends.
fn child(
    elements: &mut Elements,
    name: &str,
    expected: &'static str,
    end: Token,
) -> Result<Option<Element>, ReadError> {
    match (elements.next()?, end) {
        (Token::Open(element), _) if element.name == name => Ok(Some(element)),
        (Token::Open(element), _) => Err(element.misplaced(expected)),
        (Token::Close, Token::Close) | (Token::End, Token::End) => Ok(None),
        (Token::End, _) => Err(elements.broken(elements.here(), "it ends before all its elements do".into())),
        (Token::Close, _) => Err(elements.broken(elements.here(), "an element is closed that is not open".into())),
    }
}

/// The end of an element that has none inside.
fn close(elements: &mut Elements) -> Result<(), ReadError> {
    child(elements, "", "</step>", Token::Close).map(drop)
}

fn insert<T>(
    all: &mut BTreeMap<usize, T>,
    element: &'static str,
    id: usize,
    one: T,
    line: impl Fn(&T) -> usize,
) -> Result<(), ReadError> {
    let at = line(&one);
    match all.insert(id, one) {
        Some(first) => Err(ReadError { line: at, fault: Fault::Repeated { element, id, first: line(&first) } }),
        None => Ok(()),
    }
}

/// All of them, if they are counted from 0 without gaps.
fn counted<T>(all: BTreeMap<usize, T>, element: &'static str, count: usize, line: usize) -> Result<Vec<T>, ReadError> {
    match (0..count).find(|id| !all.contains_key(id)) {
        Some(id) => Err(ReadError { line, fault: Fault::Absent { element, id } }),
        None => Ok(all.into_values().collect()),
    }
}
