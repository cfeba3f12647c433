//! A small urgent operation overtakes a large one that started before it.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let bulk = CallOptions { priority: 9, ..CallOptions::default() };
    let urgent = CallOptions { priority: 0, ..CallOptions::default() };
    let large = comm.start_all_reduce(comm.alloc::<f32>(1 << 22)?, Reduction::Sum, &bulk)?;
    let mut small = [1f32; 16];
    comm.all_reduce(&mut small, Reduction::Sum, &urgent)?;
    assert_eq!(small, [2.0; 16]);
    large.wait()?;
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(2)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
