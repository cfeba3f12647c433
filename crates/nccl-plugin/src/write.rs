//! Policies as TOML, for who has learned one.

use std::fmt::{self, Display, Write};
use std::ops::Range;

use crate::file::{BINS, CallRule, ChunkRule, Rules, SCHEMA};
use crate::policy::MAX_CHANNELS;

impl Rules {
    /// The text that [`Rules::from_text`] reads as the same rules, but for the fingerprint, which is that of a text.
    /// `nccl_channels` are those that NCCL has by itself; no rule may have more.
    pub fn to_toml(&self, nccl_channels: u8) -> String {
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = self.write(nccl_channels.clamp(1, MAX_CHANNELS), &mut text);
        text
    }

    fn write(&self, nccl_channels: u8, out: &mut String) -> fmt::Result {
        writeln!(out, "# A policy for NCCL; docs/nccl.md says what it means.")?;
        writeln!(out, "schema = {SCHEMA}\nversion = {}\nnccl_channels = {nccl_channels}", self.version)?;
        writeln!(out, "ll128 = {}", self.ll128_proved)?;
        for CallRule { function, bins, world, pipelined, way, channels } in &self.calls {
            writeln!(out, "\n[[call]]\nfunction = \"{function}\"")?;
            write_bins(bins, out)?;
            if let Some((ranks, hosts)) = world {
                writeln!(out, "ranks = {ranks}\nhosts = {hosts}")?;
            }
            if let Some(pipelined) = pipelined {
                writeln!(out, "pipelined = {pipelined}")?;
            }
            if let Some((algorithm, protocol)) = way {
                write_way(algorithm, protocol, out)?;
            }
            if *channels > 0 {
                writeln!(out, "channels = {channels}")?;
            }
            if *channels > 0 && way.is_some_and(|(algorithm, _)| algorithm.has_own_channels()) {
                // Not those of the others; as many as are wanted, at least.
                writeln!(out, "nccl_channels = {channels}")?;
            }
        }
        for ChunkRule { function, algorithm, protocol, bins, divide_by } in &self.chunks {
            writeln!(out, "\n[[chunk]]\nfunction = \"{function}\"")?;
            write_bins(bins, out)?;
            write_way(algorithm, protocol, out)?;
            writeln!(out, "divide_by = {divide_by}")?;
        }
        Ok(())
    }
}

fn write_way(algorithm: &dyn Display, protocol: &dyn Display, out: &mut String) -> fmt::Result {
    writeln!(out, "algorithm = \"{algorithm}\"\nprotocol = \"{protocol}\"")
}

/// Bin b begins at 2^(b − 1) bytes.
fn write_bins(bins: &Range<u32>, out: &mut String) -> fmt::Result {
    let begin = |bin: u32| 1_u128 << bin.saturating_sub(1);
    if bins.start > 0 {
        writeln!(out, "min_bytes = {}", begin(bins.start))?;
    }
    if bins.end < BINS { writeln!(out, "below_bytes = {}", begin(bins.end)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use paceline_tune::nccl::{Algorithm, Function, Protocol};

    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let ring = CallRule {
            function: Function::AllReduce,
            bins: 0..17,
            world: Some((16, 2)),
            pipelined: Some(true),
            way: Some((Algorithm::Ring, Protocol::Ll128)),
            channels: 4,
        };
        let broadcast =
            CallRule { function: Function::Broadcast, world: None, pipelined: None, way: None, ..ring.clone() };
        let rest = CallRule { bins: 17..BINS, channels: 0, ..ring.clone() };
        let nvls = CallRule {
            function: Function::AllGather,
            way: Some((Algorithm::Nvls, Protocol::Simple)),
            channels: 20,
            ..ring.clone()
        };
        let chunk = ChunkRule {
            function: Function::ReduceScatter,
            algorithm: Algorithm::Pat,
            protocol: Protocol::Simple,
            bins: 21..24,
            divide_by: 8,
        };
        let rules = Rules {
            version: 9,
            ll128_proved: true,
            calls: vec![ring, broadcast, rest, nvls],
            chunks: vec![chunk],
            fingerprint: 0,
        };
        let text = rules.to_toml(16);
        let read = Rules::from_text(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(Rules { fingerprint: 0, ..read }, rules, "{text}");
    }
}
