//! Programs of the caller's own, with kernels of the caller's own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_collective::{Action, Capacity, Combine, KernelId, Program, Refusal, blocks, verify};
use paceline_engine::RankSchedule;
use paceline_plan::{CollectiveKind, Reduction};

use crate::communicator::Communicator;
use crate::layout::{Layout, fingerprint};
use crate::memory::Span;
use crate::prepare::{Call, elements};
use crate::{Buffer, CallOptions, CommError, Element, Group, Pending};

type Map = Box<dyn Fn(&[u8], &mut [u8]) -> usize + Send + Sync>;
type Merge = Box<dyn Fn(&[u8], &[u8], &mut [u8]) -> usize + Send + Sync>;

/// Functions that programs call by number. A kernel sees all bytes of its operands, at any alignment, and the room for
/// its result, and returns how many bytes it has written. It runs on whatever thread drives the communicator, while
/// nothing else moves: it should be quick, and must not call the communicator. All ranks need the same.
#[derive(Default)]
pub struct Kernels {
    maps: HashMap<KernelId, Map>,
    merges: HashMap<KernelId, Merge>,
}

impl Kernels {
    /// None yet.
    pub fn new() -> Kernels {
        Kernels::default()
    }

    /// Adds a kernel for `map` steps: `kernel(from, into)` returns the bytes written.
    pub fn map(mut self, id: KernelId, kernel: impl Fn(&[u8], &mut [u8]) -> usize + Send + Sync + 'static) -> Kernels {
        self.maps.insert(id, Box::new(kernel));
        self
    }

    /// Adds a kernel for `map` steps that converts element by element.
    pub fn convert<A: Element, B: Element>(
        self,
        id: KernelId,
        convert: impl Fn(A) -> B + Send + Sync + 'static,
    ) -> Kernels {
        self.map(id, move |from, into| {
            let (sources, targets) = (from.chunks_exact(size_of::<A>()), into.chunks_exact_mut(size_of::<B>()));
            let mut written = 0;
            for (source, target) in sources.zip(targets) {
                target.copy_from_slice(bytemuck::bytes_of(&convert(bytemuck::pod_read_unaligned(source))));
                written += target.len();
            }
            written
        })
    }

    /// Adds a kernel for combining steps: `kernel(left, right, into)` returns the bytes written.
    pub fn combine(
        mut self,
        id: KernelId,
        kernel: impl Fn(&[u8], &[u8], &mut [u8]) -> usize + Send + Sync + 'static,
    ) -> Kernels {
        self.merges.insert(id, Box::new(kernel));
        self
    }

    pub(crate) fn mapping(&self, id: KernelId) -> Option<&Map> {
        self.maps.get(&id)
    }

    pub(crate) fn combining(&self, id: KernelId) -> Option<&Merge> {
        self.merges.get(&id)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({} maps, {} combinations)", self.maps.len(), self.merges.len())
    }
}

/// Why a program cannot be run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is wrong.
    #[error("the program `{algorithm}` is refused: {refusal}")]
    Refused {
        /// Which.
        algorithm: String,
        /// The rank, the step, and why.
        refusal: Box<Refusal>,
    },
    /// It calls a kernel that was not given.
    #[error("the program `{algorithm}` calls kernel {} to {what}, and there is none: add it to the kernels", kernel.0)]
    Kernel {
        /// Which program.
        algorithm: String,
        /// Which kernel.
        kernel: KernelId,
        /// "map" or "combine".
        what: &'static str,
    },
}

/// A program that has been proved to be right, and its kernels: see [`Communicator::run_program`].
#[derive(Clone, Debug)]
pub struct VerifiedProgram {
    program: Arc<Program>,
    schedules: Arc<[Arc<RankSchedule>]>,
    kernels: Arc<Kernels>,
    fingerprint: u32,
    /// Of the call that is being made.
    lengths: Arc<ProgramLengths>,
}

/// The actual bytes of the blocks of one call, where kernels decide them.
#[derive(Debug, Default)]
pub(crate) struct ProgramLengths {
    input: Option<Vec<usize>>,
    output: Mutex<Vec<usize>>,
}

impl ProgramLengths {
    /// The call has ended.
    pub fn keep(&self, output: &[usize]) {
        *self.output.lock().unwrap_or_else(PoisonError::into_inner) = output.to_vec();
    }

    /// How many bytes of each block of the output kernels have filled.
    pub fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.output.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl VerifiedProgram {
    /// Proves the program, on links that hold nothing: the strictest. Costs what [`verify`] costs; do it once.
    ///
    /// # Errors
    /// If the program is wrong, or calls a kernel that is not there.
    pub fn new(program: Program, kernels: Kernels) -> Result<VerifiedProgram, ProgramError> {
        let algorithm = || program.algorithm.clone();
        verify(&program, Capacity::Rendezvous)
            .map_err(|refusal| ProgramError::Refused { algorithm: algorithm(), refusal: Box::new(refusal) })?;
        for step in program.ranks.iter().flat_map(|rank| &rank.steps) {
            let missing = match &step.action {
                Action::Map { kernel, .. } if kernels.mapping(*kernel).is_none() => Some((*kernel, "map")),
                action => combination(action)
                    .filter(|&kernel| kernels.combining(kernel).is_none())
                    .map(|kernel| (kernel, "combine")),
            };
            if let Some((kernel, what)) = missing {
                return Err(ProgramError::Kernel { algorithm: algorithm(), kernel, what });
            }
        }
        let schedules = (0..program.ranks.len()).map(|rank| Arc::new(RankSchedule::of(&program, rank))).collect();
        let fingerprint = fingerprint(format!("{program:?}").bytes().map(u64::from));
        let (program, kernels) = (Arc::new(program), Arc::new(kernels));
        Ok(VerifiedProgram { program, schedules, kernels, fingerprint, lengths: Arc::default() })
    }

    /// The name of the program.
    pub fn algorithm(&self) -> &str {
        &self.program.algorithm
    }

    /// What it says, step by step.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Of everything in it: ranks with the same one have the same program.
    pub fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    pub(crate) fn schedule(&self, rank: usize) -> Arc<RankSchedule> {
        self.schedules[rank].clone()
    }

    pub(crate) fn kernels(&self) -> Arc<Kernels> {
        self.kernels.clone()
    }

    pub(crate) fn lengths(&self) -> Arc<ProgramLengths> {
        self.lengths.clone()
    }

    pub(crate) fn input_lengths(&self) -> Option<Vec<usize>> {
        self.lengths.input.clone()
    }
}

impl Communicator {
    /// Runs a program of the caller's: the collective that it states, with blocks of one length. All ranks run the same
    /// program; `reduction` is that of its elementwise steps. [`CallOptions::chunk_bytes`] cuts the blocks into tiles;
    /// None: a block is one tile.
    ///
    /// Returns how many bytes of each block of the output kernels have filled; nothing if the program has none, or if the
    /// blocks are cut into several tiles. What lies behind them is not specified.
    ///
    /// # Errors
    /// As the collective's own call; [`CommError::Usage`] if the program is for another number of ranks;
    /// [`CommError::Failed`] if ranks run different programs, or a kernel panics or writes too much.
    pub fn run_program<T: Element>(
        &self,
        program: &VerifiedProgram,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Vec<usize>, CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        let (call, lengths) = self.program_call::<T>(program, None, spans, reduction, options)?;
        self.run(call).map(|()| lengths.take())
    }

    /// As [`Communicator::run_program`] for an all-reduce, in place: every rank's `data` becomes the reduction.
    ///
    /// # Errors
    /// As [`Communicator::run_program`]; [`CommError::Usage`] if the program is of another collective.
    pub fn run_program_in_place<T: Element>(
        &self,
        program: &VerifiedProgram,
        data: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        self.run(self.in_place_call::<T>(program, Span::of_mut(data), reduction, options)?)
    }

    /// As [`Communicator::run_program_in_place`], in the background: work on other things, then [`Pending::wait`].
    ///
    /// # Errors
    /// As [`Communicator::run_program_in_place`].
    pub fn start_program_in_place<T: Element>(
        &self,
        program: &VerifiedProgram,
        mut buffer: Buffer<T>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Pending<T>, CommError> {
        let call = self.in_place_call::<T>(program, Span::of_mut(&mut buffer), reduction, options)?;
        self.start_in_background(call, None, buffer)
    }

    fn in_place_call<T: Element>(
        &self,
        program: &VerifiedProgram,
        data: Span,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Call, CommError> {
        let kind = program.program.kind;
        if kind != CollectiveKind::AllReduce {
            let what = format!("a program of {kind} has an input and an output, and not one memory for both");
            return Err(self.usage(kind, what));
        }
        self.program_call::<T>(program, None, (data, data), reduction, options).map(|(call, _)| call)
    }

    /// As [`Communicator::run_program`], where of each block of the input only the first bytes count: so many, a number
    /// for each block. That makes sense for kernels that take operands of any length. The call is a single tile.
    ///
    /// # Errors
    /// As [`Communicator::run_program`]; [`CommError::Usage`] if the program has no kernels, if there is not a length for
    /// each block, if a block is shorter, or if [`CallOptions::chunk_bytes`] cuts the blocks.
    pub fn run_program_on_lengths<T: Element>(
        &self,
        program: &VerifiedProgram,
        (input, input_bytes): (&[T], &[usize]),
        output: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<Vec<usize>, CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        let (call, lengths) = self.program_call::<T>(program, Some(input_bytes), spans, reduction, options)?;
        self.run(call).map(|()| lengths.take())
    }

    /// The call, and where the bytes that kernels have filled stand after it.
    fn program_call<T: Element>(
        &self,
        program: &VerifiedProgram,
        input_bytes: Option<&[usize]>,
        (input, output): (Span, Span),
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(Call, Arc<ProgramLengths>), CommError> {
        let (kind, root, ranks) = (program.program.kind, program.program.root, program.program.ranks.len());
        if ranks != self.world_size() || options.algorithm.is_some() {
            let what = format!(
                "a program for {ranks} ranks needs as many ({} are here) and no algorithm besides",
                self.world_size()
            );
            return Err(self.usage(kind, what));
        }
        let (inputs, outputs) = blocks(kind, self.rank(), root, ranks);
        let (all, blocks) = if inputs > 0 { (input, inputs) } else { (output, outputs.max(1)) };
        let block = elements::<T>(all) / blocks as usize;
        let layout = self.layout::<T>(kind, root, (input, output), block, None)?;
        if let Some(given) = input_bytes {
            if !program.schedules[self.rank()].dynamic() {
                let what =
                    "a program without kernels moves whole blocks, whatever their lengths; run it without lengths";
                return Err(self.usage(kind, what.to_owned()));
            }
            let room = block * size_of::<T>();
            if given.len() != inputs as usize || given.iter().any(|&bytes| bytes > room) {
                let what = format!("{given:?} are not the lengths of {inputs} blocks of at most {room} bytes");
                return Err(self.usage(kind, what));
            }
        }
        let layout = Layout { fingerprint: program.fingerprint, ..layout };
        let call = self.call::<T>(kind, input, output, layout, options)?;
        let lengths = ProgramLengths { input: input_bytes.map(<[usize]>::to_vec), output: Mutex::default() };
        let program = VerifiedProgram { lengths: Arc::new(lengths), ..program.clone() };
        let lengths = program.lengths();
        Ok((Call { reduction, root, program: Some(program), ..call }, lengths))
    }
}

impl<'data> Group<'data> {
    /// Adds a program of the caller's; see [`Communicator::run_program`]. When the whole group has ended well, `filled`
    /// becomes what that returns.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], also if the program is for another number of ranks.
    pub fn run_program<T: Element>(
        &mut self,
        program: &VerifiedProgram,
        input: &'data [T],
        output: &'data mut [T],
        filled: &'data mut Vec<usize>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        let (call, lengths) = self.communicator.program_call::<T>(program, None, spans, reduction, options)?;
        self.tell(lengths, filled);
        self.add(Ok(call))
    }

    /// Adds a program of the caller's, where of each block of the input only the first bytes count; see
    /// [`Communicator::run_program_on_lengths`]. When the whole group has ended well, `filled` becomes what that returns.
    ///
    /// # Errors
    /// As [`Group::run_program`], also for lengths that do not fit.
    pub fn run_program_on_lengths<T: Element>(
        &mut self,
        program: &VerifiedProgram,
        (input, input_bytes): (&'data [T], &[usize]),
        output: &'data mut [T],
        filled: &'data mut Vec<usize>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let spans = (Span::of(input), Span::of_mut(output));
        let (call, lengths) =
            self.communicator.program_call::<T>(program, Some(input_bytes), spans, reduction, options)?;
        self.tell(lengths, filled);
        self.add(Ok(call))
    }
}

/// The kernel by which a step combines.
fn combination(action: &Action) -> Option<KernelId> {
    let combine = match action {
        Action::Combine { combine, .. } => *combine,
        Action::Receive { fold: Some(fold), .. } => fold.combine,
        _ => return None,
    };
    match combine {
        Combine::Kernel(kernel) => Some(kernel),
        Combine::Reduction => None,
    }
}
