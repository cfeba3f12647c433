use super::super::cell::samples;
use super::super::summary::samples::cell_run;
use super::*;
use crate::machine::Machine;

/// A study that was never run.
pub fn study_record(fingerprint: &str) -> StudyRecord {
    StudyRecord {
        id: 0,
        started: 1,
        command: vec!["paceline".to_owned(), "bench".to_owned()],
        version: "1".to_owned(),
        machine: Machine::this(),
        fingerprint: fingerprint.to_owned(),
        identity: Identity::new(),
        protocol: "2 + 5 iterations, 2 runs".to_owned(),
        placement: None,
        combine_s_per_byte: None,
    }
}

fn run(number: usize, seconds: f64) -> RunRecord {
    let measured = CellRun { iteration_s: vec![seconds, 0.1 + 0.2], ..cell_run(1.0) };
    RunRecord {
        number,
        outcome: Ok(measured),
        occasion: Occasion { ended: 1_800_000_000, load: Some(0.25), repeats: 1 },
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("paceline-store-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Scratch(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("runs.db")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_kept_is_read_back_by_another_process() {
    let scratch = Scratch::new("kept");
    let (a, b) = (samples::cell(&samples::setting("cnn"), "wfbp-ps", 2), samples::setting("mlp"));
    let b = samples::cell(&b, "bsp-a2a", 4);
    let store = Store::open(&scratch.file()).expect("it is new");
    let id = store.begin(&study_record("f")).expect("begun");
    let failed = RunRecord { outcome: Err("rank 1 was killed by SIGKILL".to_owned()), ..run(1, 1.0) };
    for (cell, record) in [(&b, run(1, 0.5)), (&a, failed.clone()), (&b, run(2, 1.0 / 3.0))] {
        store.keep(id, cell, &record).expect("kept");
    }
    // Nothing was closed: as after `kill -9`.
    let other = Store::open_existing(&scratch.file()).expect("it is there");
    let cells = other.cells(id).expect("read");
    assert_eq!(cells[0], CellRecord { cell: b.clone(), runs: vec![run(1, 0.5), run(2, 1.0 / 3.0)] });
    assert_eq!(cells[1], CellRecord { cell: a.clone(), runs: vec![failed] });
    assert!(other.has(id, &b, 2).expect("read") && !other.has(id, &b, 3).expect("read"));
    assert!(!other.has(id, &a, 1).expect("read"), "a failed run is to be run again");
    let measured = |cell, number| other.measured(id, cell, number).expect("read");
    assert_eq!((measured(&b, 2), measured(&b, 3), measured(&a, 1)), (run(2, 1.0 / 3.0).outcome.ok(), None, None));
    let never = samples::cell(&samples::setting("cnn"), "ddp", 2);
    let knows = |cell| other.knows(id, cell).expect("read");
    assert!(knows(&a) && knows(&b) && !knows(&never));
    other.keep(id, &a, &run(1, 0.25)).expect("replaces the failed one");
    assert!(store.has(id, &a, 1).expect("read"));
    assert_eq!(store.cells(id).expect("read")[1].runs, [run(1, 0.25)]);
}

/// Two calls with `--resume` go on with one study, and both make its third run.
#[test]
fn a_run_that_ended_well_stays() {
    let scratch = Scratch::new("twice");
    let cell = samples::cell(&samples::setting("cnn"), "ddp", 2);
    let [one, other] = [(); 2].map(|()| Store::open(&scratch.file()).expect("it can be opened"));
    let id = one.begin(&study_record("f")).expect("begun");
    let failed = RunRecord { outcome: Err("rank 1 was killed by SIGKILL".to_owned()), ..run(3, 1.0) };
    one.keep(id, &cell, &failed).expect("kept");
    other.keep(id, &cell, &run(3, 0.5)).expect("replaces the failed one");
    one.keep(id, &cell, &failed).expect("nothing is wrong");
    one.keep(id, &cell, &run(3, 0.25)).expect("nothing is wrong");
    assert_eq!(other.cells(id).expect("read"), [CellRecord { cell, runs: vec![run(3, 0.5)] }]);
}

#[test]
fn studies_are_told_apart_and_the_last_of_a_kind_is_resumed() {
    let scratch = Scratch::new("studies");
    let store = Store::open(&scratch.file()).expect("it is new");
    let ids = ["f", "g", "f"].map(|fingerprint| store.begin(&study_record(fingerprint)).expect("begun"));
    assert_eq!(store.last_with("f").expect("read"), Some(ids[2]));
    assert_eq!(store.last_with("g").expect("read"), Some(ids[1]));
    assert_eq!(store.last_with("h").expect("read"), None);
    let cell = samples::cell(&samples::setting("cnn"), "ddp", 1);
    store.keep(ids[0], &cell, &run(1, 1.0)).expect("kept");
    assert!(!store.has(ids[2], &cell, 1).expect("read"));
    let read: Vec<_> = store.studies().expect("read").into_iter().map(|(_, study)| study.fingerprint).collect();
    assert_eq!(read, ["f", "g", "f"]);
}

#[test]
fn files_of_others_are_refused_and_not_touched() {
    let scratch = Scratch::new("foreign");
    let open = || Store::open(&scratch.file());
    std::fs::write(scratch.file(), "nothing like a database, but long enough to be looked at by SQLite")
        .expect("written");
    assert!(matches!(open(), Err(StoreError::Database { .. })));
    std::fs::remove_file(scratch.file()).expect("removed");
    let foreign = Connection::open(scratch.file()).expect("made");
    foreign.execute_batch("CREATE TABLE theirs (x)").expect("made");
    assert!(matches!(open(), Err(StoreError::Foreign { .. })));
    foreign.execute_batch("PRAGMA user_version = 1").expect("changed");
    assert!(matches!(open(), Err(StoreError::Foreign { .. })), "their first version is not ours");
    let newer = "DROP TABLE theirs; PRAGMA application_id = 0x5061636c; PRAGMA user_version = 99";
    foreign.execute_batch(newer).expect("changed");
    assert!(matches!(open(), Err(StoreError::Newer { found: 99, .. })));
    assert!(matches!(Store::open_existing(&scratch.0.join("none.db")), Err(StoreError::Missing { .. })));
    assert!(!scratch.0.join("none.db").exists());
}

#[test]
fn tables_of_the_first_version_are_brought_to_todays() {
    let scratch = Scratch::new("first");
    let first = Connection::open(scratch.file()).expect("made");
    first.execute_batch(VERSION_1).expect("as it was");
    let json = serde_json::to_string(&study_record("f")).expect("it has a form");
    first.execute("INSERT INTO study (fingerprint, json) VALUES ('f', ?1)", [json]).expect("begun");
    let cell = samples::cell(&samples::setting("cnn"), "ddp", 2);
    first.execute("INSERT INTO cell (study, key) VALUES (1, ?1)", [cell.key().expect("a key")]).expect("kept");
    let kept = "INSERT INTO run (cell, number, ended, message) VALUES (1, 1, 1700000000, 'it was killed')";
    first.execute_batch(kept).expect("kept");
    drop(first);
    let store = Store::open(&scratch.file()).expect("it is ours");
    let runs = store.cells(StudyId(1)).expect("read").swap_remove(0).runs;
    assert_eq!(runs[0].occasion, Occasion { ended: 1_700_000_000, load: None, repeats: 0 });
    assert_eq!(store.study(StudyId(1)).expect("read"), StudyRecord { id: 1, ..study_record("f") });
    assert_eq!(store.found().expect("read"), Found::Ours(SCHEMA));
}

/// Often, as the moments at which they get into each other's way are short.
#[test]
fn many_may_open_a_new_file_at_once() {
    for round in 0..50 {
        let scratch = Scratch::new(&format!("race-{round}"));
        let open = || Store::open(&scratch.file()).map(drop).map_err(|error| format!("{error:?}"));
        let opened = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(opened.iter().all(Result::is_ok), "round {round}: {opened:?}");
    }
}

#[test]
fn a_full_disk_loses_no_run_that_had_ended() {
    let scratch = Scratch::new("full");
    let store = Store::open(&scratch.file()).expect("it is new");
    let id = store.begin(&study_record("f")).expect("begun");
    let cell = samples::cell(&samples::setting("cnn"), "ddp", 2);
    store.keep(id, &cell, &run(1, 1.0)).expect("there is room");
    store.connection.execute_batch("PRAGMA max_page_count = 1").expect("it stays at the pages there are");
    let large = CellRun { iteration_s: vec![0.1; 100_000], ..cell_run(1.0) };
    let error = store.keep(id, &cell, &RunRecord { outcome: Ok(large), ..run(2, 1.0) }).expect_err("there is no room");
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(store.cells(id).expect("read")[0].runs, [run(1, 1.0)]);
    store.connection.execute_batch("PRAGMA max_page_count = 1000000").expect("room is made");
    store.keep(id, &cell, &run(2, 2.0)).expect("it goes on");
    assert_eq!(Store::open(&scratch.file()).expect("whole").cells(id).expect("read")[0].runs.len(), 2);
}

/// What was learned on one cluster comes back for it, and for no other; what is learned anew takes its place.
#[test]
fn lessons_are_kept_by_cluster() {
    use paceline_tune::learner::Lesson;
    use paceline_tune::{Action, Family, WireProtocol, environment};

    let scratch = Scratch::new("lessons");
    let store = Store::open(&scratch.file()).expect("made");
    let cluster = paceline_plan::Cluster::named("study-10gbe").expect("it is built in");
    let model = environment::OwnModel::of(&cluster);
    let call = environment::Workload::data_parallel(8, 32).calls[0];
    let context = environment::CostModel::state(&model, &call).context();
    let family = Family { algorithm: 3, protocol: WireProtocol::Simple };
    let action = Action { family, channels: 2, threads: 1, chunk_log2: 18 };
    let lesson = Lesson { context, action, samples: 7.0, mean: 0.25 };
    let other = Lesson { action: Action { channels: 4, ..action }, ..lesson };
    store.keep_lessons("here", &[lesson, other]).expect("kept");
    store.keep_lessons("there", &[other]).expect("kept");
    let newer = Lesson { mean: -0.5, ..lesson };
    store.keep_lessons("here", &[newer]).expect("kept");
    let mut here = store.lessons("here").expect("read");
    here.sort_by_key(|lesson| lesson.action);
    assert_eq!(here, [newer, other]);
    assert_eq!(store.lessons("there").expect("read"), [other]);
    assert_eq!(store.lessons("elsewhere").expect("read"), []);
    // What stands is kept besides, and what is not decided does not take the place of what was.
    let learning = paceline_train::TunedContext {
        context,
        regime: paceline_tune::prior::Regime::Aggressive,
        rule: "a rule".to_owned(),
        ratio: None,
        calls: 40,
        explored: 30,
        drifts: 0,
        best: "not known yet".to_owned(),
        certainty: paceline_tune::atlas::LEARNING.to_owned(),
        gain: None,
        default_s: Some(1e-3),
        chosen_s: Some(1e-3),
        over_bandwidth: Some(1.5),
        lossless_saturated: false,
        compression: Vec::new(),
    };
    let decided = paceline_train::TunedContext { certainty: "12.0 %".to_owned(), gain: Some(0.12), ..learning.clone() };
    for (kept, stands) in [(&learning, &learning), (&decided, &decided), (&learning, &decided)] {
        store.keep_standings("here", std::slice::from_ref(kept)).expect("kept");
        assert_eq!(store.standings("here").expect("read"), std::slice::from_ref(stands));
    }
    assert_eq!(store.standings("there").expect("read"), []);
    assert_eq!(store.clusters().expect("read"), ["here", "there"]);
}
