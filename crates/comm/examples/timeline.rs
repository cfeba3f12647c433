//! The timeline of a call: every frame, every piece of local work, and when nothing moved.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction, Traced};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    comm.start_trace(10_000);
    // With this barrier, everything of the call that follows is traced on all ranks.
    comm.barrier(&CallOptions::default())?;
    comm.all_reduce(&mut vec![1f32; 1 << 20], Reduction::Sum, &CallOptions::algorithm("ring"))?;
    let trace = comm.end_trace();
    assert_eq!(trace.dropped, 0);
    let frames = trace.events.iter().filter_map(|event| match event.what {
        Traced::Sent(frame) | Traced::Received(frame) => Some(u64::from(frame.bytes)),
        _ => None,
    });
    // A ring of two ranks sends and receives half of the 4 MiB twice.
    assert_eq!(frames.sum::<u64>(), 2 * 2 * (2 << 20));
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(2)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
