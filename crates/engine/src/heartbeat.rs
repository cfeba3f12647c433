//! Signs of life: an idle link carries one now and then, and a peer of which none comes is lost.
//!
//! Frames are counted where they pass, and the counts compared when the time is told: nothing else is paid per frame.
//! A peer is watched from its first sign of life on, for only then has it come so far as to send any.
//!
//! Silence is counted only while this rank listens. One that was not scheduled for a while (a machine with too much to
//! do, a debugger, a suspended laptop) has heard nothing for that reason, and counts a pause like any other as no more
//! than [`PAUSE_LOOKS`] looks: so it does not take its own absence for that of all others.

use std::time::Duration;

use paceline_plan::Rank;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::frame::{Header, Kind};
use crate::interface::Time;

/// Looks per [`crate::Config::heartbeat`].
const LOOKS: u32 = 4;

/// The longest pause between two looks that counts as silence, in looks.
const PAUSE_LOOKS: u32 = 2;

/// When the links are looked at.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    /// None before the first look.
    last: Option<Time>,
}

/// What was heard of a peer and said to it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Frames sent, and signs of life received, since the link opened.
    pub sent: u64,
    pub arrived: u64,
    /// The counts at the last look.
    sent_before: u64,
    arrived_before: u64,
    /// For how long nothing was sent, and nothing has come while this rank listened.
    quiet: Duration,
    silent: Duration,
    /// How long the peer leaves an idle link without a sign of life; None before its first.
    promised: Option<Duration>,
}

impl Engine {
    /// Some bytes of a peer have arrived, perhaps in the middle of a frame.
    pub fn sign_of_life(&mut self, peer: Rank) {
        self.peers[peer].pulse.arrived += 1;
    }

    /// Looks at the links if it is time to.
    pub(crate) fn beat(&mut self) {
        if self.next_beat().is_none_or(|next| self.now < next) {
            return;
        }
        let (interval, look) = (self.config.heartbeat, self.config.heartbeat / LOOKS);
        let passed = self.beats.last.replace(self.now).map(|last| self.now - last);
        let mut lost = None;
        for rank in (0..self.config.world).filter(|&rank| rank != self.config.rank) {
            let peer = &mut self.peers[rank];
            if peer.left {
                continue;
            }
            // The first look says to everyone that there is something to watch.
            let due = passed.is_none_or(|passed| peer.pulse.look(passed, look) + look >= interval);
            if due && peer.control.is_empty() {
                let every = interval.as_millis().clamp(1, u128::from(u32::MAX)) as u32;
                peer.control.push_back(Header { message: every, ..Header::new(Kind::Heartbeat, Default::default()) });
            }
            let limit = peer.pulse.promised.map(|every| limit(every.max(interval), self.config.heartbeat_misses));
            if limit.is_some_and(|limit| peer.pulse.silent >= limit) && lost.is_none() {
                let how = format!("it has given no sign of life for {:.1} s", peer.pulse.silent.as_secs_f64());
                lost = Some(Failure::PeerLost { rank, how, noticed_by: None });
            }
        }
        if let Some(failure) = lost {
            self.fail(failure);
        }
    }

    /// When [`Engine::beat`] has something to do.
    pub(crate) fn next_beat(&self) -> Option<Time> {
        let watches = !self.config.heartbeat.is_zero() && self.config.world > 1 && self.failure().is_none();
        watches.then(|| self.beats.last.map_or(Time::ZERO, |last| last + self.config.heartbeat / LOOKS))
    }

    /// A peer says how often it gives a sign of life.
    pub(crate) fn promised(&mut self, peer: Rank, header: &Header) {
        if !header.is_of_operation() {
            self.peers[peer].pulse.promised = Some(Duration::from_millis(header.message.into()));
        }
    }
}

impl Pulse {
    /// Compares the counts; says for how long nothing was sent.
    fn look(&mut self, passed: Duration, look: Duration) -> Duration {
        self.quiet = if self.sent == self.sent_before { self.quiet + passed } else { Duration::ZERO };
        let listened = passed.min(look * PAUSE_LOOKS);
        self.silent = if self.arrived == self.arrived_before { self.silent + listened } else { Duration::ZERO };
        (self.sent_before, self.arrived_before) = (self.sent, self.arrived);
        self.quiet
    }
}

/// So many signs of life must fail to come, and the last one may be late by half.
fn limit(every: Duration, misses: u32) -> Duration {
    every * misses.max(1) + every / 2
}
