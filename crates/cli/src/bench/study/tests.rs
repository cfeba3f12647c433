use super::super::arguments::Hosts;
use super::super::budget::estimate;
use super::super::catalogue::samples::catalogue;
use super::super::models;
use super::*;
use clap::Parser;
use paceline_strategy::Registry;
use paceline_tune::Policy;

const PLACE: Place<'static> = Place { cores: 2, launched: None };

fn arguments(change: impl FnOnce(&mut BenchArguments)) -> BenchArguments {
    let mut arguments = BenchArguments::default();
    change(&mut arguments);
    arguments
}

fn planned(change: impl FnOnce(&mut BenchArguments)) -> Result<Study, Refusal> {
    planned_on(PLACE.cores, change)
}

fn planned_on(cores: usize, change: impl FnOnce(&mut BenchArguments)) -> Result<Study, Refusal> {
    plan(&arguments(change), &catalogue(&Registry::built_in()), Place { cores, ..PLACE })
}

/// `bench` as somebody types it.
#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    arguments: BenchArguments,
}

#[test]
fn no_arguments_mean_this_machine_and_a_cluster_in_a_box() {
    let study = planned(|_| ()).expect("it makes sense");
    let [here, there] = &study.panels[..] else { panic!("{} panels", study.panels.len()) };
    assert_eq!((here.setting.model.as_str(), &here.setting.compute), ("mlp", &Compute::Real));
    assert!(study.protocol.runs() >= VALUES_MIN, "else nobody can win");
    assert_eq!(there.setting.labels()[..2], ["replayed: resnet50@rtx2080ti", "emulated: 10GbE"]);
    assert_eq!(there.setting.workers_per_host, Some(4));
    let workers = |panel: &PanelPlan| panel.cells.iter().map(|one| one.cell.workers).max();
    assert_eq!((workers(here), workers(there)), (Some(4), Some(8)));
    assert!(here.cells.iter().all(|one| one.cell.threads == 1), "equal cores per worker");
    // The seven methods of the study and what people have today, and the first once more at each number of workers.
    let all = ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp", "bytescheduler-ps", "bytescheduler-a2a", "ddp"];
    for (panel, workers) in [(here, 1), (here, 2), (here, 4), (there, 8)] {
        let of = |arm| {
            let cells = panel.cells.iter().map(|one| &one.cell);
            let cells = cells.filter(move |cell| cell.workers == workers && cell.arm == arm);
            cells.map(|cell| cell.method.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((of(Arm::Method), of(Arm::Again)), (all.to_vec(), vec!["bsp-ps"]), "{workers} workers");
    }
    assert!(matches!(study.protocol, Protocol::Timed { seconds, .. } if seconds < 240.0), "{:?}", study.protocol);
}

/// Four minutes, with what starts, draws and writes besides. On one core the box is slowed so much that it goes without what
/// it can spare, but not without its eight workers.
#[test]
fn what_no_arguments_mean_ends_in_four_minutes_on_any_number_of_cores() {
    for (cores, dilate, spared) in [(1, 6.0, 3), (2, 3.0, 0), (4, 2.0, 0), (16, 1.0, 0)] {
        let study = planned_on(cores, |_| ()).expect("it makes sense");
        let paces: Vec<Pace> = study.panels.iter().flat_map(|panel| &panel.cells).map(|one| one.pace).collect();
        let about_s = estimate(&study.protocol, &paces);
        assert!(about_s <= 215.0, "{about_s} s on {cores} cores");
        let [here, there] = &study.panels[..] else { panic!("{} panels", study.panels.len()) };
        assert_eq!((there.setting.dilate, there.slowed.is_some()), (dilate, dilate > 1.0), "{cores} cores");
        let methods = |panel: &PanelPlan, workers| {
            let of = |one: &&PlannedCell| one.cell.workers == workers && one.cell.arm == Arm::Method;
            panel.cells.iter().filter(of).count()
        };
        assert_eq!((methods(here, 4), methods(there, 8)), (METHODS.len(), METHODS.len() - spared), "{cores} cores");
        assert_eq!(study.spared.len(), spared);
        assert!(there.cells.iter().any(|one| one.cell.arm == Arm::Again), "the noise is measured");
    }
    // Whoever says what it may take, or what is measured, gets it.
    let changes: [fn(&mut BenchArguments); 5] = [
        |a| a.budget = Some(100.0),
        |a| a.runs = Some(3),
        |a| a.dilate = Some(12.0),
        |a| a.methods = Some(METHODS.join(",")),
        |a| a.local_batch = vec![64],
    ];
    for change in changes {
        let study = planned_on(1, change).expect("it makes sense");
        assert!(study.spared.is_empty() && study.panels[1].cells.len() == METHODS.len() + 1);
    }
}

/// Batches and methods are those of both panels; workers and data are this machine's, and the plan says so.
#[test]
fn what_is_said_is_for_both_panels_or_the_plan_says_that_it_is_not() {
    let said = |change: fn(&mut BenchArguments)| planned(change).expect("it makes sense");
    let study = said(|a| {
        (a.workers, a.local_batch) = (vec![2], vec![16, 64]);
        (a.methods, a.data) = (Some("wfbp-ps,ddp".to_owned()), Some("sample".to_owned()));
    });
    let facts = |panel: &PanelPlan| {
        let workers = panel.cells.iter().map(|one| one.cell.workers).max();
        (panel.setting.model.clone(), panel.setting.local_batch, workers, panel.setting.data.clone())
    };
    let here = |batch| ("mlp".to_owned(), batch, Some(2), Some("sample".to_owned()));
    let there = |batch| ("resnet50".to_owned(), batch, Some(8), None);
    let expected = [here(16), here(64), there(16), there(64)];
    assert_eq!(study.panels.iter().map(facts).collect::<Vec<_>>(), expected);
    let [workers, data] = &study.fixed[..] else { panic!("{:?}", study.fixed) };
    assert!(workers.starts_with("--workers is for this machine alone: the cluster in a box keeps its 8"), "{workers}");
    assert!(data.starts_with("--data is for this machine alone"), "{data}");
    // Where nothing else was said, or there is no box, there is nothing to say.
    assert!(said(|a| a.local_batch = vec![16]).fixed.is_empty());
    let one = said(|a| {
        (a.models, a.workers) = (vec!["mlp".to_owned()], vec![2]);
    });
    assert!(one.fixed.is_empty());
}

/// Each by its own model and batch: on two cores, 8 workers of BERT-Base send and receive 7 GB in an iteration.
#[test]
fn clusters_in_a_box_are_slowed_as_far_as_the_cores_need() {
    let line = "bench --models resnet50,bert-base --methods wfbp-ps,mg-wfbp --workers 2,4,8 --hosts 2x4 --emulate 10GbE \
                --compute replay --local-batch 8,16,64 --json out.json --report out.html --csv out.csv";
    let registry = crate::Registry::built_in();
    let planned = |more: &[&str]| {
        let words = line.split_whitespace().chain(more.iter().copied());
        let typed = Typed::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        plan(&typed.arguments, &models::catalogue(&registry), PLACE).expect("it makes sense")
    };
    let study = planned(&[]);
    let facts = |panel: &PanelPlan| (panel.setting.model.clone(), panel.setting.local_batch, panel.setting.dilate);
    let expected = [
        ("resnet50", 8, 9.0),
        ("resnet50", 16, 7.0),
        ("resnet50", 64, 3.0),
        ("bert-base", 8, 10.0),
        ("bert-base", 16, 10.0),
        ("bert-base", 64, 7.0),
    ];
    let expected = expected.map(|(model, batch, dilate)| (model.to_owned(), batch, dilate));
    assert_eq!(study.panels.iter().map(facts).collect::<Vec<_>>(), expected);
    for panel in &study.panels {
        let cells = panel.cells.iter().map(|one| (one.cell.method.as_str(), one.cell.workers, one.cell.arm));
        let of = |workers| {
            [("wfbp-ps", workers, Arm::Method), ("mg-wfbp", workers, Arm::Method), ("wfbp-ps", workers, Arm::Again)]
        };
        assert_eq!(cells.collect::<Vec<_>>(), [2, 4, 8].map(of).concat());
        let dilate = panel.setting.dilate;
        assert!(
            panel.slowed.as_ref().is_some_and(|why| why.starts_with(&format!("dilated {dilate}×, as 8 workers on 2")))
        );
        assert!(panel.setting.labels().contains(&format!("dilated {dilate}×")));
        let json = serde_json::to_value(&panel.setting).expect("it has a form");
        assert_eq!(json["dilate"], dilate);
    }
    // Real time, if somebody wants it; and nothing else is ever slowed.
    assert!(
        planned(&["--dilate", "1"]).panels.iter().all(|panel| panel.setting.dilate == 1.0 && panel.slowed.is_none())
    );
    for change in [(|a| a.compute = Some(ComputeChoice::Replay(None))) as fn(&mut BenchArguments), |a| {
        (a.models, a.emulate) = (vec!["mlp".to_owned()], vec!["10GbE".to_owned()])
    }] {
        let study = planned_on(1, change).expect("it makes sense");
        assert!(study.panels.iter().all(|panel| panel.setting.dilate == 1.0 && panel.slowed.is_none()));
    }
}

#[test]
fn models_networks_and_batches_are_multiplied() {
    let study = planned(|arguments| {
        arguments.models = vec!["resnet50".to_owned(), "bert-large".to_owned()];
        arguments.methods = Some("bsp-a2a,wfbp-a2a".to_owned());
        arguments.workers = vec![8, 2, 8];
        arguments.hosts = Some(Hosts { hosts: 2, workers: 4 });
        arguments.emulate = vec!["10GbE".to_owned(), "100GbIB".to_owned()];
        arguments.compute = Some(ComputeChoice::Replay(None));
        arguments.local_batch = vec![8, 16];
        arguments.full = true;
    });
    let study = study.expect("it makes sense");
    assert_eq!(study.panels.len(), 8);
    assert_eq!(study.protocol, STUDY);
    for panel in &study.panels {
        let cells: Vec<_> = panel.cells.iter().map(|one| (one.cell.workers, one.cell.arm)).collect();
        let expected =
            [(2, Arm::Method), (2, Arm::Method), (2, Arm::Again), (8, Arm::Method), (8, Arm::Method), (8, Arm::Again)];
        assert_eq!(cells, expected);
    }
}

/// Beside the method itself, so that both are measured in turn under the same protocol.
#[test]
fn methods_with_all_reduces_are_measured_tuned_as_well() {
    let with = |tune| {
        let study = planned(|arguments| {
            arguments.models = vec!["mlp".to_owned()];
            arguments.methods = Some("ddp,wfbp-ps,wfbp-a2a".to_owned());
            arguments.workers = vec![1, 2];
            arguments.tune = tune;
        });
        study.expect("it makes sense").panels[0].cells.clone()
    };
    let (without, with) = (with(false), with(true));
    let tuned: Vec<&PlannedCell> = with.iter().filter(|planned| planned.cell.tuned).collect();
    assert_eq!(with.len(), without.len() + tuned.len());
    let what = |planned: &&PlannedCell| (planned.cell.method.clone(), planned.cell.workers, planned.cell.arm);
    let expected = ["ddp+tune", "wfbp-a2a+tune"].map(|method| (method.to_owned(), 2, Arm::Method));
    assert_eq!(tuned.iter().map(what).collect::<Vec<_>>(), expected);
    let plain = with.iter().find(|planned| planned.cell.method == "ddp" && planned.cell.workers == 2);
    let (plain, tuned) = (plain.expect("it is there, too"), tuned[0]);
    assert_eq!(plain.cell.strategy, tuned.cell.strategy);
    assert!(tuned.pace.overhead_s > plain.pace.overhead_s, "learning takes time");
    // Studies of earlier versions go on: a cell that is not tuned is called as it always was.
    let keys = [&plain.cell, &tuned.cell].map(|cell| cell.key().expect("JSON").contains("tuned"));
    assert_eq!(keys, [false, true]);
}

/// How many connections there are is part of what is measured; cells with one are called as they always were.
#[test]
fn links_of_several_connections_are_another_setting() {
    let with = |streams| {
        let study = planned(|a| {
            (a.models, a.methods) = (vec!["mlp".to_owned()], Some("ddp,protocol=tcp".to_owned()));
            a.tcp_streams = streams;
        });
        study.expect("it makes sense").panels[0].clone()
    };
    let (one, four) = (with(None), with(Some(4)));
    assert_eq!((one.setting.tcp_streams, four.setting.tcp_streams), (1, 4));
    assert_ne!(one.setting, four.setting);
    assert_eq!(one.setting, with(Some(1)).setting);
    assert!(four.setting.to_string().ends_with(", 4 TCP connections per pair of ranks"), "{}", four.setting);
    let keys = [&one, &four].map(|panel| panel.cells[0].cell.key().expect("JSON"));
    assert_eq!(keys.each_ref().map(|key| key.contains("tcp_streams")), [false, true]);
    let read: Vec<Cell> = keys.iter().map(|key| serde_json::from_str(key).expect("a cell")).collect();
    assert_eq!([&read[0], &read[1]], [&one.cells[0].cell, &four.cells[0].cell]);
    // Ranks of a launcher may be on several hosts, and then TCP carries what they say.
    let launched = under_a_launcher(|a| a.tcp_streams = Some(2)).expect("it makes sense");
    assert_eq!(launched.panels[0].setting.tcp_streams, 2);
}

/// A policy is part of what is measured: with another one it is another cell.
#[test]
fn methods_with_all_reduces_are_measured_with_a_policy_as_well() {
    let with = |version| {
        let study = planned(|arguments| {
            arguments.models = vec!["mlp".to_owned()];
            arguments.methods = Some("ddp,wfbp-ps,wfbp-a2a".to_owned());
            arguments.workers = vec![1, 2];
            arguments.followed = Some(Policy::new(version, []));
        });
        let cells = study.expect("it makes sense").panels[0].cells.clone();
        cells.into_iter().map(|planned| planned.cell).filter(|cell| cell.policy.is_some()).collect::<Vec<_>>()
    };
    let (cells, others) = (with(1), with(2));
    let what: Vec<_> = cells.iter().map(|cell| (cell.method.as_str(), cell.workers, cell.tuned)).collect();
    assert_eq!(what, [("ddp+policy", 2, false), ("wfbp-a2a+policy", 2, false)]);
    assert_ne!(cells[0].key().expect("JSON"), others[0].key().expect("JSON"));
}

#[test]
fn one_worker_alone_is_measured_although_nobody_asked() {
    let study = planned(|arguments| {
        arguments.models = vec!["cnn".to_owned()];
        arguments.workers = vec![2];
    });
    let panel = &study.expect("it makes sense").panels[0];
    assert_eq!((panel.cells[0].cell.arm, panel.cells[0].cell.workers), (Arm::Baseline, 1));
}

#[test]
fn a_profile_from_a_file_brings_its_model_along() {
    let replay = |arguments: &mut BenchArguments| {
        arguments.compute = Some(ComputeChoice::Replay(Some("mine.json".to_owned())));
    };
    let study = planned(replay).expect("it makes sense");
    assert_eq!((study.panels[0].setting.model.as_str(), study.panels[0].setting.local_batch), ("mine", 16));
    // The file's own batch is not what was recorded, whoever scaled it.
    let labels = study.panels[0].setting.labels();
    assert!(labels.contains(&"scaled from a local batch of 8".to_owned()), "{labels:?}");
    let other = planned(|arguments| {
        replay(arguments);
        arguments.models = vec!["cnn".to_owned()];
    });
    assert!(other.expect_err("it is of another model").what.contains("is of mine, not of cnn"));
}

/// Its size, and not that of the built-in profile of the same model, or of none.
#[test]
fn a_replay_takes_as_long_as_its_own_profile_travels() {
    let slowest = |path: &str| {
        let study = planned(|arguments| {
            arguments.compute = Some(ComputeChoice::Replay(Some(path.to_owned())));
            arguments.emulate = vec!["10GbE".to_owned()];
            arguments.hosts = Some(Hosts { hosts: 4, workers: 1 });
            arguments.methods = Some("wfbp-a2a".to_owned());
            arguments.dilate = Some(2.0);
        });
        study.expect("it makes sense").panels[0].cells.iter().map(|one| one.pace.iteration_s).fold(0.0, f64::max)
    };
    // Of a gigabyte each host sends one and a half; half of that time is hidden, and all of it is dilated.
    let travel_s = 1.5e9 * NetworkModel::TEN_GBE.across.beta_s_per_byte;
    for path in ["large.json", "large-resnet50.json"] {
        let (took, computed_s) = (slowest(path), 0.016);
        assert!((took - 2.0 * (computed_s + 0.5 * travel_s)).abs() < 1e-9, "{path}: {took} s of {travel_s} s");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    type Change = fn(&mut BenchArguments);
    let cases: [(Change, &str); 22] = [
        (|a| a.models = vec!["resnet5".to_owned()], "did you mean `resnet50`?"),
        (|a| a.methods = Some("wfpb-a2a".to_owned()), "did you mean `wfbp-a2a`?"),
        (|a| a.methods = Some("ddp,wfbp-a2a,ddp".to_owned()), "ddp is there twice"),
        (|a| a.methods = Some(" ".to_owned()), "names no method"),
        (
            |a| {
                a.models = vec!["cnn".to_owned()];
                a.dilate = Some(2.0);
            },
            "real computation cannot be slowed",
        ),
        (|a| a.dilate = Some(0.5), "at least 1"),
        (
            |a| {
                a.compute = Some(ComputeChoice::Replay(None));
                a.dilate = Some(2.0);
            },
            "real links cannot be slowed",
        ),
        (
            |a| {
                a.emulate = vec!["10GbE".to_owned()];
                a.dilate = Some(2.0);
            },
            "real computation cannot be slowed",
        ),
        (
            |a| {
                a.models = vec!["cnn".to_owned()];
                a.compute = Some(ComputeChoice::Replay(None));
            },
            "no built-in profile of cnn",
        ),
        (
            |a| {
                a.models = vec!["bert-large".to_owned()];
            },
            "cannot be computed here",
        ),
        (
            |a| {
                a.compute = Some(ComputeChoice::Replay(None));
                a.data = Some("sample".to_owned());
            },
            "a replay reads none",
        ),
        (|a| a.servers_on = vec!["node1".to_owned()], "no launcher has started this program"),
        (
            |a| {
                a.compute = Some(ComputeChoice::Replay(None));
                a.emulate = vec!["10GbE".to_owned()];
                a.hosts = Some(Hosts { hosts: 2, workers: 2 });
                a.servers_on = vec!["2".to_owned()];
            },
            "there is no host 2; the hosts are 0 (2 ranks), 1 (2 ranks)",
        ),
        (
            |a| {
                (a.compute, a.emulate) = (Some(ComputeChoice::Replay(None)), vec!["10GbE".to_owned()]);
                (a.hosts, a.servers_on) = (Some(Hosts { hosts: 2, workers: 2 }), vec!["1".to_owned()]);
                a.methods = Some("bsp-a2a,ddp".to_owned());
            },
            "--servers-on 1: no method here has servers that could live there",
        ),
        (
            |a| {
                a.compute = Some(ComputeChoice::Replay(None));
                a.emulate = vec!["10GbE".to_owned()];
                a.hosts = Some(Hosts { hosts: 2, workers: 2 });
                a.workers = vec![8];
            },
            "8 workers do not fit on --hosts 2x2",
        ),
        (|a| a.emulate = vec!["10GbX".to_owned()], "10GbE"),
        (
            |a| {
                a.methods = Some("wfbp-ps,bsp-ps".to_owned());
                a.tune = true;
            },
            "--tune tunes all-reduces, and nothing here makes any",
        ),
        (
            |a| {
                a.models = vec!["mlp".to_owned()];
                a.workers = vec![1];
                a.tune = true;
            },
            "one worker alone does not communicate",
        ),
        (
            |a| {
                a.models = vec!["mlp".to_owned()];
                a.emulate = vec!["10GbE".to_owned()];
                a.methods = Some("ddp,wfbp-ps,protocol=tcp".to_owned());
            },
            "--methods wfbp-ps,protocol=tcp: an emulated network is made of shared memory",
        ),
        (
            |a| {
                (a.models, a.tcp_streams) = (vec!["mlp".to_owned()], Some(4));
                a.emulate = vec!["10GbE".to_owned()];
            },
            "--tcp-streams 4: an emulated network is made of shared memory",
        ),
        (|a| (a.models, a.tcp_streams) = (vec!["mlp".to_owned()], Some(4)), "--tcp-streams 4: shared memory carries"),
        (
            |a| a.methods = Some("ddp;schedule=auto,arch=ps:2:apply".to_owned()),
            "would lose its state then; choose the mode aggregate",
        ),
    ];
    for (change, reason) in cases {
        let refusal = planned(change).expect_err(reason);
        assert!(refusal.what.contains(reason), "{refusal:?} does not say {reason}");
    }
    let refused = |change: Change| under_a_launcher(change).expect_err("it makes no sense").what;
    assert!(refused(|a| a.workers = vec![8]).contains("started 6 ranks"));
    assert!(refused(|a| a.servers_on = vec!["c".to_owned()]).contains("there is no host c"));
    assert!(refused(|a| a.emulate = vec!["10GbE".to_owned()]).contains("links of their own"));
    assert!(refused(|a| a.dilate = Some(2.0)).starts_with("--dilate slows emulated links; a launcher's ranks"));
    let replayed = |a: &mut BenchArguments| {
        a.compute = Some(ComputeChoice::Replay(None));
        a.dilate = Some(2.0);
    };
    assert!(refused(replayed).starts_with("--dilate slows emulated links; a launcher's ranks"));
    let crowded = |a: &mut BenchArguments| {
        a.servers_on = vec!["b".to_owned()];
        a.workers = vec![4];
    };
    assert!(refused(crowded).contains("started 3 ranks that do not serve"));
    assert!(refused(|a| a.methods = Some("study-bsp-ps".to_owned())).contains("nothing says which hosts serve"));
    let idle = |a: &mut BenchArguments| {
        (a.methods, a.servers_on) = (Some("ddp".to_owned()), vec!["b".to_owned()]);
    };
    assert!(refused(idle).starts_with("--servers-on b: no method here has servers"));
}

/// Six ranks on two hosts, a and b.
fn under_a_launcher(change: impl FnOnce(&mut BenchArguments)) -> Result<Study, Refusal> {
    let stage = Stage { hosts: "2x3".parse().expect("hosts"), names: vec!["a".to_owned(), "b".to_owned()] };
    let placement = Placement::new("srun", &stage, &[9, 10]);
    let launched = Launched { placement, stage, available_bytes: vec![None; 2] };
    let place = Place { launched: Some(&launched), ..PLACE };
    plan(&arguments(change), &catalogue(&Registry::built_in()), place)
}

#[test]
fn under_a_launcher_its_ranks_are_the_workers_and_hosts_can_serve() {
    let cells = |change: fn(&mut BenchArguments)| {
        let study = under_a_launcher(change).expect("it makes sense");
        assert_eq!(study.panels.len(), 1, "this cluster, and none in a box");
        let cells =
            study.panels[0].cells.iter().filter(|one| one.cell.method == "bsp-ps" && one.cell.arm == Arm::Method);
        let facts = |cell: &Cell| (cell.workers, cell.shards, cell.dedicated_servers, cell.threads);
        cells.map(|one| facts(&one.cell)).collect::<Vec<_>>()
    };
    assert_eq!(cells(|_| {}), [(6, 2, false, 3)]);
    assert_eq!(cells(|a| a.workers = vec![6, 2]), [(2, 1, false, 3), (6, 2, false, 3)]);
    assert_eq!(cells(|a| a.servers_on = vec!["a".to_owned()]), [(3, 1, true, 3)]);
}

#[test]
fn emulated_hosts_can_serve_too() {
    let study = planned(|a| {
        a.compute = Some(ComputeChoice::Replay(None));
        a.emulate = vec!["10GbE".to_owned()];
        a.hosts = Some(Hosts { hosts: 4, workers: 2 });
        a.servers_on = vec!["1".to_owned(), "3".to_owned()];
    });
    let panel = &study.expect("it makes sense").panels[0];
    assert!(panel.setting.labels().contains(&"servers on 1, 3".to_owned()));
    let served = panel.cells.iter().find(|one| one.cell.method == "bsp-ps").expect("it is there");
    assert_eq!((served.cell.workers, served.cell.shards, served.cell.dedicated_servers), (4, 2, true));
    let without = panel.cells.iter().find(|one| one.cell.method == "ddp").expect("it is there");
    assert!(!without.cell.dedicated_servers);
}
