//! What `probe` shows.

use std::io::{self, Write};

use paceline_plan::{Cluster, Constant, LinkConstants};

use super::cluster::{Point, Probed};
use crate::arguments::ByteSize;
use crate::emulation::Emulated;

const MICROSECONDS: (f64, &str) = (1e6, "us");
const NANOSECONDS_PER_BYTE: (f64, &str) = (1e9, "ns/B");
const PERCENT: (f64, &str) = (1e2, "%");
/// Seconds lost for each second.
const LOST: (f64, &str) = (1.0, "s/s");

/// A line for each constant, and a table of messages, on standard output.
///
/// # Errors
/// Standard output is closed.
pub fn print(probed: &Probed, title: &str, emulated: Option<&Emulated>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "# {title}")?;
    emulated.map_or(Ok(()), |emulated| emulated.write(&mut out))?;
    over(probed, None, &mut out)?;
    for (name, _) in probed.cluster.protocols.iter() {
        writeln!(out, "# over {name} alone, in a world of its own")?;
        over(probed, Some(name), &mut out)?;
    }
    out.flush()
}

/// What it costs over a protocol; None: over what the runtime takes by itself.
fn over(probed: &Probed, protocol: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let cluster = probed.cluster.over(protocol.unwrap_or("auto"));
    let points: Vec<&Point> = probed.points.iter().filter(|point| point.protocol == protocol).collect();
    constants(&cluster, &points, protocol.is_none(), out)?;
    messages(&points, out)
}

/// `all`: also what does not depend on what carries the bytes.
fn constants(cluster: &Cluster, points: &[&Point], all: bool, out: &mut dyn Write) -> io::Result<()> {
    for (class, place, link) in
        [("within", "within a host", &cluster.within), ("across", "between hosts", &cluster.across)]
    {
        // Those that no message has shown are copies.
        if points.iter().any(|point| point.class == class) {
            link_constants(place, link, out)?;
        }
    }
    if all {
        line("adding a byte", "gamma", &cluster.combine_s_per_byte, NANOSECONDS_PER_BYTE, out)?;
    }
    line("each operation", "start", &cluster.operation.start_s, MICROSECONDS, out)?;
    let per_doubling = &cluster.operation.start_per_doubling_s;
    if *per_doubling != Constant::ZERO {
        line("", "per doubling of workers", per_doubling, MICROSECONDS, out)?;
    }
    let server = &cluster.server;
    let partition_s = if cluster.hosts > 1 { &server.partition_s } else { &server.local_partition_s };
    line("each partition", "on a server", partition_s, MICROSECONDS, out)?;
    if cluster.hosts > 1 {
        line("", "both ways at once", &cluster.server.duplex_loss, PERCENT, out)?;
    }
    line("side by side", "computation loses", &cluster.interference.computation, LOST, out)?;
    line("", "communication loses", &cluster.interference.communication, LOST, out)?;
    if all { line("workers differ", "spread", &cluster.computation.spread, PERCENT, out) } else { Ok(()) }
}

fn link_constants(place: &str, link: &LinkConstants, out: &mut dyn Write) -> io::Result<()> {
    line(place, "alpha", &link.alpha_s, MICROSECONDS, out)?;
    line("", "overhead", &link.overhead_s, MICROSECONDS, out)?;
    line("", "beta", &link.beta_s_per_byte, NANOSECONDS_PER_BYTE, out)?;
    if link.incast_s_per_byte != Constant::ZERO {
        line("", "where streams meet", &link.incast_s_per_byte, NANOSECONDS_PER_BYTE, out)?;
    }
    Ok(())
}

fn line(
    place: &str,
    what: &str,
    constant: &Constant,
    (factor, unit): (f64, &str),
    out: &mut dyn Write,
) -> io::Result<()> {
    let Constant { value, low, high } = constant.times(factor);
    let rate = match unit {
        "ns/B" if value > 0.0 => format!("  ({:.2} GB/s)", 1.0 / value),
        _ => String::new(),
    };
    writeln!(out, "{place:<15} {what:<24} {value:>12.4} {unit:<5} {low:>12.4} to {high:.4}{rate}")
}

fn messages(points: &[&Point], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# messages: half of a round trip of the slowest pair, and how far alpha + beta·bytes is off")?;
    for Point { class, bytes, message_s, line_off, .. } in points {
        let Constant { value, low, high } = message_s.times(1e6);
        let size = ByteSize(*bytes).to_string();
        writeln!(
            out,
            "{class:<15} {size:>8} {value:>28.2} us    {low:>12.2} to {high:.2}  {:+.1} %",
            100.0 * line_off
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_plan::{NetworkModel, ProtocolConstants};

    use super::*;

    fn point(protocol: Option<&'static str>, class: &'static str) -> Point {
        Point { protocol, class, bytes: 1 << 20, message_s: Constant::exact(1.02e-3), line_off: -0.01 }
    }

    fn said(probed: &Probed, protocol: Option<&str>) -> String {
        let mut out = Vec::new();
        over(probed, protocol, &mut out).expect("memory can be written to");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_constant_has_a_line_with_its_unit() {
        let cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
        let probed = Probed { cluster, points: vec![point(None, "within"), point(None, "across")] };
        let said = said(&probed, None);
        for words in
            ["between hosts   alpha", "95.5560 us", "0.8816 ns/B", "(1.13 GB/s)", "both ways at once", "1MiB", "-1.0 %"]
        {
            assert!(said.contains(words), "no `{words}` in {said}");
        }
        assert!(!said.contains("per doubling"), "{said}");
    }

    #[test]
    fn a_protocol_has_lines_of_its_own_constants() {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 1, 2);
        let within = LinkConstants { alpha_s: Constant::exact(2e-5), ..cluster.within.clone() };
        cluster.protocols.tcp = Some(ProtocolConstants { within: Some(within), ..ProtocolConstants::default() });
        let probed = Probed { cluster, points: vec![point(None, "within"), point(Some("tcp"), "within")] };
        let (own, tcp) = (said(&probed, None), said(&probed, Some("tcp")));
        assert!(tcp.contains("20.0000 us") && own.contains("5.7000 us"), "{own}{tcp}");
        assert!(own.contains("gamma") && !tcp.contains("gamma") && !tcp.contains("spread"), "{own}{tcp}");
        assert_eq!([&own, &tcp].map(|said| said.matches("1MiB").count()), [1, 1]);
    }
}
