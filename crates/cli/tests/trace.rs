//! The timeline of a call: the form that Chrome and Perfetto read, and that all ranks are in it.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);
const RANKS: u64 = 3;

/// The timeline of one call, with these options.
fn timeline(name: &str, options: &[&str]) -> Value {
    let path = scratch_file(&format!("{name}.json"));
    let file = path.to_string_lossy();
    let sizes = ["--min", "1KiB", "--factor", "1000", "--iterations", "2", "--trace", &file];
    run(paceline(&[&["perf"], options, &sizes].concat()), LIMIT).expect_code(0);
    let text = fs::read_to_string(&path).expect("the file");
    fs::remove_file(&path).expect("our own file");
    serde_json::from_str(&text).expect("JSON")
}

fn events(timeline: &Value) -> &Vec<Value> {
    timeline["traceEvents"].as_array().expect("the events")
}

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {event}"))
}

/// What every event must have; spans of one track do not overlap; every track and process has a name.
fn check_form(timeline: &Value) {
    let (mut spans, mut named) = (BTreeMap::<(u64, u64), Vec<(f64, f64)>>::new(), BTreeSet::new());
    for event in events(timeline) {
        let place = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a thread"));
        assert!(place.0 < RANKS && !event["name"].as_str().expect("a name").is_empty(), "{event}");
        let ts = number(event, "ts");
        match event["ph"].as_str().expect("a phase") {
            "X" => {
                assert!(
                    number(event, "dur") >= 0.0 && event["cat"].is_string() && event["args"].is_object(),
                    "{event}"
                );
                spans.entry(place).or_default().push((ts, ts + number(event, "dur")));
            }
            "M" if event["name"] == "thread_name" => drop(named.insert(place)),
            "M" => assert!(event["args"].is_object(), "{event}"),
            "s" | "f" => assert!(event["id"].is_string(), "{event}"),
            other => panic!("phase {other} in {event}"),
        }
    }
    for (place, mut spans) in spans {
        assert!(named.contains(&place), "track {place:?} has no name");
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        // To the rounding of a sum.
        let apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 0.01);
        assert!(apart, "spans of track {place:?} overlap: {spans:?}");
    }
}

/// The names of the messages that one side of the links has, in all ranks.
fn messages(timeline: &Value, side: &str) -> BTreeSet<String> {
    let carries = |event: &&Value| event["cat"] == side && (event["name"] == "data" || event["name"] == "reference");
    let names = events(timeline).iter().filter(carries).map(|event| {
        let pid = if side == "sent" { "from" } else { "to" };
        assert_eq!(event["pid"], event["args"][pid], "{event}");
        let name = ["from", "to", "operation", "part", "tile", "message", "offset", "bytes"];
        name.map(|field| format!("{field} {}", number(&event["args"], field))).join(" ")
    });
    let names: Vec<String> = names.collect();
    let different: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(names.len(), different.len(), "a message was {side} twice");
    different
}

#[test]
fn what_one_rank_sends_another_receives_and_the_form_is_right() {
    let cases: [(&str, &[&str]); 4] = [
        ("tcp", &["all-reduce", "--algorithm", "ring", "--transport", "tcp", "--max", "2MiB", "--tcp-streams", "2"]),
        ("shm", &["all-reduce", "--algorithm", "direct", "--transport", "shm", "--max", "2MiB", "--alloc"]),
        ("small", &["all-gather", "--transport", "shm", "--max", "1KiB"]),
        ("barrier", &["barrier", "--transport", "tcp"]),
    ];
    for (name, options) in cases {
        let timeline = timeline(name, &[options, &["--ranks", "3"]].concat());
        check_form(&timeline);
        let calls: Vec<&Value> = events(&timeline).iter().filter(|event| event["cat"] == "call").collect();
        let ranks: BTreeSet<u64> = calls.iter().filter_map(|call| call["pid"].as_u64()).collect();
        assert_eq!((calls.len(), ranks), (3, (0..RANKS).collect()), "{name}: one call of each rank");
        for call in calls {
            assert_eq!((&call["name"], &call["args"]["failed"]), (&options[0].into(), &false.into()), "{name}");
        }
        let (sent, received) = (messages(&timeline, "sent"), messages(&timeline, "received"));
        assert!(sent.len() >= 6, "{name}: {sent:?}");
        assert_eq!(sent, received, "{name}");
        let arrows = |ph: &str| events(&timeline).iter().filter(|event| event["ph"] == ph).count();
        assert_eq!((arrows("s"), arrows("f")), (sent.len(), sent.len()), "{name}");
        let other = &timeline["otherData"];
        let errors = other["clock_error_us"].as_array().expect("an error of each rank");
        assert_eq!((errors.len(), &errors[0]), (3, &0.0.into()), "{other}");
        assert!(errors[1..].iter().all(|error| error.as_f64() > Some(0.0)), "{other}");
        assert_eq!(other["dropped_events"], serde_json::json!([0, 0, 0]), "{other}");
        causes_come_first(&timeline);
    }
}

/// No message is complete before it was sent, but for what the clocks may be off.
fn causes_come_first(timeline: &Value) {
    let error = |rank: &Value| {
        let rank = rank.as_u64().expect("a rank") as usize;
        timeline["otherData"]["clock_error_us"][rank].as_f64().expect("a number")
    };
    let at = |ph: &str| {
        let arrows = events(timeline).iter().filter(|event| event["ph"] == ph);
        arrows.map(|event| (event["id"].to_string(), event)).collect::<BTreeMap<_, _>>()
    };
    let (sent, received) = (at("s"), at("f"));
    for (id, sent) in sent {
        let received = received[&id];
        let late = number(received, "ts") - number(sent, "ts");
        assert!(late >= -error(&sent["pid"]) - error(&received["pid"]), "message {id} takes {late} us");
    }
}

#[test]
fn local_work_is_in_the_timeline() {
    let options = ["all-reduce", "--ranks", "3", "--algorithm", "direct", "--transport", "shm", "--max", "2MiB"];
    let timeline = timeline("work", &[&options[..], &["--alloc"]].concat());
    for rank in 0..RANKS {
        let combined = |event: &&Value| {
            event["pid"] == rank
                && (event["args"]["combined"] == true || (event["cat"] == "work" && event["name"] == "combine"))
        };
        assert!(events(&timeline).iter().any(|event| combined(&event)), "rank {rank} has combined nothing");
    }
}

#[test]
fn a_timeline_of_other_measurements_is_refused_and_a_bad_path_is_found_out_early() {
    let overlap = ["perf", "all-reduce", "--compute", "--trace", "/tmp/never"];
    run(paceline(&overlap), LIMIT).expect_code(2).expect_stderr(&["--compute", "--trace"]);
    let nowhere = ["perf", "all-reduce", "--trace", "/no/such/directory/trace.json"];
    let outcome = run(paceline(&nowhere), LIMIT).expect_code(1);
    outcome.expect_stderr(&["cannot write the results to /no/such/directory/trace.json"]);
}
