//! Equal cores for every worker, whatever their number: a worker that computes alone must not have more of them for its
//! communication than one among many, or methods would look worse than they are.

use paceline_fabric::environment::World;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::cell::Cell;

/// Confines this process, with all threads that it starts from now on, to the share of a worker of the cell: the next one
/// of its host for each that is there before it. Where there are more workers than shares, they take turns. A replay leaves
/// its cores to others by itself; a server has none of its own.
pub fn confine(cell: &Cell, place: Option<&World>) {
    let place = place.map_or((0, None), |place| (place.rank as usize, place.local_rank.map(|rank| rank as usize)));
    let (rank, local_rank) = (place.0, place.1.unwrap_or(place.0));
    if !cell.setting.is_replayed() && rank < cell.workers {
        confine_worker(cell.threads, local_rank);
    }
}

/// The same of a worker that computes with so many threads, the next one of its host for each that is there before it.
pub fn confine_worker(threads: usize, local_rank: usize) {
    // A system that lets nobody choose shares fairly enough by itself.
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut own = CpuSet::new();
    share(&allowed, threads, local_rank).for_each(|cpu| own.set(cpu));
    let _ = sched_setaffinity(None, &own);
}

/// The cores of a host's worker that computes with so many threads.
fn share(allowed: &[usize], threads: usize, local_rank: usize) -> impl Iterator<Item = usize> {
    let first = local_rank * threads;
    (first..first + threads).filter_map(|place| allowed.get(place % allowed.len().max(1)).copied())
}

#[cfg(test)]
mod tests {
    use paceline_fabric::environment::Launcher;

    use super::super::cell::samples::{cell, replayed, setting};
    use super::*;

    /// As worker `rank` of 4, which counts as `local_rank` on its host.
    fn place(rank: u32, local_rank: Option<u32>) -> World {
        World {
            launcher: Launcher::Paceline,
            rank,
            world_size: 4,
            local_rank,
            local_size: Some(2),
            meeting_point: None,
            listener: None,
            job: String::new(),
            terms: String::new(),
        }
    }

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).expect("Linux says it");
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    /// What a thread may run on after it was confined; only itself is.
    fn confined(cell: &Cell, place: &World) -> Vec<usize> {
        let confined = || {
            confine(cell, Some(place));
            allowed()
        };
        std::thread::scope(|scope| scope.spawn(confined).join().expect("no panic"))
    }

    /// Ranks that are dealt out over hosts: 0 and 2 on one, 1 and 3 on the other.
    #[test]
    fn a_worker_runs_on_its_hosts_next_cores() {
        let (here, all) = (setting("mlp"), allowed());
        let real = cell(&here, "bsp-a2a", 3);
        let core = |local_rank: usize| vec![all[local_rank % all.len()]];
        assert_eq!(confined(&real, &place(0, Some(0))), core(0));
        assert_eq!(confined(&real, &place(2, Some(1))), core(1));
        // Nobody says who else is here.
        assert_eq!(confined(&real, &place(1, None)), core(1));
        let servers_and_replays = [(real, 3), (cell(&replayed("resnet50", "10GbE", 253.1), "bsp-a2a", 4), 0)];
        for (cell, rank) in servers_and_replays {
            assert_eq!(confined(&cell, &place(rank, Some(0))), all);
        }
    }

    #[test]
    fn workers_have_cores_of_their_own_as_long_as_there_are_any() {
        let of = |threads, rank| share(&[0, 2, 3, 7], threads, rank).collect::<Vec<_>>();
        assert_eq!([of(1, 0), of(1, 3), of(1, 4)], [vec![0], vec![7], vec![0]]);
        assert_eq!([of(2, 0), of(2, 1), of(2, 2)], [vec![0, 2], vec![3, 7], vec![0, 2]]);
        assert!(share(&[], 2, 0).next().is_none());
    }
}
