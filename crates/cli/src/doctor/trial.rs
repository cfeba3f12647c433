//! Ranks that meet, and what they find.

use paceline_comm::{Communicator, LinkCost, LinkCosts, TransportChoice};
use paceline_fabric::environment::Environment;

use super::Finding;
use crate::failure::Failure;
use crate::workers::{connect, transport_name};

/// Meets the other ranks; every rank must call it. The findings are this rank's.
///
/// # Errors
/// The ranks do not find each other.
pub fn run(environment: Environment) -> Result<Vec<Finding>, Failure> {
    let communicator = connect(environment, TransportChoice::Auto, 1, None)?;
    if communicator.world_size() == 1 {
        return Ok(vec![Finding::good("ranks", "one rank needs no links")]);
    }
    Ok(vec![shared_memory(&communicator), single_copies(&communicator), cost(&communicator)])
}

fn shared_memory(communicator: &Communicator) -> Finding {
    const SUBJECT: &str = "shared memory";
    match transport_name(communicator) {
        "shm" => Finding::good(SUBJECT, "all ranks share it"),
        name => Finding::slow(
            SUBJECT,
            format!("the links are {name}: {}", note(communicator, "no shared memory")),
            "run the ranks as one user, in one container or with a shared network namespace",
        ),
    }
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
