//! Getting away from a processor that another rank waits on, too.
//!
//! Two ranks that wait for each other on one processor take turns: each gives it away whenever it waits, so none looks
//! starved, and the kernel may leave them there for as long as the world lives although another processor is idle. What
//! they do then takes the sum of their times, and a change of the running rank each way.
//!
//! A thread notices that by giving its processor away: if nobody wants it, that takes a fraction of a microsecond. It then
//! goes to the processor that is its own by its number among the ranks of this machine, once, and stays free to be moved
//! from there by the kernel. Ranks that were bound by somebody else are left where they are.

use std::cell::Cell;
use std::time::{Duration, Instant};

use paceline_collective::Topology;
use paceline_plan::Rank;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Giving a processor away that nobody wants takes less.
const UNWANTED: Duration = Duration::from_nanos(1_000);

/// So many times in a row somebody wanted the processor: it was no interruption.
const IN_A_ROW: u32 = 16;

/// A thread that has gone looks again after this long, and each time that it did not help after twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Whoever was left alone for so long after the pause has gained something by the move.
const SETTLED: Duration = Duration::from_secs(1);

/// Which of a machine's ranks this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// From 0.
    pub number: usize,
    /// Ranks of the world that share this machine's processors.
    pub ranks: usize,
}

impl Place {
    /// That of a rank on whose machine there are so many of the world.
    pub fn of(rank: Rank, ranks: usize, topology: &Topology) -> Place {
        let on_host = topology.members(topology.host(rank)).len();
        // Hosts may share a machine: then the ranks are counted as they come.
        let number = if on_host == ranks { topology.index_on_host(rank) } else { rank % ranks.max(1) };
        Place { number, ranks }
    }
}

/// What a thread has seen of its processor.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Times in a row that it was wanted by somebody else.
    wanted: u32,
    /// The pause after the last move, and its end.
    pause: Duration,
    until: Option<Instant>,
}

thread_local! {
    static SEEN: Cell<Seen> = const { Cell::new(Seen { wanted: 0, pause: Duration::ZERO, until: None }) };
}

/// Gives the processor away, and goes to one's own if somebody else keeps wanting this one.
pub(crate) fn give_way(place: Place) {
    let began = Instant::now();
    std::thread::yield_now();
    let now = Instant::now();
    let mut seen = SEEN.get();
    if now - began < UNWANTED {
        seen.wanted = 0;
    } else if seen.is_crowded(now) {
        go(place);
        seen.moved(now);
    }
    SEEN.set(seen);
}

impl Seen {
    /// Counts one more time that the processor was wanted. Is it time to leave?
    fn is_crowded(&mut self, now: Instant) -> bool {
        self.wanted = self.wanted.saturating_add(1);
        self.wanted >= IN_A_ROW && self.until.is_none_or(|until| now >= until)
    }

    /// Where the processor is wanted again soon after the pause, nothing was gained: the next pause is longer.
    fn moved(&mut self, now: Instant) {
        let in_vain = self.until.is_some_and(|until| now < until + SETTLED);
        self.pause = if in_vain { (2 * self.pause).min(PAUSE_MAX) } else { PAUSE_MIN };
        self.until = Some(now + self.pause);
        self.wanted = 0;
    }
}

/// Moves this thread to its own processors, unless it is there. What cannot be asked or done is left as it is. Has it moved?
fn go(place: Place) -> bool {
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect();
    let own = own(place, &processors);
    if own.is_empty() || own.contains(&sched_getcpu()) {
        return false;
    }
    let mut there = CpuSet::new();
    own.iter().for_each(|&processor| there.set(processor));
    // The kernel moves a thread at once that may not stay where it is; afterwards it may be anywhere again.
    sched_setaffinity(None, &there).is_ok() && sched_setaffinity(None, &allowed).is_ok()
}

/// A rank's share of the processors that it may use: several if there are more than ranks, one of several ranks if there
/// are fewer, neighbours on different ones. None if there is no choice.
fn own(place: Place, processors: &[usize]) -> &[usize] {
    let (number, ranks, all) = (place.number % place.ranks.max(1), place.ranks.max(1), processors.len());
    match all {
        0 | 1 => &[],
        _ if all < ranks => &processors[number % all..][..1],
        _ => &processors[number * all / ranks..(number + 1) * all / ranks],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_processors_out() {
        let of = |number, ranks, processors: &[usize]| own(Place { number, ranks }, processors).to_vec();
        assert_eq!([of(0, 2, &[3, 7]), of(1, 2, &[3, 7])], [vec![3], vec![7]]);
        assert_eq!([of(0, 2, &[0, 1, 2, 3]), of(1, 2, &[0, 1, 2, 3])], [vec![0, 1], vec![2, 3]]);
        assert_eq!([of(0, 2, &[0, 1, 2]), of(1, 2, &[0, 1, 2])], [vec![0], vec![1, 2]]);
        assert_eq!((0..4).map(|number| of(number, 4, &[5, 6])).collect::<Vec<_>>(), [[5], [6], [5], [6]]);
        assert!(of(1, 2, &[4]).is_empty() && of(0, 1, &[]).is_empty(), "bound to one: nowhere to go");
        assert_eq!(of(0, 1, &[0, 1]), [0, 1]);
    }

    #[test]
    fn what_does_not_help_is_tried_more_and_more_seldom() {
        let (mut seen, mut now) = (Seen::default(), Instant::now());
        let mut moves = Vec::new();
        for _ in 0..20_000 {
            now += Duration::from_millis(1);
            if seen.is_crowded(now) {
                moves.push(now);
                seen.moved(now);
            }
        }
        let pauses: Vec<Duration> = moves.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(moves.len() < 20, "{} moves", moves.len());
        assert!(pauses.windows(2).all(|pair| pair[1] >= pair[0]), "{pauses:?}");
        assert!(pauses.last() <= Some(&(PAUSE_MAX + Duration::from_millis(20))), "{pauses:?}");
    }

    #[test]
    fn a_thread_moves_only_if_it_is_elsewhere_and_stays_free() {
        let allowed = || {
            let set = sched_getaffinity(None).expect("it can be asked");
            (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect::<Vec<_>>()
        };
        let before = allowed();
        if before.len() < 2 {
            return;
        }
        let bind = |processors: &[usize]| {
            let mut set = CpuSet::new();
            processors.iter().for_each(|&processor| set.set(processor));
            sched_setaffinity(None, &set).expect("it is allowed");
        };
        // On the first processor, and free; the kernel may move it now and then, not ten times out of ten.
        let moved = (0..10).filter(|_| {
            bind(&before[..1]);
            bind(&before);
            go(Place { number: 1, ranks: 2 })
        });
        assert!(moved.count() > 0);
        assert_eq!(allowed(), before);
        bind(&before[..1]);
        assert!(!go(Place { number: 1, ranks: 2 }), "bound to one processor, it has no choice");
        bind(&before);
        assert!(!go(Place { number: 0, ranks: 1 }), "everything is its own");
    }
}
