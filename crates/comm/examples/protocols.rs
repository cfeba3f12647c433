//! How messages travel, and how many threads add, call by call: the result does not depend on it.
use paceline_comm::{CallOptions, CommError, Communicator, Protocol, Reduction, ThreadsConfig, Transport};

/// Over TCP, with three connections between two ranks: the first is for small frames, and large ones take one of the
/// others, or both.
fn travel(comm: &Communicator) -> Result<(), CommError> {
    for &protocol in Protocol::ALL {
        for lanes in [Some(1), None] {
            let options = CallOptions { protocol, lanes, chunk_bytes: Some(64 << 10), ..CallOptions::default() };
            let mut data = vec![comm.rank() as i32 + 1; 100_000];
            comm.all_reduce(&mut data, Reduction::Product, &options)?;
            assert!(data.iter().all(|&product| product == 6), "{protocol}, {lanes:?}");
        }
    }
    Ok(())
}

/// In shared memory, where ranks add what lies in each other's memory, two threads of a rank can share a large sum.
fn add(comm: &Communicator) -> Result<(), CommError> {
    let sum = |reducing_threads| {
        let mut data = comm.alloc::<f32>(300_000)?;
        let value = |index: usize| index as f32 * 0.1 + comm.rank() as f32;
        data.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
        let options = CallOptions { reducing_threads, chunk_bytes: Some(1 << 20), ..CallOptions::default() };
        comm.all_reduce(&mut data, Reduction::Sum, &options)?;
        Ok::<_, CommError>(data)
    };
    assert!(sum(Some(2))?[..] == sum(None)?[..], "the same bits");
    Ok(())
}

fn on_all(world: Vec<Communicator>, rank: fn(&Communicator) -> Result<(), CommError>) -> Result<(), CommError> {
    let ranks: Vec<_> = world.into_iter().map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}

/// The ranks are threads here, linked as processes are.
pub fn main() -> Result<(), CommError> {
    let streams = ThreadsConfig { transport: Transport::Tcp, tcp_streams: 3, ..ThreadsConfig::default() };
    on_all(Communicator::threads_with(3, &streams)?, travel)?;
    on_all(Communicator::threads_over(Transport::Shm, 3)?, add)
}
