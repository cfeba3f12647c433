//! The `paceline` program as a library: trains, measures, explains and launches. The program itself is [`run`] with what
//! Paceline brings along; a program with models and methods of its own is [`run`] with more.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 wrong usage.
#![deny(missing_docs)]

mod arguments;
mod bench;
mod clusters;
mod date;
mod doctor;
mod emulation;
mod explain;
mod failure;
mod fit;
mod heap;
mod hosts;
mod json_file;
mod launch;
mod load;
mod machine;
mod perf;
mod plan;
mod policy;
mod probe;
mod profile;
mod program;
mod registry;
mod remote;
mod report;
mod security;
mod shell;
mod simulate;
mod slices;
mod supervisor;
mod telemetry;
mod topology;
mod train;
mod tune;
mod tuning;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One world of `bench`, for programs that start its ranks themselves, on hosts of their own: each rank is `paceline` with the
/// command [`worlds::RANK_COMMAND`] and the environment of a [`worlds::WorldSpec`].
pub use bench::worlds;
/// What emulated clusters are slowed by, for programs that slow their own.
pub use bench::{CORE_BYTES_PER_S, Processors};
/// What runs say together, and what they leave open, for programs that judge other comparisons by the same rules.
pub use bench::{Estimate, Ratio, VALUES_MIN, busy_processors, limited_by_processors};
use failure::Failure;
/// What else a machine had to do, for programs that measure and report by the same rules.
pub use load::{StudyLoad, busy_warning, is_busy, load_averages, load_of_last_minute};
pub use registry::{BuildModel, OwnModel, Registry};
pub use shell::command_line as shell_command_line;

/// Data-parallel training that makes communication cheap
#[derive(Parser)]
#[command(name = "paceline", version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model on several workers
    Train(Box<train::TrainArguments>),
    /// Compare methods: models × methods × workers under one protocol, with a report
    Bench(Box<bench::BenchArguments>),
    /// Make the report of studies that were measured before
    Report(report::ReportArguments),
    /// Measure a collective, in the manner of nccl-tests
    Perf(Box<perf::PerfArguments>),
    /// Find the best strategy for a model on a cluster, and say why
    Plan(plan::PlanArguments),
    /// Measure what the links and processors of these ranks cost, as a cluster for predictions
    Probe(probe::ProbeArguments),
    /// Say what a worker computes in an iteration, tensor by tensor: measured, from a trace, or scaled to a GPU
    Profile(profile::ProfileArguments),
    /// Predict an iteration of training on a cluster, or every row of a study
    Simulate(Box<simulate::SimulateArguments>),
    /// Say what NCCL would choose, and why; or learn what each call of a collective takes, on a cluster that is simulated
    Tune(Box<tune::TuneArguments>),
    /// Write collectives as MSCCL XML, prove such files, and simulate algorithms on clusters
    Program(program::ProgramArguments),
    /// Say a strategy in words
    Explain(explain::ExplainArguments),
    /// Look for what would be slow or broken here, and say the fix
    Doctor(doctor::DoctorArguments),
    /// Find the constants of clusters that explain measured throughputs
    Fit(fit::FitArguments),
    /// Run any program as N ranks: on this host, or over a host file by ssh
    Launch(launch::LaunchArguments),
    /// Run the ranks of this host for a launcher elsewhere, which speaks on standard input
    #[command(hide = true)]
    Agent,
    /// One rank of a world of `bench`
    #[command(hide = true)]
    BenchRank,
    /// One rank of those that meet for `doctor`
    #[command(hide = true)]
    DoctorRank,
}

/// The whole command line, with what stands in the registry.
///
/// Ranks are started as this same program with the same arguments, so `main` should do nothing else.
pub fn run(registry: &Registry) -> ExitCode {
    heap::keep_freed_memory();
    failure::install_report_style();
    let outcome = match CommandLine::parse().command {
        Command::Train(arguments) => train::run(&arguments, registry),
        Command::Bench(arguments) => bench::run(&arguments, registry),
        Command::Report(arguments) => report::run(&arguments, registry),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments, registry),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments, registry),
        Command::Simulate(arguments) => simulate::run(&arguments, registry),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Program(arguments) => program::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments, registry.grammar()),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Fit(arguments) => fit::run(&arguments),
        Command::Launch(arguments) => launch::run(arguments),
        Command::Agent => remote::run_agent(),
        Command::BenchRank => bench::run_rank(registry),
        Command::DoctorRank => doctor::run_rank(),
    };
    outcome.unwrap_or_else(|failure: Failure| {
        let code = failure.exit_code();
        failure.report();
        code
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    fn listed(command: &mut clap::Command) -> impl Iterator<Item = &mut clap::Command> {
        command.get_subcommands_mut().filter(|command| command.get_name() != "help" && !command.is_hide_set())
    }

    /// Appends what a command says about itself, and then those of its own commands.
    fn describe(command: &mut clap::Command, parent: &str, page: &mut String) {
        let help = command.render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        let name = format!("{parent}{}", command.get_name());
        *page += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
        for command in listed(command) {
            describe(command, &format!("{name} "), page);
        }
    }

    /// Every command and option is documented, in the words of `--help`. PACELINE_UPDATE_DOCS=1 writes the page anew.
    #[test]
    fn the_page_about_the_command_line_is_what_help_says() {
        let mut page =
            "# The command line\n\nWhat `paceline COMMAND --help` says. `PACELINE_UPDATE_DOCS=1 cargo test -p \
                        paceline-cli command_line` writes this page; a\ntest compares it.\n"
                .to_owned();
        let mut program = CommandLine::command();
        program.build();
        for command in listed(&mut program) {
            describe(command, "", &mut page);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-line.md");
        if std::env::var_os("PACELINE_UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).expect("the page can be written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == page, "docs/command-line.md is out of date: run this test with PACELINE_UPDATE_DOCS=1");
    }
}
