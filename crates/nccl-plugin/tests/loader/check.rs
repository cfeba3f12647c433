//! What a tuner may not do, in whatever release.

use std::ffi::c_int;

use crate::library::Library;
use crate::nccl::{Context, Direct, Log, Question, Tuner};
use crate::plugin::{CUT, RULED};
use crate::releases::Release;

/// NCCL's own channels: more are wrong.
pub const CHANNELS: c_int = 16;
/// The grains of LL, LL128 and Simple, in bytes, and how many make a chunk at least that is smaller than NCCL's.
pub const GRAINS: [usize; 3] = [16, 1920, 512];
const FEWEST: usize = 4;
/// Marks memory that is not the tuner's.
const MARK: f32 = 4321.5;
const MARGIN: usize = 32;

/// Numbers that look random, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Every second one is about a call that the policy of these tests has a rule for: it decides about few others.
    fn question(&mut self) -> Question {
        let (function, bytes) = if self.below(2) == 0 {
            let (function, from, below) = RULED[self.below(RULED.len() as u64) as usize];
            let least = 1_u64 << (u64::from(from) + self.below(u64::from(below - from)));
            (function, (least + self.below(least)) as usize)
        } else {
            self.any_call()
        };
        Question { function, bytes, operations: 1 + self.below(3) as c_int, can_register: self.below(2) as c_int }
    }

    /// Function and bytes of one that there may be, or not.
    fn any_call(&mut self) -> (c_int, usize) {
        (self.below(15) as c_int, (self.next() >> self.below(64)) as usize)
    }
}

/// A table of costs with marked memory around it.
#[derive(Clone)]
struct Costs {
    memory: Vec<f32>,
    shape: (usize, usize),
}

impl Costs {
    fn new(shape: (usize, usize), mut cost: impl FnMut() -> f32) -> Costs {
        let count = shape.0 * shape.1;
        let mut memory = vec![MARK; count + 2 * MARGIN];
        memory[MARGIN..MARGIN + count].fill_with(&mut cost);
        Costs { memory, shape }
    }

    fn table(&self) -> &[f32] {
        &self.memory[MARGIN..self.memory.len() - MARGIN]
    }

    fn pointer(&mut self) -> *mut f32 {
        // Of the whole memory: tuners that are wrong write before the table, too.
        self.memory.as_mut_ptr().wrapping_add(MARGIN)
    }

    /// The second row.
    fn ring(&self) -> &[f32] {
        &self.table()[self.shape.1..2 * self.shape.1]
    }

    /// As NCCL does with floats of eight bits, whose precision a ring of more than eight ranks loses.
    fn put_rings_behind(&mut self) {
        let ring = MARGIN + self.shape.1..MARGIN + 2 * self.shape.1;
        self.memory[ring].iter_mut().filter(|cost| **cost >= 0.0).for_each(|cost| *cost *= 1024.0);
    }

    /// What a tuner may have made of the table that it was given.
    fn compare(&self, before: &Costs) -> Result<(), String> {
        let mut zeros = 0;
        for (place, (after, before)) in self.memory.iter().zip(&before.memory).enumerate() {
            if after.to_bits() == before.to_bits() {
                continue;
            }
            let entry = place.wrapping_sub(MARGIN);
            if entry >= self.table().len() {
                return Err("it wrote outside of the table".to_owned());
            }
            if *before == -1.0 {
                return Err(format!("it wrote {after} to entry {entry}, which is unavailable"));
            }
            // Not a minus, either: what it is for is not said anywhere.
            if after.to_bits() != 0 {
                return Err(format!("it wrote {after} to entry {entry}"));
            }
            zeros += 1;
        }
        if zeros > 1 { Err(format!("it set {zeros} entries to 0")) } else { Ok(()) }
    }

    /// NCCL up to 2.30: the smallest that is not negative, of equals the first.
    fn choice(&self) -> Option<(usize, usize)> {
        let mut best: Option<(f32, usize)> = None;
        for (place, &cost) in self.table().iter().enumerate() {
            if cost >= 0.0 && best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, place));
            }
        }
        best.map(|(_, place)| (place / self.shape.1, place % self.shape.1))
    }
}

/// What was seen of a tuner that did nothing wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Version of the tuner.
    pub version: u32,
    /// Answers that changed something.
    pub decisions: usize,
    /// Chunks that were changed.
    pub chunks: usize,
}

/// Two ranks of a communicator ask about the same calls.
struct Ranks<'a> {
    tuner: &'a Tuner,
    contexts: [Context; 2],
}

/// Tries a plug-in as a release would. None: the release finds no tuner in it.
pub fn tuner(library: &dyn Library, release: &Release, calls: usize, seed: u64) -> Result<Option<Seen>, String> {
    tuner_of(library, release, calls, seed, None)
}

/// The same with NCCL's log.
pub fn tuner_of(
    library: &dyn Library,
    release: &Release,
    calls: usize,
    seed: u64,
    log: Option<Log>,
) -> Result<Option<Seen>, String> {
    let Some(tuner) = Tuner::find(library, release) else { return Ok(None) };
    let context = tuner.init(16, 2, log)?;
    // Version 1 has one context for all; its second rank is the first one again.
    let second = if tuner.version == 1 { context } else { tuner.init(16, 2, log)? };
    let ranks = Ranks { tuner: &tuner, contexts: [context, second] };
    let mut random = Random(seed);
    let mut seen = Seen { version: tuner.version, ..Seen::default() };
    for call in 0..calls {
        let question = random.question();
        let said = match tuner.version {
            1 | 2 => ranks.direct(&question),
            _ => ranks.by_costs(&question, release.algorithms, &mut random),
        };
        let wrong = |reason| format!("call {call} of seed {seed}, {question:?}: {reason}");
        seen.decisions += usize::from(said.map_err(wrong)?);
        if tuner.version >= 6 {
            seen.chunks += usize::from(ranks.chunk(&mut random).map_err(wrong)?);
        }
    }
    ends(&tuner, &ranks.contexts)?;
    Ok(Some(seen))
}

fn ends(tuner: &Tuner, contexts: &[Context; 2]) -> Result<(), String> {
    let contexts = if tuner.version == 1 { &contexts[..1] } else { &contexts[..] };
    let results = contexts.iter().map(|context| tuner.end(*context));
    match results.sum::<c_int>() {
        0 => Ok(()),
        _ => Err("the end of a communicator failed".to_owned()),
    }
}

impl Ranks<'_> {
    fn by_costs(&self, question: &Question, algorithms: usize, random: &mut Random) -> Result<bool, String> {
        let ignored = random.next();
        // Of most tables no way is behind another by more than a factor of four.
        let (imprecise, least, spread) = match random.below(4) {
            0 => (true, 100.0, 100),
            1 => (false, 1.0, 1000),
            _ => (false, 100.0, 300),
        };
        let mut bit = 0;
        let mut before = Costs::new((algorithms, 3), || {
            bit += 1;
            if ignored >> (bit % 64) & 1 == 0 { -1.0 } else { least + random.below(spread) as f32 }
        });
        if imprecise {
            before.put_rings_behind();
        }
        let (after, channels) = self.ask_both(question, &before)?;
        if imprecise && after.ring() != before.ring() && before.choice().is_some_and(|(algorithm, _)| algorithm != 1) {
            return Err("it chose a ring, which NCCL had put behind all else".to_owned());
        }
        // Where NCCL offers nothing there is nothing to bound.
        let (_, bound) = self.ask_both(question, &Costs::new((algorithms, 3), || -1.0))?;
        if bound != 0 {
            return Err(format!("it set {bound} channels for a call that it has no algorithm for"));
        }
        // The same call where all is available, in tables of other shapes: the choice is the same.
        let shapes = [(6, 3), (7, 3), (7, 4)];
        let mut choices = shapes.map(|shape| {
            let all = Costs::new(shape, || 9.0);
            let (after, _) = self.ask_both(question, &all)?;
            Ok::<_, String>(if after.table() == all.table() { None } else { after.choice() })
        });
        let wide = std::mem::replace(&mut choices[2], Ok(None))?;
        for (choice, shape) in choices.into_iter().zip(shapes).take(2) {
            let choice = choice?;
            if choice != wide.filter(|(algorithm, _)| *algorithm < shape.0) {
                return Err(format!("it chose {choice:?} in a table of {shape:?}, and {wide:?} in one of (7, 4)"));
            }
        }
        Ok(after.table().iter().map(|cost| cost.to_bits()).ne(before.table().iter().map(|cost| cost.to_bits()))
            || channels != 0)
    }

    /// Asks for both ranks, the second of which can register its buffers where the first cannot.
    fn ask_both(&self, question: &Question, before: &Costs) -> Result<(Costs, c_int), String> {
        let can_register = [question.can_register, 1 - question.can_register];
        let answers = [0, 1].map(|rank| {
            let question = Question { can_register: can_register[rank], ..*question };
            let (mut after, mut channels) = (before.clone(), 0);
            let context = self.contexts[rank];
            if rank == 0 {
                // NCCL asks some ranks for calls that are not made: what follows must not depend on it.
                let (mut unused, mut unused_channels) = (before.clone(), 0);
                self.tuner.ask(context, &question, unused.pointer(), before.shape, &mut unused_channels);
            }
            let (pointer, shape) = (after.pointer(), before.shape);
            let result = self.tuner.ask(context, &question, pointer, shape, &mut channels);
            if result != 0 {
                return Err(format!("it returned {result}: the collective fails"));
            }
            after.compare(before)?;
            bounded(channels)?;
            Ok((after, channels))
        });
        let [first, second] = answers;
        let (first, second) = (first?, second?);
        if first.0.memory.iter().map(|c| c.to_bits()).ne(second.0.memory.iter().map(|c| c.to_bits()))
            || first.1 != second.1
        {
            return Err("two ranks got different answers".to_owned());
        }
        Ok(first)
    }

    fn direct(&self, question: &Question) -> Result<bool, String> {
        const UNTOUCHED: Direct = Direct { algorithm: -1, protocol: -1, channels: 0 };
        let [first, second] = self.contexts.map(|context| {
            let mut answer = UNTOUCHED;
            match self.tuner.ask_direct(context, question, &mut answer) {
                0 => Ok(answer),
                result => Err(format!("it returned {result}: the collective fails")),
            }
        });
        let (first, second) = (first?, second?);
        if first != second {
            return Err("two ranks got different answers".to_owned());
        }
        bounded(first.channels)?;
        let all_reduce = question.function == 4;
        match (first.algorithm, first.protocol) {
            (-1, -1) | (1, 0 | 2) => {}
            (0, 0 | 2) if all_reduce => {}
            way => return Err(format!("it chose {way:?}, which NCCL takes unchecked")),
        }
        Ok(first != UNTOUCHED)
    }

    fn chunk(&self, random: &mut Random) -> Result<bool, String> {
        let (function, bytes) = random.any_call();
        let (function, (algorithm, protocol)) = if random.below(2) == 0 {
            (4, CUT[random.below(CUT.len() as u64) as usize])
        } else {
            (function, (random.below(7) as c_int, random.below(3) as c_int))
        };
        let grain = GRAINS[protocol as usize];
        // NCCL's own is whole grains.
        let of_nccl = grain * (1 + random.below(600) as usize);
        let call = (function, bytes, algorithm, protocol);
        let mut answers = [of_nccl; 2];
        for (answer, context) in answers.iter_mut().zip(self.contexts) {
            match self.tuner.chunk(context, call, answer) {
                None => return Ok(false),
                Some(0) => {}
                Some(result) => return Err(format!("getChunkSize returned {result}: the collective fails")),
            }
        }
        let [first, second] = answers;
        if first != second {
            return Err("two ranks got different chunks".to_owned());
        }
        if first < grain || !first.is_multiple_of(grain) || first > of_nccl {
            return Err(format!("a chunk of {first} bytes: NCCL has {of_nccl}, and grains of {grain}"));
        }
        // What is smaller than NCCL's, and whole grains, is a part of it, and no few of them: small chunks are many.
        let is_part = [2, 4, 8].into_iter().any(|part: usize| first == of_nccl / part / grain * grain);
        if first == of_nccl || is_part && first >= FEWEST * grain {
            Ok(first != of_nccl)
        } else {
            let part = format!("no half, quarter or eighth of {of_nccl} of at least {FEWEST} grains of {grain}");
            Err(format!("a chunk of {first} bytes: {part}"))
        }
    }
}

fn bounded(channels: c_int) -> Result<(), String> {
    let bounded = (0..=CHANNELS).contains(&channels);
    if bounded { Ok(()) } else { Err(format!("it set {channels} channels, and NCCL has {CHANNELS}")) }
}
