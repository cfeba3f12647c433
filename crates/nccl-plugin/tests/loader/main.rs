//! A harness that does with a plug-in what NCCL does: looks its symbols up in the order of each release, calls them as that
//! release does, and checks after every call what a tuner may not do. It is tried on plug-ins that are wrong on purpose.
//!
//! Its view of the interfaces is its own, from NCCL's documentation, and not the plug-in's: a structure is a row of
//! addresses.

mod c_program;
mod check;
mod costs;
mod counting;
mod entries;
mod library;
mod nccl;
mod newest;
mod offered;
mod plugin;
mod preloaded;
mod processes;
mod profile;
mod program;
mod releases;
mod speed;
mod speed_of_plugin;
mod wrong;
mod wrong_plugins;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests share the policy of the process: one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
