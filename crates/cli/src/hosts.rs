//! The host file: on which hosts ranks run, and how many on each.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// A host and its share of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What ssh calls it.
    pub name: String,
    /// How many ranks it takes.
    pub slots: usize,
}

/// Reads a host file: `host [slots=N]` on each line, one slot if nothing is said, `#` begins a comment. A host that
/// stands there twice has the slots of both lines. (Open MPI's form, without its other words.)
///
/// # Errors
/// It cannot be read, or a line is something else; names the line.
pub fn read(path: &Path) -> Result<Vec<Host>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the host file {}", path.display())).cause(error))?;
    parse(&text).map_err(|what| {
        Failure::usage(format!("{}: {what}", path.display())).help("write `host` or `host slots=N` on each line")
    })
}

fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut slots = 1;
        for word in words {
            let count = word.strip_prefix("slots=").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
            slots = count.ok_or_else(|| format!("line {number}: `{word}` is not slots=N"))?;
        }
        // ssh would take it for an option.
        if name.starts_with('-') || name.contains('=') {
            return Err(format!("line {number}: `{name}` is no host"));
        }
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots += slots,
            None => hosts.push(Host { name: name.to_owned(), slots }),
        }
    }
    if hosts.is_empty() { Err("it names no host".to_owned()) } else { Ok(hosts) }
}

/// The first hosts that together take `ranks` ranks; all of them if nobody says how many.
///
/// # Errors
/// There are not so many slots.
pub fn fill(hosts: Vec<Host>, ranks: Option<usize>) -> Result<Vec<Host>, Failure> {
    let slots: usize = hosts.iter().map(|host| host.slots).sum();
    let mut left = ranks.unwrap_or(slots);
    if left > slots {
        return Err(Failure::usage(format!("--workers {left}, but the host file has {slots} slots"))
            .help("write slots=N behind the hosts that take more than one rank"));
    }
    let mut used = Vec::new();
    for host in hosts {
        let slots = host.slots.min(left);
        left -= slots;
        if slots > 0 {
            used.push(Host { slots, ..host });
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: usize) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn host_files_are_read_as_people_write_them() {
        let text = "# ours\nnode1 slots=2 # fast\n\n  user@node2\nnode1\n10.0.0.3\tslots=3\n";
        assert_eq!(parse(text), Ok(vec![host("node1", 3), host("user@node2", 1), host("10.0.0.3", 3)]));
        for wrong in ["", "# none", "node1 slots=0", "node1 slots", "node1 max=3", "slots=2", "-oProxyCommand=x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("a\nb slots=x").is_err_and(|what| what.starts_with("line 2: `slots=x`")));
    }

    #[test]
    fn ranks_fill_hosts_in_order() {
        let hosts = || vec![host("a", 2), host("b", 2)];
        assert_eq!(fill(hosts(), None).ok(), Some(hosts()));
        assert_eq!(fill(hosts(), Some(3)).ok(), Some(vec![host("a", 2), host("b", 1)]));
        assert_eq!(fill(hosts(), Some(2)).ok(), Some(vec![host("a", 2)]));
        assert!(fill(hosts(), Some(5)).is_err());
    }
}
