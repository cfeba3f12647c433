//! How messages travel, call by call: the result does not depend on it.
use paceline_comm::{CallOptions, CommError, Communicator, Protocol, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    for &protocol in Protocol::ALL {
        let options = CallOptions { protocol, lanes: Some(1), chunk_bytes: Some(64 << 10), ..CallOptions::default() };
        let mut data = vec![comm.rank() as i32 + 1; 100_000];
        comm.all_reduce(&mut data, Reduction::Product, &options)?;
        assert!(data.iter().all(|&product| product == 6), "{protocol}");
    }
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
