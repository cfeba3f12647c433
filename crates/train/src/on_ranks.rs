//! Worlds for tests.

use std::thread;

use paceline_comm::Communicator;

/// Runs `rank` on each of the ranks of a new world; the results by rank.
pub(crate) fn on_ranks<R: Send>(world: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let communicators = Communicator::threads(world).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        let ranks = communicators.into_iter().map(|communicator| scope.spawn(move || rank(communicator)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
