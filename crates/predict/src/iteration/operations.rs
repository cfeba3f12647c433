use std::ops::Range;

use paceline_engine::shard::Mode;
use paceline_plan::Plan;
use paceline_schedule::ELEMENT_BYTES;

/// What carries operations first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// One channel for all classes; an operation gets on it when every class has started it.
    Channel,
    /// Every class has one of its own; an operation is through when it has been on all of them.
    Buses,
}

/// What the operations of a plan go through: the line, then stage after stage, then a latency, which is longer for those that
/// have overtaken others.
#[derive(Clone, Debug)]
pub struct Operations {
    line: Line,
    operations: Vec<Operation>,
    stages: Vec<Stage>,
    parts: Vec<Part>,
    links: usize,
    servers: usize,
    mode: Mode,
    /// Takes any operation time on the line?
    on_line: bool,
    /// None on the line overtakes another one.
    in_order: bool,
    /// So many of the links, the first ones, are in computation's way, and not the line. 0: the line is.
    disturbing_links: usize,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// Seconds on the line.
    pub line_s: f64,
    /// Which of the stages are its own.
    pub stages: Range<usize>,
    /// Seconds after the last stage until it has arrived; they keep nothing busy.
    pub latency_s: f64,
    /// Seconds more if it overtakes others.
    pub overtaking_s: f64,
}

/// What comes after the line.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// All these parts at once.
    Links {
        parts: Range<usize>,
        /// None of them overtakes another one.
        in_order: bool,
    },
    /// A server's processor.
    Server { server: usize, busy_s: f64 },
}

/// What one link carries of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its number.
    pub link: usize,
    /// Seconds for which it carries nothing else.
    pub busy_s: f64,
}

impl Operations {
    /// None yet, on this line, with so many links and servers of this mode. Operations are pushed in the order of their
    /// numbers.
    pub fn new(line: Line, links: usize, servers: usize, mode: Mode) -> Operations {
        Operations {
            line,
            operations: Vec::new(),
            stages: Vec::new(),
            parts: Vec::new(),
            links,
            servers,
            mode,
            on_line: false,
            in_order: false,
            disturbing_links: 0,
        }
    }

    /// All-to-all operations of a plan on one channel, one at a time, `seconds` for so many bytes.
    pub fn on_channel(plan: &Plan, seconds: impl Fn(u64) -> f64) -> Operations {
        let mut operations = Operations::new(Line::Channel, 0, 0, Mode::Aggregate);
        for (_, partition) in plan.partitions() {
            operations.push(seconds(partition.elements.len() as u64 * ELEMENT_BYTES), 0.0);
        }
        operations
    }

    /// The next operation: seconds on the line, and seconds between its last stage and its arrival.
    pub fn push(&mut self, line_s: f64, latency_s: f64) {
        let end = self.stages.len();
        self.on_line |= line_s > 0.0;
        self.operations.push(Operation { line_s, stages: end..end, latency_s, overtaking_s: 0.0 });
    }

    /// The operation that was pushed last is then on these links, all at once.
    ///
    /// # Panics
    /// If there is no operation or no such link.
    pub fn then_links(&mut self, parts: impl IntoIterator<Item = Part>) {
        let start = self.parts.len();
        self.parts.extend(parts);
        assert!(self.parts[start..].iter().all(|part| part.link < self.links), "there are {} links", self.links);
        self.then(Stage::Links { parts: start..self.parts.len(), in_order: false });
    }

    /// It is then on this link, where it does not overtake what has begun.
    ///
    /// # Panics
    /// As [`then_links`](Self::then_links).
    pub fn then_link_in_order(&mut self, part: Part) {
        self.then_links([part]);
        if let Some(Stage::Links { in_order, .. }) = self.stages.last_mut() {
            *in_order = true;
        }
    }

    /// It arrives so many seconds later if it overtakes others, on the channel or on a link.
    ///
    /// # Panics
    /// If there is no operation.
    pub fn later_if_it_overtakes(&mut self, overtaking_s: f64) {
        self.last().overtaking_s = overtaking_s;
    }

    /// It is then on a server's processor for so long. At most once in an operation.
    ///
    /// # Panics
    /// If there is no operation or no such server.
    pub fn then_server(&mut self, server: usize, busy_s: f64) {
        assert!(server < self.servers, "there are {} servers", self.servers);
        self.then(Stage::Server { server, busy_s });
    }

    fn then(&mut self, stage: Stage) {
        self.stages.push(stage);
        let end = self.stages.len();
        self.last().stages.end = end;
    }

    fn last(&mut self) -> &mut Operation {
        let Some(last) = self.operations.last_mut() else { panic!("there is no operation yet") };
        last
    }

    /// The same, but none on the line overtakes what has begun.
    pub fn in_order(self) -> Operations {
        Operations { in_order: true, ..self }
    }

    /// The same, but what computes is in the way of so many links, the first ones, and each of these in its way; not the line.
    pub fn disturbing_on_links(self, links: usize) -> Operations {
        Operations { disturbing_links: links.min(self.links), ..self }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Seconds for which the line, each link and each server are busy in an iteration.
    pub fn busy_s(&self) -> (f64, Vec<f64>, Vec<f64>) {
        let (mut links, mut servers) = (vec![0.0; self.links], vec![0.0; self.servers]);
        self.parts.iter().for_each(|part| links[part.link] += part.busy_s);
        for stage in &self.stages {
            if let Stage::Server { server, busy_s } = stage {
                servers[*server] += busy_s;
            }
        }
        (self.line_busy_s(), links, servers)
    }

    /// Seconds for which the line is busy in an iteration.
    pub fn line_busy_s(&self) -> f64 {
        self.operations.iter().map(|operation| operation.line_s).sum()
    }

    pub(super) fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// How many of the links, the first ones, are in computation's way; 0: the line is.
    pub fn disturbing_links(&self) -> usize {
        self.disturbing_links
    }

    pub(super) fn line(&self) -> Line {
        self.line
    }

    /// Does an operation pass through the line at all? Always if it is the channel, where they meet.
    pub(super) fn uses_line(&self) -> bool {
        self.line == Line::Channel || self.on_line
    }

    pub(super) fn operation(&self, number: usize) -> &Operation {
        &self.operations[number]
    }

    pub(super) fn stage(&self, number: usize) -> &Stage {
        &self.stages[number]
    }

    pub(super) fn parts(&self, range: &Range<usize>) -> &[Part] {
        &self.parts[range.clone()]
    }

    pub(super) fn links(&self) -> usize {
        self.links
    }

    pub(super) fn servers(&self) -> usize {
        self.servers
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// The server of an operation, if it goes through one.
    pub(super) fn server_of(&self, number: usize) -> Option<usize> {
        self.stages[self.operations[number].stages.clone()].iter().find_map(|stage| match stage {
            Stage::Server { server, .. } => Some(*server),
            Stage::Links { .. } => None,
        })
    }
}
