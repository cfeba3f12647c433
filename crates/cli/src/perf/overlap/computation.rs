//! A computation on the caller's thread, alone and beside an all-reduce in the background.
//!
//! It is done in slices so short that many lie within a background call: whatever the call's time turns out to be, the
//! slices within it count, and the one in which it ended does not. A round is slices alone for about as long as a
//! background call takes, then slices beside one; so both see the same minute of the machine. Of each round the *mean*
//! slice counts: a median would not see a thread that loses its processor in every tenth slice.

use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Reduction};

use super::{Bench, Overlap, median};
use crate::slices::{SLICE_SECONDS, Slices, passes_of_a_slice};

/// Slices alone that are made even if a background call is shorter.
const SLICES_MIN: usize = 10;
/// Calls in the background before the first round: the first makes its memory and finds the rate of its connections.
const WARM_UP: usize = 2;

impl Bench<'_> {
    pub(super) fn compute(&mut self) -> Result<Overlap, CommError> {
        let (communicator, options) = (self.communicator, CallOptions::default());
        let mut background = 0.0;
        for _ in 0..WARM_UP {
            communicator.barrier(&options)?;
            let start = Instant::now();
            let pending = self.start()?;
            self.finish(pending)?;
            background = start.elapsed().as_secs_f64();
        }
        let passes = passes_of_a_slice();
        let alone_slices = ((background / SLICE_SECONDS) as usize).max(SLICES_MIN);
        let mut columns: [Vec<f64>; 4] = Default::default();
        let (mut slices, mut too_short) = (f64::INFINITY, 0);
        for _ in 0..self.rounds {
            communicator.barrier(&options)?;
            let alone = Slices::compute(passes, |done| done == alone_slices);
            communicator.barrier(&options)?;
            let pending = self.start()?;
            let mut beside = Slices::compute(passes, |_| pending.is_done());
            beside.drop_last();
            self.finish(pending)?;
            let ratios = [beside.wall() / alone.wall(), beside.processor() / alone.processor()];
            let too_few = f64::from(u8::from(beside.count() == 0));
            // The fewest slices, as a maximum.
            let mut slowest = [alone.wall(), beside.wall(), ratios[0], ratios[1], too_few, -(beside.count() as f64)];
            communicator.all_reduce(&mut slowest, Reduction::Max, &options)?;
            if slowest[4] > 0.0 {
                too_short += 1;
                continue;
            }
            columns.iter_mut().zip(slowest).for_each(|(column, value)| column.push(value));
            slices = slices.min(-slowest[5]);
        }
        let rounds = columns[0].len();
        let [alone, beside, ratio, processor_ratio] = columns.map(median);
        Ok(Overlap {
            rounds,
            alone_p50_us: alone * 1e6,
            beside_p50_us: beside * 1e6,
            ratio,
            processor_ratio: Some(processor_ratio),
            slices: Some(if rounds == 0 { 0 } else { slices as usize }),
            too_short,
            ..self.outcome("compute")?
        })
    }
}
