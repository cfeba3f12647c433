//! Worlds on emulated networks: all ranks are on this machine, and their links pretend to be a cluster's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use paceline_collective::Topology;
use paceline_fabric::Link;
use paceline_fabric::emulation::{Ports, ShapedLink};
use paceline_plan::Emulation;

use crate::ConnectError;
use crate::connect::host_name;

/// Slows the links of a rank down.
pub(crate) fn shape(links: &mut [Option<Box<dyn Link>>], rank: usize, emulation: &Emulation, ports: &Arc<Ports>) {
    for (peer, link) in links.iter_mut().enumerate() {
        let inner = link.take();
        *link = inner.map(|inner| -> Box<dyn Link> {
            Box::new(ShapedLink::new(inner, Arc::clone(ports), emulation, rank, peer))
        });
    }
}

/// Who shares an emulated host.
pub(crate) fn topology(emulation: &Emulation) -> Topology {
    Topology::of_hosts(emulation.hosts.by_rank())
}

/// The names of the emulated hosts, by rank.
pub(crate) fn hosts(emulation: &Emulation) -> Vec<String> {
    let here = host_name();
    emulation.hosts.by_rank().iter().map(|host| format!("{here}-{host}")).collect()
}

/// The ports that this rank found: those that it made as rank 0, or those that rank 0 attached.
///
/// # Errors
/// If rank 0 has made none, or for another network.
pub(crate) fn ports(
    own: Option<Arc<Ports>>,
    attachment: Option<OwnedFd>,
    emulation: &Emulation,
) -> Result<Arc<Ports>, ConnectError> {
    let differs = |what| ConnectError::Emulations { what };
    match (own, attachment) {
        (Some(own), _) => Ok(own),
        (None, Some(file)) => Ports::open(file, emulation).map_err(differs),
        (None, None) => Err(differs("rank 0 gave no ports of an emulated network".into())),
    }
}
