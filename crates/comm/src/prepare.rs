//! The arguments of each collective, checked and made into a call: the same for blocking calls, calls in the background
//! and grouped calls.

use std::sync::Arc;

use paceline_collective::blocks;
use paceline_plan::{CollectiveKind, DataType, Reduction};

use crate::buffer::Memory;
use crate::communicator::Communicator;
use crate::layout::Layout;
use crate::memory::Span;
use crate::options::{Refused, Settings};
use crate::program::VerifiedProgram;
use crate::{CallOptions, CommError, Element};

/// A call, before it is an operation.
pub(crate) struct Call {
    pub kind: CollectiveKind,
    pub data_type: DataType,
    pub reduction: Reduction,
    pub root: usize,
    pub input: Span,
    pub output: Span,
    pub layout: Layout,
    pub settings: Settings,
    /// For a message: who sends it, who receives it (ranks of the group, one of them this), and its tag.
    pub route: Option<(usize, usize, u32)>,
    /// A program of the caller's, to be run instead of one of ours.
    pub program: Option<VerifiedProgram>,
    /// The buffers that the operation owns, if it does.
    pub owners: [Option<Arc<Memory>>; 2],
    pub background: bool,
}

impl Call {
    /// What the choice of an algorithm depends on: the longest block of any rank.
    pub fn block_bytes(&self) -> usize {
        self.layout.longest * self.data_type.size()
    }
}

type Prepared = Result<Call, CommError>;

impl Communicator {
    pub(crate) fn all_reduce_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        reduction: Reduction,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::AllReduce;
        let layout = self.layout::<T>(kind, 0, (input, output), elements::<T>(input), None)?;
        Ok(Call { reduction, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    pub(crate) fn reduce_scatter_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        counts: Option<&[usize]>,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::ReduceScatter;
        let layout = self.layout::<T>(kind, 0, (input, output), elements::<T>(output), counts)?;
        Ok(Call { reduction, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    pub(crate) fn all_gather_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        counts: Option<&[usize]>,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::AllGather;
        let layout = self.layout::<T>(kind, 0, (input, output), elements::<T>(input), counts)?;
        self.call::<T>(kind, input, output, layout, options)
    }

    pub(crate) fn broadcast_call<T: Element>(&self, data: Span, root: usize, options: &CallOptions) -> Prepared {
        let kind = CollectiveKind::Broadcast;
        self.check_rank(kind, "root", root)?;
        Ok(Call { root, ..self.call::<T>(kind, data, data, Layout::uniform(elements::<T>(data), 1), options)? })
    }

    pub(crate) fn reduce_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::Reduce;
        self.check_rank(kind, "root", root)?;
        let layout = self.layout::<T>(kind, root, (input, output), elements::<T>(input), None)?;
        Ok(Call { reduction, root, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    /// Of push and push-pull: the root has no input, and an output as long as the others' input.
    pub(crate) fn serving_call<T: Element>(
        &self,
        kind: CollectiveKind,
        (input, output): (Span, Span),
        root: usize,
        reduction: Reduction,
        options: &CallOptions,
    ) -> Prepared {
        self.check_rank(kind, "root", root)?;
        if self.world_size() < 2 {
            return Err(self.usage(kind, "the root is alone; it serves at least one other rank".to_owned()));
        }
        let block = if self.rank() == root { output } else { input };
        let layout = self.layout::<T>(kind, root, (input, output), elements::<T>(block), None)?;
        Ok(Call { reduction, root, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    pub(crate) fn gather_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        counts: Option<&[usize]>,
        root: usize,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::Gather;
        self.check_rank(kind, "root", root)?;
        let layout = self.layout::<T>(kind, root, (input, output), elements::<T>(input), counts)?;
        Ok(Call { root, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    pub(crate) fn scatter_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        counts: Option<&[usize]>,
        root: usize,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::Scatter;
        self.check_rank(kind, "root", root)?;
        let layout = self.layout::<T>(kind, root, (input, output), elements::<T>(output), counts)?;
        Ok(Call { root, ..self.call::<T>(kind, input, output, layout, options)? })
    }

    pub(crate) fn all_to_all_call<T: Element>(&self, (input, output): (Span, Span), options: &CallOptions) -> Prepared {
        let kind = CollectiveKind::AllToAll;
        let block = elements::<T>(input) / self.world_size();
        let layout = self.layout::<T>(kind, 0, (input, output), block, None)?;
        self.call::<T>(kind, input, output, layout, options)
    }

    pub(crate) fn all_to_all_variable_call<T: Element>(
        &self,
        (input, output): (Span, Span),
        (input_counts, output_counts): (&[usize], &[usize]),
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::AllToAll;
        for (which, found, counts) in [("input", input, input_counts), ("output", output, output_counts)] {
            self.check_counts(kind, which, counts)?;
            self.check_sum(kind, which, elements::<T>(found), counts.iter().sum())?;
            if let Some(count) = counts.iter().find(|&&count| count > u32::MAX as usize / size_of::<T>()) {
                return Err(self.usage(kind, format!("a block of {count} elements is longer than 4 GiB")));
            }
        }
        let me = self.rank();
        if input_counts[me] != output_counts[me] {
            let (from, into) = (input_counts[me], output_counts[me]);
            let what = format!("block {me} stays on this rank: it cannot be {from} elements here and {into} there");
            return Err(self.usage(kind, what));
        }
        let call = self.call::<T>(kind, input, output, Layout::of_pairs(input_counts, output_counts), options)?;
        if call.settings.chunk_bytes.is_some() {
            return Err(self.usage(kind, "chunk_bytes has no meaning where every pair has a length of its own".into()));
        }
        Ok(call)
    }

    pub(crate) fn barrier_call(&self, options: &CallOptions) -> Prepared {
        self.call::<u8>(CollectiveKind::Barrier, Span::EMPTY, Span::EMPTY, Layout::uniform(0, 1), options)
    }

    pub(crate) fn send_call<T: Element>(&self, data: Span, to: usize, tag: u32, options: &CallOptions) -> Prepared {
        let kind = CollectiveKind::SendReceive;
        self.check_peer(kind, to)?;
        let layout = Layout::uniform(elements::<T>(data), 1);
        let route = Some((self.rank(), to, tag));
        Ok(Call { route, ..self.call::<T>(kind, data, Span::EMPTY, layout, options)? })
    }

    pub(crate) fn receive_call<T: Element>(
        &self,
        data: Span,
        from: usize,
        tag: u32,
        options: &CallOptions,
    ) -> Prepared {
        let kind = CollectiveKind::SendReceive;
        self.check_peer(kind, from)?;
        let layout = Layout::uniform(elements::<T>(data), 1);
        let route = Some((from, self.rank(), tag));
        Ok(Call { route, ..self.call::<T>(kind, Span::EMPTY, data, layout, options)? })
    }

    pub(crate) fn call<T: Element>(
        &self,
        kind: CollectiveKind,
        input: Span,
        output: Span,
        layout: Layout,
        options: &CallOptions,
    ) -> Prepared {
        let settings = self.settings(kind, options)?;
        if let Some(algorithm) =
            settings.algorithm.filter(|algorithm| layout.variable() && !algorithm.variable_counts())
        {
            return Err(self.usage(kind, format!("{} needs blocks of one length", algorithm.name())));
        }
        Ok(Call {
            kind,
            data_type: T::DATA_TYPE,
            reduction: Reduction::Sum,
            root: 0,
            input,
            output,
            layout,
            settings,
            route: None,
            program: None,
            owners: [None, None],
            background: false,
        })
    }

    pub(crate) fn settings(&self, kind: CollectiveKind, options: &CallOptions) -> Result<Settings, CommError> {
        options.settings(kind).map_err(|refused| match refused {
            Refused::Algorithm(unknown) => self.world.unknown_algorithm(unknown),
            Refused::Usage(what) => self.usage(kind, what),
        })
    }

    /// The blocks of a collective: all of `block` elements, or as the counts say; and the buffers must be as long.
    pub(crate) fn layout<T: Element>(
        &self,
        kind: CollectiveKind,
        root: usize,
        (input, output): (Span, Span),
        block: usize,
        counts: Option<&[usize]>,
    ) -> Result<Layout, CommError> {
        let (rank, world) = (self.rank(), self.world_size());
        let (input, output) = (elements::<T>(input), elements::<T>(output));
        let (inputs, outputs) = blocks(kind, rank, root, world);
        let Some(counts) = counts else {
            for (which, found, blocks) in [("input", input, inputs as usize), ("output", output, outputs as usize)] {
                let right = blocks.checked_mul(block);
                if right != Some(found) {
                    let sum = right.map_or("more than there can be".into(), |sum| sum.to_string());
                    let what = format!("the {which} has {found} elements, but {blocks} blocks of {block} are {sum}");
                    return Err(self.usage(kind, what));
                }
            }
            let many = match kind {
                CollectiveKind::AllReduce
                | CollectiveKind::Reduce
                | CollectiveKind::PushPull
                | CollectiveKind::Push => 1,
                _ => world,
            };
            return Ok(Layout::uniform(block, many));
        };
        self.check_counts(kind, "blocks", counts)?;
        for (which, found, blocks) in [("input", input, inputs), ("output", output, outputs)] {
            let right = match blocks {
                0 => 0,
                1 => counts[rank],
                _ => counts.iter().sum(),
            };
            self.check_sum(kind, which, found, right)?;
        }
        Ok(Layout::of_counts(kind, rank, root, counts))
    }

    fn check_counts(&self, kind: CollectiveKind, which: &str, counts: &[usize]) -> Result<(), CommError> {
        if counts.len() != self.world_size() {
            let (found, world) = (counts.len(), self.world_size());
            return Err(self.usage(kind, format!("{found} counts of the {which}, but {world} ranks")));
        }
        if counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)).is_none() {
            return Err(self.usage(kind, format!("the counts of the {which} add up to more than there can be")));
        }
        Ok(())
    }

    fn check_sum(&self, kind: CollectiveKind, which: &str, found: usize, right: usize) -> Result<(), CommError> {
        if found == right {
            return Ok(());
        }
        Err(self.usage(kind, format!("the {which} has {found} elements, but {right} by the counts")))
    }

    fn check_rank(&self, kind: CollectiveKind, role: &str, rank: usize) -> Result<(), CommError> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(self.usage(kind, format!("{role} {rank} is not one of the {} ranks", self.world_size())))
    }

    fn check_peer(&self, kind: CollectiveKind, rank: usize) -> Result<(), CommError> {
        self.check_rank(kind, "peer", rank)?;
        if rank != self.rank() {
            return Ok(());
        }
        Err(self.usage(kind, "a rank cannot send to itself; copy the data".to_owned()))
    }
}

pub(crate) fn elements<T>(span: Span) -> usize {
    span.bytes / size_of::<T>()
}
