//! NCCL's plug-in and cost model: release builds of the tests that show what is promised of them, and what these print.
//!
//! A test that has something to show prints `evidence: ` and an object; that it has passed says the rest. Nothing here needs a GPU, and
//! nothing here shows what a real NCCL does.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};

use super::report::{Findings, NOT_MEASURED, Table, Target};
use super::{Part, Place, announce};
use crate::compare::Error;
use crate::compare::ours::cargo;

/// Nanoseconds of a decision: the median over batches.
const MEDIAN_NS_MAX: f64 = 60.0;
/// Decisions that all ranks must agree on, and the test that makes so many.
const DECISIONS: u64 = 1_000_000;
const AGREED: &str = "a_million_decisions_are_the_same_on_all_ranks";

/// About what building the tests and running them takes.
const SECONDS: f64 = 600.0;

/// Tests that belong together.
struct Case {
    name: &'static str,
    /// What `cargo test` is told of the package, and which tests.
    package: &'static [&'static str],
    tests: &'static [&'static str],
    judge: fn(&Ran) -> (Vec<Target>, Table),
}

static CASES: [Case; 4] = [
    Case {
        name: "tables",
        package: &["--package", "paceline-tune", "--test", "nccl_tables", "--test", "nccl_cells"],
        tests: &[],
        judge: tables,
    },
    Case {
        name: "loader",
        package: &["--package", "paceline-nccl-plugin", "--test", "loader"],
        // All but what is in Python: the harness, and what else is asked of the library.
        tests: &[
            "plugin::",
            "wrong::",
            "speed_of_plugin::",
            "preloaded::",
            "newest::",
            "offered::",
            "entries::",
            "processes::",
            "profile::",
        ],
        judge: loader,
    },
    Case {
        name: "interleavings",
        package: &[
            "--package",
            "paceline-nccl-plugin",
            "--package",
            "paceline-tune",
            "--test",
            "publish",
            "--test",
            "swap",
            "--test",
            "swap_unordered",
        ],
        tests: &[],
        judge: interleavings,
    },
    Case { name: "agreement", package: &["--package", "paceline-train", "--lib"], tests: &[AGREED], judge: agreement },
];

/// What tests have shown.
#[derive(Debug, Default, PartialEq)]
struct Ran {
    passed: u64,
    failed: u64,
    evidence: Vec<Value>,
}

pub fn run(place: &Place) -> Result<Findings, Error> {
    let cases: Vec<&Case> = CASES.iter().filter(|case| place.wants(case.name)).collect();
    announce(Part::Nccl, cases.len(), SECONDS);
    let (mut targets, mut tables, mut measured) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for case in cases {
        eprintln!("{}: cargo {}", case.name, words(case).join(" "));
        let ran = ran(case, place)?;
        let (of_case, table) = (case.judge)(&ran);
        targets.extend(of_case);
        tables.push(table);
        let Ran { passed, failed, evidence } = ran;
        measured.insert(case.name.to_owned(), json!({"passed": passed, "failed": failed, "evidence": evidence}));
    }
    Ok(Findings {
        title: "NCCL's plug-in and cost model, without NCCL".into(),
        text: "Release builds of tests, and what they print. A harness does with the library what each release of NCCL does; no GPU \
               and no NCCL take part, so what a job gains, and that NCCL honours choices, is not shown here (docs/nccl.md)."
            .into(),
        targets,
        tables,
        measured: Value::Object(measured),
    })
}

fn words(case: &Case) -> Vec<&'static str> {
    // One after the other: what is timed has the machine for itself.
    let how = ["--nocapture", "--test-threads=1"];
    ["test", "--release"].iter().chain(case.package).chain(&["--"]).chain(case.tests).chain(&how).copied().collect()
}

fn ran(case: &Case, place: &Place) -> Result<Ran, Error> {
    let mut command = cargo(place.root);
    let output = command.args(words(case)).stdin(Stdio::null()).output().map_err(|error| format!("cargo: {error}"))?;
    let ran = read(&String::from_utf8_lossy(&output.stdout));
    // Of tests that have failed, the rest still counts; what was not built shows nothing.
    if ran.passed + ran.failed == 0 {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("`cargo {}` has run no test ({}): {said}", words(case).join(" "), output.status).into());
    }
    if ran.failed > 0 {
        eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(ran)
}

/// What `cargo test` has printed.
fn read(out: &str) -> Ran {
    let mut ran = Ran::default();
    for line in out.lines() {
        // The name of a test may stand before what it prints.
        if let Some((_, text)) = line.split_once("evidence: ") {
            ran.evidence.extend(serde_json::from_str::<Value>(text));
        } else if let Some((_, counts)) = line.split_once("test result: ") {
            let count = |what: &str| {
                counts.split(&['.', ';'][..]).find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
            };
            ran.passed += count("passed").unwrap_or(0);
            ran.failed += count("failed").unwrap_or(0);
        }
    }
    ran
}

impl Ran {
    /// What was shown of this.
    fn of<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a Value> {
        self.evidence.iter().filter(move |shown| shown["what"] == what)
    }

    /// All have passed, and there were some.
    fn holds(&self, shown: bool) -> Option<bool> {
        match (self.passed, self.failed) {
            (0, 0) => None,
            (_, failed) => Some(failed == 0 && shown),
        }
    }

    fn in_words(&self) -> String {
        format!("{} tests passed, {} failed", self.passed, self.failed)
    }
}

fn tables(ran: &Ran) -> (Vec<Target>, Table) {
    let releases: BTreeSet<&str> = ran.of("table").filter_map(|shown| shown["nccl"].as_str()).collect();
    let mut table = Table::new(
        "NCCL's tables, digit by digit",
        "Releases whose tables are held to what their formulas give by hand, or to a published log.",
        &["NCCL", "tables"],
    );
    for release in &releases {
        let count = ran.of("table").filter(|shown| shown["nccl"] == *release).count();
        table.rows.push(vec![(*release).to_owned(), count.to_string()]);
    }
    let target = Target {
        case: "NCCL's cost model".into(),
        demanded: "its tables, to the digit that it prints".into(),
        found: format!("{}, {} releases", ran.in_words(), releases.len()),
        met: ran.holds(!releases.is_empty()),
    };
    (vec![target], table)
}

fn loader(ran: &Ran) -> (Vec<Target>, Table) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut table = Table::new(
        "The plug-in as each release of NCCL uses it",
        "After each of so many calls, as two ranks, the harness has found nothing wrong: success, no entry of −1 touched, one set to zero \
         and no other changed, nothing outside of the table, no channels beyond NCCL's, the same on both ranks, chunks whole grains. \
         \"Decisions\": calls for which something was chosen. Of version 7 none is where no NCCL is loaded, as a release that is not known might \
         read them otherwise; in the last rows a stand-in says that it is the release whose version that is.",
        &["NCCL", "plug-in", "tuner", "calls", "decisions", "chunks cut"],
    );
    for shown in ran.of("release").chain(ran.of("stand-in")) {
        table
            .rows
            .push(["nccl", "library", "tuner", "calls", "decisions", "chunks"].map(|name| text(&shown[name])).into());
    }
    let releases: BTreeSet<String> = ran.of("release").map(|shown| text(&shown["nccl"])).collect();
    let calls: u64 = ran.of("release").filter_map(|shown| shown["calls"].as_u64()).sum();
    let mut targets = vec![Target {
        case: "the plug-in, release by release".into(),
        demanded:
            "each finds its version, and the harness finds nothing wrong, but in plug-ins that are wrong on purpose"
                .into(),
        found: format!("{}; {} releases, {calls} calls", ran.in_words(), releases.len()),
        met: ran.holds(!releases.is_empty()),
    }];
    // Of each library in each release.
    let timed: BTreeSet<(String, String)> =
        ran.of("cost").map(|shown| (text(&shown["library"]), text(&shown["nccl"]))).collect();
    for (library, nccl) in timed {
        let is_of_it = |shown: &&Value| shown["library"] == *library && shown["nccl"] == *nccl;
        let rounds: Vec<&Value> = ran.of("cost").filter(is_of_it).collect();
        // Of up to three rounds, one must hold: a machine may be busy for the length of one.
        let least = rounds.iter().filter_map(|shown| shown["median_ns"].as_f64()).reduce(f64::min);
        let calls = rounds.iter().filter_map(|shown| shown["calls"].as_u64()).max().unwrap_or_default();
        let what = format!("nanoseconds of a decision, median of {calls} calls");
        let case = format!("the plug-in, {library}, as NCCL {nccl} asks it");
        targets.push(Target::at_most(case, &what, MEDIAN_NS_MAX, least));
    }
    // In the library they are counted in a process of its own, and not where it is timed.
    for library in ["linked copy", "library"] {
        let shown = ran.of("cost").chain(ran.of("allocations")).filter(|shown| shown["library"] == library);
        let counted: Vec<(u64, u64)> =
            shown.filter_map(|shown| Some((shown["allocations"].as_u64()?, shown["calls"].as_u64()?))).collect();
        let (allocations, calls) = counted.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        targets.push(Target {
            case: format!("the plug-in, {library}"),
            demanded: "no allocation in a decision, in any release, with a policy or without".into(),
            found: if counted.is_empty() { NOT_MEASURED.to_owned() } else { format!("{allocations} in {calls} calls") },
            met: (!counted.is_empty()).then_some(allocations == 0),
        });
    }
    (targets, table)
}

fn interleavings(ran: &Ran) -> (Vec<Target>, Table) {
    let mut table = Table::new(
        "Policies that are replaced under those who read them",
        "In loom's model: one reader and a writer in all interleavings, two readers in those with three interruptions at most. The same code \
         without its ordering must fail there. Tests of the plug-in and of the tuner.",
        &["passed", "failed"],
    );
    table.rows.push(vec![ran.passed.to_string(), ran.failed.to_string()]);
    let target = Target {
        case: "the change of policies".into(),
        demanded: "nobody reads what was given back, or is not whole, in any interleaving".into(),
        found: ran.in_words(),
        met: ran.holds(true),
    };
    (vec![target], table)
}

fn agreement(ran: &Ran) -> (Vec<Target>, Table) {
    let mut table = Table::new(
        "Agreement",
        "Eight ranks, a leader whose policies come late, twice or not at all, ranks that ask more often than others, and communicators that \
         are split. The test ends when so many decisions were made, and fails at the first that is not the same on all ranks.",
        &["test", "decisions", "passed"],
    );
    table.rows.push(vec![AGREED.into(), DECISIONS.to_string(), (ran.passed == 1 && ran.failed == 0).to_string()]);
    let target = Target {
        case: "agreement of ranks".into(),
        demanded: format!("{DECISIONS} decisions are the same on all ranks"),
        found: ran.in_words(),
        met: ran.holds(true),
    };
    (vec![target], table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "\
running 3 tests
test speed_of_plugin::a_decision_is_cheap ... evidence: {\"what\":\"cost\",\"nccl\":\"2.30\",\"library\":\"library\",\"calls\":100,\"median_ns\":70.0,\"allocations\":null}
evidence: {\"what\":\"cost\",\"nccl\":\"2.30\",\"library\":\"library\",\"calls\":100,\"median_ns\":50.5,\"allocations\":null}
evidence: {\"what\":\"cost\",\"nccl\":\"2.29\",\"library\":\"library\",\"calls\":10,\"median_ns\":60.5,\"allocations\":null}
evidence: {\"what\":\"cost\",\"nccl\":\"2.30\",\"library\":\"linked copy\",\"calls\":100,\"median_ns\":61.0,\"allocations\":0}
ok
evidence: {\"what\":\"release\",\"nccl\":\"2.30\",\"library\":\"library\",\"tuner\":6,\"calls\":3000,\"decisions\":90,\"chunks\":8}
evidence: {\"what\":\"stand-in\",\"nccl\":\"2.32.6\",\"library\":\"library\",\"tuner\":7,\"calls\":3000,\"decisions\":80,\"chunks\":7}
evidence: {\"what\":\"allocations\",\"nccl\":\"2.30\",\"library\":\"linked copy\",\"calls\":5000,\"allocations\":0}
evidence: {\"what\":\"allocations\",\"nccl\":\"2.30\",\"library\":\"library\",\"calls\":4000,\"allocations\":1}
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 12 filtered out; finished in 1.00s

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    fn met(targets: &[Target]) -> Vec<Option<bool>> {
        targets.iter().map(|target| target.met).collect()
    }

    #[test]
    fn what_tests_print_is_read_and_judged() {
        let ran = read(OUT);
        assert_eq!((ran.passed, ran.failed, ran.evidence.len()), (4, 2, 8));
        let good = Ran { failed: 0, ..ran };
        let (targets, table) = loader(&good);
        // Of the newest release one of two rounds holds; 60.5 and 61 ns do not.
        let expected = [true, false, true, false, true, false].map(Some);
        assert_eq!(met(&targets), expected);
        assert_eq!(targets[2].case, "the plug-in, library, as NCCL 2.30 asks it");
        assert_eq!([&targets[4].found, &targets[5].found], ["0 in 5100 calls", "1 in 4000 calls"]);
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()) && table.rows[0][0] == "2.30");
        assert_eq!((table.rows.len(), &*table.rows[1][0]), (2, "2.32.6"), "{:?}", table.rows);
        assert_eq!(met(&tables(&good).0), [Some(false)], "no table was looked at");
        assert_eq!([met(&agreement(&good).0), met(&interleavings(&good).0)], [[Some(true)]; 2]);
    }

    #[test]
    fn what_fails_or_has_not_run_shows_nothing() {
        let failed = Ran { passed: 1, failed: 1, evidence: vec![json!({"what": "table", "nccl": "2.20.5"})] };
        assert_eq!(met(&tables(&failed).0), [Some(false)]);
        assert_eq!(met(&agreement(&failed).0), [Some(false)]);
        assert_eq!(met(&interleavings(&failed).0), [Some(false)]);
        assert_eq!(met(&loader(&Ran::default()).0), [None, None, None]);
        let shown = r#"evidence: {"what":"allocations","library":"library","calls":9,"allocations":2}"#;
        let allocating = Ran { passed: 1, ..read(shown) };
        assert_eq!(met(&loader(&allocating).0)[1..], [None, Some(false)]);
    }

    #[test]
    fn every_case_names_release_builds_and_its_tests() {
        let names: BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.iter().all(|case| words(case)[..2] == ["test", "--release"]));
        assert!(words(&CASES[3]).contains(&AGREED));
    }
}
