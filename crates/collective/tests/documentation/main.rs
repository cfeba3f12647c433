//! `docs/algorithms.md` has every algorithm, and its formulas are those of the code.

mod formula;

use std::collections::BTreeMap;

use paceline_collective::registry::{find, registry};
use paceline_collective::{Algorithm, Topology};
use paceline_plan::{CollectiveKind, LinkCost, LinkCosts};

use formula::evaluate;

const PAGE: &str = include_str!("../../../../docs/algorithms.md");
const COLUMNS: [&str; 7] = ["algorithm", "messages", "rounds", "bytes sent", "first tile", "each further tile", "gaps"];

#[test]
fn every_algorithm_has_a_row_and_every_row_an_algorithm() {
    let rows = rows();
    for algorithm in registry() {
        assert!(rows.contains_key(&key(*algorithm)), "{} {} has no row", algorithm.kind(), algorithm.name());
    }
    for (kind, name) in rows.keys() {
        find(kind.parse().unwrap(), name).unwrap();
    }
    assert_eq!(rows.len(), registry().len());
}

#[test]
fn every_algorithm_is_said_to_win_somewhere_and_to_come_from_somewhere() {
    for algorithm in registry() {
        let section = sections().remove(algorithm.kind().name()).unwrap();
        let bullet = format!("- **{}** ", algorithm.name());
        let description = section.split("\n- ").find(|text| format!("- {text}").starts_with(&bullet));
        let line = description.unwrap_or_else(|| panic!("{} {} is not described", algorithm.kind(), algorithm.name()));
        assert!(line.contains("win"), "{line}");
        assert!(["(19", "(20", "libraries", "shot"].iter().any(|source| line.contains(source)), "no source: {line}");
    }
}

#[test]
fn every_formula_is_that_of_the_code() {
    let link = LinkCost { alpha: 3e-6, overhead: 1e-6, beta: 0.7e-9, gamma: 0.2e-9 };
    for algorithm in registry() {
        for world in (2..=64).filter(|&world| algorithm.supports(world)) {
            compare(*algorithm, 1, world, &LinkCosts::uniform(link));
        }
    }
}

#[test]
fn every_formula_with_hosts_is_that_of_the_code() {
    let within = LinkCost { alpha: 3e-6, overhead: 1e-6, beta: 0.7e-9, gamma: 0.2e-9 };
    let across = LinkCost { alpha: 20e-6, overhead: 4e-6, beta: 3e-9, gamma: 0.2e-9 };
    let rows = rows_with_mark('⌂');
    for algorithm in registry() {
        assert_eq!(rows[&key(*algorithm)], algorithm.name() == "hierarchical", "{}", algorithm.name());
        if rows[&key(*algorithm)] {
            let shapes = (1..=9).flat_map(|hosts| (1..=9).map(move |ranks| (hosts, ranks)));
            for (hosts, ranks) in shapes.filter(|(hosts, ranks)| hosts * ranks > 1) {
                compare(
                    *algorithm,
                    hosts,
                    ranks,
                    &LinkCosts { within, across, contention: 0.0, contention_within: 0.0, fetched: false },
                );
            }
        }
    }
}

/// Where latency is most of the time, and where bandwidth is.
fn compare(algorithm: &dyn Algorithm, hosts: usize, ranks: usize, costs: &LinkCosts) {
    [1e3, 1e6].into_iter().for_each(|bytes| compare_at(algorithm, (hosts, ranks), bytes, costs));
}

fn compare_at(algorithm: &dyn Algorithm, (hosts, ranks): (usize, usize), bytes: f64, costs: &LinkCosts) {
    let topology = Topology::regular(hosts, ranks);
    let row = &rows()[&key(algorithm)];
    let time = algorithm.tile_seconds(&topology, bytes, costs);
    let expected = [
        algorithm.messages(&topology) as f64,
        algorithm.rounds(&topology) as f64,
        algorithm.bytes_sent(&topology, bytes),
        time.first,
        time.next,
        time.gaps,
    ];
    for ((column, formula), expected) in COLUMNS[1..].iter().zip(row).zip(expected) {
        let letters = |letter, primed| letter_value(letter, primed, (hosts, ranks), bytes, costs);
        let value = evaluate(formula, &letters).unwrap();
        let close = (value - expected).abs() <= 1e-9 * expected.abs();
        let name =
            format!("{} {}, {hosts} hosts of {ranks}, {bytes} bytes, {column}", algorithm.kind(), algorithm.name());
        assert!(close, "{name}: `{formula}` is {value}, the code says {expected}");
    }
}

#[test]
fn every_unmarked_row_is_exact() {
    // What the tests of the cost model tolerate stands on the page: rows without a mark are compared exactly there.
    let marked: Vec<_> = rows_with_mark('≈').into_iter().filter(|(_, marked)| *marked).map(|(key, _)| key).collect();
    let expected = [
        ("all-gather", "bruck"),
        ("all-reduce", "2d-torus"),
        ("all-reduce", "bcube"),
        ("all-reduce", "binary-tree"),
        ("all-reduce", "direct"),
        ("all-reduce", "direct-scatter"),
        ("all-reduce", "double-binary-tree"),
        ("all-reduce", "halving-doubling"),
        ("all-reduce", "hierarchical"),
        ("gather", "binomial"),
        ("push", "hierarchical"),
        ("push-pull", "hierarchical"),
    ];
    assert_eq!(marked, expected.map(|(kind, name)| (kind.to_owned(), name.to_owned())));
}

fn letter_value(
    letter: char,
    primed: bool,
    (hosts, ranks): (usize, usize),
    bytes: f64,
    costs: &LinkCosts,
) -> Option<f64> {
    let world = hosts * ranks;
    let link = if primed { &costs.across } else { &costs.within };
    let p = 1 << world.ilog2();
    let r = world - p;
    Some(match letter {
        'n' => world as f64,
        'p' => p as f64,
        'r' => r as f64,
        'h' => hosts as f64,
        'k' => ranks as f64,
        'c' => (ranks - usize::from(hosts < 2)) as f64,
        'q' => (0..p.ilog2()).map(|i| (1 << i) + r.min(1 << i)).sum::<usize>() as f64,
        'x' => short_side(world) as f64,
        'y' => (world / short_side(world)) as f64,
        'd' => bcube(world).0 as f64,
        'v' => bcube(world).1 as f64,
        'S' => bytes,
        'α' => link.alpha,
        'o' => link.overhead,
        'β' => link.beta,
        'γ' => link.gamma,
        _ => return None,
    })
}

/// The largest divisor up to the square root.
fn short_side(world: usize) -> usize {
    (1..=world).filter(|side| world.is_multiple_of(*side) && side * side <= world).max().unwrap_or(1)
}

/// The levels of a BCube, and the neighbours of a rank: of a power; else of a product of two; else of one switch.
fn bcube(world: usize) -> (usize, usize) {
    for levels in 2..=6 {
        if let Some(ports) = (2..=world).find(|ports| ports.pow(levels) == world) {
            return (levels as usize, levels as usize * (ports - 1));
        }
    }
    match short_side(world) {
        1 => (1, world - 1),
        short => (2, short - 1 + world / short - 1),
    }
}

type Key = (String, String);

fn key(algorithm: &dyn Algorithm) -> Key {
    (algorithm.kind().name().to_owned(), algorithm.name().to_owned())
}

/// The formulas of each algorithm, in the order of the columns.
fn rows() -> BTreeMap<Key, Vec<String>> {
    table_rows().map(|(kind, cells)| ((kind, name(&cells[0]).to_owned()), cells[1..].to_vec())).collect()
}

/// Which algorithms the page marks so.
fn rows_with_mark(mark: char) -> BTreeMap<Key, bool> {
    table_rows().map(|(kind, cells)| ((kind, name(&cells[0]).to_owned()), cells[0].contains(mark))).collect()
}

fn name(cell: &str) -> &str {
    cell.trim_end_matches(['≈', '⌂', ' '])
}

fn table_rows() -> impl Iterator<Item = (String, Vec<String>)> {
    sections().into_iter().flat_map(|(kind, section)| {
        let mut table = section.lines().filter(|line| line.starts_with('|')).map(cells);
        assert_eq!(table.next().unwrap(), COLUMNS, "the header of {kind}");
        table.skip(1).map(move |cells| (kind.to_owned(), cells)).collect::<Vec<_>>()
    })
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

/// The sections that are named after a collective.
fn sections() -> BTreeMap<&'static str, &'static str> {
    let section = |text: &'static str| text.split_once('\n');
    PAGE.split("\n## ").filter_map(section).filter(|(title, _)| title.parse::<CollectiveKind>().is_ok()).collect()
}
