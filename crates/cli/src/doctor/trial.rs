//! Ranks that meet, and what they find.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use paceline_comm::{Communicator, LinkCost, LinkCosts, TransportChoice};
use paceline_fabric::environment::Environment;
use paceline_plan::Shape;

use super::Finding;
use crate::bench::{WorldEnd, run_world, world_job};
use crate::failure::{Failure, unless_closed};
use crate::security::SecurityArguments;
use crate::workers::{Place, connect, transport_name};

/// How this program is told to be a rank of a trial on a host of a host file.
const RANK_COMMAND: &str = "doctor-rank";
/// How long such ranks may take to find each other, in seconds; they end by themselves then, and say who is missing.
const MEETING_S: u32 = 20;
/// How long they may take in all.
pub const LIMIT: Duration = Duration::from_secs(40);

/// An agent's part: starts so many ranks of this host, as `paceline launch` would, and lets them meet. What the first of
/// them finds, or why they do not meet.
pub fn meet(ranks: usize) -> Vec<Finding> {
    start(ranks).unwrap_or_else(|why| {
        let fix = format!("`paceline doctor --ranks {ranks}` on that host says all that the ranks say");
        vec![Finding::broken("ranks", format!("{ranks} of this host do not meet: {why}"), fix)]
    })
}

fn start(ranks: usize) -> Result<Vec<Finding>, String> {
    let in_words = |failure: Failure| failure.in_one_line();
    let program = env::current_exe().map_err(|error| format!("cannot find our own program to start them: {error}"))?;
    let mut environment = SecurityArguments::default().for_ranks().map_err(in_words)?;
    // The network between hosts has findings of its own; a NIC that is missing must not hide those of this host.
    environment.push(("PACELINE_INTERFACE".to_owned(), String::new()));
    environment.push(("PACELINE_TIMEOUT".to_owned(), MEETING_S.to_string()));
    let job = world_job(vec![program.into(), OsString::from(RANK_COMMAND)], ranks, environment);
    match run_world(&job, ranks, LIMIT, None).map_err(in_words)? {
        WorldEnd::Done(words) => findings_in(&words).ok_or_else(|| "rank 0 ended without a finding".to_owned()),
        WorldEnd::Failed(why) | WorldEnd::TimedOut(why) => Err(why),
        WorldEnd::Interrupted(signal) => Err(format!("signal {} ended it", signal.as_raw())),
    }
}

/// One rank of them. The first one writes what it finds to standard output.
///
/// # Errors
/// The ranks do not find each other.
pub fn run_rank() -> Result<ExitCode, Failure> {
    let Place::Rank(environment) = Place::find(None, "--ranks")? else {
        return Err(Failure::usage("this command is for the ranks that `paceline doctor --hostfile` starts"));
    };
    let is_first = environment.world.as_ref().is_none_or(|world| world.rank == 0);
    let findings = run(*environment)?;
    if is_first {
        let line = serde_json::to_string(&findings)
            .map_err(|error| Failure::failed("cannot say what was found").cause(error))?;
        unless_closed(writeln!(io::stdout(), "{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A program with models of its own may write lines, too.
fn findings_in(words: &str) -> Option<Vec<Finding>> {
    words.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Meets the other ranks; every rank must call it. The findings are this rank's.
///
/// # Errors
/// The ranks do not find each other.
pub fn run(mut environment: Environment) -> Result<Vec<Finding>, Failure> {
    // These ranks may be some of a job's, on some of its hosts.
    environment.topology = Shape::Flat;
    let communicator = connect(environment, TransportChoice::Auto, 1, None)?;
    if communicator.world_size() == 1 {
        return Ok(vec![Finding::good("ranks", "one rank needs no links")]);
    }
    let mut findings = vec![shared_memory(transport_name(&communicator), note(&communicator, "no shared memory"))];
    // Without shared memory there is nothing that could be copied.
    findings.extend((transport_name(&communicator) != "tcp").then(|| single_copies(&communicator)));
    findings.push(cost(&communicator));
    Ok(findings)
}

/// `why` is the note of connecting about it.
fn shared_memory(transport: &str, why: &str) -> Finding {
    const SUBJECT: &str = "shared memory";
    if transport == "shm" {
        return Finding::good(SUBJECT, "all ranks share it");
    }
    // A rank lacks what it would share, or has it and reaches a peer only by TCP.
    let fix = if why.starts_with("no shared memory: ") {
        "raise the limit where the ranks start: `ulimit -f unlimited`, or the container's memory"
    } else {
        "run the ranks as one user, in one container or with a shared network namespace"
    };
    Finding::slow(SUBJECT, format!("the links are {transport}: {why}"), fix)
}

fn single_copies(communicator: &Communicator) -> Finding {
    const SUBJECT: &str = "single copies";
    match note(communicator, "no single copy") {
        "" => Finding::good(SUBJECT, "allowed: long messages are copied once"),
        note => Finding::slow(
            SUBJECT,
            note,
            "allow process_vm_readv (the reason stands above), or take buffers from `Communicator::alloc`",
        ),
    }
}

/// The first note of connecting that starts so; empty if there is none.
fn note<'a>(communicator: &'a Communicator, start: &str) -> &'a str {
    communicator.notes().iter().find(|note| note.starts_with(start)).map_or("", String::as_str)
}

fn cost(communicator: &Communicator) -> Finding {
    let gigabytes_per_s = |seconds_per_byte: f64| 1e-9 / seconds_per_byte;
    let link = |LinkCost { alpha, overhead, beta, .. }: LinkCost| {
        let (alpha, overhead) = (alpha * 1e6, overhead * 1e6);
        format!("{alpha:.1} us per message, {overhead:.1} us if many leave at once, {:.1} GB/s", gigabytes_per_s(beta))
    };
    let LinkCosts { within, across, contention, .. } = communicator.link_costs();
    let mut between = if across == within { String::new() } else { format!("; between hosts {}", link(across)) };
    if contention > 0.0 {
        between += &format!(", {:.0} % of that lost where two streams meet", contention / across.beta * 100.0);
    }
    Finding::good("links", format!("{}{between}; reducing {:.1} GB/s", link(within), gigabytes_per_s(within.gamma)))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn the_fix_for_shared_memory_fits_the_reason() {
        assert_eq!(shared_memory("shm", "").verdict, Verdict::Good);
        for (why, fix) in [
            ("no shared memory: making a shared arena: 2 bytes are over the limit (ulimit -f): raise it", "ulimit -f "),
            ("no shared memory with rank 1: it runs on another host", "network namespace"),
        ] {
            let finding = shared_memory("tcp", why);
            assert_eq!(finding.verdict, Verdict::Slow);
            assert!(finding.found.contains(why) && finding.fix.is_some_and(|words| words.contains(fix)), "{why}");
        }
    }

    #[test]
    fn findings_are_found_among_other_words() {
        let said = serde_json::to_string(&[Finding::good("ranks", "they are there")]).expect("it has a form");
        let found = findings_in(&format!("a model says hello\n{said}\nand goodbye\n")).expect("they stand there");
        assert_eq!((found.len(), &found[0].found[..]), (1, "they are there"));
        assert!(findings_in("nothing").is_none());
    }
}
