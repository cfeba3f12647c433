//! Which processors a host has for its own.

use rustix::thread::{CpuSet, sched_getaffinity};

/// The share of a host among so many: as many processors as another one's, next to each other, of which some may be left over; one that it
/// shares with its neighbours if there are more hosts than processors. Empty: nobody knows what there is.
///
/// A host that had all processors of the machine would count on them: its ranks spin where they should leave the processor to those of another
/// host, and calls of eight ranks on four hosts and two processors take four times as long. And where the kernel happens to put the
/// ranks of several hosts, it leaves them for as long as a job lives: twice as fast today as tomorrow.
pub(super) fn share(host: usize, hosts: usize, all: &[usize]) -> &[usize] {
    let each = all.len() / hosts.max(1);
    let (from, each) = if each > 0 { (host * each, each) } else { (host * all.len() / hosts.max(1), 1) };
    all.get(from..from + each).unwrap_or_default()
}

/// Those that we may use.
pub(super) fn ours() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

/// As `taskset` reads them.
pub(super) fn list(processors: &[usize]) -> String {
    processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_as_many_and_none_of_anothers() {
        let all: Vec<usize> = (8..16).collect();
        let shares: Vec<&[usize]> = (0..4).map(|host| share(host, 4, &all)).collect();
        assert_eq!(shares, [[8, 9], [10, 11], [12, 13], [14, 15]]);
        let uneven: Vec<usize> = (0..3).map(|host| share(host, 3, &all).len()).collect();
        assert_eq!(uneven, [2, 2, 2]);
        assert_eq!(list(share(1, 4, &all)), "10,11");
    }

    #[test]
    fn hosts_that_outnumber_the_processors_share_them_with_their_neighbours() {
        let shares: Vec<&[usize]> = (0..5).map(|host| share(host, 5, &[0, 1])).collect();
        assert_eq!(shares, [[0], [0], [0], [1], [1]]);
        assert!(share(0, 1, &[]).is_empty());
        assert!(!ours().is_empty());
    }
}
