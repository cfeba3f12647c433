//! The examples do what they say, and stay short.

use std::process::Command;

#[path = "../examples/abort.rs"]
mod abort;
#[path = "../examples/algorithms.rs"]
mod algorithms;
#[path = "../examples/all_reduce.rs"]
mod all_reduce;
#[path = "../examples/background.rs"]
mod background;
#[path = "../examples/collectives.rs"]
mod collectives;
#[path = "../examples/concurrent_callers.rs"]
mod concurrent_callers;
#[path = "../examples/encrypted_processes.rs"]
mod encrypted_processes;
#[path = "../examples/errors.rs"]
mod errors;
#[path = "../examples/group.rs"]
mod group;
#[path = "../examples/kernels.rs"]
mod kernels;
#[path = "../examples/point_to_point.rs"]
mod point_to_point;
#[path = "../examples/priorities.rs"]
mod priorities;
#[path = "../examples/protocols.rs"]
mod protocols;
#[path = "../examples/split.rs"]
mod split;
#[path = "../examples/telemetry.rs"]
mod telemetry;
#[path = "../examples/timeline.rs"]
mod timeline;
#[path = "../examples/variable_counts.rs"]
mod variable_counts;

#[test]
fn every_example_runs() {
    abort::main().expect("abort");
    algorithms::main().expect("algorithms");
    all_reduce::main().expect("all_reduce");
    background::main().expect("background");
    collectives::main().expect("collectives");
    concurrent_callers::main().expect("concurrent_callers");
    errors::main().expect("errors");
    group::main().expect("group");
    kernels::main().expect("kernels");
    point_to_point::main().expect("point_to_point");
    priorities::main().expect("priorities");
    protocols::main().expect("protocols");
    split::main().expect("split");
    telemetry::main().expect("telemetry");
    timeline::main().expect("timeline");
    variable_counts::main().expect("variable_counts");
}

/// The example starts its ranks as this program with the same arguments: they must name this test and no other.
#[test]
fn the_example_of_processes_runs() {
    if std::env::args().any(|argument| argument == "--exact") {
        encrypted_processes::main().expect("encrypted_processes");
        return;
    }
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["the_example_of_processes_runs", "--exact", "--nocapture"]);
    let of_launchers = ["PACELINE_", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE"];
    for (name, _) in std::env::vars_os() {
        if of_launchers.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            again.env_remove(name);
        }
    }
    let output = again.output().expect("this program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_example_is_listed_and_fits_on_a_screen() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let this = include_str!("examples.rs");
    for file in std::fs::read_dir(here).expect("the examples") {
        let path = file.expect("a file").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(this.contains(&format!("    {name}::main()")), "{name} is not run");
        let lines = std::fs::read_to_string(&path).expect("text").lines().count();
        assert!(lines < 60, "{name} has {lines} lines");
    }
}
