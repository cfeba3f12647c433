//! Equal cores for every worker, whatever their number: a worker that computes alone must not have more of them for its
//! communication than one among many, or methods would look worse than they are.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::cell::Cell;

/// Confines this process, with all threads that it starts from now on, to the share of worker `rank` of the cell. Where
/// there are more workers than shares, they take turns. A replay leaves its cores to others by itself; a server has none of
/// its own.
pub fn confine(cell: &Cell, rank: usize) {
    if cell.setting.is_replayed() || rank >= cell.workers {
        return;
    }
    // A system that lets nobody choose shares fairly enough by itself.
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut own = CpuSet::new();
    share(&allowed, cell.threads, rank).for_each(|cpu| own.set(cpu));
    let _ = sched_setaffinity(None, &own);
}

/// The cores of a worker that computes with so many threads.
fn share(allowed: &[usize], threads: usize, rank: usize) -> impl Iterator<Item = usize> {
    let first = rank * threads;
    (first..first + threads).filter_map(|place| allowed.get(place % allowed.len().max(1)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_cores_of_their_own_as_long_as_there_are_any() {
        let of = |threads, rank| share(&[0, 2, 3, 7], threads, rank).collect::<Vec<_>>();
        assert_eq!([of(1, 0), of(1, 3), of(1, 4)], [vec![0], vec![7], vec![0]]);
        assert_eq!([of(2, 0), of(2, 1), of(2, 2)], [vec![0, 2], vec![3, 7], vec![0, 2]]);
        assert!(share(&[], 2, 0).next().is_none());
    }
}
