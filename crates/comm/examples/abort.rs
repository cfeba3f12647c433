//! One rank gives up and says why; all others learn it from their pending calls.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    if comm.rank() == 1 {
        comm.abort("the data set is empty");
        return Ok(());
    }
    let error = comm.all_reduce(&mut [1f32; 8], Reduction::Sum, &CallOptions::default()).expect_err("nobody else came");
    assert!(error.to_string().contains("the data set is empty"), "{error}");
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
