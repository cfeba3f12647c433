//! Which rows of a group claims mean by the name of a method. Pure.

use crate::bench::{Group, Row};
use crate::report::aspects::aspect;

/// The methods that claims name, with their schedule and their arch.
const METHODS: [(&str, &str, &str); 7] = [
    ("bsp-ps", "none", "ps"),
    ("bsp-a2a", "none", "a2a"),
    ("wfbp-ps", "wfbp", "ps"),
    ("wfbp-a2a", "wfbp", "a2a"),
    ("mg-wfbp", "mg-wfbp", "a2a"),
    ("bytescheduler-ps", "bytescheduler", "ps"),
    ("bytescheduler-a2a", "bytescheduler", "a2a"),
];

/// What presets begin with that are methods as the study ran them.
const AS_RUN: &str = "study-";

/// What follows the name of a method whose all-reduces are tuned or follow a policy: another method with the same
/// strategy.
const CHANGED: [&str; 2] = ["+tune", "+policy"];

/// The rows of two methods: both of the plain presets; else both as the study ran them; else the first ones whose
/// strategies are of their schedule and arch, whatever else these say.
pub fn rows<'a>(group: &'a Group, methods: [&str; 2]) -> Option<[&'a Row; 2]> {
    let [first, second] = methods;
    let both = |prefix: &str| Some([by_name(group, prefix, first)?, by_name(group, prefix, second)?]);
    both("").or_else(|| both(AS_RUN)).or_else(|| Some([any(group, first)?, any(group, second)?]))
}

/// What rows are called that were taken for these methods, to stand behind a place; nothing if they are the plain
/// presets.
pub fn called(rows: [&Row; 2], methods: [&str; 2]) -> String {
    let [first, second] = rows.map(|row| row.method.as_str());
    if [first, second] == methods { String::new() } else { format!(": {first} over {second}") }
}

fn by_name<'a>(group: &'a Group, prefix: &str, method: &str) -> Option<&'a Row> {
    group.rows.iter().find(|row| row.method.strip_prefix(prefix) == Some(method))
}

fn any<'a>(group: &'a Group, method: &str) -> Option<&'a Row> {
    let named = by_name(group, "", method).or_else(|| by_name(group, AS_RUN, method));
    named.or_else(|| group.rows.iter().find(|row| is_of(row, method)))
}

/// Is the row's strategy one of the method's schedule and arch, without what would change the gradients or their sum?
fn is_of(row: &Row, method: &str) -> bool {
    let Some((_, schedule, arch)) = METHODS.iter().find(|(name, ..)| *name == method) else { return false };
    let word = |name: &str| aspect(&row.strategy, name).first().copied();
    word("schedule") == Some(*schedule)
        && word("arch") == Some(*arch)
        && word("sync").is_none_or(|sync| sync == "bsp")
        && word("compress").is_none_or(|compressor| compressor == "none")
        && !CHANGED.iter().any(|end| row.method.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample_panels;

    /// Which rows are taken for WFBP on servers and among workers, of a group with these methods and strategies.
    fn taken(methods: &[(&str, &str)]) -> Option<[String; 2]> {
        let mut group = sample_panels().remove(1).groups.remove(0);
        let sample = group.rows[0].clone();
        let row = |(method, strategy): &(&str, &str)| Row {
            method: (*method).to_owned(),
            strategy: (*strategy).to_owned(),
            ..sample.clone()
        };
        group.rows = methods.iter().map(row).collect();
        rows(&group, ["wfbp-ps", "wfbp-a2a"]).map(|rows| rows.map(|row| row.method.clone()))
    }

    const SERVERS: &str = "sync=bsp,compress=none,schedule=wfbp,arch=ps:2:4000KiB:colocated:aggregate,protocol=auto";
    const WORKERS: &str = "sync=bsp,compress=none,schedule=wfbp,arch=a2a:auto,protocol=auto";

    #[test]
    fn plain_presets_go_before_those_of_the_study_and_these_before_all_else() {
        let both = |first: &str, second: &str| Some([first.to_owned(), second.to_owned()]);
        let own = [("own", SERVERS), ("wfbp", WORKERS)];
        assert_eq!(taken(&own), both("own", "wfbp"));
        let as_run = [("study-wfbp-ps", SERVERS), ("study-wfbp-a2a", WORKERS)];
        assert_eq!(taken(&[&own[..], &as_run].concat()), both("study-wfbp-ps", "study-wfbp-a2a"));
        let plain = [("wfbp-ps", SERVERS), ("wfbp-a2a", WORKERS)];
        assert_eq!(taken(&[&own[..], &as_run, &plain].concat()), both("wfbp-ps", "wfbp-a2a"));
        // One of each kind is better than nothing.
        assert_eq!(taken(&[own[0], as_run[1]]), both("own", "study-wfbp-a2a"));
    }

    #[test]
    fn what_does_something_else_is_not_taken() {
        let beside = |method: &str, strategy: &str| taken(&[("own", SERVERS), (method, strategy)]);
        assert!(beside("wfbp", WORKERS).is_some());
        for (method, strategy) in [
            ("wfbp", WORKERS.replace("compress=none", "compress=sign")),
            ("wfbp", WORKERS.replace("sync=bsp", "sync=local")),
            ("wfbp", WORKERS.replace("schedule=wfbp", "schedule=mg-wfbp")),
            ("wfbp", SERVERS.to_owned()),
            ("wfbp+tune", WORKERS.to_owned()),
            ("wfbp+policy", WORKERS.to_owned()),
        ] {
            assert_eq!(beside(method, &strategy), None, "{method}: {strategy}");
        }
    }

    #[test]
    fn only_other_names_are_said() {
        let mut group = sample_panels().remove(1).groups.remove(0);
        let methods = ["bsp-a2a", "bsp-ps"];
        let said = |group: &Group| rows(group, methods).map(|rows| called(rows, methods));
        assert_eq!(said(&group), Some(String::new()));
        for row in &mut group.rows {
            row.method.insert_str(0, AS_RUN);
        }
        assert_eq!(said(&group), Some(": study-bsp-a2a over study-bsp-ps".to_owned()));
    }
}
