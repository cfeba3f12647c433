//! One shard of a parameter server: in which iteration and phase each of its partitions is, and what is to be done next.
//! Pure, like the engine: the server starts operations and reports their ends, the simulator does so in virtual time.
//!
//! ```
//! use paceline_engine::shard::{Mode, Phase, Shard, Task};
//!
//! // Two partitions, the second more urgent, for one iteration.
//! let mut shard = Shard::new(&[7, 3], 0..1, Mode::Aggregate, 1);
//! let task = |partition| Task { partition, iteration: 0, phase: Phase::PushPull };
//! assert_eq!(shard.begin(), Some(task(1)));
//! assert_eq!(shard.begin(), Some(task(0)));
//! shard.finished(0);
//! shard.finished(1);
//! assert!(shard.is_done() && shard.begin().is_none());
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// What a shard does with what workers push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It gives everyone the sum of the contributions; the optimiser is with the workers.
    Aggregate,
    /// It has the parameters: it applies the sum to them and gives everyone the new ones.
    Apply,
    /// Contributions come compressed: it adds up what they stand for, and gives everyone the sum.
    Decompress,
}

/// What a partition goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The shard and the workers get the parameters of the first worker, once.
    Initialise,
    /// Contributions come, the sum goes: one operation.
    PushPull,
    /// Contributions come.
    Push,
    /// The optimiser makes new parameters of the sum and the old ones; or what came compressed is added up.
    Apply,
    /// Parameters go; or the sum of what came compressed.
    Pull,
}

impl Phase {
    /// Is it an operation of the communicator, and not work of this shard alone?
    pub const fn communicates(self) -> bool {
        !matches!(self, Phase::Apply)
    }

    /// Tells the operations of a partition in one iteration from each other: [`paceline_plan::OperationKey::part`].
    pub const fn part(self) -> u32 {
        match self {
            Phase::PushPull | Phase::Push | Phase::Apply => 0,
            Phase::Pull => 1,
            Phase::Initialise => 2,
        }
    }
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The index of the partition among this shard's.
    pub partition: usize,
    /// For which iteration.
    pub iteration: u64,
    /// What.
    pub phase: Phase,
}

/// The state of one shard.
///
/// A partition is in one phase at a time, so a buffer for each (two in [`Mode::Apply`]; in [`Mode::Decompress`] that for the bytes
/// of all workers besides) is all the memory that the shard needs. It waits for no other partition: as soon as it is through with an iteration, its next one is open.
///
/// Why not fewer open operations than partitions: workers start theirs in an order of their own, and under a credit not
/// all at once. If the shard opened others first, both sides could wait for each other for ever.
#[derive(Clone, Debug)]
pub struct Shard {
    mode: Mode,
    end: u64,
    partitions: Vec<Partition>,
    /// Operations that may start, most urgent first.
    operations: BinaryHeap<Reverse<Urgency>>,
    /// The same for work of this shard alone.
    work: BinaryHeap<Reverse<Urgency>>,
    /// Work that is under way, and how much may be.
    applying: usize,
    applying_max: usize,
    /// Tasks given and not finished.
    open: usize,
    /// Partitions that have iterations before them.
    unfinished: usize,
}

#[derive(Clone, Copy, Debug)]
struct Partition {
    priority: u32,
    iteration: u64,
    phase: Phase,
    open: bool,
}

/// An earlier iteration first, then by priority, then by number.
type Urgency = (u64, u32, usize);

impl Shard {
    /// A shard with a partition for each of these priorities (lower is more urgent), for these iterations. In
    /// [`Mode::Apply`] it begins with [`Phase::Initialise`] if the first iteration is 0; otherwise it goes on with the
    /// parameters that it has. At most `applying_max` (at least 1) partitions are in [`Phase::Apply`] at once.
    pub fn new(priorities: &[u32], iterations: Range<u64>, mode: Mode, applying_max: usize) -> Shard {
        let begins = mode == Mode::Apply && iterations.start == 0;
        let phase = if begins { Phase::Initialise } else { first_phase(mode) };
        let partition = |&priority| Partition { priority, iteration: iterations.start, phase, open: false };
        let mut shard = Shard {
            mode,
            end: iterations.end,
            partitions: priorities.iter().map(partition).collect(),
            operations: BinaryHeap::new(),
            work: BinaryHeap::new(),
            applying: 0,
            applying_max: applying_max.max(1),
            open: 0,
            unfinished: 0,
        };
        if begins || !iterations.is_empty() {
            shard.unfinished = priorities.len();
            (0..priorities.len()).for_each(|partition| shard.queue(partition));
        }
        shard
    }

    /// Begins the most urgent thing that may begin, if there is one. Operations come before work, as starting them costs nothing.
    pub fn begin(&mut self) -> Option<Task> {
        let work = if self.applying < self.applying_max { Some(&mut self.work) } else { None };
        let Reverse((iteration, _, partition)) = match self.operations.pop() {
            Some(urgency) => urgency,
            None => work?.pop()?,
        };
        let state = &mut self.partitions[partition];
        state.open = true;
        self.open += 1;
        self.applying += usize::from(!state.phase.communicates());
        Some(Task { partition, iteration, phase: state.phase })
    }

    /// What [`Shard::begin`] has given for this partition is done.
    ///
    /// # Panics
    /// If there was nothing to be done: the driver has lost count.
    pub fn finished(&mut self, partition: usize) {
        let state = &mut self.partitions[partition];
        assert!(std::mem::take(&mut state.open), "nothing was open for partition {partition}");
        self.open -= 1;
        self.applying -= usize::from(!state.phase.communicates());
        state.phase = match state.phase {
            Phase::Push => Phase::Apply,
            Phase::Apply => Phase::Pull,
            Phase::Initialise => first_phase(self.mode),
            Phase::PushPull | Phase::Pull => {
                state.iteration += 1;
                first_phase(self.mode)
            }
        };
        if state.iteration < self.end {
            self.queue(partition);
        } else {
            self.unfinished -= 1;
        }
    }

    /// Tasks that were given and are not finished.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Has every partition been through all iterations?
    pub fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    fn queue(&mut self, partition: usize) {
        let Partition { priority, iteration, phase, .. } = self.partitions[partition];
        let queue = if phase.communicates() { &mut self.operations } else { &mut self.work };
        queue.push(Reverse((iteration, priority, partition)));
    }
}

/// What an iteration begins with.
fn first_phase(mode: Mode) -> Phase {
    match mode {
        Mode::Aggregate => Phase::PushPull,
        Mode::Apply | Mode::Decompress => Phase::Push,
    }
}
