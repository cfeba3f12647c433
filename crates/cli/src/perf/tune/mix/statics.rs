//! Configurations that are the same for all calls, as environment variables set them for a job.

use std::fmt;
use std::ops::RangeInclusive;

use paceline_collective::registry::{find, of_kind};
use paceline_comm::{CallOptions, Protocol, Topology};
use paceline_plan::CollectiveKind;
use paceline_tune::environment::{Links, OwnModel};
use paceline_tune::main_effects::Traits;

/// Chunks that are tried besides the default: those of a tuner.
const CHUNKS: RangeInclusive<u8> = OwnModel::CHUNKS_LOG2;

/// The collectives of a mix among all ranks, whose algorithms are named; those first of which there are most.
const COLLECTIVES: [CollectiveKind; 3] =
    [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];

/// One of them. What is none is left to the library.
#[derive(Clone, Debug, PartialEq)]
pub struct Static {
    /// What it has in common with others.
    pub traits: Traits,
    algorithm: Option<&'static str>,
    protocol: Protocol,
    lanes: Option<u16>,
    threads: Option<u16>,
    chunk_bytes: Option<usize>,
}

/// All of them in a world of these ranks; the first leaves everything to the library.
pub fn statics(ranks: &Topology, links: Links) -> Vec<Static> {
    let serves = |it: &&'static dyn paceline_collective::Algorithm| {
        it.supports(ranks.world()) && !it.for_hosts() && (!it.for_network() || it.follows(ranks))
    };
    let mut algorithms: Vec<Option<&'static str>> = vec![None];
    for name in COLLECTIVES.into_iter().flat_map(of_kind).filter(serves).map(|it| Some(it.name())) {
        if !algorithms.contains(&name) {
            algorithms.push(name);
        }
    }
    let lanes: &[Option<u16>] = match links.lanes_max() {
        0 | 1 => &[None],
        2 => &[None, Some(1)],
        _ => &[None, Some(1), Some(2)],
    };
    let threads: &[Option<u16>] = if links.has_memory() { &[None, Some(2)] } else { &[None] };
    let chunks = std::iter::once(None).chain(CHUNKS.map(|log2| Some(1 << log2)));
    let mut all = Vec::new();
    // What touches one thing comes before what touches several, so that a search that runs out of time has seen it.
    for chunk_bytes in chunks {
        for (lanes, threads) in lanes.iter().flat_map(|lanes| threads.iter().map(move |threads| (*lanes, *threads))) {
            for (place, &algorithm) in algorithms.iter().enumerate() {
                for (number, protocol) in PROTOCOLS.into_iter().enumerate() {
                    let (lanes_of, chunk) = (lanes.unwrap_or(0) as u8, chunk_bytes.map_or(0, usize::ilog2));
                    let traits = [place as u8, number as u8, lanes_of, threads.is_some().into(), chunk as u8];
                    all.push(Static { traits, algorithm, protocol, lanes, threads, chunk_bytes });
                }
            }
        }
    }
    all
}

const PROTOCOLS: [Protocol; 4] = [Protocol::Auto, Protocol::Rendezvous, Protocol::Eager, Protocol::Inline];

impl Static {
    /// Of a call among so many ranks. A collective that has no algorithm of the name, or not for so many, is left to the library
    /// as far as that goes.
    pub fn options(&self, collective: CollectiveKind, ranks: usize) -> CallOptions {
        let known = |name: &&str| find(collective, name).is_ok_and(|algorithm| algorithm.supports(ranks));
        CallOptions {
            algorithm: self.algorithm.filter(known).map(str::to_owned),
            protocol: self.protocol,
            lanes: self.lanes,
            reducing_threads: self.threads,
            chunk_bytes: self.chunk_bytes,
            ..CallOptions::default()
        }
    }
}

impl fmt::Display for Static {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "algorithm {}, protocol {}", self.algorithm.unwrap_or("auto"), self.protocol)?;
        self.lanes.map_or(Ok(()), |lanes| write!(f, ", {lanes} lanes"))?;
        self.threads.map_or(Ok(()), |threads| write!(f, ", {threads} threads"))?;
        self.chunk_bytes.map_or(Ok(()), |bytes| write!(f, ", chunks of {} KiB", bytes >> 10))
    }
}

#[cfg(test)]
mod tests {
    use paceline_comm::Communicator;
    use paceline_train::links_of;

    use super::*;

    #[test]
    fn the_first_leaves_everything_and_all_differ() {
        let communicator = Communicator::solo().expect("a world of one");
        let all = statics(&Topology::flat(4), links_of(&communicator));
        assert_eq!(all[0].options(CollectiveKind::AllReduce, 4), CallOptions::default());
        assert!(all.len() > 64, "{}", all.len());
        let texts: std::collections::BTreeSet<String> = all.iter().map(Static::to_string).collect();
        assert_eq!(texts.len(), all.len());
        let ring = all.iter().find(|it| it.algorithm == Some("ring")).expect("a ring");
        assert_eq!(ring.options(CollectiveKind::AllGather, 4).algorithm.as_deref(), Some("ring"));
        assert_eq!(ring.options(CollectiveKind::SendReceive, 2).algorithm, None);
        // Of every collective, though others have no such algorithm: an all-gather's, and a reduce-scatter's.
        for name in ["bruck", "recursive-halving"] {
            assert!(all.iter().any(|it| it.algorithm == Some(name)), "{name}");
        }
        // What a tuner may choose in a torus, whoever sets something for all calls may set, too.
        let has_torus = |ranks: &Topology| {
            statics(ranks, links_of(&communicator)).iter().any(|it| it.algorithm == Some("2d-torus"))
        };
        let hosts = Topology::regular(4, 1);
        assert!(has_torus(&hosts.on_torus(2, 2)) && !has_torus(&hosts));
    }
}
