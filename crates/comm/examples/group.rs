//! Neighbours exchange their borders: sends and receives of one group need no order.
use paceline_comm::{CallOptions, CommError, Communicator};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let (options, world) = (CallOptions::default(), comm.world_size());
    let (next, before) = ((comm.rank() + 1) % world, (comm.rank() + world - 1) % world);
    let border = vec![comm.rank() as f64; 500_000];
    let (mut from_before, mut from_next) = (border.clone(), border.clone());
    comm.group(|group| {
        group.send(&border, next, 0, &options)?;
        group.send(&border, before, 1, &options)?;
        group.receive(&mut from_before, before, 0, &options)?;
        group.receive(&mut from_next, next, 1, &options)
    })?;
    assert!(from_before.iter().all(|&value| value == before as f64));
    assert!(from_next.iter().all(|&value| value == next as f64));
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
