//! What the developer commands are made of, where tests need it too: the lab.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod lab;
