//! A tuner and profiler plug-in for NCCL, in one library: it says which algorithm, protocol, channels and chunk a call takes,
//! by a policy that was learned elsewhere. docs/nccl.md says how to load it.
//!
//! NCCL asks on every rank on its own, and compares nothing: two ranks that answer differently hang. So a decision is a
//! function of the policy and of what all ranks know (function, bytes, ranks, hosts, whether calls are pipelined, and NCCL's
//! table of costs for the call, by which NCCL itself chooses without a tuner), never of a clock, of what this rank has
//! measured, or of how often it was asked; and a policy changes only where all ranks do so together
//! ([`paceline_nccl_policy_activate`](c_api::paceline_nccl_policy_activate)).
//!
//! Whatever happens, NCCL is told that all went well, since anything else fails the collective; where there is nothing to
//! say, nothing is written, and NCCL's own choice stands.
//!
//! - `tuner`, `profiler`: the interfaces, version by version; [`abi`]: their structures.
//! - `decide`: what may be written where. Safe code. `costs`: what NCCL's own tables say, for whoever learns.
//! - [`policy`], [`file`]: which choice for which call; TOML, and (`csv`) tables.
//! - `state`: what lives as long as the library; `publish`: how a policy is replaced under those who read it. [`c_api`]: for the program that trains.
#![deny(missing_docs)]

#[cfg(panic = "abort")]
compile_error!("a panic would end the job that NCCL runs in: build with panic = \"unwind\", so that it is caught");

pub mod abi;
pub mod c_api;
mod costs;
mod csv;
mod decide;
pub mod file;
mod log;
pub mod policy;
mod profiler;
mod publish;
mod release;
pub mod samples;
mod state;
mod stay;
mod sync;
mod tuner;

pub use profiler::{ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6};
pub use tuner::{
    ncclTunerPlugin_v1, ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v4, ncclTunerPlugin_v5,
    ncclTunerPlugin_v6, ncclTunerPlugin_v7,
};

/// What NCCL's log calls this plug-in.
pub(crate) const NAME: &std::ffi::CStr = c"Paceline";

/// Runs what an entry does. A panic must not reach NCCL, which would take the whole job down with it.
pub(crate) fn guarded(work: impl FnOnce()) -> abi::NcclResult {
    // What was under way is given up; nothing that is shared is left half done (see `state`).
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        #[cfg(test)]
        tests::panic_if_asked();
        work();
    }));
    abi::SUCCESS
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{CStr, c_char};
    use std::ptr::{null, null_mut};

    use super::*;

    thread_local! {
        static PANICS: Cell<bool> = const { Cell::new(false) };
    }

    /// In what an entry does: once, where a test has asked for it.
    pub(super) fn panic_if_asked() {
        assert!(!PANICS.take(), "this one is meant to be");
    }

    /// What an entry answers whose work panics.
    fn panicking<T>(entry: impl FnOnce() -> T) -> T {
        PANICS.set(true);
        let answer = entry();
        assert!(!PANICS.take(), "it does nothing that is guarded");
        answer
    }

    #[test]
    fn a_panic_ends_at_the_entry() {
        assert_eq!(guarded(|| panic!("this one is meant to be")), abi::SUCCESS);
    }

    /// (A panic that left one of them would end the process: nothing unwinds out of what C calls.)
    #[test]
    fn nccl_is_told_of_success_whatever_panics() {
        // SAFETY: all pointers are null, which every entry allows.
        let answers = unsafe {
            [
                panicking(|| (ncclTunerPlugin_v1.init)(8, 1, None)),
                panicking(|| (ncclTunerPlugin_v1.get_coll_info)(4, 64, 0, 0, 1, null_mut(), null_mut(), null_mut())),
                panicking(|| (ncclTunerPlugin_v2.init)(8, 1, None, null_mut())),
                panicking(|| {
                    let ask = ncclTunerPlugin_v2.get_coll_info;
                    ask(null_mut(), 4, 64, 0, 0, 1, null_mut(), null_mut(), null_mut())
                }),
                panicking(|| (ncclTunerPlugin_v2.destroy)(null_mut())),
                panicking(|| (ncclTunerPlugin_v3.get_coll_info)(null_mut(), 4, 64, 1, null_mut(), 7, 3, null_mut())),
                panicking(|| (ncclTunerPlugin_v4.get_coll_info)(null_mut(), 4, 64, 1, null_mut(), 7, 3, 0, null_mut())),
                panicking(|| (ncclTunerPlugin_v5.init)(null_mut(), 7, 8, 1, None, null_mut(), null_mut())),
                panicking(|| (ncclTunerPlugin_v6.get_chunk_size)(null_mut(), 4, 64, 1, 2, 1, null_mut())),
                panicking(|| (ncclTunerPlugin_v7.init)(null_mut(), 7, 8, 1, None, null_mut(), null_mut())),
                panicking(|| (ncclProfiler_v4.init)(null_mut(), null_mut(), null(), 7, 1, 8, 0, None)),
                panicking(|| (ncclProfiler_v4.start_event)(null_mut(), null_mut(), null_mut())),
                panicking(|| (ncclProfiler_v5.init)(null_mut(), 7, null_mut(), null(), 1, 8, 0, None)),
                panicking(|| (ncclProfiler_v5.start_event)(null_mut(), null_mut(), null_mut())),
                panicking(|| (ncclProfiler_v6.record_event_state)(null_mut(), 22, null_mut())),
                panicking(|| (ncclProfiler_v6.finalize)(null_mut())),
            ]
        };
        assert_eq!(answers, [abi::SUCCESS; 16]);
    }

    #[test]
    fn programs_are_told_of_nothing_where_something_panics() {
        let mut message = [0 as c_char; 64];
        let (room, place) = (message.len(), message.as_mut_ptr());
        // SAFETY: there is no text, and the message has so much room.
        assert_eq!(unsafe { panicking(|| c_api::paceline_nccl_policy_prepare(null(), 0, place, room)) }, 1);
        // SAFETY: it is terminated: it was written by the line above, and there were zeros before.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) };
        assert_eq!(message, c"the policy was given up: please report this");
        assert_eq!(panicking(|| c_api::paceline_nccl_policy_activate(7)), 1);
        assert_eq!(panicking(|| c_api::paceline_nccl_record(1)), 1);
        let endings: [extern "C" fn(); 2] = [c_api::paceline_nccl_policy_discard, c_api::paceline_nccl_policy_clear];
        for ending in endings {
            panicking(|| ending());
        }
        let numbers: [extern "C" fn() -> u64; 5] = [
            c_api::paceline_nccl_policy_version,
            c_api::paceline_nccl_policy_fingerprint,
            c_api::paceline_nccl_prepared_version,
            c_api::paceline_nccl_prepared_fingerprint,
            c_api::paceline_nccl_samples_lost,
        ];
        assert!(numbers.into_iter().all(|number| panicking(|| number()) == 0));
        let (mut asked, mut answered) = (9, 9);
        // SAFETY: both places may be written to.
        unsafe { panicking(|| c_api::paceline_nccl_decisions(&raw mut asked, &raw mut answered)) };
        assert_eq!((asked, answered), (0, 0));
        let mut sample = samples::Sample::default();
        // SAFETY: there is room for one.
        assert_eq!(unsafe { panicking(|| c_api::paceline_nccl_samples(&raw mut sample, 1)) }, 0);
    }
}
