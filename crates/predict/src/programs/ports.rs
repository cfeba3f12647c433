//! The ports of an emulated network: `docs/emulation.md`.

use std::collections::HashMap;

use crate::topology::{LinkId, Network, PathChoice};

/// When each port is free again. It serves first whatever came first, one message at a time.
pub(super) struct Ports {
    /// By link of the network: where it begins, and where it ends.
    out_s: Vec<f64>,
    in_s: Vec<f64>,
    /// By channel.
    passages: Vec<Passage>,
}

/// The ports that the messages of a channel pass.
#[derive(Clone, Copy, Default)]
struct Passage {
    out: LinkId,
    into: LinkId,
    bytes_per_s: f64,
}

impl Ports {
    /// Of channels, each from one rank to another, with these numbers.
    pub fn new(network: &Network, choice: &PathChoice, channels: &HashMap<(u32, u32), u32>) -> Ports {
        let mut passages = vec![Passage::default(); channels.len()];
        for (&(from, to), &channel) in channels {
            let [out, into] = network.ports(from as usize, to as usize, choice);
            let bytes_per_s = network.links()[out as usize].capacity;
            passages[channel as usize] = Passage { out, into, bytes_per_s };
        }
        let links = network.links().len();
        Ports { out_s: vec![0.0; links], in_s: vec![0.0; links], passages }
    }

    /// A message of a channel takes its turn at the port of its sender. When it begins to leave.
    pub fn leave(&mut self, channel: usize, bytes: f64, now: f64) -> f64 {
        let Passage { out, bytes_per_s, .. } = self.passages[channel];
        reserve(&mut self.out_s[out as usize], bytes / bytes_per_s, now)
    }

    /// It begins to leave, and takes its turn at the port of its receiver. When it has passed both.
    pub fn enter(&mut self, channel: usize, bytes: f64, now: f64) -> f64 {
        let Passage { into, bytes_per_s, .. } = self.passages[channel];
        let busy_s = bytes / bytes_per_s;
        reserve(&mut self.in_s[into as usize], busy_s, now) + busy_s
    }
}

/// Takes a port for so many seconds, from when it is free. When that is.
fn reserve(free_s: &mut f64, busy_s: f64, now: f64) -> f64 {
    let start_s = free_s.max(now);
    *free_s = start_s + busy_s;
    start_s
}
