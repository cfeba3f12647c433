//! An all-reduce runs while the rank computes; the operation owns its buffer meanwhile.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let mut gradient = comm.alloc::<f32>(100_000)?;
    gradient.fill(comm.rank() as f32);
    let pending = comm.start_all_reduce(gradient, Reduction::Sum, &CallOptions::default())?;
    let computed: f64 = (1..10_000).map(|number| 1.0 / f64::from(number)).sum();
    let gradient = pending.wait()?;
    assert!(computed > 9.0 && gradient.iter().all(|&sum| sum == 3.0));
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
