//! What holds for the whole repository, read from its sources: who may do what, and what the documentation must name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Crates that do no I/O, read no clock, start no threads and draw no randomness.
const PURE: [&str; 9] =
    ["plan", "strategy", "compress", "schedule", "collective", "engine", "predict", "tune", "chart"];

/// A source file that is compiled into a crate's library or program, without its tests.
struct Source {
    /// `plan`, `xtask`.
    crate_name: String,
    /// From the root of the repository.
    path: String,
    code: String,
}

/// The file at a path from the root.
fn page(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn crates() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(Path::new(ROOT).join("crates")).expect("the crates").flatten();
    let mut crates: Vec<_> =
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect();
    crates.retain(|(_, path)| path.join("Cargo.toml").exists());
    crates.push(("xtask".to_owned(), Path::new(ROOT).join("xtask")));
    crates
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// `tests.rs`, and what lies beside it in `tests/`.
fn is_of_tests(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "tests.rs")
        || file.parent().is_some_and(|folder| folder.ends_with("tests"))
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for (crate_name, directory) in crates() {
        let mut files = Vec::new();
        rust_files(&directory.join("src"), &mut files);
        for file in files.into_iter().filter(|file| !is_of_tests(file)) {
            let text = fs::read_to_string(&file).expect("a source");
            // Tests stand last in a file.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let path = file.strip_prefix(ROOT).expect("below the root").display().to_string();
            sources.push(Source { crate_name: crate_name.clone(), path, code: code.collect::<Vec<_>>().join("\n") });
        }
    }
    assert!(sources.len() > 100, "only {} sources were found", sources.len());
    sources
}

/// Nothing of `forbidden` stands in the sources that `applies` chooses.
fn absent(forbidden: &[&str], applies: impl Fn(&Source) -> bool) {
    let sources: Vec<Source> = sources().into_iter().filter(applies).collect();
    let found = sources.iter().flat_map(|source| {
        forbidden.iter().filter(|word| source.code.contains(**word)).map(|word| format!("{}: {word}", source.path))
    });
    let found: Vec<String> = found.collect();
    assert!(!sources.is_empty() && found.is_empty(), "{found:#?}");
}

#[test]
fn pure_crates_have_no_way_to_the_world() {
    let forbidden = [
        "std::fs",
        "std::net",
        "std::os",
        "std::thread",
        "std::process",
        "std::env",
        "std::io",
        "Instant::now",
        "SystemTime",
        "RandomState",
        "DefaultHasher",
        "rand::",
    ];
    absent(&forbidden, |source| PURE.contains(&&*source.crate_name));
}

#[test]
fn only_programs_print() {
    let forbidden = ["println!", "print!(", "dbg!", "stdout()", "stderr()"];
    absent(&forbidden, |source| source.crate_name != "cli" && source.crate_name != "xtask");
}

#[test]
fn only_fabric_the_plugin_and_programs_read_the_environment() {
    let forbidden = ["env::var", "env::args", "env::current_exe"];
    absent(&forbidden, |source| !["cli", "xtask", "fabric", "nccl-plugin"].contains(&&*source.crate_name));
}

#[test]
fn only_the_backend_knows_the_framework() {
    absent(&["candle_core", "candle_nn"], |source| !source.path.starts_with("crates/train/src/backend"));
}

#[test]
fn every_crate_stands_in_both_maps() {
    let (readme, architecture) = (page("README.md"), page("docs/architecture.md"));
    for (name, _) in crates() {
        let place = if name == "xtask" { name.clone() } else { format!("crates/{name}") };
        assert!(readme.contains(&format!("| [`{name}`]({place}) |")), "README.md has no row for {name}");
        assert!(architecture.contains(&format!("| `{name}` |")), "docs/architecture.md has no row for {name}");
    }
}

/// Every page is reached from the README, directly or from the page about the architecture.
#[test]
fn every_page_is_linked() {
    let linking = page("README.md") + &page("docs/architecture.md");
    for entry in fs::read_dir(Path::new(ROOT).join("docs")).expect("the pages").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(linking.contains(&name), "no page links docs/{name}");
    }
}

/// The pages, from the root.
fn pages() -> impl Iterator<Item = String> {
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).expect("the pages").flatten();
    let docs = docs.map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    docs.filter(|path| path.ends_with(".md")).chain(["README.md".to_owned()])
}

/// A heading that stands twice has two anchors of which links reach one, or is a part of the page that was pasted twice.
#[test]
fn no_page_repeats_a_heading() {
    for path in pages() {
        let text = page(&path);
        // What is between fences is code, of which a comment may begin like a heading.
        let prose = text.split("```").step_by(2);
        let (mut seen, mut repeated) = (BTreeSet::new(), Vec::new());
        for heading in prose.flat_map(str::lines).filter(|line| line.starts_with('#')) {
            if !seen.insert(heading) {
                repeated.push(heading);
            }
        }
        assert!(!seen.is_empty() && repeated.is_empty(), "{path}: {repeated:#?}");
    }
}

/// Whatever a page links or names among the kept runs is there.
#[test]
fn what_pages_link_exists() {
    let (mut targets, mut missing) = (0, Vec::new());
    for path in pages() {
        let text = page(&path);
        let folder = Path::new(ROOT).join(&path).parent().expect("a folder").to_owned();
        // What stands in brackets before parentheses may be a formula, too: no file is called (n−1)·β.
        let links = text.split("](").skip(1).filter_map(|after| Some(after.split_once(')')?.0));
        let links = links.filter(|target| target.chars().all(is_of_path)).filter_map(|target| target.split('#').next());
        let links = links.map(|target| folder.join(target));
        // Runs are called after their day; benches/runs/RUN stands for any.
        let runs = text.split("benches/runs/20").skip(1).filter_map(|after| after.split(|c| !is_of_path(c)).next());
        let runs = runs.map(|rest| Path::new(ROOT).join(format!("benches/runs/20{}", rest.trim_end_matches('.'))));
        for target in links.chain(runs) {
            targets += 1;
            if !target.exists() {
                missing.push(format!("{path} names {}", target.display()));
            }
        }
    }
    assert!(targets > 50 && missing.is_empty(), "of {targets}: {missing:#?}");
}

fn is_of_path(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-/#".contains(character)
}

#[test]
fn no_file_holds_two_ideas() {
    let mut files = Vec::new();
    crates().iter().for_each(|(_, directory)| rust_files(directory, &mut files));
    for file in files {
        let lines = fs::read_to_string(&file).expect("a source").lines().count();
        assert!(lines <= 500, "{} has {lines} lines: look for the second idea in it", file.display());
    }
}

/// Each text of an `#[error]` has a literal part by which it is found in docs/errors.md. Refusals of the verifier are
/// not for users.
#[test]
fn every_error_is_explained() {
    let explained = page("docs/errors.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let sources = sources();
    let of_users =
        sources.iter().filter(|source| source.path.starts_with("crates/") && !source.path.contains("/verify/"));
    let parts: BTreeSet<(String, &str)> = of_users
        .flat_map(|source| error_texts(&source.code).into_iter().map(|text| (text, &*source.path)))
        .filter_map(|(text, path)| Some((literal_part(&text)?, path)))
        .collect();
    assert!(parts.len() > 40, "only {} texts were found", parts.len());
    let missing: Vec<_> = parts.iter().filter(|(part, _)| !explained.contains(part)).collect();
    assert!(missing.is_empty(), "docs/errors.md does not have: {missing:#?}");
}

/// Every sentence that docs/errors.md quotes is still said: three words in a row of it stand in a source, or two if it is
/// short. (One of less than five is hardly more than values.)
#[test]
fn what_the_page_about_errors_quotes_is_said() {
    let code: String = sources().into_iter().map(|source| source.code + "\n").collect();
    let said: [BTreeSet<String>; 2] = [2, 3].map(|length| runs(&fixed_words(&code), length).collect());
    let page = page("docs/errors.md");
    let quoted: Vec<&str> = page.lines().filter_map(message).flat_map(|message| message.split("; ")).collect();
    assert!(quoted.len() > 300, "only {} sentences were found", quoted.len());
    let is_said = |sentence: &str| {
        let words = fixed_words(sentence);
        match words.len() {
            ..5 => true,
            5..7 => runs(&words, 2).any(|run| said[0].contains(&run)),
            7.. => runs(&words, 3).any(|run| said[1].contains(&run)),
        }
    };
    let stale: Vec<_> = quoted.iter().filter(|sentence| !is_said(sentence)).collect();
    assert!(stale.is_empty(), "docs/errors.md quotes what nothing says: {stale:#?}");
}

/// What a row of a table quotes: its first cell, or the second if the first names a variant of an error.
fn message(line: &str) -> Option<&str> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let first = cells.next()?;
    let variant = first.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    let is_variant = variant.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphabetic()));
    let message = if is_variant { cells.next()? } else { first };
    (message != "message" && !message.starts_with('-')).then_some(message)
}

/// The words of a text that stand for themselves, bare: no `{placeholder}`, and in its place no number, no `HOST`.
fn fixed_words(text: &str) -> Vec<String> {
    // A literal may go on in the next line.
    let text = text.replace("\\\n", " ");
    let bare = |word: &str| {
        let without_placeholders: String = word.split('{').filter_map(|piece| piece.rsplit('}').next()).collect();
        without_placeholders.trim_matches(|c: char| !c.is_alphanumeric()).to_owned()
    };
    let fixed = |word: &String| !word.is_empty() && !word.contains(|c: char| c.is_numeric() || c.is_uppercase());
    text.split_whitespace().map(bare).filter(fixed).collect()
}

/// Every so many of the words in a row.
fn runs(words: &[String], length: usize) -> impl Iterator<Item = String> {
    words.windows(length).map(|run| run.join(" "))
}

/// The texts of all `#[error("…")]`.
fn error_texts(code: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for after in code.split("#[error(").skip(1) {
        let Some(literal) = after.trim_start().strip_prefix('"') else { continue };
        let (mut text, mut rest) = (String::new(), literal.chars().peekable());
        while let Some(character) = rest.next().filter(|character| *character != '"') {
            match character {
                '\\' if rest.next_if_eq(&'\n').is_some() => while rest.next_if(|c| c.is_whitespace()).is_some() {},
                '\\' => text.extend(rest.next()),
                character => text.push(character),
            }
        }
        texts.push(text);
    }
    texts
}

/// The first piece between placeholders and punctuation that is long enough to be looked for.
fn literal_part(text: &str) -> Option<String> {
    let without_placeholders: Vec<&str> = text.split('{').map(|piece| piece.rsplit('}').next().unwrap_or("")).collect();
    let mut pieces = without_placeholders.iter().flat_map(|piece| piece.split([':', ';', ',', '(', ')', '`']));
    pieces.find_map(|piece| Some(piece.trim()).filter(|piece| piece.len() >= 8)).map(str::to_owned)
}
