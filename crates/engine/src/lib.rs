//! Executes programs as events on links. Pure: it opens no socket, reads no clock and touches no byte of the data;
//! the driver (`paceline-comm` with real links, the tests with a virtual world) does that and tells the engine.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod frame;
