//! How a world carries out local work: at some later time, several pieces at once.

use paceline_collective::Combine;
use paceline_collective::kernels::Elementwise;
use paceline_engine::{Job, Region, Source, Work};
use paceline_plan::Rank;

use crate::world::{Event, World};

/// A piece of work that is under way.
#[derive(Debug)]
pub struct Running {
    work: Work,
    access: u64,
}

impl World {
    /// Takes work as long as there is some and a free hand. True if there was any.
    pub fn take_work(&mut self, rank: Rank) -> bool {
        let mut moved = false;
        while self.nodes[rank].running < self.setup.work_slots {
            let Some(work) = self.nodes[rank].engine(|engine| engine.work()) else { break };
            moved = true;
            let node = &mut self.nodes[rank];
            let (reads, into) = operands(&work.job);
            let nothing = matches!(&work.job, Job::Copy { from: Source::Region(from), .. }
                if from.bytes == 0 || node.memory.locate(from) == node.memory.locate(&into));
            let access = if nothing { 0 } else { node.memory.acquire("working", &reads, &[into]) };
            let running = Some(Running { work, access });
            let job = node.jobs.iter().position(Option::is_none).unwrap_or(node.jobs.len());
            if job == node.jobs.len() {
                node.jobs.push(None);
            }
            node.jobs[job] = running;
            node.running += 1;
            let time = self.random.within(self.setup.work.clone());
            self.at(self.now + time, Event::Worked { rank, job });
        }
        moved
    }

    /// A piece of work is done: what it reads is read now, as late as can be.
    pub fn worked(&mut self, rank: Rank, job: usize) {
        let running = self.nodes[rank].jobs[job].take().expect("work that was taken");
        self.nodes[rank].running -= 1;
        if self.withdrawn(&running.work.job) {
            // It cannot be done, and the link will say why.
            return self.nodes[rank].memory.release(running.access);
        }
        let written = if self.nodes[rank].closed { None } else { self.execute(rank, &running.work.job) };
        let node = &mut self.nodes[rank];
        node.memory.release(running.access);
        node.engine(|engine| engine.worked(running.work.token, written));
    }

    /// Has a peer let go of memory that the job is to read?
    fn withdrawn(&self, job: &Job) -> bool {
        let gone = |source: &Source| match source {
            Source::Reference { peer, .. } => self.nodes[*peer].dead || self.nodes[*peer].closed,
            _ => false,
        };
        match job {
            Job::Copy { from, .. } | Job::Map { from, .. } => gone(from),
            Job::Combine { left, right, .. } => gone(left) || gone(right),
        }
    }

    fn execute(&mut self, rank: Rank, job: &Job) -> Option<usize> {
        match job {
            Job::Copy { from, into, .. } => {
                let bytes = self.content(rank, from);
                self.nodes[rank].memory.write(into).copy_from_slice(&bytes);
                None
            }
            Job::Combine { left, right, into, combine: Combine::Reduction, last } => {
                let (left, right) = (self.content(rank, left), self.content(rank, right));
                let call = &self.calls[self.nodes[rank].calls[&into.op.index]];
                let elementwise = Elementwise {
                    data_type: call.data_type,
                    reduction: call.reduction,
                    divisor: if *last { call.contributors() as u32 } else { 1 },
                };
                elementwise.combine(&left, &right, self.nodes[rank].memory.write(into));
                None
            }
            Job::Combine { left, right, into, combine: Combine::Kernel(kernel), .. } => {
                let (left, right) = (self.content(rank, left), self.content(rank, right));
                let kernels = self.kernels;
                Some(kernels.combine(*kernel, &left, &right, self.nodes[rank].memory.write(into)))
            }
            Job::Map { from, into, kernel } => {
                let from = self.content(rank, from);
                let kernels = self.kernels;
                Some(kernels.map(*kernel, &from, self.nodes[rank].memory.write(into)))
            }
        }
    }

    fn content(&self, rank: Rank, source: &Source) -> Vec<u8> {
        let memory = &self.nodes[rank].memory;
        match source {
            Source::Region(region) => memory.read(region).to_vec(),
            Source::Pool { buffer, offset, bytes } => {
                memory.pool[buffer.0 as usize].bytes[*offset..offset + bytes].to_vec()
            }
            Source::Reference { peer, reference, offset, bytes } => {
                let owner = &self.nodes[*peer];
                let (buffer, range, access) = owner.references[reference[0] as usize].clone();
                assert!(owner.memory.in_use(access), "rank {peer} has let go of memory that rank {rank} reads");
                owner.memory.read_at(buffer, range.start + offset..range.start + offset + bytes)
            }
        }
    }
}

/// What a job reads of the operation's own memory, and what it writes.
fn operands(job: &Job) -> (Vec<Region>, Region) {
    let own = |source: &Source| match source {
        Source::Region(region) => Some(*region),
        _ => None,
    };
    match job {
        Job::Copy { from, into, .. } | Job::Map { from, into, .. } => (own(from).into_iter().collect(), *into),
        Job::Combine { left, right, into, .. } => (own(left).into_iter().chain(own(right)).collect(), *into),
    }
}
