//! What the developer commands are made of, where tests need it too: the lab. And what tests need.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod lab;
pub mod needs;
