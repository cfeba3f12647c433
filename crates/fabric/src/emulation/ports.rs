//! When the ports of all hosts and ranks are free again, in memory that all ranks share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_plan::{Emulation, Fnv1a, Rank};
use rustix::mm::ProtFlags;

use crate::shm::mapping::{Mapping, check_sealed, create_sealed, page_bytes};

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine read alike.
pub(super) type Nanoseconds = u64;

/// When a port is free again: alone on its cache line.
#[repr(C, align(64))]
pub(super) struct Port(AtomicU64);

impl Port {
    /// Takes the port for `busy`, from when it is free, but not before `earliest`. Gives the beginning.
    pub(super) fn reserve(&self, earliest: Nanoseconds, busy: Nanoseconds) -> Nanoseconds {
        let mut free = self.0.load(Ordering::Relaxed);
        loop {
            let start = free.max(earliest);
            let end = start.saturating_add(busy);
            // No memory hangs on these numbers.
            match self.0.compare_exchange_weak(free, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return start,
                Err(found) => free = found,
            }
        }
    }
}

/// The ports of an emulated cluster: one in each direction for every host (its network interface), and one in each
/// direction for every rank (towards others of its host).
#[derive(Debug)]
pub struct Ports {
    file: OwnedFd,
    mapping: Mapping,
    hosts: usize,
    ranks: usize,
}

/// Where a message leaves or enters, by [`Ports::port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortNumber(usize);

impl Ports {
    /// New ones, all free, in a file that other ranks can open: see [`Ports::file`].
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn create(emulation: &Emulation) -> io::Result<Arc<Ports>> {
        let bytes = bytes_of(emulation);
        let ports = Ports::map(create_sealed("paceline-ports", bytes)?, bytes, emulation)?;
        ports.mapping.populate(0, bytes)?;
        ports.fingerprint().store(fingerprint(emulation), Ordering::Relaxed);
        Ok(Arc::new(ports))
    }

    /// Those of another rank.
    ///
    /// # Errors
    /// A sentence, if they belong to another emulation or cannot be mapped.
    pub fn open(file: OwnedFd, emulation: &Emulation) -> Result<Arc<Ports>, String> {
        let bytes = bytes_of(emulation);
        let differs = "rank 0 emulates another network";
        check_sealed(file.as_fd(), bytes).map_err(|_| differs.to_owned())?;
        let ports = Ports::map(file, bytes, emulation)
            .map_err(|error| format!("mapping the ports of the emulated network: {error}"))?;
        if ports.fingerprint().load(Ordering::Relaxed) != fingerprint(emulation) {
            return Err(differs.to_owned());
        }
        Ok(Arc::new(ports))
    }

    /// What other ranks [`Ports::open`].
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn map(file: OwnedFd, bytes: usize, emulation: &Emulation) -> io::Result<Ports> {
        let mapping = Mapping::of(&file, bytes, page_bytes(), ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Ports { file, mapping, hosts: emulation.hosts.count(), ranks: emulation.hosts.ranks() })
    }

    /// Where a message from one rank to another leaves, and where it enters.
    pub(super) fn between(&self, emulation: &Emulation, from: Rank, to: Rank) -> (PortNumber, PortNumber) {
        let hosts = &emulation.hosts;
        assert!(from < self.ranks && to < self.ranks && hosts.count() == self.hosts, "the ports of this emulation");
        let (from_host, to_host) = (hosts.host(from), hosts.host(to));
        if from_host == to_host {
            let ranks = 2 * self.hosts;
            return (PortNumber(ranks + 2 * from), PortNumber(ranks + 2 * to + 1));
        }
        (PortNumber(2 * from_host), PortNumber(2 * to_host + 1))
    }

    pub(super) fn port(&self, number: PortNumber) -> &Port {
        assert!(number.0 < 2 * (self.hosts + self.ranks), "a port of this emulation");
        // SAFETY: the mapping begins with one line for the fingerprint and has a line for each port after it
        // (`bytes_of`); it is aligned to a page, lives as long as `self`, and an atomic may have any value.
        unsafe { &*self.mapping.start().cast::<Port>().add(1 + number.0) }
    }

    fn fingerprint(&self) -> &AtomicU64 {
        // SAFETY: as in `port`, of the first line.
        unsafe { &(*self.mapping.start().cast::<Port>()).0 }
    }
}

/// Whole pages.
fn bytes_of(emulation: &Emulation) -> usize {
    let lines = 1 + 2 * (emulation.hosts.count() + emulation.hosts.ranks());
    (lines * size_of::<Port>()).next_multiple_of(page_bytes())
}

/// Differs, very probably, between emulations that differ.
fn fingerprint(emulation: &Emulation) -> u64 {
    Fnv1a::of(format!("{emulation:?}").as_bytes())
}

#[cfg(test)]
mod tests {
    use paceline_plan::{Hosts, NetworkModel};
    use proptest::prelude::*;

    use super::*;

    fn emulation(hosts: usize, ranks: usize) -> Emulation {
        Emulation { network: NetworkModel::TEN_GBE, hosts: Hosts::regular(hosts, ranks), dilation: 1.0 }
    }

    proptest! {
        /// Whatever is asked when: reservations follow each other without overlap in the order of asking, none begins
        /// before it may, and none later than it must.
        #[test]
        fn a_port_serves_one_at_a_time_first_come_first_served(
            asked in proptest::collection::vec((0u64..1000, 0u64..100), 1..60),
        ) {
            let port = Port(AtomicU64::new(0));
            let mut end_before = 0;
            for (earliest, busy) in asked {
                let start = port.reserve(earliest, busy);
                prop_assert_eq!(start, earliest.max(end_before));
                end_before = start + busy;
            }
        }
    }

    #[test]
    fn threads_that_reserve_at_once_get_times_that_do_not_overlap() {
        const EACH: u64 = 10_000;
        let ports = Ports::create(&emulation(2, 1)).expect("memory");
        let number = PortNumber(3);
        let mut starts: Vec<u64> = std::thread::scope(|scope| {
            let reserve = || scope.spawn(|| (0..EACH).map(|_| ports.port(number).reserve(5, 7)).collect::<Vec<_>>());
            let threads = [reserve(), reserve(), reserve()];
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        starts.sort_unstable();
        assert!((0..).zip(&starts).all(|(index, &start)| start == 5 + 7 * index));
        assert_eq!(starts.len() as u64, 3 * EACH);
    }

    #[test]
    fn both_sides_of_a_file_see_the_same_ports_and_other_emulations_are_refused() {
        let own = emulation(2, 2);
        let ports = Ports::create(&own).expect("memory");
        let file = || ports.file().try_clone_to_owned().expect("descriptors");
        let other = Ports::open(file(), &own).expect("the same emulation");
        let (out, into) = ports.between(&own, 1, 2);
        assert_eq!(ports.port(out).reserve(10, 5), 10);
        assert_eq!(other.port(out).reserve(0, 5), 15);
        assert_eq!(other.port(into).reserve(0, 5), 0);
        for differs in [
            emulation(4, 1),
            Emulation { dilation: 2.0, ..own.clone() },
            Emulation { network: NetworkModel::HUNDRED_GBE, ..own.clone() },
            emulation(500, 4),
        ] {
            let error = Ports::open(file(), &differs).unwrap_err();
            assert!(error.contains("another network"), "{error}");
        }
    }

    #[test]
    fn ranks_of_a_host_share_its_interface_and_have_ports_of_their_own_within() {
        let own = emulation(3, 2);
        let ports = Ports::create(&own).expect("memory");
        let between = |from, to| ports.between(&own, from, to);
        assert_eq!(between(0, 2).0, between(1, 4).0, "one interface out");
        assert_eq!(between(0, 2).1, between(5, 3).1, "one interface in");
        assert_ne!(between(0, 2).0, between(2, 0).1, "in and out differ");
        assert_ne!(between(0, 1).0, between(0, 2).0, "within a host is another way");
        let mut all: Vec<usize> = (0..6)
            .flat_map(|from| (0..6).filter(move |to| *to != from).map(move |to| (from, to)))
            .flat_map(|(from, to)| [between(from, to).0.0, between(from, to).1.0])
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..2 * (3 + 6)).collect::<Vec<_>>());
    }
}
