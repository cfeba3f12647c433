//! The `paceline` program. `paceline --help` lists the commands.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline_cli::run(&paceline_cli::Registry::built_in())
}
