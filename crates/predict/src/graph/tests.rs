use super::*;
use crate::random::Random;

fn after(before: &[&str], task: Task) -> Task {
    Task { after: before.iter().map(|&before| before.to_owned()).collect(), ..task }
}

fn graph(tasks: &[(&str, &str, f64, &[&str])]) -> TaskGraph {
    let task = |&(name, resource, seconds, before): &(&str, &str, f64, &[&str])| {
        let task = Task::new(name, resource, seconds);
        after(before, task)
    };
    TaskGraph { tasks: tasks.iter().map(task).collect(), ..TaskGraph::default() }
}

fn with_links(links: &[(&str, f64)], tasks: Vec<Task>) -> TaskGraph {
    let link = |&(name, bytes_per_s): &(&str, f64)| Link { name: name.to_owned(), bytes_per_s };
    TaskGraph { links: links.iter().map(link).collect(), tasks }
}

#[test]
fn a_resource_does_one_thing_at_a_time_and_the_urgent_first() {
    let mut tasks = graph(&[
        ("load", "disk", 1.0, &[]),
        ("slow", "gpu", 4.0, &["load"]),
        ("fast", "gpu", 1.0, &["load"]),
        ("end", "disk", 1.0, &["fast"]),
    ]);
    let played = tasks.play().unwrap();
    assert_eq!((played.seconds, &played.times_s[2]), (7.0, &(5.0, 6.0)));
    assert_eq!(played.critical, ["load", "slow", "fast", "end"]);
    assert_eq!(played.busy_s["gpu"], 5.0);
    tasks.tasks[1].priority = 1;
    let played = tasks.play().unwrap();
    assert_eq!((played.seconds, &*played.critical), (6.0, &["load", "fast", "slow"].map(String::from)[..]));
    // A latency keeps nothing busy.
    tasks.tasks[2].latency_s = 10.0;
    assert_eq!(tasks.play().unwrap().times_s, [(0.0, 1.0), (2.0, 6.0), (1.0, 12.0), (12.0, 13.0)]);
}

#[test]
fn nothing_takes_no_time() {
    assert_eq!(TaskGraph::default().play().unwrap().seconds, 0.0);
    let played = graph(&[("a", "x", 0.0, &[]), ("b", "x", 0.0, &["a"])]).play().unwrap();
    assert_eq!(played.times_s, [(0.0, 0.0), (0.0, 0.0)]);
    let transfers = vec![Task::transfer("a", 0.0, &["wire"]), after(&["a"], Task::transfer("b", 0.0, &["wire"]))];
    let played = with_links(&[("wire", 1.0)], transfers).play().unwrap();
    assert_eq!(played.times_s, [(0.0, 0.0), (0.0, 0.0)]);
}

#[test]
fn transfers_that_share_a_link_take_twice_as_long() {
    let play = |tasks| with_links(&[("wire", 100.0), ("idle", 1.0)], tasks).play().unwrap();
    let (a, b) = (Task::transfer("a", 100.0, &["wire"]), Task::transfer("b", 100.0, &["wire"]));
    assert_eq!(play(vec![a.clone()]).times_s, [(0.0, 1.0)]);
    let played = play(vec![a.clone(), b.clone()]);
    assert_eq!((played.seconds, played.times_s), (2.0, vec![(0.0, 2.0), (0.0, 2.0)]));
    assert_eq!(played.links["wire"], Carried { bytes: 200.0, busy_s: 2.0 });
    assert_eq!(played.links["idle"], Carried { bytes: 0.0, busy_s: 0.0 });
    assert!(played.busy_s.is_empty());
    // One after the other each has the link for itself.
    assert_eq!(play(vec![a.clone(), after(&["a"], b.clone())]).times_s, [(0.0, 1.0), (1.0, 2.0)]);
    // Before its bytes move a transfer takes nothing of the link.
    assert_eq!(play(vec![Task { latency_s: 1.0, ..a }, b]).times_s, [(0.0, 2.0), (0.0, 1.0)]);
}

#[test]
fn a_transfer_takes_its_latency_and_what_its_slowest_link_takes() {
    let seconds = |task: Task| with_links(&[("fast", 100.0), ("slow", 50.0)], vec![task]).play().unwrap().seconds;
    assert_eq!(seconds(Task::transfer("a", 100.0, &["fast"])), 1.0);
    assert_eq!(seconds(Task::transfer("a", 100.0, &["fast", "slow"])), 2.0);
    assert_eq!(seconds(Task { latency_s: 0.5, ..Task::transfer("a", 100.0, &["slow", "fast"]) }), 2.5);
    assert_eq!(seconds(Task { latency_s: 0.5, ..Task::transfer("a", 0.0, &["slow"]) }), 0.5);
}

/// Three flows on two links: the one over both shares the narrow link equally with another, and leaves to the third, on the
/// wide link, more than half of it.
#[test]
fn links_are_shared_max_min_fairly() {
    let transfers = vec![
        Task::transfer("both", 10.0, &["narrow", "wide"]),
        Task::transfer("narrow", 20.0, &["narrow"]),
        Task::transfer("wide", 45.0, &["wide"]),
    ];
    // 5, 5 and 15 bytes per second until 2 s; then 10 bytes are left of the second, and 15 of the third.
    let played = with_links(&[("narrow", 10.0), ("wide", 20.0)], transfers).play().unwrap();
    assert_eq!(played.times_s, [(0.0, 2.0), (0.0, 3.0), (0.0, 2.75)]);
    assert_eq!(played.links["narrow"], Carried { bytes: 30.0, busy_s: 3.0 });
    assert_eq!(played.links["wide"], Carried { bytes: 55.0, busy_s: 2.75 });
}

#[test]
fn work_and_transfers_wait_for_each_other() {
    let tasks = vec![
        Task::new("forward", "gpu", 1.0),
        Task::transfer("fetch", 200.0, &["wire"]),
        after(&["forward"], Task { latency_s: 0.5, ..Task::transfer("load", 100.0, &["wire"]) }),
        after(&["fetch"], Task::new("backward", "gpu", 1.0)),
        after(&["load", "backward"], Task::new("update", "gpu", 1.0)),
    ];
    // Until 1.5 s 150 bytes of the 200 are there; the other 50, and 50 of the 100, by 2.5 s.
    let played = with_links(&[("wire", 100.0)], tasks).play().unwrap();
    assert_eq!(played.times_s, [(0.0, 1.0), (0.0, 2.5), (1.0, 3.0), (2.5, 3.5), (3.5, 4.5)]);
    assert_eq!(played.critical, ["fetch", "backward", "update"]);
    assert_eq!((played.busy_s["gpu"], played.links["wire"].busy_s), (3.0, 3.0));
}

/// 0.1 and 0.2 are a little more than 0.3. Beside a transfer that is the same moment, in which the urgent task is the first;
/// where times come from the graph alone they are as they stand there.
#[test]
fn ends_that_differ_by_rounding_are_one_moment_where_there_are_links() {
    let with = |links: &[(&str, f64)], send: Task| {
        let tasks = vec![
            Task::new("first", "cpu", 0.1),
            after(&["first"], Task::new("second", "cpu", 0.2)),
            send,
            after(&["second"], Task::new("urgent", "gpu", 1.0)),
            after(&["send"], Task { priority: 1, ..Task::new("other", "gpu", 1.0) }),
        ];
        with_links(links, tasks).play().unwrap().times_s
    };
    let times_s = with(&[("wire", 10.0)], Task::transfer("send", 3.0, &["wire"]));
    assert_eq!((times_s[3].0, times_s[4].0), (0.3, 1.3));
    let times_s = with(&[], Task::new("send", "wire", 0.3));
    assert_eq!((times_s[3].0, times_s[4].0), (1.3, 0.3));
}

#[test]
fn a_link_that_nobody_shares_is_a_resource_of_its_own() {
    for seed in 0..50 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (mut works, mut transfers) = (TaskGraph::default(), TaskGraph::default());
        for number in 0..40 {
            let name = number.to_string();
            let work = Task {
                latency_s: random.below(3) as f64,
                after: (0..random.below(3).min(number)).map(|_| random.below(number).to_string()).collect(),
                ..Task::new(&name, ["cpu", "gpu"][random.below(2)], random.below(4) as f64)
            };
            if random.below(2) == 0 {
                let seconds = 1.0 + random.below(4) as f64;
                let (latency_s, after) = (work.latency_s, work.after.clone());
                works.tasks.push(Task { latency_s, after: after.clone(), ..Task::new(&name, &name, seconds) });
                let transfer = Task::transfer(&name, 4.0 * seconds, &[name.as_str()]);
                transfers.tasks.push(Task { latency_s, after, ..transfer });
                transfers.links.push(Link { name, bytes_per_s: 4.0 });
            } else {
                let work = Task { priority: random.below(3) as u32, ..work };
                works.tasks.push(work.clone());
                transfers.tasks.push(work);
            }
        }
        let (works, transfers) = (works.play().unwrap(), transfers.play().unwrap());
        assert_eq!((works.times_s, works.critical), (transfers.times_s, transfers.critical));
        assert!(transfers.links.iter().all(|(link, carried)| carried.busy_s == works.busy_s[link]));
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    let refused = |tasks: &[(&str, &str, f64, &[&str])]| graph(tasks).play().unwrap_err().to_string();
    assert_eq!(refused(&[("a", "x", 1.0, &[]), ("a", "x", 1.0, &[])]), "two tasks have the name `a`");
    assert_eq!(refused(&[("a", "x", 1.0, &["b"])]), "the task `a` waits for `b`, and there is no such task");
    assert_eq!(refused(&[("a", "x", -1.0, &[])]), "the task `a`: seconds is -1, which is no time");
    assert!(refused(&[("a", "x", f64::NAN, &[])]).contains("NaN"));
    let circle =
        refused(&[("z", "x", 1.0, &["a"]), ("a", "x", 1.0, &["c"]), ("b", "x", 1.0, &["a"]), ("c", "y", 1.0, &["b"])]);
    assert_eq!(circle, "tasks wait for each other in a circle, such as b, c, a");
    assert_eq!(refused(&[("a", "x", 1.0, &["a"])]), "tasks wait for each other in a circle, such as a");
    let late = "the task `b` would end later than any number says";
    assert_eq!(refused(&[("a", "x", 1e308, &[]), ("b", "x", 1e308, &[])]), late);
}

#[test]
fn transfers_that_make_no_sense_are_refused_and_named() {
    let refused = |task: Task| with_links(&[("wire", 1.0)], vec![task]).play().unwrap_err().to_string();
    let transfer = || Task::transfer("a", 1.0, &["wire"]);
    for (task, says) in [
        (Task::transfer("a", -1.0, &["wire"]), "the task `a`: bytes is -1, which is no number of bytes"),
        (Task::transfer("a", f64::INFINITY, &["wire"]), "the task `a`: bytes is inf, which is no number of bytes"),
        (Task::transfer("a", f64::NAN, &["wire"]), "the task `a`: bytes is NaN, which is no number of bytes"),
        (Task { latency_s: -1.0, ..transfer() }, "the task `a`: latency_s is -1, which is no time"),
        (Task { latency_s: f64::INFINITY, ..transfer() }, "the task `a`: latency_s is inf, which is no time"),
        (Task::transfer("a", 1.0, &[]), "the task `a`: route names no link"),
        (Task::transfer("a", 1.0, &["wire", "b"]), "the task `a`: route names `b`, and there is no such link"),
        (Task::transfer("a", 1.0, &["wire", "wire"]), "the task `a`: route names the link `wire` twice"),
        (after(&["b"], transfer()), "the task `a` waits for `b`, and there is no such task"),
        (after(&["a"], transfer()), "tasks wait for each other in a circle, such as a"),
    ] {
        assert_eq!(refused(task), says);
    }
    let urgent = refused(Task { priority: 1, ..transfer() });
    assert!(urgent.starts_with("the task `a` has both priority and bytes"), "{urgent}");
    let circle = vec![after(&["b"], transfer()), after(&["a"], Task::new("b", "gpu", 1.0))];
    let circle = with_links(&[("wire", 1.0)], circle).play().unwrap_err().to_string();
    assert_eq!(circle, "tasks wait for each other in a circle, such as b, a");
}

#[test]
fn links_that_make_no_sense_are_refused_and_named() {
    let refused = |links: &[(&str, f64)]| with_links(links, Vec::new()).play().unwrap_err().to_string();
    assert_eq!(refused(&[("wire", 0.0)]), "the link `wire`: bytes_per_s is 0, which is no speed");
    for bytes_per_s in [-1.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE / 2.0] {
        let refused = refused(&[("wire", bytes_per_s)]);
        assert!(refused.starts_with("the link `wire`: bytes_per_s is") && refused.ends_with("no speed"), "{refused}");
    }
    assert_eq!(refused(&[("wire", 1.0), ("wire", 2.0)]), "the link `wire` is there twice");
}

/// No number that a file can have keeps a graph from coming to an end.
#[test]
fn numbers_that_are_too_large_or_too_small_are_refused() {
    let transfers = vec![
        Task::transfer("a", 1e308, &["wire"]),
        Task::transfer("b", 1.0, &["wire"]),
        after(&["a"], Task::transfer("c", 1.0, &["wire"])),
    ];
    let refused = with_links(&[("wire", 1e-300)], transfers.clone()).play().unwrap_err();
    assert_eq!(refused, GraphError::TooLate { task: "c".to_owned() });
    assert!(with_links(&[("wire", 1e308)], transfers).play().is_ok());
}

#[test]
fn a_graph_is_read_and_written() {
    let old = r#"{"tasks":[{"name":"a","resource":"x","seconds":1.0,"latency_s":0.0,"after":[],"priority":0}]}"#;
    let with_link = concat!(
        r#"{"links":[{"name":"wire","bytes_per_s":2.0}],"#,
        r#""tasks":[{"name":"a","bytes":4.0,"route":["wire"],"latency_s":0.5,"after":[],"priority":0}]}"#
    );
    let transfer = Task { latency_s: 0.5, ..Task::transfer("a", 4.0, &["wire"]) };
    let transfer = with_links(&[("wire", 2.0)], vec![transfer]);
    for (text, expected) in [(old, graph(&[("a", "x", 1.0, &[])])), (with_link, transfer)] {
        let read: TaskGraph = serde_json::from_str(text).unwrap();
        assert_eq!(read, expected);
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
}

#[test]
fn a_file_that_makes_no_sense_is_refused_where_it_does_not() {
    for (task, says) in [
        (r#"{"name": "a"}"#, "the task `a`: missing field `resource`"),
        (r#"{"name": "a", "resource": "x"}"#, "the task `a`: missing field `seconds`"),
        (r#"{"name": "a", "seconds": 1}"#, "the task `a`: missing field `resource`"),
        (r#"{"name": "a", "bytes": 1}"#, "the task `a`: missing field `route`"),
        (r#"{"name": "a", "route": ["wire"]}"#, "the task `a`: missing field `bytes`"),
        (r#"{"name": "a", "seconds": 1, "bytes": 1}"#, "the task `a` has both seconds and bytes"),
        (r#"{"name": "a", "resource": "x", "seconds": 1, "route": []}"#, "the task `a` has both seconds and route"),
        (r#"{"name": "a", "resource": "x", "bytes": 1}"#, "the task `a` has both resource and bytes"),
        (r#"{"name": "a", "byte": 1}"#, "unknown field `byte`"),
        (r#"{"name": "a", "bytes": 1e999, "route": ["wire"]}"#, "number out of range"),
    ] {
        let text = format!(r#"{{"links": [{{"name": "wire", "bytes_per_s": 1}}], "tasks": [{task}]}}"#);
        let refused = serde_json::from_str::<TaskGraph>(&text).unwrap_err().to_string();
        assert!(refused.contains(says) && refused.contains("at line 1"), "{refused}");
    }
    let refused = serde_json::from_str::<TaskGraph>(r#"{"links": [{"name": "wire"}], "tasks": []}"#).unwrap_err();
    assert!(refused.to_string().contains("missing field `bytes_per_s`"), "{refused}");
}
