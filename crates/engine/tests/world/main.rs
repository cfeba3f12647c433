//! The engine in a virtual world: many ranks, slow and unreliable links, one clock, one seed.
//!
//! A failing test prints the line that repeats it; `PACELINE_LONG_TESTS=1` runs many more schedules.

mod allocation;
mod call;
mod collectives;
mod concurrency;
mod execute;
mod failures;
mod faults;
mod fuzz;
mod idle;
mod iterations;
mod kernels;
mod link;
mod memory;
mod predicted;
mod protocols;
mod random;
mod schedules;
mod setup;
mod silence;
mod transport;
mod world;
