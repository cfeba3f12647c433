//! What processes of this machine have had of its processors.

use std::time::Duration;

use crate::Communicator;

/// Clocks of processes: see [`Communicator::processor_time`].
#[derive(Clone, Debug, Default)]
pub struct ProcessorTime {
    clocks: Vec<libc::clockid_t>,
}

impl Communicator {
    /// Clocks of this rank's process, and of processes of this machine in which only ranks run that are not in this communicator, such
    /// as servers: these are dealt out to its ranks in turn, so that what all of them say together counts each once. Several ranks in
    /// one process all count that.
    pub fn processor_time(&self) -> ProcessorTime {
        let members: Vec<usize> = (0..self.world_size()).map(|rank| self.rank_in_world(rank)).collect();
        let counted = counted(&self.world.processes, &members, self.rank());
        ProcessorTime { clocks: counted.into_iter().filter_map(clock_of).collect() }
    }
}

impl ProcessorTime {
    /// What all threads of these processes have had of the processors so far. A process that has ended counts no more. A system call
    /// for each.
    pub fn now(&self) -> Duration {
        self.clocks.iter().filter_map(|&clock| read(clock)).sum()
    }
}

/// The processes that a rank of these members counts, by the process of each rank of the world: its own last.
fn counted(processes: &[Option<u32>], members: &[usize], rank: usize) -> Vec<u32> {
    let of_members: Vec<Option<u32>> = members.iter().map(|&member| processes[member]).collect();
    let mut others: Vec<u32> =
        processes.iter().filter(|process| !of_members.contains(process)).flatten().copied().collect();
    others.sort_unstable();
    others.dedup();
    others.into_iter().skip(rank).step_by(members.len()).chain(of_members[rank]).collect()
}

/// None: there is no such process.
fn clock_of(process: u32) -> Option<libc::clockid_t> {
    let mut clock = 0;
    let process = libc::pid_t::try_from(process).ok()?;
    // SAFETY: the number of a clock is written to where it lies.
    let error = unsafe { libc::clock_getcpuclockid(process, &mut clock) };
    (error == 0).then_some(clock)
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to where it lies.
    let done = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    done.then(|| Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_computes_is_seen_and_one_that_has_ended_is_not() {
        let mut busy =
            Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("a shell");
        let clock = clock_of(busy.id()).expect("it runs");
        let times = ProcessorTime { clocks: vec![clock] };
        let since = Instant::now();
        while times.now() < Duration::from_millis(5) {
            assert!(since.elapsed() < Duration::from_secs(20), "it computes, and is not seen to");
            std::thread::sleep(Duration::from_millis(1));
        }
        busy.kill().and_then(|()| busy.wait()).expect("it is ours");
        assert_eq!((times.now(), clock_of(u32::MAX)), (Duration::ZERO, None));
    }

    #[test]
    fn servers_beside_are_dealt_out_and_those_in_a_worker_are_counted_with_it() {
        // Workers 0 and 1; servers in the process of worker 1, elsewhere, two in one process, and two more.
        let processes = [Some(11), Some(12), Some(12), None, Some(15), Some(15), Some(14), Some(16)];
        assert_eq!([0, 1].map(|rank| counted(&processes, &[0, 1], rank)), [vec![14, 16, 11], vec![15, 12]]);
        assert_eq!(counted(&processes[..2], &[0, 1], 1), [12]);
    }

    #[test]
    fn ranks_in_one_process_all_count_it() {
        let ranks = Communicator::threads(2).expect("threads");
        let own = ranks[0].processor_time();
        assert_eq!(own.clocks.len(), 1);
        assert_eq!(ranks[1].processor_time().clocks, own.clocks);
        let before = own.now();
        let mut sum = 0u64;
        while own.now() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
