//! Policies as a table, as spreadsheets write them: a first line with what holds for all rules, a heading, then a rule a line.

use std::str::FromStr;

use crate::file::{PolicyError, Rules, SCHEMA, Written};

const COLUMNS: [&str; 11] = [
    "function",
    "min_bytes",
    "below_bytes",
    "ranks",
    "hosts",
    "pipelined",
    "algorithm",
    "protocol",
    "channels",
    "nccl_channels",
    "divide_by",
];

/// Whether the first line that is neither empty nor a comment is a heading: several cells, right or misspelt.
pub fn is_csv(text: &str) -> bool {
    heading(text).is_some()
}

/// What separates the cells of the heading, if there is one: a comma, or, where that separates decimals, a semicolon. A first line of
/// TOML has an equals sign, or is the name of a table in brackets; one of JSON begins with a brace.
fn heading(text: &str) -> Option<char> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    if first.contains('=') || first.starts_with(['[', '{']) {
        return None;
    }
    let cells = |separator: char| first.split(separator).count();
    let separator = if cells(';') > cells(',') { ';' } else { ',' };
    first.contains(separator).then_some(separator)
}

/// What is said before the heading: `# schema = 1, version = 12`, and, where it is wanted, `nccl_channels` and `ll128`.
#[derive(Debug, Default)]
struct Head {
    schema: Option<u32>,
    version: Option<u64>,
    nccl_channels: Option<u64>,
    ll128: Option<bool>,
}

impl Head {
    /// Takes what a comment says, if it says anything of the kind. Programs may have filled the line up with separators.
    fn read(&mut self, comment: &str) -> Result<(), String> {
        for part in comment.split([',', ';', '"']).filter_map(|part| part.split_once('=')) {
            let (name, value) = (part.0.trim(), part.1.trim());
            let cell = Some(value);
            match name {
                "schema" => self.schema = parsed(name, cell)?,
                "version" => self.version = parsed(name, cell)?,
                "nccl_channels" => self.nccl_channels = parsed(name, cell)?,
                "ll128" => self.ll128 = flag(name, cell)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Rules with empty cells for what is left open. Nothing in them needs quotation marks. Rows with `divide_by` are about chunks.
///
/// # Errors
/// What is wrong with it, and where.
pub fn rules(text: &str) -> Result<Rules, PolicyError> {
    let separator = heading(text).unwrap_or(',');
    let mut columns: Vec<&str> = Vec::new();
    let (mut head, mut rules) = (Head::default(), Rules::default());
    for (number, line) in text.lines().enumerate() {
        let wrong = |reason| PolicyError::Line { line: number + 1, reason };
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#').filter(|_| columns.is_empty()) {
            head.read(comment).map_err(wrong)?;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let cells: Vec<&str> = line.split(separator).map(str::trim).collect();
        if columns.is_empty() {
            (rules.version, rules.ll128_proved) = (begin(&head).map_err(wrong)?, head.ll128.unwrap_or(false));
            check_schema(&head)?;
            columns = known(cells).map_err(wrong)?;
            continue;
        }
        if cells.len() != columns.len() {
            return Err(wrong(format!("it has {} cells, and the heading {}", cells.len(), columns.len())));
        }
        let written = of_cells(&columns, &cells).map_err(wrong)?;
        if written.divide_by.is_some() {
            rules.chunks.push(written.chunk().map_err(wrong)?);
        } else {
            rules.calls.push(written.call(head.nccl_channels).map_err(wrong)?);
        }
    }
    Ok(rules)
}

fn begin(head: &Head) -> Result<u64, String> {
    let needs = "the line before the heading says `# schema = 1, version = 12`, with the version that you count";
    head.version.filter(|_| head.schema.is_some()).ok_or_else(|| needs.to_owned())
}

fn check_schema(head: &Head) -> Result<(), PolicyError> {
    match head.schema {
        Some(schema) if schema != SCHEMA => Err(PolicyError::Schema(schema)),
        _ => Ok(()),
    }
}

fn known(cells: Vec<&str>) -> Result<Vec<&str>, String> {
    for (place, cell) in cells.iter().enumerate() {
        if !COLUMNS.contains(cell) {
            return Err(format!("there is no column `{cell}`, which the heading names; known: {}", COLUMNS.join(", ")));
        }
        if cells[..place].contains(cell) {
            return Err(format!("the column `{cell}` is there twice"));
        }
    }
    if !cells.contains(&COLUMNS[0]) {
        return Err(format!("the heading names no column `{}`: which calls is each rule about?", COLUMNS[0]));
    }
    Ok(cells)
}

fn of_cells(columns: &[&str], cells: &[&str]) -> Result<Written, String> {
    let cell = |name: &str| {
        let found = columns.iter().position(|column| *column == name).and_then(|place| cells.get(place));
        found.copied().filter(|cell| !cell.is_empty())
    };
    let number = |name: &str| parsed(name, cell(name));
    Ok(Written {
        function: cell("function").map(str::to_owned),
        min_bytes: number("min_bytes")?,
        below_bytes: number("below_bytes")?,
        ranks: number("ranks")?,
        hosts: number("hosts")?,
        pipelined: flag("pipelined", cell("pipelined"))?,
        algorithm: cell("algorithm").map(str::to_owned),
        protocol: cell("protocol").map(str::to_owned),
        channels: number("channels")?,
        nccl_channels: number("nccl_channels")?,
        divide_by: number("divide_by")?,
    })
}

/// Spreadsheets write `TRUE`.
fn flag(column: &str, cell: Option<&str>) -> Result<Option<bool>, String> {
    parsed(column, cell.map(str::to_ascii_lowercase).as_deref())
}

fn parsed<T: FromStr>(column: &str, cell: Option<&str>) -> Result<Option<T>, String> {
    let wrong = |cell| format!("column {column}: `{cell}` is no value for it");
    cell.map(|cell| cell.parse().map_err(|_| wrong(cell))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::BINS;

    const CSV: &str = "# learned last week\n# schema = 1, version = 12, nccl_channels = 16, ll128 = TRUE\n\
        function,min_bytes,below_bytes,pipelined,algorithm,protocol,channels,nccl_channels,divide_by\n\
        AllReduce,,65536,FALSE,Tree,LL,8,,\nall-gather,65536,,,Ring,Simple,,,2\n";

    fn read(text: &str) -> Rules {
        Rules { fingerprint: 0, ..Rules::from_text(text).unwrap_or_else(|error| panic!("{error}: {text}")) }
    }

    fn refused(text: &str) -> String {
        crate::policy::Policy::from_text(text).expect_err(text).to_string()
    }

    #[test]
    fn a_table_of_a_spreadsheet_says_the_same_as_toml() {
        let toml = "schema = 1\nversion = 12\nll128 = true\n[[call]]\nfunction = \"AllReduce\"\nbelow_bytes = 65536\n\
                    algorithm = \"Tree\"\nprotocol = \"LL\"\nchannels = 8\nnccl_channels = 16\npipelined = false\n[[chunk]]\n\
                    function = \"AllGather\"\nmin_bytes = 65536\nalgorithm = \"Ring\"\nprotocol = \"Simple\"\ndivide_by = 2\n";
        let rules = read(CSV);
        assert_eq!(rules, read(toml));
        assert_eq!((rules.calls[0].bins.clone(), rules.chunks[0].bins.clone()), (0..17, 17..BINS));
        // As others write it: semicolons, a mark of UTF-8, ends of lines of two, a first line filled up.
        assert_eq!(read(&CSV.replace(',', ";")), rules);
        assert_eq!(read(&format!("\u{feff}{}", CSV.replace('\n', "\r\n"))), rules);
        assert_eq!(read(&CSV.replace("ll128 = TRUE", "ll128 = TRUE,,,,,")), rules);
    }

    #[test]
    fn the_examples_of_the_documentation_are_policies() {
        let page = include_str!("../../../docs/nccl.md");
        let example = |begin: &str| {
            let from = page.lines().skip_while(|line| !line.starts_with(begin));
            let lines = from.take_while(|line| line.is_empty() || line.starts_with("    "));
            lines.map(|line| format!("{}\n", line.trim())).collect::<String>()
        };
        for begin in ["    schema = 1", "    # schema = 1"] {
            let rules = read(&example(begin));
            assert_eq!((rules.version, rules.calls.len(), rules.chunks.len()), (12, 1, 1), "{begin}");
            assert_eq!(rules.calls[0].channels, 8, "{begin}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let with = |rest: &str| refused(&format!("# schema = 1, version = 3\n{rest}"));
        for (message, words) in [
            (refused(&CSV.replace("schema = 1", "schema = 2")), "has schema 2"),
            (refused("function,algorithm,protocol\nAllReduce,Ring,LL\n"), "line 1 of the policy: the line before"),
            (refused(&CSV.replace("version = 12", "version = 0")), "version 0"),
            (refused(&CSV.replace("version = 12", "version = x")), "line 2 of the policy: column version: `x` is no"),
            (with("function,speed\nAllReduce,9"), "line 2 of the policy: there is no column `speed`"),
            (refused(&CSV.replace("function,", "functoin,")), "line 3 of the policy: there is no column `functoin`"),
            (with("Function;ranks\nAllReduce;2"), "line 2 of the policy: there is no column `Function`, which"),
            (with("algorithm,protocol\nRing,LL"), "line 2 of the policy: the heading names no column `function`"),
            (with("function,ranks,ranks\n"), "line 2 of the policy: the column `ranks` is there twice"),
            (with("function,ranks\nAllReduce"), "line 3 of the policy: it has 1 cells"),
            (with("function,ranks\nAllReduce,x"), "column ranks: `x` is no value"),
            (with("function,pipelined\nAllReduce,maybe"), "column pipelined: `maybe` is no value"),
            (refused(&CSV.replace("nccl_channels = 16", "nccl_channels = 4")), "at most nccl_channels = 4"),
        ] {
            assert!(message.contains(words), "{message}\nhas no {words}");
        }
    }
}
