//! What NCCL and the program call in the library lets no panic out: its sources are read for that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A function of the library's sources.
struct Function {
    /// It is called from C.
    is_entry: bool,
    /// Without signature and comments.
    body: String,
}

/// The functions of a file by name, but for those in types, tests and other functions, which rustfmt has indented.
fn functions(source: &str) -> BTreeMap<&str, Function> {
    let mut found = BTreeMap::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let declares = !line.starts_with([' ', '/', '#']);
        let Some((before, after)) = line.split_once("fn ").filter(|_| declares) else { continue };
        let name = after.split(['(', '<']).next().unwrap_or_default();
        let mut body = String::new();
        if !line.ends_with("{}") {
            let code = std::iter::once(line).chain(lines.by_ref()).take_while(|line| *line != "}");
            let inside = code.skip_while(|line| !line.ends_with('{')).skip(1);
            inside.filter(|line| !line.trim_start().starts_with("//")).for_each(|line| {
                body += line;
                body.push('\n');
            });
        }
        found.insert(name, Function { is_entry: before.contains("extern \"C\""), body });
    }
    found
}

/// Whether no panic leaves a function: it catches them, ends in a call of one of which the same holds, or does nothing at all.
fn holds(functions: &BTreeMap<&str, Function>, body: &str) -> bool {
    if body.contains("guarded(") {
        return true;
    }
    let last = body.rsplit(';').next().unwrap_or_default().trim();
    let last = last.strip_prefix("unsafe {").unwrap_or(last).trim_start();
    match last.split_once('(') {
        Some((called, _)) => functions.get(called).is_some_and(|function| holds(functions, &function.body)),
        None => is_constant(body),
    }
}

fn is_constant(body: &str) -> bool {
    body.trim().chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
}

/// All functions that are called from C, by file and name; with whether no panic leaves them, as it is and if nothing were caught.
fn entries() -> BTreeMap<String, (bool, bool)> {
    let mut entries = BTreeMap::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in fs::read_dir(folder).expect("the sources") {
        let path = file.expect("a source").path();
        let source = fs::read_to_string(&path).expect("a source");
        let of_nothing = source.replace("guarded(", "left_open(");
        let (functions, unguarded) = (functions(&source), functions(&of_nothing));
        for (name, function) in functions.iter().filter(|(_, function)| function.is_entry) {
            let would_hold = unguarded.get(*name).is_some_and(|function| holds(&unguarded, &function.body));
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            entries.insert(format!("{file}: {name}"), (holds(&functions, &function.body), would_hold));
        }
    }
    entries
}

#[test]
fn no_panic_leaves_an_entry() {
    let entries = entries();
    let open: Vec<&String> = entries.iter().filter(|(_, (holds, _))| !holds).map(|(name, _)| name).collect();
    assert!(open.is_empty(), "neither a constant nor `guarded`: {open:?}");
    for entry in ["c_api.rs: paceline_nccl_policy_version", "profiler.rs: start_event_v4", "tuner.rs: get_chunk_size"] {
        assert!(entries.contains_key(entry), "{entry} is not seen: {:?}", entries.keys());
    }
    // If nothing were caught, it would be found everywhere but where nothing is done.
    let idle: BTreeSet<&str> =
        entries.iter().filter(|(_, (_, would_hold))| *would_hold).map(|(name, _)| name.as_str()).collect();
    let expected = ["c_api.rs: paceline_nccl_interface", "profiler.rs: stop_event", "tuner.rs: destroy_v1"];
    assert_eq!(idle, BTreeSet::from(expected));
}
