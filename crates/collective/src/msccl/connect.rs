//! What one rank's thread blocks have to do with another's, and with each other.

use std::collections::HashMap;

use paceline_plan::{CollectiveKind, Rank};

use super::file::{Block, File, Gpu, Operation};
use super::{Fault, ReadError};

/// Which thread blocks are connected. What one sends and the other receives fits in order.
pub(super) struct Wiring {
    /// By rank and thread block.
    pub ends: Vec<Vec<Ends>>,
}

/// The connections of one thread block.
#[derive(Default)]
pub(super) struct Ends {
    /// The steps that send, in order, and those that receive.
    pub sends: Vec<usize>,
    pub receives: Vec<usize>,
    /// The thread block that receives what this one sends.
    pub to: Option<(Rank, usize)>,
    /// The thread block that sends what this one receives.
    pub from: Option<(Rank, usize)>,
}

/// Sender, receiver and channel.
type Connection = (Rank, Rank, u32);

impl Wiring {
    /// Finds the other end of every connection, and refuses what has none.
    pub fn of(file: &File) -> Result<Wiring, ReadError> {
        file.gpus.iter().try_for_each(check_waits)?;
        let senders = connections(file, |rank, block| Some((rank, block.send?, block.channel)), "send")?;
        let receivers = connections(file, |rank, block| Some((block.receive?, rank, block.channel)), "recv")?;
        let ends = |block: &Block| {
            let steps = |wanted: fn(Operation) -> bool| {
                let all = block.steps.iter().enumerate();
                all.filter(|(_, step)| wanted(step.operation)).map(|(index, _)| index).collect()
            };
            Ends { sends: steps(Operation::sends), receives: steps(Operation::receives), to: None, from: None }
        };
        let mut wiring = Wiring { ends: file.gpus.iter().map(|gpu| gpu.blocks.iter().map(ends).collect()).collect() };
        for (rank, gpu) in file.gpus.iter().enumerate() {
            for (index, block) in gpu.blocks.iter().enumerate() {
                let ends = &mut wiring.ends[rank][index];
                ends.to = block.send.and_then(|peer| receivers.get(&(rank, peer, block.channel)).copied());
                ends.from = block.receive.and_then(|peer| senders.get(&(peer, rank, block.channel)).copied());
            }
        }
        wiring.check(file)?;
        Ok(wiring)
    }

    /// Every message has both ends, and these agree about its length.
    fn check(&self, file: &File) -> Result<(), ReadError> {
        for (rank, gpu) in file.gpus.iter().enumerate() {
            for (block, ends) in gpu.blocks.iter().zip(&self.ends[rank]) {
                let others = |other: Option<(Rank, usize)>| other.map(|(rank, block)| &self.ends[rank][block]);
                let (taken, given) = (
                    others(ends.to).map_or(0, |other| other.receives.len()),
                    others(ends.from).map_or(0, |other| other.sends.len()),
                );
                let unmatched = |step: usize, (from, to), lacks| {
                    let fault = Fault::Unmatched { from, to, channel: block.channel, lacks };
                    Err(ReadError { line: block.steps[step].line, fault })
                };
                if let (Some(&step), Some(to)) = (ends.sends.get(taken), block.send) {
                    return unmatched(step, (rank, to), "receiver");
                }
                if let (Some(&step), Some(from)) = (ends.receives.get(given), block.receive) {
                    return unmatched(step, (from, rank), "sender");
                }
                let Some((peer, other)) = ends.from else { continue };
                let sender = &file.gpus[peer].blocks[other];
                for (&here, &there) in ends.receives.iter().zip(&self.ends[peer][other].sends) {
                    let (receive, send) = (&block.steps[here], &sender.steps[there]);
                    if receive.count != send.count {
                        let (received, sent) = (receive.count, send.count);
                        let fault = Fault::Counts { received, sent, sender: send.line };
                        return Err(ReadError { line: receive.line, fault });
                    }
                }
            }
        }
        Ok(())
    }

    /// The rank that has or gets the whole; 0 where there is none.
    pub fn root(&self, file: &File) -> Result<Rank, ReadError> {
        use CollectiveKind::{Broadcast, Gather, Push, PushPull, Reduce, Scatter};
        let chosen = |named: &dyn Fn(&Gpu) -> bool, idle: &dyn Fn(&Ends) -> bool| {
            let ranks = 0..file.gpus.len();
            let by_chunks: Vec<Rank> = ranks.clone().filter(|&rank| named(&file.gpus[rank])).collect();
            if let [root] = by_chunks[..] {
                return Some(root);
            }
            let candidates = if by_chunks.is_empty() { ranks.collect() } else { by_chunks };
            let mut roots = candidates.into_iter().filter(|&rank| self.ends[rank].iter().all(idle));
            roots.next().filter(|_| roots.next().is_none())
        };
        let (root, how) = match file.kind {
            _ if file.gpus.len() == 1 || !file.kind.has_root() => (Some(0), ""),
            Broadcast | Scatter => (
                chosen(&|gpu| gpu.chunks[0] > 0, &|ends| ends.receives.is_empty()),
                "it is not the case that one gpu has i_chunks, or that one with i_chunks receives nothing",
            ),
            PushPull => {
                (chosen(&|gpu| gpu.chunks[0] == 0, &|_| false), "it is not the case that one gpu has no i_chunks")
            }
            Reduce | Gather | Push => (
                chosen(&|gpu| gpu.chunks[1] > 0, &|ends| ends.sends.is_empty()),
                "it is not the case that one gpu has o_chunks, or that one with o_chunks sends nothing",
            ),
            _ => (Some(0), ""),
        };
        root.ok_or(ReadError { line: file.line, fault: Fault::Root(how) })
    }
}

/// The thread block of each connection of one direction.
fn connections(
    file: &File,
    connection: impl Fn(Rank, &Block) -> Option<Connection>,
    attribute: &'static str,
) -> Result<HashMap<Connection, (Rank, usize)>, ReadError> {
    let mut all: HashMap<Connection, (Rank, usize)> = HashMap::new();
    for (rank, gpu) in file.gpus.iter().enumerate() {
        for (index, block) in gpu.blocks.iter().enumerate() {
            let Some(key) = connection(rank, block) else { continue };
            if let Some((_, first)) = all.insert(key, (rank, index)) {
                let (peer, channel) = (if key.0 == rank { key.1 } else { key.0 }, block.channel);
                let fault = Fault::Connection { attribute, peer, channel, first: gpu.blocks[first].line };
                return Err(ReadError { line: block.line, fault });
            }
        }
    }
    Ok(all)
}

/// Steps wait for steps that are there and that say when they are done.
fn check_waits(gpu: &Gpu) -> Result<(), ReadError> {
    for step in gpu.blocks.iter().flat_map(|block| &block.steps) {
        let Some((block, index)) = step.after else { continue };
        let fault = match gpu.blocks.get(block).and_then(|block| block.steps.get(index)) {
            None => Fault::NoSuchStep { block, step: index },
            Some(awaited) if !awaited.has_waiting => Fault::NobodyTells(awaited.line),
            Some(_) => continue,
        };
        return Err(ReadError { line: step.line, fault });
    }
    Ok(())
}
