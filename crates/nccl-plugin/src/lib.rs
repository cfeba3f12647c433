//! A tuner and profiler plug-in for NCCL, in one library: it says which algorithm, protocol, channels and chunk a call takes,
//! by a policy that was learned elsewhere. docs/nccl.md says how to load it.
//!
//! NCCL asks on every rank on its own, and compares nothing: two ranks that answer differently hang. So a decision is a
//! function of the policy and of what all ranks know (function, bytes, ranks, hosts), never of a clock, of what this rank has
//! measured, or of how often it was asked; and a policy changes only where all ranks do so together
//! ([`paceline_nccl_policy_activate`](c_api::paceline_nccl_policy_activate)).
//!
//! Whatever happens, NCCL is told that all went well, since anything else fails the collective; where there is nothing to
//! say, nothing is written, and NCCL's own choice stands.
//!
//! - `tuner`, `profiler`: the interfaces, version by version; [`abi`]: their structures.
//! - `decide`: what may be written where. Safe code.
//! - [`policy`], [`file`]: which choice for which call; TOML, and (`csv`) tables.
//! - `state`: what lives as long as the library; `publish`: how a policy is replaced under those who read it. [`c_api`]: for the program that trains.
#![deny(missing_docs)]

#[cfg(panic = "abort")]
compile_error!("a panic would end the job that NCCL runs in: build with panic = \"unwind\", so that it is caught");

pub mod abi;
pub mod c_api;
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
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    abi::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_entry() {
        assert_eq!(guarded(|| panic!("this one is meant to be")), abi::SUCCESS);
    }
}
