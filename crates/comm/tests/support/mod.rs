//! Worlds for tests.

use paceline_comm::Communicator;

/// Runs `act` on every rank of a world of threads; a panic of one is the panic of the test.
pub fn on_all_ranks<R: Send + 'static>(
    world: usize,
    act: impl Fn(Communicator) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    let ranks = Communicator::threads(world).expect("a world of threads").into_iter();
    let threads: Vec<_> = ranks
        .map(|comm| {
            let act = act.clone();
            std::thread::spawn(move || act(comm))
        })
        .collect();
    let join =
        |thread: std::thread::JoinHandle<R>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    threads.into_iter().map(join).collect()
}
