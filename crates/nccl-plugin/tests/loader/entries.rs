//! What NCCL and the program call in the library lets no panic out: its sources are read for that. (`src/lib.rs` lets the work of each
//! panic, and looks at what they answer.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What functions do outside of `guarded`, line by line: people have read it, and nothing there panics.
const READ: [(&str, &[&str]); 12] = [
    ("init_v7", &["static SAID: AtomicBool = AtomicBool::new(false);"]),
    ("get_coll_info_v1", &["let asked = Asked { communicator: Some(&ONLY), function, bytes, operations };"]),
    ("get_coll_info_v2", &["let communicator = unsafe { Communicator::of_context(context) };"]),
    (
        "get_coll_info_v3",
        &[
            "let communicator = unsafe { Communicator::of_context(context) };",
            "let asked = Asked { communicator, function, bytes, operations };",
        ],
    ),
    (
        "paceline_nccl_policy_prepare",
        &[
            r#"let mut outcome = Err("the policy was given up: please report this".to_owned());"#,
            r#"let words = outcome.as_ref().err().map_or("", String::as_str);"#,
            "if outcome.is_ok() { DONE } else { REFUSED }",
        ],
    ),
    ("paceline_nccl_policy_activate", &["let mut done = false;", "if done { DONE } else { REFUSED }"]),
    (
        "paceline_nccl_decisions",
        &[
            "let mut counts = (0, 0);",
            "for (place, count) in [(asked, counts.0), (answered, counts.1)] {",
            "if !place.is_null() {",
            "unsafe { place.write(count) };",
            "}",
        ],
    ),
    ("paceline_nccl_record", &["let mut done = false;", "if done { DONE } else { REFUSED }"]),
    (
        "paceline_nccl_samples",
        &[
            "if samples.is_null() || capacity == 0 {",
            "return 0;",
            "}",
            "let capacity = capacity.min(1 << 16);",
            "let mut count = 0;",
            "count",
        ],
    ),
    ("paceline_nccl_costs", &["let mut count = 0;", "count"]),
    ("number", &["let mut number = None;", "number.unwrap_or(0)"]),
    (
        "put",
        &[
            "if place.is_null() || capacity == 0 {",
            "return;",
            "}",
            "let room = capacity - 1;",
            "let cut = (0..=room.min(text.len())).rev().find(|length| text.is_char_boundary(*length));",
            "let length = cut.unwrap_or(0);",
            "unsafe {",
            "place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);",
            "place.add(length).write(0);",
        ],
    ),
];

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

/// Whether no panic leaves a function: it does nothing at all, or each of its lines outside of `guarded` was read, or calls a function of
/// which the same holds, with arguments that are reckoned there.
fn holds(functions: &BTreeMap<&str, Function>, name: &str) -> bool {
    let Some(function) = functions.get(name) else { return false };
    let outside = uncaught(&function.body);
    let lines: Vec<&str> = outside.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let read = READ.iter().find(|(of, _)| *of == name).map(|(_, lines)| *lines).unwrap_or_default();
    let is_safe = |line: &str| {
        let catches = line.trim_end_matches(';').trim_start_matches("crate::") == "guarded()";
        let goes_on = |(name, arguments): (&str, &str)| is_harmless(arguments) && holds(functions, name);
        catches || read.contains(&line) || call(line).is_some_and(goes_on)
    };
    matches!(lines[..], [line] if is_constant(line)) || lines.into_iter().all(is_safe)
}

fn is_constant(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
}

/// A body with `guarded()` for each `guarded` of a closure or of a function's name: what stands in its parentheses may panic.
fn uncaught(body: &str) -> String {
    let (mut outside, mut rest) = (String::new(), body);
    while let Some((before, after)) = rest.split_once("guarded(") {
        let is_it = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_later = |work: &&str| work.starts_with("||") || is_constant(work);
        outside += before;
        match closing(after).map(|end| &after[..end]).filter(|work| is_it && is_later(work)) {
            Some(work) => {
                outside += "guarded()";
                rest = &after[work.len() + 1..];
            }
            None => {
                outside += "left_open(";
                rest = after;
            }
        }
    }
    outside + rest
}

/// Where the parenthesis ends before which a text stands.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut is_quoted, mut is_escaped) = (1, false, false);
    for (place, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place);
        }
    }
    None
}

/// The name and the arguments of a line that is one call.
fn call(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_suffix(';').unwrap_or(line);
    let line = line.strip_prefix("unsafe { ").and_then(|line| line.strip_suffix(" }")).unwrap_or(line);
    let (name, after) = line.split_once('(')?;
    let end = closing(after)?;
    (end + 1 == after.len()).then_some((name, &after[..end]))
}

/// Whether arguments are names, or structures of them; the last one may be a closure, which whoever is called calls.
fn is_harmless(arguments: &str) -> bool {
    let (names, closure) = arguments.split_at(arguments.find('|').unwrap_or(arguments.len()));
    let mut depth = 0;
    let is_last = closure.chars().all(|c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        depth > 0 || c != ','
    });
    is_last && names.chars().all(|c| c.is_alphanumeric() || "_:&{}, ".contains(c))
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
        for (name, _) in functions.iter().filter(|(_, function)| function.is_entry) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            entries.insert(format!("{file}: {name}"), (holds(&functions, name), holds(&unguarded, name)));
        }
    }
    entries
}

#[test]
fn no_panic_leaves_an_entry() {
    let entries = entries();
    let open: Vec<&String> = entries.iter().filter(|(_, (holds, _))| !holds).map(|(name, _)| name).collect();
    assert!(open.is_empty(), "more than a constant, `guarded` and what was read: {open:?}");
    for entry in ["c_api.rs: paceline_nccl_policy_version", "profiler.rs: start_event_v4", "tuner.rs: get_chunk_size"] {
        assert!(entries.contains_key(entry), "{entry} is not seen: {:?}", entries.keys());
    }
    // If nothing were caught, it would be found everywhere but where nothing is done.
    let idle: BTreeSet<&str> =
        entries.iter().filter(|(_, (_, would_hold))| *would_hold).map(|(name, _)| name.as_str()).collect();
    let expected = ["c_api.rs: paceline_nccl_interface", "profiler.rs: stop_event", "tuner.rs: destroy_v1"];
    assert_eq!(idle, BTreeSet::from(expected));
}

#[test]
fn what_an_entry_does_outside_is_found() {
    let of = |body: &str| {
        let entry = format!("unsafe extern \"C\" fn entry(place: *mut u8) -> NcclResult {{\n{body}\n}}\n");
        let other = "fn other(place: *mut u8) -> NcclResult {\n    guarded(|| work(place))\n}\n";
        holds(&functions(&(entry + other)), "entry")
    };
    for body in [
        "    crate::abi::SUCCESS",
        "    guarded(|| work(place))",
        "    guarded(|| {\n        work(\"a parenthesis)\");\n    })",
        "    crate::guarded(state::clear);",
        "    unsafe { other(place) }",
        "    other(place, |event| event.byte(0, 1))",
    ] {
        assert!(of(body), "{body}");
    }
    for body in [
        "    work(place);\n    guarded(|| {})",
        "    guarded(|| {});\n    work(place)",
        "    let first = list[0];\n    guarded(|| work(first))",
        "    // guarded(|| work(place))\n    work(place)",
        "    if place.is_null() {\n        return guarded(|| {});\n    }\n    work(place)",
        "    guarded(work(place))",
        "    guarded(|| {}).then(work)",
        "    unguarded(|| work(place))",
        "    unsafe { unknown(place) }",
        "    unsafe { other(place.add(list[0])) }",
        "    other(|| {}, list[0])",
    ] {
        assert!(!of(body), "{body}");
    }
}
