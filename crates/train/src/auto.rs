//! `strategy=auto`: measures, plans, runs, and looks whether it came true.
//!
//! 1. *Begin.* What a strategy leaves open (`arch=auto`, `schedule=auto`) cannot be chosen before anything is known: the first
//!    iterations run as wait-free backpropagation, all-to-all unless the arch is fixed. Lossless like everything that follows;
//!    lossy methods are chosen only where the strategy itself names them.
//! 2. *Measure.* When iterations get no faster any more ([`settling`]), of the last of them it is noted when each gradient was final and
//!    how long forward and the optimiser took ([`measured_profile`](crate::measured_profile)); then operations are timed while
//!    nothing is computed: alone, several at once, and some that overtake others; through the same calls as gradients, all-to-all
//!    and, where shards have been met, over all of these ([`cluster`]). Where a pass of forward and backward is short, each is timed
//!    behind one, as it comes in an iteration; such passes change neither parameters nor buffers.
//! 3. *Plan.* Rank 0 searches (`paceline_predict::search`), all-to-all and some or all of the shards that were met, and
//!    sends what it has found to the others, who compare its fingerprint, as with every plan ([`choose`]).
//! 4. *Run.* The plan is carried out from the next iteration on; so the executed plans are in the file of `--dump-plan`, and
//!    `--plan` repeats them bit by bit without measuring anything.
//! 5. *Watch.* The median of each few iterations, of the slowest rank, is compared with the prediction ([`watch`]). Where they
//!    part by more than 15 % twice running, or a plan that ran before was faster, 2 and 3 are done again. What every plan
//!    took that has run is remembered, that of step 1 included ([`experience`]): one of them is taken again, or a new one,
//!    if it is expected to be faster by more than 3 % than the one that runs. A plan is expected to take what it took, as far as
//!    its prediction is still the same; a new one what is predicted, times what the prediction of the running one is off
//!    by. Each time it takes twice as long until the next attempt, until the expectation has held for long.
//!
//! What was chosen, why, and whether it came true is a [`Decision`](crate::Decision), told to the observer and kept in the
//! report. A measurement of iterations (`paceline bench`) chooses before those that count, and does 2 and 3 again
//! where the median of its first ones is not what was expected; if another plan runs then, those do not count.

mod choose;
mod cluster;
mod decision;
mod experience;
mod history;
mod settling;
mod step;
mod watch;

pub(crate) use choose::{Choosing, Chosen, Predicted};
pub use cluster::{calibrate, interfere};
pub use decision::Decision;
pub(crate) use decision::Decisions;
pub(crate) use experience::{Course, Experience};
pub(crate) use history::History;
pub(crate) use settling::Settling;
pub(crate) use step::Step;
pub(crate) use watch::{Judgement, WINDOW, Watch, holds};
