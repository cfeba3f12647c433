//! The file: TOML that a person can write.
//!
//! It is read by the `toml` crate and written here: numbers like 8.8e-10 are to look like that, and what is zero without
//! doubt is left out.

use std::fmt::{self, Write};
use std::ops::Range;

use serde::Deserialize;

use super::names::OVERHEADS;
use super::protocols::of_protocol;
use super::{Cluster, ClusterError, ComputationConstants, Constant, Distribution, LinkConstants, UnlikeWorkers};

const HEAD: &str = "\
# A cluster. Times are in seconds, { value, low, high } is a value and its 95 % interval; what is missing is 0.
# docs/clusters.md says what each field means.
";

/// So much of a line that is wrong is quoted.
const QUOTED: usize = 80;

impl Cluster {
    /// The cluster that a text describes, [checked](Cluster::check); and what it says twice must be the same: messages take about as
    /// long as alpha and beta say, and constants were measured with no more workers than there is room for.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<Cluster, ClusterError> {
        /// All versions have this field; the others are none of this version's business.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        if let Ok(Version { schema }) = toml::from_str(text)
            && schema != Cluster::SCHEMA
        {
            return Err(ClusterError::Schema(schema));
        }
        let cluster: Cluster = toml::from_str(text).map_err(|error| in_line(text, error.span(), error.message()))?;
        cluster.check_file()?;
        Ok(cluster)
    }

    /// The text that [`Cluster::from_toml`] reads as the same cluster, if this one passes [`Cluster::check`] and is as somebody has
    /// measured, found or written it.
    pub fn to_toml(&self) -> String {
        let mut text = HEAD.to_owned();
        // Writing to a text does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "schema = {}", self.schema)?;
        for (name, value) in [("name", &self.name), ("source", &self.source)] {
            writeln!(out, "{name} = {}", quoted(value))?;
        }
        writeln!(out, "hosts = {}", self.hosts)?;
        writeln!(out, "workers_per_host = {}", self.workers_per_host)?;
        if self.server_hosts > 0 {
            writeln!(out, "server_hosts = {}", self.server_hosts)?;
        }
        writeln!(out, "topology = {}", quoted(&self.topology))?;
        if let Some(device) = &self.device {
            writeln!(out, "device = {}", quoted(device))?;
        }
        if let Some(price) = self.price_per_host_hour {
            writeln!(out, "price_per_host_hour = {}", number(price))?;
        }
        self.write_constants(out)?;
        if let Some(range) = &self.measured {
            writeln!(out, "\n[measured]")?;
            for (name, [least, most]) in range.counts() {
                writeln!(out, "{name} = [{least}, {most}]")?;
            }
            writeln!(out, "bytes = [{}, {}]", range.bytes[0], range.bytes[1])?;
        }
        for UnlikeWorkers { ranks, slower } in &self.unlike {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            writeln!(out, "\n[[workers]]\nranks = [{}]\nslower = {}", ranks.join(", "), number(*slower))?;
        }
        Ok(())
    }

    /// Table by table, in the order of [`Cluster::constants`].
    fn write_constants(&self, out: &mut String) -> fmt::Result {
        let mut open = String::new();
        for (name, constant) in self.constants() {
            let (table, key) = match name.strip_prefix(OVERHEADS) {
                Some(model) => (OVERHEADS.trim_end_matches('.'), quoted(model)),
                None => match name.rsplit_once('.') {
                    Some((table, key)) => (table, key.to_owned()),
                    None => ("", name.clone()),
                },
            };
            let link = self.links_of(table);
            if constant != Constant::ZERO || is_needed(table, &key, link) {
                open_table(table, &mut open, out)?;
                writeln!(out, "{key} = {}", of_constant(&constant))?;
            }
            // The one constant of its table that is not a model's, which has a table of its own.
            if name == "computation.spread" {
                write_stragglers(&self.computation, &mut open, out)?;
            }
            let own_ports = self.servers_of(table).is_some_and(|server| server.own_ports);
            if key == "combine_s_per_byte" && own_ports {
                open_table(table, &mut open, out)?;
                writeln!(out, "own_ports = true")?;
            }
            // The last constant of a link, whose table is open if it has anything.
            if let Some(link) = link.filter(|_| key == "incast_s_per_byte") {
                write_others(link, out)?;
            }
        }
        Ok(())
    }
}

/// What a server has that is something else where it is left out than where it is zero.
const OF_SERVERS: [&str; 3] = ["beta_s_per_byte", "dedicated_share", "connection_s_per_byte"];

/// Does a constant stand there although it is zero? A link that is there has two, and a model or what a server may have that is named,
/// its value; and a protocol's table says by being there that it stands instead of the cluster's.
fn is_needed(table: &str, key: &str, link: Option<&LinkConstants>) -> bool {
    let of_one = of_protocol(table).is_some();
    match link {
        Some(link) => ["alpha_s", "beta_s_per_byte"].contains(&key) && (of_one || *link != LinkConstants::default()),
        None => of_one || table == OVERHEADS.trim_end_matches('.') || table == "server" && OF_SERVERS.contains(&key),
    }
}

/// Begins a table, unless it is the one that is open.
fn open_table(table: &str, open: &mut String, out: &mut String) -> fmt::Result {
    if open.as_str() != table {
        writeln!(out, "\n[{table}]")?;
        table.clone_into(open);
    }
    Ok(())
}

/// What is said of stragglers besides their spread.
fn write_stragglers(computation: &ComputationConstants, open: &mut String, out: &mut String) -> fmt::Result {
    let ComputationConstants { distribution, draws, seed, .. } = *computation;
    if (distribution, draws, seed) == Default::default() {
        return Ok(());
    }
    open_table("computation", open, out)?;
    match distribution {
        Distribution::Normal => {}
        Distribution::LogNormal => writeln!(out, "distribution = \"log-normal\"")?,
        Distribution::Exponential => writeln!(out, "distribution = \"exponential\"")?,
    }
    for (name, value) in [("draws", draws), ("seed", seed as usize)].into_iter().filter(|(_, value)| *value > 0) {
        writeln!(out, "{name} = {value}")?;
    }
    Ok(())
}

/// What a link has besides constants.
fn write_others(link: &LinkConstants, out: &mut String) -> fmt::Result {
    if link.counted_overhead_s != 0.0 {
        writeln!(out, "counted_overhead_s = {}", number(link.counted_overhead_s))?;
    }
    if link.fetched {
        writeln!(out, "fetched = true")?;
    }
    if link.points.is_empty() {
        return Ok(());
    }
    let points: Vec<String> =
        link.points.iter().map(|(bytes, seconds)| format!("[{bytes}, {}]", of_constant(seconds))).collect();
    writeln!(out, "points = [{}]", points.join(", "))
}

fn of_constant(constant: &Constant) -> String {
    if constant.is_exact() {
        return number(constant.value);
    }
    let Constant { value, low, high } = constant;
    format!("{{ value = {}, low = {}, high = {} }}", number(*value), number(*low), number(*high))
}

/// Reading it gives the same number. Small ones have an exponent.
fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (1e-2..1e6).contains(&size) { format!("{value:?}") } else { format!("{value:e}") }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\U{:08x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// An error of the reader, with the line where it begins.
pub(super) fn in_line(text: &str, span: Option<Range<usize>>, message: &str) -> ClusterError {
    let start = span.map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or(text);
    let line = before.matches('\n').count();
    let quoted: String = text.lines().nth(line).unwrap_or_default().trim().chars().take(QUOTED).collect();
    let reason = message.lines().map(str::trim).collect::<Vec<_>>().join("; ");
    ClusterError::Text { line: line + 1, text: quoted, reason }
}
