//! What each call did, when, and how: remembered in a ring of bounded length.
use paceline_comm::{CallOptions, CommError, Communicator, Origin, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    comm.record_calls(100);
    for layer in 0..10 {
        let options = CallOptions { tag: layer, origin: Origin::Layer, ..CallOptions::default() };
        comm.all_reduce(&mut vec![1f32; 1000 << layer], Reduction::Sum, &options)?;
    }
    let records = comm.take_records();
    assert_eq!((records.calls.len(), records.dropped), (10, 0));
    for (layer, call) in (0..).zip(&records.calls) {
        assert!(call.tag == layer && call.bytes == 4000 << layer && call.end > call.start && !call.failed);
    }
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(2)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
