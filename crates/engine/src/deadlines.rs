//! Time: deadlines, and nudges for operations in which nothing happens.

use paceline_collective::{Action, StepId};
use paceline_plan::Rank;

use crate::engine::{Engine, arrived};
use crate::failure::{Failure, Waiting};
use crate::frame::{Header, Kind};
use crate::interface::Time;
use crate::operation::{Operation, Phase};

/// The second nudge comes after so many times [`crate::Config::nudge`], and each further one after twice the time of
/// the one before, up to [`NUDGES_APART_MAX`].
const NUDGES_APART: u32 = 32;
const NUDGES_APART_MAX: u32 = 512;

/// While so many control frames wait for a peer, it is told nothing more that it was told before: it does not read.
const UNREAD_MAX: usize = 64;

impl Engine {
    /// Tells the time: deadlines, signs of life, and nudges and reports of operations in which nothing happens.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.beat();
        if self.pending() == 0 || self.now < self.next_look {
            return;
        }
        self.next_look = self.now + self.config.nudge / 2;
        for index in 0..self.ops.len() as u32 {
            let op = &self.ops[index as usize];
            if !op.live {
                continue;
            }
            if self.now >= op.deadline {
                let (key, waiting) = (op.key, self.waiting(index));
                return self.fail(Failure::Deadline { key, waiting });
            }
            if self.now >= self.nudge_due(op) {
                self.nudge(index);
            }
            self.look_for_stall(index);
        }
    }

    /// When [`Engine::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let live = self.ops.iter().filter(|op| op.live);
        let next = live.map(|op| op.deadline.min(self.nudge_due(op)).min(self.stall_due(op))).min();
        let next = next.map(|next| next.max(self.next_look));
        next.into_iter().chain(self.next_beat()).min()
    }

    fn nudge_due(&self, op: &Operation) -> Time {
        match op.nudges {
            0 => op.last_progress + self.config.nudge,
            nudges => {
                let apart = NUDGES_APART.checked_shl(nudges - 1).unwrap_or(NUDGES_APART_MAX).min(NUDGES_APART_MAX);
                op.nudged_at + self.config.nudge * apart
            }
        }
    }

    /// Grants everything that an operation waits for, in case its senders lack credit. If that does not help, grants it
    /// again, in case the sender was not ready to note it, and tells all who may wait for this rank that it has started.
    fn nudge(&mut self, index: u32) {
        let now = self.now;
        let op = &mut self.ops[index as usize];
        let again = op.nudges > 0;
        op.nudges = op.nudges.saturating_add(1);
        op.nudged_at = now;
        let (slots, steps) = (op.tiles.len(), op.schedule.steps() as StepId);
        let more_tiles = op.next_tile < op.geometry.tiles;
        for (slot, step) in (0..slots).flat_map(|slot| (0..steps).map(move |step| (slot, step))) {
            let op = &mut self.ops[index as usize];
            let tile = &op.tiles[slot];
            let Some(partner) = op.schedule.partner(step).filter(|_| tile.left > 0) else { continue };
            let (number, state) = (tile.tile, tile.steps[step as usize]);
            op.edges[partner].waits |= more_tiles || state.phase != Phase::Done;
            let Action::Receive { message, .. } = *op.schedule.action(step) else { continue };
            let silent = state.phase == Phase::Started && !state.begun && (again || !state.granted);
            let unread = state.granted && self.peers[op.group[partner]].control.len() >= UNREAD_MAX;
            if silent && !unread && op.find_pooled(op.group[partner], number, message).is_none() {
                self.grant(index, number, step, state.granted);
            }
        }
        let told = self.word_of(index);
        let op = &mut self.ops[index as usize];
        for (edge, &rank) in op.edges.iter_mut().zip(op.group.iter()) {
            let peer = &mut self.peers[rank];
            if std::mem::take(&mut edge.waits) && again && !peer.left && peer.control.len() < UNREAD_MAX {
                peer.control.push_back(told);
            }
        }
    }

    /// "This rank has started the operation", and for whom it waits.
    fn word_of(&self, index: u32) -> Header {
        let op = &self.ops[index as usize];
        let message = self.blamed(index).map_or(0, |group_rank| group_rank as u32 + 1);
        Header { signature: op.signature, message, ..Header::new(Kind::Heartbeat, op.key) }
    }

    /// A rank of the group that has not started the operation and for which this rank waits, or a peer for which it
    /// waits, or a peer of that one …
    fn blamed(&self, index: u32) -> Option<Rank> {
        let op = &self.ops[index as usize];
        let absent = self.waiting(index).into_iter().find(|waiting| !waiting.started)?;
        op.group_rank(absent.rank)
    }

    /// A peer says for whom it waits. If that is news, it is passed on soon.
    pub(crate) fn hear_blame(&mut self, index: u32, peer: Rank, header: &Header) {
        let op = &mut self.ops[index as usize];
        let blames = (header.message as usize).checked_sub(1).filter(|&rank| rank < op.group.len());
        let Some(group_rank) = op.group_rank(peer) else { return };
        if op.edges[group_rank].blames != blames {
            op.edges[group_rank].blames = blames;
            op.nudges = op.nudges.min(1);
        }
    }

    /// The peers that an operation waits for: those whose data is missing, and those that have not taken ours. Then
    /// those that these wait for, if they have not started it.
    pub(crate) fn waiting(&self, index: u32) -> Vec<Waiting> {
        let op = &self.ops[index as usize];
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut wait_for = |peer: Rank| {
            let (rank, started) = (op.group[peer], op.edges[peer].heard);
            if waiting.iter().all(|waiting| waiting.rank != rank) {
                waiting.push(Waiting { rank, started });
            }
        };
        for tile in op.tiles.iter().filter(|tile| tile.left > 0) {
            for (step, state) in (0u32..).zip(&tile.steps) {
                match *op.schedule.action(step) {
                    Action::Send { to, .. } if matches!(state.phase, Phase::Started | Phase::Parked) => wait_for(to),
                    Action::Receive { from, message, .. }
                        if state.phase == Phase::Started
                            && !arrived(&op.pooled, op.group[from], tile.tile, message) =>
                    {
                        wait_for(from);
                    }
                    _ => {}
                }
            }
        }
        for direct in waiting.clone() {
            let blamed = op.group_rank(direct.rank).and_then(|rank| op.edges[rank].blames);
            let unheard = |&rank: &Rank| !op.edges[rank].heard && op.group[rank] != self.config.rank;
            let rank = blamed.filter(unheard).map(|rank| op.group[rank]);
            if let Some(rank) = rank.filter(|&rank| waiting.iter().all(|waiting| waiting.rank != rank)) {
                waiting.push(Waiting { rank, started: false });
            }
        }
        waiting
    }
}
