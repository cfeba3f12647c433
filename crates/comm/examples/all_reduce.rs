//! Four ranks add their numbers up. Here ranks are threads; under a launcher `Communicator::connect` joins processes.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let mut data = [comm.rank() as f32; 1000];
    comm.all_reduce(&mut data, Reduction::Average, &CallOptions::default())?;
    assert_eq!(data, [1.5; 1000]);
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks: Vec<_> =
        Communicator::threads(4)?.into_iter().map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
