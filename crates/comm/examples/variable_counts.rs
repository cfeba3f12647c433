//! Every rank contributes as much as it has, which may be nothing.
use paceline_comm::{CallOptions, CommError, Communicator};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    // Rank r has r numbers, and everybody knows that.
    let counts: Vec<usize> = (0..comm.world_size()).collect();
    let mine = vec![comm.rank() as i32; comm.rank()];
    let mut all = vec![0; counts.iter().sum()];
    comm.all_gather_variable(&mine, &mut all, &counts, &CallOptions::default())?;
    assert_eq!(all, [1, 2, 2, 3, 3, 3]);
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(4)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
